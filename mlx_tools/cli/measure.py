"""The probe of `mlx-tools doctor --probe`: measures, keeps the verdict, shows the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from time import monotonic
from typing import Any, Final

from mlx_tools.app.checks import Check
from mlx_tools.app.statistics import Share
from mlx_tools.app.wiring import RunOptions, identity_of, run_settings
from mlx_tools.backends import (
    Chosen,
    StrategyChoice,
    Verdict,
    VerdictStore,
    found_within,
    native_markers,
    takes_grammar,
)
from mlx_tools.cli import version
from mlx_tools.cli.output import note
from mlx_tools.cli.progress import counting
from mlx_tools.errors import MlxToolsError
from mlx_tools.evaluate.probe import (
    STRATEGIES,
    Cell,
    Measured,
    load_questions,
    make_verdict,
    measure,
    styles_for,
)
from mlx_tools.messages import Style

WITHIN: Final = 1800.0
"""Seconds that a probe may take, unless it is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What came of a probe. ``verdict`` is None where it did not come to its end, or nothing tells
    which model it was; ``stored`` is where the verdict is kept, and ``problem`` why it is not."""

    measured: Measured
    questions: int
    verdict: Verdict | None = None
    stored: str | None = None
    problem: str = ""

    def check(self) -> Check:
        """The probe as one of the doctor's findings."""
        measured = self.measured
        asked = sum(cell.asked for cell in measured.cells)
        said = f"asked {asked} of {self.questions * len(measured.cells)} times"
        said += f" in {measured.seconds:.0f} s"
        if measured.failure is not None:
            why = measured.failure
            said = f"broke off, {said}; there is no verdict: {why.message}"
            return Check("probe", "fail", said, why.hint or "")
        if not measured.complete:
            hint = "give it more time: --within SECONDS"
            return Check("probe", "warn", f"time ran out, {said}; there is no verdict", hint)
        if self.problem:
            return Check("probe", "warn", f"{said}; the verdict is not kept: {self.problem}")
        return Check("probe", "ok", f"{said}; the verdict is kept in {self.stored}")

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints of it."""
        failure = self.measured.failure
        return {
            "complete": self.measured.complete,
            "failure": failure.message if failure is not None else None,
            "seconds": round(self.measured.seconds, 1),
            "questions": self.questions,
            "measured": [cell.to_json() for cell in self.measured.cells],
            "verdict": self.verdict.to_json() if self.verdict is not None else None,
            "stored": self.stored,
            "problem": self.problem or None,
        }


async def probe(
    run: RunOptions, chosen: Chosen, within: float, *, store: VerdictStore | None = None
) -> Probed:
    """Measures the model that was chosen, within so many seconds, and keeps the verdict.

    Raises `BackendTimeout` where finding out what the server serves takes all of them.
    """
    began, asked = monotonic(), load_questions()
    forbidden = tuple(getattr(chosen.backend, "forbidden_tokens", ()))
    strategies: list[StrategyChoice] = [*STRATEGIES]
    with found_within(within, "--within"):
        settings = replace(await run_settings(run, chosen, note), project_context="", verdict=None)
        if await takes_grammar(chosen.backend):
            strategies.append("grammar")
    total = len(asked.questions) * len(styles_for(settings)) * len(strategies)
    with counting("probing", total) as step:
        measured = await measure(
            chosen.backend,
            asked.questions,
            settings=settings,
            limits=run.configuration.limits(),
            strategies=strategies,
            seconds=within - (monotonic() - began),
            step=step,
            prepare=_prepare(chosen, forbidden),
        )
    found = Probed(measured=measured, questions=len(asked.questions))
    if not measured.complete:
        return found
    model = identity_of(chosen, chosen.model or run.model_name)
    verdict = make_verdict(model or "", measured, asked, settings, _versions(chosen))
    if model is None:
        problem = "nothing tells which model this is; name it with --model"
        return replace(found, verdict=verdict, problem=problem)
    try:
        place = (store or VerdictStore()).put(verdict)
    except MlxToolsError as error:
        return replace(found, verdict=verdict, problem=str(error))
    return replace(found, verdict=verdict, stored=str(place))


def _prepare(chosen: Chosen, forbidden: tuple[int, ...]) -> Callable[[Style], None]:
    """Forbids a model its own markers for calls, but in the style that is written with them."""
    backend = chosen.backend

    def prepare(style: Style) -> None:
        backend.forbidden_tokens = forbidden if native_markers(style) else ()

    return prepare


def _versions(chosen: Chosen) -> dict[str, Any]:
    """What the model was measured on."""
    found: dict[str, Any] = {"mlx_tools": version()}
    if chosen.backend.kind != "completions":
        for name in ("mlx", "mlx-lm"):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = None
    elif chosen.health is not None:
        found["server"] = chosen.health.server
    return found


# --- shown ------------------------------------------------------------------------------------


def table(probed: Probed) -> str:
    """The figures for a person, and what follows."""
    head = ("style", "strategy", "right", "valid", "time", "tokens")
    rows = [head, *(_row(cell) for cell in probed.measured.cells)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.append("in brackets: the 95 % interval (Wilson)")
    return "\n".join([*lines, *_verdict_lines(probed.verdict)])


def _row(cell: Cell) -> tuple[str, ...]:
    tokens = cell.total("completion_tokens")
    tokens = cell.total("pieces") if tokens is None else tokens
    return (
        cell.style,
        cell.strategy,
        _share(len(cell.right), cell.asked),
        _share(len(cell.valid), cell.asked),
        f"{cell.seconds:.0f} s",
        "unknown" if tokens is None else str(tokens),
    )


def _share(hits: int, total: int) -> str:
    low, high = Share(hits, total).interval
    return f"{hits} of {total} ({100 * low:.0f}-{100 * high:.0f} %)"


def _verdict_lines(verdict: Verdict | None) -> Sequence[str]:
    if verdict is None:
        return ()
    return (
        "",
        f"style {verdict.style}: {verdict.reason}",
        f"strategy {verdict.strategy}: {verdict.styles[verdict.style].reason}",
    )
