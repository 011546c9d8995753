"""The tables of docs/evaluation.md, from runs that are kept in ``call_quality/``.

    python benchmarks/quality_page.py                         write the tables
    python benchmarks/quality_page.py --check                 exit 1 where the page is out of date
    python benchmarks/quality_page.py --keep embedded FILE…   keep results first, what is new last

Kept are figures as they were measured: of a scripted strong model (``strong.json``, as strong.py
writes it with ``--out``; ``latency.json``, the same with ``--latency``; ``bytes.json``,
``tokens.json`` and ``mangled.json`` of models that know nothing), and a JSON line for each
question, with its calls, of the embedded and the mute model (``embedded.jsonl`` and ``mute.jsonl``,
of ablation.py or `mlx-tools eval bfcl`). What was not measured has no table.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_tools.app.statistics import Share, mcnemar

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "call_quality"
PAGE = ROOT / "docs" / "evaluation.md"
BEGIN = "<!-- {}: written by benchmarks/quality_page.py -->"
END = "<!-- end of {} -->"
KEPT = (
    "type category id strategy correct valid fault error answered calls requests pieces"
    " prompt_tokens cached_tokens completion_tokens seconds"
)
Row = Mapping[str, Any]


def difference(
    both: int, only_first: int, only_second: int, neither: int
) -> tuple[float, tuple[float, float]]:
    """Return by how much the first of two shares is larger, and the 95 % interval of that
    (Newcombe 1998, method 10). Counted are the items on which both are right, one alone, neither;
    there must be one."""
    total = both + only_first + only_second + neither
    first, second = Share(both + only_first, total), Share(both + only_second, total)
    one, other = first.hits / total, second.hits / total
    (low_one, high_one), (low_other, high_other) = first.interval, second.interval
    spread = first.hits * (total - first.hits) * second.hits * (total - second.hits)
    cross: float = both * neither - only_first * only_second
    if cross > 0:
        cross = max(cross - total / 2, 0)
    phi = cross / math.sqrt(spread) if spread else 0.0

    def reach(down: float, up: float) -> float:
        return math.sqrt(max(0.0, down**2 - 2 * phi * down * up + up**2))

    value = one - other
    low = value - reach(one - low_one, high_other - other)
    return value, (low, value + reach(other - low_other, high_one - one))


# --- what is kept -------------------------------------------------------------------------------


def lines(path: Path) -> list[Row]:
    """The results in a file, the last of each question and strategy; none where it is missing."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        one = json.loads(line)
        if "correct" in one:
            found[one["category"], one["strategy"], one["id"]] = one
    return list(found.values())


def keep(path: Path, files: Sequence[Path]) -> None:
    """Take the results of files in, each question's last of all."""
    kept = {(one["category"], one["strategy"], one["id"]): one for one in lines(path)}
    for file in files:
        kept |= {(one["category"], one["strategy"], one["id"]): one for one in lines(file)}
    rows = [{name: one.get(name) for name in KEPT.split()} for one in kept.values()]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def figures(path: Path) -> dict[str, Any] | None:
    """The results that strong.py stored; None where it was not measured."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


# --- of scripted models -------------------------------------------------------------------------


def strong(folder: Path) -> str:
    """The number of turns that came out as wished, by row, and the requests."""
    found = figures(folder / "strong.json")
    if found is None:
        return ""
    ended: dict[tuple[str, str], list[str]] = {}
    for row in found["rows"]:
        of = row["of"].values()
        asked, wished, requests = (
            sum(one[key] for one in of) for key in ("asked", "as_wished", "requests")
        )
        most = max(one["most_requests"] for one in of)
        cost = f"{requests / asked:.2f} requests a turn, at most {most}"
        settings = row["row"]
        way = f"`{settings['strategy']}, {settings['style']}: {row['habits']}`"
        ended.setdefault((told(Share(wished, asked)), cost), []).append(way)
    made = []
    for (share, cost), ways in ended.items():
        what = (
            f"with each of {len(ways)} combinations" if len(ways) > 4 else f"with {'; '.join(ways)}"
        )
        made.append(paragraph(f"- {share}, {cost}, {what}."))
    return "\n".join(made)


def latency(folder: Path) -> str:
    """The time of a question where each request takes longer, by strategy."""
    found = figures(folder / "latency.json")
    if found is None:
        return ""
    made, ways = [], dict[str, list[Any]]()
    for row in found["rows"]:
        way = f"{row['row']['strategy']}, {row['habits']}"
        ways.setdefault(way, []).extend(row["of"].values())
    for way, of in ways.items():
        asked, requests, seconds = (
            sum(one[key] for one in of) for key in ("asked", "requests", "seconds")
        )
        made.append(f"{way} {seconds / asked:.2f} s ({requests / asked:.2f} requests)")
    each = found["options"]["latency"] * 1000
    return paragraph(f"With {each:.0f} ms a request, a question takes: {'; '.join(made)}.")


NOTHING = {
    "bytes": "random bytes",
    "tokens": "random tokens",
    "mangled": "the right call, one byte in twenty changed",
}


def nothing(folder: Path) -> str:
    """The results of models that know nothing, by all strategies together."""
    made = []
    for name, what in NOTHING.items():
        found = figures(folder / f"{name}.json")
        of = [one for row in found["rows"] for one in row["of"].values()] if found else []
        keys = ("asked", "ran", "unfit", "invented", "crashed")
        asked, ran, unfit, invented, crashed = (sum(one[key] for one in of) for key in keys)
        if of:
            made.append(
                f"{what}: {ran} calls that would run in {asked} turns, {unfit} of them invalid, "
                f"{invented} values that nobody wrote, {crashed} crashes"
            )
    return paragraph(f"{'; '.join(made)}.") if made else ""


# --- of models ----------------------------------------------------------------------------------


def embedded(folder: Path) -> str:
    """BFCL's categories and the fresh questions: shares by strategy, and the pairs."""
    return compared(lines(folder / "embedded.jsonl"), _kind)


def mute(folder: Path) -> str:
    """The number of right answers to what nobody said, by kind of question."""
    right: dict[str, dict[str, list[bool]]] = {}
    for one in lines(folder / "mute.jsonl"):
        ways = right.setdefault(_kind(one), {})
        ways.setdefault(one["strategy"], []).append(bool(one["correct"]))
    made = []
    for kind, ways in right.items():
        shares = ", ".join(f"{name} {sum(found)} of {len(found)}" for name, found in ways.items())
        made.append(f"{kind} {shares}")
    return paragraph(f"{'; '.join(made)}.") if made else ""


def _kind(one: Row) -> str:
    return "fresh" if str(one["category"]).startswith("fresh") else f"`{one['category']}`"


def compared(rows: Sequence[Row], group: Callable[[Row], str]) -> str:
    """A row for each group: of each strategy how many are right, with the 95 % interval, and what
    that took; and each against the first on the same questions."""
    if not rows:
        return ""
    strategies = list(dict.fromkeys(one["strategy"] for one in rows))
    groups = list(dict.fromkeys(map(group, rows)))
    first, *others = strategies
    head = ["questions", *(f"right, {name}" for name in strategies)]
    head += [f"{name} against {first}" for name in others]
    head.append("seconds a question")
    made = []
    for name in [*groups, *(["all"] if len(groups) > 1 else [])]:
        ways: dict[str, dict[Any, Row]] = {strategy: {} for strategy in strategies}
        for one in rows:
            if name in ("all", group(one)):
                ways[one["strategy"]][one["category"], one["id"]] = one
        asked = [found.values() for found in ways.values()]
        shares = [told(Share(sum(bool(one["correct"]) for one in of), len(of))) for of in asked]
        means = [sum(one["seconds"] or 0 for one in of) / (len(of) or 1) for of in asked]
        pairs = [pair(ways[other], ways[first]) for other in others]
        made.append([name, *shares, *pairs, ", ".join(f"{mean:.1f}" for mean in means)])
    return table(head, made)


def pair(one: Mapping[Any, Row], other: Mapping[Any, Row]) -> str:
    """The result of a strategy beside another on the questions that both were asked."""
    both = one.keys() & other.keys()
    counts = [0, 0, 0, 0]
    for key in both:
        counts[2 * (not one[key]["correct"]) + (not other[key]["correct"])] += 1
    right, only, less, wrong = counts
    if not both:
        return "other questions"
    value, (low, high) = difference(right, only, less, wrong)
    p = mcnemar(only, less)
    return (
        f"{100 * value:+.0f} points ({100 * low:+.0f} to {100 * high:+.0f}); only this right on "
        f"{only}, only the first on {less} (p {p:.2g})"
    )


# --- the page -----------------------------------------------------------------------------------

TABLES: Mapping[str, Callable[[Path], str]] = {
    "a strong model": strong,
    "latency": latency,
    "models that know nothing": nothing,
    "the embedded model": embedded,
    "a mute model": mute,
}


def told(share: Share) -> str:
    """A share with its 95 % interval (Wilson)."""
    low, high = share.interval
    value = 100 * (share.value or 0)
    return f"{share.hits} of {share.total}, {value:.0f} % ({100 * low:.0f}–{100 * high:.0f})"


def paragraph(text: str) -> str:
    inner = "  " if text.startswith("- ") else ""
    made = textwrap.TextWrapper(138, subsequent_indent=inner, break_on_hyphens=False)
    return made.fill(text)


def table(head: Sequence[str], made: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *made))


def written(page: str, folder: Path) -> str:
    """The page with its tables as the figures say."""
    for name, make in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"the page has no place for the table of {name}: {begin} … {end}")
        made = make(folder) or "Not measured."
        page = f"{before}{begin}\n{made}\n{end}{after}"
    return page


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--keep", choices=("embedded", "mute"), help="take FILEs in")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the runs are kept")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    if bool(options.files) != bool(options.keep):
        parser.error("FILEs are kept under a name, with --keep")
    if options.keep:
        keep(options.folder / f"{options.keep}.jsonl", options.files)
    now = options.page.read_text(encoding="utf-8")
    then = written(now, options.folder)
    if options.check:
        return int(now != then)
    options.page.write_text(then, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
