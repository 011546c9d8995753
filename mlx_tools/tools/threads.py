"""Threads for functions that block: kept for the next call, left behind when one never ends.

A thread cannot be stopped from outside. These are daemon threads, so one that hangs holds up
neither its call, whose time is limited elsewhere, nor the end of the program, as the threads of
`concurrent.futures` would.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

MAX_THREADS: Final = 64
"""Calls at one time, those included that were given up and still run."""

Outcome = tuple[Any, BaseException | None]
"""What a function returned, or what it raised."""


class TooManyThreads(Exception):
    """So many calls were given up and still run that no further one is started."""


class _Pool:
    """Threads that wait for bytes in a pipe, one for each job.

    The system wakes the reader of a pipe on the processor of the writer, who is about to wait;
    whoever waits for a lock or a queue may be woken on another one that sleeps, which takes several
    times as long as most calls.
    """

    def __init__(self) -> None:
        self.free = threading.Semaphore(MAX_THREADS)  # calls that may yet begin
        self.idle = threading.Semaphore(0)  # threads that wait
        self.jobs: deque[Callable[[], None]] = deque()
        self._read, self.wake = os.pipe()

    def serve(self) -> None:
        """Does one job after the other, in a thread of its own."""
        while os.read(self._read, 1):
            self.jobs.popleft()()


_pool = functools.cache(_Pool)
os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads


def submit(work: Callable[[], Any]) -> asyncio.Future[Outcome | None]:
    """Starts ``work`` in a thread, in a copy of the current context.

    The future never holds an exception: it gives what was returned and what was raised. Who waits
    may settle it with None, or cancel it; the function then runs on. Raises TooManyThreads.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Outcome | None] = loop.create_future()
    try:
        pool = _pool()
    except OSError as error:  # there are no more files
        raise TooManyThreads(f"no thread can be started: {error.strerror}") from None

    def job() -> None:
        outcome: Outcome
        try:
            outcome = (context.run(work), None)
        except BaseException as error:  # carried over to whoever waits
            outcome = (None, error)
        pool.idle.release()
        pool.free.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, future, outcome)

    if not pool.free.acquire(blocking=False):
        raise TooManyThreads(f"{MAX_THREADS} calls are still running")
    if not pool.idle.acquire(blocking=False):
        try:
            threading.Thread(target=pool.serve, name="mlx-tools", daemon=True).start()
        except RuntimeError as error:  # the system has no more
            pool.free.release()
            raise TooManyThreads(str(error)) from None
    pool.jobs.append(job)
    os.write(pool.wake, b"j")
    return future


def settle(future: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    """Gives a future its outcome, unless it has one or was given up."""
    if not future.done():
        future.set_result(outcome)
