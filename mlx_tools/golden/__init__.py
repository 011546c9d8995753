"""Golden transcripts: runs that were recorded, replayed and checked again.

Each name is imported when it is first used: pytest loads `mlx_tools.golden.plugin`, and with it
this package, in every run on a machine that has mlx-tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.golden.difference import ROOMS as ROOMS
    from mlx_tools.golden.difference import Difference as Difference
    from mlx_tools.golden.difference import Room as Room
    from mlx_tools.golden.file import Golden as Golden
    from mlx_tools.golden.file import find_golden as find_golden
    from mlx_tools.golden.file import read_golden as read_golden
    from mlx_tools.golden.file import read_session as read_session
    from mlx_tools.golden.file import write_golden as write_golden
    from mlx_tools.golden.record import CannotSettle as CannotSettle
    from mlx_tools.golden.record import make_golden as make_golden
    from mlx_tools.golden.record import settled as settled
    from mlx_tools.golden.replaying import Replay as Replay
    from mlx_tools.golden.replaying import replay as replay

# No name here may be a module's as well: importing the module would hide it.
_HOMES: Final = {
    "ROOMS": "difference",
    "CannotSettle": "record",
    "Difference": "difference",
    "Golden": "file",
    "Replay": "replaying",
    "Room": "difference",
    "find_golden": "file",
    "make_golden": "record",
    "read_golden": "file",
    "read_session": "file",
    "replay": "replaying",
    "settled": "record",
    "write_golden": "file",
}

__all__ = [
    "ROOMS",
    "CannotSettle",
    "Difference",
    "Golden",
    "Replay",
    "Room",
    "find_golden",
    "make_golden",
    "read_golden",
    "read_session",
    "replay",
    "settled",
    "write_golden",
]

__getattr__, __dir__ = names_of(__name__, _HOMES)
