"""Tables beside the sessions: the schedule, the runs of a gateway's clients. Each is of one format,
used in transactions of which one writes at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol

from mlx_tools.errors import ScheduleError
from mlx_tools.paths import private_dir
from mlx_tools.store.sqlite import FileFormat, SqliteFile, passes

WAIT: Final = 10.0
"""Seconds for which one process waits for another that writes."""

_TOKEN: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Rows(Protocol):
    """What a statement gives: rows, whose values are had by number or by name."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Statements(Protocol):
    """What runs statements within a transaction; ``?`` stands for a value."""

    def execute(self, statement: str, values: Sequence[object] = (), /) -> Rows: ...


class Presence(Protocol):
    """Says that a process is alive, until it is closed or the process ends, however it ends."""

    @property
    def token(self) -> str: ...
    def close(self) -> None: ...


class Tables(ABC):
    """Where tables of one format are kept. Methods raise the error of the format where that cannot
    be used."""

    @property
    @abstractmethod
    def made(self) -> bool:
        """Whether there is anything: where not, reading finds nothing, and makes nothing."""

    @abstractmethod
    def transaction(self, *, write: bool = False) -> AbstractContextManager[Statements]:
        """One state of the tables, and all that is done within is kept, or nothing. One that writes
        waits for another that does."""

    @abstractmethod
    def count_on(self, db: Statements, table: str, column: str) -> None:
        """Have numbers that are given to new rows go on behind those that the rows have that were
        put there with theirs."""

    @abstractmethod
    def presence(self) -> Presence:
        """A sign that this process is alive."""

    @abstractmethod
    def present(self, token: str) -> bool:
        """Whether the process with the sign ``token`` is alive."""


class SqliteTables(Tables):
    """Tables in a file, made with the first that is kept. ``wait`` is how many seconds another
    process that writes is waited for."""

    def __init__(self, path: Path, form: FileFormat, wait: float = WAIT) -> None:
        self.path = path
        self._form, self._wait = form, wait
        self._present = path.with_name(f"{path.name}.runners")

    @property
    def made(self) -> bool:
        return os.path.lexists(self.path)

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[Statements]:
        path = self.path if write or self.made else None
        with SqliteFile(path, self._form, wait=self._wait) as file, file.guarded():
            file.sql.row_factory = sqlite3.Row
            with file.transaction(write=write) as db:
                yield db

    def count_on(self, db: Statements, table: str, column: str) -> None:
        """SQLite does so by itself."""

    def presence(self) -> Presence:
        try:
            return PresenceLock(self._present)
        except OSError as error:
            raised = self._form.error(f"{self._present} cannot be used: {error.strerror}")
            if isinstance(raised, ScheduleError):
                raised.passing = passes(error)
            raise raised from None

    def present(self, token: str) -> bool:
        return is_present(self._present, token)


class PresenceLock:
    """A lock on a file of its own below ``folder``, which the system takes away when the process
    ends. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(16)
        self._path = private_dir(folder) / self.token
        self._fd = os.open(self._path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def close(self) -> None:
        """Lets the lock go."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            os.close(self._fd)


def is_present(folder: Path, token: str) -> bool:
    """Whether the process that made the lock with this token still holds it."""
    if not _TOKEN.fullmatch(token):
        return False
    try:
        fd = os.open(folder / token, _FLAGS)
    except FileNotFoundError:
        return False
    except OSError:  # too many open files, say: nobody's end is to be read out of that
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


def storable(value: object) -> object:
    """A value as any tables can have it: no text of PostgreSQL's holds a NUL or half a character.
    What those who keep it mean to read back is JSON, which has neither."""
    if not isinstance(value, str):
        return value
    return value.replace("\0", "\N{SYMBOL FOR NULL}").encode(errors="replace").decode()
