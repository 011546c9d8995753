"""Whose run is which: who asked for it, with what body and under which key against doing it twice.

Where a run stands is in its transcript alone, in the session that has the run's id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.errors import StorageError
from mlx_tools.gateway.request import ApiError
from mlx_tools.store import FileFormat, SessionStore, Statements

KEPT: Final = 10_000
"""Runs that are kept; of more the oldest that have ended are forgotten."""

_AT_ONCE: Final = 20
"""Runs that are forgotten at most when one is added."""

_SCHEMA: Final = """
CREATE TABLE runs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  body TEXT NOT NULL, key TEXT, cancelled INTEGER NOT NULL DEFAULT 0, UNIQUE (owner, key)
)
"""
_FORMAT: Final = FileFormat("file of runs", StorageError, 0x6D6C7872, 1, _SCHEMA, "runs.sqlite")
_ROWS: Final = "SELECT id, owner, body, cancelled FROM runs"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run: its id, which is its session's, by what its client is known, and what that asked for.
    ``cancelled``: before it was asked anything."""

    id: str
    owner: str
    body: dict[str, Any]
    cancelled: bool = False


class RunRows:
    """The runs that clients of gateways asked for, beside the sessions of ``store``. ``forget``
    removes the session of a run, and returns whether it could: it has ended. Methods raise
    `StorageError` where they cannot be kept or read."""

    def __init__(
        self,
        store: SessionStore,
        forget: Callable[[str], bool] = lambda run: False,
        kept: int = KEPT,
    ) -> None:
        self._tables = store.tables(_FORMAT)
        self._forget, self._kept = forget, kept

    def add(self, row: RunRow, key: str | None) -> bool:
        """Keep a run; False where its client has asked for one under this key before. Raises
        `ApiError` where too many are kept that have not ended."""
        with self._tables.transaction(write=True) as db:
            if key is not None and _under(db, row.owner, key):
                return False
            (count,) = db.execute("SELECT count(*) FROM runs").fetchone()
            if count >= self._kept and not self._make_room(db):
                raise ApiError(429, "rate_limit_exceeded", f"{count} runs have not ended")
            values = (row.id, row.owner, json.dumps(row.body), _digest(key))
            db.execute("INSERT INTO runs (id, owner, body, key) VALUES (?, ?, ?, ?)", values)
        return True

    def _make_room(self, db: Statements) -> bool:
        found = db.execute("SELECT id FROM runs ORDER BY number LIMIT ?", (_AT_ONCE,)).fetchall()
        gone = [one for (one,) in found if self._forget(one)]
        for one in gone:
            db.execute("DELETE FROM runs WHERE id = ?", (one,))
        return bool(gone)

    def get(self, owner: str | None, run: str) -> RunRow:
        """A client's run, or with None anybody's. Raises `ApiError` where there is none with this
        id."""
        query, values = f"{_ROWS} WHERE id = ?", [run]
        if owner is not None:
            query, values = f"{query} AND owner = ?", [run, owner]
        with self._tables.transaction() as db:
            found = db.execute(query, values).fetchone()
        if found is None:
            raise ApiError(404, "not_found", f"there is no run {run[:100]!r}, or none any more")
        return _row(found)

    def under(self, owner: str, key: str) -> RunRow | None:
        """The run that a client has asked for under this key."""
        with self._tables.transaction() as db:
            found = _under(db, owner, key)
        return _row(found) if found else None

    def page(self, owner: str, limit: int, after: str | None) -> list[RunRow]:
        """A client's runs, the last first: those before the run ``after``. Raises `ApiError` where
        there is no such run."""
        query, values = f"{_ROWS} WHERE owner = ?", [owner]
        if after is not None:
            self.get(owner, after)
            query += " AND number < (SELECT number FROM runs WHERE id = ?)"
            values.append(after)
        with self._tables.transaction() as db:
            query += " ORDER BY number DESC LIMIT ?"
            found = db.execute(query, (*values, limit)).fetchall()
        return list(map(_row, found))

    def cancel(self, run: str) -> None:
        """Keep that a run was cancelled before it was asked anything."""
        with self._tables.transaction(write=True) as db:
            db.execute("UPDATE runs SET cancelled = 1 WHERE id = ?", (run,))

    def holds(self, session: str) -> bool:
        """Return whether a session is that of a run."""
        with self._tables.transaction() as db:
            return db.execute("SELECT 1 FROM runs WHERE id = ?", (session,)).fetchone() is not None


def _under(db: Statements, owner: str, key: str) -> Any:
    query = f"{_ROWS} WHERE owner = ? AND key = ?"
    return db.execute(query, (owner, _digest(key))).fetchone()


def _digest(key: str | None) -> str | None:
    return None if key is None else hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _row(found: Any) -> RunRow:
    run, owner, body, cancelled = found
    return RunRow(run, owner, json.loads(body), bool(cancelled))
