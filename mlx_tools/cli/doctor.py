"""`mlx-tools doctor`: is everything there that a run needs, and what can the server do?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

import anyio
import typer

from mlx_tools.cli import options
from mlx_tools.cli.output import complain, print_json, print_text
from mlx_tools.cli.wiring import RunOptions, choose
from mlx_tools.doctor import Check, check_all
from mlx_tools.errors import EXIT_BACKEND, EXIT_OK, MlxToolsError, UsageError
from mlx_tools.paths import state_dir
from mlx_tools.router import find_served_format

app = typer.Typer(add_completion=False)

_MARKS: Final = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "-   "}
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


@app.command(help="Check the server, the model and what both can do.")
@options.with_settings(*options.BACKEND, "model.chat_format")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", hidden=True, help="Measure which style a model follows.")
    ] = False,
    *,
    options_given: options.Options,
) -> int:
    """Print the findings; exit code 3 where one of them stops a run."""
    if probe:
        raise UsageError("--probe is not in this version", hint="run doctor without it")
    run = RunOptions(configuration=options.load(options_given))
    checks = anyio.run(_checks, run)
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            line = f"{_MARKS[check.status]}  {check.name}: {check.detail}"
            print_text(line, colour=_COLOURS[check.status])
            if check.hint:
                print_text(f"      {check.hint}")
    return EXIT_BACKEND if failed else EXIT_OK


async def _checks(run: RunOptions) -> list[Check]:
    try:
        chosen = await choose(run, lambda line: complain(line, kind="note"))
    except MlxToolsError as error:
        return [Check("server", "fail", error.message, error.hint or "")]
    try:
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
        )
    finally:
        await chosen.backend.aclose()
