"""Threads for functions that block: kept for the next call, and left behind when one never ends.

A thread cannot be stopped from outside. These are daemon threads, so one that hangs holds up
neither its call, whose time is limited elsewhere, nor the end of the program, as the threads of a
pool would.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

MAX_THREADS: Final = 64
"""Calls at one time, those included that were given up and still run."""
MAX_IDLE: Final = 8

Outcome = tuple[Any, BaseException | None]
"""What a function returned, or what it raised."""


class TooManyThreads(Exception):
    """So many calls were given up and still run that no further one is started."""


class _Job(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Outcome | None]
    context: contextvars.Context
    work: Callable[[], Any]


class _Worker(threading.Thread):
    """A thread that does one job at a time, for whoever took it out of `_idle`.

    It waits for a byte in a pipe. The system wakes the reader of a pipe on the processor of the
    writer, who is about to wait; whoever waits for a lock or a queue may be woken on another one
    that sleeps, which takes several times as long as most calls.
    """

    def __init__(self, number: int) -> None:
        super().__init__(name=f"mlx-tools-{number}", daemon=True)
        self.job: _Job
        self._read, self.wake = os.pipe()

    def run(self) -> None:
        while self._serve():
            pass
        _alive.discard(self)
        self.close()

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._read)
        os.close(self.wake)

    def _serve(self) -> bool:
        """Waits for a job and does it. Returns whether the thread stays for another."""
        os.read(self._read, 1)
        job = self.job
        outcome: Outcome
        try:
            outcome = (job.context.run(job.work), None)
        except BaseException as error:  # carried over to whoever waits
            outcome = (None, error)
        stays = len(_idle) < MAX_IDLE
        if stays:
            _idle.append(self)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            job.loop.call_soon_threadsafe(settle, job.future, outcome)
        return stays


_idle: deque[_Worker] = deque()
_alive: set[_Worker] = set()
_numbers = itertools.count(1)


def _forget() -> None:
    """After a fork the child has none of its parent's threads."""
    for worker in _alive:
        worker.close()
    _idle.clear()
    _alive.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def submit(work: Callable[[], Any]) -> asyncio.Future[Outcome | None]:
    """Starts ``work`` in a thread, in a copy of the current context.

    The future never holds an exception: it gives what was returned and what was raised. Who waits
    may settle it with None, or cancel it; the function then runs on. Raises TooManyThreads.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome | None] = loop.create_future()
    try:
        worker = _idle.pop()
    except IndexError:
        if len(_alive) >= MAX_THREADS:
            raise TooManyThreads(f"{MAX_THREADS} calls are still running") from None
        worker = _started()
    worker.job = _Job(loop, future, contextvars.copy_context(), work)
    os.write(worker.wake, b"j")
    return future


def _started() -> _Worker:
    try:
        worker = _Worker(next(_numbers))
    except OSError as error:  # there are no more files
        raise TooManyThreads(f"no thread can be started: {error.strerror}") from None
    try:
        worker.start()
    except RuntimeError as error:  # there are no more threads
        worker.close()
        raise TooManyThreads(str(error)) from None
    _alive.add(worker)
    return worker


def settle(future: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    """Gives a future its outcome, unless it has one or was given up."""
    if not future.done():
        future.set_result(outcome)
