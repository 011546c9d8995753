"""The built-in tools, one file each. Their texts are in ``prompts/tools/``.

The core's run does not know them: `mlx_tools.app.builtin_tools` makes them, and those of plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.toolbox.file_access import create_file, file_access_spec
    from mlx_tools.toolbox.file_reading import open_below, tool_errors
    from mlx_tools.toolbox.html_text import read_html
    from mlx_tools.toolbox.isolated import Problem
    from mlx_tools.toolbox.restore import Undo, UndoStep, find_outermost, find_undoable
    from mlx_tools.toolbox.text_diff import unified_diff
    from mlx_tools.toolbox.text_files import decode_text, encode_text, guess_kind, one_line
    from mlx_tools.toolbox.urls import (
        Target,
        UrlRefused,
        is_public,
        read_local,
        read_url,
    )
    from mlx_tools.toolbox.web_fetch import Fetcher, extract_text, find_charset, split_bom
    from mlx_tools.toolbox.worker import Bounds, WorkerFailed, run_in_worker, run_worker
    from mlx_tools.toolbox.zones import ZoneNames, find_local_zone, find_zone

__getattr__, __dir__ = names_of(
    globals(),
    {
        "file_access": ("create_file", "file_access_spec"),
        "file_reading": ("open_below", "tool_errors"),
        "html_text": ("read_html",),
        "isolated": ("Problem",),
        "restore": ("Undo", "UndoStep", "find_outermost", "find_undoable"),
        "text_diff": ("unified_diff",),
        "text_files": ("decode_text", "encode_text", "guess_kind", "one_line"),
        "urls": ("Target", "UrlRefused", "is_public", "read_local", "read_url"),
        "web_fetch": ("Fetcher", "extract_text", "find_charset", "split_bom"),
        "worker": ("Bounds", "WorkerFailed", "run_in_worker", "run_worker"),
        "zones": ("ZoneNames", "find_local_zone", "find_zone"),
    },
)
