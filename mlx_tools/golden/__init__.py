"""Golden transcripts: runs that were recorded, replayed and checked again.

Each name is imported when it is first used: pytest loads `mlx_tools.golden.plugin`, and with it
this package, in every run on a machine that has mlx-tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.golden.checking import Baseline as Baseline
    from mlx_tools.golden.checking import Column as Column
    from mlx_tools.golden.checking import GoldenCheck as GoldenCheck
    from mlx_tools.golden.checking import Regression as Regression
    from mlx_tools.golden.checking import Sample as Sample
    from mlx_tools.golden.checking import read_results as read_results
    from mlx_tools.golden.checking import replay_file as replay_file
    from mlx_tools.golden.checking import replay_files as replay_files
    from mlx_tools.golden.checking import write_results as write_results
    from mlx_tools.golden.difference import ROOMS as ROOMS
    from mlx_tools.golden.difference import Difference as Difference
    from mlx_tools.golden.difference import Room as Room
    from mlx_tools.golden.expect import expectations as expectations
    from mlx_tools.golden.expect import outcomes_of as outcomes_of
    from mlx_tools.golden.file import Golden as Golden
    from mlx_tools.golden.file import find_golden as find_golden
    from mlx_tools.golden.file import read_golden as read_golden
    from mlx_tools.golden.file import read_session as read_session
    from mlx_tools.golden.file import to_text as to_text
    from mlx_tools.golden.file import write_golden as write_golden
    from mlx_tools.golden.live import check_live as check_live
    from mlx_tools.golden.record import VOLATILE as VOLATILE
    from mlx_tools.golden.record import CannotSettle as CannotSettle
    from mlx_tools.golden.record import make_golden as make_golden
    from mlx_tools.golden.record import settled as settled
    from mlx_tools.golden.replaying import Replay as Replay
    from mlx_tools.golden.replaying import replay as replay
    from mlx_tools.golden.report import write_report as write_report

# No name here may be a module's as well: importing the module would hide it.
_HOMES: Final = {
    "Baseline": "checking",
    "CannotSettle": "record",
    "Column": "checking",
    "Difference": "difference",
    "Golden": "file",
    "GoldenCheck": "checking",
    "ROOMS": "difference",
    "Regression": "checking",
    "Replay": "replaying",
    "Room": "difference",
    "Sample": "checking",
    "VOLATILE": "record",
    "check_live": "live",
    "expectations": "expect",
    "find_golden": "file",
    "make_golden": "record",
    "outcomes_of": "expect",
    "read_golden": "file",
    "read_results": "checking",
    "read_session": "file",
    "replay": "replaying",
    "replay_file": "checking",
    "replay_files": "checking",
    "settled": "record",
    "to_text": "file",
    "write_golden": "file",
    "write_report": "report",
    "write_results": "checking",
}

__all__ = list(_HOMES)

__getattr__, __dir__ = names_of(__name__, _HOMES)
