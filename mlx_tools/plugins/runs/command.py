"""`mlx-tools worker`.

It does the runs that gateways' clients ask for, and the jobs that are due.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import typer
from msgspec import Struct

from mlx_tools.app import plugins
from mlx_tools.cli import options
from mlx_tools.cli.output import note
from mlx_tools.cli.serve import require_extra

app = typer.Typer(add_completion=False)


@app.command()
@options.with_settings("profile", "backend.url")
def worker(*, options_given: options.Options) -> None:
    """Do the runs that gateways are asked for, until stopped.

    Sessions must be in PostgreSQL.

    The jobs of the schedule that are due are run, too.
    """
    run = options.run_options(options_given)
    with require_extra("gateway", "a worker"):
        from mlx_tools.plugins.runs.worker import work
    import anyio

    anyio.run(work, run, note, _find_due())


class WorkerNames(Struct, frozen=True):
    """The names of the plugin ``schedule`` that the worker uses."""

    run_due: Callable[[], Awaitable[None]]


def _find_due() -> Callable[[], Awaitable[None]]:
    """Return the function that runs the due jobs, of the plugin if it is here."""
    if "schedule" in plugins().names():
        return plugins().exports("schedule", WorkerNames).run_due

    async def run_nothing() -> None:
        return None

    return run_nothing
