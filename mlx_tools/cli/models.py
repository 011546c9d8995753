"""`mlx-tools models`.

List the models of this machine, fetch one, find its folder, serve it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from mlx_tools.app import config
from mlx_tools.backends import (
    ListedModel,
    NativeVerdict,
    PullProgress,
    VerdictStore,
    foreground_command,
    list_models,
    memory_bytes,
    model_identity,
    model_path,
    pull_model,
    suggest_model,
)
from mlx_tools.cli.options import AsJsonLines, argument, option
from mlx_tools.cli.output import (
    amount,
    complain,
    note,
    print_json,
    print_prose,
    print_row,
    print_text,
    progress_bar,
    warn_all,
)

app = typer.Typer(add_completion=False)

Name = Annotated[str, argument("NAME", "smollm2-135m (the embedded model), or OWNER/NAME.")]

_STAGES: Final = {
    "wait": "waiting for another pull",
    "fetch": "fetching",
    "check": "checking",
    "convert": "converting",
}


@app.command(name="list")
def list_all(as_json: AsJsonLines = False) -> None:
    """List the embedded model and what the Hugging Face cache holds.

    For servers whose own function calling was tried (doctor does), it shows how each is asked.
    """
    for model in list_models():
        verdicts = VerdictStore().natives(model_identity(model.name, model.path) or "")
        if as_json:
            print_json(_as_json(model, verdicts))
        else:
            location = str(model.path) if model.pulled else "not pulled"
            form = "" if model.mlx else "  (not in MLX's form)"
            print_row(f"{model.name:<44} {amount(model.size):>9} ", f"{location}{form}")
            for verdict in verdicts:
                path = "native" if verdict.passed else "prompted"
                print_prose(f"    {path} on {verdict.server}: {verdict.reason}", " " * 6)
    if not as_json and sys.stderr.isatty():
        complain(suggest_model(memory_bytes()).line, kind="suggestion")


@app.command()
def pull(name: Name) -> None:
    """Fetch a model, whole and checked; print its folder."""
    with progress_bar("", counts=False) as bar:
        stages: set[str] = set()

        def report(progress: PullProgress) -> None:
            text = _STAGES[progress.stage]
            if progress.stage not in stages and not sys.stderr.isatty():
                complain(text, kind="pull")
            stages.add(progress.stage)
            if progress.stage == "fetch":  # the other stages count steps that say nothing
                text += f"  {amount(progress.done)} of {amount(progress.total)}"
            bar(progress.done, progress.total or None, text)

        result = pull_model(name, report)
    complain(f"{name} {'is ready' if result.fetched else 'was here already'}", kind="done")
    print_text(str(result.path), exact=True)


@app.command()
def path(name: Name) -> None:
    """Print the folder of a model that is on this machine."""
    print_text(str(model_path(name)), exact=True)


@app.command()
def serve(
    name: Name,
    port: Annotated[int, option("--port N", "Listen on this port.", min=1, max=65535)] = 8080,
) -> None:
    """Run mlx-lm's server with a model in this terminal, until it is stopped.

    It listens on 127.0.0.1. The other commands find it there, if the port is 8080.
    """
    loaded = config.load()
    warn_all(loaded.warnings)
    extra = loaded.settings.backend.server_options
    command, environment = foreground_command(model_path(name), port, extra)
    address = f"http://127.0.0.1:{port}"
    url = "" if port == 8080 else f" --url {address}"
    note(f"serving {name} at {address} until Ctrl-C; in another terminal: mlx-tools chat{url}")
    sys.stdout.flush()
    os.execve(command[0], command, environment)  # noqa: S606 - the server takes this one's place


def _as_json(model: ListedModel, verdicts: Sequence[NativeVerdict]) -> dict[str, object]:
    return {
        "name": model.name,
        "source": model.source,
        "pulled": model.pulled,
        "size_bytes": model.size,
        "path": str(model.path) if model.path is not None else None,
        "mlx": model.mlx,
        "routes": [
            {
                "server": one.server,
                "path": "native" if one.passed else "prompted",
                "reason": one.reason,
            }
            for one in verdicts
        ],
    }
