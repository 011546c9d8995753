"""The table of whole runs in docs/evaluation.md, from result files of `mlx-tools eval tasks --out`.

    python benchmarks/tasks_table.py [FILE ...]     take FILEs in, keep them, write the table
    python benchmarks/tasks_table.py --check        exit 1 where the page is out of date

There are two sets of tasks: those of ``mlx_tools/evaluate/tasks.toml``, and twenty that were
written later (``benchmarks/call_quality/blind_tasks.toml``). What is kept of
each stands beside the latter: a JSON line for each task and strategy, the last result of each;
without FILE the tables are written from that alone. Only tasks that the sets have are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from mlx_tools.app.statistics import mcnemar, wilson
from mlx_tools.evaluate.task_file import Task, load_tasks

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "call_quality"
PAGE = ROOT / "docs" / "evaluation.md"
BEGIN = "<!-- table of {}: written by benchmarks/tasks_table.py -->"
END = "<!-- end of the table of {} -->"
STRATEGIES = ("auto", "guided", "free")
KEPT = (
    "category id strategy correct valid fault error answer calls repeated turns broken requests"
    " prompt_tokens cached_tokens seconds"
)
Row = Mapping[str, Any]
Found = dict[tuple[str, str], Row]


@dataclass(frozen=True, slots=True)
class Set:
    """Tasks, the name of their table in the page, and where their results are kept."""

    name: str
    tasks: tuple[Task, ...]
    kept: Path


SETS = (
    Set("tasks", load_tasks().tasks, FOLDER / "tasks.jsonl"),
    Set(
        "blind tasks",
        load_tasks(FOLDER / "blind_tasks.toml").tasks,
        FOLDER / "blind_tasks.jsonl",
    ),
)


def results(files: Iterable[Path]) -> Found:
    """The results by task and strategy, the last of each."""
    found: Found = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "correct" in row:
                found[row["id"], row["strategy"]] = row
    return found


def asked(found: Found) -> list[str]:
    """The strategies that there are results of."""
    return [name for name in STRATEGIES if any(strategy == name for _, strategy in found)]


def table(found: Found, tasks: Sequence[Task]) -> str:
    """The table: how many tasks of each category were right."""
    names = asked(found)
    lines = [f"| category | tasks | {' | '.join(names)} |", "| --- " * (2 + len(names)) + "|"]
    for category, count in Counter(task.category for task in tasks).items():
        lines.append(f"| {category} | {count} | {share(found, tasks, category)} |")
    lines.append(f"| **all** | {len(tasks)} | {share(found, tasks)} |")
    return "\n".join(lines)


def share(found: Found, tasks: Sequence[Task], category: str | None = None) -> str:
    """How many of the tasks were right by each strategy; of all of them, with the interval."""
    cells = []
    for name in asked(found):
        rows = [
            found[task.id, name]
            for task in tasks
            if category in (None, task.category) and (task.id, name) in found
        ]
        right = sum(row["correct"] for row in rows)
        text = f"{right} of {len(rows)}"
        if category is None and rows:
            low, high = wilson(right, len(rows))
            text += f" ({low * 100:.0f}-{high * 100:.0f} %)"
        cells.append(text)
    return " | ".join(cells)


def pairs(found: Found, tasks: Sequence[Task]) -> str:
    """On how many tasks only one of two strategies was right, and how likely that is by chance."""
    lines = []
    for one, other in combinations(asked(found), 2):
        both = [task.id for task in tasks if {(task.id, one), (task.id, other)} <= found.keys()]
        right = [(found[id_, one]["correct"], found[id_, other]["correct"]) for id_ in both]
        only, less = right.count((True, False)), right.count((False, True))
        lines.append(
            f"Of {len(both)} tasks that both were asked, only {one} was right on {only}, only "
            f"{other} on {less} (p {mcnemar(only, less):.2g})."
        )
    return "\n".join(lines)


def page(text: str, found: Found, one: Set) -> str:
    """The page with the table of a set in its place."""
    begin, end = BEGIN.format(one.name), END.format(one.name)
    head, _, rest = text.partition(begin)
    tail = rest.partition(end)[2]
    made = f"{table(found, one.tasks)}\n\n{pairs(found, one.tasks)}"
    return f"{head}{begin}\n{made}\n{end}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    text = made = PAGE.read_text(encoding="utf-8")
    for one in SETS:
        found = results([*([one.kept] if one.kept.exists() else []), *options.files])
        made = page(made, found, one)
        ids = {task.id for task in one.tasks}
        rows = [row for (id_, _), row in sorted(found.items()) if id_ in ids]
        lines = [json.dumps({name: row.get(name) for name in KEPT.split()}) for row in rows]
        if not options.check:
            one.kept.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.check:
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
