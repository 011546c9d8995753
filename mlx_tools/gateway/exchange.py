"""Bodies that come over a connection, and answers that are sent over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from mlx_tools.backends import WaitTimer
from mlx_tools.errors import StorageError
from mlx_tools.gateway.body import json_object, plain_object
from mlx_tools.gateway.request import ApiError
from mlx_tools.messages import json_line

Result = TypeVar("Result")

MAX_BODY: Final = 32 << 20
"""Bytes of a request's body."""

LARGE: Final = 50_000
"""Characters that are read on the event loop: 50 ms at 1 microsecond a character, the slowest that
was measured (`benchmarks/growth.py`)."""

BODY_SECONDS: Final = 60.0
"""Seconds in which a body must arrive."""

MAX_UNKNOWN_BODY: Final = 1000
"""Bytes of a request's body before the sender is known: a form with a key has 50."""

UNKNOWN_BODY_SECONDS: Final = 10.0
"""Seconds in which such a body must arrive."""

KEEP_ALIVE: Final = ": keep-alive\n\n"

SEND_SECONDS: Final = 60.0
"""Seconds that a client may take to read what is sent."""

_MAX_HEADER_CHARS: Final = 4000
"""Characters of one header; clients and proxies take about twice as many for all headers."""

_PLAIN: Final = "!#$&'()*+-./:;<=>?@[]^_`{|}~ "


def left_out_headers(names: Sequence[str]) -> dict[str, str]:
    """Return the header that names fields without effect, none if all have one.

    It has as many names as a header can hold, in a valid form.
    """
    # A client may name a million, or one of a megabyte.
    names_shown = (name[:_MAX_HEADER_CHARS] for name in names[:_MAX_HEADER_CHARS])
    text = ", ".join(quote(name, safe=_PLAIN) for name in names_shown)
    return {"x-mlx-tools-left-out": text[:_MAX_HEADER_CHARS].strip()} if names else {}


class Sender:
    """Sends a response; ``has_begun`` is True once its head is sent."""

    def __init__(self, send: Any, patience: float = SEND_SECONDS) -> None:
        self._chunks, self._patience = send, patience
        self._timer: WaitTimer | None = None  # gives up on a client that reads nothing
        self.has_begun = False

    @asynccontextmanager
    async def with_client(self, receive: Any) -> AsyncIterator[None]:
        """End the block if the client goes away, or reads nothing.

        That frees its slot, and closes the stream of the model's server.
        """
        with anyio.CancelScope() as scope:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                scope.cancel()

            # No task group, which would wait for this task; every request has one.
            watching = asyncio.create_task(watch())
            self._timer = WaitTimer(scope.cancel)
            try:
                yield
            finally:
                self._timer.close()
                self._timer = None
                watching.cancel()

    async def _send(self, message: dict[str, Any]) -> None:
        if self._timer is None:
            with anyio.move_on_after(self._patience):
                await self._chunks(message)
            return
        self._timer.start(self._patience)
        await self._chunks(message)
        self._timer.stop()

    async def whole(self, status: int, body: Mapping[str, Any], headers: dict[str, str]) -> None:
        if not self.has_begun:
            content = json_line(body).encode()
            fixed = {"content-length": str(len(content)), "content-type": "application/json"}
            await self._start(status, fixed | headers)
            await self._send({"type": "http.response.body", "body": content})

    async def head(self, headers: dict[str, str]) -> None:
        fixed = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        await self._start(200, fixed | headers)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.has_begun = True
        raw = [(k.encode(), v.encode("latin-1", "replace")) for k, v in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def send(self, text: str, *, last: bool = False) -> None:
        body = text.encode("utf-8", "replace")
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})


class EventStream(Response):
    """A response of server-sent events. In a silence (None) a comment is sent."""

    def __init__(
        self, events: AsyncGenerator[str | None], headers: Mapping[str, str] | None = None
    ) -> None:
        self._events, self._record_events = events, dict(headers or {})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sender = Sender(send)
        async with sender.with_client(receive):
            await sender.head(self._record_events)
            with suppress(StorageError):  # a follower connects again
                async with aclosing(self._events) as events:
                    async for event in events:
                        await sender.send(KEEP_ALIVE if event is None else event)
            await sender.send("", last=True)


async def read_body(
    request: Request, kind: str, max_bytes: int = MAX_BODY, seconds: float = BODY_SECONDS
) -> bytes:
    """Read a request's body of a media type, within a size and a time.

    Raises `ApiError`.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != kind:
        raise ApiError(415, "unsupported_media_type", f"the body must be {kind}")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)
    first, rest = b"", bytearray()  # most bodies come as one part, which is not copied
    with anyio.move_on_after(seconds) as late:
        async for part in request.stream():
            if first:
                rest += part
            else:
                first = part
            if len(first) + len(rest) > max_bytes:
                raise _too_large(max_bytes)
    if late.cancelled_caught:
        raise ApiError(408, "timeout", f"the body did not come within {seconds:g} s")
    return first + rest if rest else first


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, "payload_too_large", f"the body is over {max_bytes} bytes")


async def json_body(request: Request) -> dict[str, Any]:
    """Read a request's body, a JSON object. Raises `ApiError` if it is none."""
    return await read_json(await read_body(request, "application/json"), lambda body: body)


async def read_json(body: bytes, read: Callable[[dict[str, Any]], Result]) -> Result:
    """Return what ``read`` returns for the JSON object of a body.

    If much of it is not the text of messages, it is read in a thread: the event loop serves others
    meanwhile.

    Raises:
        ApiError: it is no JSON object, or ``read`` refuses it.
    """
    # Not in a thread: it is one call that lets no other thread work.
    plain = plain_object(body)
    texts = 0 if plain is None else _message_chars(plain)

    def work() -> Result:
        return read(json_object(body, "the body is") if plain is None else plain)

    return await in_thread_if_large(len(body) - texts, work)


def _message_chars(body: Mapping[str, Any]) -> int:
    """Return how many characters are texts of messages, which take no time to read."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return 0
    contents = (message.get("content") for message in messages if type(message) is dict)
    return sum(len(content) for content in contents if type(content) is str)


async def in_thread_if_large(size: int, work: Callable[[], Result]) -> Result:
    """Return the result of ``work``; work on a large ``size`` is done in a thread."""
    if size <= LARGE:
        return work()
    return await anyio.to_thread.run_sync(work)
