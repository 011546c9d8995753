"""Where sessions live on disk: one folder each, with its transcript and its artifacts."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mlx_tools import given
from mlx_tools.artifacts import KEEP_SECONDS, MAX_BYTES, ArtifactStore, Sweeper
from mlx_tools.errors import TranscriptError
from mlx_tools.transcript import Transcript, TranscriptFile

_TRANSCRIPT: Final = "transcript.jsonl"


@dataclass(frozen=True, slots=True)
class SessionFiles:
    """An open session: its id, its transcript, and where long outputs go (None: nowhere)."""

    session: str
    transcript: Transcript
    artifacts: ArtifactStore | None = None

    @property
    def path(self) -> str | None:
        """Where the transcript is, None where it is in memory alone."""
        return None if self.transcript.path is None else str(self.transcript.path)


def new_session_id() -> str:
    """A session id that sorts by time: date, time (UTC) and eight random digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


class MemoryStore:
    """Keeps nothing on disk: for tests, and for callers who keep transcripts themselves."""

    secret: bytes = secrets.token_bytes(32)

    def create(self) -> SessionFiles:
        """A new session, in memory."""
        return SessionFiles(new_session_id(), Transcript())


class TranscriptStore:
    """A folder of sessions, readable by its owner alone.

    ``keep`` is how many seconds artifacts stay, ``max_bytes`` what those of one session may take.
    With ``keep_all`` every output becomes one, not only what a model cannot see whole and what ran
    beside a tool that failed. Raises `UsageError` where one of them cannot be.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: float = KEEP_SECONDS,
        max_bytes: int = MAX_BYTES,
        keep_all: bool = False,
    ) -> None:
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise given.wrong("the folder of a store", folder, "give its path")
        if not isinstance(keep, int | float):
            raise given.wrong("keep", keep, "give a number of seconds")
        if not isinstance(max_bytes, int) or max_bytes < 0:
            raise given.wrong("max_bytes", max_bytes, "give a number of bytes, from 0")
        self.folder = Path(folder)
        self.keep = keep
        self.max_bytes = max_bytes
        self.keep_all = keep_all
        self._sweeper = Sweeper(self.folder, keep)

    def create(self) -> SessionFiles:
        """A new session on disk; artifacts of older ones that have expired are removed.

        Raises `TranscriptError` where the folder cannot be written.
        """
        session = new_session_id()
        self._sweeper.sweep()
        folder = self.folder / session
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise TranscriptError(
                f"no session can be kept in {self.folder}: {error.strerror}",
                hint="check the folder's permissions and free space",
            ) from None
        transcript = TranscriptFile(folder / _TRANSCRIPT)
        return SessionFiles(session, transcript, self.artifacts(session))

    def artifacts(self, session: str) -> ArtifactStore:
        """Where the outputs of a session are kept. What is put there sweeps all sessions too, now
        and then: artifacts expire also where a program runs for days."""
        return ArtifactStore(
            self.folder / session / "artifacts",
            keep=self.keep,
            max_bytes=self.max_bytes,
            keep_all=self.keep_all,
            sweep=self._sweeper.sweep_if_due,
        )

    @property
    def secret(self) -> bytes:
        """The key of approval digests: made once, kept beside the sessions, not in them.

        Raises `TranscriptError` where it can be neither read nor made.
        """
        path = self.folder / "secret"
        try:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _create_whole(path, secrets.token_bytes(32))
            return path.read_bytes()
        except OSError as error:
            raise TranscriptError(
                f"the key of approvals, {path}, cannot be read: {error.strerror}"
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
