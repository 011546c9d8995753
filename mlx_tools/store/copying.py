"""Copy of a whole store, byte for byte.

Each copied session is complete, so an interrupted copy continues when it is started again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_tools.errors import StorageError, TranscriptError, UsageError
from mlx_tools.store.session_store import SessionStore
from mlx_tools.store.tables import FileFormat, Statements, Tables, to_storable

_PAGE_ROWS: Final = 100
"""Rows of a table that are read at once, to bound the memory."""

_EMPTY: Final = "nothing was copied: give an empty folder or database"


@dataclass(slots=True)
class CopyReport:
    """The result of a copy."""

    sessions: int = 0
    """The number of sessions that were copied."""
    bytes: int = 0
    """The size of these sessions."""
    present_sessions: int = 0
    """The number of sessions that an earlier copy had already copied."""
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
    """Copy the sessions of ``source``, and its tables.

    ``target`` must be empty, or have only sessions and rows of an earlier copy of the same source.
    It is compared before anything is written, and its content is never changed.

    Args:
        source: the store to copy.
        target: the store to copy to.
        forms: the formats of the tables.
        report: called with the number of finished sessions and the number of all.

    Returns:
        The numbers of copied sessions, approvals and rows.

    Raises:
        UsageError: ``target`` has other content.
        TranscriptError: a session is in use or cannot be read; all others were copied.
        MlxToolsError: a store cannot be used.
    """
    if not (source.ids() or any(_has_rows(source.tables(form), form) for form in forms)):
        raise UsageError(f"{source.place} has no sessions", hint="check its name")
    # Locked for both: no other copy may change the target between the comparison and the copy.
    with target.lock_for_import():
        present = _compare(source, target, forms)
        copied, problems = CopyReport(present_sessions=len(present)), []
        # Before the sessions: one of them could otherwise use a consumed approval again.
        target.import_keys(source.keys())
        due = sorted(set(source.ids()) - present)
        for done, session in enumerate(due):
            report(done, len(due))
            try:
                with source.hold(session):
                    copied.bytes += target.import_session(session, source.parts(session))
                copied.sessions += 1
            # The target is full or gone: the other sessions would fail, too.
            except StorageError:
                raise
            except TranscriptError as error:
                if source.size(session) >= 0:
                    problems.append(error)
                else:
                    copied.left_out.append(session)
        if problems:
            # Raised at the end: the other sessions are to be copied in spite of a broken one.
            raise TranscriptError(
                f"{len(problems)} of {len(due) + len(present)} sessions could not be copied: "
                f"{problems[0]}",
                hint="mend this session, and start the copy again: it continues",
            )
        # Once more: calls may have consumed approvals while the sessions were copied.
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
        UsageError: a session differs, or the target has other content.
    """
    source_keys, target_keys = source.keys(), target.keys()
    target_ids, source_ids = set(target.ids()), set(source.ids())
    # Approvals and headers are sealed with the key: sessions of two keys cannot share a store.
    if target_keys.secret not in (None, source_keys.secret):
        raise _make_error(target, f"another key of approvals than {source.place}")
    if not set(target_keys.consumed_approvals) <= set(source_keys.consumed_approvals):
        raise _make_error(target, f"consumed approvals that are not in {source.place}")
    for session in sorted(target_ids - source_ids):
        raise _make_error(target, f"the session {session}, which is not in {source.place}")
    for session in sorted(target_ids):
        if _digest_session(source, session) != _digest_session(target, session):
            raise _make_error(target, f"another session {session} than {source.place}")
    for form in forms:
        rows, target_rows = source.tables(form), target.tables(form)
        if _has_rows(target_rows, form) and _digest_rows(target_rows, form) != _digest_rows(
            rows, form
        ):
            raise _make_error(target, f"another {form.name} than {source.place}")
    return frozenset(target_ids)


def _make_error(target: SessionStore, content: str) -> UsageError:
    return UsageError(f"{target.place} has {content}", hint=_EMPTY)


def _digest_session(store: SessionStore, session: str) -> bytes:
    """Return a digest of all parts of a session, without the times of their writing."""
    parts = [(part.name, hashlib.sha256(part.data).digest()) for part in store.parts(session)]
    return hashlib.sha256(repr(sorted(parts)).encode()).digest()


# --- tables ---------------------------------------------------------------------------------------


def _has_rows(tables: Tables, form: FileFormat) -> bool:
    """Return True if a table of the format has a row."""
    if not tables.exists:
        return False
    with tables.transaction() as db:
        return any(next(_read_rows(db, table), None) is not None for table in form.tables)


def _digest_rows(tables: Tables, form: FileFormat) -> dict[str, set[bytes]]:
    """Return the digests of all rows, by table."""

    def digest(row: Any) -> bytes:
        # Sorted by column: the order of columns differs between versions of a table.
        values = sorted(zip(row.keys(), map(to_storable, row), strict=True))
        return hashlib.sha256(repr(values).encode()).digest()

    with tables.transaction() as db:
        return {table: {*map(digest, _read_rows(db, table))} for table in form.tables}


def _read_rows(db: Statements, table: str) -> Iterator[Any]:
    """Yield the rows of a table, in the order of its first column, which is its key."""
    query = "SELECT * FROM {} ORDER BY 1 LIMIT {}"
    # In pages, each from the last key on: millions of rows at once would not fit into memory.
    rows = db.execute(query.format(table, _PAGE_ROWS)).fetchall()
    while rows:
        yield from rows
        last = rows[-1]
        later_rows = f"{table} WHERE {last.keys()[0]} > ?"
        rows = db.execute(query.format(later_rows, _PAGE_ROWS), (last[0],)).fetchall()


def _copy_tables(source: Tables, target: SessionStore, form: FileFormat) -> dict[str, int]:
    """Copy all rows or none. Return the number of rows of each table.

    If the target has rows, they are the same rows: `_compare` has checked that.
    """
    counts = dict.fromkeys(form.tables, 0)
    if not _has_rows(source, form):
        return counts
    tables = target.tables(form)
    is_present = _has_rows(tables, form)
    with source.transaction() as read, tables.transaction(write=True) as db:
        for table in form.tables:
            columns: list[str] = []
            for row in _read_rows(read, table):
                columns, counts[table] = row.keys(), counts[table] + 1
                if not is_present:
                    places = ", ".join("?" * len(columns))
                    into = f"INSERT INTO {table} ({', '.join(columns)})"
                    db.execute(f"{into} VALUES ({places})", tuple(row))
            if columns and not is_present:
                tables.continue_numbering(db, table, columns[0])
    return counts
