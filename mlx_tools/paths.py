"""Where mlx-tools keeps its files, and the one place that knows.

Configuration, data, state and cache stand where the platform keeps them (XDG variables on Linux).
``MLX_TOOLS_CONFIG_DIR``, ``MLX_TOOLS_DATA_DIR``, ``MLX_TOOLS_STATE_DIR`` and
``MLX_TOOLS_CACHE_DIR`` name another folder. Nothing is created before it is used, and what is
created is readable by its owner alone. The files of ``prompts/`` and ``config/`` come along: a
wheel carries them in the package, under ``_data``; a checkout has them at its root. Where the
program itself is, and who put it there, says how an extra is added to it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

from mlx_tools.errors import ConfigError, UsageError
from mlx_tools.macos import sync_fully

if TYPE_CHECKING:
    from importlib.metadata import Distribution

Kind = Literal["config", "data", "state", "cache"]

APP: Final = "mlx-tools"
OWNER_ONLY: Final = 0o700
MAX_READ: Final = 64 << 20
"""Bytes of a file that is read whole: the largest tokenizers of models have 35 MB."""
_DATA: Final = ("prompts", "config")


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` and ``~NAME`` replaced; as it is if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _folder(kind: Kind, environ: Mapping[str, str] = os.environ) -> Path:
    if named := environ.get(f"MLX_TOOLS_{kind.upper()}_DIR", "").strip():
        return expand_user(named).absolute()
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


def open_regular(path: str | os.PathLike[str], max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file of at most ``max_bytes`` bytes for reading, also by way of a link.

    Whoever wrote a repository can put a pipe, a device or a file without end in the place of any
    file that we read: opening the first waits for ever, reading the others fills the memory.
    Raises OSError, with words that a person can be shown.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.open(path, flags)
    try:
        check_regular(file, max_bytes)
    except OSError:
        os.close(file)
        raise
    return os.fdopen(file, "rb")


def check_regular(file: int, max_bytes: int | None = None) -> None:
    """Raise OSError for an open file that is not regular, or larger than ``max_bytes`` bytes."""
    info = os.fstat(file)
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if max_bytes is not None and info.st_size > max_bytes:
        raise _too_large(max_bytes)


def read_regular(path: str | os.PathLike[str], max_bytes: int = MAX_READ) -> bytes:
    """The bytes of a regular file, at most ``max_bytes``. Raises what `open_regular` raises."""
    with open_regular(path, max_bytes) as file:
        data = file.read(max_bytes + 1)  # some files of /proc say that they are empty
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def _too_large(max_bytes: int) -> OSError:
    size = f"{max_bytes >> 20} MB" if max_bytes >= 1 << 20 else f"{max_bytes} bytes"
    return OSError(errno.EFBIG, f"it is larger than {size}")


def open_private(path: Path) -> BinaryIO:
    """A file that its owner alone may write to, for reading. Raises OSError, and PermissionError
    for one that is not this user's own, that others may write to, or no file."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    info = os.fstat(file)
    wrong = "it is no regular file" if not stat.S_ISREG(info.st_mode) else ""
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        wrong = wrong or "it cannot be trusted: others may write to it"
    if wrong:
        os.close(file)
        raise PermissionError(errno.EPERM, wrong)
    return os.fdopen(file, "rb")


def read_private(path: Path, max_bytes: int) -> bytes:
    """The first ``max_bytes`` bytes of such a file. Raises what `open_private` raises."""
    with open_private(path) as file:
        return file.read(max_bytes)


@contextlib.contextmanager
def drafted(
    path: Path, data: bytes, *, sync: Callable[[int], None] | None = None, mode: int = 0o600
) -> Iterator[Path]:
    """A new file beside ``path`` with ``data`` in it, whole, to be moved or linked there; else it
    is gone when the block ends. ``sync`` gets it to the disk, to survive a power cut. Raises
    OSError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, mode), "wb") as out:
            out.write(data)
            if sync is not None:
                out.flush()
                sync(out.fileno())
        yield draft
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file whole and lastingly, or leave what was there. Raises OSError."""
    with drafted(path, data, sync=sync_fully, mode=mode) as draft:
        draft.replace(path)


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


def read_data(name: str) -> str:
    """The text of a file such as ``prompts/persona.txt``. Raises `ConfigError` where there is none.

    ``name`` is relative, and begins with ``prompts/`` or ``config/``.
    """
    package = _package_folder()
    for place in (package / "_data", package.parent):
        path = place / name
        if path.is_file():
            return read_text(path)
    raise ConfigError(f"{name} is missing", hint="install mlx-tools again")


def package_file(name: str) -> Path:
    """The path of a file of this package, such as ``golden/report.css`` or a script to run.

    A script that is there only compiled is named with ``.pyc``, which Python runs as well.
    """
    path = _package_folder() / name
    return path.with_suffix(".pyc") if path.suffix == ".py" and not path.is_file() else path


@functools.cache
def _package_folder() -> Path:
    """The folder of this package. Files in a zip archive are unpacked first, and removed at exit:
    other programs cannot open them there."""
    if os.path.isfile(__file__):  # noqa: PTH113 - every start asks
        return Path(__file__).resolve().parent
    import atexit
    import tempfile
    import zipfile

    loader: Any = getattr(__spec__, "loader", None)
    if not hasattr(loader, "archive"):
        raise ConfigError(
            "the files of mlx-tools cannot be found", hint="run it from a folder or a zip archive"
        )
    folder, owner = tempfile.mkdtemp(prefix=f"{APP}-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not at the end of a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    package = PurePosixPath(loader.prefix)
    wanted = tuple(f"{place}/" for place in (package, *map(package.with_name, _DATA)))
    try:
        with zipfile.ZipFile(loader.archive) as archive:
            archive.extractall(folder, [n for n in archive.namelist() if n.startswith(wanted)])
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"the files of mlx-tools in {loader.archive} cannot be unpacked: {error}",
            hint="is the archive still there, and is there room in the folder that TMPDIR names?",
        ) from error
    return Path(folder, package)


def read_text(path: Path) -> str:
    """A UTF-8 file's text. Raises `ConfigError` where it cannot be read."""
    try:
        return read_regular(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


# --- how the program is installed -----------------------------------------------------------------


def to_install(extra: str) -> str:
    """The command that adds an extra, such as ``gateway``, to the installation that runs."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution(APP)
    except PackageNotFoundError:  # a checkout on the path
        return f"pip install '{APP}[{extra}]'"
    return command_to_install(extra, found, Path(sys.prefix), sys.executable)


def command_to_install(extra: str, distribution: Distribution, prefix: Path, python: str) -> str:
    """`to_install` for the program as ``distribution`` in an environment at ``prefix``, with its
    Python.

    Another ``pip`` than the environment's own would install it where nothing finds it: pipx and uv
    keep one for each program, and say so by a file in it.
    """
    import json

    source: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        source = dict(json.loads(distribution.read_text("direct_url.json") or "{}"))
    url = str(source.get("url") or "")
    if vcs := source.get("vcs_info"):
        url = f"{vcs.get('vcs')}+{url}@{vcs.get('requested_revision') or vcs.get('commit_id')}"
    where = f" @ {url}" if url else ""
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx inject {prefix.name} {quote(f'{APP}[{extra}]{where}')}"
    if (prefix / "uv-receipt.toml").is_file():
        extras, beside = _receipt(prefix / "uv-receipt.toml", extra)
        named = quote(f"{APP}[{','.join(extras)}]{where}")
        return " ".join(["uv tool install", named, *(f"--with {quote(one)}" for one in beside)])
    editable = bool((source.get("dir_info") or {}).get("editable"))
    what = quote(
        f"{url.removeprefix('file://')}[{extra}]" if editable else f"{APP}[{extra}]{where}"
    )
    what = f"-e {what}" if editable else what
    if (distribution.read_text("INSTALLER") or "").strip() == "uv":
        return f"uv pip install --python {quote(python)} {what}"
    own = shutil.which("pip")
    pip = own is not None and Path(own).parent == Path(python).parent
    return f"{'pip' if pip else f'{quote(python)} -m pip'} install {what}"


def _receipt(path: Path, extra: str) -> tuple[list[str], list[str]]:
    """The extras that uv is to install, those it did and this one, and the packages beside."""
    import tomllib

    own: list[str] = []
    beside: list[str] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for one in tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["requirements"]:
            if one["name"] == APP:
                own += one.get("extras", ())
            else:
                beside.append(str(one["name"]))
    return list(dict.fromkeys([*own, extra])), beside
