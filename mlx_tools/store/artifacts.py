"""Artifacts and old contents, which a session stores besides its transcript.

Artifacts are complete outputs of tools. Old contents are those of files that calls replaced or
deleted. Both expire and are limited in size, and only their owner can read them.
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
"""Seconds for which artifacts are stored unless the settings say otherwise."""

MAX_BYTES: Final = 100_000_000
"""The limit of the bytes of one session's artifacts."""

SWEEP_EVERY: Final = 3600.0
"""Seconds between two sweeps by any process. An hour late is little for artifacts of days."""

CLOCK_SETTLES: Final = 3600.0
"""Seconds for which a clock that has jumped must run on before it is trusted."""

_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_BLOB_NAME: Final = re.compile(r"\.?[0-9a-f]{32}(?:\.[0-9a-f]{16})?", re.ASCII)
"""The name of a blob's file, or of its unfinished draft."""

ARTIFACTS: Final = "artifacts"
_SWEEP_MARK: Final = ".swept"
"""An empty file; its time is when the last sweep began."""
_CLOCK_MARK: Final = ".clock"
"""An empty file; its time is when the clock was first doubted."""


class BlobStore(ABC):
    """The blobs of a session.

    Each blob is complete: if a crash cuts off a write, there is no blob. Blobs expire. Their names
    are 32 hexadecimal digits.
    """

    max_bytes: int
    """The limit of the bytes of all blobs; the oldest are removed for new ones."""

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
    """Blobs as files in a folder."""

    folder: Path
    _: KW_ONLY
    keep: float = KEEP_SECONDS
    """Seconds after which a file expires."""
    max_bytes: int = MAX_BYTES
    sync: Callable[[int], None] = sync_fully
    """Flushes an open file's data, or an open folder's names, to the disk."""

    def expire(self, now: float) -> int:
        """Remove expired files. Return how many were removed.

        A file whose time is after ``now`` was written while the clock was wrong. Its time is set to
        ``now``, so that it expires some day.
        """
        limit = now - self.keep
        removed = 0
        for path, found in self._files(_BLOB_NAME):
            with contextlib.suppress(OSError):
                # By the time of writing: reading a file does not change it.
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
            # The data is synced before the rename, the folder's names after it. So after a power
            # cut the file is complete, or does not exist.
            draft.rename(path)
            if durable:
                self._sync_names()
        # Last, so that a failed write removes nothing.
        self._make_room(key)

    def read(self, key: str) -> bytes | None:
        # The key comes from a model: only a valid id may become part of a path.
        if not _ID.fullmatch(key):
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self.folder / key, flags), "rb") as file:
                found = os.fstat(file.fileno())
                # An expired file does not count, even if no sweep has removed it yet.
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
        """Remove the oldest files, but never ``newest``, until the limit is kept."""
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
    """Blobs of one session in memory."""

    session: str
    blobs: dict[tuple[str, str], bytes]
    """The blobs of all sessions, by session and key."""
    max_bytes: int = MAX_BYTES
    """The limit of the bytes of ``blobs``; the oldest are removed, of whichever session."""

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
    """The artifacts of a session. Their ids are random, so that nobody can guess one."""

    blobs: BlobStore
    _: KW_ONLY
    keep_all: bool = False
    """True to store outputs that are complete in the transcript, too."""
    sweep: Callable[[], object] = lambda: None
    """Called with each new artifact, to remove expired artifacts of other sessions."""

    def add(self, text: str, key: str = "") -> str | None:
        """Store ``text`` and return its id, None if it alone is larger than the limit.

        Args:
            text: the output of a tool.
            key: the id to use, for an artifact of another session; empty for a new id.

        Raises:
            StorageError: the artifact was not stored; no other was removed either.
        """
        # A tool may return half a character (a lone surrogate), which must be read back unchanged.
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
        """Return the text of an artifact, None if it is absent, expired or unreadable.

        The reason is not said, so that nobody learns anything by guessing ids.
        """
        data = self.blobs.read(key)
        try:
            return None if data is None else data.decode(errors="surrogatepass")
        except ValueError:
            return None


UNDO_FOLDER: Final = ".mlx-tools-undo"
"""The folder of old contents. No tool opens a file or folder of this name (`store.roots`)."""


class Change(Struct, frozen=True, kw_only=True):
    """A change that a call was about to make to a file."""

    root: str
    """The path of the root that the file is in."""
    inode: int
    """The number of that folder in its file system."""
    names: tuple[str, ...]
    """The names of the file's path below the root."""
    old_state: str
    """The digest of the old content (`digest_content`)."""
    new_state: str
    """The digest of the new content."""
    mode: int
    """The permissions of the file, 0 if there was no file."""
    key: str = ""
    """The name of the stored copy of the old content, empty before; keys sort by time."""
    new_folders: int = 0
    """The number of folders directly above the file that the call made."""

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

    The plugin ``files`` restores them. Each blob is a line of JSON that describes the change,
    followed by the old content. The blob is on disk before the change is made.
    """

    blobs: BlobStore

    def keep_old(self, change: Change, content: bytes) -> str:
        """Store the content of a file that is about to change. Return the copy's key.

        Raises:
            OSError: the content cannot be stored.
        """
        values = {name: value for name, value in to_builtins(change).items() if name != "key"}
        last = max((int(name[:16], 16) for name in self.blobs.names()), default=0)
        now = max(time.time_ns(), last + 1)  # keys stay in order even if the clock is set back
        key = f"{now:016x}{secrets.token_hex(8)}"
        head = json.dumps(values, separators=(",", ":")).encode()
        self.blobs.write(key, head + b"\n" + content, durable=True)
        return key

    def changes(self) -> list[Change]:
        """Return all stored changes, the newest first. Skip blobs of another format."""
        changes = []
        for key in self.blobs.names():
            with contextlib.suppress(ValueError, RecursionError, ValidationError):
                values = json.loads((self.blobs.read(key) or b"").partition(b"\n")[0])
                changes.append(replace(convert(values, Change), key=key))
        return sorted(changes, key=lambda change: change.key, reverse=True)

    @property
    def is_empty(self) -> bool:
        return not self.blobs.names()

    def read_old_content(self, key: str) -> bytes:
        """Return the stored content, empty if there was no file."""
        return (self.blobs.read(key) or b"").partition(b"\n")[2]

    def forget(self, key: str) -> None:
        self.blobs.forget(key)


def run_in_background(work: Callable[[], object]) -> None:
    """Run ``work`` in a daemon thread: it ends with the program, finished or not."""
    threading.Thread(target=work, name="mlx-tools-sweep", daemon=True).start()


@dataclass(eq=False)
class Sweeper:
    """Removes expired artifacts of all sessions.

    The wall clock may be wrong if it went back since the last sweep, or ahead by more than
    ``keep``. A sweep by a wrong clock would remove everything. So nothing is removed until the
    clock has run on for `CLOCK_SETTLES`. If the clock is soon corrected, nothing is lost. If the
    program was not used for long, expired artifacts are removed an hour later.
    """

    folder: Path
    """The folder of all sessions."""
    keep: float = KEEP_SECONDS
    """Seconds after which an artifact expires."""
    clock: Callable[[], float] = time.time
    """The wall clock, in seconds."""
    ticks: Callable[[], float] = time.monotonic
    """A clock that never jumps, in seconds."""
    start: Callable[[Callable[[], object]], None] = run_in_background
    """Runs a sweep in the background, because it looks into every session."""
    finish: Callable[[], object] = lambda: None
    """Called at the end of each sweep in the background."""
    _checked_at: float | None = None

    def sweep_if_due(self) -> None:
        """Begin a sweep if no process has begun one within `SWEEP_EVERY`."""
        ticks = self.ticks()
        # A process reads the mark on disk only once an hour.
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
        """Return True if a sweep is due and no other process has begun it."""
        swept = self.folder / _SWEEP_MARK
        last = _read_time(swept)
        if last is not None and 0 <= now - last < SWEEP_EVERY:
            return False
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:  # Only one of two processes goes on: it has made the mark, or has locked it.
            mark = os.open(swept, flags if last else flags | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if last is None:
                os.utime(mark, (now, now))
            # Another process set the mark after it was read here: that process sweeps.
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
            # The end of the program cuts a sweep short. So each sweep begins at a random session;
            # otherwise it might never come to the last ones.
            begin = secrets.randbelow(len(sessions) or 1)
            for session in (*sessions[begin:], *sessions[:begin]):
                for name in (ARTIFACTS, UNDO_FOLDER):
                    folder = f"{self.folder}{os.sep}{session}{os.sep}{name}"
                    if os.path.isdir(folder):  # noqa: PTH112
                        removed += BlobFiles(Path(folder), keep=self.keep).expire(now)
        return removed

    def _accept_clock(self, now: float) -> bool:
        """Return True if the clock can be trusted; set the marks."""
        swept, doubted = self.folder / _SWEEP_MARK, self.folder / _CLOCK_MARK
        last = _read_time(swept)
        # The mark is from the future, or older than every artifact: the clock is wrong now, or was
        # wrong at the last sweep.
        if last is not None and not -CLOCK_SETTLES <= now - last <= self.keep:
            since = _read_time(doubted)
            # The first doubt, or the clock went back again: the waiting time begins now.
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
    """Set the time of a mark, which is an empty file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        file = os.open(path, flags, 0o600)
        try:
            os.utime(file, (now, now))
        finally:
            os.close(file)
