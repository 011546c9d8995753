"""`mlx-tools worker`: does the runs that gateways' clients ask for, and the jobs that are due."""

from __future__ import annotations

import anyio
import typer

from mlx_tools.cli import options
from mlx_tools.cli.output import note
from mlx_tools.cli.serve import needing
from mlx_tools.errors import EXIT_OK

app = typer.Typer(add_completion=False)


@app.command()
@options.with_settings("profile", "backend.url", "model.name", *options.TOOLS)
def worker(*, options_given: options.Options) -> int:
    """Do the runs that gateways are asked for, where sessions are in PostgreSQL, until stopped.

    The jobs of the schedule that are due are run, too.
    """
    run = options.run_options(options_given)
    with needing("gateway", "a worker"):
        from mlx_tools.gateway import work
    from mlx_tools.cli.schedule import run_due

    anyio.run(work, run, note, run_due)
    return EXIT_OK
