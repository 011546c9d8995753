"""What results come to: a row for each category and strategy, averages, paired comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Final

from mlx_tools.app import Mean, Share, mcnemar, weighted_mean
from mlx_tools.evaluate.results import Result

AVERAGES: Final[Mapping[str, Mapping[str, float]]] = {
    "non_live": dict.fromkeys(("simple_python", "multiple", "parallel", "parallel_multiple"), 1.0),
    "live": {
        "live_simple": 258,
        "live_multiple": 1053,
        "live_parallel": 16,
        "live_parallel_multiple": 24,
    },
    "no_call": dict.fromkeys(("irrelevance", "live_irrelevance"), 1.0),
}
"""BFCL's averages of categories, with its weights (``eval_checker/eval_runner_helper.py``).

The non-live one is the mean of four (BFCL's first is itself a mean, with Java's and JavaScript's);
the live one weighs each category by its number of questions, here of all there are, so that a
sample weighs the same.
"""


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


@dataclass(frozen=True, slots=True)
class Pair:
    """Two strategies on the same items: on how many only one of them was right."""

    category: str
    first: str
    second: str
    only_first: int
    only_second: int

    @property
    def p(self) -> float:
        """How likely so uneven a split is where both are equally good: McNemar's exact test."""
        return mcnemar(self.only_first, self.only_second)

    def to_json(self) -> dict[str, Any]:
        """The pair as ``--json`` prints it."""
        return {**asdict(self), "p": self.p}


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows in the order of their results, averages as (name, strategy, mean), and pairs."""

    rows: tuple[SummaryRow, ...]
    averages: tuple[tuple[str, str, Mean], ...]
    pairs: tuple[Pair, ...]

    def to_json(self) -> dict[str, Any]:
        """The summary as ``--json`` prints it."""
        return {
            "rows": [row.to_json() for row in self.rows],
            "averages": [
                {"average": name, "strategy": strategy, "share": mean.value}
                | dict(zip(("low", "high"), mean.interval, strict=True))
                for name, strategy, mean in self.averages
            ],
            "pairs": [pair.to_json() for pair in self.pairs],
        }


def summarise(results: Sequence[Result]) -> Summary:
    """What the results come to."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result["category"], result["strategy"]), []).append(result)
    rows = {key: _row(*key, group) for key, group in groups.items()}
    strategies = list(dict.fromkeys(strategy for _, strategy in rows))
    return Summary(
        rows=tuple(rows.values()),
        averages=tuple(_averages(rows, strategies)),
        pairs=tuple(_pairs(groups, strategies)),
    )


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


def _averages(
    rows: Mapping[tuple[str, str], SummaryRow], strategies: Sequence[str]
) -> Iterator[tuple[str, str, Mean]]:
    """The averages of which every category is there."""
    for name, weights in AVERAGES.items():
        for strategy in strategies:
            if all((category, strategy) in rows for category in weights):
                shares = [(weights[one], rows[one, strategy].correct) for one in weights]
                if (mean := weighted_mean(shares)) is not None:
                    yield name, strategy, mean


def _pairs(
    groups: Mapping[tuple[str, str], Sequence[Result]], strategies: Sequence[str]
) -> Iterator[Pair]:
    for category in dict.fromkeys(category for category, _ in groups):
        for first, second in combinations(strategies, 2):
            one, other = (
                {r["id"]: bool(r["correct"]) for r in groups.get((category, strategy), ())}
                for strategy in (first, second)
            )
            both = one.keys() & other.keys()
            if both:
                yield Pair(
                    category,
                    first,
                    second,
                    only_first=sum(one[key] and not other[key] for key in both),
                    only_second=sum(other[key] and not one[key] for key in both),
                )


def _share(share: Share) -> dict[str, Any]:
    low, high = share.interval
    return {"hits": share.hits, "share": share.value, "low": low, "high": high}


# --- for people -------------------------------------------------------------------------------


def table(summary: Summary) -> str:
    """The summary as text: strategies side by side, a line for each category; no line's end."""
    strategies = list(dict.fromkeys(row.strategy for row in summary.rows))
    categories = list(dict.fromkeys(row.category for row in summary.rows))
    rows = {(row.category, row.strategy): row for row in summary.rows}
    means = {(name, strategy): mean for name, strategy, mean in summary.averages}
    columns = ("valid", "tokens", "time")
    lines = [["", "items", *(head for one in strategies for head in (one, *columns))]]
    for category in categories:
        found = [rows.get((category, strategy)) for strategy in strategies]
        counts = sorted({row.correct.total for row in found if row is not None})
        cells = [cell for row in found for cell in (_cells(row) if row is not None else [""] * 4)]
        lines.append([category, "-".join(map(str, counts)), *cells])
    for name in dict.fromkeys(name for name, _ in means):
        line = [f"average {name}", ""]
        for strategy in strategies:
            mean = means.get((name, strategy))
            line += [_percent(mean.value, mean.interval) if mean is not None else "", "", "", ""]
        lines.append(line)
    return "\n".join([*_aligned(lines), *map(_told, summary.pairs)])


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


def _told(pair: Pair) -> str:
    p = f"p = {pair.p:.3f}" if pair.p >= 0.001 else "p < 0.001"
    return (
        f"{pair.category}: only {pair.first} right {pair.only_first}, "
        f"only {pair.second} right {pair.only_second}, {p}"
    )
