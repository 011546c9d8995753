"""Access lists of runs, and the approvals that were consumed."""

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
"""Bytes of a configuration file that are hashed; a larger file counts as ``too large``."""


@dataclass(eq=False)
class RunPermit:
    """The access list of a run: the tools and configuration that it began with.

    Before each call the list is compared with the present state. If the list is missing or differs,
    no call runs. So a list can only take access away, never give it.
    """

    watched: Mapping[str, str] = field(default_factory=dict)
    """The paths of configuration files, each with its fingerprint (`fingerprints`)."""
    _tools: Mapping[str, str] | None = field(default=None, init=False)
    """The digest of each tool, by name; None if no run goes on."""

    def begin(self, session: str, policy_hash: str, specs: Iterable[ToolSpec]) -> None:
        """Make the list for a new run. Raise `StorageError` if it cannot be stored."""
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

    A run writes the policy, the tools and the configuration that it began with. Before each call
    the list is read again, and must be byte for byte the list that this run wrote. So it is a kill
    switch: if somebody deletes it, the run calls no more tools. A killed run leaves its list
    behind; the session's next run overwrites it.
    """

    _list_bytes: bytes = field(default=b"", init=False)

    def begin(self, session: str, policy_hash: str, specs: Iterable[ToolSpec]) -> None:
        # No call may run while the stored list differs from the list in memory.
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
        # First the write: if it fails, the run may call nothing.
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
            # A draft is renamed: a reader sees the old list or the new one, never a part.
            drafted(self.path, self._list_bytes) as draft,
        ):
            draft.replace(self.path)

    def _read(self) -> bytes:
        with open_private(self.path) as file:
            # An exclusive lock by another process also stops the run: this lock then fails, and the
            # call is refused.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # One byte more than was written shows that something was added at the end.
            return file.read(len(self._list_bytes) + 1)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


def fingerprints(places: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """Return the present state of each file: a hash of its content, or a word.

    The word says why there is no hash: the file is absent, unreadable or too large.
    """
    return {os.fspath(place): _fingerprint(place) for place in places}


def _fingerprint(place: str | os.PathLike[str]) -> str:
    try:
        file = os.open(
            place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )  # O_NONBLOCK: opening a pipe would wait for its writer
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "unreadable"
    try:
        # The open file is checked, not its name: the name may lead to another file by now.
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

    Each approval counts once, even if records are removed from a transcript.
    """

    _digests: set[str] = field(default_factory=set, init=False)

    def take(self, digest: str) -> bool:
        """Consume an approval. Return False if it was consumed before.

        Raises:
            StorageError: the use cannot be recorded; the approval is then not consumed.
        """
        is_new = digest not in self._digests
        self._digests.add(digest)
        return is_new


@dataclass(eq=False)
class ConsumedApprovalsFile(ConsumedApprovals):
    """Consumed approvals in a file."""

    path: Path
    """The file, with one digest in each line."""

    def take(self, digest: str) -> bool:
        return self.take_all([digest]) == 1

    def all(self) -> list[str]:
        """Return the consumed approvals in the order of their use. Raise OSError."""
        with contextlib.suppress(FileNotFoundError):
            return self.path.read_text(encoding="utf-8", errors="replace").split()
        return []

    def take_all(self, digests: Iterable[str]) -> int:
        """Consume approvals. Return how many of them were new.

        Raises:
            StorageError: the use cannot be recorded; then none is consumed.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        hint = "nothing was run; free some space and start again"
        with (
            translate_os_error(StorageError, f"{self.path} cannot be written", hint),
            os.fdopen(os.open(self.path, flags, 0o600), "r+b", buffering=0) as file,
        ):
            # Two processes must not both find the same approval unused.
            fcntl.flock(file, fcntl.LOCK_EX)
            known = file.read()
            known_digests = set(known.split())
            new = [digest for digest in digests if digest.encode() not in known_digests]
            if not new:
                return 0
            # A crash may have cut off the last line: the new digests must not be joined to it.
            end = b"\n" if known and not known.endswith(b"\n") else b""
            try:
                write_all(file.fileno(), end + "".join(f"{digest}\n" for digest in new).encode())
                # Before the call starts: a power cut must not make a used approval new again.
                sync_fully(file.fileno())
            except OSError:
                # The digests are not safely on disk, so the approvals must not count as consumed.
                file.truncate(len(known))
                raise
            return len(new)
