"""A folder of sessions, as it is read: where each of them stands, and which may be removed.

A listing needs no tools, no model and no settings: what it says follows from the records alone, and
from whether somebody holds the transcript's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.store.transcript import NAME, parse
from mlx_tools.transcript import (
    AnswerRecord,
    ApprovalRecord,
    CallRecord,
    DecisionRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    PauseRecord,
    PendingCall,
    Record,
    StoppedRecord,
    UserRecord,
    at_rest,
    pending_calls,
)

SessionState = Literal[
    "answered", "paused", "stopped", "running", "interrupted", "damaged", "empty"
]
"""Where a session stands: its last question was answered; it waits for a person; it ended without
an answer; a process is at it; its process ended in the middle; it cannot be read; it holds nothing.
"""

LAST: Final = "last"
"""Stands for the session that was last written to, wherever an id is taken."""

_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}", re.ASCII)
_REMOVED: Final = ".removed-"
_ENDED: Final = frozenset({"answered", "stopped", "empty"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a session by its records: see `standing_of`.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession:
    """A session of a folder. ``updated`` is when its transcript was last written, in seconds since
    1970; ``size`` the bytes that it takes on the disk, artifacts included."""

    session: str
    path: Path
    standing: Standing
    updated: float = 0.0
    size: int = 0


def standing_of(records: Sequence[Record]) -> Standing:
    """The standing of a session by its records, which no process is adding to.

    It folds them once, and knows neither tools nor policy.
    """
    header = records[0] if records and isinstance(records[0], Header) else None
    questions = [record for record in records if isinstance(record, UserRecord)]
    doubt: dict[str, None] = {}
    for record in records:
        if isinstance(record, ExecutionRecord) and record.mutates:
            doubt[record.call] = None
        elif isinstance(record, ObservationRecord | ApprovalRecord):
            doubt.pop(record.call, None)
    known = Standing(
        state="empty",
        created=header.created if header else "",
        model=header.model if header else None,
        question=questions[0].content if questions else "",
        questions=len(questions),
        first_call=next((r.name for r in records if isinstance(r, CallRecord)), ""),
        in_doubt=tuple(doubt),
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


class SessionFolder:
    """The sessions in ``folder``, which need not exist. Nothing here makes a file or a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ids(self) -> list[str]:
        """The ids of the sessions, the newest first: ids sort by time."""
        try:
            with os.scandir(self.folder) as entries:
                found = [
                    entry.name
                    for entry in entries
                    if _ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TranscriptError(
                f"the sessions in {self.folder} cannot be listed: {error.strerror}"
            ) from None
        return sorted(found, reverse=True)

    def by_use(self) -> list[str]:
        """The ids of the sessions, the one first that was last written to."""
        return sorted(self.ids(), key=lambda i: (_last_write(self.path(i)), i), reverse=True)

    def find(self, given: str) -> str:
        """The id that is meant by an id, the beginning of one, or ``last``.

        What is returned is a name that stands in the folder: a path is never made of ``given``.
        Raises `UsageError` where none or several are meant.
        """
        ids = self.ids()
        if given in ids:
            return given
        found = [i for i in ids if given and i.startswith(given)]
        if given == LAST:
            found = self.by_use()[:1]
        if len(found) == 1:
            return found[0]
        if not found:
            raise UsageError(
                f"there is no session {given[:100]}" if ids else "there are no sessions",
                hint="mlx-tools sessions list" if ids else None,
            )
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise UsageError(
            f"{given} is the beginning of {len(found)} sessions",
            hint=f"{', '.join(found[:4])}{more}",
        )

    def path(self, session: str) -> Path:
        """The path of a transcript, by an id that `find` or `ids` gave."""
        return self.folder / session / NAME

    def updated(self, session: str) -> float:
        """When a session was last written to, in seconds since 1970; 0 where nothing says it."""
        return _last_write(self.path(session)) / 1e9

    def records(self, session: str) -> list[Record]:
        """The records of a session. Raises `TranscriptError` where it cannot be read."""
        with self._opened(session) as file:
            return _records(file)

    def listed(self, session: str) -> ListedSession:
        """One session, as a listing shows it. One that is damaged is told as such."""
        path = self.path(session)
        updated, size = 0.0, _size(path.parent)
        try:
            with self._opened(session) as file:
                updated = os.fstat(file).st_mtime
                running = not _locked(file, fcntl.LOCK_SH)
                if not running:
                    fcntl.flock(file, fcntl.LOCK_UN)  # at once: who wants to go on must not wait
                standing = standing_of(_records(file))
        except TranscriptError as error:
            standing, running = Standing(state="damaged", reason=str(error)), False
        if running:
            standing = replace(standing, state="running", reason="")
        return ListedSession(
            session=session, path=path, standing=standing, updated=updated, size=size
        )

    def remove(self, session: str, *, whatever: bool = False) -> bool:
        """Remove a session that has ended, or with ``whatever`` any that no process is at.

        The transcript's lock is held meanwhile, and the session is looked at again under it.
        Returns whether it was removed. Raises `TranscriptError` where the disk does not let it.
        """
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(self._opened(session))
                if not _locked(file, fcntl.LOCK_EX):
                    return False
                ended = standing_of(_records(file)).ended
            except TranscriptError:
                ended = False
            if not (ended or whatever):
                return False
            grave = self.folder / f"{_REMOVED}{session}"
            try:
                # under another name first: what is half removed is no session
                (self.folder / session).rename(grave)
            except FileNotFoundError:  # another process was quicker
                return False
            except OSError as error:
                raise TranscriptError(
                    f"the session {session} cannot be removed: {error.strerror}"
                ) from None
            shutil.rmtree(grave, ignore_errors=True)
            if grave.exists():
                raise TranscriptError(f"not all of the session {session} could be removed: {grave}")
        return True

    @contextlib.contextmanager
    def held(self, session: str) -> Iterator[None]:
        """Keeps other processes from going on with a session. Raises `TranscriptError` where one
        is at it."""
        with self._opened(session) as file:
            if not _locked(file, fcntl.LOCK_EX):
                raise TranscriptError(
                    f"the session {session} is in use by another process", hint="wait for it to end"
                )
            yield

    def sweep(self) -> None:
        """Remove what a removal left behind that did not come to its end."""
        with contextlib.suppress(OSError):
            for grave in self.folder.glob(f"{_REMOVED}*"):
                shutil.rmtree(grave, ignore_errors=True)

    @contextlib.contextmanager
    def _opened(self, session: str) -> Iterator[int]:
        path = self.path(session)
        # not blocked by a pipe that stands in its place
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.open(path, flags)
        except OSError as error:
            raise TranscriptError(
                f"the transcript {path} cannot be opened: {error.strerror}"
            ) from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise TranscriptError(f"the transcript {path} is no file")
            yield file
        finally:
            os.close(file)


def _last_write(transcript: Path) -> int:
    """The time when a session was last written to, 0 where that cannot be had."""
    with contextlib.suppress(OSError):
        return transcript.stat(follow_symlinks=False).st_mtime_ns
    return 0


def _locked(file: int, kind: int) -> bool:
    """Takes the lock where no other process has it; returns whether it did."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _records(file: int) -> list[Record]:
    try:
        with os.fdopen(os.dup(file), "rb") as reader:
            return parse(reader.read())[0]
    except OSError as error:
        raise TranscriptError(f"the transcript cannot be read: {error.strerror}") from None


def _size(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{base}{os.sep}{name}").st_size
    return total
