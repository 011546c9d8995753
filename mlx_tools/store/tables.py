"""SQLite files, and the tables of a store, in files or in PostgreSQL.

The tables of a store are the schedule and the runs of a gateway's clients. mlx-tools has other
SQLite files, too, such as the knowledge base. Each file is private and has one format. It is used
in transactions, and only one at a time writes. Its errors have hints.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import sqlite3
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol, Self

from msgspec import Struct, field

from mlx_tools.errors import MlxToolsError, ScheduleError
from mlx_tools.paths import private_dir
from mlx_tools.process import clean

DAMAGED: Final = "malformed"
"""SQLite's word for damage, for damage that SQLite does not notice."""

VALUE_ERRORS: Final = (TypeError, ValueError, LookupError, OverflowError, StopIteration)
"""Errors that are raised because of a value in the file that mlx-tools never writes."""

_PROBLEMS: Final = (
    # (part of SQLite's message, reason, hint)
    ("full", "the disk is full", "free some space and try again: finished work is stored"),
    ("locked", "another process writes to it", "wait until that has ended, and try again"),
    ("readonly", "it may not be written to", "check its permissions and those of its folder"),
    ("unable to open", "it cannot be opened", "check its permissions and those of its folder"),
    ("not a database", "it is no {name}", "move it away, and start again"),
    (DAMAGED, "it is damaged", "move it away, and start again"),
    ("could not decode", "it is damaged", "move it away, and start again"),
    ("parse error", "it is damaged", "move it away, and start again"),
    ("disk I/O", "the disk failed, or is full", "check the disk and try again"),
    ("no such module: fts5", "this Python's SQLite has no FTS5", "use another build of Python"),
    ("interrupted", "it took too long", "ask with fewer words"),
)
_CREATE_LOCK: Final = threading.Lock()
_TRANSIENT: Final = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR")
_TRANSIENT_NUMBERS: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE)
)


class FileFormat(Struct, frozen=True):
    """A format of files or of tables in a database."""

    name: str
    """The name of the format in messages."""
    error: type[MlxToolsError]
    """The error that is raised if a file is unusable."""
    application: int
    """The number of the format in the file (SQLite's application_id)."""
    version: int
    """The number of the version (SQLite's user_version)."""
    schema: str
    """The statements that create the tables, each at the end of a line."""
    file: str = ""
    """The name of the file in a store's folder, for tables of a store (`SessionStore.tables`)."""
    upgrades: Mapping[int, str] = field(default_factory=dict)
    """The statements that upgrade an older version, by its number."""

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        return re.findall(r"^CREATE TABLE (\w+)", self.schema, re.MULTILINE)


def is_transient(error: BaseException | None) -> bool:
    """Return True if a retry may succeed after this error of SQLite or of the system."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return name.startswith(_TRANSIENT) or getattr(error, "errno", None) in _TRANSIENT_NUMBERS


class SqliteFile:
    """An open SQLite file.

    `translate_errors` raises errors of SQLite and of the system as the format's error.

    Args:
        path: the path, None for a database in memory.
        form: the format.
        create: True to create the file if it is missing. Only its owner can read it then.
        wait: seconds to wait for another process that writes.
    """

    def __init__(
        self, path: Path | None, form: FileFormat, *, create: bool = True, wait: float = 60.0
    ) -> None:
        self.path = path
        self._form = form
        with self.translate_errors():
            if create and path is not None:
                _make(path)
            uri = "file::memory:" if path is None else f"{path.absolute().as_uri()}?mode=rw"
            self.sql = sqlite3.connect(
                uri, uri=True, timeout=wait, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise

    def _prepare(self) -> None:
        form = self._form
        # A file from elsewhere may have views and triggers: their functions must not run.
        self.sql.execute("PRAGMA trusted_schema = OFF")
        # The id is set last in the transaction: if a process was killed before, the file is made
        # again.
        if self.fetch_one("PRAGMA application_id")[0] == 0:
            with self.transaction(write=True):
                # Checked under the write lock: another process may have made the tables meanwhile.
                if self.fetch_one("SELECT count(*) FROM sqlite_master")[0] == 0:
                    self._make(form.schema)
                    self.sql.execute(f"PRAGMA application_id={form.application}")
        if self.fetch_one("PRAGMA application_id")[0] != form.application:
            raise self._error(
                f"it is no {form.name} of this version", "move it away, and start again"
            )
        if self.fetch_one("PRAGMA user_version")[0] in form.upgrades:
            with self.transaction(write=True):
                # Read again under the write lock: another process may have upgraded it meanwhile.
                was = self.fetch_one("PRAGMA user_version")[0]
                if was in form.upgrades:
                    self._make(form.upgrades[was])
        version = self.fetch_one("PRAGMA user_version")[0]
        if version != form.version:
            raise self._error(
                f"it has the format {version}; this program reads {form.version}",
                "use the version of mlx-tools that wrote it, or move it away, and start again",
            )

    def _make(self, statements: str) -> None:
        for statement in statements.split(";\n"):
            self.sql.execute(statement)
        self.sql.execute(f"PRAGMA user_version={self._form.version}")

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        with contextlib.suppress(sqlite3.Error):
            self.sql.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fetch_one(self, query: str, *values: object) -> tuple[Any, ...]:
        """Return the first row of a query. Without a row the file counts as damaged."""
        row: tuple[Any, ...] | None = self.sql.execute(query, values).fetchone()
        if row is None:
            raise sqlite3.DatabaseError(DAMAGED)
        return row

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Run the block in one transaction: all its changes are stored, or none.

        If the block fails because of a value that mlx-tools never writes, SQLite's error for a
        damaged file is raised.
        """
        # IMMEDIATE takes the write lock at once. Otherwise two transactions that first read and
        # then write would wait for each other.
        self.sql.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        try:
            yield self.sql
            self.sql.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                self.sql.execute("ROLLBACK")
            if isinstance(error, VALUE_ERRORS):
                raise sqlite3.DatabaseError(DAMAGED) from error
            raise

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise errors of SQLite and the system as the format's error."""
        try:
            yield
        except UnicodeDecodeError:  # SQLite's message quotes bytes of the file that are no text
            raise self.as_error(sqlite3.DatabaseError(DAMAGED)) from None
        except (sqlite3.Error, OSError) as error:
            raise self.as_error(error) from None

    def as_error(self, error: Exception) -> MlxToolsError:
        """Return an error of SQLite or the system as the format's error, with a hint."""
        message = getattr(error, "strerror", None) or str(error)
        reason, hint = clean(message, 200), "check its folder's permissions and free space"
        if isinstance(error, sqlite3.Error):
            hint = "try again; if that does not help, move it away, and start again"
            for part, known_reason, known_hint in _PROBLEMS:
                if part.lower() in message.lower():
                    reason, hint = known_reason.format(name=self._form.name), known_hint
                    break
        raised = self._error(reason, hint)
        if isinstance(raised, ScheduleError):
            raised.passing = is_transient(error)
        return raised

    def _error(self, reason: str, hint: str) -> MlxToolsError:
        file = f"the {self._form.name} {self.path}"
        return self._form.error(f"{file} cannot be used: {reason}", hint=hint)


def _make(path: Path) -> None:
    """Create the file if it is missing, and let only its owner read it.

    An existing file is not opened: closing it would drop the locks that this process has on it
    (POSIX), and another process could write in the middle of a transaction.
    """
    private_dir(path.parent)
    with _CREATE_LOCK:
        try:
            status = path.lstat()
        except FileNotFoundError:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with contextlib.suppress(FileExistsError):  # another process has created it
                os.close(os.open(path, flags, 0o600))
            return
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")
    if status.st_mode & 0o077:
        path.chmod(0o600)


# --- tables of a store, in files or in PostgreSQL -------------------------------------------------

WAIT: Final = 10.0
"""Seconds to wait for another process that writes. Each writes for milliseconds only."""

_TOKEN: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Rows(Protocol):
    """The rows of a statement. A row's values are read by number or by name."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Statements(Protocol):
    """Statements within a transaction; ``?`` stands for a value."""

    def execute(self, statement: str, values: Sequence[object] = (), /) -> Rows: ...


class Presence(Protocol):
    """A sign that a process is alive, until it is closed or the process ends."""

    @property
    def token(self) -> str: ...
    def close(self) -> None: ...


class Tables(ABC):
    """Tables of one format. If they are unusable, methods raise the format's error."""

    @property
    @abstractmethod
    def exists(self) -> bool:
        """True if the tables exist. If not, reading returns no rows and creates nothing."""

    @abstractmethod
    def transaction(self, *, write: bool = False) -> AbstractContextManager[Statements]:
        """Run the block in one transaction: all its changes are stored, or none.

        A transaction with ``write`` waits for another one that writes.
        """

    @abstractmethod
    def continue_numbering(self, db: Statements, table: str, column: str) -> None:
        """Make the numbers of new rows continue after those of copied rows."""

    @abstractmethod
    def presence(self) -> Presence:
        """Return a sign that this process is alive."""

    @abstractmethod
    def is_alive(self, token: str) -> bool:
        """Return True if the process with the sign ``token`` is alive."""


class SqliteTables(Tables):
    """Tables in a file, which is created with the first row.

    Args:
        path: the path of the file.
        form: the format.
        wait: seconds to wait for another process that writes.
    """

    def __init__(self, path: Path, form: FileFormat, wait: float = WAIT) -> None:
        self.path = path
        self._form, self._wait = form, wait
        self._present = path.with_name(f"{path.name}.runners")

    @property
    def exists(self) -> bool:
        return os.path.lexists(self.path)

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[Statements]:
        # Reading must not create a file: if there is none yet, an empty database in memory is read.
        path = self.path if write or self.exists else None
        with SqliteFile(path, self._form, wait=self._wait) as file, file.translate_errors():
            file.sql.row_factory = sqlite3.Row
            with file.transaction(write=write) as db:
                yield db

    def continue_numbering(self, db: Statements, table: str, column: str) -> None:
        """Do nothing: SQLite continues by itself."""

    def presence(self) -> Presence:
        try:
            return PresenceLock(self._present)
        except OSError as error:
            raised = self._form.error(f"{self._present} cannot be used: {error.strerror}")
            if isinstance(raised, ScheduleError):
                raised.passing = is_transient(error)
            raise raised from None

    def is_alive(self, token: str) -> bool:
        return is_present(self._present, token)


class PresenceLock:
    """A lock on a new file in ``folder``, as a sign of this process. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(16)
        self._path = private_dir(folder) / self.token
        self._fd = os.open(self._path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        # The system drops the lock when the process ends, even after kill -9: no heartbeat is
        # needed.
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def close(self) -> None:
        """Release the lock."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            os.close(self._fd)


def is_present(folder: Path, token: str) -> bool:
    """Return True if the process that made the lock of this token is alive."""
    if not _TOKEN.fullmatch(token):
        return False
    try:
        fd = os.open(folder / token, _FLAGS)
    except FileNotFoundError:
        return False
    except OSError:  # such as too many open files, which does not mean that the process ended
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):
        (folder / token).unlink()  # its process is gone
    return False


def to_storable(value: object) -> object:
    """Return a value that tables of every kind can store.

    A text in PostgreSQL cannot have a NUL or half a character. Values that must be read back
    exactly are stored as JSON, which has neither.
    """
    if not isinstance(value, str):
        return value
    return value.replace("\0", "\N{SYMBOL FOR NULL}").encode(errors="replace").decode()
