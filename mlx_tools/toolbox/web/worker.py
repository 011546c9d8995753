"""Asks a script in a process of its own, which cannot take this one along.

What it works on comes from strangers. Its time, its memory and what it prints are limited, it has
none of this process's environment, and it is ended at once when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlx_tools.process import isolated
from mlx_tools.tools.context import ToolError

_ISOLATED: Final = str(Path(isolated.__file__))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a process may use: seconds in all, seconds of a processor, megabytes of memory, bytes
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


async def ask_script(
    script: str, package: str, question: dict[str, Any], bounds: Bounds
) -> dict[str, Any]:
    """What a module of ``mlx_tools.process`` answers: an object for an object, both as JSON.
    ``package`` is the foreign one that it needs. Raises Ended, and ToolError where no process can
    be started or the package is missing."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ToolError(f"the package {package} is not installed", code="disabled")
    limits = {"cpu_seconds": bounds.cpu_seconds, "memory_mb": bounds.memory_mb}
    asked = json.dumps({**question, "limits": limits}).encode()
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-X",
            "utf8",
            _ISOLATED,
            f"mlx_tools.process.{script}",
            str(Path(found.origin).parent.parent),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"no process can be started to read it: {error.strerror}") from None
    try:
        async with asyncio.timeout(bounds.seconds):
            answer = await _talk(child, asked, bounds.most)
            code = await child.wait()
    except TimeoutError:
        raise WorkerFailed(beyond=True) from None
    finally:
        await _end(child)
    if code:
        raise WorkerFailed(beyond=code < 0 or code == isolated.OUT_OF_MEMORY)
    try:
        value = json.loads(answer)
    except ValueError:
        raise WorkerFailed(beyond=False) from None
    if not isinstance(value, dict):
        raise WorkerFailed(beyond=False)
    return value


async def _talk(child: asyncio.subprocess.Process, asked: bytes, most: int) -> bytes:
    """Hands the question over, and gives what the child prints until it ends."""
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


async def _end(child: asyncio.subprocess.Process) -> None:
    """Ends the child and all that it started; waits until it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()
