"""Tools that are folders of files. Each runs in a separate process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.plugins.folders.folder_tool import load_tool

__getattr__, __dir__ = attach_names(globals(), {"folder_tool": ("load_tool",)})
