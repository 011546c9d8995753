"""Daemon threads for functions that block.

A thread cannot be stopped from outside. One that hangs holds up neither its call nor the end of the
program, as a thread of `concurrent.futures` or of anyio would: those are waited for at exit.

A thread that is done waits for the next function. To start one for each call took half of the time
of a step with a small tool.
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
"""Calls that run in threads at one time, abandoned ones included. A turn runs four at once; the
rest is room for those that hang, and few enough for any system."""

Outcome = tuple[Any, BaseException | None]
"""The value that a function returned, or the exception that it raised."""


class TooManyThreads(Exception):
    """Too many abandoned calls still run, so no further one is started."""


_Jobs = queue.SimpleQueue[Callable[["_Jobs"], None]]
"""The jobs of one thread, one after the other. Each job gets the queue that it came from."""


class _Threads:
    """The calls that may still begin, and the queues of the threads that wait."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start again: a child process has none of its parent's threads."""
        self.free = threading.Semaphore(MAX_THREADS)
        self.waiting: deque[_Jobs] = deque()


_threads: Final = _Threads()
os.register_at_fork(after_in_child=_threads.renew)


def _serve(jobs: _Jobs) -> None:
    """Do one job after the other, as long as the program runs."""
    while True:
        jobs.get()(jobs)


def submit(work: Callable[[], Any]) -> asyncio.Future[Outcome | None]:
    """Call ``work`` in a thread, in a copy of the current context.

    The future never holds an exception: its result has the returned value and the raised exception.
    A waiting caller may settle it with None, or cancel it; the function then runs on.

    Raises:
        TooManyThreads: no further call can begin.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    if sniffio := sys.modules.get("sniffio"):
        # No loop runs in the thread. The copied context says that one does, and a function that
        # calls `anyio.run`, or another controller's `run_sync`, would be refused.
        context.run(sniffio.current_async_library_cvar.set, None)
    future: asyncio.Future[Outcome | None] = loop.create_future()
    free, waiting = _threads.free, _threads.waiting

    def run(jobs: _Jobs) -> None:
        outcome: Outcome
        try:
            outcome = context.run(work), None
        except BaseException as error:  # carried over to whoever waits
            outcome = None, error
        finally:
            # Before the caller is told: its next call takes this thread.
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
        except RuntimeError as error:  # the system has no more
            free.release()
            raise TooManyThreads(str(error)) from None
    jobs.put(run)
    return future


def settle(future: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    """Give a future its outcome, unless it has one or was given up."""
    if not future.done():
        future.set_result(outcome)
