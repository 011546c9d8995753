"""What a session says is due next: the values that it hands to whoever drives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlx_tools.messages import Strategy, ToolSpec
from mlx_tools.protocol import ReadingRules
from mlx_tools.transcript.records import CallRecord, Record


@dataclass(frozen=True, slots=True)
class Thought:
    """How a thinking model is let think before the prefix: within ``budget`` tokens.

    ``opening`` goes on from the prompt, the model's thought follows, ``closing`` ends it.
    """

    opening: str
    closing: str
    marker: str
    budget: int


@dataclass(frozen=True, slots=True)
class Complete:
    """Ask the model to go on from ``prompt`` (which ends in ``rules.prefix``).

    ``strategy`` says how. ``tools`` are those that the model was told of.
    """

    turn: int
    prompt: str
    rules: ReadingRules
    max_tokens: int
    thought: Thought | None = None
    strategy: Strategy = "free"
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Write:
    """These records follow from what is there: append them."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Execute:
    """Run these calls, in parallel."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A person must decide about these calls."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is due: a question, an approval or nothing at all comes next. ``state`` is the
    session's."""

    state: str


Due = Complete | Write | Execute | Ask | Rest
