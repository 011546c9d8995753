"""The table of this plugin in the store of the sessions."""

from __future__ import annotations

from mlx_tools.app import SessionTable, hookimpl
from mlx_tools.plugins.schedule.job_store import SCHEDULE
from mlx_tools.plugins.schedule.jobs import job_store


@hookimpl
def tables() -> list[SessionTable]:
    """Return the table of jobs. The sessions of their runs belong to the plugin."""
    return [SessionTable(SCHEDULE, lambda store: job_store(store).has_run_in)]
