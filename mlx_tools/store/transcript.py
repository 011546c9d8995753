"""The transcript: records as JSON lines, appended durably, read back exactly.

A run's whole state is its list of records. `Transcript` keeps it in memory; `TranscriptFile` also
writes each record to a file of its own before anybody acts on it. One line is one record; a line
that a crash cut off is dropped when the file is opened again, never guessed at.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeGuard, get_args

import msgspec
from msgspec import Struct

from mlx_tools.errors import StorageError, TranscriptError, translate_os_error
from mlx_tools.macos import sync_fully
from mlx_tools.paths import check_regular, read_regular
from mlx_tools.transcript import (
    ApprovalRecord,
    EditRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    PauseRecord,
    Record,
)

MAX_TRANSCRIPT: Final = 256 << 20
"""Bytes of a transcript: a hundred times the largest of the longest recorded runs."""

FORMAT_VERSION: Final = 2
"""The version that is written. Version 1 is read too: its completions do not name their request."""

NAME: Final = "transcript.jsonl"
"""A transcript's file in the folder of its session."""


class SessionInUse(TranscriptError):
    """Another process has the session open."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"the session {session} is in use by another process",
            hint="end it there, such as a chat in another window, or wait",
        )


_KINDS: Final = frozenset(str(cls.__struct_config__.tag) for cls in get_args(Record))
_SCALARS: Final = frozenset((str, bool, int, float, type(None)))

_compact: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode
_ascii: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@functools.cache
def _defaults(cls: type[Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return a record's fields: name, key in JSON, default (NODEFAULT if it has none)."""
    fields = msgspec.structs.fields(cls)
    return tuple((field.name, field.encode_name, field.default) for field in fields)


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return to_json(value)
    return [_plain(item) for item in value] if type(value) is tuple else value


def to_json(record: Struct) -> dict[str, Any]:
    """Return a record, or a value in one, as a JSON object.

    ``type`` comes first in a record, then every field that is not at its default.
    """
    tag = record.__struct_config__.tag
    out: dict[str, Any] = {} if tag is None else {"type": tag}
    for name, key, default in _defaults(type(record)):
        value = getattr(record, name)
        # The identity check spares a comparison of large mappings with their shared defaults.
        if value is default:
            continue
        if value != default or type(value) is not type(default):
            out[key] = value if type(value) in _SCALARS else _plain(value)
    return out


def from_json(value: Any) -> Record:
    """Return the record that `to_json` wrote, else raise `TranscriptError`."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise TranscriptError("a line of the transcript is no record")
    try:
        return msgspec.convert(value, Record)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        newer = "it was written by a newer version of mlx-tools"
        hint = newer if str(error).startswith("Object contains unknown field") else None
        raise TranscriptError(f"a {kind} record cannot be read: {error}", hint=hint) from None


def encode(record: Record) -> str:
    """Return one line of a transcript, without its line end.

    Lone surrogates are escaped: the file is UTF-8.
    """
    line = _compact(to_json(record))
    if not line.isascii():
        try:
            line.encode()
        except UnicodeEncodeError:
            return _ascii(to_json(record))
    return line


decode_quickly: Final = msgspec.json.Decoder(Record).decode
"""Returns the record of a line as `decode` does, but fails with a few lines that have one."""


def decode(line: str | bytes) -> Record:
    """Return the record of one line. Raise `TranscriptError`."""
    try:
        return decode_quickly(line)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass  # it is damaged, or one of the few that only the slower reader takes: half a character
    try:
        return from_json(json.loads(line if isinstance(line, str) else line.decode()))
    except (ValueError, RecursionError):
        raise TranscriptError("a line of the transcript is not JSON") from None


def parse(data: bytes) -> tuple[list[Record], int]:
    """Return the records of a transcript file and how many of its bytes they take.

    What follows the last line end was cut off by a crash and is left out.

    Raises:
        TranscriptError: a line before that cannot be read; the message names it.
    """
    end = data.rfind(b"\n") + 1
    records: list[Record] = []
    begin = 0
    while begin < end:  # no list of all lines: a transcript may take 100 MB
        line_end = data.index(b"\n", begin)
        try:
            records.append(decode(data[begin:line_end]))
        except (TranscriptError, UnicodeDecodeError) as error:
            number = data.count(b"\n", 0, begin) + 1
            raise TranscriptError(f"line {number} of the transcript is damaged: {error}") from None
        begin = line_end + 1
    header = records[0] if records else None
    if records and not isinstance(header, Header):
        raise TranscriptError("the transcript does not begin with its header")
    if isinstance(header, Header) and not 1 <= header.version <= FORMAT_VERSION:
        raise TranscriptError(
            f"the transcript has format version {header.version}; this program reads 1 to "
            f"{FORMAT_VERSION}",
            hint="use the version of mlx-tools that wrote it, or a newer one",
        )
    return records, end


class Transcript(list[Record]):
    """An append-only list of records in memory, in use until it is closed."""

    path: Path | None = None
    in_use = True

    def close(self) -> None:
        self.in_use = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TranscriptFile(Transcript):
    """A transcript that is on disk before anybody acts on it.

    The file is readable by its owner alone and locked while it is open, so that two processes
    cannot write one session. Records that a power cut must not take back are synced to the disk:
    that a call which can change things starts, how it ended, what a person decides or is asked. The
    others are handed to the operating system, which is enough for a killed process; whatever a call
    only read, it can read again.
    """

    def __init__(
        self,
        path: Path,
        *,
        sync: Callable[[int], None] = sync_fully,
        create: bool = True,
        max_bytes: int = MAX_TRANSCRIPT,
        on_close: Callable[[TranscriptFile, os.stat_result], None] | None = None,
    ) -> None:
        """Open ``path``, and drop a line that a crash cut off.

        Args:
            path: the file.
            sync: flushes an open file's data to the disk.
            create: True to create the file if it is missing.
            max_bytes: the largest file that is opened or written.
            on_close: called while the file is still locked.

        Raises:
            TranscriptError: the file is damaged, locked or cannot be written.
            StorageError: the file cannot be created.
        """
        super().__init__()
        self.path = path
        self._sync = sync
        self._max_bytes = max_bytes
        self._on_close = on_close
        self._is_loaded = False
        kind, hint = TranscriptError, "check the folder's permissions and free space"
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        if create:
            kind, flags = StorageError, flags | os.O_CREAT
        with translate_os_error(kind, f"the transcript {path} cannot be opened", hint):
            if create:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: int | None = os.open(path, flags, 0o600)
        try:
            self._load(self._file)
            self._is_loaded = True
        except BaseException:
            self.close()
            raise

    def _load(self, file: int) -> None:
        path = self.path
        assert path is not None  # it is a file's
        try:
            # Locked before it is read: what another process is about to append would be missed.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SessionInUse(path.parent.name) from None
        with translate_os_error(TranscriptError, f"the transcript {self.path} cannot be read"):
            check_regular(file, self._max_bytes)
            with os.fdopen(os.dup(file), "rb") as reader:
                data = reader.read()
            records, self._size = parse(data)
            self.extend(records)
            self._mutating = {r.call for r in self if _starts_mutating(r)}
            if self._size < len(data):
                # The next line must begin at a line end; half a line before it would make both
                # unreadable.
                os.ftruncate(file, self._size)

    def append(self, record: Record) -> None:
        """Write a record, then add it.

        Raises:
            StorageError: it cannot be written (a full disk, a transcript that nobody could read
                again). The file then still ends with a whole line, and the record does not count.
        """
        if self._file is None:
            raise TranscriptError(f"the transcript {self.path} is closed")
        data = (encode(record) + "\n").encode()
        if self._size + len(data) > self._max_bytes:
            full = StorageError(
                f"the transcript {self.path} is full: it holds {self._max_bytes >> 20} MB at most",
                hint="nothing more was run; ask in a new session",
            )
            full.cure = ""
            raise full
        try:
            # On disk before it is in the list: nobody acts on a record that a crash could take
            # back.
            write_all(self._file, data)
            # Not each record: an fsync takes milliseconds, and what was only read can be read
            # again.
            if self._must_last(record):
                self._sync(self._file)
        except OSError as error:
            try:
                # A full disk may have taken part of the line. It goes, so that the file stays
                # readable.
                os.ftruncate(self._file, self._size)
            except OSError:
                self.close()  # nothing may follow on a part of a line: whoever opens it drops that
            raise StorageError(
                f"the transcript {self.path} cannot be written: {error.strerror}",
                hint="nothing more was run; free some space and start again",
            ) from None
        self._size += len(data)
        if _starts_mutating(record):
            self._mutating.add(record.call)
        super().append(record)

    def _must_last(self, record: Record) -> bool:
        """Return True if the record must survive a power cut before the next step."""
        if isinstance(record, ObservationRecord):
            return record.call in self._mutating
        return _starts_mutating(record) or isinstance(
            record, ApprovalRecord | EditRecord | PauseRecord
        )

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                if self._on_close is not None and self._is_loaded:
                    # While it is still locked, so that no other process has added to what is summed
                    # up.
                    self._on_close(self, os.fstat(file))
            finally:
                os.close(file)


def _starts_mutating(record: Record) -> TypeGuard[ExecutionRecord]:
    return isinstance(record, ExecutionRecord) and record.mutates


def write_all(file: int, data: bytes) -> None:
    """Write all of ``data``: one write may take only a part. Raise OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def load(path: Path) -> list[Record]:
    """Return the records of a transcript file, read-only. Raise `TranscriptError`."""
    with translate_os_error(TranscriptError, f"the transcript {path} cannot be read"):
        return parse(read_regular(path, MAX_TRANSCRIPT))[0]


class FileState(NamedTuple):
    """The state of a transcript's file.

    ``updated`` is when it was written, in nanoseconds since 1970. ``text`` is another one whenever
    the content is.
    """

    updated: int
    text: str


NO_FILE: Final = FileState(0, "")
"""The state of a transcript that is not there."""


def file_state(status: os.stat_result) -> FileState:
    """Return the state of a file: a change of its content changes one of its numbers."""
    numbers = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return FileState(status.st_mtime_ns, ":".join(map(str, numbers)))
