"""`mlx-tools models`: which models are on this machine, fetching one, and where it stands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from mlx_tools.backends import (
    ListedModel,
    PullProgress,
    Report,
    list_models,
    memory_bytes,
    model_path,
    pull_model,
    suggest_model,
)
from mlx_tools.cli.output import amount, complain, print_json, print_row, print_text

app = typer.Typer(help="List, fetch and find models.", add_completion=False)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="smollm2-135m (the embedded model), or OWNER/NAME."),
]

_STAGES: Final = {
    "wait": "waiting for another pull",
    "fetch": "fetching",
    "check": "checking",
    "convert": "converting",
}


@app.command(name="list", help="List the embedded model and what the Hugging Face cache holds.")
def list_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Print a line a model, and which one suits this machine."""
    for model in list_models():
        if as_json:
            print_json(_as_json(model))
        else:
            here = str(model.path) if model.pulled else "not pulled"
            note = "" if model.mlx else "  (not in MLX's form)"
            print_row(f"{model.name:<44} {amount(model.size):>9} ", f"{here}{note}")
    if not as_json and sys.stderr.isatty():
        complain(suggest_model(memory_bytes()).line, kind="suggestion")


@app.command(help="Have a model on this machine, whole and checked.")
def pull(name: Name) -> None:
    """Fetch a model where it is not here yet, and print its folder."""
    with _bar() as report:
        pulled = pull_model(name, report)
    complain(f"{name} {'is ready' if pulled.fetched else 'was here already'}", kind="done")
    print_text(str(pulled.path))


@app.command(help="Print the folder of a model that is on this machine.")
def path(name: Name) -> None:
    """Print the folder."""
    print_text(str(model_path(name)))


@contextmanager
def _bar() -> Iterator[Report]:
    """A progress bar on standard error, at a terminal; elsewhere a line for each stage."""
    if not sys.stderr.isatty():
        seen: set[str] = set()

        def tell(progress: PullProgress) -> None:
            if progress.stage not in seen:
                seen.add(progress.stage)
                complain(_STAGES[progress.stage], kind="pull")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("{task.fields[amount]:>18}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def show(progress: PullProgress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bar.add_task(_STAGES[progress.stage], amount="")
            bar.update(
                tasks[progress.stage],
                completed=progress.done,
                total=progress.total or None,
                amount=_so_far(progress),
            )

        yield show


def _as_json(model: ListedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "source": model.source,
        "pulled": model.pulled,
        "size_bytes": model.size,
        "path": str(model.path) if model.path is not None else None,
        "mlx": model.mlx,
    }


def _so_far(progress: PullProgress) -> str:
    """How much of how much; a fetch counts bytes, the other stages steps that say nothing."""
    if progress.stage != "fetch":
        return ""
    return f"{amount(progress.done)} of {amount(progress.total)}"
