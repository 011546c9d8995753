"""The tool of this plugin."""

from __future__ import annotations

from mlx_tools.app import ToolRequest, hookimpl
from mlx_tools.plugins.schedule.jobs import make_jobs
from mlx_tools.plugins.schedule.task_tool import schedule_task
from mlx_tools.tools import Tool, disable_tool


@hookimpl
def tools(request: ToolRequest) -> list[Tool]:
    """Return ``schedule_task``."""
    jobs = request.options.get("jobs")
    if jobs is None and request.configuration is not None:
        jobs = make_jobs(request.configuration, request.header)
    reason = "no place for jobs was named" if jobs is None else None
    return [disable_tool(schedule_task(jobs), reason)]
