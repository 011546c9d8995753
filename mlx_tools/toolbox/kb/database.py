"""What a knowledge base keeps: an SQLite file with full-text indexes (FTS5).

A corpus has files, a file has its text (compressed, once) and passages, which are stretches of it.

There are three indexes: the words of each passage, by which an answer is found within a file; those
of each file, and those of its names (title, path, headings), by which files are told apart. How
rare a word is differs between them: a file's path has it once, not once a passage. They are
contentless: each holds words under a number, and no text. To take something out, its words are made
again from the text, so they must come out the same: a change to how words are made, or to what is
indexed, makes a new version of the format.

A fourth holds the letters, in threes, of each word there is: what is spelled much like a word is
found by it without a walk through all of them. A word is kept as long as a file has its stem.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from mlx_tools.errors import KnowledgeBaseError
from mlx_tools.store import DAMAGED, FileFormat, SqliteFile
from mlx_tools.toolbox.kb.documents import Document
from mlx_tools.toolbox.kb.passages import BETWEEN_HEADINGS, WITHIN
from mlx_tools.toolbox.kb.query import LETTERS, index_text

_INDEXES: Final = {
    "passage_words": ("heading", "text"),
    "file_words": ("text",),
    "file_names": ("title", "path", "headings"),
}
TABLES: Final = (*_INDEXES, "word_letters")

_SCHEMA: Final = """
CREATE TABLE corpus (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, changed TEXT NOT NULL);
CREATE TABLE file (
  id INTEGER PRIMARY KEY, corpus INTEGER NOT NULL REFERENCES corpus(id), path TEXT NOT NULL,
  shown TEXT NOT NULL, size INTEGER NOT NULL, stamp TEXT NOT NULL, hash BLOB NOT NULL,
  reader TEXT NOT NULL, problem TEXT NOT NULL, title TEXT NOT NULL,
  pages TEXT NOT NULL, text BLOB NOT NULL, UNIQUE (corpus, path)
);
CREATE TABLE passage (
  id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES file(id), start INTEGER NOT NULL,
  stop INTEGER NOT NULL, line INTEGER NOT NULL, end_line INTEGER NOT NULL, heading TEXT NOT NULL
);
CREATE INDEX passage_file ON passage(file);
CREATE TABLE word (id INTEGER PRIMARY KEY, term TEXT NOT NULL UNIQUE);
CREATE VIRTUAL TABLE word_letters USING fts5(
  term, content='', columnsize=0, detail='none', tokenize='trigram'
);
""" + "".join(
    f"CREATE VIRTUAL TABLE {table} USING fts5("
    f"{', '.join(columns)}, content='', tokenize='porter ascii');\n"
    for table, columns in _INDEXES.items()
)
_FORMAT: Final = FileFormat("knowledge base", KnowledgeBaseError, 0x6D6C786B, 5, _SCHEMA)
_BETWEEN: Final = re.compile(f"{WITHIN}|{BETWEEN_HEADINGS}")


class FileRow(NamedTuple):
    """What is known of a file without its text. ``stamp`` changes when it is written, ``reader`` is
    what read it; with a ``problem`` it has no text."""

    path: str
    size: int
    stamp: str
    hash: bytes
    reader: str
    problem: str = ""


class Database(SqliteFile):
    """An open knowledge base; ``create`` makes the file where there is none."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self._words_in: set[str] = set()
        self._words_out: set[str] = set()
        super().__init__(path, _FORMAT, create=create)

    # --- reading ---

    def rows(self, query: str, *values: object) -> Iterator[Any]:
        """The rows that a query gives."""
        yield from self.sql.execute(query, values)

    def corpus(self, name: str) -> int | None:
        """The number of the corpus with this name."""
        found = next(self.rows("SELECT id FROM corpus WHERE name=?", name), None)
        return None if found is None else int(found[0])

    def files(self, corpus: int) -> list[FileRow]:
        """The files of a corpus."""
        query = "SELECT path, size, stamp, hash, reader, problem FROM file WHERE corpus=?"
        return [FileRow(*row) for row in self.rows(query, corpus)]

    def text(self, file: int) -> str:
        """The text of a file."""
        return _unpacked(self.one("SELECT text FROM file WHERE id=?", file)[0])

    # --- writing, within a transaction ---

    def make_corpus(self, name: str, now: str) -> int:
        """The number of the corpus with this name, which is made where there is none."""
        self.sql.execute(
            "INSERT INTO corpus(name, changed) VALUES(?, ?) "
            "ON CONFLICT(name) DO UPDATE SET changed=excluded.changed",
            (name, now),
        )
        return int(self.one("SELECT id FROM corpus WHERE name=?", name)[0])

    def put(self, corpus: int, row: FileRow, display_path: str, document: Document | None) -> int:
        """Keeps a file in place of what its path had before; returns its number. ``display_path``
        is its path from the folder that was added on, by which it is found."""
        self.drop(corpus, row.path)
        kept = document or Document("", "", ())
        pages = " ".join(map(str, kept.pages))
        file = self.sql.execute(
            "INSERT INTO file(corpus, shown, path, size, stamp, hash, reader, problem, title, "
            "pages, text) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (corpus, display_path, *row, kept.title, pages, zlib.compress(kept.text.encode())),
        ).lastrowid
        assert file is not None
        self.sql.executemany(
            "INSERT INTO passage(file, start, stop, line, end_line, heading) "
            "VALUES(?, ?, ?, ?, ?, ?)",
            [(file, *one) for one in kept.passages],
        )
        self._index(file, kept.title, display_path, kept.text)
        return file

    def seen(self, corpus: int, path: str, stamp: str) -> None:
        """Notes that a file has another stamp, and what it holds is the same."""
        self.sql.execute("UPDATE file SET stamp=? WHERE corpus=? AND path=?", (stamp, corpus, path))

    def drop(self, corpus: int, path: str) -> None:
        """Removes a file, if it is there."""
        query = "SELECT id, title, shown, text FROM file WHERE corpus=? AND path=?"
        row = self.sql.execute(query, (corpus, path)).fetchone()
        if row is not None:
            file, title, shown, text = row
            self._index(file, title, shown, _unpacked(text), delete=True)
            self.sql.execute("DELETE FROM passage WHERE file=?", (file,))
            self.sql.execute("DELETE FROM file WHERE id=?", (file,))

    def drop_all(self) -> None:
        """Removes all there is: at once, where to take out file by file takes as long as to put
        them in."""
        for table in TABLES:
            self.sql.execute(f"INSERT INTO {table}({table}) VALUES('delete-all')")
        for table in ("passage", "file", "corpus", "word"):
            self.sql.execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours

    def _index(
        self, file: int, title: str, display_path: str, text: str, *, delete: bool = False
    ) -> None:
        """Puts the words of a file and of its passages into the indexes, or takes them out."""
        query = "SELECT id, start, stop, heading FROM passage WHERE file=? ORDER BY id"
        passages = self.sql.execute(query, (file,)).fetchall()
        if not passages:
            return
        of_passages = [
            (number, index_text(heading), index_text(text[start:stop]))
            for number, start, stop, heading in passages
        ]
        # Their order means nothing here; sorted, they take half the space.
        words = sorted(" ".join(words for _, _, words in of_passages).split())
        headings = dict.fromkeys(one for *_, heading in passages for one in _BETWEEN.split(heading))
        names = tuple(map(index_text, (title, display_path, " ".join(headings))))
        self._words("passage_words", of_passages, delete)
        self._words("file_words", [(file, " ".join(words))], delete)
        self._words("file_names", [(file, *names)], delete)
        known = {one for one in (*words, *" ".join(names).split()) if len(one) >= LETTERS}
        (self._words_out if delete else self._words_in).update(known)

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """As that of any such file; at its end all words that it brought or took are looked at."""
        self._words_in, self._words_out = set(), set()
        with super().transaction(write=write) as sql:
            yield sql
            self._letter_words()

    def _letter_words(self) -> None:
        """Puts in the letters of words that are new, and takes out those that no file has now."""
        new = (
            "INSERT INTO word(term) SELECT value FROM json_each(?) WHERE true "
            "ON CONFLICT DO NOTHING RETURNING id, term"
        )
        of_files, of_names = (
            f"SELECT 1 FROM {table} WHERE {table} MATCH '\"' || term || '\"'"  # noqa: S608
            for table in ("file_words", "file_names")
        )
        gone = (
            "SELECT id, term FROM word WHERE term IN (SELECT value FROM json_each(?)) "  # noqa: S608
            f"AND NOT EXISTS ({of_files}) AND NOT EXISTS ({of_names})"
        )
        taken = self._words_out - self._words_in
        for query, words, delete in ((new, self._words_in, False), (gone, taken, True)):
            if words:
                rows = list(self.rows(query, json.dumps(sorted(words))))
                self._words("word_letters", rows, delete)
        if taken:
            self.sql.executemany("DELETE FROM word WHERE id = ?", [row[:1] for row in rows])

    def _words(self, table: str, rows: Sequence[tuple[object, ...]], delete: bool) -> None:
        names = ["rowid", *_INDEXES.get(table, ("term",))]
        if delete:
            names, rows = [table, *names], [("delete", *row) for row in rows]
        marks = ", ".join("?" * len(names))
        self.sql.executemany(f"INSERT INTO {table}({', '.join(names)}) VALUES({marks})", rows)

    def tidy(self) -> None:
        """Gives back what was removed, and joins the pieces that each index has grown."""
        for table in TABLES:
            self.sql.execute(f"INSERT INTO {table}({table}) VALUES('optimize')")
        self.sql.execute("VACUUM")


def _unpacked(packed: Any) -> str:
    try:
        return zlib.decompress(packed).decode()
    except (zlib.error, TypeError, UnicodeDecodeError):
        raise sqlite3.DatabaseError(DAMAGED) from None
