"""Parts that the tools of several plugins share: files, texts, the web, workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.toolbox.file_names import did_you_mean, escape_path, find_equal_names
    from mlx_tools.toolbox.file_opening import open_below, open_first, tool_errors
    from mlx_tools.toolbox.html_text import read_html
    from mlx_tools.toolbox.isolated import Problem
    from mlx_tools.toolbox.text_diff import TextDiff, find_equal_lines, unified_diff
    from mlx_tools.toolbox.text_files import (
        MAX_TEXT_BYTES,
        decode_text,
        encode_content,
        encode_text,
        guess_kind,
        one_line,
        read_up_to,
    )
    from mlx_tools.toolbox.tree_walk import Entry, TreeWalk
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

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "file_names": ("did_you_mean", "escape_path", "find_equal_names"),
        "file_opening": ("open_below", "open_first", "tool_errors"),
        "html_text": ("read_html",),
        "isolated": ("Problem",),
        "text_diff": ("TextDiff", "find_equal_lines", "unified_diff"),
        "text_files": (
            "MAX_TEXT_BYTES",
            "decode_text",
            "encode_content",
            "encode_text",
            "guess_kind",
            "one_line",
            "read_up_to",
        ),
        "tree_walk": ("Entry", "TreeWalk"),
        "urls": ("Target", "UrlRefused", "is_public", "read_local", "read_url"),
        "web_fetch": ("Fetcher", "extract_text", "find_charset", "split_bom"),
        "worker": ("Bounds", "WorkerFailed", "run_in_worker", "run_worker"),
        "zones": ("ZoneNames", "find_local_zone", "find_zone"),
    },
)
