"""What the gateway has done, as numbers: in the form that Prometheus reads. Nothing of content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mlx_tools.messages import Usage


class Meters:
    """Counters since the start."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter, with its labels."""
        said = ",".join(f'{key}="{value}"' for key, value in labels.items())
        self._counts[name, f"{{{said}}}" if said else ""] += amount

    def tokens(self, usage: Usage) -> None:
        """Add what a turn has cost."""
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ):
            self.count("tokens", tokens or 0, kind=kind)

    def text(self, gauges: Mapping[str, int]) -> str:
        """All numbers; ``gauges`` are those of now."""
        lines = []
        for name in dict.fromkeys(name for name, _ in sorted(self._counts)):
            lines.append(f"# TYPE mlx_tools_{name}_total counter")
            lines += (
                f"mlx_tools_{name}_total{labels} {value}"
                for (own, labels), value in sorted(self._counts.items())
                if own == name
            )
        for name, value in gauges.items():
            lines += [f"# TYPE mlx_tools_{name} gauge", f"mlx_tools_{name} {value}"]
        return "\n".join(lines) + "\n"
