"""The files below a folder, found and opened without ever following a link."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from msgspec import Struct

from mlx_tools.errors import UsageError
from mlx_tools.macos import is_dataless, permission_hint
from mlx_tools.paths import expand_user

MAX_FILES: Final = 200_000
MAX_DEPTH: Final = 64
_SKIPPED: Final = frozenset(("__pycache__", "node_modules"))
_MARKERS: Final = frozenset(("pyvenv.cfg", "CACHEDIR.TAG"))
"""What stands in a folder that a program made for itself: a virtual environment, a cache
(https://bford.info/cachedir)."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Tell = Callable[[str, str], None]
"""Is told of a path that could not be looked at, and why."""


class WalkStart(Struct, frozen=True):
    """A folder that was named, or the folder of a file that was: ``only`` is that file's name.

    ``path`` is absolute, and holds no link.
    """

    path: Path
    only: str = ""

    @classmethod
    def named(cls, path_text: str | os.PathLike[str]) -> WalkStart:
        """The place of a path that a person named; links in it are theirs. Raises `UsageError`."""
        if not os.fspath(path_text):  # which `Path` would take for the folder one is in
            raise UsageError("an empty path cannot be added", hint="write . for this folder")
        try:
            path = expand_user(path_text).resolve(strict=True)
            kind = path.stat().st_mode
        except (OSError, RuntimeError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"{path_text} cannot be added: {why}") from None
        if stat.S_ISDIR(kind):
            return cls(path)
        if stat.S_ISREG(kind):
            return cls(path.parent, path.name)
        raise UsageError(f"{path_text} cannot be added: it is neither a folder nor a regular file")

    @property
    def prefix(self) -> str:
        """What the absolute paths of all that stands below begin with."""
        return f"{self.path}/".replace("//", "/")

    @contextmanager
    def opened(self, parts: Sequence[str], flags: int) -> Iterator[int]:
        """What stands below, opened name by name, none of them a link."""
        at = os.open(self.path, _FOLDER)
        try:
            for number, part in enumerate(parts):
                inner = os.open(part, flags if number == len(parts) - 1 else _FOLDER, dir_fd=at)
                os.close(at)
                at = inner
            yield at
        finally:
            os.close(at)


class WalkedFile(Struct, frozen=True):
    """A regular file; ``size`` is in bytes, ``stamp`` its `stamp_of`."""

    start: WalkStart
    parts: tuple[str, ...]
    size: int = 0
    stamp: str = ""

    @property
    def path(self) -> str:
        """The absolute path."""
        return self.start.prefix + "/".join(self.parts)

    @property
    def shown(self) -> str:
        """The path from the name of the folder on that was named."""
        named = () if self.start.only or not self.start.path.name else (self.start.path.name,)
        return "/".join((*named, *self.parts))

    def read(self, max_bytes: int) -> tuple[bytes, os.stat_result]:
        """At most ``max_bytes`` bytes, and what the system says of the file. Raises OSError, also
        where it is no regular file any more."""
        with self.start.opened(self.parts, _FILE) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(22, "it is no regular file")
            if is_dataless(status):
                raise OSError(5, "it is in iCloud and not on this Mac; open it there first")
            pieces, left = [], max_bytes
            while left > 0 and (piece := os.read(file, min(left, 1 << 20))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces), status


def stamp_of(status: os.stat_result) -> str:
    """What changes when a file is written: its time of modification, which a program may set back,
    and that of the change of its status, which none can."""
    return f"{status.st_mtime_ns} {status.st_ctime_ns}"


def files_of(
    start: WalkStart,
    tell: Tell,
    max_files: int = sys.maxsize,
    given_up: Callable[[], bool] = lambda: False,
) -> Iterator[WalkedFile]:
    """The regular files of a place, sorted by path. Hidden ones are passed over, and what no person
    wrote (``__pycache__``, ``node_modules``, virtual environments, caches); so are links.

    The walk ends after ``max_files`` entries of folders, whatever they are, and once ``given_up``,
    which is asked at each of them, says so."""
    if start.only:
        with start.opened((start.only,), _FILE) as file:
            seen = os.fstat(file)
        yield WalkedFile(start, (start.only,), seen.st_size, stamp_of(seen))
        return
    waiting: list[tuple[str, ...]] = [()]
    while waiting and max_files > 0 and not given_up():
        parts = waiting.pop()
        folders: list[str] = []
        try:
            with start.opened(parts, _FOLDER) as folder, os.scandir(folder) as entries:
                listed = takewhile(lambda _: not given_up(), islice(entries, max_files))
                inside = sorted(listed, key=lambda one: one.name)
                max_files -= len(inside)
                if parts and any(entry.name in _MARKERS for entry in inside):
                    continue
                for entry in inside:
                    if entry.name.startswith(".") or entry.name in _SKIPPED:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        seen = entry.stat(follow_symlinks=False)
                        yield WalkedFile(start, (*parts, entry.name), seen.st_size, stamp_of(seen))
        except OSError as error:
            place = start.prefix + "/".join(parts)
            hint = permission_hint(error, place)
            reason = f"it cannot be looked at: {error.strerror}"
            tell(place, f"{reason} ({hint})" if hint else reason)
            continue
        if len(parts) < MAX_DEPTH:
            waiting += ((*parts, name) for name in reversed(folders))
        elif folders:
            tell(start.prefix + "/".join(parts), "it is too deep")
