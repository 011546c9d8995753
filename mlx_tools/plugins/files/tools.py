"""The tools of this plugin."""

from __future__ import annotations

from mlx_tools.app import ToolRequest, hookimpl
from mlx_tools.plugins.files.access import create_file, file_access
from mlx_tools.plugins.files.edit import edit_file
from mlx_tools.plugins.files.search import search_files
from mlx_tools.tools import Tool, disable_tool


@hookimpl
def tools(request: ToolRequest) -> list[Tool]:
    """Return ``file_access``, ``create_file``, ``edit_file`` and ``search_files``."""
    roots, no_files = request.roots, request.no_files
    writable = any(root.writable for root in roots)
    no_edits = no_files or (None if writable else "no folder was named with :rw (--root DIR:rw)")
    return [
        disable_tool(file_access(roots), no_files),
        disable_tool(create_file(roots), no_files),
        disable_tool(edit_file(roots), no_edits),
        disable_tool(search_files(roots), no_files),
    ]
