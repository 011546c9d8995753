"""Our ranking of tools beside other packages', on the same questions and the same tools.

    python benchmarks/tool_ranking.py [--half report] [--limit N] [--only NAME,NAME] [--check]

Questions of the Berkeley Function-Calling Leaderboard, asked of 300 of its functions (as
`tool_retrieval.py` draws them) and of all of them. A question counts at 5 where every function that
its answer calls is among the five best matches. Each of the others ranks the same text of a tool,
its name split into words, its description and what its schema says, in the way that its own
documentation shows. Needs ``bm25s``, ``PyStemmer`` and ``rank-bm25``, which nothing else here does:

    uv pip install --target PEERS bm25s PyStemmer rank-bm25
    PYTHONPATH=PEERS python benchmarks/tool_ranking.py

Writes ``tool_ranking.json`` and the table in docs/tools.md; ``--check`` only holds the table to the
figures.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from mlx_tools.messages import ToolSpec
from mlx_tools.plugins.evaluate.bfcl_data import (
    CATEGORIES,
    BfclItem,
    ensure_wheel,
    load_items,
    sample,
)
from mlx_tools.prompt import HUMP
from mlx_tools.tools import Finder, finder

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
from tool_retrieval import candidates, pool, right

from scripts.generated_part import paragraph

FIGURES = Path(__file__).with_name("tool_ranking.json")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "tools.md"
BEGIN = "<!-- ranking: written by benchmarks/tool_ranking.py -->"
END = "<!-- end of ranking -->"
PLACES = (1, 5, 10)
AMONG = ("300", "all")


class Ranker(Protocol):
    """Ranks some tools: the names of all, the best match first."""

    def __call__(self, tools: Sequence[ToolSpec], question: str, /) -> list[str]: ...


def ours(tools: Sequence[ToolSpec], question: str) -> list[str]:
    return [tool.name for tool, _ in Finder(tools).matches(question)]


def text_of(tool: ToolSpec) -> str:
    """The words of a tool about itself, its name split into words."""
    name = HUMP.sub(" ", re.sub(r"[._-]", " ", tool.name))
    return " ".join((name, tool.description, *finder.schema_texts(tool.parameters)))


def bm25s_ranker() -> Ranker:
    """bm25s as its read-me shows it: English stop words and a Snowball stemmer."""
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")

    def words(text: str) -> list[str]:
        (found,) = bm25s.tokenize(
            [text], stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
        )
        return list(found)

    kept = remembered(lambda tool: words(text_of(tool)))

    def rank(tools: Sequence[ToolSpec], question: str) -> list[str]:
        index = bm25s.BM25()
        index.index([kept(tool) or [""] for tool in tools], show_progress=False)
        scores = index.get_scores(words(question) or [""])
        return by_score(tools, scores)

    return rank


def rank_bm25_ranker() -> Ranker:
    """rank-bm25's BM25Okapi as its read-me shows it, but for words in place of split blanks."""
    from rank_bm25 import BM25Okapi

    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    kept = remembered(lambda tool: words(text_of(tool)))

    def rank(tools: Sequence[ToolSpec], question: str) -> list[str]:
        return by_score(
            tools, BM25Okapi([kept(tool) for tool in tools]).get_scores(words(question))
        )

    return rank


RANKERS: Mapping[str, Callable[[], Ranker]] = {
    "mlx-tools": lambda: ours,
    "bm25s": bm25s_ranker,
    "rank-bm25": rank_bm25_ranker,
}


def by_score(tools: Sequence[ToolSpec], scores: Any) -> list[str]:
    pairs = zip(tools, map(float, scores), strict=True)
    return [tool.name for tool, _ in sorted(pairs, key=lambda pair: (-pair[1], pair[0].name))]


def remembered(work: Callable[[ToolSpec], Any]) -> Callable[[ToolSpec], Any]:
    """``work``, done once for a tool: tools come again with every question."""
    kept: dict[int, tuple[ToolSpec, Any]] = {}

    def get(tool: ToolSpec) -> Any:
        if id(tool) not in kept:
            kept[id(tool)] = tool, work(tool)
        return kept[id(tool)][1]

    return get


def cases(options: argparse.Namespace) -> Iterator[tuple[BfclItem, Mapping[str, list[ToolSpec]]]]:
    wheel = options.wheel or ensure_wheel()
    items = {name: load_items(name, wheel) for name in options.category.split(",")}
    others = pool(items)
    few = min(300, len(others))
    for category, of in items.items():
        if "relevance" in category:
            continue  # no answer says which functions are right
        for item in sample(of, limit=options.limit, half=options.half):
            own = item.tools
            among = {"300": candidates(item, others, few)}
            among["all"] = [*{**others, **{name: own[name] for name in right(item)}}.values()]
            yield item, among


def measure(options: argparse.Namespace) -> dict[str, Any]:
    finder.tool_text = remembered(finder.tool_text)  # type: ignore[assignment]
    names = options.only.split(",")
    rankers = {name: RANKERS[name]() for name in names}
    places: dict[str, dict[str, list[int]]] = {a: {n: [] for n in names} for a in AMONG}
    ids = []
    for number, (item, among) in enumerate(cases(options), start=1):
        ids.append(item.id)
        wanted = right(item)
        for among_which, tools in among.items():
            for name, rank in rankers.items():
                ranked = {tool: place for place, tool in enumerate(rank(tools, item.question), 1)}
                places[among_which][name].append(max(ranked[tool] for tool in wanted))
        if number % 100 == 0:
            print(f"{number} questions", file=sys.stderr)
    pooled = len(tools)
    return {
        "command": "python benchmarks/tool_ranking.py" + told_options(options),
        "half": options.half,
        "questions": len(ids),
        "tools": {"300": min(300, pooled), "all": pooled},
        "versions": {name: version(name) for name in names if name != "mlx-tools"},
        "places": places,
    }


def told_options(options: argparse.Namespace) -> str:
    half = f" --half {options.half}" if options.half != "report" else ""
    return half + (f" --limit {options.limit}" if options.limit else "")


def said(figures: Mapping[str, Any]) -> str:
    """The share of tools among the best of each ranking, of few and of all."""
    parts = []
    for among, rankings in figures["places"].items():
        shares = []
        for name, places in rankings.items():
            cells = (f"{sum(p <= k for p in places) / len(places):.1%}" for k in PLACES)
            shown = f"{name} {figures['versions'].get(name, '')}".strip()
            shares.append(f"{shown} {', '.join(cells)}")
        parts.append(f"- Of {figures['tools'][among]} tools: {'; '.join(shares)}.")
    kept = ", the half that is kept for reports" if figures["half"] == "report" else ""
    places = ", ".join(map(str, PLACES))
    head = f"All that a question needs is among the best {places}, in {figures['questions']} "
    head += f"questions of BFCL{kept}:"
    return "\n".join([paragraph(head), "", *map(paragraph, parts)])


def page_with_table(page: str, figures: Mapping[str, Any]) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE.name}: the marks of the table are missing")
    return f"{before}{BEGIN}\n\n{said(figures)}\n\n{END}{after}"


@cache
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    made.add_argument("--category", default=",".join(CATEGORIES), help="some of them: A,B")
    made.add_argument("--half", choices=("all", "tune", "report"), default="report")
    made.add_argument("--limit", type=int, help="so many questions of each category")
    made.add_argument("--only", default=",".join(RANKERS), help="some of the rankings: A,B")
    made.add_argument("--wheel", type=Path, help="BFCL's package; fetched where it is not named")
    made.add_argument("--print", action="store_true", help="print the table and write nothing")
    made.add_argument("--check", action="store_true", help="only hold the page to the figures")
    return made


def main() -> None:
    options = parser().parse_args()
    if not options.check:
        figures = measure(options)
        if options.print:
            print(said(figures))
            return
        FIGURES.write_text(json.dumps(figures, separators=(",", ":")) + "\n", encoding="utf-8")
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    old = PAGE.read_text(encoding="utf-8")
    new = page_with_table(old, figures)
    if options.check and new != old:
        sys.exit(f"{PAGE.name} does not say what {FIGURES.name} says")
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
