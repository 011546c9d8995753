"""Where a file is that is to be changed: a folder, walked to and held open, and a name in it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from mlx_tools.store.private_names import folded
from mlx_tools.store.roots import Absent, Refused, Root, Unfit, identity_of

MAX_NEW_FOLDERS: Final = 32
"""Folders that one call may make; each is held open until the file is there."""

UNCHANGED: Final = "nothing was changed"

_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_NO_SYNC: Final = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF))
_REPOSITORY: Final = {
    **dict.fromkeys(("config", "config.worktree", "hooks"), ("HEAD",)),
    "head": ("config", "config.worktree", "hooks"),
}
"""Git takes any folder with a ``HEAD`` for a repository, and runs what its ``config`` names."""

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is or would be: a folder that is held open, and a name in it.

    ``names`` lead to it from the root, its own the last. ``writable`` is what the innermost root
    says that the folder lies in.
    """

    root: Root
    folder: int
    names: tuple[str, ...]
    writable: bool

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.names[-1]

    def exists(self) -> bool:
        """Whether anything has the name, be it a link."""
        return status_of(self.folder, self.name) is not None


@contextmanager
def place_of(
    root: Root, parts: Sequence[str], writable: Mapping[Identity, bool], *, make: bool = False
) -> Iterator[Place]:
    """The place of a path below the root, open while the block runs.

    ``writable`` says of each root whether it may be written to. With ``make`` missing folders are
    made, and removed again where the block raises. Raises Refused, Unfit or Absent.
    """
    if not parts:
        raise Unfit("this is a folder, not a file")
    made: list[tuple[int, str]] = []
    may = writable.get(root.identity, root.writable)
    current = os.dup(root.fd)
    try:
        for part in parts[:-1]:
            _check_repository(current, part)
            below = _entered(root, current, part, made if make else None)
            os.close(current)
            current = below
            may = writable.get(identity_of(os.fstat(current)), may)
        _check_repository(current, parts[-1])
        yield Place(root, current, tuple(parts), may)
        for parent, _ in made:
            sync(parent)
    except BaseException:
        for parent, name in reversed(made):
            with contextlib.suppress(OSError):  # somebody put something in: it stays
                os.rmdir(name, dir_fd=parent)
        raise
    finally:
        for parent, _ in made:
            os.close(parent)
        os.close(current)


def _entered(root: Root, parent: int, name: str, made: list[tuple[int, str]] | None) -> int:
    """A descriptor of a folder in an open one, which is made where it is missing."""
    if made is None:
        return root.enter(parent, name)
    with contextlib.suppress(Absent):
        return root.enter(parent, name)
    if len(made) >= MAX_NEW_FOLDERS:
        raise Refused(f"at most {MAX_NEW_FOLDERS} folders are made at once")
    try:
        os.mkdir(name, 0o777, dir_fd=parent)
    except FileExistsError:  # another made it meanwhile
        return root.enter(parent, name)
    except OSError as error:
        raise trouble(error, name) from None
    made.append((os.dup(parent), name))
    return root.enter(parent, name)


def _check_repository(folder: int, name: str) -> None:
    """Refuses to make, of a folder that is called something else, a repository that runs things."""
    for other in _REPOSITORY.get(folded(name), ()):
        if status_of(folder, other) is not None:
            raise Refused(f"{name} beside {other} is a repository's, and may run things")


def sync(folder: int) -> None:
    """Makes a folder's names last through a crash, where its file system can."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise Unfit(
                f"the change was made, and may not last through a crash: {error.strerror}"
            ) from None


def status_of(folder: int, name: str) -> os.stat_result | None:
    """The status of a name in an open folder, of a link itself; None where there is none."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None


def identity_at(folder: int, name: str) -> Identity | None:
    """What tells the thing of this name from every other, None where there is none."""
    status = status_of(folder, name)
    return None if status is None else identity_of(status)


def trouble(error: OSError, name: str) -> Exception:
    """What an error of the system means to somebody who wanted to change a file."""
    if error.errno in _NO_ROOM:
        return Unfit(f"the disk is full, or what you may use of it; {UNCHANGED}")
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return Refused(f"{name} may not be changed by this user ({error.strerror})")
        case errno.EIO:
            return Unfit(f"the disk failed (input/output error); {UNCHANGED}")
        case errno.ENAMETOOLONG:
            return Refused("a name in the path is too long")
        case errno.ENOENT:
            return Unfit(f"the folder of {name} was removed meanwhile; {UNCHANGED}")
    return Unfit(f"{name}: {error.strerror}; {UNCHANGED}")
