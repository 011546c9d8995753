"""Where a session stands, as a listing shows it: by its records alone, without tools or a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from mlx_tools.messages import replace
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

_ENDED: Final = frozenset({"answered", "stopped", "empty"})


class Standing(Struct, frozen=True, kw_only=True):
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


class ListedSession(Struct, frozen=True, kw_only=True):
    """A session of a store. ``path`` is its transcript's, None where it is no file; ``updated`` is
    when that was last written, in seconds since 1970; ``size`` the bytes that the session takes,
    artifacts included."""

    session: str
    path: Path | None
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
