"""The files below a folder, found and opened without following a link."""

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
"""Files of one import. A choice: more mean a wrong folder, such as a home folder."""
MAX_DEPTH: Final = 64
_SKIPPED: Final = frozenset(("__pycache__", "node_modules"))
_MARKERS: Final = frozenset(("pyvenv.cfg", "CACHEDIR.TAG"))
"""Files that mark a folder as one of a program: a virtual environment, or a cache
(https://bford.info/cachedir)."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Tell = Callable[[str, str], None]
"""Called with a path that could not be read, and the reason."""


class WalkStart(Struct, frozen=True):
    """A named folder, or the folder of a named file."""

    path: Path
    """The absolute path, without links."""
    only: str = ""
    """The name of the file, empty for a folder."""

    @classmethod
    def from_path(cls, path_text: str | os.PathLike[str]) -> WalkStart:
        """Return the start of a path that a person named; its own links are followed.

        Raises:
            UsageError: it is neither a folder nor a regular file.
        """
        if not os.fspath(path_text):  # `Path` would read it as the working directory
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
        """The beginning of the absolute paths of all entries below."""
        return f"{self.path}/".replace("//", "/")

    @contextmanager
    def open_path(self, parts: Sequence[str], flags: int) -> Iterator[int]:
        """Yield a descriptor of an entry below, opened name by name, without links."""
        folder = os.open(self.path, _FOLDER)
        try:
            for number, part in enumerate(parts):
                next_folder = os.open(
                    part, flags if number == len(parts) - 1 else _FOLDER, dir_fd=folder
                )
                os.close(folder)
                folder = next_folder
            yield folder
        finally:
            os.close(folder)


class WalkedFile(Struct, frozen=True):
    """A regular file."""

    start: WalkStart
    parts: tuple[str, ...]
    size: int = 0
    """Its bytes."""
    stamp: str = ""
    """Its stamp (`make_stamp`)."""

    @property
    def path(self) -> str:
        """The absolute path."""
        return self.start.prefix + "/".join(self.parts)

    @property
    def display_path(self) -> str:
        """The path from the name of the named folder on."""
        start_name = () if self.start.only or not self.start.path.name else (self.start.path.name,)
        return "/".join((*start_name, *self.parts))

    def read(self, max_bytes: int) -> tuple[bytes, os.stat_result]:
        """Return at most ``max_bytes`` bytes, and the status of the file.

        Raises:
            OSError: it cannot be read, or is no longer a regular file.
        """
        with self.start.open_path(self.parts, _FILE) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(22, "it is no regular file")
            if is_dataless(status):
                raise OSError(5, "it is in iCloud and not on this Mac; open it there first")
            pieces, bytes_left = [], max_bytes
            while bytes_left > 0 and (piece := os.read(file, min(bytes_left, 1 << 20))):
                pieces.append(piece)
                bytes_left -= len(piece)
            return b"".join(pieces), status


def make_stamp(status: os.stat_result) -> str:
    """Return a text that changes when a file is written.

    It has the time of modification, which a program can set back, and the time of the last change
    of status, which no program can set back.
    """
    return f"{status.st_mtime_ns} {status.st_ctime_ns}"


def walk_files(
    start: WalkStart,
    tell: Tell,
    max_files: int = sys.maxsize,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[WalkedFile]:
    """Yield the regular files of a place, sorted by path.

    Links, hidden files and files of programs (``__pycache__``, ``node_modules``, virtual
    environments, caches) are left out. The walk ends after ``max_files`` entries of any kind, or
    when ``should_stop`` returns True, which is called at each entry.
    """
    if start.only:
        with start.open_path((start.only,), _FILE) as file:
            status = os.fstat(file)
        yield WalkedFile(start, (start.only,), status.st_size, make_stamp(status))
        return
    pending: list[tuple[str, ...]] = [()]
    while pending and max_files > 0 and not should_stop():
        parts = pending.pop()
        folders: list[str] = []
        try:
            with start.open_path(parts, _FOLDER) as folder, os.scandir(folder) as entries:
                scanned = takewhile(lambda _: not should_stop(), islice(entries, max_files))
                sorted_entries = sorted(scanned, key=lambda dir_entry: dir_entry.name)
                max_files -= len(sorted_entries)
                if parts and any(entry.name in _MARKERS for entry in sorted_entries):
                    continue
                for entry in sorted_entries:
                    if entry.name.startswith(".") or entry.name in _SKIPPED:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue  # it was removed meanwhile
                        yield WalkedFile(
                            start, (*parts, entry.name), status.st_size, make_stamp(status)
                        )
        except OSError as error:
            place = start.prefix + "/".join(parts)
            hint = permission_hint(error, place)
            reason = f"it cannot be looked at: {error.strerror}"
            tell(place, f"{reason} ({hint})" if hint else reason)
            continue
        if len(parts) < MAX_DEPTH:
            pending += ((*parts, name) for name in reversed(folders))
        elif folders:
            tell(start.prefix + "/".join(parts), "it is too deep")
