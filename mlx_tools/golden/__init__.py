"""Golden transcripts: runs that were recorded, replayed and checked again.

Each name is imported when it is first used: pytest loads `mlx_tools.golden.plugin`, and with it
this package, in every run on a machine that has mlx-tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.golden.checking import (
        Baseline,
        Column,
        GoldenCheck,
        Regression,
        Sample,
        read_results,
        replay_file,
        replay_files,
        write_results,
    )
    from mlx_tools.golden.difference import ROOMS, Difference, Room
    from mlx_tools.golden.expect import expectations, outcomes_of
    from mlx_tools.golden.file import (
        Golden,
        find_golden,
        read_golden,
        read_session,
        to_text,
        write_golden,
    )
    from mlx_tools.golden.live import check_live
    from mlx_tools.golden.record import VOLATILE, CannotSettle, make_golden, settled
    from mlx_tools.golden.replaying import Replay, replay
    from mlx_tools.golden.report import write_report

__all__ = [
    "ROOMS",
    "VOLATILE",
    "Baseline",
    "CannotSettle",
    "Column",
    "Difference",
    "Golden",
    "GoldenCheck",
    "Regression",
    "Replay",
    "Room",
    "Sample",
    "check_live",
    "expectations",
    "find_golden",
    "make_golden",
    "outcomes_of",
    "read_golden",
    "read_results",
    "read_session",
    "replay",
    "replay_file",
    "replay_files",
    "settled",
    "to_text",
    "write_golden",
    "write_report",
    "write_results",
]

__getattr__, __dir__ = names_of(
    __name__,
    {
        "checking": (
            "Baseline",
            "Column",
            "GoldenCheck",
            "Regression",
            "Sample",
            "read_results",
            "replay_file",
            "replay_files",
            "write_results",
        ),
        "difference": ("ROOMS", "Difference", "Room"),
        "expect": ("expectations", "outcomes_of"),
        "file": ("Golden", "find_golden", "read_golden", "read_session", "to_text", "write_golden"),
        "live": ("check_live",),
        "record": ("VOLATILE", "CannotSettle", "make_golden", "settled"),
        "replaying": ("Replay", "replay"),
        "report": ("write_report",),
    },
)
