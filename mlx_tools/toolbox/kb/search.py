"""Finds the passages that answer a question: by their words, the rare ones above the common."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mlx_tools.toolbox.kb.chunks import BETWEEN_HEADINGS
from mlx_tools.toolbox.kb.database import Database
from mlx_tools.toolbox.kb.query import TermMatcher
from mlx_tools.toolbox.kb.ranking import PassageRanking, ScoredPassage

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


SECONDS: Final = 20.0
"""What a search may take."""

MAX_NAME_CHARS: Final = 150


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found.

    ``path`` is the file's absolute path, ``title`` what the document is called, ``heading`` where
    in it the passage stands. ``text`` is the whole passage, lines ``line`` to ``end_line``, from 1;
    ``snippet`` is the part with most of the words that were asked for, which begins in line
    ``snippet_line``, on page ``page``. Lines are None where a file's text has no lines of its own
    (PDF, notebooks), and the page where it has no pages. ``score`` is better the higher it is, and
    means nothing from one question to the next.
    """

    corpus: str
    path: str
    title: str
    heading: str
    line: int | None
    end_line: int | None
    page: int | None
    score: float
    text: str
    snippet: str
    snippet_line: int | None

    @property
    def name(self) -> str:
        """Title and heading on one line. A heading that repeats the title is left out; of several
        that a passage stands under, those are named that the snippet shows, as many as fit."""
        first, _, rest = self.heading.partition(" > ")
        whole = rest if first and self.title.startswith(first) else self.heading
        several = whole.split(BETWEEN_HEADINGS)
        seen = [one for one in several if one.rpartition(" > ")[2] in self.snippet]
        under = BETWEEN_HEADINGS.join(seen or several)
        name = f"{self.title} > {under}" if under else self.title
        return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 1]}…"


def search(
    database: Database,
    question: str,
    corpus: int | None,
    limit: int,
    snippet_chars: int = SNIPPET_CHARS,
    seconds: float = SECONDS,
) -> list[Hit]:
    """The best ``limit`` passages for a question in plain words, the best first, one of a file as
    long as there are files enough. No text can be a wrong question; one without words finds
    nothing."""
    end = time.monotonic() + seconds
    database.stop_where(lambda: time.monotonic() > end)
    try:
        with database.reading():
            ranking = PassageRanking(database, question, corpus)
            if not ranking.query.wanted or limit < 1:
                return []
            matcher = TermMatcher(ranking.query.wanted)
            texts: dict[int, tuple[str, list[int]]] = {}
            return [
                _hit(database, row, score, matcher, snippet_chars, texts)
                for row, score in ranking.best(limit)
            ]
    finally:
        database.stop_where(None)


def _hit(
    database: Database,
    row: ScoredPassage,
    score: float,
    matcher: TermMatcher,
    snippet_chars: int,
    texts: dict[int, tuple[str, list[int]]],
) -> Hit:
    query = (
        "SELECT corpus.name, file.path, file.title, file.pages, start, stop, line, end_line, "
        "heading FROM passage JOIN file ON file.id = file JOIN corpus ON corpus.id = corpus "
        "WHERE passage.id = ?"
    )
    found = database.one(query, row.passage)
    corpus, path, title, pages, *numbers, heading = found
    start, stop, line, end_line = (int(str(number)) for number in numbers)
    if row.file not in texts:
        texts[row.file] = database.text(row.file)
    whole, lines = texts[row.file]
    text = whole[start:stop]
    at, shown = snippet(text, matcher, snippet_chars)
    begins = [int(page) for page in str(pages).split()]
    return Hit(
        corpus=str(corpus),
        path=str(path),
        title=str(title),
        heading=str(heading),
        line=_line_of(lines, line),
        end_line=_line_of(lines, end_line),
        page=bisect_right(begins, start + at) if begins else None,
        score=round(score, 4),
        text=text.strip("\n"),
        snippet=shown,
        snippet_line=_line_of(lines, line + text.count("\n", 0, at)),
    )


def _line_of(lines: Sequence[int], line: int) -> int | None:
    """The line of the file in which a line of its text begins, if that means anything."""
    return (lines[min(line, len(lines)) - 1] if lines else line) or None
