"""Finds programs, and checks that no other user can have changed them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from mlx_tools.store import PathAbsent, PathRefused

PROGRAM_FOLDERS: Final = ("/usr/bin", "/bin", "/usr/local/bin", "/opt/homebrew/bin")
SYSTEM: Final = 0
"""The user id that owns the system's own files."""

HOMEBREW: Final = ("/opt/homebrew/bin", "/usr/local/bin")
"""Homebrew's folders of programs on a Mac. They belong to the user who installed it."""

_ADMIN: Final = 80
"""The id of macOS's group of administrators, which may write to Homebrew's folders and to
/Applications. It is trusted, since administrators can become the system's user anyway."""

_SHIMS: Final = frozenset(
    (
        *("ar", "c++", "c89", "c99", "cc", "clang", "clang++", "cpp", "flex", "g++", "gcc", "git"),
        *(
            "gm4",
            "gnumake",
            "ld",
            "lldb",
            "llvm-g++",
            "lex",
            "m4",
            "make",
            "nm",
            "objdump",
            "otool",
        ),
        *("pip3", "python3", "ranlib", "size", "strings", "strip", "swift", "swiftc", "yacc"),
    )
)
"""Programs of ``/usr/bin`` on a Mac that only start the real program of the selected developer
tools. In a sandbox they cannot find it."""

_SELECTED_LINK: Final = "/var/db/xcode_select_link"
_DEVELOPER: Final = (
    "/Library/Developer/CommandLineTools",
    "/Applications/Xcode.app/Contents/Developer",
)
_BINARIES: Final = ("usr/bin", "Toolchains/XcodeDefault.xctoolchain/usr/bin")

Make = Literal["gnu", "bsd"]


class ProgramFile(Struct, frozen=True):
    """The file of a program."""

    path: str
    """Its absolute path."""
    make: Make = "gnu"
    """The make of its options, if GNU's and BSD's programs of this name differ."""
    folders: tuple[str, ...] = ()
    """The folders that it needs to see besides the system's."""


def list_trusted_folders(folders: Sequence[str] = PROGRAM_FOLDERS) -> tuple[str, ...]:
    """Return the existing folders that only the system can write to."""
    return tuple(f for f in folders if Path(f).is_absolute() and _is_trusted(Path(f)))


def find_trusted(name: str, folders: Sequence[str]) -> str | None:
    """Return the absolute path of a trusted program, None if no folder has one."""
    paths = (path for path in _find_named(name, folders) if _is_trusted(path))
    return next(map(str, paths), None)


def find_program(
    name: str,
    folders: Sequence[str],
    user_folders: Sequence[str] = (),
    writable: Sequence[Path] = (),
    *,
    platform: str = sys.platform,
    developer: Sequence[str] = _DEVELOPER,
) -> ProgramFile:
    """Find the program to run.

    Args:
        name: the program's name.
        folders: the system's folders of programs (`list_trusted_folders`).
        user_folders: folders that the user trusts; on a Mac Homebrew's are searched too.
        writable: the roots that programs and tools may write to.
        platform: the system, as in `sys.platform`.
        developer: places of Apple's developer tools, after the selected one.

    Raises:
        PathAbsent: there is no such program, or none that can be trusted.
        PathRefused: it is below a root that may be written to.
    """
    mac = platform == "darwin"
    path_text, is_shim = find_trusted(name, folders), False
    if (
        path_text is not None
        and mac
        and name in _SHIMS
        and Path(path_text).parent == Path("/usr/bin")
    ):
        path_text, is_shim = None, True
        for path in _iter_developer_programs(name, developer):
            if _is_trusted(path, {SYSTEM, os.getuid()}, {_ADMIN}):
                _refuse_below(path, writable)
                return ProgramFile(str(path), "bsd", (str(path.parents[1]),))
    if path_text is not None:
        is_bsd = mac and Path(path_text).parent in (Path("/usr/bin"), Path("/bin"))
        return ProgramFile(path_text, "bsd" if is_bsd else "gnu")
    for path in _find_named(name, (*user_folders, *(HOMEBREW if mac else ()))):
        if _is_trusted(path, {SYSTEM, os.getuid()}, {_ADMIN} if mac else ()):
            _refuse_below(path, writable)
            places = dict.fromkeys((str(path.parent), str(path.resolve().parent)))
            return ProgramFile(str(path), folders=tuple(places))
    if is_shim:
        raise PathAbsent(
            f"{name} is one of Apple's command line tools, which are not installed "
            "(xcode-select --install)"
        )
    searched = [*folders, *user_folders]
    raise PathAbsent(f"{name} is not installed in {' or '.join(searched)}")


def _find_named(name: str, folders: Sequence[str]) -> Iterator[Path]:
    if not name or "/" in name or name.startswith((".", "-")) or not name.isprintable():
        return
    for folder in folders:
        path = Path(folder, name)
        if os.access(path, os.X_OK) and path.is_file():
            yield path


def _iter_developer_programs(name: str, developer: Sequence[str]) -> Iterator[Path]:
    chosen = [os.path.realpath(_SELECTED_LINK)] if os.path.islink(_SELECTED_LINK) else []  # noqa: PTH114
    for folder in (*chosen, *developer):
        yield from _find_named(name, [str(Path(folder, inner)) for inner in _BINARIES])


def _refuse_below(path: Path, writable: Sequence[Path]) -> None:
    """Raise PathRefused for a program that a tool could have written."""
    for place in {path, path.resolve()}:
        if any(root in place.parents for root in writable):
            raise PathRefused(
                f"{path.name} lies below a folder that may be written to (:rw): {path}"
            )


def _is_trusted(
    path: Path, owners: Collection[int] = (SYSTEM,), groups: Collection[int] = ()
) -> bool:
    """Return whether only the owners and groups can change the path.

    This includes the target of a link, and the folders above both.
    """
    try:
        target = path.resolve(strict=True)
        checked = {target, *target.parents, *path.parents}
        states = [place.stat() for place in checked]
    except (OSError, RuntimeError):
        return False
    return all(
        state.st_uid in owners
        and not state.st_mode & stat.S_IWOTH
        and (state.st_gid in groups or not state.st_mode & stat.S_IWGRP)
        for state in states
    )
