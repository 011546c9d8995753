"""Tools: how they are declared, which there are, and what runs them."""

from __future__ import annotations

from mlx_tools.tools.context import Progress, ToolContext
from mlx_tools.tools.declaration import EffectsBy
from mlx_tools.tools.executor import ToolResult, execute
from mlx_tools.tools.folder.folder_tool import load_tool
from mlx_tools.tools.reads import Reads
from mlx_tools.tools.registry import Registry
from mlx_tools.tools.signature import InvalidArguments
from mlx_tools.tools.tool import Callee, Preview, Tool, ToolError, preview_of, tool

__all__ = [
    "Callee",
    "EffectsBy",
    "InvalidArguments",
    "Preview",
    "Progress",
    "Reads",
    "Registry",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "execute",
    "load_tool",
    "preview_of",
    "tool",
]
