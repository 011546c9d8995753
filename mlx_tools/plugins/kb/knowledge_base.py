"""A knowledge base: corpora of files that can be searched with plain words.

Only new and changed files are read. They are written in batches, each in a transaction. If the
process is killed, only its current batch is lost, and a later import continues from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from mlx_tools.errors import (
    KnowledgeBaseError,
    UsageError,
    require_instance,
    require_items,
    require_path,
    require_text,
    translate_os_error,
)
from mlx_tools.paths import expand_user, knowledge_base_file
from mlx_tools.plugins.kb.database import Database, FileRow
from mlx_tools.plugins.kb.documents import (
    SNIFFED,
    Document,
    UnreadableFile,
    find_limit,
    find_reader,
    is_binary,
    read_document,
)
from mlx_tools.plugins.kb.search import SNIPPET_CHARS, Hit, search
from mlx_tools.plugins.kb.walk import MAX_FILES, WalkedFile, WalkStart, make_stamp, walk_files

DEFAULT_CORPUS: Final = "default"
DEFAULT_LIMIT: Final = 5
MAX_LIMIT: Final = 100
BATCH_FILES: Final = 100
BATCH_CHARS: Final = 2_000_000
"""Limits of a batch. A choice: a killed process loses more with larger batches, and smaller ones
are committed more often."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)

OnProgress = Callable[[int, int, str], None]
"""Called after each file with the number of finished files, the total, and its path."""


class Corpus(Struct, frozen=True):
    """The figures of a corpus."""

    name: str
    files: int
    """The number of files with text."""
    passages: int
    size: int
    """The bytes of these files."""
    unreadable: int
    """The number of files without readable text."""
    changed_at: str = msgspec.field(name="changed")
    """The time of the last change (ISO 8601, UTC)."""


class SkippedFile(Struct, frozen=True):
    """A file or a folder that was not added, and why."""

    path: str
    reason: str


class AddReport(Struct, frozen=True):
    """The result of an import, in numbers of files with text."""

    corpus: str
    added_files: int = msgspec.field(name="added")
    changed_files: int = msgspec.field(name="changed")
    unchanged: int
    removed: int
    skipped: tuple[SkippedFile, ...]
    """All files without readable text, of this import or before, with the reasons."""


class KnowledgeBase:
    """Corpora in one SQLite file, which is created when the first file is added.

    The file is only open during a method, so several threads and processes may use it.

    Args:
        path: the file, by default the user's own.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self.path = knowledge_base_file()
        else:
            self.path = Path(require_path("path", path, "give the file of a knowledge base"))

    def add(
        self,
        paths: Iterable[str | os.PathLike[str]],
        corpus: str = DEFAULT_CORPUS,
        *,
        on_progress: OnProgress = lambda done, total, path: None,
    ) -> AddReport:
        """Add files, and all files with text below folders.

        Only new and changed files are read. Files of these folders that no longer exist are
        removed. Hidden files and links below a folder are ignored.

        Raises:
            UsageError: a path is no file or folder, or the corpus's name is not valid.
            KnowledgeBaseError: the file cannot be written. Finished batches stay.
        """
        hint = "use 1 to 64 of A-Z a-z 0-9 _ . -"
        if not _NAME.fullmatch(require_text("corpus", corpus, hint)):
            raise UsageError(f"{corpus[:100]!r} cannot name a corpus", hint=hint)
        hint = "give a list of files and folders"
        starts = [
            WalkStart.from_path(require_path("paths", path, hint))
            for path in require_items("paths", paths, hint)
        ]
        if not starts:
            raise UsageError("there is nothing to add", hint="name files or folders")
        with Database(self.path) as database, database.translate_errors():
            return _Import(database, corpus, starts, on_progress).run()

    def search(
        self,
        question: str,
        corpus: str | None = None,
        limit: int = DEFAULT_LIMIT,
        *,
        snippet_chars: int = SNIPPET_CHARS,
    ) -> list[Hit]:
        """Return the passages that best answer a question in plain words.

        Args:
            question: any text.
            corpus: the corpus to search, None for all.
            limit: the maximum of passages.
            snippet_chars: the maximum of characters of a snippet.

        Raises:
            UsageError: there is no such corpus.
            KnowledgeBaseError: the file cannot be read.
        """
        require_text("question", question, "give a text")
        if corpus is not None:
            require_text("corpus", corpus, "give its name")
        require_instance("limit", limit, int, "give the most passages")
        if not self._exists():
            if corpus is not None:
                raise self._make_unknown_error(corpus)
            return []
        with Database(self.path, create=False) as database, database.translate_errors():
            number = None if corpus is None else self._find_number(database, corpus)
            return search(database, question, number, min(limit, MAX_LIMIT), snippet_chars)

    def corpora(self) -> list[Corpus]:
        """Return the corpora by name. Raises `KnowledgeBaseError`."""
        if not self._exists():
            return []
        query = (
            "SELECT corpus.name, count(CASE WHEN file.problem = '' THEN 1 END), "
            "(SELECT count(*) FROM passage JOIN file AS f ON f.id = passage.file "
            " WHERE f.corpus = corpus.id), "
            "coalesce(sum(CASE WHEN file.problem = '' THEN file.size END), 0), "
            "count(CASE WHEN file.problem != '' THEN 1 END), corpus.changed "
            "FROM corpus LEFT JOIN file ON file.corpus = corpus.id GROUP BY corpus.id "
            "ORDER BY corpus.name"
        )
        with Database(self.path, create=False) as database, database.translate_errors():
            return [Corpus(*row) for row in database.rows(query)]

    def forget(self, path: str | os.PathLike[str], *, dry_run: bool = False) -> list[str]:
        """Remove a file, or all files below a folder, and return their paths, sorted.

        With ``dry_run`` nothing is removed. Files on disk stay, and may be gone already.

        Raises:
            UsageError: the knowledge base has no file at or below the path.
            KnowledgeBaseError: the file cannot be written.
        """
        named_path = expand_user(path)
        # A file that is gone, or became a link, has its old path in the database.
        paths = {str(named_path.absolute()), str(named_path.resolve())}
        removed: set[str] = set()
        if self._exists():
            with (
                Database(self.path, create=False) as database,
                database.translate_errors(),
                database.transaction(write=True),
            ):
                for (number,) in list(database.rows("SELECT id FROM corpus")):
                    for row in database.files(number):
                        if paths & {row.path, *map(str, Path(row.path).parents)}:
                            removed.add(row.path)
                            if not dry_run:
                                database.drop(number, row.path)
        if not removed:
            raise UsageError(f"nothing of {path} is in the knowledge base")
        return sorted(removed)

    def remove(
        self, corpus: str, *, on_progress: OnProgress = lambda done, total, path: None
    ) -> int:
        """Remove a corpus, and return its number of files with text.

        Files on disk stay.

        Raises:
            UsageError: there is no such corpus.
            KnowledgeBaseError: the file cannot be written.
        """
        if not self._exists():
            raise self._make_unknown_error(corpus)
        with Database(self.path, create=False) as database, database.translate_errors():
            number = self._find_number(database, corpus)
            with database.transaction(write=True) as sql:
                files = database.files(number)
                if database.fetch_one("SELECT count(*) FROM corpus")[0] == 1:
                    database.drop_all()
                else:
                    for done, row in enumerate(files, start=1):
                        database.drop(number, row.path)
                        on_progress(done, len(files), row.path)
                    sql.execute("DELETE FROM corpus WHERE id=?", (number,))
            with contextlib.suppress(sqlite3.Error):  # on a full disk, later files use the space
                database.tidy()
            return sum(not row.problem for row in files)

    def _find_number(self, database: Database, corpus: str) -> int:
        """Return the number of a corpus.

        Raises:
            UsageError: there is no corpus of this name.
        """
        number = database.corpus(corpus) if _NAME.fullmatch(corpus) else None
        if number is None:
            raise self._make_unknown_error(corpus)
        return number

    def _exists(self) -> bool:
        with translate_os_error(KnowledgeBaseError, f"{self.path} cannot be read"):
            return self.path.exists()

    def _make_unknown_error(self, corpus: str) -> UsageError:
        names = [corpus_entry.name for corpus_entry in self.corpora()]
        verb = "is" if len(names) == 1 else "are"
        hint = (
            f"there {verb} {', '.join(names[:20])}" if names else "mlx-tools kb add PATH makes one"
        )
        return UsageError(f"there is no corpus {corpus[:100]!r}", hint=hint)


@dataclass(slots=True)
class _Import:
    """One ``kb add``: lists the files below ``starts``, then reads them."""

    database: Database
    corpus: str
    starts: Sequence[WalkStart]
    on_progress: OnProgress
    counts: Counter[str] = field(default_factory=Counter)
    skipped: list[SkippedFile] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    """Folders that could not be read."""
    batch: list[tuple[WalkedFile, FileRow, Document | None]] = field(default_factory=list)
    touched: list[FileRow] = field(default_factory=list)
    """Files with a new stamp and the same content."""

    def run(self) -> AddReport:
        """Add the files.

        Raises:
            UsageError: there are too many files.
        """
        files = self._list()
        with self.database.transaction(write=True):
            number = self._find_number()
        rows_by_path = {row.path: row for row in self.database.files(number)}
        for done, file in enumerate(files.values(), start=1):
            self._take(file, rows_by_path.get(file.path))
            self.on_progress(done, len(files), file.path)
        self._flush()
        self._drop([row for path, row in rows_by_path.items() if path not in files])
        return AddReport(
            self.corpus,
            added_files=self.counts["added"],
            changed_files=self.counts["changed"],
            unchanged=self.counts["unchanged"],
            removed=self.counts["removed"],
            skipped=tuple(self.skipped),
        )

    def _find_number(self) -> int:
        """Return the number of the corpus; create it again if it was removed."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return self.database.make_corpus(self.corpus, now)

    def _list(self) -> dict[str, WalkedFile]:
        files: dict[str, WalkedFile] = {}
        for start in self.starts:
            for file in walk_files(start, self._skip_folder):
                if any("\ud800" <= char <= "\udfff" for char in file.path):
                    self.skipped.append(SkippedFile(ascii(file.path), "its name is not UTF-8"))
                    continue
                files.setdefault(file.path, file)
                if len(files) > MAX_FILES:
                    raise UsageError(
                        f"there are more than {MAX_FILES} files below {start.path}",
                        hint="add its folders one by one, or fewer of them",
                    )
        return files

    def _skip_folder(self, path: str, reason: str) -> None:
        self.unseen.append(path)
        self.skipped.append(SkippedFile(path, reason))

    def _take(self, file: WalkedFile, row: FileRow | None) -> None:
        """Read a file, unless ``row`` shows that it has not changed."""
        name = file.parts[-1]
        known_row = row if row is not None and row.reader == find_reader(name) else None
        if known_row is None or (known_row.size, known_row.stamp) != (file.size, file.stamp):
            try:
                no_text = is_binary(file.read(SNIFFED)[0], name)
                data, status = file.read(SNIFFED if no_text else find_limit(name) + 1)
            except OSError as error:  # it is gone, or cannot be opened
                self.skipped.append(SkippedFile(file.path, f"it cannot be read: {error.strerror}"))
                return
            stamp, digest = make_stamp(status), hashlib.sha256(data).digest()
            if known_row is None or (known_row.hash, known_row.size) != (digest, status.st_size):
                new_row = FileRow(file.path, status.st_size, stamp, digest, find_reader(name))
                self._take_new(file, new_row, data, is_changed=row is not None and not row.problem)
                return
            self.touched.append(known_row._replace(stamp=stamp))
        if known_row.problem:
            self.skipped.append(SkippedFile(known_row.path, known_row.problem))
        else:
            self.counts["unchanged"] += 1

    def _take_new(self, file: WalkedFile, row: FileRow, data: bytes, *, is_changed: bool) -> None:
        """Read a new file and count it. ``is_changed``: an older version had text."""
        document = None
        limit = find_limit(file.parts[-1])
        try:
            if len(data) > limit:
                raise UnreadableFile(f"it has more than {limit // 1_000_000} MB")
            document = read_document(file.parts[-1], data)
            self.counts["changed" if is_changed else "added"] += 1
        except UnreadableFile as error:
            row = row._replace(problem=str(error))
            self.skipped.append(SkippedFile(row.path, row.problem))
            self.counts["removed"] += is_changed
        self.batch.append((file, row, document))
        size = sum(len(queued.text) for _, _, queued in self.batch if queued is not None)
        if len(self.batch) >= BATCH_FILES or size >= BATCH_CHARS:
            self._flush()

    def _flush(self) -> None:
        """Write the current batch."""
        if self.batch or self.touched:
            with self.database.transaction(write=True):
                number = self._find_number()
                for row in self.touched:
                    self.database.update_stamp(number, row.path, row.stamp)
                for file, row, document in self.batch:
                    self.database.save_file(number, row, file.display_path, document)
        self.batch, self.touched = [], []

    def _drop(self, missing: Sequence[FileRow]) -> None:
        """Remove files that no longer exist."""
        removed = [row for row in missing if self._is_gone(row.path)]
        for start in range(0, len(removed), BATCH_FILES):
            with self.database.transaction(write=True):
                number = self._find_number()
                for row in removed[start : start + BATCH_FILES]:
                    self.database.drop(number, row.path)
        self.counts["removed"] += sum(not row.problem for row in removed)

    def _is_gone(self, path: str) -> bool:
        """Return whether a file below an added folder is gone; False if unknown."""
        if any(path.startswith(f"{folder.rstrip('/')}/") for folder in self.unseen):
            return False
        was_added = any(not start.only and path.startswith(start.prefix) for start in self.starts)
        return was_added and (os.path.islink(path) or not os.path.isfile(path))  # noqa: PTH113, PTH114
