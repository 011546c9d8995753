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
from queue import Empty, SimpleQueue
from typing import Any, Final

MAX_THREADS: Final = 64
"""Calls at one time, those included that were given up and still run."""
MAX_IDLE: Final = 8

Outcome = tuple[Any, BaseException | None]
"""What a function returned, or what it raised."""


class TooManyThreads(Exception):
    """So many calls were given up and still run that no further one is started."""


class _Job:
    """A call, and how its outcome finds the loop.

    Where somebody waits in `wait` the outcome is handed over there, which takes a fraction of what
    waking an event loop takes. Whoever takes the one claim first decides: the worker that it is
    handed over, the waiting loop that it must be woken.
    """

    __slots__ = ("_claim", "_context", "_future", "_loop", "_outcome", "_work")

    def __init__(
        self, work: Callable[[], Any], future: asyncio.Future[Outcome | None], *, awaited: bool
    ) -> None:
        self._work = work
        self._future = future
        self._loop = future.get_loop()
        self._context = contextvars.copy_context()
        self._outcome: SimpleQueue[Outcome] = SimpleQueue()
        self._claim = [None] if awaited else []

    def run(self) -> Outcome:
        """Does the work. Raises nothing."""
        try:
            return self._context.run(self._work), None
        except BaseException as error:  # carried over to whoever waits
            return None, error

    def end(self, outcome: Outcome) -> None:
        """Hands over the outcome; called in the thread."""
        if self._take_claim():
            self._outcome.put(outcome)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(settle, self._future, outcome)

    def wait(self, seconds: float) -> None:
        """Waits so long for the outcome, in the loop's own thread; call it once, if ``awaited``."""
        try:
            outcome = self._outcome.get(timeout=seconds)
        except Empty:
            if self._take_claim():
                return
            outcome = self._outcome.get()  # which is there, or will be in an instant
        self._future.set_result(outcome)

    def _take_claim(self) -> bool:
        try:
            self._claim.pop()
        except IndexError:
            return False
        return True


class _Worker(threading.Thread):
    def __init__(self, number: int) -> None:
        super().__init__(name=f"mlx-tools-{number}", daemon=True)
        self.jobs: SimpleQueue[_Job] = SimpleQueue()

    def run(self) -> None:
        while self._serve(self.jobs.get()):
            pass
        _alive.discard(self)

    def _serve(self, job: _Job) -> bool:
        """Does one job. Returns whether the thread stays for another."""
        outcome = job.run()
        stays = len(_idle) < MAX_IDLE
        if stays:
            _idle.append(self)
        job.end(outcome)
        return stays


_idle: deque[_Worker] = deque()
_alive: set[_Worker] = set()
_numbers = itertools.count(1)


def _forget() -> None:
    """After a fork the child has none of its parent's threads."""
    _idle.clear()
    _alive.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def submit(work: Callable[[], Any], *, patience: float = 0.0) -> asyncio.Future[Outcome | None]:
    """Starts ``work`` in a thread, in a copy of the current context.

    The future never holds an exception: it gives what was returned and what was raised. Who waits
    may settle it with None, or cancel it; the function then runs on. With ``patience`` the loop
    stands still for up to so many seconds, so that of a quick function the future is done at once;
    the caller must then see to it that the loop turns. Raises TooManyThreads.
    """
    future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
    try:
        worker = _idle.pop()
    except IndexError:
        if len(_alive) >= MAX_THREADS:
            raise TooManyThreads(f"{MAX_THREADS} calls are still running") from None
        worker = _started()
    job = _Job(work, future, awaited=patience > 0)
    worker.jobs.put(job)
    if patience > 0:
        job.wait(patience)
    return future


def _started() -> _Worker:
    worker = _Worker(next(_numbers))
    try:
        worker.start()
    except RuntimeError as error:  # the system has no more
        raise TooManyThreads(str(error)) from None
    _alive.add(worker)
    return worker


def settle(future: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    """Gives a future its outcome, unless it has one or was given up."""
    if not future.done():
        future.set_result(outcome)
