"""What follows from the figures of a probe: the verdict on a model."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from mlx_tools import data
from mlx_tools.evaluate.probe import MAX_TOKENS, Cell, Measured
from mlx_tools.evaluate.probe_questions import ProbeQuestions
from mlx_tools.evaluate.statistics import mcnemar
from mlx_tools.messages import Style
from mlx_tools.run_settings import RunSettings
from mlx_tools.verdicts import DEFAULT_STYLE, StrategyChoice, StyleVerdict, Verdict

LEVEL: Final = 0.05
"""Two ways of asking differ where chance alone makes such a difference less often than this."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What follows from the figures: the style to use, and the strategy to begin with in each."""

    style: Style
    reason: str
    styles: Mapping[Style, StyleVerdict]


def judge(cells: Sequence[Cell]) -> Judged:
    """What follows from the cells of a whole probe, which must hold ``free`` for every style.

    In each style ``guided`` where it is better than ``free`` and in no group of questions right
    less often, ``free`` where that is clearly right more often, ``grammar`` where it is better than
    both, else ``auto``, which writes freely what it can, and the rest guided. Of the styles
    ``jsonl``, unless another is better, each with the strategy it would be used with.
    """
    by_style: dict[Style, dict[str, Cell]] = {}
    for cell in cells:
        by_style.setdefault(cell.style, {})[cell.strategy] = cell
    styles = {style: _strategy(ways) for style, ways in by_style.items()}
    used = {style: _used(ways, styles[style].strategy) for style, ways in by_style.items()}
    usual = used[DEFAULT_STYLE]
    better = [cell for cell in used.values() if is_better(cell, usual)]
    best = max(better, key=lambda cell: (len(cell.right), len(cell.valid)), default=usual)
    figures = (_figures(f"{style} {styles[style].strategy}", cell) for style, cell in used.items())
    why = "better than" if best is not usual else "none is clearly better than"
    said = f"{why} {DEFAULT_STYLE}; right: {', '.join(figures)}"
    return Judged(best.style, said, styles)


def make_verdict(
    model: str,
    measured: Measured,
    asked: ProbeQuestions,
    settings: RunSettings,
    versions: Mapping[str, Any],
) -> Verdict:
    """The verdict on the model with this identity, of a complete probe, as of now.

    ``settings`` are those it was measured with; ``versions`` are of what it was measured on.
    """
    judged = judge(measured.cells)
    chat_format = settings.chat_format
    return Verdict(
        model=model,
        request_weight=settings.request_weight or 1.0,
        style=judged.style,
        styles=judged.styles,
        reason=judged.reason,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        questions=len(asked.questions),
        prompts=data.words_digest(),
        probe=asked.digest,
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
        measured=tuple(cell.to_json() for cell in measured.cells),
    )


def _strategy(ways: Mapping[str, Cell]) -> StyleVerdict:
    free, guided, grammar = ways["free"], ways.get("guided"), ways.get("grammar")
    said = "right: " + ", ".join(_figures(name, cell) for name, cell in ways.items())
    otherwise: StrategyChoice = "auto"
    reason = f"no clear difference; {said}"
    if guided is not None and is_better(guided, free):
        worse = [name for name, right in guided.groups.items() if right < free.groups[name]]
        if worse:
            reason = f"guided is better than free, but not in the group {', '.join(worse)}; {said}"
        else:
            otherwise, reason = "guided", f"guided is better than free; {said}"
    elif guided is not None and _clearly_more(free.right, guided.right):
        otherwise, reason = "free", f"free is better than guided; {said}"
    rivals = [cell for cell in (free, guided) if cell is not None]
    if grammar is not None and all(is_better(grammar, rival) for rival in rivals):
        return StyleVerdict("grammar", otherwise, f"grammar is better than the others; {said}")
    return StyleVerdict(otherwise, otherwise, reason)


def _used(ways: Mapping[str, Cell], strategy: StrategyChoice) -> Cell:
    """How the model does by a strategy: ``auto`` is what was written freely, and what was written
    guided where that broke format."""
    free, guided = ways["free"], ways.get("guided")
    if strategy != "auto":
        return ways[strategy]
    again = {one.question: one for one in guided.trials} if guided is not None else {}
    trials = (again.get(one.question, one) if one.broken else one for one in free.trials)
    return Cell(free.style, free.strategy, tuple(trials))


def _figures(name: str, cell: Cell) -> str:
    return f"{name} {len(cell.right)} of {cell.asked} ({len(cell.valid)} valid)"


def is_better(one: Cell, other: Cell) -> bool:
    """Whether one way is better than another by more than chance, on the same questions: right more
    often, or right as often and valid more often."""
    if _clearly_more(one.right, other.right):
        return True
    return len(one.right) >= len(other.right) and _clearly_more(one.valid, other.valid)


def _clearly_more(one: frozenset[str], other: frozenset[str]) -> bool:
    only_one, only_other = len(one - other), len(other - one)
    return only_one > only_other and mcnemar(only_one, only_other) < LEVEL
