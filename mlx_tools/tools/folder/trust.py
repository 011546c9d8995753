"""What the user said of tools: which folders are trusted as they are, which tools are off.

Kept in one file, apart from the tools' folders: whoever may write there cannot vouch for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import ConfigError
from mlx_tools.paths import private_dir

MAX_BYTES: Final = 4_000_000
_VERSION: Final = 1
_HINT: Final = "look at it; without it no tool's folder is trusted, and no tool is switched off"


@dataclass(frozen=True, slots=True)
class FolderRecord:
    """``trusted`` has the digest of each folder that was added, by its path; ``switched`` whether a
    tool is on or off, by its name, where the user said so."""

    trusted: Mapping[str, str] = field(default_factory=dict)
    switched: Mapping[str, bool] = field(default_factory=dict)

    def trusting(self, folder: Path, digest: str | None) -> FolderRecord:
        """The same with this folder trusted as it is, or with None no longer."""
        others = {path: was for path, was in self.trusted.items() if path != str(folder)}
        return replace(self, trusted=others | ({str(folder): digest} if digest else {}))

    def switching(self, name: str, on: bool | None) -> FolderRecord:
        """The same with this tool on or off, or with None as it is by itself."""
        others = {other: was for other, was in self.switched.items() if other != name}
        return replace(self, switched=others | ({name: on} if on is not None else {}))


def read_record(path: Path) -> FolderRecord:
    """What stands in the file; nothing where there is none. Raises ConfigError where it cannot be
    read as one: what was switched off must not come back."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return FolderRecord()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=_HINT) from None
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path} is no regular file", hint=_HINT)
    with os.fdopen(descriptor, "rb") as file:
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise ConfigError(f"{path} cannot be trusted: others may write to it", hint=_HINT)
        try:
            return _parsed(json.loads(file.read(MAX_BYTES)))
        except (OSError, ValueError, TypeError, RecursionError, KeyError, AttributeError):
            raise ConfigError(f"{path} is damaged", hint=_HINT) from None


def change_record(path: Path, change: Callable[[FolderRecord], FolderRecord]) -> None:
    """Changes what stands in the file, whole or not at all; two at once come one after the other.

    Raises ConfigError where it cannot be read or written.
    """
    private_dir(path.parent)
    try:
        with _locked(path.with_name(f".{path.name}.lock")):
            said = change(read_record(path))
            value = {
                "version": _VERSION,
                "trusted": dict(sorted(said.trusted.items())),
                "switched": dict(sorted(said.switched.items())),
            }
            draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(draft, flags, 0o600), "wb") as out:
                    out.write(json.dumps(value, indent=1).encode() + b"\n")
                    out.flush()
                    os.fsync(out.fileno())
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _parsed(value: Any) -> FolderRecord:
    if value["version"] != _VERSION or set(value) != {"version", "trusted", "switched"}:
        raise ValueError
    trusted, switched = value["trusted"], value["switched"]
    if not all(isinstance(digest, str) for digest in trusted.values()):
        raise ValueError
    if not all(isinstance(on, bool) for on in switched.values()):
        raise ValueError
    return FolderRecord(dict(trusted), dict(switched))
