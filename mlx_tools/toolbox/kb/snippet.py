"""Which part of a passage to show: the stretch that says most of what was asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from mlx_tools.toolbox.kb.query import TermMatcher

SNIPPET_CHARS: Final = 600
_PIECE: Final = 160
"""Characters of a longer line that are taken together; a paragraph is often one line."""

_SENTENCE: Final = re.compile(r"[.!?;:](?=\s)|[。！？；]")
_CUT: Final = "…"


def snippet(text: str, matcher: TermMatcher, most: int = SNIPPET_CHARS) -> tuple[int, str]:
    """Where in ``text`` the stretch begins that is shown, and the stretch: of at most ``most``
    characters, with most of the words that are wanted. An ellipsis stands where something is left
    out."""
    begin = len(text) - len(text.lstrip("\n"))
    end = len(text.rstrip("\n"))
    if end - begin <= most:
        return begin, text[begin:end]
    pieces = list(_pieces(text, begin, end))
    window = _window(pieces, [matcher.said(text[a:b]) for a, b in pieces], most - 2)
    start = pieces[window.start][0]
    stop = min(pieces[window.stop - 1][1], start + most - 2)
    at_line = start == begin or text[start - 1] == "\n"  # where a line begins, its indent stays
    shown = text[start:stop].lstrip("\n" if at_line else None)
    start = stop - len(shown)
    return start, (_CUT if start > begin else "") + shown.rstrip() + (_CUT if stop < end else "")


def _pieces(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The lines, and the sentences of those that are long, or what fits of them."""
    at = begin
    while at < end:
        line_end = text.find("\n", at, end) + 1 or end
        while line_end - at > _PIECE:
            ends = [found.end() for found in _SENTENCE.finditer(text, at, at + _PIECE)]
            space = text.rfind(" ", at + 1, at + _PIECE)
            stop = ends[-1] if ends else space if space > 0 else at + _PIECE
            yield at, stop
            at = stop
        yield at, line_end
        at = line_end


def _window(pieces: Sequence[tuple[int, int]], said: Sequence[set[str]], most: int) -> range:
    """Of all stretches that fit, the last of those with most different words, and of these with
    most words: it begins with what was asked for, and goes on with what is said of it. Room that is
    left goes to what stands before."""
    best, found = range(1), (0, 0)
    held: Counter[str] = Counter()
    last = 0
    for first in range(len(pieces)):
        while last < len(pieces) and (last == first or _size(pieces, first, last) <= most):
            held.update(said[last])
            last += 1
        if (rank := (len(held), held.total())) >= found and (held or not first):
            best, found = range(first, last), rank
        held -= Counter(said[first])  # without those of which none is left
    first = best.start
    while first and _size(pieces, first - 1, best.stop - 1) <= most:
        first -= 1
    return range(first, best.stop)


def _size(pieces: Sequence[tuple[int, int]], first: int, last: int) -> int:
    return pieces[last][1] - pieces[first][0]
