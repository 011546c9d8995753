"""Finds the passages that answer a question: by their words, the rare ones above the common."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mlx_tools.toolbox.kb.chunks import BETWEEN_HEADINGS
from mlx_tools.toolbox.kb.database import Database
from mlx_tools.toolbox.kb.query import TermMatcher
from mlx_tools.toolbox.kb.ranking import PassageRanking, ScoredPassage
from mlx_tools.toolbox.kb.snippet import SNIPPET_CHARS, snippet

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
