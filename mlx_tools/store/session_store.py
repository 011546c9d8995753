"""Where sessions live, and where each stands: the seam that applications go through, what it opens,
and a store in memory."""

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
from mlx_tools.store.transcript import NAME, Transcript
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
    at_rest,
    calls_in_doubt,
    count,
    pending_calls,
)

if TYPE_CHECKING:
    from mlx_tools.store.tables import FileFormat, Tables

LAST: Final = "last"
"""Stands for the session that was last written to, wherever an id is taken."""

KEPT: Final = 256
"""Sessions that a `MemoryStore` keeps; the oldest are dropped first."""


class SessionFiles(Struct, frozen=True):
    """An open session: its id, its transcript, where long outputs go (None: nowhere), the access
    list of its runs, the approvals that were used up, and where what its calls replace is kept
    (None: nowhere)."""

    session: str
    transcript: Transcript
    artifacts: ArtifactStore | None = None
    access: RunPermit = msgspec.field(default_factory=RunPermit)
    used: ConsumedApprovals = msgspec.field(default_factory=ConsumedApprovals)
    undo: UndoStore | None = None

    @property
    def path(self) -> str | None:
        return None if self.transcript.path is None else str(self.transcript.path)


class SessionPart(NamedTuple):
    """Something that a session keeps, byte for byte: its name, as that of its file where there are
    files, and when it was written, in seconds since 1970."""

    name: str
    at: float
    data: bytes


class StoreKeys(NamedTuple):
    """The key of a store's approvals, None where there is none yet, and the approvals that were
    used up, by their digests."""

    secret: bytes | None
    used: Sequence[str]


# --- where a session stands, by its records alone: without tools or a model ---------------------

SessionState = Literal[
    "answered", "paused", "stopped", "running", "interrupted", "damaged", "empty"
]
"""Where a session stands: its last question was answered; it waits for a person; it ended without
an answer; a process is at it; its process ended in the middle; it cannot be read; it holds nothing.
"""

_ENDED: Final = frozenset({"answered", "stopped", "empty"})


class SessionStatus(Struct, frozen=True, kw_only=True):
    """The state of a session by its records: see `session_status`.

    ``reason`` is that of a session that stopped, or what is wrong with one that is damaged.
    ``question`` is the first one, ``first_call`` the name of the first call. ``in_doubt`` are the
    keys of calls that were started, can change things, and have no known end.
    """

    state: SessionState
    reason: str = ""
    created: str = ""
    model: str | None = None
    question: str = ""
    questions: int = 0
    first_call: str = ""
    pending: tuple[PendingCall, ...] = ()
    in_doubt: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """True if nobody waits for it and nothing of it is open."""
        return self.state in _ENDED and not self.in_doubt


class ListedSession(Struct, frozen=True, kw_only=True):
    """A session of a store. ``path`` is its transcript's, None where it is no file; ``updated`` is
    when that was last written, in seconds since 1970; ``size`` the bytes that the session takes,
    artifacts included."""

    session: str
    path: Path | None
    status: SessionStatus
    updated: float = 0.0
    size: int = 0


def session_status(records: Sequence[Record]) -> SessionStatus:
    """The standing of a session by its records, which no process is adding to.

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
    match at_rest(records):
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
    )


def asked_at(question: Record | None, header: Record | None) -> float:
    """Return when a question was asked, else when its session was made.

    In seconds since 1970; 0 if neither is recorded.
    """
    for text in (getattr(question, "at", ""), getattr(header, "created", "")):
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return 0.0


# --- the seam -----------------------------------------------------------------------------------


class SessionInUse(TranscriptError):
    """Another process has the session open."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"the session {session} is in use by another process", hint="wait for it to end"
        )


class SessionStore(ABC):
    """Where sessions are kept, and the tables beside them.

    What is read of sessions needs no tools and no model, and makes nothing. One process at a time
    writes to a session: whoever has opened it holds it until its transcript is closed, or the
    process ends, however it ends. ``place`` is what messages call the store, ``dsn`` leads to the
    queue of runs in the database that it is in, None where it is in files.

    ``keep`` is how many seconds artifacts stay, ``max_bytes`` what those of one session may take.
    With ``keep_all`` every output becomes one, not only what a model cannot see whole and what ran
    beside a tool that failed. ``watched`` are the places of configuration files and what was there
    when they were read (`fingerprints`): once one changes, no run calls anything more. Raises
    `UsageError` where one of them cannot be.
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
        """Try to keep something. Raises `UsageError` or `StorageError` where it cannot be."""

    # --- going on ---

    @property
    @abstractmethod
    def secret(self) -> bytes:
        """The key of approval digests: made once, kept beside the sessions, not in them.

        Raises `StorageError` where it can be neither read nor made.
        """

    @abstractmethod
    def create(self) -> SessionFiles:
        """A new session; artifacts of older ones that have expired are removed.

        Raises `StorageError` where it cannot be kept.
        """

    @abstractmethod
    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session, to go on with: by its id, or by the path of its transcript.

        It is held until its transcript is closed. Raises `UsageError` where there is none,
        `TranscriptError` where it is damaged or in use.
        """

    @abstractmethod
    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session, to be looked at: not held, and not changed. Raises what `open` raises."""

    # --- looking ---

    @abstractmethod
    def ids(self) -> list[str]:
        """The ids of the sessions, the newest first: ids sort by time."""

    @abstractmethod
    def by_last_update(self, limit: int | None = None) -> list[str]:
        """Return at most ``limit`` ids, the one first that was last written to."""

    @abstractmethod
    def count(self) -> int:
        """Return how many sessions there are."""

    @abstractmethod
    def _matching(self, begin: str) -> list[str]:
        """Return the ids that begin with this text, the newest first."""

    def find(self, session_id: str) -> str:
        """The id that is meant by an id, the beginning of one, or ``last``.

        What is returned is the id of a session that is there: a path is never made of
        ``session_id``. Raises `UsageError` where none or several are meant.
        """
        found = self._matching(session_id) if is_session_id(session_id) else []
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
        """The bytes of a transcript, -1 where there is none."""

    @abstractmethod
    def updated(self, session: str) -> float:
        """When a session was last written to, in seconds since 1970; 0 where nothing says it."""

    @abstractmethod
    def records(self, session: str) -> Sequence[Record]:
        """The records of a session. Raises `TranscriptError` where it cannot be read."""

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
        """The path of a transcript that is a file, by an id that `find` or `ids` gave."""
        return None

    @abstractmethod
    def size_bytes(self, session: str) -> int:
        """The bytes that a session takes, with all that it keeps."""

    def listed(self, session: str) -> ListedSession:
        """One session, as a listing shows it. One that is damaged is told as such."""
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
        """The place where outputs of a session are kept."""
        kept = self._kept(session_key, ARTIFACTS, self.keep, self.max_bytes)
        return ArtifactStore(kept, keep_all=self.keep_all, sweep=self._sweep_if_due)

    def undo(self, session_key: str | os.PathLike[str], *, keep: float) -> UndoStore:
        """What the calls of a session replaced, as far as it is younger than ``keep`` seconds."""
        return UndoStore(self._kept(session_key, UNDO_FOLDER, keep, MAX_BYTES))

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
    def _kept(
        self, session_key: str | os.PathLike[str], kind: str, keep: float, max_bytes: int
    ) -> BlobStore: ...

    @abstractmethod
    def _access(self, session_key: str | os.PathLike[str]) -> RunPermit: ...

    @property
    @abstractmethod
    def _consumed_approvals(self) -> ConsumedApprovals: ...

    def _sweep_if_due(self) -> None:  # noqa: B027 - not every store has to look for what expired
        """Remove what has expired in other sessions, now and then: also where a program runs for
        days."""

    # --- the sessions themselves ---

    def remove(self, session: str, *, force: bool = False) -> bool:
        """Remove a session that has ended, or with ``force`` any that no process is at.

        It is held meanwhile, and looked at again. Returns whether it was removed. Raises
        `TranscriptError` where the disk does not let it.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self.held(session))
                ended = session_status(self.records(session)).ended
            except SessionInUse:
                return False
            except StorageError:
                raise
            except TranscriptError:  # it is damaged
                ended = False
            return (ended or force) and self._delete(session)

    @abstractmethod
    def _delete(self, session: str) -> bool:
        """Remove a session that is held; False where another was quicker."""

    @abstractmethod
    def held(self, session: str) -> AbstractContextManager[None]:
        """Keeps other processes from going on with a session. Raises `SessionInUse` where one
        is at it, `TranscriptError` where there is none."""

    @abstractmethod
    def in_use(self, session: str) -> bool:
        """Whether a process is at a session, or there is none."""

    def sweep(self) -> None:  # noqa: B027 - not every store leaves something behind
        """Remove what a removal left behind that did not come to its end."""

    @abstractmethod
    def tables(self, form: FileFormat) -> Tables:
        """The tables of a format beside the sessions."""

    # --- as it is kept: for a copy ---

    @abstractmethod
    def taking_in(self) -> AbstractContextManager[None]:
        """Keeps other copies out of this store; at its end what was taken in lasts. Raises
        `StorageError` where another is under way."""

    @abstractmethod
    def keys(self) -> StoreKeys:
        """The keys of this store; none is made. Raises `StorageError`."""

    @abstractmethod
    def take_keys(self, keys: StoreKeys) -> None:
        """Keep another store's key where there is none here, and what was used up there. Raises
        `StorageError`."""

    @abstractmethod
    def parts(self, session: str) -> Iterator[SessionPart]:
        """All that a session keeps, its transcript first: without a line that a crash cut off, as
        whoever opens it, and without an access list, which would help no run. Raises
        `TranscriptError` where there is none, or it cannot be read."""

    @abstractmethod
    def take_in(self, session: str, parts: Iterable[SessionPart]) -> int:
        """Keep a session of another store, whole or not at all; return of how many bytes. Raises
        `StorageError` where it cannot be, or one of this id is here."""


_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}", re.ASCII)
_PART: Final = re.compile(
    rf"{re.escape(NAME)}|(?:{ARTIFACTS}|{re.escape(UNDO_FOLDER)})/[0-9a-f]{{32}}", re.ASCII
)


SESSION: Final = "give its id, or the path of its transcript"
"""What says which session is meant."""


def is_session_id(text: object) -> bool:
    """Return whether a session may be called so: nothing else is made part of a path."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def check_part(session: str, part: SessionPart) -> SessionPart:
    """A part of a session of another store. Raises `StorageError` where no session has such."""
    if not (is_session_id(session) and _PART.fullmatch(part.name)):
        said = f"{session[:100]!r} holds {part.name[:100]!r}"
        raise StorageError(f"{said}, which no session does: the store is damaged")
    return part


def new_session_id() -> str:
    """A session id that sorts by time: date, time (UTC) and eight random digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


@dataclass(eq=False)
class MemoryStore:
    """Keeps nothing on disk: for tests, and for callers who keep transcripts themselves.

    The last sessions can be opened again, `KEPT` of them; their artifacts together are bounded as
    those of one session on disk.
    """

    secret = secrets.token_bytes(32)
    _kept: dict[str, Transcript] = field(default_factory=dict, init=False)
    _blobs: dict[tuple[str, str], bytes] = field(default_factory=dict, init=False)

    def create(self) -> SessionFiles:
        session = new_session_id()
        self._kept[session] = Transcript()
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return self._files(session, self._kept[session])

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session of this store, to go on with. Raises `UsageError` where there is none,
        `TranscriptError` where it is in use."""
        files = self.read(session)
        if files.transcript.in_use:
            raise TranscriptError("the session is in use", hint="wait for it to end")
        files.transcript.in_use = True
        return files

    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        """A session of this store, to be looked at, in use or not. Raises what `open` raises."""
        name = require_path("session", session, SESSION)
        kept = self._kept.get(name)
        if kept is None:
            raise UsageError(f"there is no session {name!r} in memory")
        return self._files(name, kept)

    def _files(self, session: str, transcript: Transcript) -> SessionFiles:
        return SessionFiles(session, transcript, ArtifactStore(BlobMemory(session, self._blobs)))
