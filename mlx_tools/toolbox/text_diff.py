"""Unified diffs for a person who decides: complete, counted and fast.

Lines that occur once in both texts are matched first, which takes linear time (like `git diff
--patience`). `difflib`, which may take quadratic time, only compares the short runs between them.
Long runs without such lines are shown as removed and added, with a note in the hunk.
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
from mlx_tools.unseen import FOR_PEOPLE, escape_unseen

MAX_DIFF_CHARS: Final = 5_000_000
"""Characters of lines in a diff. Nobody reads more, and even this takes a while to show."""

NOT_COMPARED: Final = "too long to be compared line by line: all of it is shown as replaced"

_CONTEXT: Final = 3
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MAX_PAIRS: Final = 1_000_000
"""Pairs of lines that `difflib` may compare in one text: about a third of a second at worst."""
_MAX_DEPTH: Final = 8
"""Rounds of the search for lines that occur once, each between the matches of the round before.
Each takes linear time, and a real change needs one or two."""

Equal = tuple[int, int, int]
"""Equal lines: their start in the old and in the new text, and their number."""
Change = tuple[int, int, int, int]
"""Lines ``i1`` to ``i2`` of the old text that ``j1`` to ``j2`` of the new one replace."""


class TextDiff(Struct, frozen=True):
    """A unified diff."""

    text: str
    counts: str = ""
    """The added and removed lines of the whole change: ``+2 -17``."""
    omitted: str = ""
    """A description of the part that the text leaves out. Empty if it is complete."""


def unified_diff(old_text: str, new_text: str, old: str, new: str) -> TextDiff:
    r"""Compare two texts with the names ``old`` and ``new``.

    Lines end only at ``\n``; every other invisible character is escaped. At most `MAX_DIFF_CHARS`
    are shown. If the diff is longer, its last line has the size of the rest.
    """
    shown = [f"--- {one_line(old, marks=True)}", f"+++ {one_line(new, marks=True)}"]
    if old_text == new_text:
        return TextDiff("\n".join((*shown, "(no difference)")))
    # the characters that may still be shown, and the size of the omitted rest
    chars_left, lines, chars = MAX_DIFF_CHARS, 0, 0
    counts = {"+": 0, "-": 0, " ": 0, "@": 0}
    for line in _iter_hunks(_LINE.findall(old_text), _LINE.findall(new_text)):
        counts[line[0]] += 1
        size = len(line) - 1  # without its mark
        if size <= chars_left:
            shown += _escape_line(line)
        elif chars_left:  # the beginning of the first line that does not fit
            shown.append(
                f"{next(_escape_line(line[:chars_left]))} … ({size - chars_left} more characters)"
            )
        if size > chars_left:
            lines, chars = lines + 1, chars + size - chars_left
        chars_left = max(0, chars_left - size)
    omitted = f"{chars} characters in {lines} lines are not shown" if chars else ""
    if omitted:
        shown.append(f"({omitted})")
    return TextDiff("\n".join(shown), f"+{counts['+']} -{counts['-']}", omitted)


def _iter_hunks(old_lines: list[str], new_lines: list[str]) -> Iterator[str]:
    """Yield the lines of a diff after its header, each with its own end."""
    for hunk, compared in _group_changes(old_lines, new_lines):
        i1, i2 = max(hunk[0][0] - _CONTEXT, 0), min(hunk[-1][1] + _CONTEXT, len(old_lines))
        j1, j2 = max(hunk[0][2] - _CONTEXT, 0), min(hunk[-1][3] + _CONTEXT, len(new_lines))
        note = "" if compared else f" ({NOT_COMPARED})"
        yield f"@@ -{_format_range(i1, i2)} +{_format_range(j1, j2)} @@{note}\n"
        for start, end, new_start, new_end in hunk:
            yield from (f" {line}" for line in old_lines[i1:start])
            yield from (f"-{line}" for line in old_lines[start:end])
            yield from (f"+{line}" for line in new_lines[new_start:new_end])
            i1 = end
        yield from (f" {line}" for line in old_lines[i1:i2])


def _format_range(start: int, end: int) -> str:
    """Return a range of lines for a hunk's header; if empty, the line before it."""
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + bool(count)},{count}"


def _group_changes(
    old_lines: Sequence[str], new_lines: Sequence[str]
) -> Iterator[tuple[list[Change], bool]]:
    """Yield the changes of each hunk, and whether all were compared line by line."""
    equal, skipped = find_equal_lines(old_lines, new_lines)
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


def find_equal_lines(
    old_lines: Sequence[str], new_lines: Sequence[str]
) -> tuple[list[Equal], set[tuple[int, int]]]:
    """Return the equal lines in order, and the starts of runs that were not compared."""
    equal, skipped = list[Equal](), set[tuple[int, int]]()
    pairs = _MAX_PAIRS
    gaps = [(0, len(old_lines), 0, len(new_lines), 0)]
    while gaps:
        i1, i2, j1, j2, depth = gaps.pop()
        start, end = _count_common(old_lines[i1:i2], new_lines[j1:j2])
        equal += [(i1, j1, start), (i2 - end, j2 - end, end)]
        i1, i2, j1, j2 = i1 + start, i2 - end, j1 + start, j2 - end
        if i1 == i2 or j1 == j2:
            continue
        old, new = old_lines[i1:i2], new_lines[j1:j2]
        anchors = _find_anchors(old, new) if depth < _MAX_DEPTH else []
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


def _count_common(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """Return the number of equal lines at the start, and at the end of the rest."""
    remaining = min(len(old), len(new))
    start = next((i for i in range(remaining) if old[i] != new[i]), remaining)
    remaining -= start
    end = next((i for i in range(remaining) if old[-1 - i] != new[-1 - i]), remaining)
    return start, end


def _find_anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Return the longest common series of lines that occur once in both texts."""
    places = {line: place for place, line in enumerate(new)}
    unique_lines = _find_unique_lines(old) & _find_unique_lines(new)
    piles = list[tuple[int, int]]()  # the last line of the best series of each length
    tops = list[int]()
    previous: dict[tuple[int, int], tuple[int, int] | None] = {}
    for pair in ((place, places[line]) for place, line in enumerate(old) if line in unique_lines):
        # Patience sorting: `tops` has the smallest last line of a series of each length.
        length = bisect_left(tops, pair[1])
        previous[pair] = piles[length - 1] if length else None
        if length == len(piles):
            piles.append(pair)
            tops.append(pair[1])
        else:
            piles[length], tops[length] = pair, pair[1]
    series, current = list[tuple[int, int]](), piles[-1] if piles else None
    while current is not None:
        series.append(current)
        current = previous[current]
    return series[::-1]


def _find_unique_lines(lines: Iterable[str]) -> set[str]:
    visited, twice = set[str](), set[str]()
    for line in lines:
        (twice if line in visited else visited).add(line)
    return visited - twice


def _escape_line(line: str) -> Iterator[str]:
    """Yield a line of a diff, escaped, and a notice if it has no line end."""
    yield escape_unseen(line.removesuffix("\n"), FOR_PEOPLE, keep="\t")
    if not line.endswith("\n"):
        yield "\\ No newline at end of file"
