"""The index of a folder of sessions: ids, the times of the last writes, summaries.

With an index, not every folder has to be read. It is only a cache: if it is damaged or locked, the
folders are read instead, or the index is made again from them. The first process that lists
sessions makes it, next to the folder of sessions.

How the index is known to be out of date: it stores the folder's modification time as of its own
last change. If anyone makes or removes a session, the folder has another time, and the index is
compared with all folders. But writing to a transcript does not change the folder's time. So a
process that opens a session first marks it in the index as open. As long as the mark is there, the
transcript's time is read from its file. The mark is removed when the session is closed, or when it
is found closed after a crash. A process that cannot mark a session removes the index.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mlx_tools.errors import MlxToolsError, StorageError
from mlx_tools.lazy import VERSION
from mlx_tools.store.session_store import SessionSummary, is_session_id
from mlx_tools.store.tables import FileFormat, SqliteFile
from mlx_tools.store.transcript import NAME, NO_FILE, FileState, get_file_state

_SCHEMA: Final = """
CREATE TABLE meta (stamp TEXT NOT NULL);
CREATE TABLE sessions (
  session TEXT NOT NULL PRIMARY KEY,
  updated INTEGER NOT NULL,
  is_open INTEGER NOT NULL,
  state TEXT NOT NULL DEFAULT '',
  summary BLOB
) WITHOUT ROWID;
CREATE INDEX by_update ON sessions (updated DESC, session DESC);
CREATE INDEX open_ones ON sessions (session) WHERE is_open
"""
_FORMAT: Final = FileFormat("index of sessions", StorageError, 0x6D6C7869, 1, _SCHEMA)

_WAIT: Final = 2.0
"""Seconds to wait for another process that writes. To compare 100,000 sessions takes 1 second."""

PAGE: Final = 1000
"""Rows that are read at once, so that a process that writes does not have to wait long."""

MAX_SUMMARY: Final = 20_000
"""Bytes of the largest summary that is stored. A question may contain a whole file, and statistics
read all summaries."""

_FAULTS: Final = (MlxToolsError, sqlite3.Error, OSError, ValueError, TypeError)
"""Errors of an index that is locked, damaged or cannot be written, and of a full disk."""


class SessionIndex:
    """The index of the sessions in a folder.

    Methods that return something return None if the index cannot be used; then the folders have to
    be read. The other methods raise nothing: if they fail, the index is out of date or gone.

    Args:
        folder: the folder of sessions.
        in_use: returns True if a process has the session of an id open.
    """

    def __init__(self, folder: Path, in_use: Callable[[str], bool]) -> None:
        self.folder = folder
        self.path = folder.with_name(f"{folder.name}-index.sqlite")
        self._in_use = in_use

    # --- changes ---

    def make(self, session: str) -> None:
        """Make the folder of a new session, and mark the session as open. Raises OSError."""
        path, is_made = self.folder / session, False

        def make_folder() -> None:
            nonlocal is_made
            path.mkdir(mode=0o700)
            is_made = True

        self._write(lambda file: self._mark(file, session, make_folder))
        if not is_made:
            path.mkdir(mode=0o700)  # changes the folder's time, so the index counts as out of date

    def open(self, session: str) -> None:
        """Mark a session as open: this process has locked it and is about to write to it."""
        if not self._write(lambda file: self._mark(file, session, lambda: None)):
            with contextlib.suppress(OSError):
                os.utime(self.folder)
                self.path.unlink(missing_ok=True)

    def close(self, session: str, state: FileState, summary: SessionSummary | None) -> None:
        """Mark a session as closed: this process is about to unlock it."""
        data = None if summary is None else _encode(summary)
        # An empty state matches no file: a session without a summary is summarized when its summary
        # is needed.
        row = (session, state.updated, state.text if data else "", data)
        self._write(
            lambda file: file.sql.execute("INSERT OR REPLACE INTO sessions VALUES (?,?,0,?,?)", row)
        )

    def keep(self, rows: Sequence[tuple[str, FileState, SessionSummary]]) -> None:
        """Store summaries, each with the state of the transcript that it was made of."""
        values = [
            (state.text, data, session)
            for session, state, summary in rows
            if (data := _encode(summary)) is not None
        ]
        query = "UPDATE sessions SET state = ?, summary = ? WHERE session = ?"
        self._write(lambda file: file.sql.executemany(query, values))

    # --- queries ---

    def count(self) -> int | None:
        """Return the number of sessions."""
        with self._reading() as file:
            return None if file is None else int(file.fetch_one("SELECT count(*) FROM sessions")[0])

    def by_last_update(self, limit: int | None) -> list[str] | None:
        """Return at most ``limit`` ids, the session with the last write first."""
        query = "SELECT session FROM sessions ORDER BY updated DESC, session DESC LIMIT ?"
        return self._ids(query, -1 if limit is None else limit)

    def matching(self, begin: str) -> list[str] | None:
        """Return the ids that begin with this text, the newest first."""
        query = (
            "SELECT session FROM sessions WHERE session >= ? AND session < ? ORDER BY session DESC"
        )
        return self._ids(query, begin, f"{begin}\x7f")  # \x7f sorts after all characters of an id

    def summary(self, session: str, state: FileState) -> SessionSummary | None:
        """Return the summary of a session if its transcript is still in this state."""
        with self._reading(compare=False) as file:
            if file is None:
                return None
            query = "SELECT summary FROM sessions WHERE session = ? AND state = ?"
            row = file.sql.execute(query, (session, state.text)).fetchone()
            return None if row is None or row[0] is None else _decode(row[0])
        return None

    def summaries(self, older_than: str) -> list[tuple[str, SessionSummary | None]] | None:
        """Return at most `PAGE` ids below ``older_than``, newest first, with summaries.

        A summary is None if the transcript had changed since it was made, as of the last `compare`.
        """
        with self._reading(compare=False) as file:
            if file is None:
                return None
            query = (
                "SELECT session, summary FROM sessions WHERE session < ?"
                " ORDER BY session DESC LIMIT ?"
            )
            rows = file.sql.execute(query, (older_than, PAGE)).fetchall()
            return [(session, _decode(data) if data else None) for session, data in rows]
        return None

    def compare(self) -> bool:
        """Compare the index with all folders, even if it seems to be up to date.

        Make it if it does not exist. Return False if it cannot be used.
        """
        return self._write(self._compare, create=True)

    def check(self) -> None:
        """Compare an existing index with all folders: a person may have changed some."""
        self._write(self._compare)

    def _ids(self, query: str, *values: object) -> list[str] | None:
        with self._reading() as file:
            return None if file is None else [row[0] for row in file.sql.execute(query, values)]
        return None

    # --- the file ---

    @contextlib.contextmanager
    def _reading(self, *, compare: bool = True) -> Iterator[SqliteFile | None]:
        """Open the index and bring it up to date; yield None if it cannot be used.

        Errors that are raised within the block count as faults of the file. They end the block, and
        are not raised again.
        """
        with contextlib.ExitStack() as stack:
            file: SqliteFile | None = None
            try:
                file = stack.enter_context(self._file(create=compare))
                if compare and not self._is_current(file):
                    self._bring_up_to_date(file)
            except _FAULTS as error:
                self._remove_if_damaged(error)
                file = None
            try:
                yield file
            except _FAULTS as error:
                self._remove_if_damaged(error)

    def _write(self, change: Callable[[SqliteFile], object], *, create: bool = False) -> bool:
        """Change the index in one transaction. Return False if it cannot be used."""
        if not create and not self.path.exists():
            return False
        try:
            with (
                self._file(create=create) as file,
                file.translate_errors(),
                file.transaction(write=True),
            ):
                change(file)
        except _FAULTS as error:
            self._remove_if_damaged(error)
            return False
        return True

    def _file(self, *, create: bool) -> SqliteFile:
        file = SqliteFile(self.path, _FORMAT, create=create, wait=_WAIT)
        # Without syncs. A killed process loses nothing. A power cut may damage the index, and it is
        # made again then: that costs less than to wait for the disk on each change.
        file.sql.execute("PRAGMA synchronous = OFF")
        return file

    def _remove_if_damaged(self, error: Exception) -> None:
        """Remove the index if it will never be usable again, as opposed to a locked one."""
        cause = error.__cause__ or error.__context__ or error
        name = getattr(cause, "sqlite_errorname", None) or ""
        passing = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_READONLY")
        is_damage = isinstance(cause, sqlite3.Error) and not name.startswith(
            (*passing, "SQLITE_IOERR", "SQLITE_CANTOPEN")
        )
        if is_damage or isinstance(error, ValueError | TypeError) or cause is error:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    # --- within a transaction ---

    def _folder_stamp(self) -> str:
        return f"{VERSION} {self.folder.stat().st_mtime_ns}"

    def _stamp(self, file: SqliteFile) -> str:
        row = file.sql.execute("SELECT stamp FROM meta").fetchone()
        return str(row[0]) if row else ""

    def _renew_stamp(self, file: SqliteFile) -> None:
        """Set the folder's time, and store it as the stamp.

        Other changes will not give the folder the same time, to the nanosecond.
        """
        os.utime(self.folder, ns=(time.time_ns(), time.time_ns()))
        self._set_stamp(file, self._folder_stamp())

    def _set_stamp(self, file: SqliteFile, stamp: str) -> None:
        file.sql.execute("DELETE FROM meta")
        file.sql.execute("INSERT INTO meta VALUES (?)", (stamp,))

    def _mark(self, file: SqliteFile, session: str, change: Callable[[], None]) -> None:
        """Mark a session as open, and change the folder by ``change``.

        The new stamp also shows if somebody later restores an older copy of the index.
        """
        # Checked before the change: if the index was out of date already, a new stamp would hide
        # that.
        is_current = self._stamp(file) == self._folder_stamp()
        change()
        file.sql.execute(
            "INSERT INTO sessions (session, updated, is_open) VALUES (?, ?, 1)"
            " ON CONFLICT (session) DO UPDATE SET is_open = 1",
            (session, time.time_ns()),
        )
        if is_current:
            self._renew_stamp(file)

    def _is_current(self, file: SqliteFile) -> bool:
        with file.translate_errors():
            is_open = file.sql.execute("SELECT 1 FROM sessions WHERE is_open LIMIT 1").fetchone()
            return is_open is None and self._stamp(file) == self._folder_stamp()

    def _bring_up_to_date(self, file: SqliteFile) -> None:
        with file.translate_errors(), file.transaction(write=True):
            if self._stamp(file) != self._folder_stamp():
                self._compare(file)
                return
            query = "SELECT session, updated FROM sessions WHERE is_open"
            for session, updated in file.sql.execute(query).fetchall():
                state, is_open = self._find_state(session), self._in_use(session)
                if state.updated != updated or not is_open:
                    file.sql.execute(
                        "UPDATE sessions SET updated = ?, is_open = ? WHERE session = ?",
                        (state.updated, is_open, session),
                    )

    def _compare(self, file: SqliteFile) -> None:
        """Change the rows so that they match the folders.

        If a session is made meanwhile, the index counts as out of date at the end.
        """
        if not self._stamp(file).startswith(f"{VERSION} "):
            file.sql.execute("UPDATE sessions SET state = '', summary = NULL")
        self._renew_stamp(file)
        stamp = self._stamp(file)
        query = "SELECT session, updated, is_open, state FROM sessions"
        rows = {row[0]: row for row in file.sql.execute(query)}
        changes: list[tuple[str, int, int]] = []
        outdated: list[tuple[str]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                session = entry.name
                if not (is_session_id(session) and entry.is_dir(follow_symlinks=False)):
                    continue
                row, state = rows.pop(session, None), self._find_state(session)
                if row is None or row[2] or row[1] != state.updated:
                    changes.append((session, state.updated, int(self._in_use(session))))
                if row is not None and row[3] not in ("", state.text):
                    outdated.append((session,))
        file.sql.executemany(
            "INSERT INTO sessions (session, updated, is_open) VALUES (?, ?, ?) ON CONFLICT"
            " (session) DO UPDATE SET updated = excluded.updated, is_open = excluded.is_open",
            changes,
        )
        file.sql.executemany(
            "UPDATE sessions SET state = '', summary = NULL WHERE session = ?", outdated
        )
        file.sql.executemany("DELETE FROM sessions WHERE session = ?", [(name,) for name in rows])
        # A session was made or removed while the folders were read: the next query compares again.
        if self._folder_stamp() != stamp:
            self._set_stamp(file, "")

    def _find_state(self, session: str) -> FileState:
        try:
            return get_file_state(os.lstat(f"{self.folder}{os.sep}{session}{os.sep}{NAME}"))
        except OSError:
            return NO_FILE


def _encode(summary: SessionSummary) -> bytes | None:
    """Return a summary as JSON; None if it is too long, or has half a character."""
    try:
        data = msgspec.json.encode(summary)
    except (ValueError, UnicodeEncodeError):
        return None
    return data if len(data) <= MAX_SUMMARY else None


_decode = msgspec.json.Decoder(SessionSummary).decode
