"""The table that this plugin keeps beside the sessions."""

from __future__ import annotations

from mlx_tools.app import SessionTable, hookimpl
from mlx_tools.plugins.runs.rows import RUNS, RunRows


@hookimpl
def tables() -> list[SessionTable]:
    """Return the table of runs; their sessions are no person's."""
    return [SessionTable(RUNS, lambda store: RunRows(store).holds)]
