"""Peculiarities of macOS.

Forbidden folders, files in iCloud, late writes, few open files.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_PROTECTED_FOLDERS: Final = ("Desktop", "Documents", "Downloads", "Library/Mobile Documents")
"""Folders of a home that a program may see only once the person allowed it. The last is iCloud's.
"""

_DATALESS: Final = 0x4000_0000
"""SF_DATALESS of ``sys/stat.h``: the file's contents are in iCloud and not on this Mac.

Reading such a file fetches it, which takes any time.
"""

_F_GETPATH: Final = 50
_F_FULLFSYNC: Final = 51
"""Commands of ``fcntl`` from ``sys/fcntl.h``; Python has them on a Mac only."""

_PATH_BYTES: Final = 1024
"""MAXPATHLEN of ``sys/param.h``."""

WANTED_OPEN_FILES: Final = 4096
"""Open files that this process asks for.

A gateway with some hundred connections needs more than the 256 that launchd and terminals give a
program on a Mac. macOS refuses more than 10240.
"""


def permission_hint(
    error: OSError, path: str | os.PathLike[str], *, platform: str = sys.platform, home: str = "~"
) -> str | None:
    """Return what to do about an error of macOS's privacy settings, None for others.

    The settings give EPERM; a file's own rights give EACCES.
    """
    if platform != "darwin" or error.errno != errno.EPERM:
        return None
    root = Path(home).expanduser()
    protected = [root / name for name in _PROTECTED_FOLDERS] + [Path("/Volumes")]
    place = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would look at the folder
    if not any(place == folder or folder in place.parents for folder in protected):
        return None
    return (
        "macOS keeps this folder from the program that runs mlx-tools, such as the terminal: "
        "System Settings, Privacy & Security, Files and Folders (or Full Disk Access) allows it"
    )


def network_hint(number: int | None, *, is_local: bool, platform: str = sys.platform) -> str | None:
    """Return what to do if a Mac cannot reach an address of the local network."""
    if platform != "darwin" or number != errno.EHOSTUNREACH or not is_local:
        return None
    return (
        "is the machine on? If other programs reach it, macOS keeps the local network from this "
        "one: System Settings, Privacy & Security, Local Network, for the terminal"
    )


def is_dataless(status: os.stat_result) -> bool:
    """Return True if a file's contents are in iCloud and not on this Mac."""
    return bool(getattr(status, "st_flags", 0) & _DATALESS)


def real_case(
    fd: int,
    path: Path,
    *,
    platform: str = sys.platform,
    control: Callable[[int, int, Any], Any] | None = None,
) -> Path:
    """Return an open folder's path with its names as they are on the disk.

    A Mac's file system finds a folder in any case, but the rules of a sandbox compare names
    exactly.
    """
    if platform != "darwin":
        return path
    if control is None:
        import fcntl

        control = fcntl.fcntl
    try:
        name = control(fd, _F_GETPATH, bytes(_PATH_BYTES)).split(b"\0")[0]
    except OSError:
        return path
    return Path(os.fsdecode(name)) if name else path


def sync_fully(
    fd: int,
    *,
    platform: str = sys.platform,
    control: Callable[[int, int], Any] | None = None,
    sync: Callable[[int], None] = os.fsync,
) -> None:
    """Write an open file's data to the disk, so that it survives a power cut.

    On a Mac ``fsync`` only hands the data to the drive, which may hold it in its own memory.

    Raises:
        OSError: the data cannot be written.
    """
    if platform == "darwin":
        if control is None:
            import fcntl

            control = fcntl.fcntl
        try:
            control(fd, _F_FULLFSYNC)
            return
        except OSError:
            pass  # a file system without this command, such as one on the network
    sync(fd)


def raise_open_files(limits: Any = None, target: int = WANTED_OPEN_FILES) -> None:
    """Allow this process ``target`` open files, as far as the system lets it."""
    if limits is None:
        import resource as limits
    try:
        soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
        most = target if hard == limits.RLIM_INFINITY else min(target, hard)
        if soft != limits.RLIM_INFINITY and soft < most:
            limits.setrlimit(limits.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return
