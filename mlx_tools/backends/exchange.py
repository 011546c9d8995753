"""The exchange with one server: connections that are kept, one request up to its first byte."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize

from mlx_tools.backends.address import Address
from mlx_tools.backends.deadlines import Clock, Deadlines, now
from mlx_tools.backends.edge import refused, translate
from mlx_tools.errors import BackendBroken, BackendTimeout, UsageError

if TYPE_CHECKING:
    import asyncio

    import httpx

CONNECT_TIMEOUT: Final = 10.0

KEPT: Final = 60.0
"""Seconds that a connection is kept unused: a tool may run that long between two completions."""

ERROR_BYTES: Final = 1 << 16
"""How much of an error's body is read."""

MAX_ANSWER: Final = 4 << 20
"""Bytes of an answer that comes whole."""

DRAIN: Final = 0.1
"""Seconds for the end of an answer that is known whole: only then can its connection be kept."""


async def _sleep(seconds: float) -> None:
    import anyio

    await anyio.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often, and after which pauses, a request that failed in passing is sent again.

    The pauses are ``pause`` seconds, twice that, four times that, each times 0.5 to 1.5 as
    ``jitter`` (0 to 1) draws it, so that many clients do not come back together.
    """

    times: int = 3
    pause: float = 0.1
    jitter: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = _sleep
    clock: Clock = now

    def delay(self, tries: int) -> float:
        """Seconds to wait after ``tries`` repetitions."""
        drawn: float = self.pause * 2**tries * (0.5 + self.jitter())
        return drawn


class NothingCame(BackendBroken):
    """The server began an answer and ended it without a byte: mlx-lm's, for a prompt it caches."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} answered without a byte", hint="see the server's log")


class Begun:
    """An answer of which the first bytes are there. ``whole``: it is one JSON value, no stream.

    A server may answer either way whatever was asked for, so its first character tells.
    """

    def __init__(
        self,
        response: httpx.Response,
        stream: AsyncIterator[bytes],
        first: bytes,
        limits: Deadlines,
        *,
        silent: bool,
    ) -> None:
        self.whole = first.lstrip(_BLANK).startswith((b"{", b"["))
        self._response = response
        self._stream = stream
        self._first: bytes | None = first
        self._limits = limits
        self._silent = silent

    async def next(self, most: float | None = None) -> bytes:
        """The next bytes, within ``most`` seconds where given. Raises `StopAsyncIteration`."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        with self._limits.step(most, silent=self._silent):
            return await anext(self._stream)

    async def rest(self, most: int, address: str) -> bytes:
        """All that follows. Raises `BackendBroken` where that is more than ``most`` bytes."""
        answer = bytearray()
        try:
            while True:
                answer += await self.next()
                if len(answer) > most:
                    raise BackendBroken(f"{address} sent more than {most} bytes")
        except StopAsyncIteration:
            return bytes(answer)

    async def drain(self) -> None:
        """Wait a moment for the end of an answer of which nothing more is wanted."""
        if self._response.http_version == "HTTP/1.0":
            return  # such a connection is not kept
        try:
            while True:
                await self.next(DRAIN)
        except (StopAsyncIteration, BackendTimeout):
            return

    async def aclose(self) -> None:
        """Let go of the connection; it is closed where the answer was not read to its end."""
        await self._response.aclose()


_BLANK: Final = b" \t\r\n\xef\xbb\xbf"


class Exchange:
    """Sends requests to the server at ``address``, each with ``headers``.

    Its connections are kept as long as the event loop in which they were made, or until `aclose`;
    each loop has its own. ``client`` is a client of the caller's to use instead, and stays open.
    """

    def __init__(
        self, address: Address, headers: Mapping[str, str], client: httpx.AsyncClient | None
    ) -> None:
        self.address = address
        self.headers = headers
        self._given = client
        self._kept: dict[asyncio.AbstractEventLoop, _KeptClient] = {}
        self._ssl: Any = None

    async def begin(self, body: Mapping[str, Any], limits: Deadlines, *, silent: bool) -> Begun:
        """Send a request for a completion, and wait for the first byte of what is no error.

        ``silent``: no sign of life can be expected before the answer is there as a whole.

        Raises:
            Dropped, ServerFailed, NothingCame: it may work when it is sent once more.
            BackendError: it came to nothing otherwise.
        """
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        with self.translated():
            client = await self.client()
            sent = client.build_request(
                "POST", self.address.completions, content=content, headers=self.headers
            )
            with limits.step(silent=silent):
                response = await client.send(sent, stream=True, follow_redirects=False)
            try:
                return await self._begun(response, limits, silent)
            except BaseException:
                await response.aclose()
                raise

    async def _begun(self, response: httpx.Response, limits: Deadlines, silent: bool) -> Begun:
        coded = response.headers.get("content-encoding", "identity").strip().lower()
        if coded not in ("", "identity"):  # unpacking it could take any amount of memory
            raise BackendBroken(f"{self.address} sent compressed bytes that were not asked for")
        stream, first = response.aiter_bytes(), b""
        wanted = 1 if response.status_code == 200 else ERROR_BYTES
        while len(first.lstrip(_BLANK)) < wanted and len(first) < ERROR_BYTES:
            try:
                with limits.step(silent=silent):
                    first += await anext(stream)
            except StopAsyncIteration:
                break
        if response.status_code != 200:
            location = response.headers.get("location", "")
            raise refused(
                response.status_code, first[:ERROR_BYTES], str(self.address), location=location
            )
        if not first:
            raise NothingCame(str(self.address))
        begun = Begun(response, stream, first, limits, silent=silent)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html" and not begun.whole:
            raise BackendBroken(
                f"{self.address} answered with a web page where a completion was asked for",
                hint="is it a completions server?",
            )
        return begun

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turns httpx's and the system's errors, raised within, into ours."""
        import httpx

        foreign = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError)
        try:
            yield
        except foreign as error:
            raise translate(error, str(self.address)) from error

    async def client(self) -> httpx.AsyncClient:
        """The client of the running event loop."""
        if self._given is not None:
            return self._given
        loop = _running_loop()
        kept = self._kept.get(loop)
        if kept is None or kept.client.is_closed:
            for ended in [loop for loop in tuple(self._kept) if loop.is_closed()]:
                self._kept.pop(ended).let_go.detach()
            client = self._new_client()
            keeper = _keeping(client)
            await anext(keeper)
            let_go = finalize(self, _end, loop, keeper)
            let_go.atexit = False
            kept = self._kept[loop] = _KeptClient(client, keeper, let_go)
        return kept.client

    async def aclose(self) -> None:
        """Close the connections of the running event loop. They are made anew where needed."""
        kept = self._kept.pop(_running_loop(), None)
        if kept is not None:
            kept.let_go.detach()
            await kept.keeper.aclose()

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        proxied = not self.address.loopback
        try:
            if self._ssl is None:
                # a TLS context takes 15 to 50 ms: once, and not for plain http to this machine
                plain = self.address.loopback and self.address.base.startswith("http:")
                self._ssl = httpx.create_ssl_context(verify=not plain, trust_env=proxied)
            return httpx.AsyncClient(
                verify=self._ssl,
                trust_env=proxied,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
                limits=httpx.Limits(max_keepalive_connections=8, keepalive_expiry=KEPT),
                follow_redirects=False,
            )
        except (ImportError, ValueError, OSError) as error:
            raise UsageError(
                f"the proxy or certificate settings of the environment cannot be used: {error}",
                hint="check HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
            ) from error


def _running_loop() -> asyncio.AbstractEventLoop:
    from asyncio import get_running_loop

    return get_running_loop()


@dataclass(frozen=True, slots=True)
class _KeptClient:
    """The client of one event loop; ``let_go`` closes it once nobody holds the exchange."""

    client: httpx.AsyncClient
    keeper: AsyncGenerator[None, None]
    let_go: finalize[..., Exchange]


async def _keeping(client: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    """Closes ``client`` when it is closed itself: an event loop that ends closes the generators
    that were begun in it. So nobody has to close a backend, and no connection outlives its loop."""
    try:
        yield
    finally:
        await client.aclose()


def _end(loop: asyncio.AbstractEventLoop, keeper: AsyncGenerator[None, None]) -> None:
    """Have ``loop`` close ``keeper``, from whichever thread the collector runs in."""
    with suppress(RuntimeError):  # it has ended, and so has the keeper
        loop.call_soon_threadsafe(lambda: loop.create_task(keeper.aclose()))
