"""Measures which style and which strategy a model follows best: ``mlx-tools doctor --probe``.

Every question is asked in every style by every strategy, so the ways of asking are compared on the
same questions. What differs by no more than chance is not told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final, get_args

import anyio

from mlx_tools.app.proposal import Proposal, Proposer
from mlx_tools.app.statistics import Share
from mlx_tools.backends import Backend, FoundVerdict, StrategyChoice
from mlx_tools.controller.run_settings import RunSettings
from mlx_tools.errors import (
    BackendError,
    BackendRefused,
    BackendTimeout,
    UsageError,
)
from mlx_tools.evaluate.probe_questions import Question
from mlx_tools.messages import Style
from mlx_tools.policy import Limits

STYLES: Final[tuple[Style, ...]] = get_args(Style)
STRATEGIES: Final[tuple[StrategyChoice, ...]] = ("auto", "free", "guided")
"""What a session may begin with on any server."""

MAX_TOKENS: Final = 160
"""Of one completion: the longest right call takes half of it, and a model that writes on and on
costs no more."""

REFUSALS: Final = 3
"""So many refusals or completions that took too long, in a row, are the server's state."""


def styles_for(settings: RunSettings) -> tuple[Style, ...]:
    """The styles that can be asked in: ``native`` where the model's own template tells of tools."""
    known = settings.chat_format
    has_tools = known is not None and known.tools is not None
    return tuple(style for style in STYLES if has_tools or style != "native")


@dataclass(frozen=True, slots=True)
class Trial:
    """One question, asked one way. ``error`` is the code of the first fault, or what failed."""

    question: str
    style: Style
    strategy: StrategyChoice
    group: str = ""
    valid: bool = False
    right: bool = False
    error: str | None = None
    requests: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    pieces: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Cell:
    """All trials of one style and strategy."""

    style: Style
    strategy: StrategyChoice
    trials: tuple[Trial, ...]

    @property
    def asked(self) -> int:
        """How many questions were asked."""
        return len(self.trials)

    @property
    def valid(self) -> frozenset[str]:
        """The questions that were answered in a valid way."""
        return frozenset(one.question for one in self.trials if one.valid)

    @property
    def right(self) -> frozenset[str]:
        """The questions that were answered rightly."""
        return frozenset(one.question for one in self.trials if one.right)

    @property
    def groups(self) -> dict[str, int]:
        """How many questions of each group were answered rightly."""
        found = dict.fromkeys((one.group for one in self.trials), 0)
        for one in self.trials:
            found[one.group] += one.right
        return found

    @property
    def seconds(self) -> float:
        """The time of all questions."""
        return sum(one.seconds for one in self.trials)

    def total(self, name: str) -> int | None:
        """The sum of a number of all trials; None where one of them is not known."""
        numbers = [getattr(one, name) for one in self.trials]
        return None if None in numbers else sum(numbers)

    def to_json(self) -> dict[str, Any]:
        """The figures, with their 95 % intervals (Wilson), and what was wrong."""
        valid, right = Share(len(self.valid), self.asked), Share(len(self.right), self.asked)
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
            "requests": self.total("requests"),
            "prompt_tokens": self.total("prompt_tokens"),
            "cached_tokens": self.total("cached_tokens"),
            "completion_tokens": self.total("completion_tokens"),
            "pieces": self.total("pieces"),
            "wrong": [one.question for one in self.trials if not one.right],
            "invalid": [one.question for one in self.trials if not one.valid],
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a probe. ``cells`` are in the order of styles and strategies.

    ``failure`` is what ended it before its time, None where nothing did; ``complete`` says that all
    questions were asked every way.
    """

    cells: tuple[Cell, ...]
    complete: bool
    seconds: float
    failure: BackendError | None = None


@dataclass(slots=True)
class _Run:
    trials: list[Trial] = field(default_factory=list)
    failures: int = 0


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
) -> Measured:
    """Asks every question in every style by each of the strategies, within so many seconds.

    ``step`` is called after each, ``prepare`` before, with the style. A completion that takes too
    long, or that the server refuses while it takes others, counts as wrong; any other failure of
    the backend ends the probe. Nothing is raised for it: the value says so.
    """
    run, failure, began = _Run(), None, monotonic()
    styles = styles_for(settings)
    limits = replace(limits, max_tokens=min(limits.max_tokens, MAX_TOKENS))
    with anyio.move_on_after(seconds):
        try:
            for question, style, strategy in _order(questions, styles, strategies):
                prepare(style)
                given = replace(
                    settings,
                    style=style,
                    strategy=strategy,
                    verdict=FoundVerdict(),
                    tool_choice="auto",
                    require_tools=(),
                )
                propose = Proposer(backend, settings=given, limits=limits)
                run.trials.append(await _try(propose, question, style, strategy, run))
                step()
        except BackendError as error:
            failure = error
    cells = _cells(run.trials, styles, strategies)
    complete = len(run.trials) == len(questions) * len(cells)
    return Measured(cells, complete, monotonic() - began, failure)


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


async def _try(
    propose: Proposer, question: Question, style: Style, strategy: StrategyChoice, run: _Run
) -> Trial:
    began = monotonic()
    try:
        proposal = await propose(question.question, question.tools)
    except (BackendTimeout, BackendRefused, UsageError) as error:
        if isinstance(error, UsageError) and strategy != "grammar":
            raise
        run.failures += 1
        if run.failures >= REFUSALS and isinstance(error, BackendError):
            raise
        name = "timeout" if isinstance(error, BackendTimeout) else "refused"
        seconds = monotonic() - began
        return Trial(question.id, style, strategy, question.group, error=name, seconds=seconds)
    run.failures = 0
    return _trial(question, style, strategy, proposal)


def _trial(question: Question, style: Style, strategy: StrategyChoice, proposal: Proposal) -> Trial:
    return Trial(
        question.id,
        style,
        strategy,
        question.group,
        valid=question.is_valid(proposal),
        right=question.is_right(proposal),
        error=proposal.error,
        requests=proposal.requests,
        prompt_tokens=proposal.usage.prompt_tokens,
        cached_tokens=proposal.usage.cached_tokens,
        completion_tokens=proposal.usage.completion_tokens,
        pieces=proposal.pieces,
        seconds=proposal.seconds,
    )


def _cells(
    trials: Sequence[Trial], styles: Sequence[Style], strategies: Sequence[StrategyChoice]
) -> tuple[Cell, ...]:
    return tuple(
        Cell(style, way, tuple(t for t in trials if (t.style, t.strategy) == (style, way)))
        for style in styles
        for way in strategies
    )
