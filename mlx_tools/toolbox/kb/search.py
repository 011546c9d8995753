"""Finds the passages that answer a question: those of the files that are about it.

A file's score is that of its passages, of all of its words, and of its names, each by BM25 over an
index of its own. The weights were chosen on questions of which others were kept back:
docs/knowledge-base.md.
"""

# ruff: noqa: S608 - what is put into a query here are names of tables, and numbers

from __future__ import annotations

import math
import re
import sqlite3
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from mlx_tools.store import DAMAGED
from mlx_tools.toolbox.kb.database import Database
from mlx_tools.toolbox.kb.passages import WITHIN
from mlx_tools.toolbox.kb.query import FEW, QueryTerm, TermMatcher, nearest, query_of, trigrams

SNIPPET_CHARS: Final = 600
SECONDS: Final = 20.0
"""What a search may take."""

MAX_NAME_CHARS: Final = 150

_PIECE: Final = 160
"""Characters of a longer line that are taken together; a paragraph is often one line."""

_SENTENCE: Final = re.compile(r"[.!?;:](?=\s)|[。！？；]")
_CUT: Final = "…"


class Hit(Struct, frozen=True):
    """A passage that was found.

    ``path`` is the file's absolute path, ``title`` what the document is called, ``heading`` where
    in it the passage stands. ``text`` is the whole passage, lines ``line`` to ``end_line``, from 1;
    ``snippet`` is the part with most of the words that were asked for, which begins in line
    ``snippet_line``, on page ``page``. Lines are None where the text is not the file as it stands
    (HTML, PDF, notebooks), and the page where it has no pages. ``score`` is better the higher it
    is, and means nothing from one question to the next.
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
        """Title and heading on one line. A heading that repeats the title is left out."""
        first, _, rest = self.heading.partition(WITHIN)
        under = rest if first and self.title.startswith(first) else self.heading
        name = f"{self.title}{WITHIN}{under}" if under else self.title
        return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 1]}…"


def search(
    database: Database,
    question: str,
    corpus: int | None,
    limit: int,
    snippet_chars: int = SNIPPET_CHARS,
) -> list[Hit]:
    """The best ``limit`` passages for a question in plain words, the best first, one of a file as
    long as there are files enough. No text can be a wrong question; one without words finds
    nothing."""
    end = time.monotonic() + SECONDS
    database.sql.set_progress_handler(lambda: time.monotonic() > end, 20_000)
    with database.transaction():
        ranking = PassageRanking(database, question, corpus)
        if not ranking.query.wanted or limit < 1:
            return []
        matcher = TermMatcher(ranking.query.wanted)
        return [_hit(database, row, matcher, snippet_chars) for row in ranking.best(limit)]


def _hit(database: Database, row: ScoredPassage, matcher: TermMatcher, max_chars: int) -> Hit:
    query = (
        "SELECT corpus.name, file.path, file.title, file.pages, start, stop, line, end_line, "
        "heading FROM passage JOIN file ON file.id = file JOIN corpus ON corpus.id = corpus "
        "WHERE passage.id = ?"
    )
    corpus, path, title, pages, start, stop, line, end_line, heading = database.one(
        query, row.passage
    )
    text = database.text(row.file)[int(start) : int(stop)]
    at, shown = snippet(text, matcher, max_chars)
    begins = [int(page) for page in str(pages).split()]
    return Hit(
        corpus=str(corpus),
        path=str(path),
        title=str(title),
        heading=str(heading),
        line=int(line) or None,
        end_line=int(end_line) or None,
        page=bisect_right(begins, int(start) + at) if begins else None,
        score=round(row.score, 4),
        text=text.strip("\n"),
        snippet=shown,
        snippet_line=int(line) + text.count("\n", 0, at) if int(line) else None,
    )


def snippet(text: str, matcher: TermMatcher, max_chars: int = SNIPPET_CHARS) -> tuple[int, str]:
    """Where in ``text`` the stretch begins that is shown, and the stretch: of at most ``max_chars``
    characters, with most of the words that are wanted. An ellipsis stands where something is left
    out."""
    begin = len(text) - len(text.lstrip("\n"))
    end = len(text.rstrip("\n"))
    if end - begin <= max_chars:
        return begin, text[begin:end]
    pieces = list(_pieces(text, begin, end))
    window = _window(pieces, [matcher.said(text[a:b]) for a, b in pieces], max_chars - 2)
    start = pieces[window.start][0]
    stop = min(pieces[window.stop - 1][1], start + max_chars - 2)
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


def _window(
    pieces: Sequence[tuple[int, int]], term_sets: Sequence[set[str]], max_chars: int
) -> range:
    """Of all stretches that fit, the last of those with most different words, and of these with
    most words: it begins with what was asked for, and goes on with what is said of it. Room that is
    left goes to what stands before."""

    def size(first: int, last: int) -> int:
        return pieces[last][1] - pieces[first][0]

    best, found = range(1), (0, 0)
    held: Counter[str] = Counter()
    last = 0
    for first in range(len(pieces)):
        while last < len(pieces) and (last == first or size(first, last) <= max_chars):
            held.update(term_sets[last])
            last += 1
        if (rank := (len(held), held.total())) >= found and (held or not first):
            best, found = range(first, last), rank
        held -= Counter(term_sets[first])  # without those of which none is left
    first = best.start
    while first and size(first - 1, best.stop - 1) <= max_chars:
        first -= 1
    return range(first, best.stop)


# --- the ranking --------------------------------------------------------------------------------

_PASSAGES: Final = 240
_FILES: Final = 1_000
"""The best passages and files that are looked at."""

_MORE_OF_A_FILE: Final = 0.5
"""How much of the score of a file's second passage counts for the file, of the third the square of
it, and so on: a file that speaks of it in several places is about it."""

_OF_PASSAGES: Final = "bm25(passage_words, 2, 1)"
_OF_FILES: Final = (
    ("file_words", "2 * bm25(file_words)"),
    ("file_names", "0.8 * bm25(file_names, 1, 1, 0) + 0.4 * bm25(file_names, 0, 0, 1)"),
)
"""What a row of an index counts: heading and text of a passage; all words of a file; its title and
path, and its headings."""

_SMALL: Final = 2_000
"""Passages of a knowledge base that is small enough to count what each word of a question does."""

_FTS5_LEAST: Final = 1e-6
"""The rarity that FTS5's bm25 takes for a word that half of the rows have, or more."""


_CANDIDATES: Final = 1_000
"""Words that are looked at for one that is nowhere."""


class ScoredPassage(NamedTuple):
    """A passage and its score, and the file it is of."""

    passage: int
    score: float
    file: int
    path: str


_File = tuple[str, int]
"""The path and the number of a file."""


class PassageRanking:
    """One question, asked of the indexes, in one corpus or, where that is None, in all."""

    def __init__(self, database: Database, question: str, corpus: int | None) -> None:
        self._database = database
        self._corpus = () if corpus is None else (corpus,)
        # SQLite takes an index on the corpus for a good way to begin, and then looks into the
        # full-text index once for each file: so tables are joined in the order in which they stand
        # (CROSS JOIN), and no index is used for this (+).
        self._paths = "AND +corpus = ?" if self._corpus else ""
        self.query = query_of(question, self._count, self._near)

    def best(self, limit: int) -> list[ScoredPassage]:
        """The best passage of each of the best files, with the file's score; then further ones, and
        at last those of files that hold, byte by byte, what one of these does."""
        rows = self._passages()
        of_file: dict[_File, list[ScoredPassage]] = {}
        for row in rows:
            of_file.setdefault((row.path, row.file), []).append(row)
        scores = {
            file: sum(row.score * _MORE_OF_A_FILE**n for n, row in enumerate(found))
            for file, found in of_file.items()
        }
        for file, score in self._files():
            scores[file] = scores.get(file, 0.0) + score
        first: dict[_File, ScoredPassage] = {}
        copies: dict[_File, ScoredPassage] = {}
        digests: set[bytes] = set()
        for file in sorted(scores, key=lambda file: (-scores[file], file)):
            if len(first) == limit:
                break
            digest = self._database.one("SELECT hash FROM file WHERE id=?", file[1])[0]
            best = of_file[file][0] if file in of_file else self._passage_of(*file)
            (copies if digest in digests else first)[file] = best._replace(score=scores[file])
            digests.add(digest)
        shown = {row.passage for row in first.values()}
        further = [r for r in rows if r.passage not in shown and (r.path, r.file) not in copies]
        placed = [*first.values(), *further[: limit - len(first)], *copies.values()][:limit]
        lowest = math.inf  # a copy has the score of what it repeats, and stands below others
        for number, row in enumerate(placed):
            lowest = min(lowest, row.score)
            placed[number] = row._replace(score=lowest)
        return placed

    def _passages(self) -> list[ScoredPassage]:
        """The passages that match best, the best first; equal ones in the order of their files."""
        scores = self._scores("passage_words", _OF_PASSAGES, _PASSAGES)
        query = (
            "SELECT passage.id, file.id, path, start FROM passage CROSS JOIN file "
            f"ON file.id = file WHERE passage.id IN ({', '.join(map(str, scores))}) {self._paths}"
        )
        rows = self._database.rows(query, *self._corpus)
        placed = sorted(rows, key=lambda row: (-scores[row[0]], row[2], row[3]))
        return [
            ScoredPassage(number, scores[number], file, path) for number, file, path, _ in placed
        ]

    def _files(self) -> Iterator[tuple[_File, float]]:
        """The files that match best by their words, and by their names, each as path and number,
        and their scores; a file may come twice."""
        for table, formula in _OF_FILES:
            scores = self._scores(table, formula, _FILES)
            ids = ", ".join(map(str, scores))
            query = f"SELECT path, id FROM file WHERE id IN ({ids}) {self._paths}"
            for path, number in self._database.rows(query, *self._corpus):
                yield (path, number), scores[number]

    def _passage_of(self, path: str, file: int) -> ScoredPassage:
        """The best passage of a file of which none is among the best of all, or its first."""
        first, last = self._database.one("SELECT min(id), max(id) FROM passage WHERE file=?", file)
        query = (
            f"SELECT rowid FROM passage_words WHERE passage_words MATCH ? "
            f"AND rowid BETWEEN {first} AND {last} ORDER BY {_OF_PASSAGES}, rowid LIMIT 1"
        )
        found = next(self._database.rows(query, self.query.expression), (first,))
        return ScoredPassage(found[0], 0.0, file, path)

    # --- the indexes ---

    def _scores(self, table: str, formula: str, limit: int) -> dict[int, float]:
        """The best rows of an index, by number, and their scores. Of a small knowledge base they
        are all rows, of whichever corpus."""
        query = "SELECT count(*), count(DISTINCT file) FROM (SELECT file FROM passage LIMIT ?)"
        passages, files = self._database.one(query, _SMALL + 1)
        if passages <= _SMALL:
            return self._scores_of_few(
                table, formula, passages if table == "passage_words" else files
            )
        query = (
            f"SELECT {table}.rowid, -({formula}) AS score {self._matching(table)} "
            f"ORDER BY score DESC LIMIT {limit}"
        )
        return dict(self._database.rows(query, self.query.expression, *self._corpus))

    def _scores_of_few(self, table: str, formula: str, rows: int) -> dict[int, float]:
        """To FTS5 a word that half of the rows have counts nothing. Of a handful of documents most
        words are such, so that how rare they are is taken here as Lucene takes it."""
        scores: dict[int, float] = {}
        for clause in self.query.clauses:
            query = f"SELECT rowid, -({formula}) FROM {table} WHERE {table} MATCH ?"
            found = dict(self._database.rows(query, clause))
            if len(found) > rows:
                raise sqlite3.DatabaseError(DAMAGED)
            odds = (rows - len(found) + 0.5) / (len(found) + 0.5)
            rarity = math.log(1 + odds) / max(math.log(odds), _FTS5_LEAST)
            for number, score in found.items():
                scores[number] = scores.get(number, 0.0) + rarity * score
        return scores

    def _matching(self, table: str) -> str:
        if not self._corpus:
            return f"FROM {table} WHERE {table} MATCH ?"
        file = f"{table}.rowid"
        if table == "passage_words":
            file = "(SELECT file FROM passage WHERE passage.id = passage_words.rowid)"
        return (
            f"FROM {table} CROSS JOIN file ON file.id = {file} WHERE {table} MATCH ? {self._paths}"
        )

    def _near(self, term: str) -> list[str]:
        """The words that files have and that share letters in threes with one that none has."""
        grams = trigrams(term)
        rows = ["SELECT rowid AS id FROM word_letters WHERE word_letters MATCH ?"] * len(grams)
        query = (
            f"SELECT term FROM (SELECT id, count(*) AS shared FROM ({' UNION ALL '.join(rows)}) "
            "GROUP BY id HAVING shared >= ?) JOIN word USING (id) "
            f"ORDER BY 1.0 * shared / (length(term) + ?) DESC, term LIMIT {_CANDIDATES}"
        )
        least = max(1, len(grams) // 3)
        quoted = (f'"{gram}"' for gram in grams)
        return nearest(term, (r[0] for r in self._database.rows(query, *quoted, least, len(term))))

    def _count(self, term: QueryTerm) -> int:
        """How many files match, by their words or their names, up to `FEW`."""
        most = 0
        for table, _ in _OF_FILES:
            query = f"SELECT count(*) FROM (SELECT 1 {self._matching(table)} LIMIT {FEW})"
            most = max(most, next(self._database.rows(query, term.expression, *self._corpus))[0])
        return most
