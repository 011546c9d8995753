"""`mlx-tools doctor`.

Checks that a run has what it needs, and what server and model can do.

With ``--probe`` it measures which style and strategy the model follows best, and stores the
verdict.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from math import isfinite
from time import monotonic
from typing import Annotated, Any, Final

import typer
from msgspec import Struct, to_builtins

from mlx_tools.app import (
    STRATEGIES,
    Autostart,
    Cell,
    Check,
    ProbeResult,
    RunOptions,
    Share,
    check_all,
    check_machine,
    check_native_tools,
    check_tried,
    check_verdict,
    choose,
    choose_route,
    collect,
    list_control_tokens,
    list_styles,
    load_questions,
    make_failed_check,
    make_verdict,
    measure,
    plugins,
    run_settings,
    session_store,
    try_native,
)
from mlx_tools.backends import (
    Route,
    SelectedBackend,
    StrategyChoice,
    Verdict,
    VerdictChoice,
    VerdictStore,
    find_forbidden_markers,
    find_served_format,
    find_verdict,
    limit_discovery,
    takes_grammar,
)
from mlx_tools.cli import options, version
from mlx_tools.cli.inputs import run_loop
from mlx_tools.cli.options import option
from mlx_tools.cli.output import note, print_json, print_prose, print_text, progress_counter, table
from mlx_tools.errors import EXIT_BACKEND, EXIT_OK, EXIT_STOPPED, BackendTimeout, MlxToolsError
from mlx_tools.messages import Style, replace

app = typer.Typer(add_completion=False)

_MARKS: Final = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "-   "}
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}
_INDENT: Final = " " * 6
_PROBE_SECONDS: Final = 1800.0
"""Seconds for a probe by default. A choice: each question is asked in every style and strategy."""


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
@options.with_settings(*options.MODEL_SETTINGS, "model.chat_format")
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
    ] = _PROBE_SECONDS,
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
    findings = run_loop(_find, run, seconds if probed else None)
    if as_json:
        print_json(_as_json(findings))
    else:
        for check in findings.checks:
            line = f"{_MARKS[check.status]}  {check.name}: {check.detail}"
            print_prose(line, _INDENT, colour=_COLOURS[check.status])
            if check.hint:
                print_prose(f"{_INDENT}{check.hint}", _INDENT)
        if findings.probed is not None:
            print_text("\n" + _table(findings.probed))
    if findings.has_failed:
        return EXIT_BACKEND
    return (
        EXIT_STOPPED if findings.probed is not None and findings.probed.verdict is None else EXIT_OK
    )


def _as_json(findings: _Findings) -> dict[str, Any]:
    verdict_choice = findings.verdict
    place = {"source": verdict_choice.source, "place": verdict_choice.place}
    value = {
        "ok": not findings.has_failed,
        "checks": [to_builtins(check) for check in findings.checks],
        "verdict": verdict_choice.verdict and verdict_choice.verdict.to_json() | place,
        "route": findings.route and findings.route.to_json(),
        "versions": findings.versions,
    }
    return value if findings.probed is None else value | {"probe": findings.probed.to_json()}


async def _find(run: RunOptions, seconds: float | None) -> _Findings:
    try:
        selected = await choose(run, note)
    except MlxToolsError as error:
        return _Findings([make_failed_check("server", error), *_machine(run)])
    try:
        model_name = selected.identity(run.model_name)
        host = {"python": platform.python_version(), "platform": platform.platform()}
        findings = _Findings(versions=_versions(selected) | {"model": model_name} | host)
        await _check(run, selected, findings, retry=seconds is not None)
        if seconds is not None and not findings.has_failed:
            try:
                findings.probed = await probe(run, selected, seconds)
                findings.checks.append(findings.probed.check())
            except BackendTimeout as error:
                findings.checks.append(make_failed_check("probe", error))
        model = run.configuration.settings.model
        findings.verdict = find_verdict(selected.identity(run.model_name))
        findings.checks.append(check_verdict(findings.verdict, model.prompt_style, model.strategy))
        findings.checks += _machine(run, selected)
        return findings
    finally:
        await selected.backend.aclose()


def _machine(run: RunOptions, selected: SelectedBackend | None = None) -> list[Check]:
    """Check this machine, and the commands that start by themselves on it."""
    files = selected.files if selected is not None else None
    starts = [Autostart(name="serve")]
    port = run.configuration.settings.gateway.port
    machine = check_machine(files.path if files is not None else None, starts, port=port)
    settings = [Check("settings", "warn", warning) for warning in run.configuration.warnings]
    further = collect("checks", configuration=run.configuration)
    return [*settings, *machine, *further, *_faults()]


def _faults() -> list[Check]:
    """Return a check for each plugin that is left out, or a part of it."""
    hint = "correct it, or remove its package"
    faults = plugins().faults.items()
    return [
        Check("plugin", "warn", f"{name} is left out, or a part of it: {why}", hint)
        for name, why in faults
    ]


async def _check(
    run: RunOptions, selected: SelectedBackend, findings: _Findings, *, retry: bool
) -> None:
    """Make the checks.

    A server's own function calling is tried if it was not before, or on ``retry``.
    """
    format_choice = await find_served_format(
        selected.backend,
        run.configuration.settings.model.chat_format,
        files=selected.files,
        model=selected.model or run.model_name,
    )
    source = f"{'as' if format_choice.is_named else 'by'} {format_choice.source}"
    findings.checks += await check_all(
        selected,
        sessions=session_store(run.configuration),
        chat_format=f"{format_choice.chat_format.name}, {source}",
        is_explicit=format_choice.is_named,
        control_tokens=list_control_tokens(format_choice.chat_format),
        native=check_native_tools(format_choice.chat_format),
    )
    if not {check.name for check in findings.checks if check.status == "fail"} <= {"completion"}:
        return
    try:
        native_verdict = await try_native(run, selected, retry=retry)
        findings.checks.append(check_tried(native_verdict))
        if native_verdict is not None and native_verdict.passed:
            findings.checks[:] = map(_excuse_completion, findings.checks)
    except MlxToolsError as error:
        findings.checks.append(Check("native calls", "skip", f"unknown: {error.message}"))
    try:
        findings.route = await choose_route(run, selected)
        detail = f"{findings.route.path}: {findings.route.reason}"
        findings.checks.append(Check("route", "ok", detail))
    except MlxToolsError as error:
        findings.checks.append(make_failed_check("route", error))


def _excuse_completion(check: Check) -> Check:
    """Return a check of a server whose own chat interface works.

    It need not complete text.
    """
    if check.name != "completion" or check.status != "fail":
        return check
    return Check(
        check.name, "warn", check.detail, "its own chat interface is used: --backend native"
    )


# --- the probe ----------------------------------------------------------------------------------


class ProbeReport(Struct, frozen=True, kw_only=True):
    """The result of a probe."""

    result: ProbeResult
    questions: int
    verdict: Verdict | None = None
    """None if the probe did not finish, or the model is unknown."""
    verdict_path: str | None = None
    """The file of the stored verdict."""
    problem: str = ""
    """The reason why the verdict is not stored."""

    def check(self) -> Check:
        """Return the probe as one of the doctor's checks."""
        result = self.result
        asked_count, total = sum(cell.question_count for cell in result.cells), len(result.cells)
        detail = f"asked {asked_count} of {self.questions * total} times in {result.seconds:.0f} s"
        if (failure := result.failure) is not None:
            detail = f"broke off, {detail}; there is no verdict: {failure.message}"
            return Check("probe", "fail", detail, failure.hint or "")
        if not result.complete:
            hint = "give it more time: --within SECONDS"
            return Check("probe", "warn", f"time ran out, {detail}; there is no verdict", hint)
        if self.problem:
            return Check("probe", "warn", f"{detail}; the verdict is not kept: {self.problem}")
        return Check("probe", "ok", f"{detail}; the verdict is kept in {self.verdict_path}")

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
    """Measure the selected model within ``seconds``, and store the verdict.

    Raises:
        BackendTimeout: finding out what the server serves takes all the time.
    """
    started_at, probe_questions = monotonic(), load_questions()
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
        selected.backend.forbidden_tokens = forbidden if find_forbidden_markers(style) else ()

    total = len(probe_questions.questions) * len(list_styles(settings)) * len(strategies)
    with progress_counter("probing", total) as step:
        result = await measure(
            selected.backend,
            probe_questions.questions,
            settings=settings,
            limits=run.configuration.limits(),
            strategies=strategies,
            seconds=seconds - (monotonic() - started_at),
            step=step,
            prepare=prepare,
        )
    report = ProbeReport(result=result, questions=len(probe_questions.questions))
    if not result.complete:
        return report
    model = selected.identity(run.model_name)
    verdict = make_verdict(model or "", result, probe_questions, settings, _versions(selected))
    report = replace(report, verdict=verdict)
    if model is None:
        return replace(report, problem="nothing tells which model this is; name it with --model")
    try:
        return replace(report, verdict_path=str(VerdictStore().save(verdict)))
    except MlxToolsError as error:
        return replace(report, problem=str(error))


def _versions(selected: SelectedBackend) -> dict[str, Any]:
    """Return the versions of the programs that the model was measured with."""
    versions: dict[str, Any] = {"mlx_tools": version()}
    if selected.backend.kind != "completions":
        for name in ("mlx", "mlx-lm"):
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = None
    elif selected.health is not None:
        versions["server"] = selected.health.server
    return versions


def _table(probed: ProbeReport) -> str:
    """Return the figures for a person, and what follows from them."""
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
        _share(len(cell.right), cell.question_count),
        _share(len(cell.valid), cell.question_count),
        f"{cell.seconds:.0f} s",
        "unknown" if tokens is None else str(tokens),
    )


def _share(hits: int, total: int) -> str:
    low, high = Share(hits, total).interval
    return f"{hits} of {total} ({100 * low:.0f}-{100 * high:.0f} %)"
