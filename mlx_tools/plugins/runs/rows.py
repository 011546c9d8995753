"""The rows of runs: the client of each, its next action, and webhooks to send.

The state of a run is in its transcript alone, in the session that has the run's id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from mlx_tools.errors import StorageError
from mlx_tools.gateway import ApiError
from mlx_tools.plugins.runs.body import RunAct
from mlx_tools.store import FileFormat, SessionStore, Statements

MAX_RUNS: Final = 10_000
"""Runs that are stored; if there are more, the oldest that have ended are forgotten."""

Forget = Callable[[str], bool]
"""Removes the session of a run; returns whether it could, because the run has ended."""

_MAX_ROWS: Final = 20
"""Rows that are forgotten, or claimed, at most in one go."""

_SCHEMA: Final = """
CREATE TABLE runs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  body TEXT NOT NULL, key TEXT, cancelled INTEGER NOT NULL DEFAULT 0, act TEXT,
  refused TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '', UNIQUE (owner, key)
);
CREATE TABLE hooks (
  mark TEXT PRIMARY KEY, url TEXT NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL,
  tries INTEGER NOT NULL DEFAULT 0, due DOUBLE PRECISION NOT NULL
)
"""
_SINCE_2: Final = "ALTER TABLE runs ADD COLUMN model TEXT NOT NULL DEFAULT ''"
_SINCE_1: Final = (
    f"{_SINCE_2};\n"
    "ALTER TABLE runs ADD COLUMN act TEXT;\n"
    "ALTER TABLE runs ADD COLUMN refused TEXT NOT NULL DEFAULT '';\n"
    + _SCHEMA[_SCHEMA.index("CREATE TABLE hooks") :]
)
RUNS: Final = FileFormat(
    *("file of runs", StorageError, 0x6D6C7872, 3, _SCHEMA, "runs.sqlite"),
    {1: _SINCE_1, 2: _SINCE_2},
)
Queue = Callable[[Statements, str, str], None]
"""Adds a run and its model to the queue of other processes, in the same transaction."""

_SELECT: Final = "SELECT id, owner, body, cancelled, act, refused, model FROM runs "
_BY_KEY: Final = "WHERE owner = ? AND key = ?"


class RunRow(Struct, frozen=True):
    """A run as its client asked for it.

    Attributes:
        id: Its id, which is its session's.
        owner: The name of its client.
        body: The body of the request.
        cancelled: It was cancelled: what is to be done is not done any more.
        act: What is still to be done about it; None if it rests.
        refusal: Why the last thing was not done.
        model: The model that it asks.
    """

    id: str
    owner: str
    body: dict[str, Any]
    cancelled: bool = False
    act: RunAct | None = None
    refusal: str = ""
    model: str = ""


class Hook(Struct, frozen=True):
    """A webhook to send.

    Attributes:
        mark: Its id, the same each time that it is sent.
        url: Where it is sent.
        kind: The type of the event.
        data: The data of the event.
        tries: How often it was tried.
    """

    mark: str
    url: str
    kind: str
    data: dict[str, Any]
    tries: int = 0


class RunRows:
    """The runs that clients of gateways asked for, beside the sessions of ``store``.

    Methods raise `StorageError` if runs cannot be stored or read.
    """

    def __init__(
        self,
        store: SessionStore,
        queue: Queue = lambda db, run, model: None,
        max_rows: int = MAX_RUNS,
    ) -> None:
        self._tables = store.tables(RUNS)
        self._queue = queue
        self.max_rows = max_rows
        """The most runs that are stored; the oldest that have ended make room."""

    def _select(self, condition: str, *values: object) -> list[RunRow]:
        with self._tables.transaction() as db:
            return list(map(_row, db.execute(_SELECT + condition, values).fetchall()))

    def add(self, row: RunRow, key: str | None, forget: Forget = lambda run: False) -> bool:
        """Store a run; return False if its client has asked for one under this key before.

        If there are too many, the oldest that have ended make room. Raises `ApiError` if none has
        ended.
        """
        with self._tables.transaction(write=True) as db:
            mine = (row.owner, _digest(key))
            if key is not None and db.execute(_SELECT + _BY_KEY, mine).fetchone():
                return False
            (count,) = db.execute("SELECT count(*) FROM runs").fetchone()
            if count >= self.max_rows and not self._make_room(db, forget):
                raise ApiError(429, "rate_limit_exceeded", f"{count} runs have not ended")
            added = db.execute(
                "INSERT INTO runs (id, owner, body, key, act, model) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                (
                    row.id,
                    row.owner,
                    json.dumps(row.body),
                    _digest(key),
                    _act_to_json(row.act),
                    row.model,
                ),
            ).rowcount
            if added and row.act is not None:
                self._queue(db, row.id, row.model)
        return bool(added)

    def _make_room(self, db: Statements, forget: Forget) -> bool:
        query = "SELECT id FROM runs WHERE act IS NULL ORDER BY number LIMIT ?"
        found = db.execute(query, (_MAX_ROWS,)).fetchall()
        gone = [one for (one,) in found if forget(one)]
        for one in gone:
            db.execute("DELETE FROM runs WHERE id = ?", (one,))
        return bool(gone)

    def get(self, owner: str | None, run: str) -> RunRow:
        """Return a client's run, or with None anybody's.

        Raises `ApiError` if there is none.
        """
        row = self.find(run)
        if row is None or owner not in (None, row.owner):
            raise ApiError(404, "not_found", f"there is no run {run[:100]!r}, or none any more")
        return row

    def find(self, run: str) -> RunRow | None:
        """Return the run of this id, whoever owns it."""
        return next(iter(self._select("WHERE id = ?", run)), None)

    def find_by_key(self, owner: str, key: str) -> RunRow | None:
        """Return the run that a client has asked for under this key."""
        return next(iter(self._select(_BY_KEY, owner, _digest(key))), None)

    def page(self, owner: str, limit: int, cursor: str | None) -> list[RunRow]:
        """Return a client's runs before the run ``cursor``, the last first.

        Raises `ApiError` if there is no such run.
        """
        last = "ORDER BY number DESC LIMIT ?"
        if cursor is None:
            return self._select(f"WHERE owner = ? {last}", owner, limit)
        self.get(owner, cursor)
        before = "AND number < (SELECT number FROM runs WHERE id = ?)"
        return self._select(f"WHERE owner = ? {before} {last}", owner, cursor, limit)

    def open_runs(self) -> list[RunRow]:
        """Return the runs of which something is still to be done, the oldest first."""
        if not self._tables.exists:
            return []
        return self._select("WHERE act IS NOT NULL ORDER BY number")

    def post(self, run: str, act: RunAct) -> bool:
        """Store the next action of a run at rest; return False if it is not at rest."""
        with self._tables.transaction(write=True) as db:
            query = "UPDATE runs SET act = ?, refused = '', cancelled = 0 WHERE id = ?"
            query += " AND act IS NULL RETURNING model"
            found = db.execute(query, (_act_to_json(act), run)).fetchone()
            if found is not None:
                self._queue(db, run, found[0])
        return found is not None

    def queue_again(self, load_queued: Callable[[], set[str]]) -> None:
        """Queue the runs again that have an action and are not ``load_queued``."""
        query = "SELECT id, model FROM runs WHERE act IS NOT NULL"
        with self._tables.transaction() as db:
            left = db.execute(query).fetchall()
        known = load_queued() if left else set()
        if missing := [(run, model) for run, model in left if run not in known]:
            with self._tables.transaction(write=True) as db:
                for run, model in missing:
                    self._queue(db, run, model)

    def mark_done(
        self, row: RunRow, hook: Hook | None = None, *, now: float, refusal_reason: str = ""
    ) -> None:
        """Record that a run's action is done, and add the webhook for it.

        If the run has another action by now, nothing changes: its worker records that one.
        """
        with self._tables.transaction(write=True) as db:
            query = "UPDATE runs SET act = NULL, refused = ? WHERE id = ? AND coalesce(act, '') = ?"
            mine = db.execute(query, (refusal_reason, row.id, _act_to_json(row.act) or "")).rowcount
            if hook is not None and mine:
                db.execute(
                    "INSERT INTO hooks (mark, url, kind, data, due) VALUES (?, ?, ?, ?, ?)"
                    " ON CONFLICT DO NOTHING",
                    (hook.mark, hook.url, hook.kind, json.dumps(hook.data), now),
                )

    def cancel(self, run: str) -> None:
        """Record that a run's action is cancelled."""
        with self._tables.transaction(write=True) as db:
            db.execute("UPDATE runs SET cancelled = 1 WHERE id = ?", (run,))

    def holds(self, session: str) -> bool:
        """Return whether a session is that of a run."""
        return self._tables.exists and self.find(session) is not None

    # --- what is to be told ---

    def owed(self, now: float, deadline: float) -> list[Hook]:
        """Claim some of the webhooks that are due, until ``deadline``.

        Times are in seconds since 1970.
        """
        with self._tables.transaction(write=True) as db:
            found = db.execute(
                "UPDATE hooks SET due = ? WHERE due <= ? AND mark IN"
                " (SELECT mark FROM hooks WHERE due <= ? ORDER BY due LIMIT ?)"
                " RETURNING mark, url, kind, data, tries",
                (deadline, now, now, _MAX_ROWS),
            ).fetchall()
        return [Hook(mark, url, kind, json.loads(data), n) for mark, url, kind, data, n in found]

    def mark_sent(self, hook: Hook, retry_at: float | None = None) -> None:
        """Remove a webhook that was sent, or store when it is tried again (``retry_at``)."""
        with self._tables.transaction(write=True) as db:
            if retry_at is None:
                db.execute("DELETE FROM hooks WHERE mark = ?", (hook.mark,))
            else:
                query = "UPDATE hooks SET due = ?, tries = ? WHERE mark = ?"
                db.execute(query, (retry_at, hook.tries + 1, hook.mark))

    def next_due(self) -> float | None:
        """Return the time at which a webhook is due next; None if there is none."""
        if not self._tables.exists:
            return None
        with self._tables.transaction() as db:
            due: float | None = db.execute("SELECT min(due) FROM hooks").fetchone()[0]
        return due


def _digest(key: str | None) -> str | None:
    return None if key is None else hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _act_to_json(act: RunAct | None) -> str | None:
    if act is None:
        return None
    return json.dumps({"type": act.type, "body": dict(act.body), "records": act.records})


def _row(row: Any) -> RunRow:
    run, owner, body, cancelled, act, refused, model = row
    done = RunAct(**json.loads(act)) if act else None
    return RunRow(run, owner, json.loads(body), bool(cancelled), done, refused, model)
