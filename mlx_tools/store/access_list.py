"""Access lists of runs, and the approvals that are used up."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

from mlx_tools.errors import StorageError, translate_os_error
from mlx_tools.macos import sync_fully
from mlx_tools.messages import ToolSpec
from mlx_tools.paths import drafted, open_private
from mlx_tools.policy import Decision
from mlx_tools.store.transcript import write_all

ACCESS_FILE: Final = "access.json"
_ACCESS_VERSION: Final = 1
_MAX_WATCHED_BYTES: Final = 4_000_000
"""Bytes of a configuration file that are looked at."""


@dataclass(eq=False)
class RunPermit:
    """The access list of the runs of one session: what a run began with.

    Before each call the list is held to what is so now. One that is not there, or says anything
    else, lets no call run: it can take access away, and never give it. ``watched`` are the places
    of configuration files, each with what was there when the configuration was read
    (`fingerprints`).
    """

    watched: Mapping[str, str] = field(default_factory=dict)
    _tools: Mapping[str, str] | None = field(default=None, init=False)

    def begin(self, session: str, policy_hash: str, specs: Iterable[ToolSpec]) -> None:
        """Make the list of a run that begins. Raise `StorageError` if it cannot be stored."""
        self._tools = {spec.name: spec.digest() for spec in specs}

    def check(self, spec: ToolSpec) -> Decision | None:
        """Return the refusal of a call of this tool, None if it may run. Raise nothing."""
        reason = self._refusal(spec)
        return Decision("deny", "access_list", reason, "not_allowed") if reason else None

    def _refusal(self, spec: ToolSpec) -> str:
        if self._tools is None:
            return "there is no access list: no run has begun, or it has ended"
        if spec.name not in self._tools:
            return f"{spec.name} was no tool of this run when it began"
        if self._tools[spec.name] != spec.digest():
            return f"{spec.name} has changed since the run began"
        # Sorted, so that the same change always gives the same reason in the transcript.
        for place, was in sorted(self.watched.items()):
            if _fingerprint(place) != was:
                return f"the configuration has changed since the run began: {place}"
        return ""

    def end(self) -> None:
        """End the run: nothing may be called any more."""
        self._tools = None


@dataclass(eq=False)
class StoredRunPermit(RunPermit, ABC):
    """An access list that is stored while the run goes on.

    A run writes down the policy, the tools and the configuration that it began with. Before each
    call the list is read back: it must be, byte for byte, what this run wrote. So it is a kill
    switch: whoever deletes it stops the run from calling anything more. A run that was killed
    leaves its list; the next one of the session writes a new one.
    """

    _list_bytes: bytes = field(default=b"", init=False)

    def begin(self, session: str, policy_hash: str, specs: Iterable[ToolSpec]) -> None:
        # No call may run while the stored list and the one in memory are not the same.
        self._tools = None
        specs = tuple(specs)
        listed = {
            "version": _ACCESS_VERSION,
            "session": session,
            "policy": policy_hash,
            "tools": {spec.name: spec.digest() for spec in specs},
            "configuration": dict(self.watched),
        }
        self._list_bytes = json.dumps(listed, sort_keys=True).encode()
        # Only once the list is stored: a failed write leaves a run that may call nothing.
        self._write()
        super().begin(session, policy_hash, specs)

    def _refusal(self, spec: ToolSpec) -> str:
        if self._tools is None:
            return super()._refusal(spec)
        try:
            # Byte for byte: nothing of the list is parsed, so nothing in it can be misread.
            if self._read() != self._list_bytes:
                return "the access list is not the one that this run wrote"
        except FileNotFoundError:
            return "the access list of this run is gone"
        except BlockingIOError:
            return "the access list of this run is locked"
        except OSError as error:
            return f"the access list of this run cannot be read: {error.strerror}"
        return super()._refusal(spec)

    def end(self) -> None:
        super().end()
        self._remove()

    @abstractmethod
    def _write(self) -> None:
        """Store the list. Raise `StorageError` if that fails."""

    @abstractmethod
    def _read(self) -> bytes:
        """Return the stored list.

        Raises:
            OSError: the list cannot be read or trusted.
            BlockingIOError: the list is locked.
        """

    @abstractmethod
    def _remove(self) -> None:
        """Remove the stored list. Raise nothing."""


@dataclass(eq=False)
class RunPermitFile(StoredRunPermit):
    """An access list in the file ``path``, which only its owner can read or write."""

    _: KW_ONLY
    path: Path

    def _write(self) -> None:
        what, hint = f"the access list {self.path}", "check the folder's permissions and free space"
        with (
            translate_os_error(StorageError, f"{what} cannot be written", hint),
            # Written beside and renamed: a reader sees the old list or the new one, never a part.
            drafted(self.path, self._list_bytes) as draft,
        ):
            draft.replace(self.path)

    def _read(self) -> bytes:
        with open_private(self.path) as file:
            # Whoever wants to stop a run can lock its list exclusively: the check then refuses the
            # call.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # One byte more than was written shows that something was added at the end.
            return file.read(len(self._list_bytes) + 1)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


def fingerprints(places: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """Return the state of each place now: a hash of its content, or a word.

    The word says why there is no content: the place is absent, unreadable or too large.
    """
    return {os.fspath(place): _fingerprint(place) for place in places}


def _fingerprint(place: str | os.PathLike[str]) -> str:
    try:
        file = os.open(
            place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )  # a pipe is not waited for
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "unreadable"
    try:
        # The open file is examined, not its name, which may lead elsewhere by now.
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return "unreadable"
        data = os.read(file, _MAX_WATCHED_BYTES)
    except OSError:
        return "unreadable"
    finally:
        os.close(file)
    return hashlib.sha256(data).hexdigest() if len(data) < _MAX_WATCHED_BYTES else "too large"


@dataclass(eq=False)
class ConsumedApprovals:
    """Digests of the approvals with which calls have started.

    Each approval counts once, whatever is taken away from a transcript.
    """

    _digests: set[str] = field(default_factory=set, init=False)

    def take(self, digest: str) -> bool:
        """Use an approval up. Return False if it was used before.

        Raises:
            StorageError: the use cannot be recorded; the approval is then not used up.
        """
        taken = digest not in self._digests
        self._digests.add(digest)
        return taken


@dataclass(eq=False)
class ConsumedApprovalsFile(ConsumedApprovals):
    """The same in the file ``path``, a line each."""

    path: Path

    def take(self, digest: str) -> bool:
        return self.take_all([digest]) == 1

    def all(self) -> list[str]:
        """Return the consumed approvals in the order of their use. Raise OSError."""
        with contextlib.suppress(FileNotFoundError):
            return self.path.read_text(encoding="utf-8", errors="replace").split()
        return []

    def take_all(self, digests: Iterable[str]) -> int:
        """Use approvals up. Return how many of them were not used before.

        Raises:
            StorageError: the use cannot be recorded; then none is used up.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        hint = "nothing was run; free some space and start again"
        with (
            translate_os_error(StorageError, f"{self.path} cannot be written", hint),
            os.fdopen(os.open(self.path, flags, 0o600), "r+b", buffering=0) as file,
        ):
            # Two processes that approve the same call must not both find it unused.
            fcntl.flock(file, fcntl.LOCK_EX)
            known = file.read()
            there = set(known.split())
            new = [one for one in digests if one.encode() not in there]
            if not new:
                return 0
            end = b"\n" if known and not known.endswith(b"\n") else b""  # of a write cut off
            try:
                write_all(file.fileno(), end + "".join(f"{one}\n" for one in new).encode())
                # Before the call starts: a power cut must not make a used approval new again.
                sync_fully(file.fileno())
            except OSError:
                # What could not be synced may be lost later; then it must not count as used now
                # either.
                file.truncate(len(known))
                raise
            return len(new)
