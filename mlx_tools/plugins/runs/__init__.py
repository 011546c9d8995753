"""Runs of the gateway itself: the server executes their tools, under its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.plugins.runs.body import read_run
    from mlx_tools.plugins.runs.execution import is_begun, list_requests
    from mlx_tools.plugins.runs.rows import RUNS, RunRow, RunRows
    from mlx_tools.plugins.runs.runs import END_STATUSES, WAIT_SECONDS, Runs, conflict, get_runs

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "body": ("read_run",),
        "execution": ("is_begun", "list_requests"),
        "rows": ("RUNS", "RunRow", "RunRows"),
        "runs": ("END_STATUSES", "WAIT_SECONDS", "Runs", "conflict", "get_runs"),
    },
)
