"""Protocol messages, plain, frozen values: what the model wrote, or the host answers on the wire.

Nothing here knows how they are read, shown or stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mlx_tools.errors import ErrorCode

Style = Literal["jsonl", "markdown-json", "xml", "native"]
"""How messages are written: as `mlx_tools.protocol.styles` has it, or (native) as the model's own
template does."""

Strategy = Literal["auto", "free", "guided", "grammar"]
"""How a completion comes about: held where a message begins, never held, held from its first
character on, or masked by a grammar."""

LongObservations = Literal["cut", "summary"]
Compaction = Literal["off", "auto"]
"""What a model is shown of an output that is too long: head and tail, or a summary between them."""

FinishReason = Literal["stop", "length", "tool_calls"]
"""Why a completion ended: by itself, by its token limit, or (a break of format) at native tool
markers."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A fault in words that a model or a program can act on: at most 500 characters."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as it was read. ``id`` is the model's own, None where it gave none."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    repairs: tuple[str, ...] = ()
    type: ClassVar[str] = "tool_call"


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The answer that ends a run."""

    content: str
    sources: tuple[Any, ...] = ()
    repairs: tuple[str, ...] = ()
    type: ClassVar[str] = "final_answer"


Message = ToolCall | FinalAnswer


@dataclass(frozen=True, slots=True)
class ToolObservation:
    """What the host answers to a call: the tool's output, or an error. One of the two is None."""

    name: str
    content: str | None = None
    error: ErrorInfo | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one completion. A number the server did not report is None, never 0."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


def total_usage(usages: Sequence[Usage]) -> Usage:
    """The sums. One that a completion did not report is unknown for all."""

    def total(values: list[int | None]) -> int | None:
        known = [v for v in values if v is not None]
        return sum(known) if known and len(known) == len(values) else None

    return Usage(
        prompt_tokens=total([u.prompt_tokens for u in usages]),
        cached_tokens=total([u.cached_tokens for u in usages]),
        completion_tokens=total([u.completion_tokens for u in usages]),
    )
