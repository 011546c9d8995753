"""Runs as a report writes them out: their differences as small diffs, and their steps."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Final

from mlx_tools.golden.difference import Difference
from mlx_tools.golden.report_rows import ReportedRun, State, state_of
from mlx_tools.golden.results import GoldenCheck, Sample
from mlx_tools.golden.steps import ReportStep, steps_of

MANY: Final = 5
"""A difference that more runs than this share is written once, for all of them."""

FEW: Final = 12
"""Where no more runs than this are written out, their conversations are unfolded."""

MAX_WRITTEN: Final = 8_000_000
"""Characters of conversations on a page. What comes after them is left out, which is said."""

_ALIKE: Final = 0.3
"""Of two lines that share less of their text, no words are marked: all of it changed."""

_WORD: Final = re.compile(r"\w+|\s+|[^\w\s]")

Part = tuple[str, bool]
"""A stretch of a line, and whether it is what changed in it."""

Key = tuple[str, str, tuple[str, ...]]
"""A difference wherever it arises: room, what, and the lines of its diff."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a diff: ``-``, ``+`` or a blank, and its text."""

    sign: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """A difference that ``runs`` runs share."""

    number: int
    difference: Difference
    lines: tuple[DiffLine, ...]
    runs: int
    live: bool


@dataclass(frozen=True, slots=True)
class Diff:
    """A difference of a run; ``lines`` are empty where it is ``shared`` with many."""

    difference: Difference
    lines: tuple[DiffLine, ...]
    shared: Shared | None = None


@dataclass(frozen=True, slots=True)
class WrittenSample:
    """One run. ``left_out``: its steps are, for the page would grow too long."""

    number: int
    sample: Sample
    diffs: tuple[Diff, ...]
    steps: Sequence[ReportStep]
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """A check that is written out."""

    number: int
    row: int
    check: GoldenCheck
    state: State
    unfolded: bool
    samples: tuple[WrittenSample, ...]


class Writing:
    """Writes runs out. ``shared`` are the differences that more than `MANY` of them share, the most
    often shared first. ``limit`` is how many characters of conversations are written."""

    def __init__(self, runs: Sequence[ReportedRun], *, limit: int = MAX_WRITTEN) -> None:
        self._runs = runs
        self._limit = limit
        self._lines: dict[tuple[str, str], tuple[str, ...]] = {}
        found: Counter[Key] = Counter()
        example: dict[Key, tuple[Difference, bool]] = {}
        for run in runs:
            own = {self._key(d): d for sample in run.check.samples for d in sample.differences}
            found.update(own.keys())
            for key, difference in own.items():
                example.setdefault(key, (difference, run.check.mode == "live"))
        many = [(key, count) for key, count in found.most_common() if count > MANY]
        self._shared = {
            key: Shared(number, example[key][0], diff_lines(key[2]), count, example[key][1])
            for number, (key, count) in enumerate(many, start=1)
        }

    @property
    def shared(self) -> list[Shared]:
        """The shared differences."""
        return list(self._shared.values())

    def written(self) -> Iterator[WrittenRun]:
        """The runs, one at a time: thousands are never held at once."""
        size = 0
        for run in self._runs:
            samples = []
            for number, sample in enumerate(run.check.samples, start=1):
                diffs = tuple(map(self._diff, sample.differences))
                steps = steps_of(sample.records, sample.differences) if size < self._limit else []
                size += sum(map(_size, steps))
                left_out = bool(sample.records) and not steps
                samples.append(WrittenSample(number, sample, diffs, steps, left_out))
            yield WrittenRun(
                run.number,
                run.row,
                run.check,
                state_of(run.check),
                len(self._runs) <= FEW,
                tuple(samples),
            )

    def _key(self, difference: Difference) -> Key:
        texts = difference.was, difference.now
        if (lines := self._lines.get(texts)) is None:
            lines = self._lines[texts] = tuple(difference.lines())
        return difference.room, difference.what, lines

    def _diff(self, difference: Difference) -> Diff:
        key = self._key(difference)
        if (one := self._shared.get(key)) is not None:
            return Diff(difference, (), one)
        return Diff(difference, diff_lines(key[2]))


def diff_lines(lines: Sequence[str]) -> tuple[DiffLine, ...]:
    """The lines of `Difference.lines`, with what changed in those that stand for each other."""
    out: list[DiffLine] = []
    groups = [(sign, list(own)) for sign, own in groupby(lines, key=lambda line: line[:1])]
    for place, (sign, own) in enumerate(groups):
        after = groups[place + 1] if place + 1 < len(groups) else ("", [])
        before = groups[place - 1] if place else ("", [])
        other = after if sign == "-" else before
        paired = {sign, other[0]} == {"-", "+"} and len(other[1]) == len(own)
        for number, line in enumerate(own):
            text = line[2:]
            parts = _changed(text, other[1][number][2:]) if paired else ((text, False),)
            out.append(DiffLine(sign, parts))
    return tuple(out)


@functools.lru_cache(maxsize=512)
def _changed(text: str, other: str) -> tuple[Part, ...]:
    """The line in stretches, marked where another line has other words; in one where most has."""
    words, others = _WORD.findall(text), _WORD.findall(other)
    matcher = SequenceMatcher(a=words, b=others, autojunk=False)
    marked = [True] * len(words)
    for start, _, size in matcher.get_matching_blocks():
        marked[start : start + size] = [False] * size
    for place in range(1, len(words) - 1):  # a gap between changed words changes with them
        if marked[place - 1] and marked[place + 1] and not words[place].strip():
            marked[place] = True
    found = [
        ("".join(word for word, _ in own), changed)
        for changed, own in groupby(zip(words, marked, strict=True), key=lambda pair: pair[1])
    ]
    same = sum(len(part) for part, changed in found if not changed)
    return tuple(found) if same >= _ALIKE * len(text) else ((text, False),)


def _size(step: ReportStep) -> int:
    texts = (len(b.text) + len(b.tail) + len(b.prefix) for b in step.blocks)
    return 200 + len(step.words) + sum(texts)  # and the tags around them
