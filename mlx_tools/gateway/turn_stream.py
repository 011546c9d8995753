"""The events of one turn on their way to a client that streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

import anyio
from msgspec import Struct

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
"""The longest silence within a stream: clients that wait 10 seconds for an event are known."""

CALL_SECONDS: Final = 0.5
"""How long the beginning of a call waits to be sent.

A call that is written at once is sent whole, and of one that the token limit cuts off as fast
nothing is. Nobody sees half a second.
"""

HEAD_SECONDS: Final = 50.0
"""How long the response's head waits for the model's first token, which a long prompt delays.

Until then an error keeps its status. Proxies give up on a server that is silent for 60 seconds.
"""


async def wait_for(event: anyio.Event, seconds: float) -> bool:
    """Wait for an event; return False if it does not come within so many seconds."""
    with anyio.move_on_after(max(0.0, seconds)):
        await event.wait()
    return event.is_set()


_CALL_EVENTS: Final = (CallAdded, ArgumentsAdded)


class Clock(Struct, frozen=True):
    """A clock, and a wait for an event by it: so many seconds at most."""

    now: Callable[[], float] = anyio.current_time
    wait: Callable[[anyio.Event, float], Awaitable[bool]] = wait_for


class TurnStream:
    """Sends the events of a turn as they come, and breaks a long silence.

    The head and the opening events go out with the model's first token.
    """

    def __init__(
        self, reply: Reply, sender: Sender, headers: Mapping[str, str], clock: Clock
    ) -> None:
        self._reply, self._sender, self._headers, self._clock = reply, sender, headers, clock
        self._sent_at = clock.now()
        self._call_at: float | None = None  # when the calls that wait are due
        self._waiting: list[TurnEvent] = []
        self._news, self._is_ended = anyio.Event(), False

    async def send(self, run: Callable[[Emit], Awaitable[TurnDone]]) -> None:
        """Run a turn and send its events. Raises `ApiError` where it failed.

        An error that comes behind the head is sent as the interface's own error event too.
        """
        done: TurnDone | ApiError
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_waiting)
            try:
                done = await run(self._take)
            except ApiError as error:
                done = error
            self._is_ended = True
            self._news.set()
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
        """The events that are to be sent now."""
        size = len(self._waiting)
        if self._call_at is None or self._clock.now() < self._call_at:
            is_call = (isinstance(event, CallAdded) for event in self._waiting)
            size = next((index for index, found in enumerate(is_call) if found), size)
        due, self._waiting = self._waiting[:size], self._waiting[size:]
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
                self._news = anyio.Event()
            if self._is_ended:
                return
            is_late = self._clock.now() - self._sent_at >= seconds
            if self._waiting or is_late:
                await self._send(self._reply.idle() if is_late else ())

    async def _send(self, events: Iterable[str], *, last: bool = False) -> None:
        """Send what waits and then ``events``, each made in this order: some are numbered."""
        texts: list[str] = []
        if not self._sender.has_begun:
            await self._sender.head(dict(self._headers))
            texts += self._reply.begin()
        texts += self._due_events()
        texts += events
        if texts or last:
            self._sent_at = self._clock.now()
            await self._sender.send("".join(texts), last=last)
