"""The transcript: records as JSON lines, appended durably, read back exactly.

The records are the whole state of a run. `Transcript` is their list in memory. `TranscriptFile`
also writes each record to a file before anybody acts on it. One line is one record. If a crash cut
off the last line, it is dropped when the file is opened again.
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
"""The limit of a transcript in bytes: a hundred times the largest transcript of all test runs."""

FORMAT_VERSION: Final = 2
"""The version that is written. Version 1 can be read: its completions do not name their request."""

NAME: Final = "transcript.jsonl"
"""The name of the transcript's file in the folder of its session."""


class SessionInUse(TranscriptError):
    """Another process has the session open."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"the session {session} is in use by another process",
            hint="end that process, such as a chat in another window, or wait",
        )


_KINDS: Final = frozenset(str(cls.__struct_config__.tag) for cls in get_args(Record))
_SCALARS: Final = frozenset((str, bool, int, float, type(None)))

_compact: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode
_ascii: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@functools.cache
def _list_fields(cls: type[Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return a record's fields: name, key in JSON, default (NODEFAULT if it has none)."""
    fields = msgspec.structs.fields(cls)
    return tuple((field.name, field.encode_name, field.default) for field in fields)


def _to_plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return to_json(value)
    return [_to_plain(item) for item in value] if type(value) is tuple else value


def to_json(record: Struct) -> dict[str, Any]:
    """Return a record, or a value within a record, as a JSON object.

    In a record ``type`` comes first, then every field whose value is not its default.
    """
    tag = record.__struct_config__.tag
    out: dict[str, Any] = {} if tag is None else {"type": tag}
    for name, key, default in _list_fields(type(record)):
        value = getattr(record, name)
        # The identity check saves a comparison of large mappings with their shared defaults.
        if value is default:
            continue
        if value != default or type(value) is not type(default):
            out[key] = value if type(value) in _SCALARS else _to_plain(value)
    return out


def from_json(value: Any) -> Record:
    """Return the record of a JSON object by `to_json`. Raise `TranscriptError`."""
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
"""Returns the record of a line as `decode` does, but fails on lines with half a character."""


def decode(line: str | bytes) -> Record:
    """Return the record of one line. Raise `TranscriptError`."""
    try:
        return decode_quickly(line)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass  # The line is damaged, or has half a character, which only the slower reader accepts.
    try:
        return from_json(json.loads(line if isinstance(line, str) else line.decode()))
    except (ValueError, RecursionError):
        raise TranscriptError("a line of the transcript is not JSON") from None


def parse(data: bytes) -> tuple[list[Record], int]:
    """Return the records of a transcript file, and the number of bytes that they take.

    Text after the last line end was cut off by a crash and is left out.

    Raises:
        TranscriptError: a complete line cannot be read; the message names it.
    """
    end = data.rfind(b"\n") + 1
    records: list[Record] = []
    begin = 0
    while begin < end:  # without a list of all lines: a transcript may be larger than 100 MB
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
    """The path of its file, None if it is only in memory."""
    in_use = True
    """True until it is closed."""

    def close(self) -> None:
        """Close the transcript, so that it can be opened again."""
        self.in_use = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TranscriptFile(Transcript):
    """A transcript whose records are on disk before anybody acts on them.

    Only the file's owner can read it. It is locked while it is open, so that two processes cannot
    write to one session. Some records are synced to the disk, so that a power cut cannot lose them:
    start and end of a call that can change things, a person's decision, and a question to a person.
    The other records are only passed to the operating system. They survive if the process is
    killed; and a call that only read something can read it again.
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
            path: the path of the file.
            sync: flushes an open file's data to the disk.
            create: True to create the file if it is missing.
            max_bytes: the limit of the file's size.
            on_close: called on closing, while the file is still locked.

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
        assert path is not None  # the constructor has set it
        try:
            # Locked before it is read: otherwise another process could append to it afterwards.
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
                # The next record must begin in a new line: joined to half a line it would be
                # unreadable.
                os.ftruncate(file, self._size)

    def append(self, record: Record) -> None:
        """Write a record to the file, then add it to the list.

        Raises:
            StorageError: the record cannot be written: the disk is full, or the transcript would be
                too large to be read again. The file then still ends with a complete line, and the
                record does not count.
        """
        if self._file is None:
            raise TranscriptError(f"the transcript {self.path} is closed")
        data = (encode(record) + "\n").encode()
        if self._size + len(data) > self._max_bytes:
            full = StorageError(
                f"the transcript {self.path} is full: the limit is {self._max_bytes >> 20} MB",
                hint="nothing more was run; ask in a new session",
            )
            full.cure = ""
            raise full
        try:
            # Written before it is in the list: nobody may act on a record that a crash could lose.
            write_all(self._file, data)
            # Not for each record: a sync takes milliseconds, and a call that only read something
            # can read it again.
            if self._must_last(record):
                self._sync(self._file)
        except OSError as error:
            try:
                # On a full disk a part of the line may have been written. It is removed, so that
                # the file stays readable.
                os.ftruncate(self._file, self._size)
            except OSError:
                # The part of the line stays until the next process opens the file, and drops it.
                self.close()  # no record may come after half a line
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
                    # While the file is still locked: no other process may append to it before it is
                    # summarized.
                    self._on_close(self, os.fstat(file))
            finally:
                os.close(file)


def _starts_mutating(record: Record) -> TypeGuard[ExecutionRecord]:
    return isinstance(record, ExecutionRecord) and record.mutates


def write_all(file: int, data: bytes) -> None:
    """Write all of ``data``; ``os.write`` may write only a part. Raise OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def load(path: Path) -> list[Record]:
    """Read the records of a transcript file, unlocked. Raise `TranscriptError`."""
    with translate_os_error(TranscriptError, f"the transcript {path} cannot be read"):
        return parse(read_regular(path, MAX_TRANSCRIPT))[0]


class FileState(NamedTuple):
    """The state of a transcript's file."""

    updated: int
    """The time of the last write, in nanoseconds since 1970."""
    text: str
    """A text that changes with each change of the content."""


NO_FILE: Final = FileState(0, "")
"""The state of a transcript that does not exist."""


def get_file_state(status: os.stat_result) -> FileState:
    """Return the state of a file."""
    # A change of the content changes one of these numbers.
    updated = status.st_mtime_ns
    return FileState(updated, f"{status.st_ino}:{status.st_size}:{updated}:{status.st_ctime_ns}")
