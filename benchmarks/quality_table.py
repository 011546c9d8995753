"""The tables of docs/call-quality.md, from result files of `mlx-tools eval bfcl --out`.

    python benchmarks/quality_table.py FILE ... [--keep benchmarks/call_quality/report_half.jsonl]

``--keep`` writes what the tables are made of, a JSON line a question. Seconds are of whatever else
the machine had to do; compare them within one run alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_tools.evaluate.statistics import mcnemar, wilson

KEPT = (
    "category id strategy correct valid fault error answered requests pieces prompt_tokens"
    " cached_tokens seconds"
)
NON_LIVE = ("simple", "multiple", "parallel", "parallel_multiple")
Rows = list[Mapping[str, Any]]


def results(files: Sequence[Path]) -> Rows:
    """The questions of all files, the last result of each by each strategy."""
    found = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            if "correct" in one:
                found[one["category"], one["strategy"], one["id"]] = one
    return list(found.values())


def groups(rows: Rows) -> dict[tuple[str, str], Rows]:
    made: dict[tuple[str, str], Rows] = {}
    for row in rows:
        made.setdefault((row["category"], row["strategy"]), []).append(row)
    return made


def table(rows: Rows) -> str:
    lines = [
        "| category | strategy | questions | correct | valid | tokens | requests | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (category, strategy), group in sorted(groups(rows).items()):
        count = len(group)
        mean = {
            name: sum(row[name] or 0 for row in group) / count
            for name in ("pieces", "requests", "seconds")
        }
        lines.append(
            f"| `{category}` | {strategy} | {count} | {share(group, 'correct')} "
            f"| {sum(row['valid'] for row in group)} | {mean['pieces']:.0f} "
            f"| {mean['requests']:.1f} | {mean['seconds']:.1f} |"
        )
    return "\n".join(lines)


def share(group: Rows, key: str) -> str:
    """A share in percent with its 95 % interval (Wilson)."""
    right = sum(row[key] for row in group)
    low, high = wilson(right, len(group))
    return f"{right / len(group):.0%} ({low * 100:.0f}-{high * 100:.0f})".replace("%", " %")


def pairs(rows: Rows) -> list[str]:
    """Of two strategies on the same questions: on how many only one was right (McNemar)."""
    by = {key: {row["id"]: row["correct"] for row in group} for key, group in groups(rows).items()}
    lines = []
    for (category, strategy), right in sorted(by.items()):
        for other, others in sorted(by.items()):
            if other[0] != category or other[1] <= strategy:
                continue
            both = right.keys() & others.keys()
            only = sum(right[i] and not others[i] for i in both)
            less = sum(others[i] and not right[i] for i in both)
            lines.append(
                f"{category}, {len(both)} questions: only {strategy} right on {only}, only "
                f"{other[1]} on {less} (p {mcnemar(only, less):.2g})"
            )
    return lines


def average(rows: Rows, strategy: str) -> str:
    """BFCL's non-live average, where all its categories were asked."""
    means = {
        category: sum(row["correct"] for row in group) / len(group)
        for (category, used), group in groups(rows).items()
        if used == strategy
    }
    simple = [means.get(f"simple_{name}") for name in ("python", "java", "javascript")]
    known = [value for value in simple if value is not None]
    if len(known) == 3:
        means["simple"] = sum(known) / 3
    if not all(name in means for name in NON_LIVE):
        return f"{strategy}: not all categories of the non-live average were asked"
    return f"{strategy}: non-live average {sum(means[n] for n in NON_LIVE) / 4:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--keep", type=Path, help="write what the tables are made of here")
    options = parser.parse_args()
    rows = results(options.files)
    print(table(rows), "", *pairs(rows), "", sep="\n")
    for strategy in sorted({row["strategy"] for row in rows}):
        print(average(rows, strategy))
    if options.keep:
        names = KEPT.split()
        lines = [json.dumps({name: row.get(name) for name in names}) for row in rows]
        options.keep.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
