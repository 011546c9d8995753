"""Tasks for later, which run once or repeatedly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.plugins.schedule.command import run_due
    from mlx_tools.plugins.schedule.job_store import SCHEDULE, JobStore
    from mlx_tools.plugins.schedule.task_tool import Jobs, schedule_task

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "command": ("run_due",),
        "job_store": ("SCHEDULE", "JobStore"),
        "task_tool": ("Jobs", "schedule_task"),
    },
)
