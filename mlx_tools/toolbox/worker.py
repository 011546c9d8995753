"""Work on what comes from strangers, each piece in a process of its own.

It is a function of the toolbox, which `mlx_tools.toolbox.isolated` calls in a process that has none
of this one's environment, and limits of time, memory and output.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from mlx_tools.paths import package_file
from mlx_tools.process import Pipes, kill_group
from mlx_tools.toolbox import isolated
from mlx_tools.tools import ToolError, submit


class Bounds(Struct, frozen=True):
    """The bounds of a process: seconds in all, seconds of a processor, megabytes of memory, bytes
    that it may print."""

    seconds: float
    cpu_seconds: int
    memory_mb: int
    most: int = 100_000_000


class WorkerFailed(Exception):
    """The process came to no result. ``beyond`` is whether it went beyond its bounds; else it met a
    ``problem``, or, where that is empty, broke."""

    def __init__(self, problem: str = "", *, over_limit: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.beyond = over_limit


async def ask_apart(
    work: str, package: str, arguments: dict[str, Any], bounds: Bounds, files: Sequence[int] = ()
) -> dict[str, Any]:
    """As `run_apart`, in a thread; the process is ended at once when nobody waits for it any
    more. ``files`` are open files that it has too, under the same numbers."""
    child = _start_worker(work, package, arguments, bounds, files)
    try:
        found, error = await submit(functools.partial(_answer, child, bounds)) or ({}, None)
    finally:
        kill_group(child.pid)
        child.wait()
    if error is not None:
        raise error
    return found or {}


def run_apart(work: str, package: str, arguments: dict[str, Any], bounds: Bounds) -> dict[str, Any]:
    """What a function of the toolbox, such as ``html_text.read_html``, returns for arguments that
    JSON can say; ``package`` is a foreign module that it needs. Raises WorkerFailed, and ToolError
    where that package is missing."""
    return _answer(_start_worker(work, package, arguments, bounds), bounds)


def _start_worker(
    work: str, package: str, arguments: dict[str, Any], bounds: Bounds, files: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    found = importlib.util.find_spec(package.partition(".")[0])
    if found is None or found.origin is None:
        raise ToolError(f"the package {package} is not installed", code="disabled")
    module, _, function = work.rpartition(".")
    limits = {"cpu_seconds": bounds.cpu_seconds, "memory_mb": bounds.memory_mb}
    try:
        with tempfile.TemporaryFile() as asked:  # which, unlike a pipe, nobody has to empty
            asked.write(json.dumps({**arguments, "limits": limits}).encode())
            asked.seek(0)
            return subprocess.Popen(  # noqa: S603 - a list, no shell
                [
                    *(sys.executable, "-I", "-X", "utf8", str(package_file("toolbox/isolated.py"))),
                    *(f"mlx_tools.toolbox.{module}", function, package),
                    str(Path(found.origin).parent.parent),
                ],
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                cwd="/",
                pass_fds=files,
                start_new_session=True,
            )
    except OSError as error:
        raise WorkerFailed(f"no process can be started: {error.strerror}") from None


def _answer(child: subprocess.Popen[bytes], bounds: Bounds) -> dict[str, Any]:
    """What the process prints until it ends, at the latest when its time is over."""
    assert child.stdout is not None
    until, printed = time.monotonic() + bounds.seconds, bytearray()

    def take(piece: bytes) -> bool:
        printed.extend(piece)
        return len(printed) <= bounds.most

    with child:
        end, pipes = child.stdout.fileno(), Pipes({child.stdout.fileno(): take})
        try:
            while end in pipes and (left := until - time.monotonic()) > 0:
                pipes.read(left)
            ended = end not in pipes and len(printed) <= bounds.most
            if ended:
                child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            pipes.close()
            kill_group(child.pid)
    if not ended or child.returncode < 0 or child.returncode == isolated.OUT_OF_MEMORY:
        raise WorkerFailed(over_limit=True)
    try:
        answer = json.loads(printed)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise WorkerFailed
    if "problem" in answer:
        raise WorkerFailed(str(answer["problem"]))
    return answer
