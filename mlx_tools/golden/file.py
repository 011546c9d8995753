"""Golden transcripts as files: the second line says what the file is kept for."""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from mlx_tools.errors import TranscriptError, UsageError, require_items, require_path
from mlx_tools.paths import read_regular, write_whole
from mlx_tools.store import MAX_TRANSCRIPT, encode, parse
from mlx_tools.transcript import CarriedRecord, GoldenRecord, Header, Record, UserRecord

SUFFIX: Final = ".jsonl"


class Golden(Struct, frozen=True):
    """A golden transcript. ``path`` is None if it is in memory only.

    ``records`` are those of the run, without the golden record. For a transcript without one, such
    as a session's, `Golden.from_records` makes an empty one.
    """

    header: Header
    golden: GoldenRecord
    records: tuple[Record, ...]
    path: Path | None = None

    @property
    def name(self) -> str:
        """Its name: the one under which it was recorded, else that of its file."""
        return self.golden.name or (self.path.stem if self.path is not None else "")

    @property
    def all(self) -> tuple[Record, ...]:
        return (self.header, self.golden, *self.records)

    @classmethod
    def from_records(cls, records: Sequence[Record], path: Path | None = None) -> Golden:
        """Return the golden transcript that these records make up.

        Raises:
            TranscriptError: they do not begin with a header and a question.
        """
        if not records or not isinstance(records[0], Header):
            raise TranscriptError("the transcript does not begin with its header")
        rest = tuple(r for r in records[1:] if not isinstance(r, GoldenRecord))
        golden = records[1] if len(records) > 1 else None
        if not isinstance(golden, GoldenRecord):
            golden = GoldenRecord(name=path.stem if path is not None else "")
        first = next((r for r in rest if not isinstance(r, CarriedRecord)), None)
        if not isinstance(first, UserRecord):
            raise TranscriptError("the transcript does not begin with a question")
        return cls(records[0], golden, rest, path)


def read_golden(path: str | os.PathLike[str]) -> Golden:
    """Return the golden transcript in a file.

    Raises:
        UsageError: this is no path.
        TranscriptError: the file is damaged, cut off, or of a newer version; the message names it.
    """
    path = _as_path(path)
    try:
        data = read_regular(path, MAX_TRANSCRIPT).removeprefix(BOM_UTF8)
        if not data.strip():
            hint = "take it from where it was kept, or remove it"
            raise TranscriptError("the file is empty", hint=hint)
        records, whole = parse(data)
        if whole != len(data):
            raise TranscriptError("its last line is cut off", hint="take it from where it was kept")
        return Golden.from_records(records, path)
    except OSError as error:
        raise TranscriptError(f"{path} cannot be read: {error.strerror}") from None
    except TranscriptError as error:
        raise TranscriptError(f"{path}: {error.message}", hint=error.hint) from None


def to_text(golden: Golden) -> str:
    return "".join(f"{encode(record)}\n" for record in golden.all)


def write_golden(golden: Golden, path: Path) -> None:
    """Write the whole file, or leave the old one as it was. Raises `TranscriptError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, to_text(golden).encode(), 0o666, max_bytes=MAX_TRANSCRIPT)
    except OSError as error:
        raise TranscriptError(
            f"{path} cannot be written: {error.strerror}",
            hint="check the folder's permissions and free space; nothing was changed",
        ) from None


def find_golden(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files that these paths name, each once.

    Files are returned as they are; of folders all transcripts below them, in the order of their
    names.

    Raises:
        UsageError: a path does not exist, or holds no transcript.
    """
    found: dict[Path, None] = {}
    for path in map(_as_path, require_items("paths", paths, "give a list of paths")):
        if path.is_dir():
            below = sorted(path.rglob(f"*{SUFFIX}"))
            visible = [p for p in below if not _hidden(p.relative_to(path)) and not p.is_dir()]
            if not visible:
                raise UsageError(f"{path} holds no transcripts (*{SUFFIX})")
            found.update(dict.fromkeys(visible))
        elif path.exists():
            found[path] = None
        else:
            hint = "mlx-tools golden record NAME QUESTION makes one, in golden_transcripts"
            raise UsageError(f"there is no {path}", hint=hint)
    return list(found)


def _as_path(path: str | os.PathLike[str]) -> Path:
    return Path(require_path("path", path, "give the path of a golden transcript"))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
