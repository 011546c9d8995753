"""Where programs are looked for, and which may be run: those that nobody else can have changed."""

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
"""The number of the user to whom the system's own files belong."""

HOMEBREW: Final = ("/opt/homebrew/bin", "/usr/local/bin")
"""Where Homebrew puts programs on a Mac. They belong to the user who installed it."""

_ADMIN: Final = 80
"""The number of macOS's group of administrators, who may become the system's user anyway.
Homebrew's folders and /Applications are theirs to write to."""

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
"""Programs of ``/usr/bin`` on a Mac that only start the one of the chosen developer tools. In a
sandbox they cannot find it."""

_CHOSEN: Final = "/var/db/xcode_select_link"
_DEVELOPER: Final = (
    "/Library/Developer/CommandLineTools",
    "/Applications/Xcode.app/Contents/Developer",
)
_BINARIES: Final = ("usr/bin", "Toolchains/XcodeDefault.xctoolchain/usr/bin")

Make = Literal["gnu", "bsd"]


class ProgramFile(Struct, frozen=True):
    """A program that was found.

    Attributes:
        path: its absolute path.
        make: whose options it takes, where GNU's and BSD's programs of a name differ.
        folders: the folders that it needs to see besides the system's.
    """

    path: str
    make: Make = "gnu"
    folders: tuple[str, ...] = ()


def trusted_folders(folders: Sequence[str] = PROGRAM_FOLDERS) -> tuple[str, ...]:
    """Those that are there, and that the system alone can write to."""
    return tuple(f for f in folders if Path(f).is_absolute() and _is_trusted(Path(f)))


def program(name: str, folders: Sequence[str]) -> str | None:
    """The absolute path of a program, None where none of the folders has one to be trusted."""
    paths = (path for path in _named(name, folders) if _is_trusted(path))
    return next(map(str, paths), None)


def find_program(
    name: str,
    folders: Sequence[str],
    own: Sequence[str] = (),
    writable: Sequence[Path] = (),
    *,
    platform: str = sys.platform,
    developer: Sequence[str] = _DEVELOPER,
) -> ProgramFile:
    """Find the program to run.

    Args:
        name: the program's name.
        folders: the system's folders of programs (`trusted_folders`).
        own: folders that the user trusts; on a Mac Homebrew's are looked through as well.
        writable: the roots that programs and tools may write to.
        platform: as `sys.platform` says it.
        developer: where Apple's developer tools may be, after the place that was chosen.

    Raises:
        PathAbsent: there is no such program, or nobody may trust it.
        PathRefused: it lies below a root that may be written to.
    """
    mac = platform == "darwin"
    found, is_shim = program(name, folders), False
    if found is not None and mac and name in _SHIMS and Path(found).parent == Path("/usr/bin"):
        found, is_shim = None, True
        for path in _developer_programs(name, developer):
            if _is_trusted(path, {SYSTEM, os.getuid()}, {_ADMIN}):
                _refuse_below(path, writable)
                return ProgramFile(str(path), "bsd", (str(path.parents[1]),))
    if found is not None:
        is_bsd = mac and Path(found).parent in (Path("/usr/bin"), Path("/bin"))
        return ProgramFile(found, "bsd" if is_bsd else "gnu")
    for path in _named(name, (*own, *(HOMEBREW if mac else ()))):
        if _is_trusted(path, {SYSTEM, os.getuid()}, {_ADMIN} if mac else ()):
            _refuse_below(path, writable)
            places = dict.fromkeys((str(path.parent), str(path.resolve().parent)))
            return ProgramFile(str(path), folders=tuple(places))
    if is_shim:
        raise PathAbsent(
            f"{name} is one of Apple's command line tools, which are not installed "
            "(xcode-select --install)"
        )
    looked = [*folders, *own]
    raise PathAbsent(f"{name} is not installed in {' or '.join(looked)}")


def _named(name: str, folders: Sequence[str]) -> Iterator[Path]:
    if not name or "/" in name or name.startswith((".", "-")) or not name.isprintable():
        return
    for folder in folders:
        path = Path(folder, name)
        if os.access(path, os.X_OK) and path.is_file():
            yield path


def _developer_programs(name: str, developer: Sequence[str]) -> Iterator[Path]:
    chosen = [os.path.realpath(_CHOSEN)] if os.path.islink(_CHOSEN) else []  # noqa: PTH114
    for folder in (*chosen, *developer):
        yield from _named(name, [str(Path(folder, inner)) for inner in _BINARIES])


def _refuse_below(path: Path, writable: Sequence[Path]) -> None:
    """Refuse a program that a tool could have written."""
    for place in {path, path.resolve()}:
        if any(root in place.parents for root in writable):
            raise PathRefused(
                f"{path.name} lies below a folder that may be written to (:rw): {path}"
            )


def _is_trusted(
    path: Path, owners: Collection[int] = (SYSTEM,), groups: Collection[int] = ()
) -> bool:
    """True if nobody but the owners and groups can change what stands at the path, where it leads
    to, or a folder above either."""
    try:
        real = path.resolve(strict=True)
        checked = {real, *real.parents, *path.parents}
        found = [place.stat() for place in checked]
    except (OSError, RuntimeError):
        return False
    return all(
        one.st_uid in owners
        and not one.st_mode & stat.S_IWOTH
        and (one.st_gid in groups or not one.st_mode & stat.S_IWGRP)
        for one in found
    )
