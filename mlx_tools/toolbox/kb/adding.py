"""Takes files into a corpus: what is new or has changed, and nothing else.

What was read is written in batches, each a transaction. A process that is killed loses the batch it
was at; adding again finds the rest as it is and goes on.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.kb.database import Database, Entry, FileRow
from mlx_tools.toolbox.kb.documents import PDF, READER, limit_of, read_document, suffix_of
from mlx_tools.toolbox.kb.encodings import SNIFFED, UnreadableFile, is_binary, packed_as
from mlx_tools.toolbox.kb.pdf import pdf_reader
from mlx_tools.toolbox.kb.walk import (
    MAX_FILES,
    FoundFile,
    WalkStart,
    files_of,
    read_file,
    stamp_of,
    still_there,
)

BATCH_FILES: Final = 100
BATCH_CHARS: Final = 2_000_000
BATCH_SECONDS: Final = 1.0
_SETTLES: Final = 2_000_000_000
"""Nanoseconds after which a file that changes gets another time, on every file system."""

OnProgress = Callable[[int, int, str], None]
"""Is told after each file how many are done, of how many, and its path."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or a folder that was not taken in, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Added:
    """What adding came to, in files that have text. ``skipped`` says why of each that has none that
    could be read, whether it was looked at now or before."""

    corpus: str
    added: int
    changed: int
    unchanged: int
    removed: int
    skipped: tuple[Skipped, ...]


class Adding:
    """One ``kb add``: lists the files of ``places``, then goes through them.

    ``clock`` gives nanoseconds since 1970, as file systems count.
    """

    def __init__(
        self,
        database: Database,
        corpus: str,
        places: Sequence[WalkStart],
        on_progress: OnProgress = lambda done, total, path: None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._database = database
        self._corpus = corpus
        self._places = places
        self._on_progress = on_progress
        self._clock = clock
        self._number = 0
        self._counts = dict.fromkeys(("added", "changed", "unchanged", "removed"), 0)
        self._skipped: list[Skipped] = []
        self._unseen: list[str] = []  # folders that could not be looked at
        self._batch: list[tuple[Entry, FileRow | None]] = []
        self._times: list[tuple[FileRow, str, bool]] = []
        self._chars = 0
        self._begun = time.monotonic()

    def run(self) -> Added:
        """Adds. Raises `KnowledgeBaseError`, and `UsageError` for more files than there may be."""
        files = self._list()
        with self._database.guarded():
            with self._database.writing():
                self._make()
            known = {row.path: row for row in self._database.files(self._number)}
            for done, found in enumerate(files, start=1):
                self._take(found, known.get(found.path))
                self._on_progress(done, len(files), found.path)
            self._flush()
            self._drop(known, {found.path for found in files})
        return Added(self._corpus, skipped=tuple(self._skipped), **self._counts)

    def _list(self) -> list[FoundFile]:
        files: dict[str, FoundFile] = {}
        for place in self._places:
            for found in files_of(place, self._cannot_look):
                if not _storable(found.path):
                    self._skip(ascii(found.path), "its name is not UTF-8")
                    continue
                files.setdefault(found.path, found)
                if len(files) > MAX_FILES:
                    raise UsageError(
                        f"there are more than {MAX_FILES} files below {place.path}",
                        hint="add its folders one by one, or fewer of them",
                    )
        return list(files.values())

    def _cannot_look(self, path: str, reason: str) -> None:
        self._unseen.append(path)
        self._skip(path, reason)

    def _skip(self, path: str, reason: str) -> None:
        self._skipped.append(Skipped(path, reason))

    # --- one file ---

    def _take(self, found: FoundFile, row: FileRow | None) -> None:
        reader = _reader(found)
        known = row is not None and row.reader == reader
        holds = row is not None and known and bool(row.settled)
        if row is not None and holds and (row.size, row.stamp) == (found.size, found.stamp):
            self._leave(row)
            return
        try:
            entry = self._read(found, reader, row if known else None)
        except OSError as error:  # gone meanwhile, or not to be opened
            self._skip(found.path, f"it cannot be read: {error.strerror}")
            return
        if isinstance(entry, Entry):
            self._batch.append((entry, row))
            self._chars += len(entry.text)
            if entry.problem:
                self._skip(entry.path, entry.problem)
        elif row is not None:
            self._times.append((row, *entry))
            self._leave(row)
        if (
            len(self._batch) + len(self._times) >= BATCH_FILES
            or self._chars >= BATCH_CHARS
            or time.monotonic() - self._begun >= BATCH_SECONDS
        ):
            self._flush()

    def _leave(self, row: FileRow) -> None:
        if row.problem:
            self._skip(row.path, row.problem)
        else:
            self._counts["unchanged"] += 1

    def _read(self, found: FoundFile, reader: str, row: FileRow | None) -> Entry | tuple[str, bool]:
        """The file as it is to be kept, or, where ``row`` has it as it is, its stamp."""
        limit = limit_of(found.parts[-1])
        head, _ = read_file(found, SNIFFED)
        no_text = is_binary(head) or packed_as(head) is not None
        data, status = read_file(found, SNIFFED if no_text else limit + 1)
        stamp = stamp_of(status)
        settled = self._clock() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLES
        digest = hashlib.sha256(data).digest()
        if row is not None and (row.hash, row.size) == (digest, status.st_size):
            return stamp, settled
        entry = Entry(
            path=found.path,
            shown=found.place.shown(found.parts),
            size=status.st_size,
            stamp=stamp,
            settled=settled,
            hash=digest,
            reader=reader,
        )
        try:
            if len(data) > limit:
                raise UnreadableFile(f"it has more than {limit // 1_000_000} MB")
            document = read_document(found.parts[-1], data)
        except UnreadableFile as error:
            return entry._replace(problem=str(error))
        return entry._replace(
            title=document.title,
            text=document.text,
            passages=document.passages,
            pages=document.pages,
            lines=document.lines,
        )

    # --- what is written ---

    def _make(self) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock() // 1_000_000_000))
        self._number = self._database.make_corpus(self._corpus, now)

    def _flush(self) -> None:
        """Writes what was gathered, unless somebody else has written the same meanwhile."""
        database = self._database
        if self._batch or self._times:
            with database.writing():
                self._make()  # somebody may have removed it
                for row, stamp, settled in self._times:
                    database.seen(row.id, stamp, settled)
                for entry, _ in self._batch:
                    there = database.file(self._number, entry.path)
                    if there is not None and _same(there, entry):
                        database.seen(there.id, entry.stamp, entry.settled)
                    else:
                        database.put(self._number, entry)
        for entry, before in self._batch:
            had = before is not None and not before.problem
            if not entry.problem:
                self._counts["changed" if had else "added"] += 1
            elif had:
                self._counts["removed"] += 1
        self._batch, self._times, self._chars = [], [], 0
        self._begun = time.monotonic()

    def _drop(self, known: dict[str, FileRow], seen: set[str]) -> None:
        """Removes the files that were there, and are not any more."""
        gone = [
            path
            for path in known
            if path not in seen
            and not any(path.startswith(f"{folder}/") for folder in self._unseen)
            and any(place.holds(path) and not still_there(place, path) for place in self._places)
        ]
        for some in _by(BATCH_FILES, gone):
            with self._database.writing():
                for path in some:
                    self._database.drop(self._number, path)
        self._counts["removed"] += sum(1 for path in gone if not known[path].problem)


def _reader(found: FoundFile) -> str:
    """What reads this file: where that is another than before, it is read again."""
    return f"{READER} {pdf_reader()}" if suffix_of(found.parts[-1]) == PDF else READER


def _same(row: FileRow, entry: Entry) -> bool:
    return (row.hash, row.size, row.reader, row.problem) == (
        entry.hash,
        entry.size,
        entry.reader,
        entry.problem,
    )


def _storable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _by(size: int, items: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
