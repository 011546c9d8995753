"""Golden transcripts: runs that were recorded, replayed and checked again."""

from mlx_tools.golden.difference import ROOMS, Difference, Room
from mlx_tools.golden.file import Golden, find_golden, read_golden, read_session, write_golden
from mlx_tools.golden.record import CannotSettle, make_golden, settled
from mlx_tools.golden.replay import Replay, replay

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
