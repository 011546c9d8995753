"""Which passages answer a question best: those of the files that are about it.

A file's score is that of its passages, of all of its words, and of its names, each by BM25 over an
index of its own. The weights were chosen on questions of which others were kept back:
docs/knowledge-base.md.
"""

# ruff: noqa: S608 - what is put into a query here are names of tables, and numbers

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from mlx_tools.toolbox.kb.copies import SeenTexts
from mlx_tools.toolbox.kb.database import DAMAGED, Database
from mlx_tools.toolbox.kb.names import dotted_names, places_of
from mlx_tools.toolbox.kb.query import FEW, query_of
from mlx_tools.toolbox.kb.terms import asked

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

_MOSTLY: Final = 0.5
"""Of a question, where it is mostly a name: then the passage is shown that defines it."""

_SMALL: Final = 2_000
"""Passages of a knowledge base that is small enough to count what each word of a question does."""

_FTS5_LEAST: Final = 1e-6
"""The rarity that FTS5's bm25 takes for a word that half of the rows have, or more."""


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
        self.query = query_of(question, self._count)
        self._names = dotted_names(question)
        self._asked = set(asked(question))
        self._last = 0, ""

    def best(self, limit: int) -> list[tuple[ScoredPassage, float]]:
        """The best passage of each of the best files, with the file's score; then further ones, and
        at last those of files that are copies of these."""
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
        share, most = self._share_of_names(), max(scores.values(), default=0.0)
        for file, row in self._named().items():
            scores[file] = scores.get(file, 0.0) + share * most
            found = of_file.setdefault(file, [])
            if share > _MOSTLY or not found:  # else what matches best says more than a definition
                found.insert(0, row)
        ranked = sorted(scores, key=lambda file: (-scores[file], file))
        told = SeenTexts()
        order, copies = self._apart(ranked, of_file, limit, told)
        shown = {row.passage for row in (*order.values(), *copies.values())}
        further: list[ScoredPassage] = []
        repeated: list[ScoredPassage] = []
        for row in rows:
            if row.passage in shown or (row.path, row.file) in copies:
                continue
            if len(order) + len(further) >= limit:
                break
            (repeated if told.repeats(self._text_of(row)) else further).append(row)
        placed = [(row, scores[file]) for file, row in order.items()]
        lowest = min((score for _, score in placed), default=0.0)
        for row in (*further, *copies.values(), *repeated):
            lowest = min(lowest, row.score)
            placed.append((row, lowest))
        return placed[:limit]

    def _apart(
        self,
        ranked: Iterable[_File],
        of_file: Mapping[_File, list[ScoredPassage]],
        limit: int,
        told: SeenTexts,
    ) -> tuple[dict[_File, ScoredPassage], dict[_File, ScoredPassage]]:
        """The first ``limit`` files that hold different things, and those passed on the way that
        hold, byte by byte, what one of them does, or whose best passage says nearly what another
        did; each with its best passage."""
        digests: set[bytes] = set()
        order: dict[_File, ScoredPassage] = {}
        copies: dict[_File, ScoredPassage] = {}
        for path, file in ranked:
            if len(order) == limit:
                break
            digest = next(self._ask("SELECT hash FROM file WHERE id=?", file))[0]
            rows = of_file.get((path, file))
            best = rows[0] if rows else self._passage_of(path, file)
            # what was found by its name alone may well begin with what many files begin with
            is_copy = digest in digests or (bool(rows) and told.repeats(self._text_of(best)))
            (copies if is_copy else order)[path, file] = best
            digests.add(digest)
        return order, copies

    def _text_of(self, row: ScoredPassage) -> str:
        """The text of a passage. That of the last file is kept: further ones are often of it."""
        start, stop = next(self._ask("SELECT start, stop FROM passage WHERE id=?", row.passage))
        if self._last[0] != row.file:
            self._last = row.file, self._database.text(row.file)[0]
        return self._last[1][start:stop]

    def _passages(self) -> list[ScoredPassage]:
        """The passages that match best, the best first; equal ones in the order of their files."""
        scores = self._scores("passage_words", _OF_PASSAGES, _PASSAGES)
        query = (
            "SELECT passage.id, file.id, path, start FROM passage CROSS JOIN file "
            f"ON file.id = file WHERE passage.id IN ({_list(scores)}) {self._within}"
        )
        rows = self._ask(query, *self._corpus)
        placed = sorted(rows, key=lambda row: (-scores[row[0]], row[2], row[3]))
        return [
            ScoredPassage(number, scores[number], file, path) for number, file, path, _ in placed
        ]

    def _files(self) -> Iterator[tuple[_File, float]]:
        """The files that match best by their words, and by their names, each as path and number,
        and their scores; a file may come twice."""
        for table, formula in _OF_FILES:
            scores = self._scores(table, formula, _FILES)
            query = f"SELECT path, id FROM file WHERE id IN ({_list(scores)}) {self._within}"
            for path, number in self._ask(query, *self._corpus):
                yield (path, number), scores[number]

    def _passage_of(self, path: str, file: int) -> ScoredPassage:
        """The best passage of a file of which none is among the best of all, or its first."""
        first, last = next(self._ask("SELECT min(id), max(id) FROM passage WHERE file=?", file))
        query = (
            f"SELECT rowid FROM passage_words WHERE passage_words MATCH ? "
            f"AND rowid BETWEEN {first} AND {last} ORDER BY {_OF_PASSAGES}, rowid LIMIT 1"
        )
        found = next(self._ask(query, self.query.expression), (first,))
        return ScoredPassage(found[0], 0.0, file, path)

    def _named(self) -> dict[_File, ScoredPassage]:
        """The files that define or document a dotted name of the question, each with the passage
        that does."""
        corpus = self._corpus[0] if self._corpus else None
        places = (
            place for name in self._names for place in places_of(self._database, name, corpus)
        )
        rows: dict[_File, ScoredPassage] = {}
        for path, file, passage in places:
            rows.setdefault((path, file), ScoredPassage(passage, 0.0, file, path))
        return rows

    def _share_of_names(self) -> float:
        """How much of the question its dotted names are: where it asks for one alone, what defines
        it comes before all else."""
        of_names = {term for name in self._names for term in asked(name)}
        return len(of_names & self._asked) / max(len(self._asked), 1)

    # --- the indexes ---

    def _scores(self, table: str, formula: str, most: int) -> dict[int, float]:
        """The best rows of an index, by number, and their scores. Of a small knowledge base they
        are all rows, of whichever corpus."""
        query = "SELECT count(*), count(DISTINCT file) FROM (SELECT file FROM passage LIMIT ?)"
        passages, files = next(self._ask(query, _SMALL + 1))
        if passages <= _SMALL:
            return self._scores_of_few(
                table, formula, passages if table == "passage_words" else files
            )
        query = (
            f"SELECT {table}.rowid, -({formula}) AS score {self._matching(table)} "
            f"ORDER BY score DESC LIMIT {most}"
        )
        return dict(self._ask(query, self.query.expression, *self._corpus))

    def _scores_of_few(self, table: str, formula: str, rows: int) -> dict[int, float]:
        """To FTS5 a word that half of the rows have counts nothing. Of a handful of documents most
        words are such, so that how rare they are is taken here as Lucene takes it."""
        scores: dict[int, float] = {}
        for clause in self.query.clauses:
            query = f"SELECT rowid, -({formula}) FROM {table} WHERE {table} MATCH ?"
            found = dict(self._ask(query, clause))
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
            f"FROM {table} CROSS JOIN file ON file.id = {file} WHERE {table} MATCH ? {self._within}"
        )

    @property
    def _within(self) -> str:
        """The condition of the corpus. SQLite takes an index on it for a good way to begin, and
        then looks into the full-text index once for each file of the corpus: so tables are joined
        in the order in which they stand (``CROSS JOIN``), and no index is used for this (``+``)."""
        return "AND +corpus = ?" if self._corpus else ""

    def _count(self, expression: str) -> int:
        """How many files match, by their words or their names, up to `FEW`."""
        most = 0
        for table, _ in _OF_FILES:
            query = f"SELECT count(*) FROM (SELECT 1 {self._matching(table)} LIMIT {FEW})"
            found: int = next(self._ask(query, expression, *self._corpus))[0]
            most = max(most, found)
        return most

    def _ask(self, query: str, *values: object) -> Iterator[Any]:
        return self._database.rows(query, *values)


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
