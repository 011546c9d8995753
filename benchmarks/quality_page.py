"""The tables of docs/call-quality.md, from runs that are kept in ``call_quality/``.

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_tools.app.statistics import Share, mcnemar

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "call_quality"
PAGE = ROOT / "docs" / "call-quality.md"
BEGIN = "<!-- {}: written by benchmarks/quality_page.py -->"
END = "<!-- end of {} -->"
KEPT = (
    "type category id strategy correct valid fault error answered calls requests pieces"
    " prompt_tokens cached_tokens completion_tokens seconds"
)
LANGUAGES = {"en": "English", "de": "German", "fr": "French", "es": "Spanish"}
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
    """What strong.py kept; None where it was not measured."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


# --- of scripted models -------------------------------------------------------------------------


def strong(folder: Path) -> str:
    """As wished, by row and category, and the requests."""
    found = figures(folder / "strong.json")
    if found is None:
        return ""
    names = list(found["wishes"])
    head = ["strategy", "style", "habit", *(f"`{name}`" for name in names), "as wished", "requests"]
    right = [
        f"{sum(one['right'] for one in w.values())} of {len(w)}" for w in found["wishes"].values()
    ]
    made = []
    for row in found["rows"]:
        of = [row["of"][name] for name in names]
        asked, wished = (sum(one[key] for one in of) for key in ("asked", "as_wished"))
        requests = sum(one["requests"] for one in of) / asked
        cells = [str(one["as_wished"]) for one in of]
        settings = row["row"]
        share = told(Share(wished, asked))
        most = max(one["most_requests"] for one in of)
        cost = f"{requests:.2f}, at most {most}"
        made.append([settings["strategy"], settings["style"], row["habits"], *cells, share, cost])
    alike = joined(joined(made, 2), 1)
    return table(head, [["", "", "*wish right*", *right, "", ""], *alike])


def joined(made: Sequence[Sequence[str]], column: int) -> list[list[str]]:
    """The rows, those in one that differ in one column alone."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in made:
        found.setdefault((*row[:column], *row[column + 1 :]), []).append(row[column])
    return [[*key[:column], "; ".join(cells), *key[column:]] for key, cells in found.items()]


def latency(folder: Path) -> str:
    """The time of a question where each request takes longer, by strategy."""
    found = figures(folder / "latency.json")
    if found is None:
        return ""
    made, ways = [], dict[tuple[str, str], list[Any]]()
    for row in found["rows"]:
        ways.setdefault((row["row"]["strategy"], row["habits"]), []).extend(row["of"].values())
    for way, of in ways.items():
        asked, requests, seconds = (
            sum(one[key] for one in of) for key in ("asked", "requests", "seconds")
        )
        made.append([*way, str(asked), f"{requests / asked:.2f}", f"{seconds / asked:.3f} s"])
    head = ["strategy", "habit", "questions", "requests a question", "time a question"]
    each = found["options"]["latency"] * 1000
    return f"{each:.0f} ms a request.\n\n" + table(head, made)


NOTHING = {
    "bytes": "random bytes",
    "tokens": "random tokens",
    "mangled": "the right call, one byte in twenty changed",
}


def nothing(folder: Path) -> str:
    """What became of models that know nothing."""
    made = []
    for name, what in NOTHING.items():
        found, ways = figures(folder / f"{name}.json"), dict[str, list[Any]]()
        for row in found["rows"] if found else ():
            ways.setdefault(row["row"]["strategy"], []).extend(row["of"].values())
        for strategy, of in ways.items():
            total = {
                key: sum(one[key] for one in of)
                for key in ("asked", "as_wished", "ran", "unfit", "invented", "crashed")
            }
            most = max(one["most_requests"] for one in of)
            cells = [str(total[key]) for key in total]
            made.append([what, strategy, *cells, str(most)])
    head = ["writes", "strategy", "questions", "as wished", "calls that would run"]
    head += ["of these invalid", "values nobody wrote", "crashes", "requests at most"]
    return table(head, made) if made else ""


# --- of models ----------------------------------------------------------------------------------


def embedded(folder: Path) -> str:
    """BFCL's categories: shares by strategy, and the pairs."""
    rows = [one for one in lines(folder / "embedded.jsonl") if not _fresh(one)]
    return compared(rows, lambda one: f"`{one['category']}`")


def fresh(folder: Path) -> str:
    """The fresh questions by language."""
    rows = [one for one in lines(folder / "embedded.jsonl") if _fresh(one)]
    return compared(rows, lambda one: LANGUAGES[one["category"].rpartition("_")[2]])


def mute(folder: Path) -> str:
    """What nobody said."""
    return compared(lines(folder / "mute.jsonl"), _kind)


def _fresh(one: Row) -> bool:
    return str(one["category"]).startswith("fresh")


def _kind(one: Row) -> str:
    return "fresh" if _fresh(one) else f"`{one['category']}`"


def compared(rows: Sequence[Row], group: Callable[[Row], str]) -> str:
    """By group and strategy: how many are right, with the 95 % interval; then, of each strategy
    against the first on the same questions, the difference with its interval."""
    by: dict[str, dict[str, dict[Any, Row]]] = {}
    for one in rows:
        ways = by.setdefault(group(one), {})
        ways.setdefault(one["strategy"], {})[one["category"], one["id"]] = one
    if len(by) > 1:
        every: dict[str, dict[Any, Row]] = {}
        for one in rows:
            every.setdefault(one["strategy"], {})[one["category"], one["id"]] = one
        by["all"] = every
    head = ["questions", "strategy", "correct", "valid", "requests", "seconds", "against the first"]
    made = []
    for name, ways in by.items():
        first = next(iter(ways.values()))
        for strategy, found in ways.items():
            count = len(found)
            mean = {
                key: sum(one[key] or 0 for one in found.values()) / count
                for key in ("requests", "seconds")
            }
            shares = [
                Share(sum(bool(one[key]) for one in found.values()), count)
                for key in ("correct", "valid")
            ]
            cells = [told(share) for share in shares]
            cells += [f"{mean['requests']:.2f}", f"{mean['seconds']:.1f}"]
            made.append([name, strategy, *cells, "" if found is first else pair(found, first)])
    return table(head, made) if made else ""


def pair(one: Mapping[Any, Row], other: Mapping[Any, Row]) -> str:
    """How a strategy does against another on the questions that both were asked."""
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
    "fresh questions": fresh,
    "a mute model": mute,
}


def told(share: Share) -> str:
    """A share with its 95 % interval (Wilson)."""
    low, high = share.interval
    value = 100 * (share.value or 0)
    return f"{share.hits} of {share.total}, {value:.0f} % ({100 * low:.0f}–{100 * high:.0f})"


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
