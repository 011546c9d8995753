"""HTTP/1.1 over plain connections to this machine, as a transport of httpx.

httpx's own transport supports all addresses, proxies and versions of HTTP. It took half of the
gateway's time for a request, and a third of its time for each token. Both use h11 to read and write
the protocol.
"""

from __future__ import annotations

import asyncio
import ipaddress
import select
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Final

import h11
import httpx

MAX_IDLE: Final = 8
"""The limit of idle open connections. Some servers need a thread for each."""

MAX_UNREAD: Final = 1 << 18
"""Bytes that are received before they are read. With more, the server has to wait."""

MAX_HEADS: Final = 64
"""The limit of remembered request heads: a server has few paths, and few sets of headers."""

MAX_HEAD: Final = 100 << 10
"""The limit of a response's head in bytes, as in httpcore."""


MAX_EVENTS: Final = 1000
"""Chunks or heads that are read before other tasks get their turn: 15 ms if they are tiny."""


class LoopbackClient(httpx.AsyncClient):
    """A client of servers on this machine: without redirects, cookies and proxies.

    Args:
        timeout: seconds to connect.
        keepalive_seconds: seconds that an unused connection stays open.
    """

    def __init__(self, timeout: httpx.Timeout, keepalive_seconds: float) -> None:
        self._loopback = LoopbackTransport(keepalive_seconds)
        self._requests: dict[tuple[Any, ...], httpx.Request] = {}  # templates for later requests
        super().__init__(
            transport=self._loopback, timeout=timeout, trust_env=False, follow_redirects=False
        )

    def build_request(
        self,
        method: str,
        url: httpx.URL | str,
        *,
        content: Any = None,
        headers: Any = None,
        **options: Any,
    ) -> httpx.Request:
        """Build a request as `httpx.AsyncClient.build_request` does.

        The head of a request with a body is made once for each address and set of headers.
        """
        if not isinstance(content, bytes) or not isinstance(headers, Mapping) or options:
            return super().build_request(method, url, content=content, headers=headers, **options)
        key = method, str(url), *headers.items()
        first = self._requests.get(key)
        if first is None:
            first = super().build_request(method, url, content=b"", headers=headers)
            del first.headers["content-length"]
            if len(self._requests) >= MAX_HEADS:
                self._requests.clear()
            self._requests[key] = first
        length = b"content-length", str(len(content)).encode()
        return httpx.Request(
            method,
            first.url,
            headers=[*first.headers.raw, length],
            stream=httpx.ByteStream(content),
            extensions=first.extensions,
        )

    async def send(
        self, request: httpx.Request, *, stream: bool = False, **options: Any
    ) -> httpx.Response:
        """Send a request as `httpx.AsyncClient.send` does; ``options`` have no effect."""
        response = await self._loopback.handle_async_request(request)
        response.request = request
        if not stream:
            await response.aread()
        return response


class LoopbackTransport(httpx.AsyncBaseTransport):
    """Sends requests to servers on this machine. Only one event loop may use it.

    Args:
        keepalive_seconds: seconds that an unused connection stays open.
    """

    def __init__(self, keepalive_seconds: float) -> None:
        self._keepalive_seconds = keepalive_seconds
        self._idle: list[_Connection] = []  # the one that is idle for longest comes first
        self._is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return its response once the head has come.

        Raises:
            httpx.TransportError: as httpx's own transport does.
        """
        connection = self._take_idle(request) or await _connect(request)
        try:
            await connection.send(request)
            head = await connection.head()
        except BaseException:
            connection.close()
            raise
        return httpx.Response(
            head.status_code,
            headers=head.headers.raw_items(),
            stream=_Body(connection, self),
            extensions={"http_version": b"HTTP/" + head.http_version},
        )

    async def aclose(self) -> None:
        """Close the connections; one with a response is closed after that is read."""
        self._is_closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop closes their sockets

    def release(self, connection: _Connection) -> None:
        """Keep a connection for the next request, if its response was read to the end."""
        if self._is_closed or not connection.start_next():
            connection.close()
            return
        self._idle.append(connection)
        if len(self._idle) > MAX_IDLE:
            self._idle.pop(0).close()

    def _take_idle(self, request: httpx.Request) -> _Connection | None:
        """Return an open connection to a request's server, or None."""
        oldest = asyncio.get_running_loop().time() - self._keepalive_seconds
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).close()
        address = _get_address(request)
        for connection in reversed(self._idle):
            if connection.address == address:
                self._idle.remove(connection)
                if connection.is_quiet:
                    return connection
                connection.close()  # the server has closed it
        return None


def _get_address(request: httpx.Request) -> tuple[str, int]:
    return request.url.host, request.url.port or 80


async def _connect(request: httpx.Request) -> _Connection:
    host, port = address = _get_address(request)
    seconds = request.extensions.get("timeout", {}).get("connect")
    try:
        async with asyncio.timeout(seconds):
            *others, last = await _resolve_host(host, port)
            for number in others:  # localhost has two addresses; a server may listen on one only
                with suppress(OSError):
                    return await _open(address, number)
            return await _open(address, last)
    except TimeoutError as error:
        raise httpx.ConnectTimeout(str(error), request=request) from error
    except OSError as error:
        raise httpx.ConnectError(str(error), request=request) from error


async def _resolve_host(host: str, port: int) -> list[str]:
    """Return the numeric addresses of a host; a name is looked up in a thread."""
    with suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
    return [str(address[0]) for *_, address in rows]


async def _open(address: tuple[str, int], host: str) -> _Connection:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(lambda: _Connection(address), host, address[1]))[1]


class _Connection(asyncio.Protocol):
    """One connection, for one request and response after the other."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address, self.idle_since = address, 0.0
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._unread = bytearray()
        self._is_ended, self._is_full, self._must_wait = False, False, False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def unread_bytes(self) -> int:
        """The number of received bytes that nobody has read."""
        return len(self._unread)

    # --- callbacks of the event loop ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) > MAX_UNREAD and not self._is_full:
            self._is_full = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._is_ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ended, self._error = True, exc
        self._wake()

    def pause_writing(self) -> None:
        self._must_wait = True

    def resume_writing(self) -> None:
        self._must_wait = False
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # --- a request and its response ---

    async def send(self, request: httpx.Request) -> None:
        """Send a request. If the connection breaks meanwhile, the response may be there."""
        stream: Any = request.stream
        body = b"".join([part async for part in stream])
        try:
            head = h11.Request(
                method=request.method, target=request.url.raw_path, headers=request.headers.raw
            )
            parts = [self._http.send(head), self._http.send(h11.Data(body)) if body else b""]
            parts.append(self._http.send(h11.EndOfMessage()))
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error), request=request) from error
        self._transport.writelines([part for part in parts if part])
        # A server may refuse a long body when it has read the head, and never read the rest.
        while self._must_wait and not (self._unread or self._is_ended):
            await self._wait()

    async def head(self) -> h11.Response:
        """Return the head of the response."""
        for number in count(1):
            event = await self.event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                break
            if number % MAX_EVENTS == 0:
                await asyncio.sleep(0)
        raise httpx.RemoteProtocolError(f"{type(event).__name__} in place of a response")

    async def event(self) -> Any:
        """Return the next event of the response. Raises `httpx.TransportError`."""
        while True:
            event = self.next_event()
            if event is not h11.NEED_DATA:
                return event
            while not (self._unread or self._is_ended):
                await self._wait()
            if not self._unread and self._error is not None:
                raise httpx.ReadError(str(self._error)) from self._error
            if not self._unread and self._http.their_state is h11.SEND_RESPONSE:
                message = "Server disconnected without sending a response."
                raise httpx.RemoteProtocolError(message)
            data = bytes(self._unread)
            self._unread.clear()
            if self._is_full:
                self._is_full = False
                self._transport.resume_reading()
            self._receive(data)

    def next_event(self) -> Any:
        """Return the next complete event, or ``h11.NEED_DATA``."""
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    def _receive(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    # --- between two requests ---

    def start_next(self) -> bool:
        """Prepare for another request; return False if the connection cannot be reused."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        if self._transport.get_write_buffer_size():
            return False  # the server answered without reading all of the request
        is_quiet = not self._http.trailing_data[0] and self.is_quiet
        self._http.start_next_cycle()
        self.idle_since = self._loop.time()
        return is_quiet

    @property
    def is_quiet(self) -> bool:
        """True if the connection is open, and no unexpected bytes have come."""
        if self._unread or self._is_ended or self._transport.is_closing():
            return False
        number = self._transport.get_extra_info("socket").fileno()
        if number < 0:
            return False
        # Polled, because the event loop may not know yet that the server has closed the connection.
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close the connection at once."""
        self._transport.abort()


class _Body(httpx.AsyncByteStream):
    """The body of a response. Each piece has all bytes that have come."""

    def __init__(self, connection: _Connection, transport: LoopbackTransport) -> None:
        self._connection, self._transport = connection, transport
        self._is_over = self._is_closed = False
        self._error: httpx.TransportError | None = None

    @property
    def unread_bytes(self) -> int:
        """The number of received bytes of the connection that nobody has read."""
        return self._connection.unread_bytes

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        if self._error is not None:
            raise self._error
        if self._is_over:
            raise StopAsyncIteration
        pieces: list[bytes | bytearray] = []
        event = await self._connection.event()
        while isinstance(event, h11.Data):
            pieces.append(event.data)
            if len(pieces) == MAX_EVENTS:
                await asyncio.sleep(0)
                return b"".join(pieces)
            try:
                event = self._connection.next_event()
            except httpx.TransportError as error:
                self._error = error  # raised later: the bytes before it count
                return b"".join(pieces)
        self._is_over = event is not h11.NEED_DATA
        if not pieces:
            raise StopAsyncIteration
        return b"".join(pieces)

    async def aclose(self) -> None:
        """Release the connection."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.release(self._connection)
