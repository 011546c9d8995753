"""Where the access list of a run is kept: in a file beside the transcript, or in memory.

The file is a kill switch. Whoever deletes it stops the run from calling anything more.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from mlx_tools.errors import StorageError
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import AccessList, Decision, refusal, refused

FILE_NAME: Final = "access.json"
MAX_BYTES: Final = 4_000_000
_CHUNK: Final = 65_536


class Access(Protocol):
    """The access list of the runs of one session."""

    def begin(self, session: str, policy_hash: str, specs: Iterable[ToolSpec]) -> None:
        """Writes the list of a run that begins. Raises `StorageError` where it cannot be."""
        ...

    def check(self, session: str, spec: ToolSpec) -> Decision | None:
        """Why a call of this tool may not run now, None where it may. Raises nothing."""
        ...

    def end(self) -> None:
        """Removes the list: the run has ended, however it did."""
        ...


class MemoryAccess:
    """Keeps the list in memory.

    ``watched`` are the places of configuration files, each with what was there when the
    configuration was read (`fingerprints`).
    """

    def __init__(self, watched: Mapping[str, str] | None = None) -> None:
        self._watched = dict(watched or {})
        self._listed: AccessList | None = None

    def begin(self, session: str, policy_hash: str, specs: Iterable[ToolSpec]) -> None:
        """Makes the list of a run that begins."""
        self._listed = AccessList.of(session, policy_hash, specs, self._watched)

    def check(self, session: str, spec: ToolSpec) -> Decision | None:
        """Why a call of this tool may not run now, None where it may."""
        if self._listed is None:
            return refusal("there is no access list: no run has begun, or it has ended")
        return self._held_to(self._listed, self._listed, session, spec)

    def end(self) -> None:
        """Drops the list."""
        self._listed = None

    def _held_to(
        self, listed: AccessList, own: AccessList, session: str, spec: ToolSpec
    ) -> Decision | None:
        return refused(
            listed,
            session,
            spec,
            policy_hash=own.policy,
            configuration=fingerprints(self._watched),
        )


class AccessFile(MemoryAccess):
    """Keeps the list in the file ``path``, which only its owner can read or write.

    A run that was killed leaves its list; the next run of the session writes a new one. What
    `check` reads must be, byte for byte, what this run wrote.
    """

    def __init__(
        self, path: str | os.PathLike[str], watched: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(watched)
        self.path = Path(path)

    def begin(self, session: str, policy_hash: str, specs: Iterable[ToolSpec]) -> None:
        listed = AccessList.of(session, policy_hash, specs, self._watched)
        self._listed = None
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                with os.fdopen(os.open(draft, flags, 0o600), "wb") as out:
                    out.write(listed.write())
                draft.replace(self.path)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"the access list {self.path} cannot be written: {error.strerror}",
                hint="check the folder's permissions and free space",
            ) from None
        self._listed = listed

    def check(self, session: str, spec: ToolSpec) -> Decision | None:
        own = self._listed
        if own is None:
            return refusal("there is no access list: no run has begun, or it has ended")
        try:
            data = _owned(self.path)
            listed = AccessList.read(data)
        except FileNotFoundError:
            return refusal("the access list of this run is gone")
        except BlockingIOError:
            return refusal("the access list of this run is locked")
        except PermissionError as error:
            return refusal(f"the access list of this run cannot be trusted: {error.strerror}")
        except OSError as error:
            return refusal(f"the access list of this run cannot be read: {error.strerror}")
        except ValueError:
            return refusal("the access list of this run is " + ("damaged" if data else "empty"))
        verdict = self._held_to(listed, own, session, spec)
        if verdict is None and data != own.write():
            return refusal("the access list is not the one that this run wrote")
        return verdict

    def end(self) -> None:
        super().end()
        with contextlib.suppress(OSError):
            self.path.unlink()


def fingerprints(places: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """What is at each place now: a hash of the file's content, or a word where there is none."""
    return {os.fspath(place): _fingerprint(place) for place in places}


def _fingerprint(place: str | os.PathLike[str]) -> str:
    try:
        file = _opened(place, os.O_RDONLY)
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "unreadable"
    try:
        digest = hashlib.sha256()
        left = MAX_BYTES
        while left > 0 and (piece := os.read(file, min(left, _CHUNK))):
            digest.update(piece)
            left -= len(piece)
    except OSError:
        return "unreadable"
    finally:
        os.close(file)
    return digest.hexdigest() if left > 0 else "too large"


def _owned(path: Path) -> bytes:
    """What stands in a file that is ours alone. Raises OSError: PermissionError for one that others
    own or may write to, BlockingIOError for one that is locked."""
    file = _opened(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        info = os.fstat(file)
        if info.st_uid != os.geteuid():
            raise PermissionError(0, "somebody else owns it")
        if info.st_mode & 0o022:
            raise PermissionError(0, "others may write to it")
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if info.st_size > MAX_BYTES:
            raise OSError(0, "it is too large")
        return os.read(file, MAX_BYTES)
    finally:
        os.close(file)


def _opened(path: str | os.PathLike[str], flags: int) -> int:
    """An open regular file; nothing is waited for. Raises OSError."""
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "it is no regular file")
    return file
