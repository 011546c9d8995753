"""Whole outputs of tools, kept in files that expire and are bounded in size."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from mlx_tools.errors import TranscriptError

KEEP_SECONDS: Final = 3 * 24 * 3600
MAX_BYTES: Final = 100_000_000
"""Bytes that the artifacts of one session may take."""

SWEEP_EVERY: Final = 600.0
"""Seconds after which a program that runs on looks for expired artifacts again."""

CLOCK_SETTLES: Final = 3600.0
"""Seconds for which a clock that has jumped must go on before it is believed."""

_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SWEPT: Final = ".swept"
_DOUBTED: Final = ".clock"


class ArtifactStore:
    """A folder of artifacts, readable by its owner alone. Ids are random: none can be guessed.

    An artifact is gone after ``keep`` seconds. All together take at most ``max_bytes``: the oldest
    make room for a new one. ``keep_all`` says that outputs are to be kept which the transcript
    holds whole, too. ``clean`` is what every text passes before it is written: the place where
    secrets are taken out. ``sweep`` is called now and then, to remove what expired elsewhere.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: float = KEEP_SECONDS,
        max_bytes: int = MAX_BYTES,
        keep_all: bool = False,
        clean: Callable[[str], str] = str,
        sweep: Callable[[], object] = lambda: None,
    ) -> None:
        self.folder = folder
        self.keep = keep
        self.max_bytes = max_bytes
        self.keep_all = keep_all
        self._clean = clean
        self.sweep = sweep

    def put(self, text: str) -> str | None:
        """Keeps ``text`` and returns its id, None where it is larger than all that may be kept.

        Raises `TranscriptError` where it cannot be written; nothing else is removed then.
        """
        data = self._clean(text).encode(errors="surrogatepass")
        if len(data) > self.max_bytes:
            return None
        key = secrets.token_hex(16)
        target = self.folder / key
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(target, flags, 0o600), "wb") as file:
                file.write(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)
            raise TranscriptError(
                f"an output could not be kept in {self.folder}: {error.strerror}",
                hint="free some space, and check the folder's permissions",
            ) from None
        self._make_room(key)
        self.sweep()
        return key

    def get(self, key: str) -> str | None:
        """The text of an artifact. None where there is none (any more), and where it cannot be
        read: whoever guesses learns nothing."""
        if not _ID.fullmatch(key):
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self.folder / key, flags), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or time.time() - found.st_mtime > self.keep:
                    return None
                return file.read().decode(errors="surrogatepass")
        except (OSError, ValueError):
            return None

    def expire(self, *, now: float | None = None, keep: float | None = None) -> int:
        """Removes artifacts older than ``keep`` seconds and returns how many there were.

        One that says it was written after ``now`` was written by a wrong clock: it counts as
        written now, so that it does not stay for ever.
        """
        now = time.time() if now is None else now
        limit = now - (self.keep if keep is None else keep)
        removed = 0
        for path, found in self._files():
            with contextlib.suppress(OSError):
                if found.st_mtime < limit:
                    path.unlink()
                    removed += 1
                elif found.st_mtime > now:
                    os.utime(path, (now, now))
        return removed

    def _make_room(self, newest: str) -> None:
        """Removes the oldest artifacts until the bound holds; never the newest."""
        files = sorted(self._files(), key=lambda item: item[1].st_mtime_ns)
        total = sum(found.st_size for _, found in files)
        for path, found in files:
            if total <= self.max_bytes:
                return
            if path.name != newest:
                with contextlib.suppress(OSError):
                    path.unlink()
                    total -= found.st_size

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """The artifacts in the folder, with what is known of each."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if _ID.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        yield Path(entry.path), entry.stat(follow_symlinks=False)


class Sweeper:
    """Removes expired artifacts from all sessions in a folder, also while a program runs on.

    ``clock`` is the wall clock and ``ticks`` one that never jumps, both in seconds. A wall clock
    that went back since the last time, or ahead by more than artifacts are kept, may be wrong, and
    would have everything removed: then nothing is, until it has gone on from there for
    `CLOCK_SETTLES`. So a clock that is soon set right costs nothing, and after a long pause without
    the program what is old goes an hour late.
    """

    def __init__(
        self,
        folder: Path,
        keep: float = KEEP_SECONDS,
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.keep = keep
        self._clock = clock
        self._ticks = ticks
        self._last: float | None = None

    def sweep_if_due(self) -> None:
        """Sweeps, unless that was done within `SWEEP_EVERY`."""
        if self._last is None or self._ticks() - self._last >= SWEEP_EVERY:
            self.sweep()

    def sweep(self) -> int:
        """Removes what has expired and returns how many artifacts that were."""
        self._last = self._ticks()
        now = self._clock()
        if not self.folder.is_dir() or not self._believed(now):
            return 0
        removed = 0
        with contextlib.suppress(OSError), os.scandir(self.folder) as sessions:
            for session in sessions:
                artifacts = os.path.join(session.path, "artifacts")  # noqa: PTH118 (there are many)
                if os.path.isdir(artifacts):  # noqa: PTH112
                    removed += ArtifactStore(Path(artifacts)).expire(now=now, keep=self.keep)
        return removed

    def _believed(self, now: float) -> bool:
        swept, doubted = self.folder / _SWEPT, self.folder / _DOUBTED
        last = _time_of(swept)
        if last is not None and not -CLOCK_SETTLES <= now - last <= self.keep:
            since = _time_of(doubted)
            if since is None or now < since:
                _set_time(doubted, now)
                return False
            if now - since < CLOCK_SETTLES:
                return False
        with contextlib.suppress(OSError):
            doubted.unlink(missing_ok=True)
        _set_time(swept, now)
        return True


def _time_of(path: Path) -> float | None:
    """When a mark was last set, None where it never was."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return None


def _set_time(path: Path, now: float) -> None:
    """Sets a mark, an empty file whose time is all that it says."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        file = os.open(path, flags, 0o600)
        try:
            os.utime(file, (now, now))
        finally:
            os.close(file)
