"""A knowledge base: corpora of files that can be asked in plain words."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlx_tools import paths
from mlx_tools.errors import KnowledgeBaseError, UsageError
from mlx_tools.toolbox.kb.adding import BATCH_FILES, Added, Adding, OnProgress
from mlx_tools.toolbox.kb.database import Database, FileRow
from mlx_tools.toolbox.kb.problems import translated
from mlx_tools.toolbox.kb.search import SNIPPET_CHARS, Hit, search
from mlx_tools.toolbox.kb.walk import WalkStart

DEFAULT_CORPUS: Final = "default"
DEFAULT_LIMIT: Final = 5
MAX_LIMIT: Final = 100
MAX_ANEW_BYTES: Final = 50_000_000
"""Files that are indexed anew at once, where most others go, have no more: some 20 s of work."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Corpus:
    """What is known of a corpus: how many files with text it has, passages, and characters, how
    many files have no text that can be read, and when it last changed (ISO 8601, UTC)."""

    name: str
    files: int
    passages: int
    size: int
    unreadable: int
    changed: str


class KnowledgeBase:
    """Corpora in one SQLite file, which is made when something is first added.

    ``path`` is the file, by default the user's own, in the data folder. ``max_bytes`` is how large
    it may get, None for as large as the disk. An object holds nothing open: several threads and
    processes may use the same file.
    """

    def __init__(self, path: Path | None = None, *, max_bytes: int | None = None) -> None:
        self.path = paths.knowledge_base_file() if path is None else Path(path)
        self._max_bytes = max_bytes

    def add(
        self,
        given: Iterable[str | os.PathLike[str]],
        corpus: str = DEFAULT_CORPUS,
        *,
        on_progress: OnProgress = lambda done, total, path: None,
    ) -> Added:
        """Takes in files, and all files below folders, as far as they hold text.

        Only what is new or has changed is read. What was taken in from below one of the folders and
        is not there any more is removed. Hidden files and links below a folder are passed over.

        Raises:
            UsageError: a path that is no file or folder, or a name that no corpus can have.
            KnowledgeBaseError: the file cannot be written. What was finished is kept.
        """
        _checked(corpus)
        places = [WalkStart.named(one) for one in given]
        if not places:
            raise UsageError("there is nothing to add", hint="name files or folders")
        with Database(self.path, max_bytes=self._max_bytes) as database:
            return Adding(database, corpus, places, on_progress).run()

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
        limit = max(0, min(limit, MAX_LIMIT))
        if not self.path.exists():
            self._known(corpus)
            return []
        with self._read() as database, database.guarded():
            number = database.corpus(corpus) if corpus and _NAME.fullmatch(corpus) else None
            if corpus is not None and number is None:
                self._known(corpus)
            return search(database, question, number, limit, snippet_chars)

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
        with self._read() as database, database.guarded():
            return [Corpus(*row) for row in database.rows(query)]  # type: ignore[arg-type]

    def remove(
        self, corpus: str, *, on_progress: OnProgress = lambda done, total, path: None
    ) -> int:
        """Removes a corpus and returns how many files with text it had; the files stay.

        Raises `UsageError` where there is no such corpus, `KnowledgeBaseError`.
        """
        if not self.path.exists():
            self._known(corpus)
        with Database(self.path, create=False) as database, database.guarded():
            number = database.corpus(corpus) if _NAME.fullmatch(corpus) else None
            if number is None:
                self._known(corpus)
                return 0
            with database.writing():
                alone = list(database.rows("SELECT name FROM corpus LIMIT 2")) == [(corpus,)]
                removed = database.drop_all() if alone else 0
            if not alone and _most_goes(database, number):
                with database.writing():
                    removed = database.keep_others(number, on_progress)
            elif not alone:
                removed = self._emptied(database, number, on_progress)
                with database.writing():
                    database.drop_corpus(number)
            try:
                database.tidy()
            except sqlite3.Error as error:
                why = translated(self.path, str(error)).message
                raise KnowledgeBaseError(
                    f"{corpus} was removed, but the room that it took was not given back: {why}",
                    hint="what is added next takes that room",
                ) from None
            return removed

    def _read(self) -> Database:
        return Database(self.path, create=False, only_read=True)

    def _emptied(self, database: Database, corpus: int, on_progress: OnProgress) -> int:
        """Removes the files of a corpus, batch by batch, and returns how many had text."""
        removed = 0
        before: list[FileRow] = []
        while there := list(database.files(corpus)):
            if there == before:
                raise KnowledgeBaseError(
                    f"the knowledge base {self.path}: it is damaged",
                    hint="move the file away and add again",
                )
            before = there
            for at in range(0, len(there), BATCH_FILES):
                some = there[at : at + BATCH_FILES]
                with database.writing():
                    for row in some:
                        database.drop(corpus, row.path)
                on_progress(at + len(some), len(there), some[-1].path)
            removed += sum(1 for row in there if not row.problem)
        return removed

    def _known(self, corpus: str | None) -> None:
        """Raises `UsageError` where there is no corpus of this name."""
        if corpus is None:
            return
        names = [one.name for one in self.corpora()]
        if corpus in names:
            return
        verb = "is" if len(names) == 1 else "are"
        hint = (
            f"there {verb} {', '.join(names[:20])}" if names else "mlx-tools kb add PATH makes one"
        )
        raise UsageError(f"there is no corpus {corpus[:100]!r}", hint=hint)


def _most_goes(database: Database, corpus: int) -> bool:
    """Whether it is quicker to index what stays anew than to take out the files of a corpus one by
    one, and quick enough for others to wait: that is one transaction."""
    query = "SELECT coalesce(sum(size), 0) FROM file WHERE problem = '' AND"
    goes, stays = (int(database.one(f"{query} corpus {sign} ?", corpus)[0]) for sign in ("=", "!="))
    return stays <= min(goes, MAX_ANEW_BYTES)


def _checked(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:100]!r} cannot name a corpus", hint="use 1 to 64 of A-Z a-z 0-9 _ . -"
        )
