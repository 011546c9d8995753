"""The file of a knowledge base: SQLite with full-text indexes (FTS5).

A corpus has files. A file has its compressed text, and passages, which are ranges of the text.

There are three indexes: the words of each passage, the words of each file, and the words of its
names (title, path, headings). The first finds an answer within a file, the others find the file.
They are separate because the rarity of a word differs between them: a file's path has a word once,
and not once in each passage. The indexes are contentless: they store words under a number, and no
text. To remove an entry, its words are computed again from the text, so they must be the same. So a
change to the computation of words, or to the indexed texts, needs a new version of the format.

A fourth index has the letters of each word, in threes. It finds similar words without reading all
words. A word stays as long as a file has its stem.
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
from mlx_tools.plugins.kb.documents import Document
from mlx_tools.plugins.kb.passages import HEADING_SEPARATOR, SECTION_SEPARATOR
from mlx_tools.plugins.kb.query import LETTERS, index_text
from mlx_tools.store import DAMAGED, FileFormat, SqliteFile

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
_HEADING_SPLIT: Final = re.compile(f"{HEADING_SEPARATOR}|{SECTION_SEPARATOR}")


class FileRow(NamedTuple):
    """A file without its text."""

    path: str
    size: int
    stamp: str
    """A text that changes when the file is written (`make_stamp`)."""
    hash: bytes
    reader: str
    """The reader of the file."""
    problem: str = ""
    """The reason why it has no text. Empty if it has one."""


class Database(SqliteFile):
    """An open knowledge base. ``create`` is True to create a missing file."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self._words_in: set[str] = set()
        self._words_out: set[str] = set()
        super().__init__(path, _FORMAT, create=create)

    # --- reading ---

    def rows(self, query: str, *values: object) -> Iterator[Any]:
        """Yield the rows of a query."""
        yield from self.sql.execute(query, values)

    def corpus(self, name: str) -> int | None:
        """Return the number of the corpus with this name."""
        row = next(self.rows("SELECT id FROM corpus WHERE name=?", name), None)
        return None if row is None else int(row[0])

    def files(self, corpus: int) -> list[FileRow]:
        """Return the files of a corpus."""
        query = "SELECT path, size, stamp, hash, reader, problem FROM file WHERE corpus=?"
        return [FileRow(*row) for row in self.rows(query, corpus)]

    def text(self, file: int) -> str:
        """Return the text of a file."""
        return _unpack(self.fetch_one("SELECT text FROM file WHERE id=?", file)[0])

    # --- writing, within a transaction ---

    def make_corpus(self, name: str, now: str) -> int:
        """Return the number of the corpus with this name; create it if it is missing."""
        self.sql.execute(
            "INSERT INTO corpus(name, changed) VALUES(?, ?) "
            "ON CONFLICT(name) DO UPDATE SET changed=excluded.changed",
            (name, now),
        )
        return int(self.fetch_one("SELECT id FROM corpus WHERE name=?", name)[0])

    def save_file(
        self, corpus: int, row: FileRow, display_path: str, document: Document | None
    ) -> int:
        """Save a file in place of the one with its path, and return its number.

        ``display_path`` is its path from the added folder on, whose words are indexed.
        """
        self.drop(corpus, row.path)
        stored = document or Document("", "", ())
        pages = " ".join(map(str, stored.pages))
        file = self.sql.execute(
            "INSERT INTO file(corpus, shown, path, size, stamp, hash, reader, problem, title, "
            "pages, text) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (corpus, display_path, *row, stored.title, pages, zlib.compress(stored.text.encode())),
        ).lastrowid
        assert file is not None
        self.sql.executemany(
            "INSERT INTO passage(file, start, stop, line, end_line, heading) "
            "VALUES(?, ?, ?, ?, ?, ?)",
            [(file, *passage) for passage in stored.passages],
        )
        self._index(file, stored.title, display_path, stored.text)
        return file

    def update_stamp(self, corpus: int, path: str, stamp: str) -> None:
        """Record that a file has another stamp and the same content."""
        self.sql.execute("UPDATE file SET stamp=? WHERE corpus=? AND path=?", (stamp, corpus, path))

    def drop(self, corpus: int, path: str) -> None:
        """Remove a file, if it exists."""
        query = "SELECT id, title, shown, text FROM file WHERE corpus=? AND path=?"
        row = self.sql.execute(query, (corpus, path)).fetchone()
        if row is not None:
            file, title, shown, text = row
            self._index(file, title, shown, _unpack(text), delete=True)
            self.sql.execute("DELETE FROM passage WHERE file=?", (file,))
            self.sql.execute("DELETE FROM file WHERE id=?", (file,))

    def drop_all(self) -> None:
        """Remove all files at once, which is far quicker than one by one."""
        for table in TABLES:
            self.sql.execute(f"INSERT INTO {table}({table}) VALUES('delete-all')")
        for table in ("passage", "file", "corpus", "word"):
            self.sql.execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours

    def _index(
        self, file: int, title: str, display_path: str, text: str, *, delete: bool = False
    ) -> None:
        """Add the words of a file and of its passages to the indexes, or remove them."""
        query = "SELECT id, start, stop, heading FROM passage WHERE file=? ORDER BY id"
        passages = self.sql.execute(query, (file,)).fetchall()
        if not passages:
            return
        of_passages = [
            (number, index_text(heading), index_text(text[start:stop]))
            for number, start, stop, heading in passages
        ]
        # Their order is not used here, and sorted they take half the space.
        words = sorted(" ".join(words for _, _, words in of_passages).split())
        headings = dict.fromkeys(
            word for *_, heading in passages for word in _HEADING_SPLIT.split(heading)
        )
        names = tuple(map(index_text, (title, display_path, " ".join(headings))))
        self._words("passage_words", of_passages, delete)
        self._words("file_words", [(file, " ".join(words))], delete)
        self._words("file_names", [(file, *names)], delete)
        letter_words = {word for word in (*words, *" ".join(names).split()) if len(word) >= LETTERS}
        (self._words_out if delete else self._words_in).update(letter_words)

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a transaction. At its end update the index of letters."""
        self._words_in, self._words_out = set(), set()
        with super().transaction(write=write) as sql:
            yield sql
            self._letter_words()

    def _letter_words(self) -> None:
        """Add the letters of new words, and remove those of words without a file."""
        add_query = (
            "INSERT INTO word(term) SELECT value FROM json_each(?) WHERE true "
            "ON CONFLICT DO NOTHING RETURNING id, term"
        )
        of_files, of_names = (
            f"SELECT 1 FROM {table} WHERE {table} MATCH '\"' || term || '\"'"  # noqa: S608
            for table in ("file_words", "file_names")
        )
        remove_query = (
            "SELECT id, term FROM word WHERE term IN (SELECT value FROM json_each(?)) "  # noqa: S608
            f"AND NOT EXISTS ({of_files}) AND NOT EXISTS ({of_names})"
        )
        removed_words = self._words_out - self._words_in
        for query, words, delete in (
            (add_query, self._words_in, False),
            (remove_query, removed_words, True),
        ):
            if words:
                rows = list(self.rows(query, json.dumps(sorted(words))))
                self._words("word_letters", rows, delete)
        if removed_words:
            self.sql.executemany("DELETE FROM word WHERE id = ?", [row[:1] for row in rows])

    def _words(self, table: str, rows: Sequence[tuple[object, ...]], delete: bool) -> None:
        names = ["rowid", *_INDEXES.get(table, ("term",))]
        if delete:
            names, rows = [table, *names], [("delete", *row) for row in rows]
        marks = ", ".join("?" * len(names))
        self.sql.executemany(f"INSERT INTO {table}({', '.join(names)}) VALUES({marks})", rows)

    def tidy(self) -> None:
        """Free the space of removed rows, and merge the segments of each index."""
        for table in TABLES:
            self.sql.execute(f"INSERT INTO {table}({table}) VALUES('optimize')")
        self.sql.execute("VACUUM")


def _unpack(packed: Any) -> str:
    try:
        return zlib.decompress(packed).decode()
    except (zlib.error, TypeError, UnicodeDecodeError):
        raise sqlite3.DatabaseError(DAMAGED) from None
