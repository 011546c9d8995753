"""A copy of a whole store, byte for byte.

What was copied is whole, so a copy that was broken off goes on when it is started again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_tools.errors import StorageError, TranscriptError, UsageError
from mlx_tools.store.session_store import SessionStore
from mlx_tools.store.tables import FileFormat, Statements, Tables, storable

_PAGE_ROWS: Final = 100
"""Rows of a table that are read in one go."""

_EMPTY: Final = "nothing was copied: give an empty folder or database"


@dataclass(slots=True)
class CopyReport:
    """The result of a copy."""

    sessions: int = 0
    """The number of sessions that were copied."""
    bytes: int = 0
    """Their size."""
    present_sessions: int = 0
    """The number of sessions that an earlier copy had brought over."""
    approvals: int = 0
    """The number of consumed approvals."""
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    """The number of rows of each table, by the name of its format."""
    left_out: list[str] = field(default_factory=list)
    """Sessions without a transcript, which were not copied."""


def copy_store(
    source: SessionStore,
    target: SessionStore,
    forms: Sequence[FileFormat],
    report: Callable[[int, int], None] = lambda done, total: None,
) -> CopyReport:
    """Copy the sessions of ``source`` and the tables beside them.

    ``target`` is empty, or holds what an earlier copy of the same source has left there. It is
    compared before anything is written, and nothing in it is ever changed.

    Args:
        source: the store to copy.
        target: the store to copy to.
        forms: the formats of the tables.
        report: called with the number of finished sessions and of all.

    Returns:
        What was copied.

    Raises:
        UsageError: ``target`` holds anything else.
        TranscriptError: a session is in use or cannot be read; all others were copied.
        MlxToolsError: a store cannot be used.
    """
    if not (source.ids() or any(_has_rows(source.tables(one), one) for one in forms)):
        raise UsageError(f"{source.place} holds no sessions", hint="see that its name is right")
    # The comparison and the copy see the same target: no second copy runs in between.
    with target.lock_for_import():
        there = _compare(source, target, forms)
        copied, problems = CopyReport(present_sessions=len(there)), []
        target.import_keys(source.keys())  # before any session that could use one again
        due = sorted(set(source.ids()) - there)
        for done, session in enumerate(due):
            report(done, len(due))
            try:
                with source.hold(session):
                    copied.bytes += target.import_session(session, source.parts(session))
                copied.sessions += 1
            # The target is full or gone: no other session would fare better.
            except StorageError:
                raise
            except TranscriptError as error:
                if source.size(session) >= 0:
                    problems.append(error)
                else:
                    copied.left_out.append(session)
        if problems:
            # Raised at the end: one broken session must not keep the others from being copied.
            raise TranscriptError(
                f"{len(problems)} of {len(due) + len(there)} sessions could not be copied: "
                f"{problems[0]}",
                hint="see to that, and start again: it goes on where it was",
            )
        # Once more: calls may have used approvals while the sessions were copied.
        target.import_keys(keys := source.keys())
        copied.approvals = len(keys.consumed_approvals)
        for form in forms:
            copied.tables[form.file.partition(".")[0]] = _copy_tables(
                source.tables(form), target, form
            )
    return copied


def _compare(
    source: SessionStore, target: SessionStore, forms: Sequence[FileFormat]
) -> frozenset[str]:
    """Return the sessions that are in both stores.

    Raises:
        UsageError: a session differs, or the target holds anything else.
    """
    ours, theirs = source.keys(), target.keys()
    there, known = set(target.ids()), set(source.ids())
    # Approvals and headers are sealed with the key: sessions of two keys cannot share a store.
    if theirs.secret not in (None, ours.secret):
        raise _differs(target, "a key of approvals that is another's")
    if not set(theirs.consumed_approvals) <= set(ours.consumed_approvals):
        raise _differs(target, f"approvals that were used up, which {source.place} does not")
    for session in sorted(there - known):
        raise _differs(target, f"the session {session}, which {source.place} does not")
    for session in sorted(there):
        if _digest(source, session) != _digest(target, session):
            raise _differs(target, f"the session {session}, which is another in {source.place}")
    for form in forms:
        ours_in, theirs_in = source.tables(form), target.tables(form)
        if _has_rows(theirs_in, form) and _digests(theirs_in, form) != _digests(ours_in, form):
            raise _differs(target, f"a {form.name} that is another in {source.place}")
    return frozenset(there)


def _differs(target: SessionStore, subject: str) -> UsageError:
    return UsageError(f"{target.place} holds {subject}", hint=_EMPTY)


def _digest(store: SessionStore, session: str) -> bytes:
    """Return a digest of all that a session keeps, whenever it was written."""
    parts = [(part.name, hashlib.sha256(part.data).digest()) for part in store.parts(session)]
    return hashlib.sha256(repr(sorted(parts)).encode()).digest()


# --- tables ---------------------------------------------------------------------------------------


def _has_rows(tables: Tables, form: FileFormat) -> bool:
    """Return True if tables of a format hold any row."""
    if not tables.exists:
        return False
    with tables.transaction() as db:
        return any(next(_rows(db, table), None) is not None for table in form.tables)


def _digests(tables: Tables, form: FileFormat) -> dict[str, set[bytes]]:
    """Return the digests of all rows, by table."""

    def digest(row: Any) -> bytes:  # by column: their order differs where some were added later
        said = sorted(zip(row.keys(), map(storable, row), strict=True))
        return hashlib.sha256(repr(said).encode()).digest()

    with tables.transaction() as db:
        return {table: {*map(digest, _rows(db, table))} for table in form.tables}


def _rows(db: Statements, table: str) -> Iterator[Any]:
    """Yield the rows of a table by its first column, which is its key."""
    query = "SELECT * FROM {} ORDER BY 1 LIMIT {}"
    # By pages, from the last key on: a result of millions of rows would not fit into memory.
    rows = db.execute(query.format(table, _PAGE_ROWS)).fetchall()
    while rows:
        yield from rows
        last = rows[-1]
        behind = f"{table} WHERE {last.keys()[0]} > ?"
        rows = db.execute(query.format(behind, _PAGE_ROWS), (last[0],)).fetchall()


def _copy_tables(source: Tables, target: SessionStore, form: FileFormat) -> dict[str, int]:
    """Copy all rows or none. Return how many each table has.

    If the target has rows, they are the same ones: `_compare` has seen to that.
    """
    counts = dict.fromkeys(form.tables, 0)
    if not _has_rows(source, form):
        return counts
    tables = target.tables(form)
    there = _has_rows(tables, form)
    with source.transaction() as read, tables.transaction(write=True) as db:
        for table in form.tables:
            columns: list[str] = []
            for row in _rows(read, table):
                columns, counts[table] = row.keys(), counts[table] + 1
                if not there:
                    places = ", ".join("?" * len(columns))
                    into = f"INSERT INTO {table} ({', '.join(columns)})"
                    db.execute(f"{into} VALUES ({places})", tuple(row))
            if columns and not there:
                tables.continue_numbering(db, table, columns[0])
    return counts
