"""Whose run is which: who asked for it, with what body and under which key against doing it twice.

Where a run stands is in its transcript alone, in the session that has the run's id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final

from mlx_tools.errors import StorageError
from mlx_tools.gateway.request import ApiError
from mlx_tools.paths import state_dir
from mlx_tools.toolbox import FileFormat, SqliteFile

KEPT: Final = 10_000
"""Runs that are kept; of more the oldest that have ended are forgotten."""

_AT_ONCE: Final = 20
"""Runs that are forgotten at most when one is added."""

_WAIT: Final = 10.0
"""Seconds for which one process waits for another that writes."""

_SCHEMA: Final = """
CREATE TABLE runs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  body TEXT NOT NULL, key TEXT, cancelled INTEGER NOT NULL DEFAULT 0, UNIQUE (owner, key)
)
"""
_FORMAT: Final = FileFormat("file of runs", StorageError, 0x6D6C7872, 1, _SCHEMA)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run: its id, which is its session's, by what its client is known, and what that asked for.
    ``cancelled``: before it was asked anything."""

    id: str
    owner: str
    body: dict[str, Any]
    cancelled: bool = False


def kept_runs(forget: Callable[[str], bool] = lambda run: False) -> RunRows:
    """The runs that clients of this user's gateways asked for; see `RunRows`."""
    return RunRows(state_dir() / "runs.sqlite", forget)


class RunRows:
    """The runs in the file ``path``. ``forget`` removes the session of a run, and returns whether
    it could: it has ended. Methods raise `StorageError` where the file cannot be used."""

    def __init__(self, path: Path, forget: Callable[[str], bool], kept: int = KEPT) -> None:
        self.path = path
        self._forget, self._kept = forget, kept

    def add(self, row: RunRow, key: str | None) -> bool:
        """Keep a run; False where its client has asked for one under this key before. Raises
        `ApiError` where too many are kept that have not ended."""
        with self._opened(write=True) as db:
            if key is not None and _under(db, row.owner, key):
                return False
            (count,) = db.execute("SELECT count(*) FROM runs").fetchone()
            if count >= self._kept and not self._make_room(db):
                raise ApiError(429, "rate_limit_exceeded", f"{count} runs have not ended")
            values = (row.id, row.owner, json.dumps(row.body), _digest(key))
            db.execute("INSERT INTO runs (id, owner, body, key) VALUES (?, ?, ?, ?)", values)
        return True

    def _make_room(self, db: Connection) -> bool:
        found = db.execute("SELECT id FROM runs ORDER BY number LIMIT ?", (_AT_ONCE,)).fetchall()
        gone = [one for (one,) in found if self._forget(one)]
        db.executemany("DELETE FROM runs WHERE id = ?", [(one,) for one in gone])
        return bool(gone)

    def get(self, owner: str | None, run: str) -> RunRow:
        """A client's run, or with None anybody's. Raises `ApiError` where there is none with this
        id."""
        with self._opened() as db:
            found = db.execute(
                "SELECT id, owner, body, cancelled FROM runs"
                " WHERE id = ?1 AND (?2 IS NULL OR owner = ?2)",
                (run, owner),
            ).fetchone()
        if found is None:
            raise ApiError(404, "not_found", f"there is no run {run[:100]!r}, or none any more")
        return _row(found)

    def under(self, owner: str, key: str) -> RunRow | None:
        """The run that a client has asked for under this key."""
        with self._opened() as db:
            found = _under(db, owner, key)
        return _row(found) if found else None

    def page(self, owner: str, limit: int, after: str | None) -> list[RunRow]:
        """A client's runs, the last first: those before the run ``after``. Raises `ApiError` where
        there is no such run."""
        if after is not None:
            self.get(owner, after)
        with self._opened() as db:
            found = db.execute(
                "SELECT id, owner, body, cancelled FROM runs WHERE owner = ?1 AND (?2 IS NULL OR"
                " number < (SELECT number FROM runs WHERE id = ?2)) ORDER BY number DESC LIMIT ?3",
                (owner, after, limit),
            ).fetchall()
        return list(map(_row, found))

    def cancel(self, run: str) -> None:
        """Keep that a run was cancelled before it was asked anything."""
        with self._opened(write=True) as db:
            db.execute("UPDATE runs SET cancelled = 1 WHERE id = ?", (run,))

    def holds(self, session: str) -> bool:
        """Return whether a session is that of a run."""
        if not self.path.exists():
            return False
        with self._opened() as db:
            return db.execute("SELECT 1 FROM runs WHERE id = ?", (session,)).fetchone() is not None

    @contextmanager
    def _opened(self, *, write: bool = False) -> Iterator[Connection]:
        with (
            SqliteFile(self.path, _FORMAT, wait=_WAIT) as file,
            file.guarded(),
            file.transaction(write=write) as db,
        ):
            yield db


def _under(db: Connection, owner: str, key: str) -> tuple[Any, ...] | None:
    found: tuple[Any, ...] | None = db.execute(
        "SELECT id, owner, body, cancelled FROM runs WHERE owner = ? AND key = ?",
        (owner, _digest(key)),
    ).fetchone()
    return found


def _digest(key: str | None) -> str | None:
    return None if key is None else hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _row(found: tuple[Any, ...]) -> RunRow:
    run, owner, body, cancelled = found
    return RunRow(run, owner, json.loads(body), bool(cancelled))
