"""Scripts that work on what comes from strangers, each in a process of its own.

A script is a module of `mlx_tools.process` that reads an object of JSON and prints one. Its process
has none of this one's environment, and limits of time, memory and output.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from mlx_tools.process import isolated
from mlx_tools.tools import ToolError

_SHUT_OFF: Final[dict[str, Any]] = {
    "stdin": subprocess.PIPE,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.DEVNULL,
    "env": {"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
    "cwd": "/",
    "start_new_session": True,
}


class Bounds(Struct, frozen=True):
    """The bounds of a process: seconds in all, seconds of a processor, megabytes of memory, bytes
    that it may print."""

    seconds: float
    cpu_seconds: int
    memory_mb: int
    most: int = 8_000_000


class WorkerFailed(Exception):
    """The process came to no result. ``beyond`` is whether it went beyond its bounds; else it
    broke."""

    def __init__(self, *, beyond: bool) -> None:
        super().__init__()
        self.beyond = beyond


def run_script(
    script: str, package: str, question: dict[str, Any], bounds: Bounds
) -> dict[str, Any]:
    """The answer of a script that is waited for; as `ask_script`, but what it prints is not
    bounded."""
    asked, command = _question(question, bounds), _command(script, package)
    with subprocess.Popen(command, **_SHUT_OFF) as child:  # noqa: S603 - a list, no shell
        try:
            answer, _ = child.communicate(asked, bounds.seconds)
        except subprocess.TimeoutExpired:
            raise WorkerFailed(beyond=True) from None
        finally:
            _kill(child.pid)
    return _result(child.returncode, answer)


async def ask_script(
    script: str, package: str, question: dict[str, Any], bounds: Bounds, files: Sequence[int] = ()
) -> dict[str, Any]:
    """The answer of a script; ``package`` is the foreign one that it needs, ``files`` are open
    files that it has too, under the same numbers.

    The process is ended at once when nobody waits for it any more. Raises WorkerFailed, and
    ToolError where no process can be started or the package is missing.
    """
    command = _command(script, package)
    try:
        child = await asyncio.create_subprocess_exec(*command, pass_fds=files, **_SHUT_OFF)
    except OSError as error:
        raise ToolError(f"no process can be started to read it: {error.strerror}") from None
    try:
        async with asyncio.timeout(bounds.seconds):
            answer = await _answer(child, _question(question, bounds), bounds.most)
            code = await child.wait()
    except TimeoutError:
        raise WorkerFailed(beyond=True) from None
    finally:
        _kill(child.pid)
        await child.wait()
    return _result(code, answer)


def _command(script: str, package: str) -> list[str]:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ToolError(f"the package {package} is not installed", code="disabled")
    return [
        *(sys.executable, "-I", "-X", "utf8", str(Path(isolated.__file__))),
        *(f"mlx_tools.process.{script}", str(Path(found.origin).parent.parent)),
    ]


def _question(question: dict[str, Any], bounds: Bounds) -> bytes:
    limits = {"cpu_seconds": bounds.cpu_seconds, "memory_mb": bounds.memory_mb}
    return json.dumps({**question, "limits": limits}).encode()


async def _answer(child: asyncio.subprocess.Process, asked: bytes, most: int) -> bytes:
    """All that the child prints until it ends, once it was handed the question."""
    assert child.stdin is not None and child.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        child.stdin.write(asked)
        await child.stdin.drain()
        child.stdin.close()
    answer = bytearray()
    while piece := await child.stdout.read(65_536):
        answer += piece
        if len(answer) > most:
            raise WorkerFailed(beyond=True)
    return bytes(answer)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _result(code: int, answer: bytes) -> dict[str, Any]:
    if code:
        raise WorkerFailed(beyond=code < 0 or code == isolated.OUT_OF_MEMORY)
    try:
        value = json.loads(answer)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise WorkerFailed(beyond=False)
    return value
