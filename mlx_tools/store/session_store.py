"""The interface of session stores, the status of a session, and a store in memory."""

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
    calls_in_doubt,
    count,
    find_last_state,
    pending_calls,
)

if TYPE_CHECKING:
    from mlx_tools.store.tables import FileFormat, Tables

LAST: Final = "last"
"""A word that can be given instead of an id: it means the session with the last write."""
_MEANT_LAST: Final = frozenset(("latest", "newest", "recent", "previous", "current"))
"""Words that may be typed for it."""

MAX_MEMORY_SESSIONS: Final = 256
"""Sessions that a `MemoryStore` keeps; the oldest are dropped first. It bounds the memory."""


class SessionFiles(Struct, frozen=True):
    """An open session."""

    session: str
    """The session's id."""
    transcript: Transcript
    artifacts: ArtifactStore | None = None
    """The store of long outputs, None if they are not stored."""
    access: RunPermit = msgspec.field(default_factory=RunPermit)
    """The access list of the session's runs."""
    consumed_approvals: ConsumedApprovals = msgspec.field(default_factory=ConsumedApprovals)
    """The approvals of the store that were consumed."""
    undo: UndoStore | None = None
    """The store of old contents of files, None if they are not stored."""

    @property
    def path(self) -> str | None:
        """The path of the transcript, None if it is not in a file."""
        return None if self.transcript.path is None else str(self.transcript.path)


class SessionPart(NamedTuple):
    """One stored part of a session, such as its transcript or an artifact."""

    name: str
    """The path of its file in a `TranscriptStore`, below the session's folder."""
    written_at: float
    """The time when it was written, in seconds since 1970."""
    data: bytes
    """Its content."""


class StoreKeys(NamedTuple):
    """The key of a store's approvals, and the consumed approvals."""

    secret: bytes | None
    """The key, None if there is none yet."""
    consumed_approvals: Sequence[str]
    """The approvals' digests."""


# --- the status of a session, by its records alone: without tools or a model --------------------

SessionState = Literal[
    "answered", "paused", "stopped", "running", "interrupted", "damaged", "empty"
]
"""The state of a session, in one word.

* ``answered``: the last question was answered.
* ``paused``: the session waits for a person.
* ``stopped``: the last run ended without an answer.
* ``running``: a process has the session open.
* ``interrupted``: its process ended in the middle of a run.
* ``damaged``: the session cannot be read.
* ``empty``: nothing was asked yet.
"""

_END_STATES: Final = frozenset({"answered", "stopped", "empty"})


class SessionStatus(Struct, frozen=True, kw_only=True):
    """The state of a session by its records: see `session_status`."""

    state: SessionState
    reason: str = ""
    """The reason why the session stopped, or why it cannot be read."""
    created: str = ""
    """The time when the session was made, as its header has it."""
    model: str | None = None
    """The name of the model, None if unknown."""
    question: str = ""
    """The first question."""
    questions: int = 0
    """The number of questions."""
    first_call: str = ""
    """The name of the first call."""
    pending: tuple[PendingCall, ...] = ()
    """The calls that wait for a person's decision."""
    in_doubt: tuple[str, ...] = ()
    """The keys of calls that were started, can change things, and have no known end."""

    @property
    def is_finished(self) -> bool:
        """True if the session is neither running nor paused, and no call is in doubt."""
        return self.state in _END_STATES and not self.in_doubt


class ListedSession(Struct, frozen=True, kw_only=True):
    """A session of a store, as listings show it."""

    session: str
    """The session's id."""
    path: Path | None
    """The path of the transcript, None if it is not in a file."""
    status: SessionStatus
    updated: float = 0.0
    """The time of the last write, in seconds since 1970."""
    size: int = 0
    """The bytes of the session, with its artifacts."""


def session_status(records: Sequence[Record]) -> SessionStatus:
    """Return the status of a session by its records, if no process has it open.

    Neither tools nor a policy are needed.
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

    Times are in seconds since 1970, and 0 if unknown.
    """

    status: SessionStatus
    counters: Counters
    records: int = 0
    """The number of records."""
    parent: str = ""
    """The id of the session that this one continues or belongs to, empty if there is none."""
    first_asked: float = 0.0
    """The time of the first question; without questions, the time when the session was made."""
    last_asked: float = 0.0
    """The time of the latest question, as ``first_asked``."""
    folder: str = ""
    """The working directory in which the session began, empty if unknown."""


def summarize(records: Sequence[Record]) -> SessionSummary:
    """Return the summary of a session's records, if no process has the session open."""
    header = records[0] if records and isinstance(records[0], Header) else None
    questions = [record for record in records if isinstance(record, UserRecord)]
    times = [find_question_time(question, header) for question in questions] or [
        find_question_time(None, header)
    ]
    return SessionSummary(
        status=session_status(records),
        counters=count(records),
        records=len(records),
        parent=header.parent if header else "",
        first_asked=times[0],
        last_asked=max(times),
        folder=header.folder if header else "",
    )


def find_question_time(question: Record | None, header: Record | None) -> float:
    """Return the time of a question, or of its session if the question has none.

    The time is in seconds since 1970; 0 if neither is recorded.
    """
    for text in (getattr(question, "recorded_at", ""), getattr(header, "created", "")):
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return 0.0


# --- the interface ------------------------------------------------------------------------------


class SessionStore(ABC):
    """A store of sessions, and of the tables besides them.

    Reading a session needs neither tools nor a model, and creates nothing. Only one process at a
    time writes to a session: it locks the session until the transcript is closed or the process
    ends.

    Args:
        keep: seconds for which artifacts are stored.
        max_bytes: the limit of the bytes of one session's artifacts.
        keep_all: True to store every output as an artifact. Otherwise only outputs that were
            truncated for the model are stored, and those after the first tool error of a run.
        watched: the paths of configuration files and their `fingerprints` when they were read. If
            one of the files changes, a run calls no more tools.

    Raises:
        UsageError: an argument is not valid.
    """

    place: str
    """The store's name in messages."""
    dsn: str | None = None
    """The address of the database with the queue of runs, None for files."""

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
        """Try to store some bytes. Raise `UsageError` or `StorageError` if that fails."""

    # --- opening ---

    @property
    @abstractmethod
    def secret(self) -> bytes:
        """The key of approval digests. It is made once, and is not part of any session.

        Raises:
            StorageError: the key can be neither read nor made.
        """

    @abstractmethod
    def create(self) -> SessionFiles:
        """Create a session, and remove expired artifacts of older sessions.

        Raises:
            StorageError: the session cannot be stored.
        """

    @abstractmethod
    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """Open a session to continue it, by its id or the path of its transcript.

        It is locked until its transcript is closed.

        Raises:
            UsageError: there is no such session.
            TranscriptError: the session is damaged or in use.
        """

    @abstractmethod
    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        """Read a session, without locking or changing it. Raise as `open` does."""

    # --- listing and reading ---

    @abstractmethod
    def ids(self) -> list[str]:
        """Return the ids of the sessions, the newest first: ids sort by time."""

    @abstractmethod
    def by_last_update(self, limit: int | None = None) -> list[str]:
        """Return at most ``limit`` ids, the session with the last write first."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of sessions."""

    @abstractmethod
    def matching_ids(self, begin: str) -> list[str]:
        """Return the ids that begin with this text, the newest first."""

    def find(self, session_id: str) -> str:
        """Return the full id for an id, the beginning of an id, or ``last``.

        It is always the id of an existing session: no path is made of the ``session_id`` as given.

        Raises:
            UsageError: no session matches, or more than one.
        """
        ids = self.matching_ids(session_id) if is_session_id(session_id) else []
        if session_id in ids:
            return session_id
        if session_id == LAST:
            ids = self.by_last_update(1)
        if len(ids) == 1:
            return ids[0]
        if not ids:
            if self.count() == 0:
                raise UsageError("there are no sessions")
            is_last_meant = session_id.casefold() in {LAST, *_MEANT_LAST}
            raise UsageError(
                f"there is no session {session_id[:100]}",
                hint=f"did you mean {LAST}?" if is_last_meant else "mlx-tools sessions list",
            )
        more = f" and {len(ids) - 4} more" if len(ids) > 4 else ""
        raise UsageError(
            f"{session_id} is the beginning of {len(ids)} sessions",
            hint=f"{', '.join(ids[:4])}{more}",
        )

    def has(self, session: str) -> bool:
        """Return True if there is a session of this id; False for a text that is no id."""
        return is_session_id(session) and self.size(session) >= 0

    @abstractmethod
    def size(self, session: str) -> int:
        """Return the size of a transcript in bytes, -1 if there is none."""

    @abstractmethod
    def updated(self, session: str) -> float:
        """Return the time of a session's last write, in seconds since 1970; 0 if unknown."""

    @abstractmethod
    def records(self, session: str) -> Sequence[Record]:
        """Return the records of a session. Raise `TranscriptError` if it is unreadable."""

    def summary(self, session: str) -> SessionSummary:
        """Return the summary of a session. Raise as `records` does."""
        return summarize(self.records(session))

    def summaries(self) -> Iterator[tuple[str, SessionSummary | TranscriptError]]:
        """Yield each id, the newest first, with the summary or the error of reading it."""
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
        """Return the path of a session's transcript, None if it is not in a file."""
        return None

    @abstractmethod
    def size_bytes(self, session: str) -> int:
        """Return the size of a session in bytes, with its artifacts and all other parts."""

    def describe(self, session: str) -> ListedSession:
        """Return a session as listings show it, also if it is damaged."""
        updated, size = self.updated(session), self.size_bytes(session)
        try:
            running = self.in_use(session)  # before the summary: the process may end in between
            status = self.summary(session).status
            if running:
                status = replace(status, state="running", reason="")
        except StorageError:
            raise
        except TranscriptError as error:
            status = SessionStatus(state="damaged", reason=str(error))
        path = self.path(session)
        return ListedSession(session=session, path=path, status=status, updated=updated, size=size)

    # --- parts of a session besides its transcript, by its id or the path of its folder ---

    def artifacts(self, session_key: str | os.PathLike[str]) -> ArtifactStore:
        """Return the store of a session's outputs."""
        blobs = self._open_blobs(session_key, ARTIFACTS, self.keep, self.max_bytes)
        return ArtifactStore(blobs, keep_all=self.keep_all, sweep=self._sweep_if_due)

    def undo(self, session_key: str | os.PathLike[str], *, keep: float) -> UndoStore:
        """Return the store of old contents of files, of the last ``keep`` seconds."""
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

    def _sweep_if_due(self) -> None:  # noqa: B027 - not every store has to look for expired blobs
        """Remove expired artifacts of other sessions, if it was not done recently.

        So they are also removed while a program runs for days.
        """

    # --- the sessions themselves ---

    def remove(self, session: str, *, force: bool = False) -> bool:
        """Remove a finished session; with ``force``, any session that is not in use.

        The session is locked before its status is read.

        Returns:
            True if the session was removed.

        Raises:
            TranscriptError: the files cannot be removed.
        """
        with ExitStack() as stack:
            try:
                # Locked first: no process may open it between the check and the removal.
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
        """Remove a locked session. Return False if another process has removed it already."""

    @abstractmethod
    def hold(self, session: str) -> AbstractContextManager[None]:
        """Lock a session while the block runs, so that no other process can open it.

        Raises:
            SessionInUse: another process has it open.
            TranscriptError: there is no such session.
        """

    @abstractmethod
    def in_use(self, session: str) -> bool:
        """Return True if a process has the session open, or if it does not exist."""

    def sweep(self) -> None:  # noqa: B027 - not every store leaves files behind
        """Remove the files that an interrupted removal left behind."""

    @abstractmethod
    def tables(self, form: FileFormat) -> Tables:
        """Return the store's tables of a format."""

    # --- stored bytes, for a copy ---

    @abstractmethod
    def lock_for_import(self) -> AbstractContextManager[None]:
        """Lock the store for an import; flush to disk on exit.

        Raises:
            StorageError: another import is under way.
        """

    @abstractmethod
    def keys(self) -> StoreKeys:
        """Return the keys of this store, without making any. Raise `StorageError`."""

    @abstractmethod
    def import_keys(self, keys: StoreKeys) -> None:
        """Add another store's consumed approvals, and its key if this store has none.

        Raises:
            StorageError: the keys cannot be stored.
        """

    @abstractmethod
    def parts(self, session: str) -> Iterator[SessionPart]:
        """Yield all parts of a session, its transcript first.

        A line of the transcript that a crash cut off is left out, as `open` does. The access list
        is left out, too: it counts only for a run that goes on.

        Raises:
            TranscriptError: the session does not exist or cannot be read.
        """

    @abstractmethod
    def import_session(self, session: str, parts: Iterable[SessionPart]) -> int:
        """Store a session of another store, all or nothing. Return its size in bytes.

        Raises:
            StorageError: the session cannot be stored, or this store has a session of its id.
        """


_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}", re.ASCII)
_PART: Final = re.compile(
    rf"{re.escape(NAME)}|(?:{ARTIFACTS}|{re.escape(UNDO_FOLDER)})/[0-9a-f]{{32}}", re.ASCII
)


SESSION: Final = "give its id, or the path of its transcript"
"""The hint for an unknown session."""


def is_session_id(text: object) -> bool:
    """Return True for a valid id. Only valid ids may become part of a path."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def check_part(session: str, part: SessionPart) -> SessionPart:
    """Return a part of another store's session unchanged, if its name is valid.

    Raises:
        StorageError: no session has a part of this name.
    """
    if not (is_session_id(session) and _PART.fullmatch(part.name)):
        names = f"{session[:100]!r} has a part {part.name[:100]!r}"
        raise StorageError(f"{names}, which no session has: the store is damaged")
    return part


def make_session_id() -> str:
    """Make a session id that sorts by time: date, time (UTC), eight random digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


@dataclass(eq=False)
class MemoryStore:
    """A store in memory, for tests and for callers that store transcripts themselves.

    The last `MAX_MEMORY_SESSIONS` sessions can be opened again. All their artifacts together have
    the limit of one session on disk.
    """

    secret = secrets.token_bytes(32)
    _transcripts: dict[str, Transcript] = field(default_factory=dict, init=False)
    _blobs: dict[tuple[str, str], bytes] = field(default_factory=dict, init=False)

    def create(self) -> SessionFiles:
        session = make_session_id()
        self._transcripts[session] = Transcript()
        # Otherwise a long-running program would keep every question for ever.
        while len(self._transcripts) > MAX_MEMORY_SESSIONS:
            del self._transcripts[next(iter(self._transcripts))]
        return self._files(session, self._transcripts[session])

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """Open a session of this store to continue it.

        Raises:
            UsageError: there is no such session.
            TranscriptError: the session is in use.
        """
        files = self.read(session)
        if files.transcript.in_use:
            raise TranscriptError("the session is in use", hint="wait for it to end")
        files.transcript.in_use = True
        return files

    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        """Read a session of this store, in use or not. Raise as `open` does."""
        name = require_path("session", session, SESSION)
        transcript = self._transcripts.get(name)
        if transcript is None:
            raise UsageError(f"there is no session {name!r} in memory")
        return self._files(name, transcript)

    def _files(self, session: str, transcript: Transcript) -> SessionFiles:
        return SessionFiles(session, transcript, ArtifactStore(BlobMemory(session, self._blobs)))
