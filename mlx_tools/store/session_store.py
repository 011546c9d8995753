"""Where sessions live on disk: one folder each, with its transcript and its artifacts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mlx_tools.errors import StorageError, TranscriptError, UsageError, wrong_argument
from mlx_tools.store.access_file import FILE_NAME, Access, AccessFile, MemoryAccess
from mlx_tools.store.artifacts import (
    ARTIFACTS,
    KEEP_SECONDS,
    MAX_BYTES,
    UNDO_FOLDER,
    ArtifactStore,
    Sweeper,
    UndoStore,
)
from mlx_tools.store.transcript import Transcript, TranscriptFile, write_all
from mlx_tools.transcript.records import Header

_TRANSCRIPT: Final = "transcript.jsonl"
_USED: Final = "used"
_SESSION_ID: Final = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}", re.ASCII)
KEPT: Final = 256
"""Sessions that a `MemoryStore` keeps; the oldest are dropped first."""


class Used:
    """The approvals that calls have started with, by their digests: each counts once, whatever is
    taken away from a transcript. ``path`` None keeps them in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: set[str] = set()

    def take(self, digest: str) -> bool:
        """Uses an approval up; False where it was used before. Raises `StorageError` where that
        cannot be written down: then it is not used up."""
        if self._path is None:
            taken = digest not in self._known
            self._known.add(digest)
            return taken
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self._path, flags, 0o600), "r+b", buffering=0) as file:
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
                f"{self._path} cannot be written: {error.strerror}",
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
    access: Access = field(default_factory=MemoryAccess)
    used: Used = field(default_factory=Used)
    undo: UndoStore | None = None

    @property
    def path(self) -> str | None:
        """Where the transcript is, None where it is in memory alone."""
        return None if self.transcript.path is None else str(self.transcript.path)


def new_session_id() -> str:
    """A session id that sorts by time: date, time (UTC) and eight random digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


class MemoryStore:
    """Keeps nothing on disk: for tests, and for callers who keep transcripts themselves.

    The last sessions can be opened again, `KEPT` of them.
    """

    secret: bytes = secrets.token_bytes(32)

    def __init__(self) -> None:
        self._kept: dict[str, _InMemory] = {}

    def create(self) -> SessionFiles:
        """A new session, in memory."""
        session = new_session_id()
        self._kept[session] = _InMemory()
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return SessionFiles(session, self._kept[session])

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session of this store, to go on with. Raises `UsageError` where there is none,
        `TranscriptError` where it is in use."""
        kept = self._kept.get(os.fspath(session))
        if kept is None:
            raise UsageError(f"there is no session {os.fspath(session)!r} in memory")
        kept.reopen()
        return SessionFiles(os.fspath(session), kept)


class _InMemory(Transcript):
    """A transcript that is in use until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._in_use = True

    def reopen(self) -> None:
        if self._in_use:
            raise TranscriptError("the session is in use", hint="wait for it to end")
        self._in_use = True

    def close(self) -> None:
        self._in_use = False


class TranscriptStore:
    """A folder of sessions, readable by its owner alone.

    ``keep`` is how many seconds artifacts stay, ``max_bytes`` what those of one session may take.
    With ``keep_all`` every output becomes one, not only what a model cannot see whole and what ran
    beside a tool that failed. ``watched`` are the places of configuration files and what was there
    when they were read (`mlx_tools.store.access_file.fingerprints`): once one changes, no run calls
    anything more. Raises `UsageError` where one of them cannot be.
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
        transcript = TranscriptFile(folder / _TRANSCRIPT)
        access = AccessFile(folder / FILE_NAME, self.watched)
        used = Used(self.folder / _USED)
        kept = self.artifacts(folder), access, used, self.undo(folder)
        return SessionFiles(session, transcript, *kept)

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session, to go on with: by its id, or by the path of its transcript.

        It is locked until its transcript is closed. Raises `UsageError` where there is none,
        `TranscriptError` where it is damaged or in use.
        """
        path = self.path_of(session)
        if not path.is_file():
            raise UsageError(
                f"there is no session {os.fspath(session)!r}", hint="mlx-tools sessions list"
            )
        transcript = TranscriptFile(path, create=False)
        header = transcript[0] if len(transcript) else None
        name = header.session if isinstance(header, Header) else path.parent.name
        access = AccessFile(path.parent / FILE_NAME, self.watched)
        used = Used(self.folder / _USED)
        kept = self.artifacts(path.parent), access, used, self.undo(path.parent)
        return SessionFiles(name, transcript, *kept)

    def artifacts(self, folder: Path) -> ArtifactStore:
        """Where the outputs of the session in ``folder`` are kept. What is put there sweeps all
        sessions too, now and then: artifacts expire also where a program runs for days."""
        return ArtifactStore(
            folder / ARTIFACTS,
            keep=self.keep,
            max_bytes=self.max_bytes,
            keep_all=self.keep_all,
            sweep=self._sweeper.sweep_if_due,
        )

    def undo(self, folder: Path) -> UndoStore:
        """Where what the calls of the session in ``folder`` replace and delete is kept."""
        return UndoStore(folder / UNDO_FOLDER, keep=self.keep)

    def path_of(self, session: str | os.PathLike[str]) -> Path:
        """Where the transcript of a session is, or would be. An id never leads out of the store;
        a path is taken as it is. Raises `UsageError` for what is neither."""
        text = os.fspath(session)
        if _SESSION_ID.fullmatch(text):
            return self.folder / text / _TRANSCRIPT
        if isinstance(session, os.PathLike) or os.sep in text:
            path = Path(text).expanduser()
            return path / _TRANSCRIPT if path.is_dir() else path
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
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _create_whole(path, secrets.token_bytes(32))
            return path.read_bytes()
        except OSError as error:
            raise StorageError(
                f"the key of approvals, {path}, cannot be read or made: {error.strerror}"
            ) from None


def _create_whole(path: Path, data: bytes) -> None:
    """Makes ``path`` with ``data`` in it, or raises FileExistsError: never a part of it."""
    if path.exists():
        raise FileExistsError
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as out:
            out.write(data)
        path.hardlink_to(draft)
    finally:
        draft.unlink()
