"""Unified diffs for a person who decides about a change: whole, counted and quickly made.

Lines that occur once in both texts are matched first, which takes linear time (as `git diff
--patience` does). `difflib`, which may take quadratic time, compares only the short runs between
them. Long runs without such lines are shown as removed and added, and the hunk says so.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Final

from msgspec import Struct

from mlx_tools.toolbox.text_files import one_line

MAX_SHOWN_CHARS: Final = 5_000_000
"""Most characters of lines in a diff. Nobody reads more, and a screen or a page takes a while to
show as much."""

NOT_COMPARED: Final = "too long to be compared line by line: all of it is shown as replaced"

_CONTEXT: Final = 3
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MAX_PAIRS: Final = 1_000_000
"""Pairs of lines that `difflib` may compare in one text: at worst about a third of a second."""
_MAX_DEPTH: Final = 8
"""How often lines are looked for that occur once between others that do. Each time takes linear
time, and a real change needs one or two."""

Equal = tuple[int, int, int]
"""Equal lines: where they begin in the old text and in the new one, and how many there are."""
Change = tuple[int, int, int, int]
"""Lines from ``i1`` to ``i2`` of the old text that ``j1`` to ``j2`` of the new one replace."""


class TextDiff(Struct, frozen=True):
    """A unified diff. ``counts`` are the lines that come and go in the whole change: ``+2 -17``.
    ``omitted`` says what of the change the text leaves out, and is empty if the text is whole."""

    text: str
    counts: str = ""
    omitted: str = ""


def unified_diff(old_text: str, new_text: str, old: str, new: str) -> TextDiff:
    """Compare two texts with the names ``old`` and ``new``.

    Lines end at ``\\n`` alone; every other character that nobody would see is escaped. At most
    `MAX_SHOWN_CHARS` are shown; the last line then says how much is left out.
    """
    shown = [f"--- {one_line(old, marks=True)}", f"+++ {one_line(new, marks=True)}"]
    if old_text == new_text:
        return TextDiff("\n".join((*shown, "(no difference)")))
    left, lines, chars = MAX_SHOWN_CHARS, 0, 0  # what may be shown, and what is not
    counts = {"+": 0, "-": 0, " ": 0, "@": 0}
    for line in _hunks(_LINE.findall(old_text), _LINE.findall(new_text)):
        counts[line[0]] += 1
        size = len(line) - 1  # without its mark
        if size <= left:
            shown += _escaped(line)
        elif left:  # the beginning of the first line that does not fit
            shown.append(f"{next(_escaped(line[:left]))} … ({size - left} more characters)")
        if size > left:
            lines, chars = lines + 1, chars + size - left
        left = max(0, left - size)
    omitted = f"{chars} characters in {lines} lines are not shown" if chars else ""
    if omitted:
        shown.append(f"({omitted})")
    return TextDiff("\n".join(shown), f"+{counts['+']} -{counts['-']}", omitted)


def _hunks(old_lines: list[str], new_lines: list[str]) -> Iterator[str]:
    """The lines of a diff behind its header, each with its own end."""
    for hunk, compared in _grouped(old_lines, new_lines):
        i1, i2 = max(hunk[0][0] - _CONTEXT, 0), min(hunk[-1][1] + _CONTEXT, len(old_lines))
        j1, j2 = max(hunk[0][2] - _CONTEXT, 0), min(hunk[-1][3] + _CONTEXT, len(new_lines))
        note = "" if compared else f" ({NOT_COMPARED})"
        yield f"@@ -{_range(i1, i2)} +{_range(j1, j2)} @@{note}\n"
        for start, end, new_start, new_end in hunk:
            yield from (f" {line}" for line in old_lines[i1:start])
            yield from (f"-{line}" for line in old_lines[start:end])
            yield from (f"+{line}" for line in new_lines[new_start:new_end])
            i1 = end
        yield from (f" {line}" for line in old_lines[i1:i2])


def _range(start: int, end: int) -> str:
    """Lines as the header of a hunk names them; of none, the line before them."""
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + bool(count)},{count}"


def _grouped(
    old_lines: Sequence[str], new_lines: Sequence[str]
) -> Iterator[tuple[list[Change], bool]]:
    """The changes that stand in one hunk, and whether all of them were compared line by line."""
    equal, skipped = _equal_lines(old_lines, new_lines)
    hunk, compared = list[Change](), True
    i = j = 0
    for next_i, next_j, count in (*equal, (len(old_lines), len(new_lines), 0)):
        if (i, j) != (next_i, next_j):
            if hunk and i - hunk[-1][1] > 2 * _CONTEXT:
                yield hunk, compared
                hunk, compared = [], True
            hunk.append((i, next_i, j, next_j))
            compared = compared and (i, j) not in skipped
        i, j = next_i + count, next_j + count
    if hunk:
        yield hunk, compared


def _equal_lines(
    old_lines: Sequence[str], new_lines: Sequence[str]
) -> tuple[list[Equal], set[tuple[int, int]]]:
    """The lines that both texts have, in order, and where runs begin that were not compared."""
    equal, skipped = list[Equal](), set[tuple[int, int]]()
    pairs = _MAX_PAIRS
    gaps = [(0, len(old_lines), 0, len(new_lines), 0)]
    while gaps:
        i1, i2, j1, j2, depth = gaps.pop()
        start, end = _common_ends(old_lines[i1:i2], new_lines[j1:j2])
        equal += [(i1, j1, start), (i2 - end, j2 - end, end)]
        i1, i2, j1, j2 = i1 + start, i2 - end, j1 + start, j2 - end
        if i1 == i2 or j1 == j2:
            continue
        old, new = old_lines[i1:i2], new_lines[j1:j2]
        anchors = _anchors(old, new) if depth < _MAX_DEPTH else []
        if anchors:
            edges = [(-1, -1), *anchors, (len(old), len(new))]
            equal += [(i1 + i, j1 + j, 1) for i, j in anchors]
            gaps += [
                (i1 + i + 1, i1 + next_i, j1 + j + 1, j1 + next_j, depth + 1)
                for (i, j), (next_i, next_j) in pairwise(edges)
            ]
        elif len(old) * len(new) <= pairs:
            pairs -= len(old) * len(new)
            blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
            equal += [(i1 + i, j1 + j, count) for i, j, count in blocks]
        else:
            skipped.add((i1, j1))
    return sorted(block for block in equal if block[2]), skipped


def _common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many lines both begin with, and how many of the others both end with."""
    least = min(len(old), len(new))
    start = next((i for i in range(least) if old[i] != new[i]), least)
    least -= start
    end = next((i for i in range(least) if old[-1 - i] != new[-1 - i]), least)
    return start, end


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Where lines stand that occur once in both: the longest series in the order of both."""
    places = {line: place for place, line in enumerate(new)}
    once = _unique_lines(old) & _unique_lines(new)
    piles = list[tuple[int, int]]()  # the last line of the best series of each length
    tops = list[int]()
    before: dict[tuple[int, int], tuple[int, int] | None] = {}
    for pair in ((place, places[line]) for place, line in enumerate(old) if line in once):
        length = bisect_left(tops, pair[1])
        before[pair] = piles[length - 1] if length else None
        if length == len(piles):
            piles.append(pair)
            tops.append(pair[1])
        else:
            piles[length], tops[length] = pair, pair[1]
    series, last = list[tuple[int, int]](), piles[-1] if piles else None
    while last is not None:
        series.append(last)
        last = before[last]
    return series[::-1]


def _unique_lines(lines: Iterable[str]) -> set[str]:
    seen, twice = set[str](), set[str]()
    for line in lines:
        (twice if line in seen else seen).add(line)
    return seen - twice


def _escaped(line: str) -> Iterator[str]:
    """A line of a diff, escaped, without its end or with a line that says that it has none."""
    yield "\t".join(one_line(part, marks=True) for part in line.removesuffix("\n").split("\t"))
    if not line.endswith("\n"):
        yield "\\ No newline at end of file"
