"""Counters of the gateway in the form that Prometheus reads. Nothing of content.

Every label has few values: a path that is served, a model that is, a tool that is registered, a
word of ours. What a client or a model made up is never one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from mlx_tools.messages import Usage
from mlx_tools.transcript import Event, FormatBroken, events

CLIENTS: Final = "client"
UNKNOWN: Final = "unknown"
"""The labels of a tool of a client's own, and of a name that no tool has."""

_METERS: Final[Mapping[str, tuple[str, str]]] = {
    "requests_total": ("counter", "Requests for a turn, by path"),
    "errors_total": ("counter", "Requests for a turn that failed, by the code of the error"),
    "runs_total": ("counter", "Runs that came to rest, by model and by how"),
    "turn_seconds": ("histogram", "Time of turns, by model"),
    "tokens_total": ("counter", "Tokens by model and kind: prompt, cached (of these), completion"),
    "corrections_total": ("counter", "Turns of runs that could not be read, by code"),
    "repairs_total": ("counter", "Repairs that reading made, by name"),
    "mends_total": ("counter", "Places where a turn of a run was mended, by kind"),
    "calls_total": ("counter", "Calls of runs that ended, by tool and result: ok, or a code"),
    "call_seconds": ("histogram", "Time of calls of runs, by tool"),
    "active": ("gauge", "What is at work now: turns, runs"),
    "waiting": ("gauge", "What waits for its turn: turns, runs"),
    "workers": ("gauge", "Workers that live, where runs are left to them"),
}
_BUCKETS: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Upper bounds of times, in seconds."""


class Meters:
    """Counters since the start."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in _METERS}

    def count(self, name: str, amount: float = 1, suffix: str = "", **labels: object) -> None:
        """Add to a counter, with its labels."""
        said = ",".join(f'{key}="{_escaped(str(value))}"' for key, value in labels.items())
        self._counts[name][f"{suffix}{{{said}}}"] += amount  # type: ignore[assignment]

    def time(self, name: str, seconds: float, **labels: str) -> None:
        """Add a time to a histogram."""
        for most in _BUCKETS:
            self.count(name, seconds <= most, "_bucket", **labels, le=most)
        self.count(name, 1, "_bucket", **labels, le="+Inf")
        self.count(name, seconds, "_sum", **labels)
        self.count(name, 1, "_count", **labels)

    def turn(
        self, model: str, usage: Usage, seconds: float | None, repairs: Iterable[str] = ()
    ) -> None:
        """Add what a turn of a model took, and what had to be repaired in it."""
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ):
            self.count("tokens_total", tokens or 0, model=model, kind=kind)
        if seconds is not None:
            self.time("turn_seconds", seconds, model=model)
        for repair in repairs:
            self.count("repairs_total", repair=repair)

    def happened(self, event: Event, model: str, tools: Mapping[str, str]) -> None:
        """Add what happens in a run; ``tools`` are the labels of the tools that it has."""
        match event:
            case events.TurnEnded():
                took = event.duration_ms
                self.turn(model, event.usage, None if took is None else took / 1000)
            case FormatBroken():
                self.count("corrections_total", code=event.error.code)
            case events.Mended():
                self.count("mends_total", kind=event.kind)
            case events.CallRead():
                for repair in event.repairs:
                    self.count("repairs_total", repair=repair)
            case events.ToolEnded():
                tool = tools.get(event.name, UNKNOWN)
                result = "ok" if event.error is None else event.error.code
                self.count("calls_total", tool=tool, result=result)
                if event.duration_ms is not None and tool != CLIENTS and not event.cached:
                    self.time("call_seconds", event.duration_ms / 1000, tool=tool)

    def text(self, gauges: Mapping[str, Mapping[str, int]]) -> str:
        """All numbers; ``gauges`` are those of now, by name and by what."""
        for name, now in gauges.items():
            self._counts[name] = Counter({f'{{of="{what}"}}': n for what, n in now.items()})
        lines = []
        for name, (kind, about) in _METERS.items():
            lines += [f"# HELP mlx_tools_{name} {about}.", f"# TYPE mlx_tools_{name} {kind}"]
            lines += [f"mlx_tools_{name}{said} {n:g}" for said, n in self._counts[name].items()]
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
