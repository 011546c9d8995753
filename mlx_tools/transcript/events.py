"""Events of a run: one for each record of note, and deltas.

`make_event` makes the events of records, live or of a transcript that is read again. All other
events are only live. The last event is `Finished`.
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
    EditRecord,
    ExecutionRecord,
    MendKind,
    MendRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    dropped_text,
)

_PREVIEW_CHARS: Final = 200


class Event(Struct, frozen=True, kw_only=True):
    """The root of all events."""

    type: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.type = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        """Return the event as a JSON object with its ``type``: a line of ``--events``."""
        return {"type": self.type, **to_builtins(self)}


# --- of records -----------------------------------------------------------------------------------


class TurnEnded(Event, frozen=True, kw_only=True):
    """A completion has ended."""

    turn: int
    usage: Usage
    """The tokens; None in it is what the server did not report."""
    duration_ms: int | None


class Mended(Event, frozen=True, kw_only=True):
    """A turn was mended while it was written."""

    turn: int
    kind: MendKind
    """The part that did not fit."""
    dropped: str
    """The text of the model from there on, which was removed."""
    replacement: str = field(name="put")
    """The text that stands there instead, empty if the model wrote on."""


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


class CallEdited(Event, frozen=True, kw_only=True):
    """A person changed the arguments of a call."""

    call: str
    name: str
    arguments: Mapping[str, Any]
    """The new arguments."""


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
    """A call has its observation."""

    call: str
    name: str
    error: ErrorInfo | None
    preview: str
    """The beginning of what the model is shown."""
    duration_ms: int | None
    output_size_chars: int | None
    cached: bool = False
    """True if nothing ran, and the earlier result of the same call is shown."""


class Compacted(Event, frozen=True, kw_only=True):
    """The oldest turns of the prompt were replaced, and observations of later ones."""

    reason: Literal["asked", "filling", "full"]
    """``asked`` by somebody, or since the context was ``filling``, or ``full``."""
    turns: int
    """The number of turns that were replaced."""
    observations: int
    """The number of later observations that were replaced."""
    summary: bool
    """True if the model summarised them."""
    tokens_before: int | None = field(name="before")
    """The prompt's tokens before, None if the context's size is unknown."""
    tokens_after: int | None = field(name="after")
    """The prompt's tokens after, None if the context's size is unknown."""


def make_event(
    record: Record, records: Sequence[Record], later_records: Iterable[Record] = ()
) -> Event | None:
    """Return the event of a record, None if it has none.

    Args:
        record: the record.
        records: the session's records up to this one.
        later_records: records that follow from the same completion.
    """
    match record:
        case CompletionRecord():
            return _event(TurnEnded, record)
        case MendRecord():
            return _event(Mended, record, dropped=dropped_text([*_mends(records)][::-1]))
        case CorrectionRecord():
            return _event(FormatBroken, record)
        case CallRecord():
            repairs = (
                r for r in later_records if isinstance(r, RepairRecord) and r.call == record.call
            )
            return _event(CallRead, record, repairs=tuple(repair.name for repair in repairs))
        case EditRecord():
            return _event(CallEdited, record, name=_name(record.call, records))
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
    """Return the event with the record's own values, and ``fields`` besides."""
    own = (name for name in kind.__struct_fields__ if name not in fields)
    return kind(**{name: getattr(record, name) for name in own}, **fields)


def _name(call: str, records: Sequence[Record]) -> str:
    calls = (r for r in reversed(records) if isinstance(r, CallRecord) and r.call == call)
    return next((record.name for record in calls), "")


def _mends(records: Sequence[Record]) -> Iterator[MendRecord]:
    """Yield the mends of the turn in progress, the last one first."""
    for record in reversed(records):
        if not isinstance(record, MendRecord):
            return
        yield record


RECORD_EVENTS: Final = (
    *(TurnEnded, Mended, FormatBroken, CallRead, CallEdited, CallDecided, ToolStarted, ToolEnded),
    Compacted,
)
"""Those that are told again of a transcript that is read again."""


# --- of the moment -------------------------------------------------------------------------------


class TurnStarted(Event, frozen=True, kw_only=True):
    """The model is asked to go on. ``prompt_chars`` is the length of the whole prompt."""

    turn: int
    prompt_chars: int
    """The length of the whole prompt."""


class AnswerPiece(Event, frozen=True, kw_only=True):
    """Text of the answer, as it arrives."""

    turn: int
    text: str


class ThoughtPiece(Event, frozen=True, kw_only=True):
    """Text of the model's reasoning, as it arrives."""

    turn: int
    text: str


class CallOpened(Event, frozen=True, kw_only=True):
    """The model has begun to write a call; nothing is decided yet."""

    turn: int
    index: int
    name: str


class ArgumentsPiece(Event, frozen=True, kw_only=True):
    """Raw text of a call's arguments, as it arrives."""

    turn: int
    index: int
    text: str


class WouldChange(Event, frozen=True, kw_only=True):
    """A call that a dry run did not make."""

    call: str
    name: str
    preview: str
    """The change that it would have made, as a unified diff; empty if unknown."""


class ContextFilling(Event, frozen=True, kw_only=True):
    """At least four fifths of the model's context are used; sent once."""

    size: int
    """The size of the context, in tokens."""
    used_tokens: int = field(name="used")
    """The tokens in use."""


class ToolProgress(Event, frozen=True, kw_only=True):
    """A tool reports its progress."""

    call: str
    name: str
    message: str
    fraction: float | None
    """Progress from 0 to 1, None if unknown."""


class Finished(Event, frozen=True, kw_only=True):
    """The run has ended, or waits for a person."""

    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type, "outcome": self.outcome.to_json()}
