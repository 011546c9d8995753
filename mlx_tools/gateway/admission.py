"""Admission to the model: so many requests at once, and some more that wait."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio

from mlx_tools.gateway.request import ApiError

_FIRST_GUESS: Final = 5.0
_MAX_WAIT: Final = 120


class Admission:
    """``slots`` turns at once, and ``line`` more that wait.

    Waiting clients are admitted in turn: one request of each, however many requests a client has in
    the line. ``now`` is a clock in seconds.
    """

    def __init__(self, slots: int, line: int, now: Callable[[], float]) -> None:
        self._slots, self.line, self._now = slots, line, now
        self._lines: OrderedDict[str, deque[anyio.Event]] = OrderedDict()
        self._seconds = _FIRST_GUESS  # the usual seconds of a turn, by the last ones
        self.active = 0
        self.waiting = 0

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Hold a slot until the end of the block. Raises `ApiError` (429) if none is free."""
        if self.active < self._slots and not self.waiting:
            self.active += 1
        else:
            await self._wait(client)
        began = self._now()
        try:
            yield
        finally:
            self._seconds += (self._now() - began - self._seconds) / 8
            self._next()

    async def _wait(self, client: str) -> None:
        if self.waiting >= self.line:
            turns = (self.waiting + 1) / self._slots
            later = min(max(1, math.ceil(turns * self._seconds)), _MAX_WAIT)
            message = f"{self.active} requests are served and {self.waiting} wait: try again later"
            raise ApiError(429, "rate_limit_exceeded", message, retry_after=later)
        called = anyio.Event()
        self._lines.setdefault(client, deque()).append(called)
        self.waiting += 1
        try:
            await called.wait()
        except BaseException:
            if called.is_set():  # the slot was given to this request just now
                self._next()
            else:
                self._leave(client, called)
            raise

    def _leave(self, client: str, called: anyio.Event) -> None:
        self.waiting -= 1
        line = self._lines[client]
        line.remove(called)
        if not line:
            del self._lines[client]

    def _next(self) -> None:
        """Hand the slot to the next client in turn, or free it."""
        if not self._lines:
            self.active -= 1
            return
        client, line = next(iter(self._lines.items()))
        called = line.popleft()
        self.waiting -= 1
        if line:
            self._lines.move_to_end(client)
        else:
            del self._lines[client]
        called.set()
