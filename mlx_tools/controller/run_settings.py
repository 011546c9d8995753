"""How a run speaks with its model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, get_args

from mlx_tools.backends import STRATEGIES, STYLES, FoundVerdict, StrategyChoice, StyleChoice
from mlx_tools.errors import require_texts, wrong_argument
from mlx_tools.messages import Compaction, LongObservations
from mlx_tools.prompt import CATALOG_BUDGET, ChatFormat
from mlx_tools.tools import SCOPES, CacheScope
from mlx_tools.transcript.records import Header

_LONG: Final[tuple[str, ...]] = get_args(LongObservations)
_COMPACT: Final[tuple[str, ...]] = get_args(Compaction)

_FOUND_OUT: Final = frozenset(("chat_format", "context", "model", "strategy", "style", "verdict"))
"""What a header says as it was found out when the session began."""

_HERE: Final = frozenset(("backend", "reasoning", "roots"))
"""What another model, or another machine, has of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a run speaks with its model. All of it stands in the transcript's header.

    ``chat_format`` None is found out by what the backend serves (`mlx_tools.backends.router`), and
    so is ``verdict`` None: what was measured of that model. It decides a ``style`` and a
    ``strategy`` that are ``auto``; where nothing was, they are ``jsonl``, and freely, guided where
    that breaks format. ``strategy`` may also be ``free``, ``guided`` or ``grammar`` (for a backend
    that can hold a model to one). ``reasoning`` is ``off``, ``auto`` or a budget in tokens.
    ``catalog_budget`` is how many tokens the tools may take in the prompt; past it a shortlist is
    shown. ``tool_choice`` is ``auto``, ``none``, ``required`` or a tool's name. A run whose policy
    lacks one of ``require_tools`` fails before the model is asked anything. ``cache`` says how long
    what a call that only reads was answered serves the same call again: for one ``run``, for the
    ``session``, or not at all (``off``). ``long_observations`` says what is shown of an output that
    is too long: head and tail (``cut``), or between them a ``summary`` that the model is asked for,
    of what only reads. ``context`` is how many tokens the model can take; None is found out by what
    the backend serves, where that says it. ``compact`` says whether the model sums up the oldest
    turns by itself once four fifths of these are used (``auto``), or only when it is asked to
    (``off``).

    Raises `UsageError`, naming the setting, for a value that cannot be.
    """

    style: StyleChoice = "auto"
    strategy: StrategyChoice = "auto"
    verdict: FoundVerdict | None = None
    chat_format: ChatFormat | None = None
    reasoning: str | int = "off"
    response_mode: str = "answer-first"
    persona: str | None = None
    project_context: str = ""
    catalog_budget: int = CATALOG_BUDGET
    tool_choice: str = "auto"
    require_tools: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int | None = None
    cache: CacheScope = "run"
    long_observations: LongObservations = "cut"
    context: int | None = None
    compact: Compaction = "off"
    model: str | None = None
    backend: Mapping[str, Any] = field(default_factory=dict)
    roots: tuple[str, ...] = ()

    def naming(self, named: Callable[[str], str]) -> RunSettings:
        """The same with the tools named as ``named`` has it, which takes other names for them."""
        choice, wanted = named(self.tool_choice), tuple(map(named, self.require_tools))
        if (choice, wanted) == (self.tool_choice, self.require_tools):
            return self
        return replace(self, tool_choice=choice, require_tools=wanted)

    def recorded(self) -> dict[str, Any]:
        """What of it stands in a header under the same name, as it is here."""
        shared = {one.name for one in fields(Header)} - _FOUND_OUT
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name in shared}

    def as_in(self, header: Header) -> RunSettings:
        """The same model, spoken to as a session was whose header this is, as far as that says."""
        said = {name: getattr(header, name) for name in self.recorded().keys() - _HERE}
        if header.catalog_budget is None:
            del said["catalog_budget"]
        return replace(self, **said)

    def __post_init__(self) -> None:
        budget = _whole(self.reasoning) and int(self.reasoning) > 0
        for name, right, allowed in (
            ("style", self.style in STYLES, ", ".join(STYLES)),
            ("strategy", self.strategy in STRATEGIES, ", ".join(STRATEGIES)),
            ("verdict", _is(self.verdict, FoundVerdict), "a FoundVerdict, or None"),
            ("response_mode", isinstance(self.response_mode, str), "a mode's name"),
            ("reasoning", budget or self.reasoning in ("off", "auto"), "off, auto, tokens"),
            ("catalog_budget", _from_zero(self.catalog_budget), "tokens, a whole number from 0"),
            ("temperature", _temperature(self.temperature), "a number from 0"),
            ("cache", self.cache in SCOPES, ", ".join(SCOPES)),
            ("long_observations", self.long_observations in _LONG, ", ".join(_LONG)),
            ("context", _size(self.context), "tokens, a whole number from 1, or None"),
            ("compact", self.compact in _COMPACT, ", ".join(_COMPACT)),
            ("seed", self.seed is None or _whole(self.seed), "a whole number, or None"),
            ("chat_format", _is(self.chat_format, ChatFormat), "a ChatFormat, or None"),
            ("persona", _is(self.persona, str), "a text, or None"),
            ("model", _is(self.model, str), "a name, or None"),
            ("project_context", isinstance(self.project_context, str), "a text"),
            ("tool_choice", isinstance(self.tool_choice, str), "auto, none, required, a tool"),
            ("backend", isinstance(self.backend, Mapping), "a mapping"),
        ):
            if not right:
                raise wrong_argument(name, getattr(self, name), f"allowed: {allowed}")
        for name in ("require_tools", "roots"):
            value = require_texts(name, getattr(self, name), "allowed: a list of names")
            object.__setattr__(self, name, value)


def _is(value: object, kind: type) -> bool:
    return value is None or isinstance(value, kind)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _from_zero(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _size(value: object) -> bool:
    return value is None or (_from_zero(value) and value != 0)


def _temperature(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0  # type: ignore[arg-type,operator]
