"""Changes of files below a folder, and of nothing outside it.

The folder of the file is opened name by name and stays open (`open_place`). All changes then use
names in that open folder and follow no link, even if others change the tree meanwhile. New content
is written to a temporary file next to the target, which is renamed to the target's name. So the
target has the old content or the new content, never a part.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from mlx_tools.macos import sync_fully
from mlx_tools.store.artifacts import Change, UndoStore
from mlx_tools.store.exchange import exchange, is_open_for_writing
from mlx_tools.store.roots import (
    Identity,
    PathAbsent,
    PathRefused,
    Root,
    WrongFileKind,
    fold_name,
    get_identity,
)
from mlx_tools.store.transcript import write_all

MAX_NEW_FOLDERS: Final = 32
"""Folders that one call may make. Each stays open until the file is written."""

MAX_UNDO_BYTES: Final = 10_000_000
"""The size of the largest file whose old content is stored for undo."""

MAX_COMPARED_BYTES: Final = 1_000_000_000
"""The size of the largest file that can be replaced or deleted on approval.

The whole file has to be read, to check that it is still the file that was approved."""

_MAX_SWAPS: Final = 8
"""Attempts to restore a file while other programs replace it. Two are rare already."""

ABSENT: Final = "absent"
"""The state of a file that does not exist."""
_UNCHANGED: Final = "nothing was changed"

_DISK_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_NO_SYNC: Final = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF))
_NO_LINKS: Final = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS))
_REPOSITORY: Final = {
    **dict.fromkeys(("config", "config.worktree", "hooks"), ("HEAD",)),
    "head": ("config", "config.worktree", "hooks"),
}
"""Names that make a repository together with one of the names after them.

Git takes any folder with a ``HEAD`` for a repository, and runs programs that its ``config``
names."""


class NameTaken(WrongFileKind):
    """A new file was to be made, but a file of this name exists."""


class Place(Struct, frozen=True):
    """The place of a file that may or may not exist: an open folder and a name in it."""

    root: Root
    folder: int
    """A descriptor of the folder."""
    names: tuple[str, ...]
    """The path below the root; the last name is the file's."""
    writable: bool
    """The flag of the innermost root that the folder is in."""
    new_folders: int = 0
    """The number of folders that were made for the file."""

    @property
    def name(self) -> str:
        """The name of the file in its folder."""
        return self.names[-1]


@contextlib.contextmanager
def open_place(
    root: Root, parts: Sequence[str], writable: Mapping[Identity, bool], *, make: bool = False
) -> Iterator[Place]:
    """Open the place of a path below the root while the block runs.

    Args:
        root: the folder that the path begins in.
        parts: the names of the path.
        writable: for each root, True if it may be written to.
        make: True to make missing folders. They are removed again if the block raises.

    Raises:
        PathRefused: the path may not be opened.
        WrongFileKind: a part of the path is no folder.
        PathAbsent: a folder is missing.
    """
    if not parts:
        raise WrongFileKind("this is a folder, not a file")
    root.check_listed(parts)
    made: list[tuple[int, str]] = []
    may = writable.get(root.identity, root.writable)
    # A copy, so that the loop can close each folder after use without closing the root.
    current = os.dup(root.fd)
    try:
        for part in parts[:-1]:
            _check_repository(current, part)
            below = _enter_or_make(root, current, part, made if make else None)
            os.close(current)
            current = below
            may = writable.get(get_identity(os.fstat(current)), may)
        _check_repository(current, parts[-1])
        yield Place(root, current, tuple(parts), may, len(made))
        # `write_file` syncs the new file. Here the names of the new folders are synced.
        for parent, _ in made:
            _sync(parent)
    except BaseException:
        for parent, name in reversed(made):
            with contextlib.suppress(OSError):  # it stays if somebody put a file into it
                os.rmdir(name, dir_fd=parent)
        raise
    finally:
        for parent, _ in made:
            os.close(parent)
        os.close(current)


def _enter_or_make(
    root: Root, parent: int, name: str, created_entries: list[tuple[int, str]] | None
) -> int:
    """Return a descriptor of a folder in an open folder.

    Make it if it is missing and ``created_entries`` is a list, which gets an entry for it.
    """
    if created_entries is None:
        return root.enter(parent, name)
    with contextlib.suppress(PathAbsent):
        return root.enter(parent, name)
    if len(created_entries) >= MAX_NEW_FOLDERS:
        raise PathRefused(f"at most {MAX_NEW_FOLDERS} folders are made at once")
    try:
        os.mkdir(name, 0o777, dir_fd=parent)
    except FileExistsError:  # another made it meanwhile
        return root.enter(parent, name)
    except OSError as error:
        raise _change_error(error, name) from None
    # The parent stays open until the end: if the change fails, the folder is removed by its name in
    # that parent, not by a path.
    created_entries.append((os.dup(parent), name))
    return root.enter(parent, name)


def _check_repository(folder: int, name: str) -> None:
    """Refuse to turn a folder of another name into a repository that runs programs."""
    for other in _REPOSITORY.get(fold_name(name), ()):
        if get_status(folder, other) is not None:
            raise PathRefused(f"{name} beside {other} is a repository's, and may run things")


def _sync(folder: int) -> None:
    """Flush a folder's names to the disk, if its file system can."""
    try:
        sync_fully(folder)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise WrongFileKind(
                f"the change was made, and may not last through a crash: {error.strerror}"
            ) from None


def get_status(folder: int, name: str) -> os.stat_result | None:
    """Return the status of a name in an open folder, None if it does not exist.

    For a link it is the status of the link itself.
    """
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None


def _change_error(error: OSError, name: str) -> Exception:
    """Return the exception for an error of the system when a file is changed."""
    if error.errno in _DISK_FULL:
        return WrongFileKind(f"the disk is full, or what you may use of it; {_UNCHANGED}")
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return PathRefused(f"{name} may not be changed by this user ({error.strerror})")
        case errno.EIO:
            return WrongFileKind(f"the disk failed (input/output error); {_UNCHANGED}")
        case errno.ENAMETOOLONG:
            return PathRefused("a name in the path is too long")
        case errno.ENOENT:
            return WrongFileKind(f"the folder of {name} was removed meanwhile; {_UNCHANGED}")
    return WrongFileKind(f"{name}: {error.strerror}; {_UNCHANGED}")


def digest_content(content: bytes | int | None) -> str:
    """Return the state of a file's content: a hash of its bytes, or `ABSENT`.

    Args:
        content: the bytes, or a descriptor of a file, which is read to its end; None if there is no
            file.

    Raises:
        WrongFileKind: the file is too large to be compared.
    """
    if content is None:
        return ABSENT
    hashed, offset = hashlib.sha256(content if isinstance(content, bytes) else b""), 0
    while isinstance(content, int):
        if max(offset, os.fstat(content).st_size) > MAX_COMPARED_BYTES:
            raise WrongFileKind(
                f"the file is larger than {MAX_COMPARED_BYTES} bytes; it is left as it is"
            )
        # 256 KiB at a time, by offset: the caller may need the descriptor's position.
        piece = os.pread(content, 1 << 18, offset)
        if not piece:
            break
        hashed.update(piece)
        offset += len(piece)
    return f"file sha256:{hashed.hexdigest()}"


def open_present(place: Place) -> int | None:
    """Return a descriptor of a file that may be changed, None if there is no file.

    Raises:
        PathRefused: the file may not be changed.
        WrongFileKind: the place is no file.
    """
    status = get_status(place.folder, place.name)
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise WrongFileKind(f"{place.name} is a folder, not a file")
    try:
        fd = place.root.open_last(place.folder, place.name)
    except PathAbsent:
        return None
    # A rename needs no write permission for the file itself. It is checked here because a file
    # without it is not meant to be replaced.
    effective = os.access in os.supports_effective_ids
    may = os.access(place.name, os.W_OK, dir_fd=place.folder, effective_ids=effective)
    wrong = None if may else "may not be written to by this user"
    if not os.fstat(fd).st_mode & 0o222:  # holds for the superuser, too, who may write any file
        wrong = "is marked read-only"
    if wrong is not None:
        os.close(fd)
        raise PathRefused(f"{place.name} {wrong}")
    return fd


def write_file(
    place: Place,
    content: bytes | None,
    *,
    new: bool = False,
    expected: str | None,
    old_state: str = "it was approved",
    is_cancelled: Callable[[], bool] = lambda: False,
    undo: UndoStore | None = None,
    mode: int = 0,
) -> bool:
    """Make a file, replace its content in one step, or delete it.

    Args:
        place: the place of the file.
        content: the new content, None to delete the file.
        new: True if there must be no file yet.
        expected: the state (`digest_content`) that the file must be in, None for any.
        old_state: when the file was in that state, for messages.
        is_cancelled: called last, directly before the change.
        undo: where the old content is stored before anything is changed.
        mode: permissions of a new file, 0 for the usual ones.

    Returns:
        True if there was a file before.

    Raises:
        PathRefused: the file may not be changed, or another program changed it.
        WrongFileKind: the place is no file, or the change failed.
        PathAbsent: there is no file to delete.
        In each case the old content is there, and nothing else.
    """
    before, old = _check_state(place, expected, old_state, whole=undo is not None)
    if new and before is not None:
        raise NameTaken(f"there is a file {place.name} already")
    if content is None and before is None:
        raise PathAbsent(f"there is no {place.name}")
    with (
        _keep_old_state(place, before, old, digest_content(content), undo) as held,
        _raise_change_errors(place),
    ):
        # The new content is on disk before the second check, so that the check comes directly
        # before the change.
        temporary = None if content is None else _temporary(place, before, content, mode)
        try:
            now, _ = _check_state(place, expected or held, old_state)
            # It must be the same file as at the first check, and the temporary file must be the one
            # that was written.
            if _identity(now) != _identity(before) or (
                temporary and _identity(get_status(place.folder, temporary[0])) != temporary[1]
            ):
                raise PathRefused(f"{place.name} was replaced by something else; {_UNCHANGED}")
            if is_cancelled():
                raise WrongFileKind(f"the call came to its end before; {_UNCHANGED}")
            if temporary is None:
                _remove(place, _identity(before), expected or held)
            elif now is None:
                link_new(place, temporary[0])
            else:
                _replace(
                    place, temporary, digest_content(content), _identity(before), expected or held
                )
        finally:
            if temporary is not None:
                with contextlib.suppress(OSError):  # it does not exist any more if it was renamed
                    os.unlink(temporary[0], dir_fd=place.folder)
    # After the rename: the new name must survive a crash as well as the content.
    _sync(place.folder)
    return before is not None


@contextlib.contextmanager
def _raise_change_errors(place: Place) -> Iterator[None]:
    """Raise errors of the system, within the block, as those of this module."""
    try:
        yield
    except FileExistsError:
        raise PathRefused(f"a {place.name} has been made meanwhile; {_UNCHANGED}") from None
    except OSError as error:
        raise _change_error(error, place.name) from None


@contextlib.contextmanager
def _keep_old_state(
    place: Place,
    old_stat: os.stat_result | None,
    content: bytes | None,
    new_state: str,
    undo: UndoStore | None,
) -> Iterator[str | None]:
    """Store the old content of a file while the block changes it.

    Yields the state that was stored, None if nothing was stored. The block must change nothing
    else. If it raises an error of this module, the file is unchanged, and the copy is removed.
    """
    if undo is None or content is None:
        yield None
        return
    state = ABSENT if old_stat is None else digest_content(content)
    if state == new_state:
        yield state
        return
    try:
        change = Change(
            root=str(place.root.path),
            inode=place.root.identity[1],
            names=place.names,
            old_state=state,
            new_state=new_state,
            mode=0 if old_stat is None else stat.S_IMODE(old_stat.st_mode),
            new_folders=place.new_folders,
        )
        key = undo.keep_old(change, content)
    except OSError as error:
        raise WrongFileKind(
            f"the old content of {place.name} cannot be kept for undo ({error.strerror}); "
            f"{_UNCHANGED}"
        ) from None
    try:
        yield state
    except (PathRefused, WrongFileKind, PathAbsent):  # others may be raised after the change
        undo.forget(key)
        raise


def _check_state(
    place: Place, expected: str | None, old_state: str, *, whole: bool = False
) -> tuple[os.stat_result | None, bytes | None]:
    """Check the file's state. Return its status and its content.

    The status is None if there is no file. The content is None without ``whole``, and if it is too
    large for undo.
    """
    with _open_place(place) as fd:
        if expected is not None and digest_content(fd) != expected:
            raise PathRefused(f"{place.name} has changed since {old_state}; {_UNCHANGED}")
        if fd is None:
            return None, b""
        content = None
        if whole:
            with os.fdopen(os.dup(fd), "rb") as file:
                content = file.read(MAX_UNDO_BYTES + 1)
        kept = content is not None and len(content) <= MAX_UNDO_BYTES
        return os.fstat(fd), content if kept else None


@contextlib.contextmanager
def _open_place(place: Place) -> Iterator[int | None]:
    fd = open_present(place)
    try:
        with _raise_change_errors(place):
            yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _temporary_name() -> str:
    return f".mlx-tools-{secrets.token_hex(16)}.tmp"


def _temporary(
    place: Place, old_stat: os.stat_result | None, content: bytes, mode: int
) -> tuple[str, Identity]:
    """Write the content to a new file next to the target, and flush it to the disk.

    Return the file's name, which nobody can guess, and its identity. If this raises, the file does
    not exist.
    """
    name = _temporary_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    usual = old_stat is None and not mode
    fd = os.open(name, flags, 0o666 if usual else 0o600, dir_fd=place.folder)
    try:
        try:
            write_all(fd, content)
            if old_stat is not None:
                _copy_owner_and_mode(fd, old_stat)
            elif mode:
                os.fchmod(fd, mode & 0o777)
            # Before the rename: otherwise a power cut could leave an empty file under the name.
            sync_fully(fd)
            written = get_identity(os.fstat(fd))
        finally:
            os.close(fd)  # some file systems report a full disk only here
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=place.folder)
        raise
    return name, written


def _copy_owner_and_mode(fd: int, old_stat: os.stat_result) -> None:
    """Give the new file the owner and the mode of the old one.

    If the file cannot have the old group, its group gets no more rights than everybody, because the
    mode was meant for the old group.
    """
    mode = stat.S_IMODE(old_stat.st_mode) & 0o777
    now = os.fstat(fd)
    # The group first: a change of owner may take away the right to change the group.
    if now.st_gid != old_stat.st_gid:
        try:
            os.fchown(fd, -1, old_stat.st_gid)
        except PermissionError:
            # Only rights that everybody has, too: the others were meant for the old group.
            mode = mode & 0o707 | (mode >> 3 & mode & 0o007) << 3
    if now.st_uid != old_stat.st_uid:
        with contextlib.suppress(PermissionError):
            os.fchown(fd, old_stat.st_uid, -1)
    # Last: nobody else may read the file before its owner and its group are right.
    os.fchmod(fd, mode)


def _replace(
    place: Place,
    temporary: tuple[str, Identity],
    new_state: str,
    old_identity: Identity | None,
    expected: str | None,
) -> None:
    """Give the target the content of the temporary file, which is in ``new_state``.

    Another program may change the target between the last check and this change. So both names are
    swapped in one step, and the old target is then checked under the temporary name. If it is not
    in the ``expected`` state, the names are swapped back, and PathRefused is raised.
    """
    folder, name = place.folder, temporary[0]
    # If names cannot be swapped, a plain rename has to do: only the check before protects then.
    if not exchange(folder, name, place.name):
        os.rename(name, place.name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    if _is_expected_file(place, name, old_identity, expected):
        return
    inside: Identity | None = temporary[1]  # the file that should have the target's name now
    # Swap back. A third program may have replaced the target meanwhile; then its file is restored
    # in the next round.
    for _ in range(_MAX_SWAPS):
        outside = _identity(get_status(folder, name))
        exchange(folder, name, place.name)
        taken_out = _identity(get_status(folder, name))
        if taken_out == inside and (
            inside != temporary[1] or _is_expected_file(place, name, inside, new_state)
        ):
            break
        if taken_out == inside:  # another program wrote into the new file: its content stays
            exchange(folder, name, place.name)
            break
        inside = outside  # another program replaced the target once more: restore that file
    raise PathRefused(f"{place.name} was changed by another program meanwhile; {_UNCHANGED}")


def _remove(place: Place, old_identity: Identity | None, expected: str | None) -> None:
    """Delete the target if it is in the ``expected`` state.

    It is renamed first, so that the deleted file is the file that was compared. Any other file gets
    its name back, and PathRefused is raised.
    """
    folder, aside = place.folder, _temporary_name()
    os.rename(place.name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    if _is_expected_file(place, aside, old_identity, expected):
        os.unlink(aside, dir_fd=folder)
        return
    with contextlib.suppress(FileExistsError):  # its writer has already made another file
        link_new(place, aside)
    with contextlib.suppress(FileNotFoundError):  # without hard links it was renamed
        os.unlink(aside, dir_fd=folder)
    raise PathRefused(f"{place.name} was changed by another program meanwhile; {_UNCHANGED}")


def _is_expected_file(
    place: Place, name: str, identity: Identity | None, state: str | None
) -> bool:
    """Return True if the name leads to this file, in this state, without a writer.

    Any state will do if ``state`` is None.
    """
    try:
        fd = place.root.open_last(place.folder, name)
    except (PathRefused, WrongFileKind, PathAbsent):
        return False
    try:
        # A program that has the file open for writing could still add content, which would be lost.
        if get_identity(os.fstat(fd)) != identity or is_open_for_writing(fd):
            return False
        return state is None or digest_content(fd) == state
    except (WrongFileKind, OSError):
        return False
    finally:
        os.close(fd)


def link_new(place: Place, temporary: str, link: Callable[..., None] = os.link) -> None:
    """Give the temporary file its final name, which must be free.

    A rename would replace another file.

    Raises:
        FileExistsError: something has the name.
        OSError: the file cannot be linked or renamed.
    """
    folder, name = place.folder, place.name
    try:
        link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links: make an empty file of the name, then replace it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o600, dir_fd=folder))
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            # The empty file must not stay if the rename fails.
            os.unlink(name, dir_fd=folder)
            raise


def _identity(status: os.stat_result | None) -> Identity | None:
    return None if status is None else get_identity(status)
