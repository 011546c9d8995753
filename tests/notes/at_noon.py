"""Notes that are all written at the same time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from mlx_tools.toolbox.notes import Notes

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


def notes_in(folder: Path) -> Notes:
    """The notes of a folder, where it is always `NOON`."""
    return Notes(folder, lambda: NOON)
