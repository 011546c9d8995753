"""`mlx-tools doctor`: is everything there that a run needs, and what can server and model do?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Annotated, Any, Final

import anyio
import typer

from mlx_tools.app.checks import Check, check_all, check_native_tools, check_verdict
from mlx_tools.app.wiring import RunOptions, choose, identity_of
from mlx_tools.backends import Chosen, FoundVerdict, find_served_format, find_verdict
from mlx_tools.cli import measure, options
from mlx_tools.cli.output import complain, print_json, print_prose, print_text
from mlx_tools.errors import EXIT_BACKEND, EXIT_OK, EXIT_STOPPED, BackendTimeout, MlxToolsError
from mlx_tools.paths import state_dir

app = typer.Typer(add_completion=False)

_MARKS: Final = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "-   "}
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}
_INDENT: Final = " " * 6


@dataclass(slots=True)
class _Findings:
    checks: list[Check] = field(default_factory=list)
    verdict: FoundVerdict = field(default_factory=FoundVerdict)
    probed: measure.Probed | None = None

    @property
    def failed(self) -> bool:
        return any(check.status == "fail" for check in self.checks)


@app.command(help="Check the server, the model and what both can do.")
@options.with_settings(*options.BACKEND, "model.chat_format")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    probed: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Measure which style and strategy the model follows best, and keep the verdict.",
        ),
    ] = False,
    within: Annotated[
        float,
        typer.Option("--within", metavar="SECONDS", min=1, help="How long the probe may take."),
    ] = measure.WITHIN,
    *,
    options_given: options.Options,
) -> int:
    """Print the findings; exit code 3 where one of them stops a run."""
    if not isfinite(within):  # which `min` lets pass
        raise typer.BadParameter("give a number of seconds", param_hint="--within")
    run = RunOptions(configuration=options.load(options_given))
    found = anyio.run(_find, run, within if probed else None)
    if as_json:
        print_json(_as_json(found))
    else:
        for check in found.checks:
            line = f"{_MARKS[check.status]}  {check.name}: {check.detail}"
            print_prose(line, _INDENT, colour=_COLOURS[check.status])
            if check.hint:
                print_prose(f"{_INDENT}{check.hint}", _INDENT)
        if found.probed is not None:
            print_text("\n" + measure.table(found.probed))
    if found.failed:
        return EXIT_BACKEND
    return EXIT_STOPPED if found.probed is not None and found.probed.verdict is None else EXIT_OK


def _as_json(found: _Findings) -> dict[str, Any]:
    kept = found.verdict
    verdict = None
    if kept.verdict is not None:
        verdict = kept.verdict.to_json() | {"source": kept.source, "place": kept.place}
    value = {
        "ok": not found.failed,
        "checks": [asdict(check) for check in found.checks],
        "verdict": verdict,
    }
    return value if found.probed is None else value | {"probe": found.probed.to_json()}


async def _find(run: RunOptions, within: float | None) -> _Findings:
    try:
        chosen = await choose(run, lambda line: complain(line, kind="note"))
    except MlxToolsError as error:
        return _Findings([Check("server", "fail", error.message, error.hint or "")])
    try:
        found = _Findings(await _checks(run, chosen))
        if within is not None and not found.failed:
            try:
                found.probed = await measure.probe(run, chosen, within)
                found.checks.append(found.probed.check())
            except BackendTimeout as error:
                found.checks.append(Check("probe", "fail", error.message, error.hint or ""))
        model = run.configuration.settings.model
        found.verdict = find_verdict(identity_of(chosen, chosen.model or run.model_name))
        found.checks.append(check_verdict(found.verdict, model.prompt_style, model.strategy))
        return found
    finally:
        await chosen.backend.aclose()


async def _checks(run: RunOptions, chosen: Chosen) -> list[Check]:
    found = await find_served_format(
        chosen.backend,
        run.configuration.settings.model.chat_format,
        files=chosen.files,
        model=chosen.model or run.model_name,
    )
    return await check_all(
        chosen,
        sessions=state_dir() / "sessions",
        chat_format=f"{found.chat_format.name}, by {found.source}",
        control_tokens=found.chat_format.control_tokens,
        native=check_native_tools(found.chat_format),
    )
