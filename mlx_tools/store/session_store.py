"""Where sessions live: a folder each, with its transcript, its artifacts and the access list of the
run; or in memory."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mlx_tools.errors import StorageError, TranscriptError, UsageError, wrong_argument
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import Decision
from mlx_tools.store.artifacts import (
    ARTIFACTS,
    KEEP_SECONDS,
    MAX_BYTES,
    UNDO_FOLDER,
    ArtifactStore,
    Sweeper,
    UndoStore,
    drafted,
)
from mlx_tools.store.transcript import NAME, Transcript, TranscriptFile, load, write_all
from mlx_tools.transcript import Header

ACCESS_FILE: Final = "access.json"
_ACCESS_VERSION: Final = 1
MAX_ACCESS_BYTES: Final = 4_000_000
KEPT: Final = 256
"""Sessions that a `MemoryStore` keeps; the oldest are dropped first."""
_SESSION_ID: Final = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}", re.ASCII)


@dataclass(eq=False)
class Access:
    """The access list of the runs of one session: what a run began with.

    A run writes down the policy, the tools and the configuration that it began with. Before each
    call the list is read back, and held to what is so now. A list that is not there, cannot be read
    or says anything else lets no call run: it can take access away, and never give it.

    ``path`` is a file that only its owner can read or write, None for nowhere. It is a kill switch:
    whoever deletes it stops the run from calling anything more. What is read there must be, byte
    for byte, what this run wrote. A run that was killed leaves its list; the next one of the
    session writes a new one. ``watched`` are the places of configuration files, each with what was
    there when the configuration was read (`fingerprints`).
    """

    path: Path | None = None
    watched: Mapping[str, str] = field(default_factory=dict)
    _tools: Mapping[str, str] | None = field(default=None, init=False)
    _written: bytes = field(default=b"", init=False)

    def begin(self, session: str, policy_hash: str, specs: Iterable[ToolSpec]) -> None:
        """Write the list of a run that begins. Raises `StorageError` where it cannot be."""
        self._tools = None
        tools = {spec.name: spec.digest() for spec in specs}
        if self.path is not None:
            listed = {
                "version": _ACCESS_VERSION,
                "session": session,
                "policy": policy_hash,
                "tools": tools,
                "configuration": dict(self.watched),
            }
            self._written = json.dumps(listed, sort_keys=True).encode()
            try:
                with drafted(_beside(self.path), self._written) as draft:
                    draft.replace(self.path)
            except OSError as error:
                raise StorageError(
                    f"the access list {self.path} cannot be written: {error.strerror}",
                    hint="check the folder's permissions and free space",
                ) from None
        self._tools = tools

    def check(self, spec: ToolSpec) -> Decision | None:
        """The reason why a call of this tool may not run now, None where it may. Raises nothing."""
        reason = self._refusal(spec)
        return Decision("deny", "access_list", reason, "not_allowed") if reason else None

    def _refusal(self, spec: ToolSpec) -> str:
        if self._tools is None:
            return "there is no access list: no run has begun, or it has ended"
        if self.path is not None and (fault := self._fault(self.path)):
            return fault
        if spec.name not in self._tools:
            return f"{spec.name} was no tool of this run when it began"
        if self._tools[spec.name] != spec.digest():
            return f"{spec.name} has changed since the run began"
        for place, was in sorted(self.watched.items()):
            if _fingerprint(place) != was:
                return f"the configuration has changed since the run began: {place}"
        return ""

    def _fault(self, path: Path) -> str:
        try:
            intact = _content(path, owned=True) == self._written
        except FileNotFoundError:
            return "the access list of this run is gone"
        except BlockingIOError:
            return "the access list of this run is locked"
        except PermissionError as error:
            return f"the access list of this run cannot be trusted: {error.strerror}"
        except OSError as error:
            return f"the access list of this run cannot be read: {error.strerror}"
        return "" if intact else "the access list is not the one that this run wrote"

    def end(self) -> None:
        """End the run: nothing may be called any more."""
        self._tools = None
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()


def fingerprints(places: Iterable[str | os.PathLike[str]]) -> dict[str, str]:
    """The state of each place now: a hash of the file's content, or a word where there is none."""
    return {os.fspath(place): _fingerprint(place) for place in places}


def _fingerprint(place: str | os.PathLike[str]) -> str:
    try:
        data = _content(place)
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "unreadable"
    return hashlib.sha256(data).hexdigest() if len(data) < MAX_ACCESS_BYTES else "too large"


def _content(path: str | os.PathLike[str], *, owned: bool = False) -> bytes:
    """The content of a regular file, as far as `MAX_ACCESS_BYTES`; nothing is waited for.

    Raises OSError; of one that must be ours alone (``owned``) PermissionError where others own it
    or may write to it, BlockingIOError where it is locked.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if owned else 0)
    file = os.open(path, flags)
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(0, "it is no regular file")
        if owned:
            if info.st_uid != os.geteuid():
                raise PermissionError(0, "somebody else owns it")
            if info.st_mode & 0o022:
                raise PermissionError(0, "others may write to it")
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if info.st_size > MAX_ACCESS_BYTES:
                raise OSError(0, "it is too large")
        return os.read(file, MAX_ACCESS_BYTES)
    finally:
        os.close(file)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}")


@dataclass(eq=False)
class Used:
    """The approvals that calls have started with, by their digests: each counts once, whatever is
    taken away from a transcript. ``path`` None keeps them in memory."""

    path: Path | None = None
    _known: set[str] = field(default_factory=set, init=False)

    def take(self, digest: str) -> bool:
        """Use an approval up; False where it was used before. Raises `StorageError` where that
        cannot be written down: then it is not used up."""
        if self.path is None:
            taken = digest not in self._known
            self._known.add(digest)
            return taken
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self.path, flags, 0o600), "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                known = file.read()
                if digest.encode() in known.split():
                    return False
                end = b"\n" if known and not known.endswith(b"\n") else b""  # of a write cut off
                try:
                    write_all(file.fileno(), end + f"{digest}\n".encode())
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(len(known))
                    raise
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written: {error.strerror}",
                hint="nothing was run; free some space and start again",
            ) from None
        return True


@dataclass(frozen=True, slots=True)
class SessionFiles:
    """An open session: its id, its transcript, where long outputs go (None: nowhere), the access
    list of its runs, the approvals that were used up, and where what its calls replace is kept
    (None: nowhere)."""

    session: str
    transcript: Transcript
    artifacts: ArtifactStore | None = None
    access: Access = field(default_factory=Access)
    used: Used = field(default_factory=Used)
    undo: UndoStore | None = None

    @property
    def path(self) -> str | None:
        return None if self.transcript.path is None else str(self.transcript.path)


def new_session_id() -> str:
    """A session id that sorts by time: date, time (UTC) and eight random digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


@dataclass(eq=False)
class MemoryStore:
    """Keeps nothing on disk: for tests, and for callers who keep transcripts themselves.

    The last sessions can be opened again, `KEPT` of them.
    """

    secret = secrets.token_bytes(32)
    _kept: dict[str, Transcript] = field(default_factory=dict, init=False)

    def create(self) -> SessionFiles:
        session = new_session_id()
        self._kept[session] = Transcript()
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return SessionFiles(session, self._kept[session])

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session of this store, to go on with. Raises `UsageError` where there is none,
        `TranscriptError` where it is in use."""
        kept = self._kept.get(os.fspath(session))
        if kept is None:
            raise UsageError(f"there is no session {os.fspath(session)!r} in memory")
        if kept.in_use:
            raise TranscriptError("the session is in use", hint="wait for it to end")
        kept.in_use = True
        return SessionFiles(os.fspath(session), kept)

    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session of this store, to be looked at, in use or not. Raises what `open` raises."""
        kept = self._kept.get(os.fspath(session))
        if kept is None:
            raise UsageError(f"there is no session {os.fspath(session)!r} in memory")
        return SessionFiles(os.fspath(session), kept)


class TranscriptStore:
    """A folder of sessions, readable by its owner alone.

    ``keep`` is how many seconds artifacts stay, ``max_bytes`` what those of one session may take.
    With ``keep_all`` every output becomes one, not only what a model cannot see whole and what ran
    beside a tool that failed. ``watched`` are the places of configuration files and what was there
    when they were read (`fingerprints`): once one changes, no run calls anything more. Raises
    `UsageError` where one of them cannot be.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: float = KEEP_SECONDS,
        max_bytes: int = MAX_BYTES,
        keep_all: bool = False,
        watched: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise wrong_argument("the folder of a store", folder, "give its path")
        if not isinstance(keep, int | float):
            raise wrong_argument("keep", keep, "give a number of seconds")
        if not isinstance(max_bytes, int) or max_bytes < 0:
            raise wrong_argument("max_bytes", max_bytes, "give a number of bytes, from 0")
        self.folder = Path(folder)
        self.keep = keep
        self.watched = dict(watched or {})
        self.max_bytes = max_bytes
        self.keep_all = keep_all
        self._sweeper = Sweeper(self.folder, keep)

    def create(self) -> SessionFiles:
        """A new session on disk; artifacts of older ones that have expired are removed.

        Raises `StorageError` where the folder cannot be written.
        """
        session = new_session_id()
        self._sweeper.sweep()
        folder = self.folder / session
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise StorageError(
                f"no session can be kept in {self.folder}: {error.strerror}",
                hint="check the folder's permissions and free space",
            ) from None
        return self._files(session, folder, TranscriptFile(folder / NAME))

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session, to go on with: by its id, or by the path of its transcript.

        It is locked until its transcript is closed. Raises `UsageError` where there is none,
        `TranscriptError` where it is damaged or in use.
        """
        path = self._path_of_one(session)
        return self._opened(path, TranscriptFile(path, create=False))

    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session, to be looked at: not locked, and not changed. Raises what `open` raises."""
        path = self._path_of_one(session)
        return self._opened(path, Transcript(load(path)))

    def _path_of_one(self, session: str | os.PathLike[str]) -> Path:
        path = self.path_of(session)
        if not path.is_file():
            raise UsageError(
                f"there is no session {os.fspath(session)!r}", hint="mlx-tools sessions list"
            )
        return path

    def _opened(self, path: Path, transcript: Transcript) -> SessionFiles:
        header = transcript[0] if transcript else None
        name = header.session if isinstance(header, Header) else path.parent.name
        return self._files(name, path.parent, transcript)

    def _files(self, session: str, folder: Path, transcript: Transcript) -> SessionFiles:
        return SessionFiles(
            session,
            transcript,
            self.artifacts(folder),
            Access(folder / ACCESS_FILE, self.watched),
            Used(self.folder / "used"),
            UndoStore(folder / UNDO_FOLDER, keep=self.keep),
        )

    def artifacts(self, folder: Path) -> ArtifactStore:
        """The place for outputs of the session in ``folder`` are kept. What is put there sweeps all
        sessions too, now and then: artifacts expire also where a program runs for days."""
        return ArtifactStore(
            folder / ARTIFACTS,
            keep=self.keep,
            max_bytes=self.max_bytes,
            keep_all=self.keep_all,
            sweep=self._sweeper.sweep_if_due,
        )

    def path_of(self, session: str | os.PathLike[str]) -> Path:
        """The path of a transcript, be it there or not. An id never leads out of the store;
        a path is taken as it is. Raises `UsageError` for what is neither."""
        text = os.fspath(session)
        if _SESSION_ID.fullmatch(text):
            return self.folder / text / NAME
        if isinstance(session, os.PathLike) or os.sep in text:
            path = Path(text).expanduser()
            return path / NAME if path.is_dir() else path
        raise UsageError(
            f"{text!r} is no session", hint="give its id, or the path of its transcript"
        )

    @property
    def secret(self) -> bytes:
        """The key of approval digests: made once, kept beside the sessions, not in them.

        Raises `StorageError` where it can be neither read nor made.
        """
        path = self.folder / "secret"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():
                with (
                    contextlib.suppress(FileExistsError),
                    drafted(_beside(path), secrets.token_bytes(32)) as draft,
                ):
                    path.hardlink_to(draft)
            return path.read_bytes()
        except OSError as error:
            raise StorageError(
                f"the key of approvals, {path}, cannot be read or made: {error.strerror}"
            ) from None
