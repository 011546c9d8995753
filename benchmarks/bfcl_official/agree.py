"""Holds mlx-tools' scoring to BFCL's official checker; exit code 1 where the two disagree.

    python benchmarks/bfcl_official/agree.py [--category A,B] [--results FILE] [--every N]

For every question of the categories both checkers judge the right calls, several times with other
allowed values, and calls in which one thing or two were changed: a type, a value, a name, a
parameter more or less, another item of an enumeration, case and punctuation, what is nested, the
number and order of calls. With ``--results`` the official one also judges what a file of
`mlx-tools eval bfcl` holds, or one of the benchmarks', against the verdicts in it. ``--every N``
takes each N-th question.

The official package is installed into a folder of its own beside this file, without the clients of
every provider that it depends on: its checker needs none of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

from mutations import Call, mutations, right_calls

from mlx_tools.messages import ToolCall
from mlx_tools.plugins.evaluate.bfcl_data import (
    CATEGORIES,
    PACKAGE,
    VERSION,
    BfclItem,
    ensure_wheel,
    load_items,
)
from mlx_tools.plugins.evaluate.bfcl_score import score

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE / ".venv"
NEEDS = ("filelock==3.20.0",)
"""Modules that the checker imports beside itself."""
UNSCORED = ("timeout", "refused")
"""Results of completions that did not come: there is nothing to judge."""
TURNS = 4
"""So many ways of choosing among the allowed values are tried."""
SHOWN = 20


def official_python(wheel: Path) -> Path:
    """The interpreter of the checker's environment, made where it is missing or out of date."""
    python, stamp = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".ready"
    wanted = "\n".join((f"{PACKAGE}=={VERSION}", *NEEDS))
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*command, "--no-deps", str(wheel), *NEEDS], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def cases(item: BfclItem) -> Iterator[tuple[str, list[Call]]]:
    """Calls to judge for an item, each with what it is."""
    chance = random.Random(item.id)
    seen = set()
    if not item.answers:
        calls: list[Call] = [{"name": f["name"], "arguments": {}} for f in item.functions]
        yield from (("none", []), ("one", calls[:1]), ("all", calls))
        return
    for turn in range(TURNS):
        right = right_calls(item, turn)
        for kind, found in (
            ("right", [right]),
            ("changed", mutations(item, right, chance) if turn < 2 else ()),
        ):
            for calls in found:
                key = json.dumps(calls)
                if key not in seen:
                    seen.add(key)
                    yield kind, calls


def ours(item: BfclItem, calls: list[Call]) -> bool:
    """The verdict of mlx-tools."""
    made = [ToolCall(call["name"], call["arguments"]) for call in calls]
    return score(item.category, item.functions, made, item.answers).correct


class Official:
    """The official checker in a process of its own."""

    def __init__(self, python: Path) -> None:
        environ = os.environ | {"BFCL_PROJECT_ROOT": str(ENVIRONMENT / "root")}
        self._process = subprocess.Popen(
            [str(python), str(HERE / "official.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            text=True,
        )

    def verdicts(self, item: BfclItem, calls: list[list[Call]]) -> Iterator[bool | str]:
        """Its verdict on each; the name of an exception where it fails."""
        assert self._process.stdin is not None and self._process.stdout is not None
        for one in calls:
            case = {"category": item.category, "id": item.id, "calls": one}
            print(json.dumps(case), file=self._process.stdin, flush=True)
            yield json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Tally:
    """The compared calls, and where the two differ."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.differences: list[dict[str, Any]] = []

    def add(
        self, item: BfclItem, kind: str, calls: list[Call], own: bool, said: bool | str
    ) -> None:
        """Take in what both say."""
        self.counts[kind] += 1
        self.counts["correct"] += own
        if isinstance(said, str):  # it has no verdict; such calls must not be taken for right
            self.counts["failed"] += 1
            said = False
        if own is not said:
            self.differences.append(
                {"id": item.id, "kind": kind, "calls": calls, "ours": own, "official": said}
            )


def compare(category: str, wheel: Path, official: Official, every: int) -> Tally:
    """Both checkers on the questions of a category."""
    tally = Tally()
    for item in load_items(category, wheel)[::every]:
        made = [*cases(item)]
        verdicts = official.verdicts(item, [calls for _, calls in made])
        for (kind, calls), said in zip(made, verdicts, strict=True):
            tally.add(item, kind, calls, ours(item, calls), said)
    return tally


def compare_results(path: Path, wheel: Path, official: Official) -> dict[str, Tally]:
    """The official checker on what a file of results holds, against the verdicts in it."""
    items: dict[str, dict[str, BfclItem]] = {}
    tallies: dict[str, Tally] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record.get("type") != "item" or record.get("error") in UNSCORED:
            continue
        category = record["category"]
        if category not in CATEGORIES:
            continue  # no question of BFCL's
        if category not in items:
            items[category] = {item.id: item for item in load_items(category, wheel)}
        item = items[category][record["id"]]
        calls = [{"name": c["name"], "arguments": c["arguments"]} for c in record["calls"]]
        (said,) = official.verdicts(item, [calls])
        tally = tallies.setdefault(category, Tally())
        tally.add(item, record["strategy"], calls, record["correct"], said)
    return tallies


def shown(category: str, tally: Tally) -> str:
    counts = ", ".join(f"{number} {kind}" for kind, number in tally.counts.items())
    return f"{category}: {counts}; disagreements: {len(tally.differences)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--category", default=",".join(CATEGORIES))
    parser.add_argument("--results", type=Path, action="append", default=[])
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    wheel = ensure_wheel()
    official = Official(official_python(wheel))
    differences: list[dict[str, Any]] = []
    began = monotonic()
    for category in filter(None, options.category.split(",")):
        tally = compare(category, wheel, official, options.every)
        print(shown(category, tally), flush=True)
        differences += tally.differences
    for path in options.results:
        for category, tally in compare_results(path, wheel, official).items():
            print(f"{path.name}, {shown(category, tally)}", flush=True)
            differences += tally.differences
    official.close()
    for difference in differences[:SHOWN]:
        print(json.dumps(difference))
    print(f"{len(differences)} disagreements, {monotonic() - began:.0f} s")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
