"""A file of results that a run can be gone on with: JSON lines, each on disk as it comes.

The first line names the settings under which all others were found; a file of other settings is
refused. Every other line is one item, by one strategy. What a crash left of a line is dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

from mlx_tools.errors import UsageError

FORMAT: Final = 1
_NAMED: Final = 3
"""So many settings that differ are named in an error."""


class Key(NamedTuple):
    """What a result is of."""

    category: str
    id: str
    strategy: str


class Results:
    """The results of a run: those of ``path``, and those that are added.

    Without a path they are kept in memory alone. Use it with ``with``: the file is locked
    meanwhile.

    Raises:
        UsageError: the file is no file of results, is one of other settings or another benchmark,
            cannot be written, or another run writes it.
    """

    def __init__(self, path: Path | None, benchmark: str, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._found: dict[Key, Mapping[str, Any]] = {}
        self._file: BinaryIO | None = None
        plain = json.loads(_text(settings))
        self.fingerprint = hashlib.sha256(_text(plain).encode()).hexdigest()[:16]
        self._header = {
            "type": "settings",
            "format": FORMAT,
            "benchmark": benchmark,
            "fingerprint": self.fingerprint,
            "settings": plain,
        }
        if path is not None:
            self._open(path)

    def get(self, key: Key) -> Mapping[str, Any] | None:
        """The result of ``key``, None where there is none yet."""
        return self._found.get(key)

    def add(self, key: Key, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write a result, and give it as it was written."""
        line = {"type": "item"} | key._asdict() | {"settings": self.fingerprint} | dict(result)
        self._write(line)
        self._found[key] = line
        return line

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(_text(line).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from error

    def _open(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            self._file = os.fdopen(descriptor, "r+b")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"{path} is no file that results can be read back from")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._take_in(path, self._file)
        except BlockingIOError:
            self.close()
            raise UsageError(f"{path}: another run writes it", hint="name another file") from None
        except BaseException:
            self.close()
            raise

    def _take_in(self, path: Path, file: BinaryIO) -> None:
        """Read what is there, drop what a crash left of a line, begin an empty file."""
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and _text(self._header).encode().startswith(data):
            file.truncate(0)
            self._write(self._header)
            return
        lines = whole.decode("utf-8", errors="replace").split("\n")[:-1]
        self._check(path, _object(lines[0]) if lines else {})
        for number, text in enumerate(lines[1:], start=2):
            line = _object(text)
            with contextlib.suppress(TypeError):
                key = Key(line.get("category"), line.get("id"), line.get("strategy"))  # type: ignore[arg-type]
                if line.get("type") == "item" and all(isinstance(part, str) for part in key):
                    self._found.setdefault(key, line)
                    continue
            raise UsageError(f"{path}: line {number} is no result", hint="name another file")
        file.truncate(len(whole))

    def _check(self, path: Path, header: Mapping[str, Any]) -> None:
        """Raise where the file is not one to go on with."""
        settings = header.get("settings")
        if header.get("type") != "settings" or not isinstance(settings, dict):
            raise UsageError(f"{path} is no file of results", hint="name another file")
        if (found := header.get("format")) != FORMAT:
            raise UsageError(f"{path} is of format {found}, not {FORMAT}", hint="name another file")
        if (other := header.get("benchmark")) != self._header["benchmark"]:
            raise UsageError(f"{path} holds results of {other}", hint="name another file")
        if header.get("fingerprint") != self.fingerprint:
            own = self._header["settings"]
            raise UsageError(
                f"{path} was written with other settings: {_differences(settings, own)}",
                hint="name another file, or ask with the settings of this one",
            )


def _text(value: Any) -> str:
    """One line of JSON, in ASCII: half of a surrogate pair, which a model may write, is no text."""
    return json.dumps(value, separators=(",", ":"), default=str)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The settings that differ, in words."""
    old, new = dict(_leaves(there)), dict(_leaves(now))
    changed = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
    told = [f"{key} was {_short(old.get(key))}, is {_short(new.get(key))}" for key in changed]
    more = [f"and {len(told) - _NAMED} more"] if len(told) > _NAMED else []
    return "; ".join([*told[:_NAMED], *more])


def _leaves(value: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, inner in value.items():
        nested = isinstance(inner, dict) and inner
        found += _leaves(inner, f"{path}{key}.") if nested else [(f"{path}{key}", inner)]
    return found


def _short(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
