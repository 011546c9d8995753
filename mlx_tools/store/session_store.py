"""The interface of stores of sessions, the status of a session, a store in memory."""

from __future__ import annotations

import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from mlx_tools.errors import (
    StorageError,
    TranscriptError,
    UsageError,
    require_mapping,
    require_path,
    wrong_argument,
)
from mlx_tools.messages import replace
from mlx_tools.store.access_list import ConsumedApprovals, RunPermit
from mlx_tools.store.artifacts import (
    ARTIFACTS,
    KEEP_SECONDS,
    MAX_BYTES,
    UNDO_FOLDER,
    ArtifactStore,
    BlobMemory,
    BlobStore,
    UndoStore,
)
from mlx_tools.store.transcript import NAME, SessionInUse, Transcript
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    Counters,
    DecisionRecord,
    Header,
    ObservationRecord,
    PauseRecord,
    PendingCall,
    Record,
    StoppedRecord,
    UserRecord,
    find_last_state,
    calls_in_doubt,
    count,
    pending_calls,
)

if TYPE_CHECKING:
    from mlx_tools.store.tables import FileFormat, Tables

LAST: Final = "last"
"""Stands for the session that was last written to, wherever an id is taken."""

MAX_MEMORY_SESSIONS: Final = 256
"""Sessions that a `MemoryStore` keeps; the oldest are dropped first."""


class SessionFiles(Struct, frozen=True):
    """An open session."""

    session: str
    """The session's id."""
    transcript: Transcript
    artifacts: ArtifactStore | None = None
    """The store of long outputs, None if they are not kept."""
    access: RunPermit = msgspec.field(default_factory=RunPermit)
    """The access list of the session's runs."""
    consumed_approvals: ConsumedApprovals = msgspec.field(default_factory=ConsumedApprovals)
    undo: UndoStore | None = None
    """The store of what calls replace, None if it is not kept."""

    @property
    def path(self) -> str | None:
        return None if self.transcript.path is None else str(self.transcript.path)


class SessionPart(NamedTuple):
    """One thing that a session keeps, byte for byte."""

    name: str
    """Its name, as that of its file in a store of files."""
    written_at: float
    """The time of its writing, in seconds since 1970."""
    data: bytes


class StoreKeys(NamedTuple):
    """The key of a store's approvals, and the approvals that are used up."""

    secret: bytes | None
    """The key, None if there is none yet."""
    consumed_approvals: Sequence[str]
    """The approvals' digests."""


# --- where a session stands, by its records alone: without tools or a model ---------------------

SessionState = Literal[
    "answered", "paused", "stopped", "running", "interrupted", "damaged", "empty"
]
"""The status of a session: its last question was answered; it waits for a person; it ended without
an answer; a process is at it; its process ended in the middle; it cannot be read; it holds nothing.
"""

_END_STATES: Final = frozenset({"answered", "stopped", "empty"})


class SessionStatus(Struct, frozen=True, kw_only=True):
    """The state of a session by its records: see `session_status`."""

    state: SessionState
    reason: str = ""
    """The reason of a session that stopped, or the fault of one that is damaged."""
    created: str = ""
    model: str | None = None
    question: str = ""
    """The first question."""
    questions: int = 0
    first_call: str = ""
    """The name of the first call."""
    pending: tuple[PendingCall, ...] = ()
    in_doubt: tuple[str, ...] = ()
    """The keys of calls that were started, can change things, and have no known end."""

    @property
    def is_finished(self) -> bool:
        """True if nobody waits for it and nothing of it is open."""
        return self.state in _END_STATES and not self.in_doubt


class ListedSession(Struct, frozen=True, kw_only=True):
    """A session of a store, as listings show it."""

    session: str
    path: Path | None
    """The path of the transcript, None if it is no file."""
    status: SessionStatus
    updated: float = 0.0
    """The time of the last write, in seconds since 1970."""
    size: int = 0
    """The bytes that the session takes, artifacts included."""


def session_status(records: Sequence[Record]) -> SessionStatus:
    """Return the status of a session by its records, to which no process adds.

    It folds them once, and knows neither tools nor policy.
    """
    header = records[0] if records and isinstance(records[0], Header) else None
    questions = [record for record in records if isinstance(record, UserRecord)]
    known = SessionStatus(
        state="empty",
        created=header.created if header else "",
        model=header.model if header else None,
        question=questions[0].content if questions else "",
        questions=len(questions),
        first_call=next((r.name for r in records if isinstance(r, CallRecord)), ""),
        in_doubt=calls_in_doubt(records),
    )
    if len(records) < 2:
        return known
    match find_last_state(records):
        case AnswerRecord():
            return replace(known, state="answered")
        case PauseRecord() as pause:
            return replace(known, state="paused", pending=pending_calls(records, pause))
        case StoppedRecord() as stopped:
            return replace(known, state="stopped", reason=stopped.reason)
        case ObservationRecord() if not questions:  # a call without a model
            return replace(known, state="answered")
        case DecisionRecord(decision="ask") if not questions:
            return replace(known, state="stopped", reason="requires_confirmation")
    return replace(known, state="interrupted")


class SessionSummary(Struct, frozen=True, kw_only=True):
    """The summary of a session's records, for listings and statistics.

    ``records`` is how many there are, ``parent`` that of the header. The first question was asked
    at ``first_asked``, the latest at ``last_asked``, in seconds since 1970, 0 if unknown; of a
    session without questions both are when it was made.
    """

    status: SessionStatus
    counters: Counters
    records: int = 0
    parent: str = ""
    first_asked: float = 0.0
    last_asked: float = 0.0
    folder: str = ""
    """The working directory in which it began, empty if unknown."""


def summarize(records: Sequence[Record]) -> SessionSummary:
    """Return what the records of a session come to, which no process is adding to."""
    header = records[0] if records and isinstance(records[0], Header) else None
    questions = [record for record in records if isinstance(record, UserRecord)]
    times = [asked_at(question, header) for question in questions] or [asked_at(None, header)]
    return SessionSummary(
        status=session_status(records),
        counters=count(records),
        records=len(records),
        parent=header.parent if header else "",
        first_asked=times[0],
        last_asked=max(times),
        folder=header.folder if header else "",
    )


def asked_at(question: Record | None, header: Record | None) -> float:
    """Return when a question was asked, else when its session was made.

    In seconds since 1970; 0 if neither is recorded.
    """
    for text in (getattr(question, "recorded_at", ""), getattr(header, "created", "")):
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return 0.0


# --- the seam -----------------------------------------------------------------------------------


class SessionStore(ABC):
    """The place of sessions, and of the tables beside them.

    Reading a session needs no tools and no model, and creates nothing. One process at a time writes
    to a session: whoever opens it holds it until its transcript is closed or the process ends.
    ``place`` is the store's name in messages. ``dsn`` leads to the queue of runs in its database,
    None for files.

    Args:
        keep: seconds for which artifacts stay.
        max_bytes: bytes that the artifacts of one session may take.
        keep_all: True to make every output an artifact, not only those that a model cannot see
            whole or that ran beside a tool that failed.
        watched: places of configuration files and their `fingerprints` when they were read. Once
            one of them changes, no run calls anything more.

    Raises:
        UsageError: an argument is not valid.
    """

    place: str
    dsn: str | None = None

    def __init__(
        self,
        *,
        keep: float = KEEP_SECONDS,
        max_bytes: int = MAX_BYTES,
        keep_all: bool = False,
        watched: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(keep, int | float):
            raise wrong_argument("keep", keep, "give a number of seconds")
        if not isinstance(max_bytes, int) or max_bytes < 0:
            raise wrong_argument("max_bytes", max_bytes, "give a number of bytes, from 0")
        self.keep, self.max_bytes, self.keep_all = keep, max_bytes, keep_all
        self.watched = require_mapping("watched", watched, "give folders by the name of their root")

    @abstractmethod
    def check(self) -> None:
        """Try to store something. Raise `UsageError` or `StorageError` if that fails."""

    # --- going on ---

    @property
    @abstractmethod
    def secret(self) -> bytes:
        """The key of approval digests: made once, kept beside the sessions, not in them.

        Raises:
            StorageError: it can be neither read nor made.
        """

    @abstractmethod
    def create(self) -> SessionFiles:
        """Create a session, and remove expired artifacts of older ones.

        Raises:
            StorageError: it cannot be stored.
        """

    @abstractmethod
    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """Open a session to go on with it, by its id or the path of its transcript.

        It is held until its transcript is closed.

        Raises:
            UsageError: there is no such session.
            TranscriptError: it is damaged or in use.
        """

    @abstractmethod
    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        """Read a session, without holding or changing it. Raise as `open` does."""

    # --- looking ---

    @abstractmethod
    def ids(self) -> list[str]:
        """Return the ids of the sessions, the newest first: ids sort by time."""

    @abstractmethod
    def by_last_update(self, limit: int | None = None) -> list[str]:
        """Return at most ``limit`` ids, the one first that was last written to."""

    @abstractmethod
    def count(self) -> int:
        """Return how many sessions there are."""

    @abstractmethod
    def matching_ids(self, begin: str) -> list[str]:
        """Return the ids that begin with this text, the newest first."""

    def find(self, session_id: str) -> str:
        """Return the id that is meant by an id, the beginning of one, or ``last``.

        It is always the id of an existing session: a path is never made of ``session_id``.

        Raises:
            UsageError: no session or several are meant.
        """
        found = self.matching_ids(session_id) if is_session_id(session_id) else []
        if session_id in found:
            return session_id
        if session_id == LAST:
            found = self.by_last_update(1)
        if len(found) == 1:
            return found[0]
        if not found:
            is_empty = self.count() == 0
            raise UsageError(
                "there are no sessions" if is_empty else f"there is no session {session_id[:100]}",
                hint=None if is_empty else "mlx-tools sessions list",
            )
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise UsageError(
            f"{session_id} is the beginning of {len(found)} sessions",
            hint=f"{', '.join(found[:4])}{more}",
        )

    @abstractmethod
    def size(self, session: str) -> int:
        """Return the bytes of a transcript, -1 if there is none."""

    @abstractmethod
    def updated(self, session: str) -> float:
        """Return when a session was last written to, in seconds since 1970; 0 if unknown."""

    @abstractmethod
    def records(self, session: str) -> Sequence[Record]:
        """Return the records of a session. Raise `TranscriptError` if it is unreadable."""

    def summary(self, session: str) -> SessionSummary:
        """Return what a session comes to. Raises what `records` raises."""
        return summarize(self.records(session))

    def summaries(self) -> Iterator[tuple[str, SessionSummary | TranscriptError]]:
        """Yield what each session comes to, or why it cannot be read, the newest first."""
        for session in self.ids():
            yield session, self._summary_or_error(session)

    def _summary_or_error(self, session: str) -> SessionSummary | TranscriptError:
        try:
            return self.summary(session)
        except StorageError:
            raise
        except TranscriptError as error:
            return error

    def path(self, session: str) -> Path | None:
        """Return the path of a transcript that is a file, by an id of `find` or `ids`."""
        return None

    @abstractmethod
    def size_bytes(self, session: str) -> int:
        """Return the bytes that a session takes, with all that it keeps."""

    def describe(self, session: str) -> ListedSession:
        """Return a session as listings show it; its status says if it is damaged."""
        updated, size = self.updated(session), self.size_bytes(session)
        try:
            running = self.in_use(session)  # before it is read: it may end meanwhile
            standing = self.summary(session).status
            if running:
                standing = replace(standing, state="running", reason="")
        except StorageError:
            raise
        except TranscriptError as error:
            standing = SessionStatus(state="damaged", reason=str(error))
        path = self.path(session)
        return ListedSession(
            session=session, path=path, status=standing, updated=updated, size=size
        )

    # --- what a session keeps beside its transcript, ``where`` it is: by its id, or its folder ---

    def artifacts(self, session_key: str | os.PathLike[str]) -> ArtifactStore:
        """Return the store of a session's outputs."""
        kept = self._open_blobs(session_key, ARTIFACTS, self.keep, self.max_bytes)
        return ArtifactStore(kept, keep_all=self.keep_all, sweep=self._sweep_if_due)

    def undo(self, session_key: str | os.PathLike[str], *, keep: float) -> UndoStore:
        """Return old contents of a session's files, none older than ``keep`` seconds."""
        return UndoStore(self._open_blobs(session_key, UNDO_FOLDER, keep, MAX_BYTES))

    def _files(self, session_key: str | os.PathLike[str], transcript: Transcript) -> SessionFiles:
        header = transcript[0] if transcript else None
        return SessionFiles(
            header.session if isinstance(header, Header) else os.path.basename(session_key),  # noqa: PTH119
            transcript,
            self.artifacts(session_key),
            self._access(session_key),
            self._consumed_approvals,
            self.undo(session_key, keep=self.keep),
        )

    @abstractmethod
    def _open_blobs(
        self, session_key: str | os.PathLike[str], kind: str, keep: float, max_bytes: int
    ) -> BlobStore: ...

    @abstractmethod
    def _access(self, session_key: str | os.PathLike[str]) -> RunPermit: ...

    @property
    @abstractmethod
    def _consumed_approvals(self) -> ConsumedApprovals: ...

    def _sweep_if_due(self) -> None:  # noqa: B027 - not every store has to look for what expired
        """Remove what has expired in other sessions, at times.

        This also serves programs that run for days.
        """

    # --- the sessions themselves ---

    def remove(self, session: str, *, force: bool = False) -> bool:
        """Remove a session that is finished, or with ``force`` any that is not in use.

        It is held meanwhile, and its status is read again.

        Returns:
            True if the session was removed.

        Raises:
            TranscriptError: the disk does not allow it.
        """
        with ExitStack() as stack:
            try:
                # Held first: between the look and the removal no process may open it again.
                stack.enter_context(self.hold(session))
                ended = session_status(self.records(session)).is_finished
            except SessionInUse:
                return False
            except StorageError:
                raise
            except TranscriptError:  # it is damaged
                ended = False
            return (ended or force) and self._delete(session)

    @abstractmethod
    def _delete(self, session: str) -> bool:
        """Remove a session that is held. Return False if another process was quicker."""

    @abstractmethod
    def hold(self, session: str) -> AbstractContextManager[None]:
        """Keep other processes from opening a session while the block runs.

        Raises:
            SessionInUse: another process has it open.
            TranscriptError: there is no such session.
        """

    @abstractmethod
    def in_use(self, session: str) -> bool:
        """Return True if a process has the session open, or if there is none."""

    def sweep(self) -> None:  # noqa: B027 - not every store leaves something behind
        """Remove what an interrupted removal left behind."""

    @abstractmethod
    def tables(self, form: FileFormat) -> Tables:
        """Return the tables of a format beside the sessions."""

    # --- as it is kept: for a copy ---

    @abstractmethod
    def lock_for_import(self) -> AbstractContextManager[None]:
        """Lock the store for an import; flush to disk on exit.

        Raises:
            StorageError: another import is under way.
        """

    @abstractmethod
    def keys(self) -> StoreKeys:
        """Return the keys of this store; none is made. Raise `StorageError`."""

    @abstractmethod
    def import_keys(self, keys: StoreKeys) -> None:
        """Add another store's consumed approvals, and its key if there is none here.

        Raises:
            StorageError: they cannot be stored.
        """

    @abstractmethod
    def parts(self, session: str) -> Iterator[SessionPart]:
        """Yield all that a session keeps, its transcript first.

        A line of the transcript that a crash cut off is left out, as on opening. So is the access
        list, which would help no run.

        Raises:
            TranscriptError: there is no such session, or it cannot be read.
        """

    @abstractmethod
    def import_session(self, session: str, parts: Iterable[SessionPart]) -> int:
        """Store a session of another store, whole or not at all. Return its bytes.

        Raises:
            StorageError: it cannot be stored, or there is a session of this id.
        """


_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}", re.ASCII)
_PART: Final = re.compile(
    rf"{re.escape(NAME)}|(?:{ARTIFACTS}|{re.escape(UNDO_FOLDER)})/[0-9a-f]{{32}}", re.ASCII
)


SESSION: Final = "give its id, or the path of its transcript"
"""The hint for a session that is not known."""


def is_session_id(text: object) -> bool:
    """Return whether a session may be called so: nothing else is made part of a path."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def check_part(session: str, part: SessionPart) -> SessionPart:
    """Return a part of a session of another store if it is valid.

    Raises:
        StorageError: no session has such a part.
    """
    if not (is_session_id(session) and _PART.fullmatch(part.name)):
        said = f"{session[:100]!r} holds {part.name[:100]!r}"
        raise StorageError(f"{said}, which no session does: the store is damaged")
    return part


def new_session_id() -> str:
    """Make a session id that sorts by time: date, time (UTC) and eight random digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


@dataclass(eq=False)
class MemoryStore:
    """A store in memory, for tests and for callers who keep transcripts themselves.

    The last `MAX_MEMORY_SESSIONS` sessions can be opened again. Their artifacts together are
    bounded as those of one session on disk.
    """

    secret = secrets.token_bytes(32)
    _transcripts: dict[str, Transcript] = field(default_factory=dict, init=False)
    _blobs: dict[tuple[str, str], bytes] = field(default_factory=dict, init=False)

    def create(self) -> SessionFiles:
        session = new_session_id()
        self._transcripts[session] = Transcript()
        # A long-running program would else keep every question ever asked.
        while len(self._transcripts) > MAX_MEMORY_SESSIONS:
            del self._transcripts[next(iter(self._transcripts))]
        return self._files(session, self._transcripts[session])

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """Open a session of this store to go on with it.

        Raises:
            UsageError: there is no such session.
            TranscriptError: it is in use.
        """
        files = self.read(session)
        if files.transcript.in_use:
            raise TranscriptError("the session is in use", hint="wait for it to end")
        files.transcript.in_use = True
        return files

    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        """Read a session of this store, in use or not. Raise as `open` does."""
        name = require_path("session", session, SESSION)
        kept = self._transcripts.get(name)
        if kept is None:
            raise UsageError(f"there is no session {name!r} in memory")
        return self._files(name, kept)

    def _files(self, session: str, transcript: Transcript) -> SessionFiles:
        return SessionFiles(session, transcript, ArtifactStore(BlobMemory(session, self._blobs)))
