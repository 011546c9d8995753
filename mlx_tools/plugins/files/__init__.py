"""The tools for files, and undo for their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.plugins.files.access import create_file, file_access, file_access_spec
    from mlx_tools.plugins.files.command import undo_question
    from mlx_tools.plugins.files.restore import Undo
    from mlx_tools.plugins.files.search import search_files

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "access": ("create_file", "file_access", "file_access_spec"),
        "command": ("undo_question",),
        "restore": ("Undo",),
        "search": ("search_files",),
    },
)
