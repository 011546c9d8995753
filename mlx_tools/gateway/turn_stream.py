"""The events of one turn on their way to a client that streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

import anyio
from msgspec import Struct

from mlx_tools.backends import WaitTimer
from mlx_tools.gateway.exchange import Sender
from mlx_tools.gateway.request import (
    ApiError,
    ArgumentsAdded,
    CallAdded,
    Emit,
    FirstToken,
    Reply,
    TurnDone,
    TurnEvent,
)

EVENT_SECONDS: Final = 9.0
"""The longest silence within a stream: some clients wait only 10 seconds for an event."""

CALL_SECONDS: Final = 0.5
"""Seconds that the beginning of a call waits to be sent.

A call that is written within this time is sent whole, and nothing is sent of one that the token
limit cuts off so soon. Nobody notices half a second."""

HEAD_SECONDS: Final = 50.0
"""Seconds that the response's head waits for the model's first token, which a long prompt delays.

Until then an error keeps its status. Proxies give up on a server that is silent for 60 seconds.
"""


class News:
    """A flag that one task waits for, again and again, each time some seconds at most."""

    def __init__(self) -> None:
        self.is_set = False
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer = WaitTimer(self._wake)

    def set(self) -> None:
        """Set the flag, and wake who waits for it."""
        self.is_set = True
        self._wake()

    def clear(self) -> None:
        """Unset the flag."""
        self.is_set = False

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()

    async def wait(self) -> None:
        """Wait until the flag is set."""
        if not self.is_set:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def wait_for(self, seconds: float) -> bool:
        """Wait for the flag; return False if it is not set within so many seconds."""
        self._timer.start(seconds)
        try:
            await self.wait()
        finally:
            self._timer.stop()
        return self.is_set

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_CALL_EVENTS: Final = (CallAdded, ArgumentsAdded)


def _now() -> float:
    return asyncio.get_running_loop().time()


class Clock(Struct, frozen=True):
    """A clock, and a wait for news by this clock: so many seconds at most."""

    now: Callable[[], float] = _now
    wait: Callable[[News, float], Awaitable[bool]] = News.wait_for


class TurnStream:
    """Sends the events of a turn as they come, and breaks a long silence.

    The response's head and the opening events are sent with the model's first token.
    """

    def __init__(
        self, reply: Reply, sender: Sender, headers: Mapping[str, str], clock: Clock
    ) -> None:
        self._reply, self._sender, self._headers, self._clock = reply, sender, headers, clock
        self._sent_at = clock.now()
        self._call_at: float | None = None  # the time at which waiting calls are sent
        self._waiting: list[TurnEvent] = []
        self._news, self._is_ended = News(), False

    async def send(self, run: Callable[[Emit], Awaitable[TurnDone]]) -> None:
        """Run a turn and send its events. Raises `ApiError` if it failed.

        An error after the head is also sent as the interface's own error event.
        """
        done: TurnDone | ApiError
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_waiting)
                try:
                    done = await run(self._take)
                except ApiError as error:
                    done = error
                self._is_ended = True
                self._news.set()
        finally:
            self._news.close()
        if not isinstance(done, TurnDone) or done.finish == "length":
            self._waiting = [one for one in self._waiting if not isinstance(one, _CALL_EVENTS)]
        self._call_at = self._clock.now()
        if isinstance(done, TurnDone):
            await self._send(self._reply.end(done), last=True)
            return
        if self._sender.has_begun or self._waiting:
            await self._send(self._reply.fail(done), last=True)
        raise done

    def _take(self, event: TurnEvent) -> None:
        if self._call_at is None and isinstance(event, CallAdded):
            self._call_at = self._clock.now() + CALL_SECONDS
        self._waiting.append(event)
        self._news.set()

    def _due_events(self) -> Iterator[str]:
        """Yield the events that are to be sent now."""
        due, self._waiting = self._waiting, []
        if self._call_at is not None and self._clock.now() < self._call_at:
            is_call = (isinstance(event, CallAdded) for event in due)
            begin = next((index for index, found in enumerate(is_call) if found), len(due))
            due, self._waiting = due[:begin], due[begin:]
        for event in due:
            if not isinstance(event, FirstToken):
                yield from self._reply.tell(event)

    async def _send_waiting(self) -> None:
        while True:
            seconds = EVENT_SECONDS if self._sender.has_begun else HEAD_SECONDS
            due = self._sent_at + seconds
            if self._waiting and self._call_at is not None:
                due = min(due, self._call_at)
            left = due - self._clock.now()
            if await self._clock.wait(self._news, left) and not self._is_ended:
                self._news.clear()
            if self._is_ended:
                return
            is_late = self._clock.now() - self._sent_at >= seconds
            if self._waiting or is_late:
                await self._send(self._reply.idle() if is_late else ())

    async def _send(self, events: Iterable[str], *, last: bool = False) -> None:
        """Send the waiting events, then ``events``.

        They are made in this order, because some are numbered.
        """
        texts: list[str] = []
        if not self._sender.has_begun:
            await self._sender.head(dict(self._headers))
            texts += self._reply.begin()
        texts += self._due_events()
        texts += events
        if texts or last:
            self._sent_at = self._clock.now()
            await self._sender.send("".join(texts), last=last)
