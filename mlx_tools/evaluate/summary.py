"""What results come to: a row for each category and strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlx_tools.app import Share
from mlx_tools.evaluate.results import Result


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One category by one strategy. A number that the server did not report for all is None."""

    category: str
    strategy: str
    correct: Share
    valid: Share
    answered: int
    errors: Mapping[str, int]
    requests: int
    generated_tokens: int | None
    uncached_tokens: int | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The row as ``--json`` prints it."""
        shares = {"correct": _share(self.correct), "valid": _share(self.valid)}
        number = {"items": self.correct.total, "seconds": round(self.seconds, 3)}
        return asdict(self) | shares | number


def summarise(results: Sequence[Result]) -> tuple[SummaryRow, ...]:
    """What the results come to, in their order."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result["category"], result["strategy"]), []).append(result)
    return tuple(_row(*key, group) for key, group in groups.items())


def _row(category: str, strategy: str, group: Sequence[Result]) -> SummaryRow:
    return SummaryRow(
        category=category,
        strategy=strategy,
        correct=Share(sum(bool(one["correct"]) for one in group), len(group)),
        valid=Share(sum(bool(one["valid"]) for one in group), len(group)),
        answered=sum(bool(one.get("answered")) for one in group),
        errors=dict(Counter(one["error"] for one in group if one.get("error"))),
        requests=sum(one.get("requests") or 0 for one in group),
        generated_tokens=_sum([_generated(one) for one in group]),
        uncached_tokens=_sum([_uncached(one) for one in group]),
        seconds=float(sum(one.get("seconds") or 0 for one in group)),
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    return sum(n for n in numbers if n is not None) if None not in numbers else None


def _generated(one: Result) -> int | None:
    """The tokens that a result took: as reported, else the pieces in which they came."""
    tokens: int | None = one.get("completion_tokens")
    return one.get("pieces") if tokens is None else tokens


def _uncached(one: Result) -> int | None:
    prompt, cached = one.get("prompt_tokens"), one.get("cached_tokens")
    return None if prompt is None or cached is None else prompt - cached


def _share(share: Share) -> dict[str, Any]:
    low, high = share.interval
    return {"hits": share.hits, "share": share.value, "low": low, "high": high}


# --- for people -------------------------------------------------------------------------------


def table(summary: Sequence[SummaryRow]) -> str:
    """The summary as text: strategies side by side, a line for each category; no line's end."""
    strategies = list(dict.fromkeys(row.strategy for row in summary))
    categories = list(dict.fromkeys(row.category for row in summary))
    rows = {(row.category, row.strategy): row for row in summary}
    columns = ("valid", "tokens", "time")
    lines = [["", "items", *(head for one in strategies for head in (one, *columns))]]
    for category in categories:
        found = [rows.get((category, strategy)) for strategy in strategies]
        counts = sorted({row.correct.total for row in found if row is not None})
        cells = [cell for row in found for cell in (_cells(row) if row is not None else [""] * 4)]
        lines.append([category, "-".join(map(str, counts)), *cells])
    return "\n".join(_aligned(lines))


def _cells(row: SummaryRow) -> list[str]:
    tokens = "" if row.generated_tokens is None else str(row.generated_tokens)
    right = _percent(row.correct.value or 0.0, row.correct.interval)
    return [right, f"{100 * (row.valid.value or 0.0):.0f} %", tokens, f"{row.seconds:.0f} s"]


def _percent(value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * value:.1f} % ({100 * low:.0f}-{100 * high:.0f})"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = []
    for line in lines:
        first, *rest = line
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        aligned.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return aligned
