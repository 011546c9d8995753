"""Runs work on untrusted input in separate processes.

The work is a function of the package. `mlx_tools.toolbox.isolated` calls it in a process that has
none of this process's environment, and has limits of time, memory and output.
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
    """The limits of a process."""

    seconds: float
    """Seconds from start to end."""
    cpu_seconds: int
    """Seconds of processor time."""
    memory_mb: int
    """Megabytes of memory."""
    max_output_bytes: int = 100_000_000
    """Bytes that it may print."""


class WorkerFailed(Exception):
    """The process has no result.

    Args:
        problem: the problem that it reported; empty if it crashed.
        over_limit: True if it exceeded its limits.
    """

    def __init__(self, problem: str = "", *, over_limit: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.over_limit = over_limit


async def run_in_worker(
    work: str, package: str, arguments: dict[str, Any], bounds: Bounds, files: Sequence[int] = ()
) -> dict[str, Any]:
    """Do the same as `run_worker`, in a thread.

    If the task is cancelled, the process is ended at once.

    Args:
        work: the function, such as ``toolbox.html_text.read_html``.
        package: the package that the function needs.
        arguments: its arguments, as JSON values.
        bounds: the limits of the process.
        files: descriptors of open files that it inherits under the same numbers.
    """
    child = start_worker(work, package, arguments, bounds, files)
    try:
        answer, error = await submit(functools.partial(_answer, child, bounds)) or ({}, None)
    finally:
        kill_group(child.pid)
        child.wait()
    if error is not None:
        raise error
    return answer or {}


def run_worker(
    work: str, package: str, arguments: dict[str, Any], bounds: Bounds
) -> dict[str, Any]:
    """Return the result of a function of the package for JSON arguments.

    Raises:
        WorkerFailed: the process has no result.
        ToolError: the package is not installed.
    """
    return _answer(start_worker(work, package, arguments, bounds), bounds)


def start_worker(
    work: str, package: str, arguments: dict[str, Any], bounds: Bounds, files: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start the process of a worker, whose standard output gets the result.

    The arguments are those of `run_in_worker`.

    Raises:
        ToolError: the package is not installed, or the process cannot be started.
    """
    package_spec = importlib.util.find_spec(package.partition(".")[0])
    if package_spec is None or package_spec.origin is None:
        raise ToolError(f"the package {package} is not installed", code="disabled")
    module, _, function = work.rpartition(".")
    limits = {"cpu_seconds": bounds.cpu_seconds, "memory_mb": bounds.memory_mb}
    try:
        with tempfile.TemporaryFile() as request:  # writing to a pipe could block
            request.write(json.dumps({**arguments, "limits": limits}).encode())
            request.seek(0)
            return subprocess.Popen(  # noqa: S603 - a list, no shell
                [
                    *(sys.executable, "-I", "-X", "utf8", str(package_file("toolbox/isolated.py"))),
                    *(f"mlx_tools.{module}", function, package),
                    str(Path(package_spec.origin).parent.parent),
                ],
                stdin=request,
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
    """Return the printed answer of the process once it ends or its time is over."""
    assert child.stdout is not None
    deadline, printed = time.monotonic() + bounds.seconds, bytearray()

    def take(piece: bytes) -> bool:
        printed.extend(piece)
        return len(printed) <= bounds.max_output_bytes

    with child:
        output_end, pipes = child.stdout.fileno(), Pipes({child.stdout.fileno(): take})
        try:
            while output_end in pipes and (seconds_left := deadline - time.monotonic()) > 0:
                pipes.read(seconds_left)
            has_ended = output_end not in pipes and len(printed) <= bounds.max_output_bytes
            if has_ended:
                child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            has_ended = False
        finally:
            pipes.close()
            kill_group(child.pid)
    if not has_ended or child.returncode < 0 or child.returncode == isolated.OUT_OF_MEMORY:
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
