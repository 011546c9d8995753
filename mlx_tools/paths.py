"""Where mlx-tools keeps its files, and the one place that knows.

Configuration, data, state and cache stand where the platform keeps them (XDG variables on Linux).
``MLX_TOOLS_CONFIG_DIR``, ``MLX_TOOLS_DATA_DIR``, ``MLX_TOOLS_STATE_DIR`` and
``MLX_TOOLS_CACHE_DIR`` name another folder. Nothing is created before it is used, and what is
created is readable by its owner alone. The files of ``prompts/`` and ``config/`` come along: a
wheel carries them in the package, under ``_data``; a checkout has them at its root.
"""

from __future__ import annotations

import errno
import functools
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from mlx_tools.errors import ConfigError, UsageError

Kind = Literal["config", "data", "state", "cache"]

APP: Final = "mlx-tools"
OWNER_ONLY: Final = 0o700


def _folder(kind: Kind, environ: Mapping[str, str] = os.environ) -> Path:
    if named := environ.get(f"MLX_TOOLS_{kind.upper()}_DIR", "").strip():
        return Path(named).expanduser().absolute()
    import platformdirs

    find = {
        "config": platformdirs.user_config_dir,
        "data": platformdirs.user_data_dir,
        "state": platformdirs.user_state_dir,
        "cache": platformdirs.user_cache_dir,
    }[kind]
    return Path(find(APP, appauthor=False))


config_dir = functools.partial(_folder, "config")
"""The user's settings: ``config.toml``."""

data_dir = functools.partial(_folder, "data")
"""What the user would miss: knowledge base, notes."""

state_dir = functools.partial(_folder, "state")
"""What a program remembers between runs: transcripts, artifacts, logs, history."""

cache_dir = functools.partial(_folder, "cache")
"""What can be fetched again: the embedded model."""


def knowledge_base_file() -> Path:
    """The user's knowledge base."""
    return data_dir() / "knowledge-base.sqlite3"


def read_private(path: Path, most: int) -> bytes:
    """The first ``most`` bytes of a file that its owner alone may write to. Raises OSError, and
    PermissionError for one that is not this user's own, that others may write to, or no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    info = os.fstat(descriptor)
    wrong = "it is no regular file" if not stat.S_ISREG(info.st_mode) else ""
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        wrong = wrong or "it cannot be trusted: others may write to it"
    if wrong:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, wrong)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most)


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file whole and lastingly, or leave what was there. Raises OSError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, mode), "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def private_dir(path: Path) -> Path:
    """The folder ``path``, created with its parents where missing, readable by its owner alone.

    A folder that was there already keeps its mode: a person may have opened it on purpose.

    Raises:
        UsageError: it cannot be created, or something else has its name.
    """
    try:
        missing = [path, *path.parents]
        missing = missing[: next((i for i, p in enumerate(missing) if p.exists()), len(missing))]
        for folder in reversed(missing):
            folder.mkdir(mode=OWNER_ONLY, exist_ok=True)
        if not path.is_dir():
            raise NotADirectoryError(20, "something that is no folder has this name")
    except OSError as error:
        raise UsageError(
            f"the folder {path} cannot be used: {error.strerror or error}",
            hint="make it a folder that you may write to, or name another by MLX_TOOLS_*_DIR",
        ) from error
    return path


_PACKAGE: Final = Path(__file__).resolve().parent
_PLACES: Final = (_PACKAGE / "_data", _PACKAGE.parent)


def read_data(name: str) -> str:
    """The text of a file such as ``prompts/persona.txt``. Raises `ConfigError` where there is none.

    ``name`` is relative, and begins with ``prompts/`` or ``config/``.
    """
    for place in _PLACES:
        path = place / name
        if path.is_file():
            return read_text(path)
    raise ConfigError(f"{name} is missing", hint="install mlx-tools again")


def read_text(path: Path) -> str:
    """A UTF-8 file's text. Raises `ConfigError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
