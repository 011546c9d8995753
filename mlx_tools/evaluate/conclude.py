"""What follows from the figures of a probe: the verdict on a model."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from mlx_tools.app.statistics import mcnemar
from mlx_tools.backends import DEFAULT_STYLE, StyleVerdict, Verdict
from mlx_tools.controller.run_settings import RunSettings
from mlx_tools.evaluate.probe import MAX_TOKENS, Cell, Measured
from mlx_tools.evaluate.probe_questions import ProbeQuestions
from mlx_tools.messages import Style
from mlx_tools.store import words_digest

LEVEL: Final = 0.05
"""Two ways of asking differ where chance alone makes such a difference less often than this."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What follows from the figures: the style to use, and the strategy to begin with in each."""

    style: Style
    reason: str
    styles: Mapping[Style, StyleVerdict]


def judge(cells: Sequence[Cell]) -> Judged:
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
    best = max(better, key=_marks, default=usual)
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
        style=judged.style,
        styles=judged.styles,
        reason=judged.reason,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        questions=len(asked.questions),
        prompts=words_digest(),
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
        elif best is auto or _marks(cell) > _marks(best):
            best, reason = cell, f"{name} is better than auto; {said}"
    otherwise = cast(Literal["auto", "free", "guided"], best.strategy)
    rivals = [cell for name, cell in ways.items() if name != "grammar"]
    if grammar is not None and all(is_better(grammar, rival) for rival in rivals):
        return StyleVerdict("grammar", otherwise, f"grammar is better than the others; {said}")
    return StyleVerdict(otherwise, otherwise, reason)


def _marks(cell: Cell) -> tuple[int, int]:
    return len(cell.right), len(cell.valid)


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
