"""Daemon threads for functions that block.

A thread cannot be stopped from outside. If a daemon thread hangs, its call still ends in time, and
the program can exit. At exit Python waits for threads of `concurrent.futures` and of anyio, so
these cannot be used.

A thread that has finished waits for the next function. A new thread for each call took half of the
time of a step with a small tool.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

MAX_THREADS: Final = 64
"""The limit of calls that run in threads at once, with the abandoned ones.

A turn runs four at once; the others are room for calls that hang. Any system can run so many."""

Outcome = tuple[Any, BaseException | None]
"""The value that a function returned, or the exception that it raised."""


class TooManyThreads(Exception):
    """Too many abandoned calls still run, so no other call can be started."""


_Jobs = queue.SimpleQueue[Callable[["_Jobs"], None]]
"""The jobs of one thread, which runs them in turn. Each job gets the queue of its thread."""


class _Threads:
    """The number of calls that may still begin, and the queues of idle threads."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start again, because a child process has none of its parent's threads."""
        self.free = threading.Semaphore(MAX_THREADS)
        self.waiting: deque[_Jobs] = deque()


_threads: Final = _Threads()
os.register_at_fork(after_in_child=_threads.renew)


def _serve(jobs: _Jobs) -> None:
    """Run the jobs in turn, as long as the program runs."""
    while True:
        jobs.get()(jobs)


def submit(work: Callable[[], Any]) -> asyncio.Future[Outcome | None]:
    """Call ``work`` in a thread, in a copy of the current context.

    The future never fails: its result is the returned value and the raised exception. The caller
    may settle it with None, or cancel it; the function then runs on.

    Raises:
        TooManyThreads: no other call can begin.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    if sniffio := sys.modules.get("sniffio"):
        # The copied context says that an event loop runs, but none runs in the thread. So a
        # function could not call `anyio.run`, or another controller's `run_sync`.
        context.run(sniffio.current_async_library_cvar.set, None)
    future: asyncio.Future[Outcome | None] = loop.create_future()
    free, waiting = _threads.free, _threads.waiting

    def run(jobs: _Jobs) -> None:
        outcome: Outcome
        try:
            outcome = context.run(work), None
        except BaseException as error:  # passed to the caller
            outcome = None, error
        finally:
            # Before the caller gets the outcome, so that its next call can use this thread.
            waiting.append(jobs)
            free.release()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, future, outcome)

    if not free.acquire(blocking=False):
        raise TooManyThreads(f"{MAX_THREADS} calls are still running")
    try:
        jobs = waiting.pop()
    except IndexError:
        jobs = queue.SimpleQueue()
        try:
            threading.Thread(target=_serve, args=(jobs,), name="mlx-tools", daemon=True).start()
        except RuntimeError as error:  # the system's limit of threads
            free.release()
            raise TooManyThreads(str(error)) from None
    jobs.put(run)
    return future


def settle(future: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    """Set the outcome of a future, unless it is settled or cancelled."""
    if not future.done():
        future.set_result(outcome)
