"""Runs of the gateway's own: the server executes their tools, under its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.plugins.runs.body import read_run
    from mlx_tools.plugins.runs.execution import is_begun, requests_of
    from mlx_tools.plugins.runs.rows import RUNS, RunRow, RunRows
    from mlx_tools.plugins.runs.runs import END_STATUSES, PATIENCE, Runs, conflict, runs_of

__getattr__, __dir__ = names_of(
    globals(),
    {
        "body": ("read_run",),
        "execution": ("is_begun", "requests_of"),
        "rows": ("RUNS", "RunRow", "RunRows"),
        "runs": ("END_STATUSES", "PATIENCE", "Runs", "conflict", "runs_of"),
    },
)
