"""The counters of many sessions, read from their transcripts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_tools.errors import TranscriptError
from mlx_tools.store.transcript import load
from mlx_tools.transcript.metrics import Counters, count
from mlx_tools.transcript.records import Header

_TRANSCRIPT = "transcript.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The counters of ``sessions`` sessions: ``total``, and for each model by its name, ``""``
    where the server did not say which it is.

    ``unreadable`` names the folders whose transcript could not be read; they are not counted.
    """

    sessions: int = 0
    total: Counters = field(default_factory=Counters)
    models: dict[str, Counters] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The tally as JSON values."""
        return {
            "sessions": self.sessions,
            "total": self.total.to_json(),
            "models": {name: counters.to_json() for name, counters in self.models.items()},
            "unreadable": list(self.unreadable),
        }


def tally(folder: str | os.PathLike[str]) -> Totals:
    """Counts what the sessions in a folder have done, each in a folder of its own as
    `mlx_tools.store.session_store.TranscriptStore` keeps them.

    A session that goes on is counted as far as it has come. Raises `TranscriptError` where the
    folder cannot be read.
    """
    try:
        paths = sorted(path / _TRANSCRIPT for path in Path(folder).iterdir())
    except OSError as error:
        raise TranscriptError(
            f"the sessions in {folder} cannot be read: {error.strerror}"
        ) from None
    sessions = 0
    models: dict[str, Counters] = {}
    unreadable = []
    for path in paths:
        if not path.is_file():
            continue
        try:
            records = load(path)
        except TranscriptError:
            unreadable.append(path.parent.name)
            continue
        if records and isinstance(records[0], Header):
            sessions += 1
            name = records[0].model or ""
            models[name] = models.get(name, Counters()) + count(records)
    total = sum(models.values(), Counters())
    return Totals(sessions=sessions, total=total, models=models, unreadable=tuple(unreadable))
