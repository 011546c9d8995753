"""The file that a knowledge base is: an SQLite database with a full-text index (FTS5).

A corpus has files, a file has its text (compressed, once) and passages, which are stretches of it.
How it is found: `indexes`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from mlx_tools.errors import KnowledgeBaseError
from mlx_tools.paths import private_dir
from mlx_tools.toolbox.kb.chunks import Passage
from mlx_tools.toolbox.kb.indexes import INDEXES, change, clear, optimize
from mlx_tools.toolbox.kb.problems import translated

FORMAT: Final = 2
APPLICATION: Final = 0x6D6C786B  # "mlxk"
BUSY_SECONDS: Final = 60.0
_SCHEMA: Final = """
CREATE TABLE corpus (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, changed TEXT NOT NULL);
CREATE TABLE file (
  id INTEGER PRIMARY KEY, corpus INTEGER NOT NULL REFERENCES corpus(id), path TEXT NOT NULL,
  shown TEXT NOT NULL, size INTEGER NOT NULL, stamp TEXT NOT NULL, settled INTEGER NOT NULL,
  hash BLOB NOT NULL, reader TEXT NOT NULL, problem TEXT NOT NULL, title TEXT NOT NULL,
  pages TEXT NOT NULL, lines BLOB NOT NULL, text BLOB NOT NULL, UNIQUE (corpus, path)
);
CREATE TABLE passage (
  id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES file(id), start INTEGER NOT NULL,
  stop INTEGER NOT NULL, line INTEGER NOT NULL, end_line INTEGER NOT NULL, heading TEXT NOT NULL
);
CREATE INDEX passage_file ON passage(file);
"""


class FileRow(NamedTuple):
    """What is known of a file without its text."""

    id: int
    path: str
    size: int
    stamp: str
    settled: int
    hash: bytes
    reader: str
    problem: str


DAMAGED: Final = "malformed"
"""As SQLite says it, for what it does not see."""

_ODD_VALUES: Final = (TypeError, ValueError, LookupError, StopIteration)
"""What comes of a value in the file that nobody has put there."""

_FILES: Final = "SELECT id, path, size, stamp, settled, hash, reader, problem FROM file"


class Entry(NamedTuple):
    """A file as it is to be kept. ``shown`` is its path from the folder that was added on, by which
    it is found. With a ``problem`` it has no text."""

    path: str
    shown: str
    size: int
    stamp: str
    settled: bool
    hash: bytes
    reader: str
    problem: str = ""
    title: str = ""
    text: str = ""
    passages: tuple[Passage, ...] = ()
    pages: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()


class Database:
    """An open knowledge base. ``create`` makes the file where there is none, readable by its owner
    alone; ``only_read`` is for whoever writes nothing, and may do so on a disk that lets nobody.

    Everything here raises `KnowledgeBaseError` where SQLite or the disk refuses.
    """

    def __init__(
        self,
        path: Path,
        *,
        create: bool = True,
        only_read: bool = False,
        max_bytes: int | None = None,
    ) -> None:
        self.path = path
        with self.guarded():
            if create:
                private_dir(path.parent)
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(path, flags, 0o600))
            at_rest = only_read and self._is_at_rest()
            self._sql = self._connected("mode=rw")
        try:
            with self.guarded():
                try:
                    self._prepare()
                except sqlite3.OperationalError:
                    if not at_rest:
                        raise
                    self._sql.close()
                    self._sql = self._connected("mode=ro&immutable=1")
                    self._prepare()
                if max_bytes is not None:
                    size = self.one("PRAGMA page_size")[0]
                    self._sql.execute(f"PRAGMA max_page_count={max(max_bytes // size, 1)}")
        except BaseException:
            self.close()
            raise

    def _connected(self, how: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.absolute().as_uri()}?{how}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )

    def _is_at_rest(self) -> bool:
        """Whether all that was written is in the file itself: then it can be read without the two
        beside it, for which a full disk has no room and a read-only one no leave."""
        log = Path(f"{self.path}-wal")
        return not log.exists() or log.stat().st_size == 0

    def _prepare(self) -> None:
        sql = self._sql
        if self.one("PRAGMA application_id")[0] == 0:  # new, or whoever began it was killed
            sql.execute("PRAGMA journal_mode=WAL")
            with self.writing():
                if self.one("SELECT count(*) FROM sqlite_master")[0] == 0:  # nobody was quicker
                    for statement in (_SCHEMA + INDEXES).split(";\n"):
                        sql.execute(statement)
                    sql.execute(f"PRAGMA application_id={APPLICATION}")
                    sql.execute(f"PRAGMA user_version={FORMAT}")
        if self.one("PRAGMA application_id")[0] != APPLICATION:
            raise KnowledgeBaseError(
                f"{self.path} is no knowledge base", hint="move the file away and add again"
            )
        version = self.one("PRAGMA user_version")[0]
        if version != FORMAT:
            raise KnowledgeBaseError(
                f"the knowledge base {self.path} has the format {version}; this program reads "
                f"{FORMAT}",
                hint="use the version of mlx-tools that wrote it, or move it away and add again",
            )

    # --- life ---

    def close(self) -> None:
        """Closes the file. Closing twice is allowed."""
        with contextlib.suppress(sqlite3.Error):
            self._sql.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What SQLite and the system raise, as `KnowledgeBaseError`."""
        try:
            yield
        except sqlite3.Error as error:
            raise translated(self.path, str(error)) from None
        except UnicodeDecodeError:  # SQLite's own words, when they quote what is no text
            raise translated(self.path, DAMAGED) from None
        except OSError as error:
            raise KnowledgeBaseError(
                f"the knowledge base {self.path} cannot be used: {error.strerror}",
                hint="check the folder's permissions and free space",
            ) from None

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: all that is done within is kept, or nothing. Values that nobody has put
        into the file are damage, as in `reading`."""
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                self._sql.execute("ROLLBACK")
            if isinstance(error, _ODD_VALUES):
                raise sqlite3.DatabaseError(DAMAGED) from error
            raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One state of the file, whoever adds to it meanwhile. Values that nobody has put into it
        are damage, told as SQLite tells of what it sees itself."""
        self._sql.execute("BEGIN")
        try:
            yield
        except _ODD_VALUES as error:
            raise sqlite3.DatabaseError(DAMAGED) from error
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._sql.execute("ROLLBACK")

    def stop_where(self, over: Callable[[], bool] | None) -> None:
        """Has what SQLite does from now on end as *interrupted* once ``over`` is true."""
        self._sql.set_progress_handler(over, 20_000 if over else 0)

    # --- reading ---

    def rows(self, query: str, *values: object) -> Iterator[tuple[object, ...]]:
        """The rows that a query gives."""
        yield from self._sql.execute(query, values)

    def one(self, query: str, *values: object) -> tuple[Any, ...]:
        """The one row that a query gives in a sound file."""
        found: tuple[Any, ...] | None = self._sql.execute(query, values).fetchone()
        if found is None:
            raise sqlite3.DatabaseError(DAMAGED)
        return found

    def corpus(self, name: str) -> int | None:
        """The number of the corpus with this name."""
        found = self._sql.execute("SELECT id FROM corpus WHERE name=?", (name,)).fetchone()
        return None if found is None else int(found[0])

    def files(self, corpus: int) -> Iterator[FileRow]:
        """The files of a corpus."""
        for row in self._sql.execute(f"{_FILES} WHERE corpus=?", (corpus,)):
            yield FileRow(*row)

    def file(self, corpus: int, path: str) -> FileRow | None:
        """The file of a corpus with this path."""
        query = f"{_FILES} WHERE corpus=? AND path=?"
        row = self._sql.execute(query, (corpus, path)).fetchone()
        return None if row is None else FileRow(*row)

    def text(self, file: int) -> tuple[str, list[int]]:
        """The text of a file, and where it is not the file as it stands, the lines of the file in
        which the lines of the text begin."""
        query = "SELECT text, lines FROM file WHERE id=?"
        text, lines = self.one(query, file)
        return unpacked(text), [int(line) for line in unpacked(lines).split()]

    # --- writing, within a transaction ---

    def make_corpus(self, name: str, now: str) -> int:
        """The number of the corpus with this name, which is made where there is none."""
        self._sql.execute(
            "INSERT INTO corpus(name, changed) VALUES(?, ?) "
            "ON CONFLICT(name) DO UPDATE SET changed=excluded.changed",
            (name, now),
        )
        return int(self.one("SELECT id FROM corpus WHERE name=?", name)[0])

    def put(self, corpus: int, entry: Entry) -> None:
        """Keeps a file in place of what its path had before."""
        self.drop(corpus, entry.path)
        pages = " ".join(map(str, entry.pages))
        lines = _packed(" ".join(map(str, entry.lines)))
        file = self._sql.execute(
            "INSERT INTO file(corpus, path, shown, size, stamp, settled, hash, reader, problem, "
            "title, pages, lines, text) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (corpus, *entry[:9], pages, lines, _packed(entry.text)),
        ).lastrowid
        for one in entry.passages:
            self._sql.execute(
                "INSERT INTO passage(file, start, stop, line, end_line, heading) "
                "VALUES(?, ?, ?, ?, ?, ?)",
                (file, one.start, one.end, one.line, one.end_line, one.heading),
            )
        if file is not None:
            change(self._sql, file, entry.title, entry.shown, entry.text)

    def seen(self, file: int, stamp: str, settled: bool) -> None:
        """Notes that a file has another stamp, and what it holds is the same."""
        self._sql.execute(
            "UPDATE file SET stamp=?, settled=? WHERE id=?", (stamp, int(settled), file)
        )

    def drop(self, corpus: int, path: str) -> None:
        """Removes a file, if it is there."""
        row = self._sql.execute(
            "SELECT id, shown, title, text FROM file WHERE corpus=? AND path=?", (corpus, path)
        ).fetchone()
        if row is None:
            return
        file, shown, title, text = row[0], row[1], row[2], unpacked(row[3])
        change(self._sql, file, title, shown, text, delete=True)
        self._sql.execute("DELETE FROM passage WHERE file=?", (file,))
        self._sql.execute("DELETE FROM file WHERE id=?", (file,))

    def drop_corpus(self, corpus: int) -> None:
        """Removes a corpus that has no files any more."""
        self._sql.execute("DELETE FROM corpus WHERE id=?", (corpus,))

    def drop_all(self) -> int:
        """Removes all there is, and returns how many files had text: at once, where to take out
        file by file takes as long as to put them in."""
        removed: int = self.one("SELECT count(*) FROM file WHERE problem = ''")[0]
        clear(self._sql)
        self._sql.execute("DELETE FROM passage")
        self._sql.execute("DELETE FROM file")
        self._sql.execute("DELETE FROM corpus")
        return removed

    def keep_others(self, corpus: int, tell: Callable[[int, int, str], None]) -> int:
        """Removes a corpus and indexes anew what stays, and returns how many files with text it
        had. ``tell`` is told after each file that stays how many are done, of how many, and its
        path."""
        sql = self._sql
        query = "SELECT count(*) FROM file WHERE corpus=? AND problem = ''"
        removed: int = self.one(query, corpus)[0]
        clear(sql)
        sql.execute(
            "DELETE FROM passage WHERE file IN (SELECT id FROM file WHERE corpus=?)", (corpus,)
        )
        sql.execute("DELETE FROM file WHERE corpus=?", (corpus,))
        self.drop_corpus(corpus)
        left = sql.execute("SELECT id, title, shown, path FROM file WHERE problem = ''").fetchall()
        for done, (file, title, shown, path) in enumerate(left, start=1):
            change(sql, file, title, shown, self.text(file)[0])
            tell(done, len(left), path)
        return removed

    def tidy(self) -> None:
        """Gives back what was removed, and joins what is left of the index."""
        optimize(self._sql)
        self._sql.execute("VACUUM")


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode(), 6)


def unpacked(packed: object) -> str:
    """The text that `Database.put` packed. Raises sqlite3.Error for what it did not."""
    try:
        return zlib.decompress(packed).decode()  # type: ignore[arg-type]
    except (zlib.error, TypeError, UnicodeDecodeError):
        raise sqlite3.DatabaseError(DAMAGED) from None
