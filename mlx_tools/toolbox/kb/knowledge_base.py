"""A knowledge base: corpora of files that can be asked in plain words.

Adding takes in what is new or has changed, and nothing else. What was read is written in batches,
each a transaction. A process that is killed loses the batch it was at; adding again finds the rest
as it is and goes on.
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

from msgspec import Struct

from mlx_tools.errors import UsageError
from mlx_tools.paths import expand_user, knowledge_base_file
from mlx_tools.toolbox.kb.database import Database, FileRow
from mlx_tools.toolbox.kb.documents import (
    SNIFFED,
    Document,
    UnreadableFile,
    is_binary,
    limit_of,
    read_document,
    reader_of,
)
from mlx_tools.toolbox.kb.search import SNIPPET_CHARS, Hit, search
from mlx_tools.toolbox.kb.walk import MAX_FILES, WalkedFile, WalkStart, files_of, stamp_of

DEFAULT_CORPUS: Final = "default"
DEFAULT_LIMIT: Final = 5
MAX_LIMIT: Final = 100
BATCH_FILES: Final = 100
BATCH_CHARS: Final = 2_000_000

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)

OnProgress = Callable[[int, int, str], None]
"""Is told after each file how many are done, of how many, and its path."""


class Corpus(Struct, frozen=True):
    """What is known of a corpus: how many files with text it has, passages, and bytes, how many
    files have no text that can be read, and when it last changed (ISO 8601, UTC)."""

    name: str
    files: int
    passages: int
    size: int
    unreadable: int
    changed: str


class SkippedFile(Struct, frozen=True):
    """A file or a folder that was not taken in, and why."""

    path: str
    reason: str


class AddReport(Struct, frozen=True):
    """What adding came to, in files that have text. ``skipped`` says why of each that has none that
    could be read, whether it was looked at now or before."""

    corpus: str
    added: int
    changed: int
    unchanged: int
    removed: int
    skipped: tuple[SkippedFile, ...]


class KnowledgeBase:
    """Corpora in one SQLite file, which is made when something is first added.

    ``path`` is the file, by default the user's own, in the data folder. An object holds nothing
    open: several threads and processes may use the same file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = knowledge_base_file() if path is None else Path(path)

    def add(
        self,
        paths: Iterable[str | os.PathLike[str]],
        corpus: str = DEFAULT_CORPUS,
        *,
        on_progress: OnProgress = lambda done, total, path: None,
    ) -> AddReport:
        """Takes in files, and all files below folders, as far as they hold text.

        Only what is new or has changed is read. What was taken in from below one of the folders and
        is not there any more is removed. Hidden files and links below a folder are passed over.

        Raises:
            UsageError: a path that is no file or folder, or a name that no corpus can have.
            KnowledgeBaseError: the file cannot be written. What was finished is kept.
        """
        if not _NAME.fullmatch(corpus):
            raise UsageError(
                f"{corpus[:100]!r} cannot name a corpus", hint="use 1 to 64 of A-Z a-z 0-9 _ . -"
            )
        starts = [WalkStart.named(one) for one in paths]
        if not starts:
            raise UsageError("there is nothing to add", hint="name files or folders")
        with Database(self.path) as database, database.guarded():
            return _Import(database, corpus, starts, on_progress).run()

    def search(
        self,
        question: str,
        corpus: str | None = None,
        limit: int = DEFAULT_LIMIT,
        *,
        snippet_chars: int = SNIPPET_CHARS,
    ) -> list[Hit]:
        """The passages that answer a question in plain words, the best first, at most ``limit``.

        ``corpus`` is where to look, None for everywhere. Any text is a question. Raises
        `UsageError` for a corpus that does not exist, `KnowledgeBaseError` where the file cannot be
        read.
        """
        if not self.path.exists():
            if corpus is not None:
                raise self._unknown(corpus)
            return []
        with Database(self.path, create=False) as database, database.guarded():
            number = None if corpus is None else self._number(database, corpus)
            return search(database, question, number, min(limit, MAX_LIMIT), snippet_chars)

    def corpora(self) -> list[Corpus]:
        """The corpora by name. Raises `KnowledgeBaseError`."""
        if not self.path.exists():
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
        with Database(self.path, create=False) as database, database.guarded():
            return [Corpus(*row) for row in database.rows(query)]

    def forget(self, path: str | os.PathLike[str], *, dry_run: bool = False) -> list[str]:
        """Removes a file, or all files below a folder, and returns their paths, sorted; with
        ``dry_run`` those that it would remove. What is on disk stays, and need not be there any
        more.

        Raises `UsageError` where nothing of it is in the knowledge base, `KnowledgeBaseError`.
        """
        given = expand_user(path)
        # A file that is gone, or became a link, is known by the path that it had.
        paths = {str(given.absolute()), str(given.resolve())}
        gone: set[str] = set()
        if self.path.exists():
            with (
                Database(self.path, create=False) as database,
                database.guarded(),
                database.transaction(write=True),
            ):
                for (number,) in list(database.rows("SELECT id FROM corpus")):
                    for row in database.files(number):
                        if paths & {row.path, *map(str, Path(row.path).parents)}:
                            gone.add(row.path)
                            if not dry_run:
                                database.drop(number, row.path)
        if not gone:
            raise UsageError(f"nothing of {path} is in the knowledge base")
        return sorted(gone)

    def remove(
        self, corpus: str, *, on_progress: OnProgress = lambda done, total, path: None
    ) -> int:
        """Removes a corpus and returns how many files with text it had; the files stay.

        Raises `UsageError` where there is no such corpus, `KnowledgeBaseError`.
        """
        if not self.path.exists():
            raise self._unknown(corpus)
        with Database(self.path, create=False) as database, database.guarded():
            number = self._number(database, corpus)
            with database.transaction(write=True) as sql:
                files = database.files(number)
                if database.one("SELECT count(*) FROM corpus")[0] == 1:
                    database.drop_all()
                else:
                    for done, row in enumerate(files, start=1):
                        database.drop(number, row.path)
                        on_progress(done, len(files), row.path)
                    sql.execute("DELETE FROM corpus WHERE id=?", (number,))
            with contextlib.suppress(sqlite3.Error):  # a full disk: what comes next takes the room
                database.tidy()
            return sum(not row.problem for row in files)

    def _number(self, database: Database, corpus: str) -> int:
        """The number of a corpus. Raises `UsageError` where there is none of this name."""
        number = database.corpus(corpus) if _NAME.fullmatch(corpus) else None
        if number is None:
            raise self._unknown(corpus)
        return number

    def _unknown(self, corpus: str) -> UsageError:
        names = [one.name for one in self.corpora()]
        verb = "is" if len(names) == 1 else "are"
        hint = (
            f"there {verb} {', '.join(names[:20])}" if names else "mlx-tools kb add PATH makes one"
        )
        return UsageError(f"there is no corpus {corpus[:100]!r}", hint=hint)


@dataclass(slots=True)
class _Import:
    """One ``kb add``: lists the files below ``starts``, then goes through them. ``unseen`` are
    folders that could not be looked at, ``touched`` files with another stamp that hold the same."""

    database: Database
    corpus: str
    starts: Sequence[WalkStart]
    on_progress: OnProgress
    counts: Counter[str] = field(default_factory=Counter)
    skipped: list[SkippedFile] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    taken: list[tuple[WalkedFile, FileRow, Document | None]] = field(default_factory=list)
    touched: list[FileRow] = field(default_factory=list)

    def run(self) -> AddReport:
        """Adds. Raises `UsageError` for more files than there may be."""
        files = self._list()
        with self.database.transaction(write=True):
            number = self._number()
        known = {row.path: row for row in self.database.files(number)}
        for done, found in enumerate(files.values(), start=1):
            self._take(found, known.get(found.path))
            self.on_progress(done, len(files), found.path)
        self._flush()
        self._drop([row for path, row in known.items() if path not in files])
        names = ("added", "changed", "unchanged", "removed")
        counts = {name: self.counts[name] for name in names}
        return AddReport(self.corpus, skipped=tuple(self.skipped), **counts)

    def _number(self) -> int:
        """The number of the corpus, which is made where somebody has removed it meanwhile."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return self.database.make_corpus(self.corpus, now)

    def _list(self) -> dict[str, WalkedFile]:
        files: dict[str, WalkedFile] = {}
        for start in self.starts:
            for found in files_of(start, self._cannot_look):
                if any("\ud800" <= char <= "\udfff" for char in found.path):
                    self.skipped.append(SkippedFile(ascii(found.path), "its name is not UTF-8"))
                    continue
                files.setdefault(found.path, found)
                if len(files) > MAX_FILES:
                    raise UsageError(
                        f"there are more than {MAX_FILES} files below {start.path}",
                        hint="add its folders one by one, or fewer of them",
                    )
        return files

    def _cannot_look(self, path: str, reason: str) -> None:
        self.unseen.append(path)
        self.skipped.append(SkippedFile(path, reason))

    def _take(self, file: WalkedFile, row: FileRow | None) -> None:
        """Reads a file, unless ``row`` has it as it is."""
        name = file.parts[-1]
        kept = row if row is not None and row.reader == reader_of(name) else None
        if kept is None or (kept.size, kept.stamp) != (file.size, file.stamp):
            try:
                no_text = is_binary(file.read(SNIFFED)[0], name)
                data, status = file.read(SNIFFED if no_text else limit_of(name) + 1)
            except OSError as error:  # gone meanwhile, or not to be opened
                self.skipped.append(SkippedFile(file.path, f"it cannot be read: {error.strerror}"))
                return
            stamp, digest = stamp_of(status), hashlib.sha256(data).digest()
            if kept is None or (kept.hash, kept.size) != (digest, status.st_size):
                new = FileRow(file.path, status.st_size, stamp, digest, reader_of(name))
                self._take_new(file, new, data, is_changed=row is not None and not row.problem)
                return
            self.touched.append(kept._replace(stamp=stamp))
        if kept.problem:
            self.skipped.append(SkippedFile(kept.path, kept.problem))
        else:
            self.counts["unchanged"] += 1

    def _take_new(self, file: WalkedFile, row: FileRow, data: bytes, *, is_changed: bool) -> None:
        """Reads what is new, and counts it; ``is_changed`` is whether something was known of it."""
        document = None
        limit = limit_of(file.parts[-1])
        try:
            if len(data) > limit:
                raise UnreadableFile(f"it has more than {limit // 1_000_000} MB")
            document = read_document(file.parts[-1], data)
            self.counts["changed" if is_changed else "added"] += 1
        except UnreadableFile as error:
            row = row._replace(problem=str(error))
            self.skipped.append(SkippedFile(row.path, row.problem))
            self.counts["removed"] += is_changed
        self.taken.append((file, row, document))
        size = sum(len(one.text) for _, _, one in self.taken if one is not None)
        if len(self.taken) >= BATCH_FILES or size >= BATCH_CHARS:
            self._flush()

    def _flush(self) -> None:
        """Writes what was gathered."""
        if self.taken or self.touched:
            with self.database.transaction(write=True):
                number = self._number()
                for row in self.touched:
                    self.database.seen(number, row.path, row.stamp)
                for found, row, document in self.taken:
                    self.database.put(number, row, found.shown, document)
        self.taken, self.touched = [], []

    def _drop(self, missing: Sequence[FileRow]) -> None:
        """Removes of the files that were not found those that are not there any more."""
        gone = [row for row in missing if self._is_gone(row.path)]
        for at in range(0, len(gone), BATCH_FILES):
            with self.database.transaction(write=True):
                number = self._number()
                for row in gone[at : at + BATCH_FILES]:
                    self.database.drop(number, row.path)
        self.counts["removed"] += sum(not row.problem for row in gone)

    def _is_gone(self, path: str) -> bool:
        """Whether a file below a folder that was added is none any more, as far as can be seen."""
        if any(path.startswith(f"{folder.rstrip('/')}/") for folder in self.unseen):
            return False
        above = any(not one.only and path.startswith(one.prefix) for one in self.starts)
        return above and (os.path.islink(path) or not os.path.isfile(path))  # noqa: PTH113, PTH114
