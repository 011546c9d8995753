"""Measure the best style and strategy for a model: ``mlx-tools doctor --probe``.

Every question is asked in every style with every strategy, so that all are compared on the same
questions. A difference that may be chance is ignored.
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

from mlx_tools.app.proposal import Proposal, Proposer
from mlx_tools.app.results import Key, Result, Results, make_failed_result, make_result, run_all
from mlx_tools.app.statistics import Share, mcnemar
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
from mlx_tools.messages import Effects, Style, ToolCall, ToolSpec, replace
from mlx_tools.paths import read_data
from mlx_tools.policy import Limits
from mlx_tools.store import digest_words
from mlx_tools.tools import load_words

STRATEGIES: Final[tuple[StrategyChoice, ...]] = ("auto", "free", "guided")
"""Strategies that work on any server."""

MAX_TOKENS: Final = 160
"""Tokens of one completion. The longest right call takes half of it. The limit keeps a model that
does not stop from costing more."""

LEVEL: Final = 0.05
"""The level of significance: two ways differ if chance would cause such a difference less often
than this."""

FILE: Final = "prompts/evaluate/probe.toml"
_EFFECTS: Final[Effects] = frozenset(("read",))


# --- the questions ----------------------------------------------------------------------------


class Expected(Struct, frozen=True):
    """The right call."""

    name: str
    arguments: Mapping[str, Sequence[Any]]
    """The values of each argument that are right."""
    optional: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The same for arguments that may be left out. No other arguments are allowed."""

    def is_met(self, call: ToolCall) -> bool:
        """Return whether a call matches."""
        right, arguments = {**self.optional, **self.arguments}, call.arguments
        return (
            call.name == self.name
            and self.arguments.keys() <= arguments.keys() <= right.keys()
            and all(
                any(equal_values(value, allowed) for allowed in right[key])
                for key, value in arguments.items()
            )
        )


class Question(Struct, frozen=True):
    """One question, and its tools."""

    id: str
    group: str
    """The group of the question; all questions of a group have the same tools."""
    question: str
    tools: Mapping[str, ToolSpec]
    call: Expected | None = None
    """The right call, None if an answer is expected."""

    def is_valid(self, proposal: Proposal) -> bool:
        """Return whether the proposal follows the protocol and is of the expected kind."""
        due = proposal.answered if self.call is None else bool(proposal.calls)
        return proposal.valid and due

    def is_right(self, proposal: Proposal) -> bool:
        """Return whether the proposal is only the right call, or the expected answer.

        A line that needed a repair can be right.
        """
        if self.call is None:
            return proposal.answered and not proposal.calls
        return len(proposal.calls) == 1 and self.call.is_met(proposal.calls[0])


class ProbeQuestions(Struct, frozen=True):
    """All questions, grouped by tools. The ``digest`` identifies them."""

    questions: tuple[Question, ...]
    digest: str


def load_questions(text: str | None = None) -> ProbeQuestions:
    """Load the questions of ``text``, by default those of the package.

    Raises:
        ConfigError: the text holds no questions.
    """
    text = read_data(FILE) if text is None else text
    try:
        catalogs = tomllib.loads(text)["catalogs"]
        questions = [question for catalog in catalogs for question in _read_catalog(catalog)]
    except (ValueError, KeyError, TypeError, AttributeError, MlxToolsError) as error:
        raise ConfigError(f"{FILE} holds no questions: {error}") from None
    if len({question.id for question in questions}) != len(questions) or not questions:
        raise ConfigError(f"{FILE}: no question, or two with the same id")
    return ProbeQuestions(tuple(questions), hashlib.sha256(text.encode()).hexdigest()[:16])


def _read_catalog(catalog: Mapping[str, Any]) -> Iterator[Question]:
    if "builtin" in catalog:
        tools = {name: load_words(name).spec(_EFFECTS) for name in catalog["builtin"]}
    else:
        tools = {
            entry["name"]: ToolSpec(
                entry["name"], entry["description"], json.loads(entry["parameters"]), _EFFECTS
            )
            for entry in catalog["tools"]
        }
    for entry in catalog["questions"]:
        call = Expected(**entry["call"]) if "call" in entry else None
        if call is not None and call.name not in tools:
            raise ConfigError(f"{entry['id']}: there is no tool {call.name}")
        yield Question(entry["id"], catalog["name"], entry["question"], tools, call)


def equal_values(value: Any, right: Any) -> bool:
    """Compare two values.

    Numbers are compared by value. In texts, case, the amount of white space and a punctuation mark
    at the end are ignored.
    """
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    if isinstance(value, str) and isinstance(right, str):
        return _normalize(value) == _normalize(right)
    if isinstance(value, Mapping) and isinstance(right, Mapping):
        return value.keys() == right.keys() and all(equal_values(value[k], right[k]) for k in value)
    if isinstance(value, list | tuple) and isinstance(right, list | tuple):
        return len(value) == len(right) and all(map(equal_values, value, right))
    return bool(value == right)


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".,;:!?")


# --- measuring --------------------------------------------------------------------------------


def list_styles(settings: RunSettings) -> tuple[Style, ...]:
    """Return the styles to measure.

    ``native`` is one of them if the model's own template describes tools.
    """
    styles: tuple[Style, ...] = get_args(Style)
    chat_format = settings.chat_format
    has_tools = chat_format is not None and chat_format.tools is not None
    return tuple(style for style in styles if has_tools or style != "native")


class Cell(Struct, frozen=True):
    """All results of one style and strategy (`mlx_tools.app.results`)."""

    style: Style
    strategy: StrategyChoice
    results: tuple[Result, ...]

    @property
    def question_count(self) -> int:
        return len(self.results)

    @property
    def valid(self) -> frozenset[str]:
        """The questions that were answered in a valid way."""
        return frozenset(result["id"] for result in self.results if result["valid"])

    @property
    def right(self) -> frozenset[str]:
        return frozenset(result["id"] for result in self.results if result["correct"])

    @property
    def groups(self) -> dict[str, int]:
        """The number of right answers in each group."""
        counts = dict.fromkeys((result["category"] for result in self.results), 0)
        for result in self.results:
            counts[result["category"]] += result["correct"]
        return counts

    @property
    def seconds(self) -> float:
        return float(self.total("seconds") or 0)

    @property
    def marks(self) -> tuple[int, int]:
        return len(self.right), len(self.valid)

    def total(self, name: str) -> int | None:
        """Return the sum of a number over all results, None if one is unknown.

        Failed results count as nothing: they have neither requests nor time.
        """
        default = 0 if name in ("requests", "seconds") else None
        numbers = [result.get(name, default) for result in self.results]
        return None if None in numbers else sum(numbers)

    def to_json(self) -> dict[str, Any]:
        """Return the figures with their 95 % intervals (Wilson), and the wrong questions."""
        question_ids = [question["id"] for question in self.results]
        is_right, is_valid = self.right, self.valid
        right, valid = (Share(hits, self.question_count) for hits in self.marks)
        counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "pieces")
        return {
            "style": self.style,
            "strategy": self.strategy,
            "questions": self.question_count,
            "valid": valid.hits,
            "valid_interval": [round(end, 3) for end in valid.interval],
            "correct": right.hits,
            "correct_interval": [round(end, 3) for end in right.interval],
            "correct_by_group": self.groups,
            "seconds": round(self.seconds, 1),
            **{name: self.total(name) for name in counts},
            "wrong": [question for question in question_ids if question not in is_right],
            "invalid": [question for question in question_ids if question not in is_valid],
        }


class ProbeResult(Struct, frozen=True):
    """The result of a probe."""

    cells: tuple[Cell, ...]
    """The cells in order of styles and strategies."""
    complete: bool
    """True if every question was asked in every way."""
    seconds: float
    failure: BackendError | None = None
    """The error that ended it early, or None."""


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
    """Ask every question in every style with each of the strategies.

    A completion that takes too long, or that the server refuses although it accepts others, counts
    as wrong. Any other failure of the backend ends the probe. It is in the result, and is not
    raised.

    Args:
        backend: the backend to ask.
        questions: the questions.
        settings: the settings of each run.
        limits: the limits of each run.
        strategies: the strategies to compare.
        seconds: the time limit for all questions.
        step: called after each question.
        prepare: called with the style before each question.
    """
    failure, started_at = None, monotonic()
    styles = list_styles(settings)
    limits = replace(limits, max_tokens=min(limits.completion_tokens, MAX_TOKENS))

    async def ask(question: Question, style: Style, strategy: StrategyChoice) -> Result:
        prepare(style)
        run_settings = replace(
            settings,
            style=style,
            strategy=strategy,
            verdict=VerdictChoice(),
            tool_choice="auto",
            require_tools=(),
        )
        try:
            propose = Proposer(backend, settings=run_settings, limits=limits)
            proposal = await propose(question.question, question.tools)
        except UsageError as error:  # a grammar that the backend cannot read
            if strategy != "grammar":
                raise
            return make_failed_result("unusable", error)
        right, valid = question.is_right(proposal), question.is_valid(proposal)
        return make_result(proposal, correct=right, valid=valid)

    todo = [
        (Key(question.group, question.id, f"{style} {strategy}"), (question, style, strategy))
        for question, style, strategy in _order_questions(questions, styles, strategies)
    ]
    results = Results(None, "probe", {})
    with anyio.move_on_after(seconds):
        try:
            await run_all([(key, partial(ask, *way)) for key, way in todo], results, step)
        except BackendError as error:
            failure = error
    results_by_way = [(way, results.get(key)) for key, way in todo]
    cells = tuple(
        Cell(style, way, tuple(r for (_, *of), r in results_by_way if r and of == [style, way]))
        for style in styles
        for way in strategies
    )
    complete = all(result is not None for _, result in results_by_way)
    return ProbeResult(cells, complete, monotonic() - started_at, failure)


def _order_questions(
    questions: Sequence[Question], styles: Sequence[Style], strategies: Sequence[StrategyChoice]
) -> Iterator[tuple[Question, Style, StrategyChoice]]:
    """Yield all ways of one question before the next question.

    So after an early end all ways have the same questions. The first strategy of a style puts the
    prompt into the server's cache, so the others cost less. Therefore the first strategy changes
    from question to question.
    """
    for number, question in enumerate(questions):
        turn = number % len(strategies)
        for style in styles:
            for strategy in (*strategies[turn:], *strategies[:turn]):
                yield question, style, strategy


# --- the conclusion ---------------------------------------------------------------------------


class ProbeConclusion(Struct, frozen=True):
    """The conclusion: the style to use, and the strategy for each style."""

    style: Style
    reason: str
    styles: Mapping[Style, StyleVerdict]


def judge(cells: Sequence[Cell]) -> ProbeConclusion:
    """Draw the conclusion from the cells of a complete probe.

    The cells must include ``auto`` for every style. The strategy of a style is ``auto``, unless
    ``guided`` is better and in no group right less often, or ``free`` is better, or ``grammar`` is
    better than all of these. The style is ``jsonl``, unless another one is better. For this, each
    style has its own strategy.
    """
    by_style: dict[Style, dict[str, Cell]] = {}
    for cell in cells:
        by_style.setdefault(cell.style, {})[cell.strategy] = cell
    styles = {style: _judge_strategies(ways) for style, ways in by_style.items()}
    used_cells = {style: ways[styles[style].strategy] for style, ways in by_style.items()}
    usual = used_cells[DEFAULT_STYLE]
    better = [cell for cell in used_cells.values() if is_better(cell, usual)]
    best = max(better, key=lambda cell: cell.marks, default=usual)
    figures = (
        _describe_figures(f"{style} {styles[style].strategy}", cell)
        for style, cell in used_cells.items()
    )
    why = "better than" if best is not usual else "none is clearly better than"
    reason = f"{why} {DEFAULT_STYLE}; right: {', '.join(figures)}"
    return ProbeConclusion(best.style, reason, styles)


def make_verdict(
    model: str,
    result: ProbeResult,
    questions: ProbeQuestions,
    settings: RunSettings,
    versions: Mapping[str, Any],
) -> Verdict:
    """Return the verdict on a model from a complete probe, with the present time.

    Args:
        model: the identity of the model.
        result: the complete probe.
        questions: the questions of the probe.
        settings: the settings of the probe.
        versions: the versions of the programs that took part.
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
        prompts=digest_words(),
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


def _judge_strategies(ways: Mapping[str, Cell]) -> StyleVerdict:
    auto, grammar = ways["auto"], ways.get("grammar")
    figures = "right: " + ", ".join(_describe_figures(name, cell) for name, cell in ways.items())
    best, reason = auto, f"nothing is clearly better than auto; {figures}"
    for name in ("free", "guided"):
        cell = ways.get(name)
        if cell is None or not is_better(cell, auto):
            continue
        worse = [group for group, right in cell.groups.items() if right < auto.groups[group]]
        if name == "guided" and worse:
            if best is auto:
                groups = ", ".join(worse)
                reason = f"guided is better than auto, but not in the group {groups}; {figures}"
        elif best is auto or cell.marks > best.marks:
            best, reason = cell, f"{name} is better than auto; {figures}"
    otherwise = cast(Literal["auto", "free", "guided"], best.strategy)
    rivals = [cell for name, cell in ways.items() if name != "grammar"]
    if grammar is not None and all(is_better(grammar, rival) for rival in rivals):
        return StyleVerdict("grammar", otherwise, f"grammar is better than the others; {figures}")
    return StyleVerdict(otherwise, otherwise, reason)


def _describe_figures(name: str, cell: Cell) -> str:
    return f"{name} {len(cell.right)} of {cell.question_count} ({len(cell.valid)} valid)"


def is_better(cell: Cell, second: Cell) -> bool:
    """Return whether one way is better than another by more than chance.

    It is better if it is right more often on the same questions, or right as often and valid more
    often.
    """
    if _is_clearly_more(cell.right, second.right):
        return True
    return len(cell.right) >= len(second.right) and _is_clearly_more(cell.valid, second.valid)


def _is_clearly_more(clearly: frozenset[str], second: frozenset[str]) -> bool:
    only_one, only_other = len(clearly - second), len(second - clearly)
    return only_one > only_other and mcnemar(only_one, only_other) < LEVEL
