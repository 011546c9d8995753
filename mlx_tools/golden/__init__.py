"""Golden transcripts: runs that were recorded, replayed and checked again.

Each name is imported when it is first used: pytest loads `mlx_tools.golden.plugin`, and with it
this package, in every run on a machine that has mlx-tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.golden.checking import Column, GoldenCheck, Sample, check_live, replay_file
    from mlx_tools.golden.difference import (
        ROOMS,
        Difference,
        Room,
        SharedDifference,
        difference_lines,
        share_differences,
    )
    from mlx_tools.golden.expect import expectations
    from mlx_tools.golden.file import Golden, find_golden, read_golden, to_text, write_golden
    from mlx_tools.golden.record import CannotSettle, make_golden, settle
    from mlx_tools.golden.recorded import list_outcomes
    from mlx_tools.golden.replaying import Replay, replay
    from mlx_tools.golden.report import write_report
    from mlx_tools.golden.training import ExportCounts, export_lora

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "checking": ("Column", "GoldenCheck", "Sample", "check_live", "replay_file"),
        "difference": (
            *("ROOMS", "Difference", "Room", "SharedDifference", "difference_lines"),
            "share_differences",
        ),
        "expect": ("expectations",),
        "file": ("Golden", "find_golden", "read_golden", "to_text", "write_golden"),
        "recorded": ("list_outcomes",),
        "record": ("CannotSettle", "make_golden", "settle"),
        "replaying": ("Replay", "replay"),
        "report": ("write_report",),
        "training": ("ExportCounts", "export_lora"),
    },
)
