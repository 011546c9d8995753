"""What checking golden transcripts came to, in words."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mlx_tools.app.statistics import Share
from mlx_tools.cli.output import print_text, shown
from mlx_tools.golden.baseline import Regression
from mlx_tools.golden.difference import ROOMS, Difference
from mlx_tools.golden.results import GoldenCheck

_MOST: Final = 5
"""Differences of one transcript that are shown; the rest is counted."""

Lines = Iterator[tuple[str, str]]


def told(check: GoldenCheck) -> Lines:
    """A check that failed, with its differences; one that passed is a line."""
    share = check.share
    cell = f"  {check.cell.label}" if check.mode == "live" else ""
    count = f"  {share.hits}/{share.total}" if check.mode == "live" else ""
    if check.passed:
        yield "green", f"pass  {check.name}{cell}{count}"
        return
    yield "red", f"FAIL  {check.name}{cell}{count}"
    for number, sample in enumerate(check.samples, start=1):
        if sample.passed:
            continue
        if len(check.samples) > 1:
            yield "dim", f"  sample {number}"
        if sample.error:
            yield "", f"  {sample.error}"
        yield from differences(sample.differences)


def differences(found: Sequence[Difference]) -> Lines:
    """Differences with their diffs, the first few of them."""
    for difference in found[:_MOST]:
        where = f" ({difference.where})" if difference.where else ""
        yield "bold", f"  {difference.room}: {difference.what}{where}"
        for line in difference.lines():
            colour = {"-": "red", "+": "green"}.get(line[:1], "")
            yield colour, f"    {line}"
    if len(found) > _MOST:
        yield "dim", f"  and {len(found) - _MOST} more"


def sums(checks: Iterable[GoldenCheck]) -> Lines:
    """How many passed, by cell where there are several, and what the others come from."""
    every = list(checks)
    cells = list(dict.fromkeys(check.cell for check in every))
    for cell in cells if any(check.mode == "live" for check in every) else ():
        own = [check for check in every if check.cell == cell]
        hits = sum(check.share.hits for check in own)
        total = sum(check.share.total for check in own)
        low, high = Share(hits, total).interval
        percent = f"{100 * hits / total:.0f} %" if total else "-"
        yield "", f"{cell.label}: {hits} of {total} runs passed, {percent} ({_span(low, high)})"
    passed = sum(check.passed for check in every)
    rooms = Counter(room for check in every for room in check.rooms)
    errors = sum(any(sample.error for sample in check.samples) for check in every)
    parts = [f"{room} {rooms[room]}" for room in ROOMS if rooms[room]]
    parts += [f"unreadable {errors}"] if errors else []
    tail = f"; failed: {', '.join(parts)}" if parts else ""
    colour = "green" if passed == len(every) else "red"
    yield colour, f"{passed} of {len(every)} passed{tail}"


def fallen(regressions: Iterable[Regression]) -> Lines:
    """What passes less often than in the baseline."""
    for one in regressions:
        what = one.name or "all transcripts"
        was, now = (f"{s.hits}/{s.total}" for s in (one.before, one.after))
        yield "red", f"worse  {what}  {one.cell.label}: {was} before, {now} now (p {one.p:.3g})"


def complain_of(found: Sequence[Difference]) -> None:
    """Differences on standard error."""
    for _, line in differences(found):
        print(shown(line), file=sys.stderr)


def show(lines: Iterable[tuple[str, str]]) -> None:
    """Prints lines."""
    for colour, line in lines:
        print_text(line, colour=colour)


def _span(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f} %"
