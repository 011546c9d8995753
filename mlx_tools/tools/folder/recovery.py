"""What a change of the tools folder leaves there when it is killed, and how that is put right.

A tool is replaced by two renames, and between them it has no folder of its name. Who changes the
folder has it to themselves meanwhile; what is left there when nobody has it was left by somebody
who was killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.tools.folder.contents import digest_of, read_files

Kind = Literal["draft", "old", "gone"]
"""What is not yet a tool, what is no longer one while another takes its place, what is removed."""

_LEFT: Final = re.compile(r"\.(?P<name>.+)\.(?P<kind>draft|old|gone)\.[0-9a-f]{16}")
_LOOK: Final = 0.02


def hidden(folder: Path, name: str, kind: Kind) -> Path:
    """A path beside a tool's folder that nothing has, and that is passed over as a tool."""
    return folder / f".{name}.{kind}.{secrets.token_hex(8)}"


def any_left(names: Iterable[str]) -> bool:
    """Whether one of these names in the folder was given by `hidden`."""
    return any(_LEFT.fullmatch(name) for name in names)


@contextlib.contextmanager
def alone(folder: Path, seconds: float, *, looks: bool = False) -> Iterator[bool]:
    """Inside, nobody else is in here for the same folder; False where the file system cannot tell.

    With ``looks`` others may be who only look too. Raises OSError for a folder that cannot be
    opened, and BlockingIOError where somebody else is in here for so many seconds.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kind = fcntl.LOCK_SH if looks else fcntl.LOCK_EX
        yield _locked(descriptor, kind, time.monotonic() + seconds)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                why = "another program is changing the tools folder"
                raise BlockingIOError(errno.EAGAIN, why) from None
            time.sleep(_LOOK)
        except OSError:
            return False
        else:
            return True


def put_right(folder: Path, trusted: Mapping[str, str]) -> None:
    """Has each tool that a change left hidden be whole again, and drops what is left of others.
    ``trusted`` has the digest of what is trusted, by path. To be called where one is `alone`. What
    the system refuses is left as it is."""
    for path in sorted(folder.iterdir()):
        left = _LEFT.fullmatch(path.name)
        if left is None:
            continue
        with contextlib.suppress(OSError):
            if left["kind"] == "old":
                _put_back(path, folder / left["name"], trusted)
            else:
                drop(path)


def _put_back(old: Path, path: Path, trusted: Mapping[str, str]) -> None:
    """What was to be replaced: again in its place where nothing, or nothing that is trusted, has
    taken it."""
    if not os.path.lexists(path):
        old.rename(path)
        return
    digest = trusted.get(str(path))
    if _digest(path) == digest:
        drop(old)
    elif _digest(old) == digest:  # the other was not trusted yet
        gone = hidden(path.parent, path.name, "gone")
        path.rename(gone)
        old.rename(path)
        drop(gone)


def _digest(path: Path) -> str:
    try:
        return digest_of(read_files(path))
    except ToolDefinitionError:
        return ""


def drop(path: Path) -> None:
    """Deletes what has this path, if anything has. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
