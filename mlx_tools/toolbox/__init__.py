"""The tools that come with the package, one file each. Their words stand in ``prompts/tools/``."""

from mlx_tools.toolbox.builtin import builtin_tools as builtin_tools

__all__ = ["builtin_tools"]
