"""Checks as the rows of a table: a transcript a row, what it was checked with a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from mlx_tools.golden.difference import ROOMS
from mlx_tools.golden.results import Column, GoldenCheck

State = Literal["error", "failed", "none", "passed"]
"""What a check came to; ``none`` where there is no run of it. ``error`` is a failure too: a run
did not come to its end."""

_ORDER: Final[Mapping[State, int]] = {"error": 0, "failed": 1, "none": 2, "passed": 3}


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A check that is written out, under its number; ``row`` is that of its row."""

    number: int
    row: int
    check: GoldenCheck


@dataclass(frozen=True, slots=True)
class Result:
    """A check in the table. ``run`` is the number that it is written out under, 0 where it is
    not."""

    check: GoldenCheck
    state: State
    run: int = 0


@dataclass(frozen=True, slots=True)
class TranscriptRow:
    """A transcript. ``cells`` are the results in each cell: one, mostly; none where it was not
    checked with it."""

    number: int
    name: str
    path: str
    about: str
    source: str
    features: tuple[str, ...]
    state: State
    rooms: tuple[str, ...]
    cells: tuple[tuple[Result, ...], ...]


def state_of(check: GoldenCheck) -> State:
    """What a check came to."""
    if not check.samples:
        return "none"
    if any(sample.error for sample in check.samples):
        return "error"
    return "passed" if check.passed else "failed"


def rows_of(
    checks: Sequence[GoldenCheck], cells: Sequence[Column]
) -> tuple[list[TranscriptRow], list[ReportedRun]]:
    """The rows, those that failed first and the worst of them first, and the runs that are written
    out, in the same order."""
    by_transcript: dict[tuple[str, str], list[GoldenCheck]] = {}
    for check in checks:
        by_transcript.setdefault((check.path, check.name), []).append(check)
    ordered = sorted(by_transcript.values(), key=_rank)
    place = {cell: number for number, cell in enumerate(cells)}
    told = [
        (row, check)
        for row, own in enumerate(ordered, start=1)
        for check in sorted(own, key=lambda check: place[check.cell])
        if _is_told(check)
    ]
    told.sort(key=lambda each: each[1].passed)
    runs = [ReportedRun(number, row, check) for number, (row, check) in enumerate(told, start=1)]
    numbers = {id(run.check): run.number for run in runs}
    rows = [_row(number, own, cells, numbers) for number, own in enumerate(ordered, start=1)]
    return rows, runs


def _row(
    number: int, checks: Sequence[GoldenCheck], cells: Sequence[Column], numbers: Mapping[int, int]
) -> TranscriptRow:
    first = checks[0]
    results: dict[Column, list[Result]] = {cell: [] for cell in cells}
    for check in checks:
        run = numbers.get(id(check), 0)
        results[check.cell].append(Result(check, state_of(check), run))
    found = {room for check in checks for room in check.rooms}
    return TranscriptRow(
        number=number,
        name=first.name,
        path=first.path,
        about=first.about,
        source=first.source,
        features=first.features,
        state=min((state_of(check) for check in checks), key=_ORDER.__getitem__),
        rooms=tuple(room for room in ROOMS if room in found),
        cells=tuple(tuple(own) for own in results.values()),
    )


def _rank(checks: Sequence[GoldenCheck]) -> tuple[int, float, str, str]:
    hits = sum(check.share.hits for check in checks)
    total = sum(check.share.total for check in checks)
    worst = min(_ORDER[state_of(check)] for check in checks)
    return (
        max(worst, _ORDER["failed"]),
        hits / total if total else 1.0,
        checks[0].name,
        checks[0].path,
    )


def _is_told(check: GoldenCheck) -> bool:
    """Whether there is more to tell of a check than a row holds."""
    return not check.passed or any(sample.records for sample in check.samples)
