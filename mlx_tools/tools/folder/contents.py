"""The files of a tool's folder: read whole, within bounds, and what identifies them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlx_tools.errors import ToolDefinitionError

MAX_FILES: Final = 1000
MAX_BYTES: Final = 20_000_000
MAX_DEPTH: Final = 20

_CACHES: Final = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")
LEFT_OUT: Final = frozenset((*_CACHES, ".git", ".DS_Store"))
"""What other programs leave in a folder; no part of the tool: not copied, and not in its digest."""


@dataclass(frozen=True, slots=True)
class File:
    """A file's bytes, and whether it may be executed."""

    data: bytes
    executable: bool


def read_files(path: Path) -> dict[str, File]:
    """All files below a folder, by their names in it. Raises ToolDefinitionError where they cannot
    be read, are too many or too large, or are anything but files and folders."""
    found: dict[str, File] = {}
    left = MAX_BYTES
    try:
        for name, at in _walk(path, "", MAX_DEPTH):
            found[name] = file = _read(at, left)
            left -= len(file.data)
            if len(found) > MAX_FILES:
                raise ToolDefinitionError(f"{path} holds more than {MAX_FILES} files")
    except OSError as error:
        where = error.filename or path
        raise ToolDefinitionError(f"{where} cannot be read: {error.strerror}") from None
    return found


def digest_of(contents: Mapping[str, File]) -> str:
    """SHA-256 of the files: their names, what is in them, and whether they may be executed."""
    whole = hashlib.sha256()
    for name in sorted(contents):
        file = contents[name]
        inner = hashlib.sha256(file.data).hexdigest()
        whole.update(f"{name!a} {int(file.executable)} {inner}\n".encode())
    return whole.hexdigest()


def write_files(contents: Mapping[str, File], to: Path) -> None:
    """Makes the folder ``to`` of these files, for this user alone. Raises OSError."""
    to.mkdir(mode=0o700)
    for name, file in contents.items():
        at = to / name
        at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(at, flags, 0o700 if file.executable else 0o600), "wb") as out:
            out.write(file.data)


def _walk(folder: Path, above: str, depth: int) -> Iterator[tuple[str, Path]]:
    if depth == 0:
        raise ToolDefinitionError(f"{folder} is more than {MAX_DEPTH} folders deep")
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name in LEFT_OUT:
            continue
        at = Path(entry.path)
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            kind = "a symbolic link" if entry.is_symlink() else "no regular file"
            raise ToolDefinitionError(
                f"{at} is {kind}", hint="a tool's folder holds files and folders alone"
            )
        name = above + entry.name
        if entry.is_dir():
            yield from _walk(at, f"{name}/", depth - 1)
        else:
            yield name, at


def _read(path: Path, left: int) -> File:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        data = file.read(left + 1) if stat.S_ISREG(mode) else b""
    if not stat.S_ISREG(mode):
        raise ToolDefinitionError(f"{path} is no regular file")
    if len(data) > left:
        raise ToolDefinitionError(f"a tool's folder holds at most {MAX_BYTES} bytes: {path}")
    return File(data, bool(mode & stat.S_IXUSR))
