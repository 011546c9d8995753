"""Waits with deadlines for the parts of a response.

A stream has hundreds of waits a second. So they share one timer, and need no tasks of their own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mlx_tools.backends.deadlines import WATCH_SECONDS, Deadlines, Watch

T = TypeVar("T")


class WaitTimer:
    """A timer for many short waits, one after the other.

    Moving it to a later time costs nothing: the event loop calls it at the earlier time, and then
    it is scheduled again. It belongs to the event loop in which it was made.

    Args:
        callback: called at the time that was set last, unless the timer was stopped.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._due = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Call back after ``seconds``; this replaces an earlier time."""
        self._due = due = self._loop.time() + seconds
        if self._handle is not None and self._handle.when() > due:
            self._handle.cancel()
            self._handle = None
        if self._handle is None and due < math.inf:
            self._handle = self._loop.call_at(due, self._check)

    def stop(self) -> None:
        """Stop the timer; it can be started again."""
        self._due = math.inf

    def close(self) -> None:
        """Stop for good, and release the event loop's timer and the callback."""
        self._due, self._callback = math.inf, _do_nothing
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _check(self) -> None:
        self._handle = None
        if self._due == math.inf:
            return
        if self._loop.time() < self._due:
            self._handle = self._loop.call_at(self._due, self._check)
        else:
            self._due = math.inf
            self._callback()


def _do_nothing() -> None:
    """Replace the callback of a closed timer, which could keep its owner alive."""


class ResponseWaits:
    """The waits for the parts of one response.

    Args:
        limits: the deadlines of the request.
        silent: True if the server sends nothing before its whole answer.
        watch: called repeatedly in a long silence; raises if no answer can come any more.
        interval: seconds of silence between two calls of ``watch``.
    """

    def __init__(
        self,
        limits: Deadlines,
        *,
        silent: bool,
        watch: Watch | None = None,
        interval: float = WATCH_SECONDS,
    ) -> None:
        self._limits, self._silent, self._watch, self._interval = limits, silent, watch, interval
        self._loop = asyncio.get_running_loop()
        self._timer = WaitTimer(self._check_time)
        self._task: asyncio.Task[object] | None = None  # the task that waits
        self._end = self._watch_due = math.inf
        self._limit = 0.0, False
        self._watching: asyncio.Task[None] | None = None
        self._error: Exception | None = None  # the reason why the present wait is cancelled

    async def wait(self, part: Callable[[], Awaitable[T]], max_seconds: float | None = None) -> T:
        """Return what ``part`` returns, within ``max_seconds`` seconds if given.

        Raises:
            BackendTimeout: a limit was reached; the message names it.
            Exception: what ``part`` raises, or ``watch``.
        """
        self._limit = seconds, _ = self._limits.limit(max_seconds, silent=self._silent)
        # If no time is left, nothing is awaited: a wait of 0 seconds could still succeed.
        if seconds <= 0:
            raise self._limits.error(*self._limit)
        task = asyncio.current_task()
        assert task is not None
        requests = task.cancelling()
        self._begin(task, seconds)
        try:
            return await part()
        except asyncio.CancelledError:
            # As in `asyncio.timeout`: if others have cancelled the task, too, that comes first.
            if self._error is None or task.cancelling() > requests + 1:
                raise
            raise self._error from None
        finally:
            if self._error is not None:
                task.uncancel()
            self._finish()
            del task  # the error refers to this frame; both would keep each other alive

    def close(self) -> None:
        """Release the event loop's timer; there are no further waits."""
        self._timer.close()

    def _begin(self, task: asyncio.Task[object], seconds: float) -> None:
        now = self._loop.time()
        self._task, self._error, self._end = task, None, now + seconds
        if self._watch is not None:
            self._watch_due = now + self._interval
            seconds = min(seconds, self._interval)
        self._timer.start(seconds)

    def _finish(self) -> None:
        self._timer.stop()
        self._task = self._error = None
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _check_time(self) -> None:
        now = self._loop.time()
        if now >= self._end:
            self._cancel(self._limits.error(*self._limit))
            return
        if now >= self._watch_due and self._watching is None:
            self._watch_due = math.inf
            self._watching = asyncio.create_task(self._watch_server())
        self._timer.start(min(self._end, self._watch_due) - now)

    async def _watch_server(self) -> None:
        assert self._watch is not None
        try:
            await self._watch()
        except Exception as error:
            self._cancel(error)
        else:
            self._watching, now = None, self._loop.time()
            self._watch_due = now + self._interval
            self._timer.start(min(self._end, self._watch_due) - now)

    def _cancel(self, error: Exception) -> None:
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()
