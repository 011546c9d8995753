"""What a run tells while it goes on: plain values, the last one `Finished`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.transcript.outcome import Outcome
from mlx_tools.transcript.records import MendKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of all events."""

    def to_json(self) -> dict[str, Any]:
        """The event as one JSON object, its ``type`` in snake case: a line of ``--events``."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        return {"type": name} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(value: Any) -> Any:
    match value:
        case Outcome():
            return value.to_json()
        case ErrorInfo():
            return {"code": value.code, "message": value.message}
        case Usage():
            return {f.name: getattr(value, f.name) for f in fields(value)}
        case tuple():
            return [_plain(item) for item in value]
        case Mapping():
            return dict(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(Event):
    """The model is asked to go on. ``prompt_chars`` is the length of the whole prompt."""

    turn: int
    prompt_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPiece(Event):
    """Text of the answer, as it forms."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOpened(Event):
    """The model has begun to write a call; nothing is decided yet."""

    turn: int
    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentsPiece(Event):
    """Raw text of a call's arguments, as it forms."""

    turn: int
    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(Event):
    """A completion is there. ``usage`` holds None where the server reported nothing."""

    turn: int
    usage: Usage
    duration_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended(Event):
    """A turn was mended while it was written. ``kind`` says what did not fit, ``dropped`` is what
    the model had written from there on, ``put`` what stands there instead; empty: it wrote on."""

    turn: int
    kind: MendKind
    dropped: str
    put: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatBroken(Event):
    """What the model wrote could not be read; it is told so."""

    turn: int
    error: ErrorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRead(Event):
    """A call was read, whole."""

    call: str
    name: str
    arguments: Mapping[str, Any]
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDecided(Event):
    """What policy says of a call."""

    call: str
    name: str
    decision: Literal["allow", "ask", "deny"]
    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldChange(Event):
    """In a dry run: what a call would have changed, as an approval shows it (a unified diff)."""

    call: str
    name: str
    preview: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFilling(Event):
    """Four fifths of the model's context are used, or more; told once. Both are in tokens."""

    size: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Event):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(Event):
    """A tool begins to run."""

    call: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress(Event):
    """How far a tool has come; ``fraction`` from 0 to 1 where it is known."""

    call: str
    name: str
    message: str
    fraction: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(Event):
    """A call has its observation. ``preview`` is the beginning of what the model is shown;
    ``cached``: nothing ran, it is what the same call was answered before."""

    call: str
    name: str
    error: ErrorInfo | None
    preview: str
    duration_ms: int | None
    output_size_chars: int | None
    cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The run has ended, or waits for a person."""

    outcome: Outcome
