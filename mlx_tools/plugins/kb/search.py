"""Finds the passages that answer a question, in the files that are about it.

A file's score is the sum of the scores of its passages, of all of its words, and of its names. Each
is a BM25 score of a separate index. The weights were chosen on some questions and checked on
others: docs/knowledge-base.md.
"""

# ruff: noqa: S608 - only names of tables and numbers are put into queries here

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

from mlx_tools.plugins.kb.database import Database
from mlx_tools.plugins.kb.passages import HEADING_SEPARATOR
from mlx_tools.plugins.kb.query import (
    RARE_COUNT,
    QueryTerm,
    TermMatcher,
    build_query,
    find_nearest,
    split_trigrams,
)
from mlx_tools.store import DAMAGED
from mlx_tools.tools import rarity_factor

SNIPPET_CHARS: Final = 600
SECONDS: Final = 20.0
"""Seconds that a search may take. After that SQLite ends it."""

MAX_NAME_CHARS: Final = 150
"""Characters of a passage's name."""

_PIECE: Final = 160
"""Characters of a piece of a long line. A paragraph is often one line."""

_SENTENCE: Final = re.compile(r"[.!?;:](?=\s)|[。！？；]")
_CUT: Final = "…"


class Hit(Struct, frozen=True):
    """A passage in the result of a search."""

    corpus: str
    path: str
    """The file's absolute path."""
    title: str
    """The title of the document."""
    heading: str
    """Its place in the document."""
    line: int | None
    """The first line, from 1. None if the text differs from the file (HTML, PDF, notebooks)."""
    end_line: int | None
    page: int | None
    """The page of the snippet, None without pages."""
    score: float
    """A higher score is better. Scores of different questions cannot be compared."""
    text: str
    """The whole passage."""
    snippet: str
    """The part with most words of the question."""
    snippet_line: int | None
    """The first line of the snippet, from 1, or None."""

    @property
    def name(self) -> str:
        """Title and heading on one line. A heading that repeats the title is left out."""
        first, _, rest = self.heading.partition(HEADING_SEPARATOR)
        under = rest if first and self.title.startswith(first) else self.heading
        name = f"{self.title}{HEADING_SEPARATOR}{under}" if under else self.title
        return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 1]}…"


def search(
    database: Database,
    question: str,
    corpus: int | None,
    limit: int,
    snippet_chars: int = SNIPPET_CHARS,
) -> list[Hit]:
    """Return the best passages for a question: first one of each file, then others.

    Any text is a valid question. A question without words has no result.
    """
    end = time.monotonic() + SECONDS
    database.sql.set_progress_handler(lambda: time.monotonic() > end, 20_000)
    with database.transaction():
        ranking = PassageRanking(database, question, corpus)
        if not ranking.query.terms or limit < 1:
            return []
        matcher = TermMatcher(ranking.query.terms)
        return [_make_hit(database, row, matcher, snippet_chars) for row in ranking.best(limit)]


def _make_hit(database: Database, row: ScoredPassage, matcher: TermMatcher, max_chars: int) -> Hit:
    query = (
        "SELECT corpus.name, file.path, file.title, file.pages, start, stop, line, end_line, "
        "heading FROM passage JOIN file ON file.id = file JOIN corpus ON corpus.id = corpus "
        "WHERE passage.id = ?"
    )
    corpus, path, title, pages, start, stop, line, end_line, heading = database.fetch_one(
        query, row.passage
    )
    text = database.text(row.file)[int(start) : int(stop)]
    snippet_start, shown = make_snippet(text, matcher, max_chars)
    page_starts = [int(page) for page in str(pages).split()]
    return Hit(
        corpus=str(corpus),
        path=str(path),
        title=str(title),
        heading=str(heading),
        line=int(line) or None,
        end_line=int(end_line) or None,
        page=bisect_right(page_starts, int(start) + snippet_start) if page_starts else None,
        score=round(row.score, 4),
        text=text.strip("\n"),
        snippet=shown,
        snippet_line=int(line) + text.count("\n", 0, snippet_start) if int(line) else None,
    )


def make_snippet(
    text: str, matcher: TermMatcher, max_chars: int = SNIPPET_CHARS
) -> tuple[int, str]:
    """Return the part of ``text`` with most words of the query, and its start.

    It has at most ``max_chars`` characters. An ellipsis marks omitted text.
    """
    begin = len(text) - len(text.lstrip("\n"))
    end = len(text.rstrip("\n"))
    if end - begin <= max_chars:
        return begin, text[begin:end]
    pieces = list(_split_pieces(text, begin, end))
    window = _choose_window(
        pieces, [matcher.match_line(text[a:b]) for a, b in pieces], max_chars - 2
    )
    start = pieces[window.start][0]
    stop = min(pieces[window.stop - 1][1], start + max_chars - 2)
    at_line = start == begin or text[start - 1] == "\n"  # at the start of a line, its indent stays
    shown = text[start:stop].lstrip("\n" if at_line else None)
    start = stop - len(shown)
    return start, (_CUT if start > begin else "") + shown.rstrip() + (_CUT if stop < end else "")


def _split_pieces(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the lines, and long ones in pieces: sentences, or parts of a limited size."""
    start = begin
    while start < end:
        line_end = text.find("\n", start, end) + 1 or end
        while line_end - start > _PIECE:
            ends = [match.end() for match in _SENTENCE.finditer(text, start, start + _PIECE)]
            space = text.rfind(" ", start + 1, start + _PIECE)
            stop = ends[-1] if ends else space if space > 0 else start + _PIECE
            yield start, stop
            start = stop
        yield start, line_end
        start = line_end


def _choose_window(
    pieces: Sequence[tuple[int, int]], term_sets: Sequence[set[str]], max_chars: int
) -> range:
    """Return the best range of pieces that fits.

    The best range has the most different words of the query, and after that the most words of it.
    Of equal ranges the last one is taken: it begins with the words of the question, and goes on
    with the text about them. Remaining room is used for the text before.
    """

    def size(first: int, last: int) -> int:
        return pieces[last][1] - pieces[first][0]

    best, best_rank = range(1), (0, 0)
    word_counts: Counter[str] = Counter()
    last = 0
    for first in range(len(pieces)):
        while last < len(pieces) and (last == first or size(first, last) <= max_chars):
            word_counts.update(term_sets[last])
            last += 1
        if (rank := (len(word_counts), word_counts.total())) >= best_rank and (
            word_counts or not first
        ):
            best, best_rank = range(first, last), rank
        word_counts -= Counter(term_sets[first])  # this also removes words with the count 0
    first = best.start
    while first and size(first - 1, best.stop - 1) <= max_chars:
        first -= 1
    return range(first, best.stop)


# --- the ranking --------------------------------------------------------------------------------

_PASSAGES: Final = 240
_FILES: Final = 1_000
"""The best passages and files that are ranked. A choice: far more than any answer shows."""

_REPEATED_FILE_WEIGHT: Final = 0.5
"""The weight of a file's second passage. The third has its square, and so on. A file with several
matches is more likely to be about the question. Chosen with the other weights
(docs/knowledge-base.md)."""

_PASSAGE_WEIGHTS: Final = "bm25(passage_words, 2, 1)"
_FILE_WEIGHTS: Final = (
    ("file_words", "2 * bm25(file_words)"),
    ("file_names", "0.8 * bm25(file_names, 1, 1, 0) + 0.4 * bm25(file_names, 0, 0, 1)"),
)
"""The weights of the indexes: the heading and text of a passage, all words of a file, its title and
path, and its headings."""

_SMALL: Final = 2_000
"""Passages of a small knowledge base, in which the rarity of words is counted here."""


_CANDIDATES: Final = 1_000
"""Words that are compared with an unknown one."""


class ScoredPassage(NamedTuple):
    """A passage with its score and its file."""

    passage: int
    score: float
    file: int
    path: str


_File = tuple[str, int]
"""The path and the number of a file."""


class PassageRanking:
    """The ranking for one question, in one corpus, or in all if ``corpus`` is None."""

    def __init__(self, database: Database, question: str, corpus: int | None) -> None:
        self._database = database
        self._corpus = () if corpus is None else (corpus,)
        # SQLite would begin with the index on the corpus, and then search the full-text index once
        # for each file. CROSS JOIN makes it join the tables in the written order, and + keeps it
        # from using an index for this condition.
        self._paths = "AND +corpus = ?" if self._corpus else ""
        self.query = build_query(question, self._count, self._near)

    def best(self, limit: int) -> list[ScoredPassage]:
        """Return the best passage of each of the best files, with the file's score.

        After them come further passages, and last the passages of files with the same bytes as one
        of the files.
        """
        rows = self._list_passages()
        of_file: dict[_File, list[ScoredPassage]] = {}
        for row in rows:
            of_file.setdefault((row.path, row.file), []).append(row)
        scores = {
            file: sum(row.score * _REPEATED_FILE_WEIGHT**n for n, row in enumerate(file_rows))
            for file, file_rows in of_file.items()
        }
        for file, score in self._iter_files():
            scores[file] = scores.get(file, 0.0) + score
        first: dict[_File, ScoredPassage] = {}
        copies: dict[_File, ScoredPassage] = {}
        digests: set[bytes] = set()
        for file in sorted(scores, key=lambda file: (-scores[file], file)):
            if len(first) == limit:
                break
            digest = self._database.fetch_one("SELECT hash FROM file WHERE id=?", file[1])[0]
            best = of_file[file][0] if file in of_file else self._find_passage(*file)
            (copies if digest in digests else first)[file] = best._replace(score=scores[file])
            digests.add(digest)
        shown = {row.passage for row in first.values()}
        further = [r for r in rows if r.passage not in shown and (r.path, r.file) not in copies]
        placed = [*first.values(), *further[: limit - len(first)], *copies.values()][:limit]
        lowest = math.inf  # a copy has the score of its original, but comes after all others
        for number, row in enumerate(placed):
            lowest = min(lowest, row.score)
            placed[number] = row._replace(score=lowest)
        return placed

    def _list_passages(self) -> list[ScoredPassage]:
        """Return the best passages. Equal ones are in the order of their files."""
        scores = self._score_rows("passage_words", _PASSAGE_WEIGHTS, _PASSAGES)
        query = (
            "SELECT passage.id, file.id, path, start FROM passage CROSS JOIN file "
            f"ON file.id = file WHERE passage.id IN ({', '.join(map(str, scores))}) {self._paths}"
        )
        rows = self._database.rows(query, *self._corpus)
        placed = sorted(rows, key=lambda row: (-scores[row[0]], row[2], row[3]))
        return [
            ScoredPassage(number, scores[number], file, path) for number, file, path, _ in placed
        ]

    def _iter_files(self) -> Iterator[tuple[_File, float]]:
        """Yield the best files by their words and by their names, with scores.

        A file may come twice.
        """
        for table, formula in _FILE_WEIGHTS:
            scores = self._score_rows(table, formula, _FILES)
            ids = ", ".join(map(str, scores))
            query = f"SELECT path, id FROM file WHERE id IN ({ids}) {self._paths}"
            for path, number in self._database.rows(query, *self._corpus):
                yield (path, number), scores[number]

    def _find_passage(self, path: str, file: int) -> ScoredPassage:
        """Return the best passage of a file without a top passage, or its first."""
        first, last = self._database.fetch_one(
            "SELECT min(id), max(id) FROM passage WHERE file=?", file
        )
        query = (
            f"SELECT rowid FROM passage_words WHERE passage_words MATCH ? "
            f"AND rowid BETWEEN {first} AND {last} ORDER BY {_PASSAGE_WEIGHTS}, rowid LIMIT 1"
        )
        row = next(self._database.rows(query, self.query.expression), (first,))
        return ScoredPassage(row[0], 0.0, file, path)

    # --- the indexes ---

    def _score_rows(self, table: str, formula: str, limit: int) -> dict[int, float]:
        """Return the scores of the best rows of an index.

        For a small knowledge base these are all rows, of any corpus.
        """
        query = "SELECT count(*), count(DISTINCT file) FROM (SELECT file FROM passage LIMIT ?)"
        passages, files = self._database.fetch_one(query, _SMALL + 1)
        if passages <= _SMALL:
            return self._score_few(table, formula, passages if table == "passage_words" else files)
        query = (
            f"SELECT {table}.rowid, -({formula}) AS score {self._make_condition(table)} "
            f"ORDER BY score DESC LIMIT {limit}"
        )
        return dict(self._database.rows(query, self.query.expression, *self._corpus))

    def _score_few(self, table: str, formula: str, rows: int) -> dict[int, float]:
        """Return scores with the rarity of words by Lucene's formula.

        In FTS5 a word that half of the rows have counts nothing. In a few documents most words are
        as frequent as this.
        """
        scores: dict[int, float] = {}
        for clause in self.query.clauses:
            query = f"SELECT rowid, -({formula}) FROM {table} WHERE {table} MATCH ?"
            scores_by_row = dict(self._database.rows(query, clause))
            if len(scores_by_row) > rows:
                raise sqlite3.DatabaseError(DAMAGED)
            rarity = rarity_factor(len(scores_by_row), rows)
            for number, score in scores_by_row.items():
                scores[number] = scores.get(number, 0.0) + rarity * score
        return scores

    def _make_condition(self, table: str) -> str:
        if not self._corpus:
            return f"FROM {table} WHERE {table} MATCH ?"
        file = f"{table}.rowid"
        if table == "passage_words":
            file = "(SELECT file FROM passage WHERE passage.id = passage_words.rowid)"
        return (
            f"FROM {table} CROSS JOIN file ON file.id = {file} WHERE {table} MATCH ? {self._paths}"
        )

    def _near(self, term: str) -> list[str]:
        """Return existing words that share groups of three letters with an unknown one."""
        grams = split_trigrams(term)
        rows = ["SELECT rowid AS id FROM word_letters WHERE word_letters MATCH ?"] * len(grams)
        query = (
            f"SELECT term FROM (SELECT id, count(*) AS shared FROM ({' UNION ALL '.join(rows)}) "
            "GROUP BY id HAVING shared >= ?) JOIN word USING (id) "
            f"ORDER BY 1.0 * shared / (length(term) + ?) DESC, term LIMIT {_CANDIDATES}"
        )
        min_shared = max(1, len(grams) // 3)
        quoted = (f'"{gram}"' for gram in grams)
        return find_nearest(
            term, (r[0] for r in self._database.rows(query, *quoted, min_shared, len(term)))
        )

    def _count(self, term: QueryTerm) -> int:
        """Return the number of files whose words or names match, up to `RARE_COUNT`."""
        count = 0
        for table, _ in _FILE_WEIGHTS:
            query = (
                f"SELECT count(*) FROM (SELECT 1 {self._make_condition(table)} LIMIT {RARE_COUNT})"
            )
            count = max(count, next(self._database.rows(query, term.expression, *self._corpus))[0])
        return count
