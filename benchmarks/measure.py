"""Measuring competitors side by side: each in a process of its own, in turns, many times.

A competitor's process holds nothing of the others (their imports would burden its garbage
collector). In every round each takes its turn, in rotated order, so that a busy moment of the
machine falls on all of them. A competitor that takes longer than the cap is ended, and its cell
says so.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LEAST_SECONDS = 0.01
"""A sample lasts at least this long; what is shorter is run several times over, so that the first
of these, with what the others' turns left of the caches, is not all that counts."""
START_SECONDS = 60.0


@dataclass
class Cell:
    """The measurement of one competitor at one task: seconds per run, one for each round."""

    outcome: str = ""
    samples: list[float] = field(default_factory=list)
    over: float | None = None  # ended after so many seconds, or longer tasks left out because of it
    failed: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def to_json(self) -> dict[str, Any]:
        cell = {key: value for key, value in asdict(self).items() if value not in ("", None)}
        cell["samples"] = [float(f"{sample:.4g}") for sample in self.samples]
        if self.samples:
            cell["median"] = float(f"{self.median:.4g}")
            cell["min"] = float(f"{min(self.samples):.4g}")
        return cell


class Missing(Exception):
    """The competitor is not installed here."""


class Broken(Exception):
    """The competitor did not do the work."""


class TooSlow(Exception):
    """The competitor took longer than it may."""


class Competitor:
    """A process that does one competitor's work when it is told to."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self._process: subprocess.Popen[str] | None = None

    def prepare(self, task: Sequence[Any], cap: float) -> tuple[str, float]:
        """Makes ready for a task and does it once: what came of it, and the seconds it took."""
        answer = self._ask({"do": "prepare", "task": list(task)}, cap)
        return str(answer["outcome"]), float(answer["seconds"])

    def time(self, number: int, cap: float) -> float:
        """Does the task ``number`` times: the seconds each took, on average."""
        return float(self._ask({"do": "time", "number": number}, cap)["seconds"])

    def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            with process:
                assert process.stdin is not None
                process.stdin.close()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _ask(self, request: dict[str, Any], cap: float) -> dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "serve.py"), self.kind, self.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=quiet_environment(),
            )
            self._answer(START_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer(cap)

    def _answer(self, cap: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], cap)[0]:
            process.kill()
            self.close()
            raise TooSlow(self.name)
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"broken": "its process died"}
        if "missing" in answer or "broken" in answer:
            self.close()
            kind = Missing if "missing" in answer else Broken
            raise kind(f"{self.name}: {answer.get('missing') or answer.get('broken')}")
        return answer


def compare(
    competitors: Sequence[Competitor],
    task: Sequence[Any],
    *,
    rounds: int,
    cap: float = 60.0,
    budget: float = 1e9,
) -> dict[str, Cell]:
    """Has every competitor do the task, in turns.

    ``cap``: seconds one may take for doing it once. ``budget``: seconds of samples after which a
    competitor has enough of them; one that is slower gets fewer rounds. Raises `Missing` where a
    competitor is not installed and `Broken` where it did not do the work.
    """
    cells = {competitor.name: Cell() for competitor in competitors}
    numbers: dict[str, int] = {}
    for competitor in competitors:
        cell = cells[competitor.name]
        try:
            cell.outcome, seconds = competitor.prepare(task, cap)
        except TooSlow:
            cell.over = cap
            continue
        numbers[competitor.name] = max(1, int(LEAST_SECONDS / max(seconds, 1e-7)))
        if seconds >= budget:
            cell.samples.append(seconds)
    for turn in range(rounds if competitors else 0):
        shift = turn % len(competitors)
        for competitor in [*competitors[shift:], *competitors[:shift]]:
            cell = cells[competitor.name]
            if cell.over is None and sum(cell.samples) < budget:
                number = numbers[competitor.name]
                try:
                    cell.samples.append(competitor.time(number, cap * (number + 1)))
                except TooSlow:
                    cell.over = cap
    return cells


def ratio(ours: Cell, theirs: Cell) -> float | None:
    """The factor by which ``ours`` takes longer: the median over the rounds that both did.

    Of one that was ended for its slowness, nothing but that is known: None.
    """
    pairs = list(zip(ours.samples, theirs.samples, strict=False))
    return statistics.median(a / b for a, b in pairs) if pairs else None


def quiet_environment() -> dict[str, str]:
    """The environment of every process that is measured: nothing is sent or logged anywhere."""
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
        "LANGSMITH_TRACING": "false",
        "HF_HUB_OFFLINE": "1",
    }


def open_all(
    kind: str, names: Sequence[str], task: Sequence[Any], need: str = "any"
) -> list[Competitor]:
    """Those of the competitors that are installed here; the others are named on standard error.

    Where ``need`` is ``all``, one that is missing ends the program.
    """
    there = []
    for name in names:
        competitor = Competitor(kind, name)
        try:
            competitor.prepare(task, START_SECONDS)
        except Missing as error:
            leave_out(str(error), need)
        else:
            there.append(competitor)
    return there


def leave_out(why: str, need: str) -> None:
    """Says that a competitor is left out, or, where all are needed, ends the program."""
    if need == "all":
        raise SystemExit(f"cannot be measured: {why}")
    say(f"left out: {why}")


def arguments(description: str | None, **defaults: Any) -> argparse.Namespace:
    """The options that the scripts of this folder have in common."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n\n")[0])
    for name, value in defaults.items():
        shown = ",".join(str(v) for v in value) if isinstance(value, (list, tuple)) else value
        parser.add_argument(
            f"--{name}", default=value, type=_like(value), help=f"default: {shown or 'all'}"
        )
    return parser.parse_args()


def _like(default: Any) -> Any:
    if not isinstance(default, (list, tuple)):
        return type(default)
    item = type(default[0]) if default else str
    return lambda text: [item(part) for part in text.split(";" if item is str else ",")]


def say(text: str) -> None:
    """For the person who waits."""
    print(text, file=sys.stderr, flush=True)


def finish(results: dict[str, Any]) -> None:
    """The output of a script: one JSON object on standard output."""
    json.dump(results, sys.stdout)
    print()
