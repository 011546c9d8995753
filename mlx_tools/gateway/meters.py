"""Counters of the gateway in the form that Prometheus reads. Nothing of content.

Every label has few values: a path that is served, a model that is, a tool that is registered, a
word of ours. What a client or a model made up is never one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from mlx_tools.messages import Usage

_METERS: Final[Mapping[str, tuple[str, str]]] = {
    "requests_total": ("counter", "Requests for a turn, by path"),
    "errors_total": ("counter", "Requests for a turn that failed, by the code of the error"),
    "turn_seconds": ("histogram", "Time of turns, by model"),
    "tokens_total": ("counter", "Tokens by model and kind: prompt, cached (of these), completion"),
    "repairs_total": ("counter", "Repairs that reading made, by name"),
    "active": ("gauge", "What is at work now: turns, runs"),
    "waiting": ("gauge", "What waits for its turn: turns, runs"),
}
_BUCKETS: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Upper bounds of times, in seconds."""


class Meters:
    """Counters since the start."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, Counter[str]] = {}
        self.declare(_METERS)

    def declare(self, meters: Mapping[str, tuple[str, str]]) -> None:
        """Add counters by name: the kind of each, and a line about it."""
        self._kinds |= meters
        for name in meters:
            self._counts.setdefault(name, Counter())

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

    def text(self, gauges: Mapping[str, Mapping[str, int]]) -> str:
        """All numbers; ``gauges`` are those of now, by name and by what."""
        for name, now in gauges.items():
            self._counts[name] = Counter({f'{{of="{what}"}}': n for what, n in now.items()})
        lines = []
        for name, (kind, about) in self._kinds.items():
            lines += [f"# HELP mlx_tools_{name} {about}.", f"# TYPE mlx_tools_{name} {kind}"]
            lines += [f"mlx_tools_{name}{said} {n:g}" for said, n in self._counts[name].items()]
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
