"""What a change does to a text, for a person who has to decide about it: a bounded unified diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mlx_tools.toolbox.text_files import one_line

MAX_LINES: Final = 400
MAX_CHARS: Final = 40_000
MAX_LINE_CHARS: Final = 2_000
CONTEXT: Final = 3

_MAX_COMPARED: Final = 2_000
"""Lines that differ at all, of either text, that are still matched with each other; beyond it they
are shown as removed and added as a whole, since matching takes more than linear time."""


def unified_diff(before: str, after: str, old: str, new: str) -> str:
    """The difference of two texts, with the names ``old`` and ``new``, as a unified diff.

    Lines end at ``\\n`` alone; every other character that nobody would see is escaped. At most
    `MAX_LINES` and `MAX_CHARS` are shown, and the last line says how many lines are left out.
    """
    head = (f"--- {one_line(old, marks=True)}", f"+++ {one_line(new, marks=True)}")
    if before == after:
        return "\n".join((*head, "(no difference)"))
    return bounded((*head, *_hunks(_lines(before), _lines(after))))


def bounded(lines: Iterable[str]) -> str:
    """The first lines of a text for a person, and how many more there are."""
    shown: list[str] = []
    size = left_out = 0
    for line in lines:
        cut = line
        if len(line) > MAX_LINE_CHARS:
            cut = f"{line[:MAX_LINE_CHARS]} … ({len(line) - MAX_LINE_CHARS} more characters)"
        size += len(cut) + 1
        if left_out or len(shown) >= MAX_LINES or size > MAX_CHARS:
            left_out += 1
        else:
            shown.append(cut)
    if left_out:
        shown.append(f"({left_out} more lines are not shown)")
    return "\n".join(shown)


def marked(mark: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines of a diff: each behind the mark, escaped, without its end or with a word that it has
    none."""
    for line in lines:
        pieces = line.removesuffix("\n").split("\t")
        yield mark + "\t".join(one_line(piece, marks=True) for piece in pieces)
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"


def _lines(text: str) -> list[str]:
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _hunks(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """The hunks of a diff. What both texts begin and end with is not compared again."""
    least = min(len(before), len(after))
    start = next((i for i in range(least) if before[i] != after[i]), least)
    most = least - start
    end = next((i for i in range(most) if before[-1 - i] != after[-1 - i]), most)
    first = max(start - CONTEXT, 0)
    kept = max(end - CONTEXT, 0)
    old, new = before[first : len(before) - kept], after[first : len(after) - kept]
    for group in _groups(old, new, start - first, end - kept):
        top, bottom = group[0], group[-1]
        at_old = _range(first + top[1], first + bottom[2])
        at_new = _range(first + top[3], first + bottom[4])
        yield f"@@ -{at_old} +{at_new} @@"
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                yield from marked(" ", old[i:i_end])
            else:
                yield from marked("-", old[i:i_end])
                yield from marked("+", new[j:j_end])


_Step = tuple[str, int, int, int, int]


def _groups(
    old: Sequence[str], new: Sequence[str], before: int, behind: int
) -> Iterable[Sequence[_Step]]:
    """Groups of steps as difflib makes them; ``before`` and ``behind`` count the lines of context
    that both have at their ends."""
    if max(len(old), len(new)) <= _MAX_COMPARED:
        matcher = difflib.SequenceMatcher(None, old, new)
        return [[(s[0], *s[1:]) for s in g] for g in matcher.get_grouped_opcodes(CONTEXT)]
    i, j = len(old) - behind, len(new) - behind
    whole = [
        ("equal", 0, before, 0, before),
        ("replace", before, i, before, j),
        ("equal", i, len(old), j, len(new)),
    ]
    return [[step for step in whole if step[1] < step[2] or step[3] < step[4]]]


def _range(start: int, stop: int) -> str:
    """A range of lines as unified diffs write it: an empty one names the line before it."""
    length = stop - start
    if length == 1:
        return f"{start + 1}"
    return f"{start + 1 if length else start},{length}"
