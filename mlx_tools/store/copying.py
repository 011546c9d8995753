"""All that one store holds, copied into another byte for byte. What was copied is whole, so a copy
that was broken off goes on where it is started again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_tools.errors import StorageError, TranscriptError, UsageError
from mlx_tools.store.session_store import SessionStore
from mlx_tools.store.tables import FileFormat, Statements, Tables, storable

_AT_ONCE: Final = 100
"""Rows of a table that are read in one go."""

_EMPTY: Final = "nothing was copied: give an empty folder or database"


@dataclass(slots=True)
class CopyReport:
    """What came of a copy: ``sessions`` that were copied, of how many ``bytes``, and those that
    were ``there`` already; approvals ``used`` up; the rows of each table; and the sessions that
    were ``left_out``, as they have no transcript."""

    sessions: int = 0
    bytes: int = 0
    there: int = 0
    used: int = 0
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def copy_store(
    source: SessionStore,
    target: SessionStore,
    forms: Sequence[FileFormat],
    report: Callable[[int, int], None] = lambda done, total: None,
) -> CopyReport:
    """Copy the sessions of ``source``, and the tables of these formats beside them.

    ``target`` is empty, or holds what a copy of the same that was broken off has left there: it is
    compared before anything is written, and nothing that is there is ever changed. ``report`` is
    told how many sessions are done, of how many. Raises `UsageError` where ``target`` holds
    anything else, `TranscriptError` where a session is in use or cannot be read, after all others
    were copied, `MlxToolsError` where a store cannot be used.
    """
    if not (source.ids() or any(_holds(source.tables(one), one) for one in forms)):
        raise UsageError(f"{source.place} holds no sessions", hint="see that its name is right")
    with target.taking_in():
        there = _compare(source, target, forms)
        copied, problems = CopyReport(there=len(there)), []
        target.take_keys(source.keys())  # before any session that could use one again
        due = sorted(set(source.ids()) - there)
        for done, session in enumerate(due):
            report(done, len(due))
            try:
                with source.held(session):
                    copied.bytes += target.take_in(session, source.parts(session))
                copied.sessions += 1
            except StorageError:
                raise
            except TranscriptError as error:
                if source.size(session) >= 0:
                    problems.append(error)
                else:
                    copied.left_out.append(session)
        if problems:
            raise TranscriptError(
                f"{len(problems)} of {len(due) + len(there)} sessions could not be copied: "
                f"{problems[0]}",
                hint="see to that, and start again: it goes on where it was",
            )
        target.take_keys(keys := source.keys())
        copied.used = len(keys.used)
        for form in forms:
            copied.tables[form.file.partition(".")[0]] = _copy_tables(
                source.tables(form), target, form
            )
    return copied


def _compare(
    source: SessionStore, target: SessionStore, forms: Sequence[FileFormat]
) -> frozenset[str]:
    """The sessions that are in both. Raises `UsageError` where one differs, or anything else."""
    ours, theirs = source.keys(), target.keys()
    there, known = set(target.ids()), set(source.ids())
    if theirs.secret not in (None, ours.secret):
        raise _differs(target, "a key of approvals that is another's")
    if not set(theirs.used) <= set(ours.used):
        raise _differs(target, f"approvals that were used up, which {source.place} does not")
    for session in sorted(there - known):
        raise _differs(target, f"the session {session}, which {source.place} does not")
    for session in sorted(there):
        if _digest(source, session) != _digest(target, session):
            raise _differs(target, f"the session {session}, which is another in {source.place}")
    for form in forms:
        ours_in, theirs_in = source.tables(form), target.tables(form)
        if _holds(theirs_in, form) and _digests(theirs_in, form) != _digests(ours_in, form):
            raise _differs(target, f"a {form.name} that is another in {source.place}")
    return frozenset(there)


def _differs(target: SessionStore, subject: str) -> UsageError:
    return UsageError(f"{target.place} holds {subject}", hint=_EMPTY)


def _digest(store: SessionStore, session: str) -> bytes:
    """A digest of all that a session keeps, whenever it was written."""
    parts = [(part.name, hashlib.sha256(part.data).digest()) for part in store.parts(session)]
    return hashlib.sha256(repr(sorted(parts)).encode()).digest()


# --- tables ---------------------------------------------------------------------------------------


def _holds(tables: Tables, form: FileFormat) -> bool:
    """Whether there is any row in tables of a format."""
    if not tables.made:
        return False
    with tables.transaction() as db:
        return any(next(_rows(db, table), None) is not None for table in form.tables)


def _digests(tables: Tables, form: FileFormat) -> dict[str, set[bytes]]:
    """The digests of all rows, by table."""

    def digest(row: Any) -> bytes:  # by column: their order differs where some were added later
        said = sorted(zip(row.keys(), map(storable, row), strict=True))
        return hashlib.sha256(repr(said).encode()).digest()

    with tables.transaction() as db:
        return {table: {*map(digest, _rows(db, table))} for table in form.tables}


def _rows(db: Statements, table: str) -> Iterator[Any]:
    """The rows of a table, by its first column, which is its key."""
    query = "SELECT * FROM {} ORDER BY 1 LIMIT {}"
    rows = db.execute(query.format(table, _AT_ONCE)).fetchall()
    while rows:
        yield from rows
        last = rows[-1]
        behind = f"{table} WHERE {last.keys()[0]} > ?"
        rows = db.execute(query.format(behind, _AT_ONCE), (last[0],)).fetchall()


def _copy_tables(source: Tables, target: SessionStore, form: FileFormat) -> dict[str, int]:
    """Copy all rows, or none; how many each table has. Where there are any, they are these."""
    counts = dict.fromkeys(form.tables, 0)
    if not _holds(source, form):
        return counts
    tables = target.tables(form)
    there = _holds(tables, form)
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
                tables.count_on(db, table, columns[0])
    return counts
