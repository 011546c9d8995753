"""Events, which a run tells while it goes on: one for each record that says something, and deltas.

`event_of` makes the events of records, live or of a transcript that is read again; all others are
of the moment. The last one is `Finished`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from msgspec import Struct, field, to_builtins

from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.transcript.outcome import Outcome
from mlx_tools.transcript.records import (
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    ExecutionRecord,
    MendKind,
    MendRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    dropped,
)

_PREVIEW_CHARS: Final = 200


class Event(Struct, frozen=True, kw_only=True):
    """The root of all events."""

    type: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.type = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        """The event as one JSON object, its ``type`` in snake case: a line of ``--events``."""
        return {"type": self.type, **to_builtins(self)}


# --- of records -----------------------------------------------------------------------------------


class TurnEnded(Event, frozen=True, kw_only=True):
    """A completion is there. ``usage`` holds None where the server reported nothing."""

    turn: int
    usage: Usage
    duration_ms: int | None


class Mended(Event, frozen=True, kw_only=True):
    """A turn was mended while it was written. ``kind`` says what did not fit, ``dropped`` is what
    the model had written from there on, ``replacement`` what stands there instead; empty: it wrote
    on."""

    turn: int
    kind: MendKind
    dropped: str
    replacement: str = field(name="put")


class FormatBroken(Event, frozen=True, kw_only=True):
    """A turn could not be read; the model is told so."""

    turn: int
    error: ErrorInfo


class CallRead(Event, frozen=True, kw_only=True):
    """A call was read, whole."""

    call: str
    name: str
    arguments: Mapping[str, Any]
    repairs: tuple[str, ...] = ()


class CallDecided(Event, frozen=True, kw_only=True):
    """Policy has decided about a call."""

    call: str
    name: str
    decision: Literal["allow", "ask", "deny"]
    rule: str
    reason: str


class ToolStarted(Event, frozen=True, kw_only=True):
    """A tool begins to run."""

    call: str
    name: str


class ToolEnded(Event, frozen=True, kw_only=True):
    """A call has its observation. ``preview`` is the beginning of what the model is shown;
    ``cached``: nothing ran, it is what the same call was answered before."""

    call: str
    name: str
    error: ErrorInfo | None
    preview: str
    duration_ms: int | None
    output_size_chars: int | None
    cached: bool = False


class Compacted(Event, frozen=True, kw_only=True):
    """The oldest of the prompt was replaced: so many turns, and observations of later ones.

    ``reason`` says whether somebody ``asked`` for it, the context was ``filling``, or ``full``;
    ``summary``: the model summed them up. ``before`` and ``after`` are the prompt's tokens, None
    where the context's size is unknown.
    """

    reason: Literal["asked", "filling", "full"]
    turns: int
    observations: int
    summary: bool
    before: int | None
    after: int | None


def event_of(
    record: Record, records: Sequence[Record], later_records: Iterable[Record] = ()
) -> Event | None:
    """The event of a record, None where it has none. ``records`` are the session's up to this one,
    ``later_records`` those that follow from the same completion."""
    match record:
        case CompletionRecord():
            return _event(TurnEnded, record)
        case MendRecord():
            return _event(Mended, record, dropped=dropped([*_mends(records)][::-1]))
        case CorrectionRecord():
            return _event(FormatBroken, record)
        case CallRecord():
            repairs = (
                r for r in later_records if isinstance(r, RepairRecord) and r.call == record.call
            )
            return _event(CallRead, record, repairs=tuple(repair.name for repair in repairs))
        case DecisionRecord():
            return _event(CallDecided, record, name=_name(record.call, records))
        case ExecutionRecord():
            return _event(ToolStarted, record, name=_name(record.call, records))
        case ObservationRecord():
            shown = record.error.message if record.error is not None else record.content or ""
            return _event(ToolEnded, record, preview=shown[:_PREVIEW_CHARS])
        case CompactedRecord():
            left, summary = len(record.observations), record.reason != "full"
            return _event(Compacted, record, observations=left, summary=summary)
    return None


def _event(kind: type[Event], record: Record, **fields: Any) -> Event:
    """The event with the record's own values, and ``fields`` that do not stand in it."""
    own = (name for name in kind.__struct_fields__ if name not in fields)
    return kind(**{name: getattr(record, name) for name in own}, **fields)


def _name(call: str, records: Sequence[Record]) -> str:
    calls = (r for r in reversed(records) if isinstance(r, CallRecord) and r.call == call)
    return next((record.name for record in calls), "")


def _mends(records: Sequence[Record]) -> Iterator[MendRecord]:
    """The mends of the turn that is being written, the last one first."""
    for record in reversed(records):
        if not isinstance(record, MendRecord):
            return
        yield record


OF_RECORDS: Final = (
    *(TurnEnded, Mended, FormatBroken, CallRead, CallDecided, ToolStarted, ToolEnded, Compacted),
)
"""Those that are told again of a transcript that is read again."""


# --- of the moment -------------------------------------------------------------------------------


class TurnStarted(Event, frozen=True, kw_only=True):
    """The model is asked to go on. ``prompt_chars`` is the length of the whole prompt."""

    turn: int
    prompt_chars: int


class AnswerPiece(Event, frozen=True, kw_only=True):
    """Text of the answer, as it forms."""

    turn: int
    text: str


class ThoughtPiece(Event, frozen=True, kw_only=True):
    """Text of what the model thinks before it speaks, as it forms."""

    turn: int
    text: str


class CallOpened(Event, frozen=True, kw_only=True):
    """The model has begun to write a call; nothing is decided yet."""

    turn: int
    index: int
    name: str


class ArgumentsPiece(Event, frozen=True, kw_only=True):
    """Raw text of a call's arguments, as it forms."""

    turn: int
    index: int
    text: str


class WouldChange(Event, frozen=True, kw_only=True):
    """In a dry run: a call that was not made, and what it would have changed, as an approval shows
    it (a unified diff); empty where its tool cannot tell."""

    call: str
    name: str
    preview: str


class ContextFilling(Event, frozen=True, kw_only=True):
    """Four fifths of the model's context are used, or more; told once. Both are in tokens."""

    size: int
    used: int


class ToolProgress(Event, frozen=True, kw_only=True):
    """A tool tells how far it has come; ``fraction`` from 0 to 1 where it is known."""

    call: str
    name: str
    message: str
    fraction: float | None


class Finished(Event, frozen=True, kw_only=True):
    """The run has ended, or waits for a person."""

    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "outcome": self.outcome.to_json()}
