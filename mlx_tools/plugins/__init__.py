"""The built-in plugins: a folder each, which can be deleted.

A plugin imports rooms of the package and no other plugin, and no room imports a plugin: what it
adds comes in by the hooks of `mlx_tools.app.hooks`.
"""
