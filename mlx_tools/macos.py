"""The ways of macOS with files: what it forbids, keeps in iCloud, and writes late."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_GUARDED: Final = ("Desktop", "Documents", "Downloads", "Library/Mobile Documents")
"""The folders of a home that a program may see once the person allowed it. The last is iCloud's."""

_DATALESS: Final = 0x4000_0000
"""SF_DATALESS of ``sys/stat.h``: the file's contents are in iCloud and not on this Mac. Reading it
fetches them, which takes any time."""

_F_GETPATH: Final = 50
_F_FULLFSYNC: Final = 51
"""Commands of ``fcntl`` from ``sys/fcntl.h``, which Python has on a Mac alone."""

_PATH_BYTES: Final = 1024
"""MAXPATHLEN."""

OPEN_FILES: Final = 4096
"""A gateway with some hundred connections needs more than the 256 that launchd and terminals give
a program on a Mac; macOS refuses more than 10240."""


def permission_hint(
    error: OSError, path: str | os.PathLike[str], *, platform: str = sys.platform, home: str = "~"
) -> str | None:
    """Return what to do about an error that macOS's privacy settings cause, None for others.

    They are told from a file's own rights: those give EACCES, the settings EPERM.
    """
    if platform != "darwin" or error.errno != errno.EPERM:
        return None
    root = Path(home).expanduser()
    guarded = [root / name for name in _GUARDED] + [Path("/Volumes")]
    place = Path(os.path.abspath(path))  # noqa: PTH100 - it may not be looked at
    if not any(place == folder or folder in place.parents for folder in guarded):
        return None
    return (
        "macOS keeps this folder from the program that runs mlx-tools, such as the terminal: "
        "System Settings, Privacy & Security, Files and Folders (or Full Disk Access) allows it"
    )


def network_hint(number: int | None, *, is_local: bool, platform: str = sys.platform) -> str | None:
    """Return what to do about an address of the local network that cannot be reached on a Mac."""
    if platform != "darwin" or number != errno.EHOSTUNREACH or not is_local:
        return None
    return (
        "is the machine on? If other programs reach it, macOS keeps the local network from this "
        "one: System Settings, Privacy & Security, Local Network, for the terminal"
    )


def is_dataless(status: os.stat_result) -> bool:
    """Return whether a file's contents are in iCloud and not on this Mac."""
    return bool(getattr(status, "st_flags", 0) & _DATALESS)


def real_case(
    fd: int,
    path: Path,
    *,
    platform: str = sys.platform,
    control: Callable[[int, int, Any], Any] | None = None,
) -> Path:
    """Return an open folder's path as its names are written on the disk.

    A Mac's file system finds a folder in any case; a sandbox's rules are about names as written.
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
    """Get an open file's data to the disk, so that a power cut does not take it back.

    On a Mac ``fsync`` hands it to the drive alone, which may keep it in its own memory. Raises
    OSError.
    """
    if platform == "darwin":
        if control is None:
            import fcntl

            control = fcntl.fcntl
        try:
            control(fd, _F_FULLFSYNC)
            return
        except OSError:
            pass  # a file system that knows no such thing, as one on the network
    sync(fd)


def raise_open_files(limits: Any = None, wanted: int = OPEN_FILES) -> None:
    """Allow this process more open files, as far as the system lets it."""
    if limits is None:
        import resource as limits
    try:
        soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
        most = wanted if hard == limits.RLIM_INFINITY else min(wanted, hard)
        if soft != limits.RLIM_INFINITY and soft < most:
            limits.setrlimit(limits.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return
