"""Search for the right tool among many by the words of a request alone: no model is asked.

    python benchmarks/tool_retrieval.py [--tools 300] [--half report] [--limit N] [--json]

Questions of the Berkeley Function-Calling Leaderboard, each with the functions that its answer
calls, and with others drawn from all functions of the leaderboard until there are so many. Nobody
checked the others: one that would do as well as the right one, and is found in its place, counts as
a miss. A question counts at 5 where every function that its answer calls is among the five best
matches, and as shown where they stand in the catalog's shortlist.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_tools import builtin_tools
from mlx_tools.app.statistics import Share
from mlx_tools.messages import ToolSpec
from mlx_tools.plugins.evaluate.bfcl_data import (
    CATEGORIES,
    BfclItem,
    ensure_wheel,
    load_items,
    sample,
)
from mlx_tools.prompt import CATALOG_BUDGET, SEARCH, build_catalog
from mlx_tools.tools import Finder

PLACES = (1, 5, 10)


@dataclass(frozen=True)
class Row:
    """One question: the place of the last right tool, 1 the best, and how many tools were shown."""

    category: str
    place: int
    shown: bool
    listed: int


def pool(items: Mapping[str, Sequence[BfclItem]]) -> dict[str, ToolSpec]:
    """All functions of the leaderboard, the first of each name."""
    found: dict[str, ToolSpec] = {}
    for each in items.values():
        for item in each:
            for name, spec in item.tools.items():
                found.setdefault(name, spec)
    return found


def right(item: BfclItem) -> set[str]:
    """The names of the tools that an item's answer calls, as its tools are named."""
    wanted = {name for answer in item.answers for name in answer}
    names = zip(item.tools, item.functions, strict=True)
    return {name for name, function in names if function["name"] in wanted}


def candidates(item: BfclItem, others: Mapping[str, ToolSpec], count: int) -> list[ToolSpec]:
    """The right tools and others, in an order that says nothing; the same on any machine."""
    wanted = right(item)
    chance = random.Random(item.id)
    own = [item.tools[name] for name in sorted(wanted)]
    names = [name for name in sorted(others) if name not in wanted]
    drawn = [others[name] for name in chance.sample(names, count - len(own))]
    return sorted([*own, *drawn], key=lambda tool: chance.random())


def measured(item: BfclItem, tools: Sequence[ToolSpec], search: ToolSpec, budget: int) -> Row:
    finder, wanted = Finder(tools), right(item)
    ranked = [tool.name for tool, _ in finder.matches(item.question)]
    best = finder.shortlist(item.question)
    catalog = build_catalog(tools, budget, best=lambda: best, search=search)
    place = max(ranked.index(name) + 1 for name in wanted)
    return Row(
        item.category, place, wanted <= set(catalog.shown_names), len(catalog.shown_names) - 1
    )


def measure(options: argparse.Namespace) -> Iterator[Row]:
    wheel = options.wheel or ensure_wheel()
    items = {name: load_items(name, wheel) for name in options.category.split(",")}
    others = pool(items)
    if options.tools > len(others):
        sys.exit(f"--tools: there are {len(others)}")
    search = builtin_tools().specs()[SEARCH]
    for category in items:
        if "relevance" in category:
            continue  # no answer says which functions are right
        for item in sample(items[category], limit=options.limit, half=options.half):
            tools = candidates(item, others, options.tools)
            yield measured(item, tools, search, options.budget)


def shares(rows: Sequence[Row]) -> dict[str, Share]:
    found = {f"at {k}": sum(row.place <= k for row in rows) for k in PLACES}
    found["shown"] = sum(row.shown for row in rows)
    return {name: Share(hits, len(rows)) for name, hits in found.items()}


def told(share: Share) -> str:
    low, high = share.interval
    return f"{100 * (share.value or 0):.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def table(rows: Sequence[Row]) -> str:
    heads = [*(f"at {k}" for k in PLACES), "shown"]
    lines = [f"| questions | n | {' | '.join(heads)} |", "| --- " * (len(heads) + 2) + "|"]
    names = [*dict.fromkeys(row.category for row in rows), "all"]
    for name in names:
        of = [row for row in rows if name in ("all", row.category)]
        lines.append(f"| {name} | {len(of)} | {' | '.join(map(told, shares(of).values()))} |")
    listed = sorted(row.listed for row in rows)
    lines.append(f"\nTools in a shortlist: {listed[0]} to {listed[-1]}, median "
                 f"{listed[len(listed) // 2]}.")  # fmt: skip
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    names = [*dict.fromkeys(row.category for row in rows), "all"]
    found = {}
    for name in names:
        of = shares([row for row in rows if name in ("all", row.category)])
        found[name] = {
            key: {"hits": share.hits, "of": share.total, "interval": share.interval}
            for key, share in of.items()
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--category", default=",".join(CATEGORIES), help="some of them: A,B")
    parser.add_argument("--tools", type=int, default=300, help="how many are looked through")
    parser.add_argument("--budget", type=int, default=CATALOG_BUDGET, help="tokens of the catalog")
    parser.add_argument("--half", choices=("all", "tune", "report"), default="report")
    parser.add_argument("--limit", type=int, help="so many questions of each category")
    parser.add_argument("--wheel", type=Path, help="BFCL's package; fetched where it is not named")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    if options.tools < 1:
        sys.exit("--tools: at least 1")
    rows = list(measure(options))
    print(json.dumps(as_json(rows), indent=1) if options.json else table(rows))


if __name__ == "__main__":
    main()
