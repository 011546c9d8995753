"""Files that a session keeps beside its transcript: artifacts and old contents.

Artifacts are whole outputs of tools. Old contents are what calls replaced or deleted. The files
expire, are bounded in size, and only their owner can read them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct, ValidationError, convert, to_builtins

from mlx_tools.errors import StorageError, translate_os_error
from mlx_tools.macos import sync_fully
from mlx_tools.messages import replace
from mlx_tools.paths import drafted

KEEP_SECONDS: Final = 3 * 24 * 3600
MAX_BYTES: Final = 100_000_000
"""Bytes that the artifacts of one session may take."""

SWEEP_EVERY: Final = 3600.0
"""Seconds between two looks for expired artifacts, over all processes: they are kept for days."""

CLOCK_SETTLES: Final = 3600.0
"""Seconds for which a clock that has jumped must go on before it is believed."""

_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_BLOB_NAME: Final = re.compile(r"\.?[0-9a-f]{32}(?:\.[0-9a-f]{16})?", re.ASCII)
"""A file, or one that was not finished."""

ARTIFACTS: Final = "artifacts"
_SWEEP_MARK: Final = ".swept"
"""A mark whose time says when the last sweep began."""
_CLOCK_MARK: Final = ".clock"


class BlobStore(ABC):
    """Blobs of a session, each whole: a blob that a crash cut off does not exist.

    Blobs expire. Together they take at most ``max_bytes``: the oldest make room for new ones. Names
    are 32 hexadecimal digits.
    """

    max_bytes: int

    @abstractmethod
    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        """Store ``data`` as ``key``.

        Args:
            key: the name of the blob.
            data: its bytes.
            durable: True if the blob must survive a power cut.

        Raises:
            OSError: the blob was not stored; no other blob was removed either.
        """

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return the blob ``key``. None if it does not exist, expired or is unreadable."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all blobs."""

    @abstractmethod
    def forget(self, key: str) -> None:
        """Remove the blob ``key``."""


@dataclass(eq=False)
class BlobFiles(BlobStore):
    """A folder of files, each of which expires after ``keep`` seconds.

    ``sync`` flushes an open file's data, or an open folder's names, to the disk.
    """

    folder: Path
    _: KW_ONLY
    keep: float = KEEP_SECONDS
    max_bytes: int = MAX_BYTES
    sync: Callable[[int], None] = sync_fully

    def expire(self, now: float) -> int:
        """Remove expired files and return how many there were.

        A file whose time is after ``now`` was written by a wrong clock. It counts as written now,
        so that it does not stay for ever.
        """
        limit = now - self.keep
        removed = 0
        for path, found in self._files(_BLOB_NAME):
            with contextlib.suppress(OSError):
                # By the time of writing, which nobody who only reads a file changes.
                if found.st_mtime < limit:
                    path.unlink()
                    removed += 1
                elif found.st_mtime > now:
                    os.utime(path, (now, now))
        return removed

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / key
        with drafted(path, data, sync=self.sync if durable else None) as draft:
            # The data is synced before the rename, the folder's names after it: after a power cut
            # the name leads to whole data, or there is no name.
            draft.rename(path)
            if durable:
                self._sync_names()
        # Last, so that a failed write has removed nothing.
        self._make_room(key)

    def read(self, key: str) -> bytes | None:
        # A key comes from a model: nothing but an id may become part of a path.
        if not _ID.fullmatch(key):
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self.folder / key, flags), "rb") as file:
                found = os.fstat(file.fileno())
                # An expired file counts as gone although no sweep has come by yet.
                if not stat.S_ISREG(found.st_mode) or time.time() - found.st_mtime > self.keep:
                    return None
                return file.read()
        except OSError:
            return None

    def names(self) -> list[str]:
        return [path.name for path, _ in self._files()]

    def all(self) -> list[tuple[Path, float]]:
        """Return all files, expired or not, each with the time of its writing."""
        return sorted((path, found.st_mtime) for path, found in self._files())

    def forget(self, key: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / key).unlink()

    def _sync_names(self) -> None:
        """Flush the folder's names to the disk, if its file system can."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                self.sync(fd)
        finally:
            os.close(fd)

    def _make_room(self, newest: str) -> None:
        """Remove the oldest files until the bound holds; never the newest."""
        # In nanoseconds: several outputs of one turn are written within a second.
        files = sorted(self._files(), key=lambda item: item[1].st_mtime_ns)
        total = sum(found.st_size for _, found in files)
        for path, found in files:
            if total <= self.max_bytes:
                return
            if path.name != newest:
                with contextlib.suppress(OSError):
                    path.unlink()
                    total -= found.st_size

    def _files(self, names: re.Pattern[str] = _ID) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files in the folder, each with its status."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if names.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        yield Path(entry.path), entry.stat(follow_symlinks=False)


@dataclass(eq=False)
class BlobMemory(BlobStore):
    """Blobs of one session in ``blobs``; the oldest of all sessions make room."""

    session: str
    blobs: dict[tuple[str, str], bytes]
    max_bytes: int = MAX_BYTES

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        self.blobs[self.session, key] = data
        # Dictionaries keep the order of insertion, so the first entry is the oldest. The list is a
        # copy because another thread may write meanwhile.
        while sum(map(len, list(self.blobs.values()))) > self.max_bytes:
            self.blobs.pop(next(iter(self.blobs)), None)

    def read(self, key: str) -> bytes | None:
        return self.blobs.get((self.session, key))

    def names(self) -> list[str]:
        return [key for session, key in self.blobs if session == self.session]

    def forget(self, key: str) -> None:
        self.blobs.pop((self.session, key), None)


@dataclass(eq=False)
class ArtifactStore:
    """The artifacts of a session. Ids are random: none can be guessed.

    With ``keep_all`` outputs are kept that the transcript holds whole, too. ``sweep`` is called
    with each artifact, to remove what expired elsewhere.
    """

    blobs: BlobStore
    _: KW_ONLY
    keep_all: bool = False
    sweep: Callable[[], object] = lambda: None

    def add(self, text: str, key: str = "") -> str | None:
        """Store ``text`` and return its id, None if it is larger than the limit of all.

        Args:
            text: the output of a tool.
            key: the id to use, for an artifact of another session; empty for a new id.

        Raises:
            StorageError: the artifact was not stored; no other was removed either.
        """
        # A tool may return half a character, which must come back as it was.
        data = text.encode(errors="surrogatepass")
        if len(data) > self.blobs.max_bytes:
            return None
        key = key or secrets.token_hex(16)
        hint = "free some space, and check the folder's permissions"
        with translate_os_error(StorageError, "an output could not be kept", hint):
            self.blobs.write(key, data)
        self.sweep()
        return key

    def get(self, key: str) -> str | None:
        """Return the text of an artifact.

        It is None if the artifact does not exist, expired or cannot be read: whoever guesses ids
        learns nothing.
        """
        data = self.blobs.read(key)
        try:
            return None if data is None else data.decode(errors="surrogatepass")
        except ValueError:
            return None


UNDO_FOLDER: Final = ".mlx-tools-undo"
"""No tool opens anything of this name (`mlx_tools.store.roots`)."""


class Change(Struct, frozen=True, kw_only=True):
    """A change that a call was about to make to a file.

    The file has the ``names`` below the folder ``root``, whose number in its file system is
    ``inode``. ``old_state`` and ``new_state`` identify its content (`mlx_tools.store.changes`),
    ``mode`` are its permissions, 0 if there was no file. ``key`` is the name of the copy of its old
    content, once it is stored; keys sort by time. ``new_folders`` is the number of folders right
    above the file that the call made.
    """

    root: str
    inode: int
    names: tuple[str, ...]
    old_state: str
    new_state: str
    mode: int
    key: str = ""
    new_folders: int = 0

    @property
    def path(self) -> str:
        return str(Path(self.root, *self.names))

    @property
    def saved_at(self) -> float:
        """The time when the old content was saved, by the wall clock in seconds."""
        return int(self.key[:16], 16) / 1e9


@dataclass(eq=False)
class UndoStore:
    """Old contents of files that the calls of one session replaced or deleted.

    the plugin ``files`` puts them back. Each blob is a line of JSON that describes the
    change, and the old content after it. The blob is on disk before the change is made.
    """

    blobs: BlobStore

    def keep_old(self, change: Change, content: bytes) -> str:
        """Store the content of a file that is about to change. Return the copy's key.

        Raises:
            OSError: the content cannot be stored.
        """
        said = {name: value for name, value in to_builtins(change).items() if name != "key"}
        last = max((int(one[:16], 16) for one in self.blobs.names()), default=0)
        now = max(time.time_ns(), last + 1)  # the order holds though the clock is set back
        key = f"{now:016x}{secrets.token_hex(8)}"
        head = json.dumps(said, separators=(",", ":")).encode()
        self.blobs.write(key, head + b"\n" + content, durable=True)
        return key

    def changes(self) -> list[Change]:
        """Return all stored changes, the newest first. Leave out blobs of others."""
        found = []
        for key in self.blobs.names():
            with contextlib.suppress(ValueError, RecursionError, ValidationError):
                said = json.loads((self.blobs.read(key) or b"").partition(b"\n")[0])
                found.append(replace(convert(said, Change), key=key))
        return sorted(found, key=lambda change: change.key, reverse=True)

    @property
    def is_empty(self) -> bool:
        return not self.blobs.names()

    def old_content(self, key: str) -> bytes:
        """Return the stored content, empty if there was no file."""
        return (self.blobs.read(key) or b"").partition(b"\n")[2]

    def forget(self, key: str) -> None:
        self.blobs.forget(key)


def run_in_background(work: Callable[[], object]) -> None:
    """Run ``work`` in a thread that ends with the program, however far it has come."""
    threading.Thread(target=work, name="mlx-tools-sweep", daemon=True).start()


@dataclass(eq=False)
class Sweeper:
    """Removal of expired artifacts from all sessions, also while a program runs on.

    ``start`` runs a due sweep in the background: the sweep looks into every session of ``folder``.
    ``finish`` is called at its end. ``clock`` is the wall clock and ``ticks`` a clock that never
    jumps, both in seconds.

    A wall clock that went back since the last sweep, or ahead by more than ``keep``, may be wrong,
    and a sweep would then remove everything. So nothing is removed until that clock has gone on for
    `CLOCK_SETTLES`. A clock that is soon set right costs nothing; after a long pause without the
    program, expired artifacts go an hour late.
    """

    folder: Path
    keep: float = KEEP_SECONDS
    clock: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    start: Callable[[Callable[[], object]], None] = run_in_background
    finish: Callable[[], object] = lambda: None
    _checked_at: float | None = None

    def sweep_if_due(self) -> None:
        """Begin a sweep if no process has begun one within `SWEEP_EVERY`."""
        ticks = self.ticks()
        # Once per process and hour the mark on disk is not even read.
        if self._checked_at is not None and ticks - self._checked_at < SWEEP_EVERY:
            return
        self._checked_at = ticks
        now = self.clock()
        if self._claim(now):
            self.start(lambda: (self._remove_expired(now), self.finish()))

    def sweep(self) -> int:
        """Remove expired artifacts and return how many there were."""
        self._checked_at = self.ticks()
        now = self.clock()
        return self._remove_expired(now) if self._accept_clock(now) else 0

    def _claim(self, now: float) -> bool:
        """Return whether a sweep is due and this process is the one that begins it."""
        swept = self.folder / _SWEEP_MARK
        last = _read_time(swept)
        if last is not None and 0 <= now - last < SWEEP_EVERY:
            return False
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:  # of two processes the first goes on: it makes the mark, or has it locked
            mark = os.open(swept, flags if last else flags | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if last is None:
                os.utime(mark, (now, now))
            # Another process has set the mark between the look and the lock: the sweep is theirs.
            elif _read_time(swept) != last:
                return False
            return self._accept_clock(now)
        except OSError:
            return False
        finally:
            os.close(mark)

    def _remove_expired(self, now: float) -> int:
        removed = 0
        with contextlib.suppress(OSError):
            sessions = os.listdir(self.folder)  # noqa: PTH208 (there are many)
            # A program that ends cuts its sweep short: each begins at another place, so that the
            # sessions at the end have their turn.
            begin = secrets.randbelow(len(sessions) or 1)
            for session in (*sessions[begin:], *sessions[:begin]):
                for name in (ARTIFACTS, UNDO_FOLDER):
                    folder = f"{self.folder}{os.sep}{session}{os.sep}{name}"
                    if os.path.isdir(folder):  # noqa: PTH112
                        removed += BlobFiles(Path(folder), keep=self.keep).expire(now)
        return removed

    def _accept_clock(self, now: float) -> bool:
        swept, doubted = self.folder / _SWEEP_MARK, self.folder / _CLOCK_MARK
        last = _read_time(swept)
        # The mark is from the future, or older than anything that is kept: one of the clocks is
        # wrong.
        if last is not None and not -CLOCK_SETTLES <= now - last <= self.keep:
            since = _read_time(doubted)
            # The doubt begins, or the clock went back again: it must run on from here.
            if since is None or now < since:
                _set_time(doubted, now)
                return False
            if now - since < CLOCK_SETTLES:
                return False
        with contextlib.suppress(OSError):
            doubted.unlink(missing_ok=True)
        _set_time(swept, now)
        return True


def _read_time(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None


def _set_time(path: Path, now: float) -> None:
    """Set a mark: an empty file whose only content is its time."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        file = os.open(path, flags, 0o600)
        try:
            os.utime(file, (now, now))
        finally:
            os.close(file)
