"""Where programs are found: in a few folders of the system's own, never on ``PATH``."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FOLDERS: Final = ("/usr/bin", "/bin", "/usr/local/bin", "/opt/homebrew/bin")

SYSTEM: Final = 0
"""The number of the user to whom the system's own files belong."""


def trusted_folders(folders: Sequence[str] = FOLDERS) -> tuple[str, ...]:
    """Those that are there, and that the system alone can write to."""
    return tuple(f for f in folders if Path(f).is_absolute() and _trusted(Path(f)))


def program(name: str, folders: Sequence[str]) -> str | None:
    """The absolute path of a program, None where none of the folders has one to be trusted."""
    if not name or "/" in name or name.startswith((".", "-")) or not name.isprintable():
        return None
    for folder in folders:
        path = Path(folder, name)
        if os.access(path, os.X_OK) and path.is_file() and _trusted(path):
            return str(path)
    return None


def state(path: str) -> str:
    """Identifies a program's file as it is now."""
    found = os.stat(path)  # noqa: PTH116 - the fields of one look
    return f"{Path(path).resolve()} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _trusted(path: Path) -> bool:
    """Whether nobody but the system can change what stands at the path, where it leads to, or a
    folder above either."""
    try:
        real = path.resolve(strict=True)
        checked = {real, *real.parents, *path.parents}
        return all(_is_systems(place.stat()) for place in checked)
    except (OSError, RuntimeError):
        return False


def _is_systems(status: os.stat_result) -> bool:
    return status.st_uid == SYSTEM and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
