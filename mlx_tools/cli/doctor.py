"""`mlx-tools doctor`: is everything there that a run needs, and what can server and model do? With
``--probe`` it measures which style and strategy the model follows best, and keeps the verdict."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from math import isfinite
from time import monotonic
from typing import Annotated, Any, Final

import anyio
import typer
from msgspec import Struct, to_builtins

from mlx_tools.app import (
    Autostart,
    Check,
    RunOptions,
    Share,
    check_all,
    check_machine,
    check_native_tools,
    check_tried,
    check_verdict,
    choose,
    failed_check,
    route_of,
    run_settings,
    session_store,
    try_native,
    written_tokens,
)
from mlx_tools.backends import (
    Route,
    SelectedBackend,
    StrategyChoice,
    Verdict,
    VerdictChoice,
    VerdictStore,
    find_served_format,
    find_verdict,
    limit_discovery,
    native_markers,
    takes_grammar,
)
from mlx_tools.cli import options, version
from mlx_tools.cli.options import option
from mlx_tools.cli.output import note, print_json, print_prose, print_text, progress_counter, table
from mlx_tools.errors import EXIT_BACKEND, EXIT_OK, EXIT_STOPPED, BackendTimeout, MlxToolsError
from mlx_tools.evaluate import (
    STRATEGIES,
    Cell,
    ProbeResult,
    load_questions,
    make_verdict,
    measure,
    styles_for,
)
from mlx_tools.messages import Style, replace

app = typer.Typer(add_completion=False)

_MARKS: Final = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "-   "}
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}
_INDENT: Final = " " * 6
_WITHIN: Final = 1800.0
"""Seconds that a probe may take, unless it is told."""


@dataclass(slots=True)
class _Findings:
    checks: list[Check] = field(default_factory=list)
    verdict: VerdictChoice = field(default_factory=VerdictChoice)
    route: Route | None = None
    probed: ProbeReport | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        return any(check.status == "fail" for check in self.checks)


@app.command()
@options.with_settings(*options.OWN, "model.chat_format")
def doctor(
    as_json: options.AsJson = False,
    probed: Annotated[
        bool,
        option(
            "--probe",
            "Measure which style and strategy the model follows best, and keep the verdict.",
        ),
    ] = False,
    seconds: Annotated[
        float, option("--within SECONDS", "How long the probe may take.", min=1)
    ] = _WITHIN,
    *,
    options_given: options.Options,
) -> int:
    """Print the findings; exit code 3 where one of them stops a run."""
    if not isfinite(seconds):  # which `min` lets pass
        raise typer.BadParameter("give a number of seconds", param_hint="--within")
    run = RunOptions(
        configuration=options.load(options_given),
        person=sys.stderr.isatty(),
        pick=options.pick_at_terminal(),
    )
    found = anyio.run(_find, run, seconds if probed else None)
    if as_json:
        print_json(_as_json(found))
    else:
        for check in found.checks:
            line = f"{_MARKS[check.status]}  {check.name}: {check.detail}"
            print_prose(line, _INDENT, colour=_COLOURS[check.status])
            if check.hint:
                print_prose(f"{_INDENT}{check.hint}", _INDENT)
        if found.probed is not None:
            print_text("\n" + _table(found.probed))
    if found.has_failed:
        return EXIT_BACKEND
    return EXIT_STOPPED if found.probed is not None and found.probed.verdict is None else EXIT_OK


def _as_json(findings: _Findings) -> dict[str, Any]:
    kept = findings.verdict
    place = {"source": kept.source, "place": kept.place}
    value = {
        "ok": not findings.has_failed,
        "checks": [to_builtins(check) for check in findings.checks],
        "verdict": kept.verdict and kept.verdict.to_json() | place,
        "route": findings.route and findings.route.to_json(),
        "versions": findings.versions,
    }
    return value if findings.probed is None else value | {"probe": findings.probed.to_json()}


async def _find(run: RunOptions, seconds: float | None) -> _Findings:
    try:
        chosen = await choose(run, note)
    except MlxToolsError as error:
        return _Findings([failed_check("server", error), *_machine(run)])
    try:
        model_name = chosen.identity(run.model_name)
        host = {"python": platform.python_version(), "platform": platform.platform()}
        found = _Findings(versions=_versions(chosen) | {"model": model_name} | host)
        await _check(run, chosen, found, retry=seconds is not None)
        if seconds is not None and not found.has_failed:
            try:
                found.probed = await probe(run, chosen, seconds)
                found.checks.append(found.probed.check())
            except BackendTimeout as error:
                found.checks.append(failed_check("probe", error))
        model = run.configuration.settings.model
        found.verdict = find_verdict(chosen.identity(run.model_name))
        found.checks.append(check_verdict(found.verdict, model.prompt_style, model.strategy))
        found.checks += _machine(run, chosen)
        return found
    finally:
        await chosen.backend.aclose()


def _machine(run: RunOptions, selected: SelectedBackend | None = None) -> list[Check]:
    """The checks of this machine, and of the commands that start by themselves on it."""
    files = selected.files if selected is not None else None
    starts = [Autostart(name="serve"), Autostart(name="schedule", interval=5)]
    port = run.configuration.settings.gateway.port
    return check_machine(files.path if files is not None else None, starts, port=port)


async def _check(
    run: RunOptions, selected: SelectedBackend, findings: _Findings, *, retry: bool
) -> None:
    """Makes the checks. A server's own function calling is tried where it was not, or ``retry``."""
    served = await find_served_format(
        selected.backend,
        run.configuration.settings.model.chat_format,
        files=selected.files,
        model=selected.model or run.model_name,
    )
    source = f"{'as' if served.is_named else 'by'} {served.source}"
    findings.checks += await check_all(
        selected,
        sessions=session_store(run.configuration),
        chat_format=f"{served.chat_format.name}, {source}",
        is_explicit=served.is_named,
        control_tokens=written_tokens(served.chat_format),
        native=check_native_tools(served.chat_format),
    )
    if not {check.name for check in findings.checks if check.status == "fail"} <= {"completion"}:
        return
    try:
        tried = await try_native(run, selected, retry=retry)
        findings.checks.append(check_tried(tried))
        if tried is not None and tried.passed:
            findings.checks[:] = map(_spared, findings.checks)
    except MlxToolsError as error:
        findings.checks.append(Check("native calls", "skip", f"cannot be told: {error.message}"))
    try:
        findings.route = await route_of(run, selected)
        said = f"{findings.route.path}: {findings.route.reason}"
        findings.checks.append(Check("route", "ok", said))
    except MlxToolsError as error:
        findings.checks.append(failed_check("route", error))


def _spared(check: Check) -> Check:
    """A check of a server whose own chat interface works: it need not complete text."""
    if check.name != "completion" or check.status != "fail":
        return check
    return Check(
        check.name, "warn", check.detail, "its own chat interface is used: --backend native"
    )


# --- the probe ----------------------------------------------------------------------------------


class ProbeReport(Struct, frozen=True, kw_only=True):
    """The result of a probe. ``verdict`` is None where it did not come to its end, or nothing tells
    which model it was; ``verdict_path`` is where the verdict is kept, and ``problem`` why it is
    not."""

    result: ProbeResult
    questions: int
    verdict: Verdict | None = None
    verdict_path: str | None = None
    problem: str = ""

    def check(self) -> Check:
        """The probe as one of the doctor's findings."""
        measured = self.result
        asked, total = sum(cell.asked for cell in measured.cells), len(measured.cells)
        said = f"asked {asked} of {self.questions * total} times in {measured.seconds:.0f} s"
        if (why := measured.failure) is not None:
            said = f"broke off, {said}; there is no verdict: {why.message}"
            return Check("probe", "fail", said, why.hint or "")
        if not measured.complete:
            hint = "give it more time: --within SECONDS"
            return Check("probe", "warn", f"time ran out, {said}; there is no verdict", hint)
        if self.problem:
            return Check("probe", "warn", f"{said}; the verdict is not kept: {self.problem}")
        return Check("probe", "ok", f"{said}; the verdict is kept in {self.verdict_path}")

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it."""
        failure = self.result.failure
        return {
            "complete": self.result.complete,
            "failure": failure and failure.message,
            "seconds": round(self.result.seconds, 1),
            "questions": self.questions,
            "measured": [cell.to_json() for cell in self.result.cells],
            "verdict": self.verdict and self.verdict.to_json(),
            "stored": self.verdict_path,
            "problem": self.problem or None,
        }


async def probe(run: RunOptions, selected: SelectedBackend, seconds: float) -> ProbeReport:
    """Measures the model that was chosen, within so many seconds, and keeps the verdict.

    Raises `BackendTimeout` where finding out what the server serves takes all of them.
    """
    began, asked = monotonic(), load_questions()
    forbidden = tuple(getattr(selected.backend, "forbidden_tokens", ()))
    strategies: list[StrategyChoice] = [*STRATEGIES]
    with limit_discovery(seconds, "--within"):
        settings = replace(
            await run_settings(run, selected, note), project_context="", verdict=None
        )
        if await takes_grammar(selected.backend):
            strategies.append("grammar")

    def prepare(style: Style) -> None:
        """Forbid a model its own markers for calls, but in the style that has them."""
        selected.backend.forbidden_tokens = forbidden if native_markers(style) else ()

    total = len(asked.questions) * len(styles_for(settings)) * len(strategies)
    with progress_counter("probing", total) as step:
        measured = await measure(
            selected.backend,
            asked.questions,
            settings=settings,
            limits=run.configuration.limits(),
            strategies=strategies,
            seconds=seconds - (monotonic() - began),
            step=step,
            prepare=prepare,
        )
    found = ProbeReport(result=measured, questions=len(asked.questions))
    if not measured.complete:
        return found
    model = selected.identity(run.model_name)
    verdict = make_verdict(model or "", measured, asked, settings, _versions(selected))
    found = replace(found, verdict=verdict)
    if model is None:
        return replace(found, problem="nothing tells which model this is; name it with --model")
    try:
        return replace(found, verdict_path=str(VerdictStore().save(verdict)))
    except MlxToolsError as error:
        return replace(found, problem=str(error))


def _versions(selected: SelectedBackend) -> dict[str, Any]:
    """Return what the model was measured on."""
    found: dict[str, Any] = {"mlx_tools": version()}
    if selected.backend.kind != "completions":
        for name in ("mlx", "mlx-lm"):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = None
    elif selected.health is not None:
        found["server"] = selected.health.server
    return found


def _table(probed: ProbeReport) -> str:
    """The figures for a person, and what follows."""
    head = ("style", "strategy", "right", "valid", "time", "tokens")
    rows = [head, *(_row(cell) for cell in probed.result.cells)]
    lines = [line.rstrip() for line in table(rows)]
    lines.append("in brackets: the 95 % interval (Wilson)")
    if (verdict := probed.verdict) is not None:
        reason = verdict.styles[verdict.style].reason
        lines += ["", f"style {verdict.style}: {verdict.reason}"]
        lines.append(f"strategy {verdict.strategy}: {reason}")
    return "\n".join(lines)


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
