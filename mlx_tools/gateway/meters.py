"""Counters of the gateway in the form that Prometheus reads, without any content.

Every label has few values: a path that is served, a model that is served, a tool that is
registered, a word of the code. It is never a text of a client or a model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from msgspec import Struct, field

from mlx_tools.messages import Usage

Labels = tuple[tuple[str, object], ...]

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


class _Times(Struct):
    """Times that were measured."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS) + 1))
    """The number of times in each bucket but not in a smaller one; the last has no upper bound."""
    seconds: float = 0.0
    """The sum of the times."""


class Meters:
    """Counters since the start."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, Counter[Labels]] = {}
        self._times: dict[str, dict[Labels, _Times]] = {}
        self.declare(_METERS)

    def declare(self, meters: Mapping[str, tuple[str, str]]) -> None:
        """Add counters by name: the kind of each, and a line about it."""
        self._kinds |= meters
        for name in meters:
            self._counts.setdefault(name, Counter())
            self._times.setdefault(name, {})

    def count(self, name: str, amount: int = 1, **labels: object) -> None:
        """Add to a counter, with its labels."""
        self._counts[name][(*labels.items(),)] += amount

    def time(self, name: str, seconds: float, **labels: str) -> None:
        """Add a time to a histogram."""
        times = self._times[name].setdefault((*labels.items(),), _Times())
        times.counts[bisect_left(_BUCKETS, seconds)] += 1
        times.seconds += seconds

    def turn(
        self, model: str, usage: Usage, seconds: float | None, repairs: Iterable[str] = ()
    ) -> None:
        """Add the costs of a model's turn, and the repairs in it."""
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
        """Return all numbers as text.

        ``gauges`` are the numbers of now, by name and by what they count.
        """
        for name, now in gauges.items():
            self._counts[name] = Counter({(("of", what),): n for what, n in now.items()})
        lines = []
        for name, (kind, about) in self._kinds.items():
            lines += [f"# HELP mlx_tools_{name} {about}.", f"# TYPE mlx_tools_{name} {kind}"]
            rows: list[tuple[str, Labels, float]]
            rows = [(name, labels, count) for labels, count in self._counts[name].items()]
            for labels, times in self._times[name].items():
                rows += _histogram(name, labels, times)
            lines += [f"mlx_tools_{place}{{{_label_text(said)}}} {n:g}" for place, said, n in rows]
        return "\n".join(lines) + "\n"


def _histogram(name: str, labels: Labels, times: _Times) -> Iterator[tuple[str, Labels, float]]:
    """Yield the rows of a histogram: each bucket includes the smaller ones."""
    totals = [*accumulate(times.counts)]
    for most, total in zip((*_BUCKETS, "+Inf"), totals, strict=True):
        yield f"{name}_bucket", (*labels, ("le", most)), total
    yield f"{name}_sum", labels, times.seconds
    yield f"{name}_count", labels, totals[-1]


def _label_text(labels: Labels) -> str:
    return ",".join(f'{key}="{_escaped(str(value))}"' for key, value in labels)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
