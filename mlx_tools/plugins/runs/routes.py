"""The routes of this plugin."""

from __future__ import annotations

from starlette.routing import BaseRoute

from mlx_tools.app import hookimpl
from mlx_tools.gateway import Gateway
from mlx_tools.plugins.runs.api import run_routes
from mlx_tools.plugins.runs.description import RUN_OPERATIONS, RUN_SCHEMAS
from mlx_tools.plugins.runs.runs import get_runs


@hookimpl
def routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the routes below ``/v1/runs``; the runs begin and end with the gateway."""
    runs = get_runs(gateway)
    gateway.on_startup.append(runs.open)
    gateway.on_shutdown.append(runs.leave)
    gateway.on_cleanup.append(runs.aclose)
    gateway.gauges["runs"] = runs.workers.load
    gateway.operations.extend(RUN_OPERATIONS)
    gateway.schemas.update(RUN_SCHEMAS)
    return run_routes(runs)
