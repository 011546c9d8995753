"""Measures which style and which strategy a model follows best: ``mlx-tools doctor --probe``.

Every question is asked in every style by every strategy, so the ways of asking are compared on the
same questions. What differs by no more than chance is not told apart.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any, Final, Literal, cast, get_args

import anyio
from msgspec import Struct, field

from mlx_tools.app import Proposal, Proposer, Share, mcnemar
from mlx_tools.backends import (
    DEFAULT_STYLE,
    Backend,
    StrategyChoice,
    StyleVerdict,
    Verdict,
    VerdictChoice,
)
from mlx_tools.controller import RunSettings
from mlx_tools.errors import BackendError, ConfigError, MlxToolsError, UsageError
from mlx_tools.evaluate.results import Key, Result, Results, failed_result, result_of, run_all
from mlx_tools.messages import Effects, Style, ToolCall, ToolSpec, replace
from mlx_tools.paths import read_data
from mlx_tools.policy import Limits
from mlx_tools.store import words_digest
from mlx_tools.toolbox import builtin_tools

STRATEGIES: Final[tuple[StrategyChoice, ...]] = ("auto", "free", "guided")
"""What a session may begin with on any server."""

MAX_TOKENS: Final = 160
"""Of one completion: the longest right call takes half of it, and a model that writes on and on
costs no more."""

LEVEL: Final = 0.05
"""Two ways of asking differ where chance alone makes such a difference less often than this."""

FILE: Final = "prompts/evaluate/probe.toml"
_EFFECTS: Final[Effects] = frozenset(("read",))


# --- the questions ----------------------------------------------------------------------------


class Expected(Struct, frozen=True):
    """The call that is right: each argument with its right values. Those of ``optional`` may be
    left out; no other may be given."""

    name: str
    arguments: Mapping[str, Sequence[Any]]
    optional: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def is_met(self, call: ToolCall) -> bool:
        """Whether a call is this one."""
        right, given = {**self.optional, **self.arguments}, call.arguments
        return (
            call.name == self.name
            and self.arguments.keys() <= given.keys() <= right.keys()
            and all(any(same(value, one) for one in right[key]) for key, value in given.items())
        )


class Question(Struct, frozen=True):
    """One question, with the tools it is asked with; all of a ``group`` have the same. ``call``
    None: it needs an answer."""

    id: str
    group: str
    question: str
    tools: Mapping[str, ToolSpec]
    call: Expected | None = None

    def is_valid(self, proposal: Proposal) -> bool:
        """Whether the proposal keeps to the protocol, and is of the kind that is due."""
        due = proposal.answered if self.call is None else bool(proposal.calls)
        return proposal.valid and due

    def is_right(self, proposal: Proposal) -> bool:
        """Whether the proposal is the right call and no other, or an answer where one is due.

        A line that needed a repair can be right.
        """
        if self.call is None:
            return proposal.answered and not proposal.calls
        return len(proposal.calls) == 1 and self.call.is_met(proposal.calls[0])


class ProbeQuestions(Struct, frozen=True):
    """All questions, those with the same tools side by side; ``digest`` tells them from others."""

    questions: tuple[Question, ...]
    digest: str


def load_questions(text: str | None = None) -> ProbeQuestions:
    """The questions of ``text``, by default those that come with mlx-tools.

    Raises `ConfigError` for a text that holds none.
    """
    text = read_data(FILE) if text is None else text
    try:
        catalogs = tomllib.loads(text)["catalogs"]
        questions = [one for catalog in catalogs for one in _catalog(catalog)]
    except (ValueError, KeyError, TypeError, AttributeError, MlxToolsError) as error:
        raise ConfigError(f"{FILE} holds no questions: {error}") from None
    if len({one.id for one in questions}) != len(questions) or not questions:
        raise ConfigError(f"{FILE}: no question, or two with the same id")
    return ProbeQuestions(tuple(questions), hashlib.sha256(text.encode()).hexdigest()[:16])


def _catalog(catalog: Mapping[str, Any]) -> Iterator[Question]:
    if "builtin" in catalog:
        builtin = builtin_tools().all_specs()
        tools = {name: builtin[name] for name in catalog["builtin"]}
    else:
        tools = {
            one["name"]: ToolSpec(
                one["name"], one["description"], json.loads(one["parameters"]), _EFFECTS
            )
            for one in catalog["tools"]
        }
    for one in catalog["questions"]:
        call = Expected(**one["call"]) if "call" in one else None
        if call is not None and call.name not in tools:
            raise ConfigError(f"{one['id']}: there is no tool {call.name}")
        yield Question(one["id"], catalog["name"], one["question"], tools, call)


def same(value: Any, right: Any) -> bool:
    """Whether two values are the same. Numbers by what they are worth; texts whatever their case,
    the white space between their words and a mark at their end."""
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    if isinstance(value, str) and isinstance(right, str):
        return _plain(value) == _plain(right)
    if isinstance(value, Mapping) and isinstance(right, Mapping):
        return value.keys() == right.keys() and all(same(value[k], right[k]) for k in value)
    if isinstance(value, list | tuple) and isinstance(right, list | tuple):
        return len(value) == len(right) and all(map(same, value, right))
    return bool(value == right)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".,;:!?")


# --- measuring --------------------------------------------------------------------------------


def styles_for(settings: RunSettings) -> tuple[Style, ...]:
    """The styles that can be asked in: ``native`` where the model's own template tells of tools."""
    styles: tuple[Style, ...] = get_args(Style)
    known = settings.chat_format
    has_tools = known is not None and known.tools is not None
    return tuple(style for style in styles if has_tools or style != "native")


class Cell(Struct, frozen=True):
    """All results of one style and strategy, each as `mlx_tools.evaluate.results` has it."""

    style: Style
    strategy: StrategyChoice
    results: tuple[Result, ...]

    @property
    def asked(self) -> int:
        return len(self.results)

    @property
    def valid(self) -> frozenset[str]:
        """The questions that were answered in a valid way."""
        return frozenset(one["id"] for one in self.results if one["valid"])

    @property
    def right(self) -> frozenset[str]:
        return frozenset(one["id"] for one in self.results if one["correct"])

    @property
    def groups(self) -> dict[str, int]:
        """How many questions of each group were answered rightly."""
        found = dict.fromkeys((one["category"] for one in self.results), 0)
        for one in self.results:
            found[one["category"]] += one["correct"]
        return found

    @property
    def seconds(self) -> float:
        return float(self.total("seconds") or 0)

    @property
    def marks(self) -> tuple[int, int]:
        return len(self.right), len(self.valid)

    def total(self, name: str) -> int | None:
        """The sum of a number of all results; None where one is not known. One that failed took
        neither requests nor time that anybody counted."""
        none = 0 if name in ("requests", "seconds") else None
        numbers = [one.get(name, none) for one in self.results]
        return None if None in numbers else sum(numbers)

    def to_json(self) -> dict[str, Any]:
        """The figures, with their 95 % intervals (Wilson), and what was wrong."""
        asked = [one["id"] for one in self.results]
        is_right, is_valid = self.right, self.valid
        right, valid = (Share(hits, self.asked) for hits in self.marks)
        counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "pieces")
        return {
            "style": self.style,
            "strategy": self.strategy,
            "questions": self.asked,
            "valid": valid.hits,
            "valid_interval": [round(end, 3) for end in valid.interval],
            "correct": right.hits,
            "correct_interval": [round(end, 3) for end in right.interval],
            "correct_by_group": self.groups,
            "seconds": round(self.seconds, 1),
            **{name: self.total(name) for name in counts},
            "wrong": [one for one in asked if one not in is_right],
            "invalid": [one for one in asked if one not in is_valid],
        }


class ProbeResult(Struct, frozen=True):
    """What came of a probe. ``cells`` are in the order of styles and strategies.

    ``failure`` is what ended it before its time, None where nothing did; ``complete`` says that all
    questions were asked every way.
    """

    cells: tuple[Cell, ...]
    complete: bool
    seconds: float
    failure: BackendError | None = None


async def measure(
    backend: Backend,
    questions: Sequence[Question],
    *,
    settings: RunSettings,
    limits: Limits,
    strategies: Sequence[StrategyChoice] = STRATEGIES,
    seconds: float,
    step: Callable[[], None] = lambda: None,
    prepare: Callable[[Style], None] = lambda style: None,
) -> ProbeResult:
    """Asks every question in every style by each of the strategies, within so many seconds.

    ``step`` is called after each, ``prepare`` before, with the style. A completion that takes too
    long, or that the server refuses while it takes others, counts as wrong; any other failure of
    the backend ends the probe. Nothing is raised for it: the value says so.
    """
    failure, began = None, monotonic()
    styles = styles_for(settings)
    limits = replace(limits, max_tokens=min(limits.completion_tokens, MAX_TOKENS))

    async def ask(question: Question, style: Style, strategy: StrategyChoice) -> Result:
        prepare(style)
        given = replace(
            settings,
            style=style,
            strategy=strategy,
            verdict=VerdictChoice(),
            tool_choice="auto",
            require_tools=(),
        )
        try:
            propose = Proposer(backend, settings=given, limits=limits)
            made = await propose(question.question, question.tools)
        except UsageError as error:  # a grammar that the backend cannot read
            if strategy != "grammar":
                raise
            return failed_result("unusable", error)
        right, valid = question.is_right(made), question.is_valid(made)
        return result_of(made, correct=right, valid=valid)

    todo = [
        (Key(question.group, question.id, f"{style} {strategy}"), (question, style, strategy))
        for question, style, strategy in _order(questions, styles, strategies)
    ]
    results = Results(None, "probe", {})
    with anyio.move_on_after(seconds):
        try:
            await run_all([(key, partial(ask, *way)) for key, way in todo], results, step)
        except BackendError as error:
            failure = error
    told = [(way, results.get(key)) for key, way in todo]
    cells = tuple(
        Cell(style, way, tuple(r for (_, *of), r in told if r and of == [style, way]))
        for style in styles
        for way in strategies
    )
    complete = all(result is not None for _, result in told)
    return ProbeResult(cells, complete, monotonic() - began, failure)


def _order(
    questions: Sequence[Question], styles: Sequence[Style], strategies: Sequence[StrategyChoice]
) -> Iterator[tuple[Question, Style, StrategyChoice]]:
    """Question by question, so that whatever ends the probe, all ways were asked the same.

    The prompt of a style is in the server's cache once it was asked by one strategy: which one goes
    first changes from question to question, so that none is always the cheaper.
    """
    for number, question in enumerate(questions):
        turn = number % len(strategies)
        for style in styles:
            for strategy in (*strategies[turn:], *strategies[:turn]):
                yield question, style, strategy


# --- what follows -----------------------------------------------------------------------------


class ProbeConclusion(Struct, frozen=True):
    """What follows from the figures: the style to use, and the strategy to begin with in each."""

    style: Style
    reason: str
    styles: Mapping[Style, StyleVerdict]


def judge(cells: Sequence[Cell]) -> ProbeConclusion:
    """What follows from the cells of a whole probe, which must hold ``auto`` for every style.

    In each style ``auto``, unless ``guided`` is better and in no group of questions right less
    often, or ``free`` is better, or ``grammar`` better than all of these. Of the styles ``jsonl``,
    unless another is better, each with the strategy it would be used with.
    """
    by_style: dict[Style, dict[str, Cell]] = {}
    for cell in cells:
        by_style.setdefault(cell.style, {})[cell.strategy] = cell
    styles = {style: _strategy(ways) for style, ways in by_style.items()}
    used = {style: ways[styles[style].strategy] for style, ways in by_style.items()}
    usual = used[DEFAULT_STYLE]
    better = [cell for cell in used.values() if is_better(cell, usual)]
    best = max(better, key=lambda cell: cell.marks, default=usual)
    figures = (_figures(f"{style} {styles[style].strategy}", cell) for style, cell in used.items())
    why = "better than" if best is not usual else "none is clearly better than"
    said = f"{why} {DEFAULT_STYLE}; right: {', '.join(figures)}"
    return ProbeConclusion(best.style, said, styles)


def make_verdict(
    model: str,
    result: ProbeResult,
    questions: ProbeQuestions,
    settings: RunSettings,
    versions: Mapping[str, Any],
) -> Verdict:
    """The verdict on the model with this identity, of a complete probe, as of now.

    ``settings`` are those it was measured with; ``versions`` are of what it was measured on.
    """
    judged = judge(result.cells)
    chat_format = settings.chat_format
    return Verdict(
        model=model,
        style=judged.style,
        styles=judged.styles,
        reason=judged.reason,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        questions=len(questions.questions),
        prompts=words_digest(),
        probe=questions.digest,
        settings={
            "backend": settings.backend.get("kind"),
            "chat_format": chat_format.name if chat_format is not None else None,
            "reasoning": settings.reasoning,
            "response_mode": settings.response_mode,
            "own_persona": settings.persona is not None,
            "temperature": settings.temperature,
            "max_tokens": MAX_TOKENS,
        },
        versions={**versions, "python": platform.python_version()},
        rows=tuple(cell.to_json() for cell in result.cells),
    )


def _strategy(ways: Mapping[str, Cell]) -> StyleVerdict:
    auto, grammar = ways["auto"], ways.get("grammar")
    said = "right: " + ", ".join(_figures(name, cell) for name, cell in ways.items())
    best, reason = auto, f"nothing is clearly better than auto; {said}"
    for name in ("free", "guided"):
        cell = ways.get(name)
        if cell is None or not is_better(cell, auto):
            continue
        worse = [group for group, right in cell.groups.items() if right < auto.groups[group]]
        if name == "guided" and worse:
            if best is auto:
                groups = ", ".join(worse)
                reason = f"guided is better than auto, but not in the group {groups}; {said}"
        elif best is auto or cell.marks > best.marks:
            best, reason = cell, f"{name} is better than auto; {said}"
    otherwise = cast(Literal["auto", "free", "guided"], best.strategy)
    rivals = [cell for name, cell in ways.items() if name != "grammar"]
    if grammar is not None and all(is_better(grammar, rival) for rival in rivals):
        return StyleVerdict("grammar", otherwise, f"grammar is better than the others; {said}")
    return StyleVerdict(otherwise, otherwise, reason)


def _figures(name: str, cell: Cell) -> str:
    return f"{name} {len(cell.right)} of {cell.asked} ({len(cell.valid)} valid)"


def is_better(cell: Cell, second: Cell) -> bool:
    """Whether one way is better than another by more than chance, on the same questions: right more
    often, or right as often and valid more often."""
    if _clearly_more(cell.right, second.right):
        return True
    return len(cell.right) >= len(second.right) and _clearly_more(cell.valid, second.valid)


def _clearly_more(clearly: frozenset[str], second: frozenset[str]) -> bool:
    only_one, only_other = len(clearly - second), len(second - clearly)
    return only_one > only_other and mcnemar(only_one, only_other) < LEVEL
