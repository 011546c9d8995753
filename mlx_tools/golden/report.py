"""Checks of golden transcripts as one HTML page that needs nothing else.

The page has its style in it and names no other file: its content security policy lets nothing be
loaded or run. All its texts come from models and tools, and are escaped. An invisible character is
written as its number (`mlx_tools.app.templates`).
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from mlx_tools.app import STYLESHEET, Html, build_steps, templates
from mlx_tools.errors import UsageError
from mlx_tools.golden.checking import Column, GoldenCheck, add_shares
from mlx_tools.golden.difference import ROOMS, Room, share_differences
from mlx_tools.paths import package_file

if TYPE_CHECKING:
    from jinja2 import Template

MAX_UNFOLDED: Final = 12
"""Runs of a report whose conversations are unfolded, at most."""

MEANING: Final[dict[Room, str]] = {
    "prompt": "the words and turns that the model reads",
    "reading": "how its text is read",
    "policy": "what is decided about its calls",
    "tools": "the tools, and what they give",
    "outcome": "what a question came to",
}
"""The rooms, explained for readers who do not know them."""

_FOLDER: Final = package_file("golden")

State = Literal["error", "failed", "passed"]
"""The result of a check. ``error`` is a failure too: a run did not reach its end."""

_ORDER: Final[tuple[State, ...]] = get_args(State)


def write_report(checks: Sequence[GoldenCheck], path: Path) -> None:
    """Write the checks as an HTML page, those that failed first.

    A run is written out if it failed, or if its records are given; any other is one row of a table.
    Raises `UsageError` if the file cannot be written.
    """
    page = _template().generate(_page(checks))
    try:
        with path.open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(page)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            hint="name a file in a folder that is there, and that you may write to",
        ) from None


def _page(checks: Sequence[GoldenCheck]) -> dict[str, Any]:
    cells = list(dict.fromkeys(check.cell for check in checks)) or [Column()]
    rows, runs = build_rows(checks, cells)
    differences = [d for check in checks for sample in check.samples for d in sample.differences]
    shared = [
        row
        for row in share_differences(
            (check.path or check.name, difference)
            for check in checks
            for sample in check.samples
            for difference in sample.differences
        )
        if len(row.names) > 1
    ]
    of_checks = Counter(room for check in checks for room in check.rooms)
    of_all = Counter(difference.room for difference in differences)
    style = "".join(
        path.read_text(encoding="utf-8") for path in (STYLESHEET, _FOLDER / "report.css")
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return {
        "style": Html(style),
        "style_hash": f"sha256-{digest}",
        "verdict": _verdict(checks, "transcript" if len(cells) == 1 else "check"),
        "counts": Counter(map(get_state, checks)),
        "rooms": [(room, MEANING[room], of_checks[room], of_all[room]) for room in ROOMS],
        "sampled": add_shares(check.share for check in checks),
        "cells": cells,
        "sums": [add_shares(c.share for c in checks if c.cell == cell) for cell in cells],
        "shared": shared,
        "shared_as": {
            difference: number
            for number, row in enumerate(shared, start=1)
            for difference in row.equal
        },
        "live": any(check.mode == "live" for check in checks),
        "drawn": any(len(check.samples) > 1 for check in checks),
        "rows": rows,
        "runs": runs,
        "unfolded": len(runs) <= MAX_UNFOLDED,
        "build_steps": build_steps,  # one run at a time: thousands are never in memory at once
    }


def _verdict(checks: Sequence[GoldenCheck], noun: str) -> str:
    """Return the result of all in a sentence; ``noun`` is what was checked."""
    total = len(checks)
    failed = sum(1 for check in checks if not check.passed)
    if not total:
        return "Nothing was checked"
    if total > 1:
        noun += "s"
    if not failed:
        return f"{'The' if total == 1 else f'All {total:,}'} {noun} passed"
    return f"{failed:,} of {total:,} {noun} failed"


@functools.cache
def _template() -> Template:
    environment = templates(_FOLDER)
    environment.filters["percent"] = lambda ends: "{}–{} %".format(*(round(100 * e) for e in ends))
    return environment.get_template("report.html.j2")


# --- the table: a transcript a row, what it was checked with a column ----------------------------


@dataclass(slots=True)
class ReportedCheck:
    """A check. ``run`` is the number under which it is written out, or 0."""

    check: GoldenCheck
    state: State
    run: int = 0


class TranscriptRow(NamedTuple):
    """A transcript, described by one of its checks.

    ``cells`` are the results in each cell: one, mostly; none if it was not checked with it.
    """

    check: GoldenCheck
    state: State
    rooms: tuple[str, ...]
    cells: tuple[Sequence[ReportedCheck], ...]


def get_state(check: GoldenCheck) -> State:
    """Return the result of a check."""
    if any(sample.error for sample in check.samples):
        return "error"
    return "passed" if check.passed else "failed"


def build_rows(
    checks: Sequence[GoldenCheck], cells: Sequence[Column]
) -> tuple[list[TranscriptRow], list[ReportedCheck]]:
    """Return the rows, the failed ones first, and the runs that are written out.

    Both are in the same order, the worst first. A run is written out if there is more to show than
    fits in a row.
    """
    by_transcript: dict[tuple[str, str], list[GoldenCheck]] = {}
    for check in checks:
        by_transcript.setdefault((check.path, check.name), []).append(check)
    rows, every = [], []
    for own in sorted(by_transcript.values(), key=_rank):
        told = tuple(
            [ReportedCheck(check, get_state(check)) for check in own if check.cell == cell]
            for cell in cells
        )
        found = {room for check in own for room in check.rooms}
        rooms = tuple(room for room in ROOMS if room in found)
        worst = min(map(get_state, own), key=_ORDER.index)
        rows.append(TranscriptRow(own[0], worst, rooms, told))
        every += [one for cell in told for one in cell]
    runs = [o for o in every if o.state != "passed" or any(s.records for s in o.check.samples)]
    runs.sort(key=lambda one: one.check.passed)
    for number, one in enumerate(runs, start=1):
        one.run = number
    return rows, runs


def _rank(checks: Sequence[GoldenCheck]) -> tuple[bool, float, str, str]:
    share, first = add_shares(check.share for check in checks), checks[0]
    passed = all(check.passed for check in checks)
    return passed, share.value or 0.0, first.name, first.path
