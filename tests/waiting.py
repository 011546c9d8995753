"""Waits for events, never for time: deadlines are far off, and only end a test that hangs."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio

HANG: Final = 120.0
"""Seconds after which a test hangs. No test needs as many, on a machine however busy."""

EXPIRES: Final = 0.05
"""Seconds of a deadline that is to pass: what it is set on never ends of itself."""

PAUSE: Final = 0.01
"""Seconds between two looks at what no event tells of."""


def wait_until(happens: Callable[[], Any], what: str = "") -> Any:
    """Return what ``happens`` returns, once that is true."""
    end = time.monotonic() + HANG
    while not (result := happens()):
        assert time.monotonic() < end, what or f"{inspect.getsource(happens).strip()} did not come"
        time.sleep(PAUSE)
    return result


def set_time_back(path: Path, before: os.stat_result) -> None:
    """Give a changed file the time of modification that it had before.

    Its time of change is another one even where the system counts such times in steps of 10 ms.
    """

    def is_another() -> bool:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return path.stat().st_ctime_ns != before.st_ctime_ns

    wait_until(is_another)


async def moment() -> None:
    """Let what else there is go on."""
    await anyio.sleep(PAUSE)


async def until(happens: Callable[[], Any], what: str = "") -> Any:
    """As `wait_until`, in a task; ``happens`` may be asynchronous."""
    end = time.monotonic() + HANG
    while True:
        result = happens()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        assert time.monotonic() < end, what or f"{inspect.getsource(happens).strip()} did not come"
        await moment()
