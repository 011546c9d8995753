"""The counters of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mlx_tools.gateway import Meters
from mlx_tools.transcript import Event, FormatBroken, events

CLIENTS: Final = "client"
UNKNOWN: Final = "unknown"
"""The labels of a client's own tool, and of a name that no tool has."""

RUN_METERS: Final[Mapping[str, tuple[str, str]]] = {
    "runs_total": ("counter", "Runs that came to rest, by model and by how"),
    "corrections_total": ("counter", "Turns of runs that could not be read, by code"),
    "mends_total": ("counter", "Places where a turn of a run was mended, by kind"),
    "calls_total": ("counter", "Calls of runs that ended, by tool and result: ok, or a code"),
    "call_seconds": ("histogram", "Time of calls of runs, by tool"),
    "workers": ("gauge", "Workers that live, where runs are left to them"),
}


def count_event(meters: Meters, event: Event, model: str, tools: Mapping[str, str]) -> None:
    """Count an event of a run.

    Args:
        meters: The counters.
        event: The event.
        model: The model of the run.
        tools: The labels of the tools that the run has.
    """
    match event:
        case events.TurnEnded():
            took = event.duration_ms
            meters.turn(model, event.usage, None if took is None else took / 1000)
        case FormatBroken():
            meters.count("corrections_total", code=event.error.code)
        case events.Mended():
            meters.count("mends_total", kind=event.kind)
        case events.CallRead():
            for repair in event.repairs:
                meters.count("repairs_total", repair=repair)
        case events.ToolEnded():
            tool = tools.get(event.name, UNKNOWN)
            result = "ok" if event.error is None else event.error.code
            meters.count("calls_total", tool=tool, result=result)
            if event.duration_ms is not None and tool != CLIENTS and not event.cached:
                meters.time("call_seconds", event.duration_ms / 1000, tool=tool)
