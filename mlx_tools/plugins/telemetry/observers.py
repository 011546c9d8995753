"""The observer of this plugin."""

from __future__ import annotations

from mlx_tools.app import hookimpl
from mlx_tools.controller import Observer
from mlx_tools.plugins.telemetry.spans import trace_run


@hookimpl
def observers() -> list[Observer]:
    """Return the observer that makes spans of runs."""
    return [trace_run]
