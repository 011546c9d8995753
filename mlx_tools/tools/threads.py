"""Daemon threads for functions that block.

A thread cannot be stopped from outside. One that hangs holds up neither its call nor the end of the
program, as a thread of `concurrent.futures` or of anyio would: those are waited for at exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any, Final

MAX_THREADS: Final = 64
"""Calls that run in threads at one time, abandoned ones included. A turn runs four at once; the
rest
is room for those that hang, and few enough for any system."""

Outcome = tuple[Any, BaseException | None]
"""The value that a function returned, or the exception that it raised."""


class TooManyThreads(Exception):
    """Too many abandoned calls still run, so no further one is started."""


class _Slots:
    """The threads that may still be started."""

    def __init__(self) -> None:
        self.free = threading.Semaphore(MAX_THREADS)

    def renew(self) -> None:
        """Start again: a child process has none of its parent's threads."""
        self.free = threading.Semaphore(MAX_THREADS)


_slots: Final = _Slots()
os.register_at_fork(after_in_child=_slots.renew)


def submit(work: Callable[[], Any]) -> asyncio.Future[Outcome | None]:
    """Start ``work`` in a thread, in a copy of the current context.

    The future never holds an exception: its result has the returned value and the raised exception.
    A waiting caller may settle it with None, or cancel it; the function then runs on.

    Raises:
        TooManyThreads: no further thread can be started.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Outcome | None] = loop.create_future()
    free = _slots.free

    def run() -> None:
        outcome: Outcome
        try:
            outcome = context.run(work), None
        except BaseException as error:  # carried over to whoever waits
            outcome = None, error
        finally:
            free.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, future, outcome)

    if not free.acquire(blocking=False):
        raise TooManyThreads(f"{MAX_THREADS} calls are still running")
    try:
        threading.Thread(target=run, name="mlx-tools", daemon=True).start()
    except RuntimeError as error:  # the system has no more
        free.release()
        raise TooManyThreads(str(error)) from None
    return future


def settle(future: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    """Give a future its outcome, unless it has one or was given up."""
    if not future.done():
        future.set_result(outcome)
