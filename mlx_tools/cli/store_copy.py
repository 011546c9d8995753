"""`mlx-tools store`: all that is kept, moved between files and a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlx_tools.cli.options import argument
from mlx_tools.cli.output import amount, counted, note, print_text, progress_bar
from mlx_tools.errors import UsageError
from mlx_tools.gateway import RUNS
from mlx_tools.store import Copied, PostgresStore, SessionStore, TranscriptStore, copy_store
from mlx_tools.toolbox import SCHEDULE

app = typer.Typer(add_completion=False, no_args_is_help=True)

_PLACE = "a folder, as MLX_TOOLS_STATE_DIR names one, or postgresql://USER@HOST/NAME."


@app.callback()
def _store() -> None:
    """Copy what is kept, between files and a database."""


@app.command()
def copy(
    source: Annotated[str, argument("FROM", f"Where it is kept: {_PLACE}")],
    target: Annotated[str, argument("TO", f"Where it goes, empty or nothing else: {_PLACE}")],
) -> None:
    """Copy all sessions, with all that they keep, the schedule and the gateway's runs.

    One that was broken off goes on when it is started again. Nothing that is there is changed.
    """
    kept, new = _opened(source), _opened(target)
    if kept.place == new.place and kept.dsn == new.dsn:
        raise UsageError("FROM and TO are the same")
    with progress_bar("copying") as report:
        copied = copy_store(kept, new, (SCHEDULE, RUNS), report)
    print_text(f"copied {_said(copied)} to {new.place}")
    if copied.left_out:
        note(f"left out, as they hold no transcript: {', '.join(copied.left_out)}")


def _opened(given: str) -> SessionStore:
    if "://" in given:
        return PostgresStore(given)
    folder = Path(given).expanduser().absolute()
    if folder.name == "sessions" and not (folder / "sessions").exists():
        raise UsageError(f"{given} is the folder of sessions", hint="give the one that it is in")
    return TranscriptStore(folder / "sessions")


def _said(copied: Copied) -> str:
    rows = {name: sum(tables.values()) for name, tables in copied.tables.items()}
    said = [
        f"{counted(copied.sessions, 'session')} ({amount(copied.bytes)})",
        *([f"{copied.there} more were there"] if copied.there else []),
        counted(copied.used, "used approval"),
        *(f"{counted(n, 'row')} of {name}" for name, n in rows.items()),
    ]
    return ", ".join(said)
