"""Writes the figures of docs/scaling.md, from what benchmarks/chaos.py and benchmarks/capacity.py
kept.

python scripts/scaling_table.py            write them
python scripts/scaling_table.py --check    exit 1 where they are out of date
"""

from __future__ import annotations

import json
from typing import Final

from scripts.generated_part import ROOT, GeneratedPart, paragraph


def chaos() -> str:
    """The kills and their results, by store."""
    parts = []
    kept = json.loads((ROOT / "benchmarks" / "chaos.json").read_text())
    for store, one in kept.items():
        wrong, seen = one["wrong"], one["seen"]
        killed = ", ".join(f"{n} {kind}" for kind, n in one["kills"].items() if n)
        lost = wrong["runs without an answer"] + wrong["calls that were lost"]
        twice = wrong["calls that happened twice"] + wrong["runs that were made twice"]
        doubts = seen.get("doubts that were said, and decided", 0)
        parts.append(
            f"- {({'postgres': 'PostgreSQL'}).get(store, store)}, {one['gateways']} gateways, "
            f"{one['workers']} workers, {one['runs']} runs with {one['calls']} calls: "
            f"{sum(one['kills'].values())} killed ({killed}), {lost} lost, {twice} made twice, "
            f"{doubts} doubts, all decided."
        )
    return "\n".join(map(paragraph, parts))


def capacity() -> str:
    """A row for each number of runs a day; of each figure the model's, then the simulation's."""
    found = json.loads((ROOT / "benchmarks" / "capacity.json").read_text())["rows"]
    names = [name for name, value in found[0].items() if isinstance(value, dict)]
    rows = [f"| runs a day | machines | disk, GB | {' | '.join(names)} |"]
    rows.append("| --- " * (3 + len(names)) + "|")
    for one in found:
        cells = [f"{one['runs a day']:,}", str(one["machines"]), f"{one['disk, GB']:g}"]
        cells += [
            f"{_number(one[name]['model'])} ({_number(one[name]['simulated'])})" for name in names
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


PARTS: Final = (
    GeneratedPart("scaling.md", "figures of kills", "scaling_table.py", chaos),
    GeneratedPart("scaling.md", "figures of capacity", "scaling_table.py", capacity),
)

if __name__ == "__main__":
    for part in PARTS:
        part.main()
