"""The full-text indexes of a knowledge base (FTS5).

There are three: the words of each passage, by which an answer is found within a file; those of each
file, and those of its names (title, path, headings), by which files are told apart. How rare a word
is differs between them: a file's path has it once, not once a passage.

They are contentless: each holds words under a number, and no text. To take something out, its words
are made again from the text, so they must come out the same: a change to `terms` or to what is
indexed makes a new format of the file.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Final

from mlx_tools.toolbox.kb.chunks import BETWEEN_HEADINGS
from mlx_tools.toolbox.kb.terms import indexed

_COLUMNS: Final = {
    "passage_words": ("heading", "text"),
    "file_words": ("text",),
    "file_names": ("title", "path", "headings"),
}
TABLES: Final = tuple(_COLUMNS)
INDEXES: Final = "".join(
    f"CREATE VIRTUAL TABLE {table} USING fts5("
    f"{', '.join(columns)}, content='', tokenize='porter ascii');\n"
    for table, columns in _COLUMNS.items()
)
_BETWEEN: Final = re.compile(f" > |{BETWEEN_HEADINGS}")


def change(
    sql: sqlite3.Connection,
    file: int,
    title: str,
    shown: str,
    text: str,
    *,
    delete: bool = False,
) -> None:
    """Puts the words of a file and of its passages, which stand in the table ``passage``, into the
    indexes, or takes them out."""
    passages = sql.execute(
        "SELECT id, start, stop, heading FROM passage WHERE file=? ORDER BY id", (file,)
    ).fetchall()
    if not passages:
        return
    of_passages = [
        (number, indexed(heading), indexed(text[start:stop]))
        for number, start, stop, heading in passages
    ]
    _put(sql, "passage_words", of_passages, delete)
    # Their order means nothing here; sorted, they take half the space.
    words = sorted(" ".join(words for _, _, words in of_passages).split())
    _put(sql, "file_words", [(file, " ".join(words))], delete)
    headings = dict.fromkeys(part for *_, heading in passages for part in _BETWEEN.split(heading))
    names = (indexed(title), indexed(shown), indexed(" ".join(headings)))
    _put(sql, "file_names", [(file, *names)], delete)


def _put(
    sql: sqlite3.Connection, table: str, rows: Sequence[tuple[object, ...]], delete: bool
) -> None:
    names = ["rowid", *_COLUMNS[table]]
    if delete:
        names, rows = [table, *names], [("delete", *row) for row in rows]
    marks = ", ".join("?" * len(names))
    sql.executemany(f"INSERT INTO {table}({', '.join(names)}) VALUES({marks})", rows)


def clear(sql: sqlite3.Connection) -> None:
    """Takes everything out."""
    for table in TABLES:
        sql.execute(f"INSERT INTO {table}({table}) VALUES('delete-all')")


def optimize(sql: sqlite3.Connection) -> None:
    """Joins the pieces that each index has grown."""
    for table in TABLES:
        sql.execute(f"INSERT INTO {table}({table}) VALUES('optimize')")
