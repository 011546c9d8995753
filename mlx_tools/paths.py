"""The places of mlx-tools' files; no other module knows them.

Configuration, data, state and cache are in the platform's usual folders (XDG variables on Linux).
``MLX_TOOLS_CONFIG_DIR``, ``MLX_TOOLS_DATA_DIR``, ``MLX_TOOLS_STATE_DIR`` and
``MLX_TOOLS_CACHE_DIR`` name others. Nothing is created before it is used, and only its owner may
read it. The files of ``prompts/`` and ``config/`` come with the program: a wheel has them in the
package, under ``_data``; a checkout has them at its root. The place of the program, and the tool
that installed it, decide the command that adds an extra.
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
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, get_args

from mlx_tools.errors import ConfigError, UsageError
from mlx_tools.macos import sync_fully

if TYPE_CHECKING:
    from importlib.metadata import Distribution

Kind = Literal["config", "data", "state", "cache"]

APP: Final = "mlx-tools"
OWNER_ONLY: Final = 0o700
"""The mode of new folders."""
MAX_READ: Final = 64 << 20
"""The most bytes of a file that is read whole: the largest tokenizers have 35 MB."""
_DATA: Final = ("prompts", "config")
"""Folders of files that come with the program."""


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` and ``~NAME`` replaced.

    Unchanged if there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def file_exists(path: str | os.PathLike[str]) -> bool:
    """Return True if there is a file or folder of this path, which may be any text."""
    # Path.exists raises an error for a long name, and for one in a folder that is closed to us.
    return os.path.exists(expand_user(path))  # noqa: PTH110


def folder_exists(path: str | os.PathLike[str]) -> bool:
    """Return True if there is a folder of this path, which may be any text."""
    return os.path.isdir(expand_user(path))  # noqa: PTH112


def _folder(kind: Kind, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for one kind of files."""
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
"""The user's own data: knowledge base, notes."""

state_dir = functools.partial(_folder, "state")
"""Data from earlier runs: transcripts, artifacts, logs, history."""

cache_dir = functools.partial(_folder, "cache")
"""Data that can be fetched again: the embedded model."""


def knowledge_base_file() -> Path:
    """Return the file of the user's knowledge base."""
    return data_dir() / "knowledge-base.sqlite3"


def open_regular(path: str | os.PathLike[str], max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file of at most ``max_bytes`` bytes for reading.

    Links are followed.

    The author of a repository can put a pipe, a device or an endless file in the place of any file
    that we read. Opening the first waits for ever, reading the others fills the memory.

    Raises:
        OSError: the file cannot be opened, with a message that a person can read.
    """
    # O_NONBLOCK: opening a pipe returns at once. O_NOCTTY: a terminal does not become ours.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.open(path, flags)
    try:
        check_regular(file, max_bytes)
    except OSError:
        os.close(file)
        raise
    return os.fdopen(file, "rb")


def check_regular(file: int, max_bytes: int | None = None) -> None:
    """Raise `OSError` if an open file is not regular, or is larger than ``max_bytes``."""
    info = os.fstat(file)
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if max_bytes is not None and info.st_size > max_bytes:
        raise _too_large(max_bytes)


def read_regular(path: str | os.PathLike[str], max_bytes: int = MAX_READ) -> bytes:
    """Return the bytes of a regular file, at most ``max_bytes``.

    Raises as `open_regular` does.
    """
    with open_regular(path, max_bytes) as file:
        data = file.read(max_bytes + 1)  # one more: files in /proc report a size of 0
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def _too_large(max_bytes: int, verb: str = "it is") -> OSError:
    size = f"{max_bytes >> 20} MB" if max_bytes >= 1 << 20 else f"{max_bytes} bytes"
    return OSError(errno.EFBIG, f"{verb} larger than {size}")


def open_private(path: Path) -> BinaryIO:
    """Open a file that only its owner may write to, for reading.

    Raises:
        PermissionError: it is not this user's own, others may write to it, or it is no regular
            file.
        OSError: it cannot be opened.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    info = os.fstat(file)
    problem = "it is no regular file" if not stat.S_ISREG(info.st_mode) else ""
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        problem = problem or "it cannot be trusted: others may write to it"
    if problem:
        os.close(file)
        raise PermissionError(errno.EPERM, problem)
    return os.fdopen(file, "rb")


def read_private(path: Path, max_bytes: int) -> bytes:
    """Return the first ``max_bytes`` bytes of a private file.

    Raises as `open_private` does.
    """
    with open_private(path) as file:
        return file.read(max_bytes)


@contextlib.contextmanager
def drafted(
    path: Path, data: bytes, *, sync: Callable[[int], None] | None = None, mode: int = 0o600
) -> Iterator[Path]:
    """Write ``data`` into a temporary file beside ``path``, to be moved there.

    What is not moved by the end of the block is removed.

    Args:
        path: the later place of the file.
        data: its contents.
        sync: writes an open file to the disk, so that it survives a power cut.
        mode: the file's mode.

    Raises:
        OSError: the file cannot be written.
    """
    # Beside the target, since only a rename within one file system is atomic.
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


def write_whole(
    path: Path, data: bytes, mode: int = 0o600, *, max_bytes: int | None = None
) -> None:
    """Write a file whole, so that it survives a power cut.

    If that fails the old file stays. So it does if the new one would have more than ``max_bytes``,
    the most that its reader takes.

    Raises:
        OSError: it cannot be written.
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise _too_large(max_bytes, "it would be")
    with drafted(path, data, sync=sync_fully, mode=mode) as draft:
        # The data is on the disk before the rename: after a power cut there is the old file or the
        # new one.
        draft.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file that is read and then written against other processes.

    Its folder is created if it is missing.

    Raises:
        OSError: the folder cannot be written to.
    """
    import fcntl

    private_dir(path.parent)
    # A lock file of its own: the file itself is replaced by each write.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path.with_suffix(".lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def private_dir(path: Path) -> Path:
    """Create a folder and its missing parents, readable by their owner only.

    Return it.

    A folder that exists keeps its mode: a person may have opened it on purpose.

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
            hint="make it a folder that you may write to" + other_folder_hint(path),
        ) from error
    return path


def other_folder_hint(path: Path) -> str:
    """Return how another folder is named instead of this one, empty if it cannot be."""
    for kind in get_args(Kind):
        if path.is_relative_to(_folder(kind)):
            return f", or name another by MLX_TOOLS_{kind.upper()}_DIR"
    return ""


def read_data(name: str) -> str:
    """Return the text of a file that comes with the program.

    Such as ``prompts/persona.txt``.

    Args:
        name: a relative path that begins with ``prompts/`` or ``config/``.

    Raises:
        ConfigError: there is no such file.
    """
    package = _package_folder()
    for place in (package / "_data", package.parent):
        path = place / name
        if path.is_file():
            return read_text(path)
    raise ConfigError(f"{name} is missing", hint="install mlx-tools again")


def package_file(name: str) -> Path:
    """Return the path of a file of this package, such as a stylesheet or a script.

    If a script exists only in compiled form its path ends in ``.pyc``, which Python runs as well.
    """
    path = _package_folder() / name
    return path.with_suffix(".pyc") if path.suffix == ".py" and not path.is_file() else path


@functools.cache
def _package_folder() -> Path:
    """Return the folder of this package.

    Files in a zip archive are unpacked first and removed at exit: other programs cannot open them
    there.
    """
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
        if os.getpid() == owner:  # a fork that ends must not remove the files of its parent
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    package = PurePosixPath(loader.prefix)
    prefixes = tuple(f"{place}/" for place in (package, *map(package.with_name, _DATA)))
    try:
        with zipfile.ZipFile(loader.archive) as archive:
            archive.extractall(folder, [n for n in archive.namelist() if n.startswith(prefixes)])
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"the files of mlx-tools in {loader.archive} cannot be unpacked: {error}",
            hint="is the archive still there, and is there room in the folder that TMPDIR names?",
        ) from error
    return Path(folder, package)


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return read_regular(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


# --- how the program is installed -----------------------------------------------------------------


def to_install(extra: str) -> str:
    """Return the command that adds an extra, such as ``gateway``, to the installation."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = distribution(APP)
    except PackageNotFoundError:  # a checkout on the path
        return f"pip install '{APP}[{extra}]'"
    return command_to_install(extra, installed, Path(sys.prefix), sys.executable)


def command_to_install(extra: str, distribution: Distribution, prefix: Path, python: str) -> str:
    """Return the command of `to_install` for a program in an environment.

    A ``pip`` other than the environment's own would install it elsewhere. pipx and uv have an
    environment for each program, and mark it by a file in it.

    Args:
        extra: the extra.
        distribution: the installed program.
        prefix: the environment.
        python: the environment's Python.
    """
    import json

    source: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        source = dict(json.loads(distribution.read_text("direct_url.json") or "{}"))
    url = str(source.get("url") or "")
    if vcs := source.get("vcs_info"):
        url = f"{vcs.get('vcs')}+{url}@{vcs.get('requested_revision') or vcs.get('commit_id')}"
    location = f" @ {url}" if url else ""
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx inject {prefix.name} {quote(f'{APP}[{extra}]{location}')}"
    if (prefix / "uv-receipt.toml").is_file():
        extras, packages = _receipt(prefix / "uv-receipt.toml", extra)
        requirement = quote(f"{APP}[{','.join(extras)}]{location}")
        return " ".join(
            ["uv tool install", requirement, *(f"--with {quote(package)}" for package in packages)]
        )
    editable = bool((source.get("dir_info") or {}).get("editable"))
    target = quote(
        f"{url.removeprefix('file://')}[{extra}]" if editable else f"{APP}[{extra}]{location}"
    )
    target = f"-e {target}" if editable else target
    if (distribution.read_text("INSTALLER") or "").strip() == "uv":
        return f"uv pip install --python {quote(python)} {target}"
    pip_path = shutil.which("pip")
    is_own_pip = pip_path is not None and Path(pip_path).parent == Path(python).parent
    return f"{'pip' if is_own_pip else f'{quote(python)} -m pip'} install {target}"


def _receipt(path: Path, extra: str) -> tuple[list[str], list[str]]:
    """Return the extras to install by uv, ``extra`` among them, and other packages."""
    import tomllib

    extras: list[str] = []
    packages: list[str] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for requirement in tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["requirements"]:
            if requirement["name"] == APP:
                extras += requirement.get("extras", ())
            else:
                packages.append(str(requirement["name"]))
    return list(dict.fromkeys([*extras, extra])), packages
