"""The tables of a schedule, and what is asked of them. Times are seconds since 1970."""

from __future__ import annotations

import math
import sqlite3
from datetime import UTC, datetime
from typing import Final

VERSION: Final = 1

LAST_YEAR: Final = 9000
"""No job is due later: every zone can tell what time it is then."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS jobs (
  id TEXT PRIMARY KEY,
  definition TEXT NOT NULL,
  seal TEXT NOT NULL,
  next_due INTEGER,
  try_at INTEGER,
  attempt INTEGER NOT NULL DEFAULT 1,
  planned_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (
  id INTEGER PRIMARY KEY,
  job TEXT NOT NULL,
  due INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  started INTEGER NOT NULL,
  ended INTEGER,
  status TEXT NOT NULL,
  session TEXT NOT NULL DEFAULT '',
  reason TEXT NOT NULL DEFAULT '',
  runner TEXT NOT NULL DEFAULT '',
  UNIQUE (job, due, attempt)
);
"""
_OPEN: Final = "status IN ('running', 'paused', 'in_doubt')"

ADD: Final = (
    "INSERT OR IGNORE INTO jobs (id, definition, seal, next_due, try_at, planned_at)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
JOBS: Final = "SELECT * FROM jobs ORDER BY next_due IS NULL, next_due, id"
DUE: Final = "SELECT * FROM jobs WHERE try_at <= ? ORDER BY try_at, id"
AHEAD: Final = "SELECT * FROM jobs WHERE next_due IS NOT NULL AND planned_at > ?"
PLAN: Final = "UPDATE jobs SET next_due = ?, try_at = ?, attempt = 1, planned_at = ? WHERE id = ?"
NEXT: Final = "SELECT min(try_at) FROM jobs WHERE try_at > ?"
AT_ONCE: Final = "UPDATE jobs SET try_at = next_due, planned_at = ? WHERE id = ?"
AGAIN: Final = (
    "UPDATE jobs SET next_due = ?, try_at = ?, attempt = ?"
    " WHERE id = ? AND (try_at IS NULL OR try_at > ?)"
)
HAS_OPEN: Final = f"SELECT 1 FROM runs WHERE job = ? AND {_OPEN}"  # noqa: S608 (constants)
OPEN_RUNS: Final = f"SELECT * FROM runs WHERE {_OPEN} ORDER BY id"  # noqa: S608 (constants)
START: Final = (
    "INSERT OR IGNORE INTO runs (job, due, attempt, started, ended, status, runner)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
SETTLE: Final = "UPDATE runs SET status = ?, reason = ?, ended = ? WHERE id = ?"
PRUNE: Final = (
    "DELETE FROM runs WHERE job = ? AND ended IS NOT NULL AND id NOT IN"
    " (SELECT id FROM runs WHERE job = ? ORDER BY id DESC LIMIT ?)"
)
FORGET: Final = (
    "DELETE FROM jobs WHERE next_due IS NULL AND planned_at < ?"
    " AND id NOT IN (SELECT job FROM runs WHERE ended IS NULL)"
)

ORPHANS: Final = "DELETE FROM runs WHERE job NOT IN (SELECT id FROM jobs)"


class OtherVersion(sqlite3.DatabaseError):
    """The tables are those of a later version."""


def prepare(db: sqlite3.Connection) -> None:
    """Makes the tables where they are missing. Raises sqlite3.Error for a file that is none of
    ours, or of a later version."""
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA trusted_schema = OFF")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == VERSION:
        return
    if version:
        raise OtherVersion(f"it is of version {version}, and this program knows {VERSION}")
    db.execute("BEGIN IMMEDIATE")
    for statement in _TABLES.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def seconds(time: datetime) -> int:
    """Seconds since 1970; a part of one counts as gone: nothing is early."""
    return math.floor(time.timestamp())


def time(stored: int) -> datetime:
    """The time in UTC. Raises ValueError for what is none, or so far off that no zone has it."""
    found = datetime.fromtimestamp(stored, UTC)
    if not 1970 <= found.year <= LAST_YEAR:
        raise ValueError(f"{stored} is no time")
    return found
