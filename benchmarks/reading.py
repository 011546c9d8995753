"""Measures reading a completion's text: mlx-tools against json, json_repair and LangChain.

Prints one JSON object: the cells of every text and size, for every parser that is installed.
``python benchmarks/reading.py --sizes 100,1000 --rounds 3`` is a quick look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measure import Cell, Competitor, arguments, compare, finish, open_all, say
from parsers import PARSERS
from texts import COMPARED, GROWTH, HOSTILE, SIZES

OURS = [name for name in PARSERS if name.startswith("mlx-tools")]


def measure_kind(
    kind: str, competitors: Sequence[Competitor], options: Any
) -> dict[str, dict[str, Cell]]:
    """One kind of text at all sizes. Who was too slow at one size is not asked for the next."""
    sizes: dict[str, dict[str, Cell]] = {}
    late: dict[str, Cell] = {}
    for size in options.sizes:
        running = [c for c in competitors if c.name not in late]
        cells = compare(
            running, (kind, size), rounds=options.rounds, cap=options.cap, budget=options.budget
        )
        late |= {name: cell for name, cell in cells.items() if cell.over is not None}
        sizes[str(size)] = cells | {name: Cell(over=cell.over) for name, cell in late.items()}
    return sizes


def main() -> None:
    options = arguments(
        __doc__,
        sizes=SIZES,
        rounds=7,
        cap=5.0,
        budget=0.6,
        kinds=[],
        parsers=list(PARSERS),
        need="any",
    )
    competitors = open_all("parser", options.parsers, ("valid, one long string", 100), options.need)
    results: dict[str, Any] = {}
    for kind in options.kinds or [*COMPARED, *HOSTILE, *GROWTH]:
        say(f"reading: {kind}")
        who = competitors if kind not in GROWTH else [c for c in competitors if c.name in OURS]
        sizes = measure_kind(kind, who, options)
        results[kind] = {
            size: {name: cell.to_json() for name, cell in cells.items()}
            for size, cells in sizes.items()
        }
    for competitor in competitors:
        competitor.close()
    finish(results)


if __name__ == "__main__":
    main()
