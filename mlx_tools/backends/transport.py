"""Requests to one server, over connections that stay open."""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Iterator,
    Mapping,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from mlx_tools.backends.address import Address
from mlx_tools.backends.deadlines import Deadlines, Watch
from mlx_tools.backends.server_errors import (
    LOG_HINT,
    START_HINT,
    EmptyResponse,
    as_refusal,
    iter_causes,
    translate,
)
from mlx_tools.errors import (
    BackendBroken,
    BackendTimeout,
    MlxToolsError,
    UsageError,
)
from mlx_tools.macos import network_hint

if TYPE_CHECKING:
    import asyncio

    import httpx

    from mlx_tools.backends.waits import ResponseWaits

CONNECT_TIMEOUT: Final = 10.0
"""Seconds to connect. A choice: a server on this machine or network accepts within milliseconds."""

KEEPALIVE_SECONDS: Final = 60.0
"""Seconds that an unused connection stays open: so long a tool may run between two completions."""

ERROR_BYTES: Final = 1 << 16
"""The bytes that are read of an error's body. A choice: messages are shorter, web pages may not be.
"""

DRAIN_SECONDS: Final = 0.1
"""Seconds to wait for the end of a complete answer, after which its connection can be reused."""

_BLANK: Final = b" \t\r\n\xef\xbb\xbf"
"""Bytes that may come before JSON: white space, and a byte order mark."""


@dataclass(slots=True)
class ResponseStart:
    """An answer whose first bytes have come."""

    response: httpx.Response
    stream: AsyncIterator[bytes]
    """The bytes after the first ones."""
    first: bytes
    """The first bytes."""
    waits: ResponseWaits
    """The deadlines of the waits for more bytes."""

    @property
    def whole(self) -> bool:
        """True if the answer is one JSON value, not a stream.

        Its first character shows that; servers do not always follow ``stream`` in the request.
        """
        return self.first.lstrip(_BLANK).startswith((b"{", b"["))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield all bytes, with the first ones."""
        yield self.first
        while True:
            try:
                yield await self.next()
            except StopAsyncIteration:
                return

    async def next(self, max_seconds: float | None = None) -> bytes:
        """Return the next bytes, within ``max_seconds`` seconds if given.

        Raises:
            StopAsyncIteration: the answer has ended.
            BackendTimeout: no bytes came in time.
        """
        return await self.waits.wait(self.stream.__anext__, max_seconds)

    async def drain(self) -> None:
        """Wait a moment for the end of an answer, so that its connection can be reused."""
        if self.response.http_version == "HTTP/1.0":
            return  # the server closes the connection after each answer
        try:
            while True:
                await self.next(DRAIN_SECONDS)
        except (StopAsyncIteration, BackendTimeout):
            return

    async def aclose(self) -> None:
        """Release the connection; close it if the answer was not read to its end."""
        self.waits.close()
        await self.response.aclose()


_PLAIN: Final = frozenset(("Content-Type", "Accept", "Accept-Encoding"))
"""Headers without a key; any other header may have one."""


class Exchange:
    """Sends requests to one server.

    Connections stay open until `aclose`, or until the end of their event loop. Each event loop has
    its own connections.

    Args:
        address: the server's address.
        headers: sent with every request.
        client: a client of the caller to use instead, which is never closed here.
    """

    def __init__(
        self, address: Address, headers: Mapping[str, str], client: httpx.AsyncClient | None
    ) -> None:
        self._address = address
        self._headers = headers
        self._client = client
        self._clients: dict[
            asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[None, None]]
        ] = {}
        self._client_options: dict[str, Any] | None = None

    async def begin(
        self,
        body: Mapping[str, Any],
        limits: Deadlines,
        *,
        silent: bool,
        watch: Watch | None = None,
    ) -> ResponseStart:
        """Send a request for a completion, and wait for the first byte of its answer.

        Args:
            body: the body in the format of OpenAI's interface.
            limits: the deadlines of the request.
            silent: True if the server sends nothing before its whole answer.
            watch: called while the server is silent; raises if it cannot answer any more.

        Raises:
            ConnectionDropped, ServerFailed, EmptyResponse: the request may succeed if it is sent
                once more.
            BackendError: any other failure.
        """
        # Imported late: it imports asyncio, and most commands send no request.
        from mlx_tools.backends.waits import ResponseWaits

        path, body = self.target(body)
        content = _encode(body)
        with self.map_errors():
            client = await self.client()
            url = f"{self._address}{path}"
            http_request = client.build_request("POST", url, content=content, headers=self._headers)

            async def send() -> httpx.Response:
                return await client.send(http_request, stream=True, follow_redirects=False)

            waits = ResponseWaits(limits, silent=silent, watch=watch)
            try:
                response = await waits.wait(send)
                try:
                    return await self._start_response(response, waits)
                except BaseException:
                    await response.aclose()
                    raise
            except BaseException:
                waits.close()
                raise

    def target(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the path for a request, and the body in the server's own format."""
        return f"/v1/{'chat/' if 'messages' in body else ''}completions", body

    def decode_stream(self, path: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return the bytes of an answer in the format of OpenAI's interface."""
        return stream

    async def _start_response(
        self, response: httpx.Response, waits: ResponseWaits
    ) -> ResponseStart:
        headers, stream, first = response.headers, _raw_bytes(response), b""
        if response.status_code == 200:
            stream = self.decode_stream(response.request.url.path, stream)
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            # A small compressed answer could unpack to any amount of memory.
            raise BackendBroken(f"{self._address} sent compressed bytes that were not asked for")

        # One byte shows that an answer has begun; of an error, the whole message is needed.
        wanted = 1 if response.status_code == 200 else ERROR_BYTES
        while len(first.lstrip(_BLANK)) < wanted and len(first) < ERROR_BYTES:
            try:
                first += await waits.wait(stream.__anext__)
            except StopAsyncIteration:
                break
        if response.status_code != 200:
            text, path = first[:ERROR_BYTES], response.request.url.path
            raise as_refusal(response.status_code, text, str(self._address), headers, path)
        if not first:
            raise EmptyResponse(f"{self._address} answered without a byte", hint=LOG_HINT)
        start = ResponseStart(response, stream, first, waits)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html" and not start.whole:
            raise BackendBroken(
                f"{self._address} answered with a web page where a completion was asked for",
                hint="is it a completions server?",
            )
        return start

    @contextmanager
    def map_errors(self) -> Iterator[None]:
        """Raise errors of httpx and of the system, within the block, as `MlxToolsError`."""
        import httpx

        try:
            yield
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
            raise self.as_backend_error(error) from error

    def as_backend_error(self, error: Exception) -> MlxToolsError:
        """Return the `MlxToolsError` for an error of httpx or of the system.

        The hint names the proxy, if one is used.
        """
        mapped = translate(error, str(self._address))
        if mapped.hint == START_HINT and self._client_options and self._client_options["trust_env"]:
            mapped.hint = _describe_proxy(self._address) or mapped.hint
        mapped.hint = find_network_hint(self._address, error) or mapped.hint
        return mapped

    async def client(self) -> httpx.AsyncClient:
        """Return the HTTP client of the running event loop; make it if there is none."""
        from asyncio import get_running_loop

        if self._client is not None:
            return self._client
        loop = get_running_loop()
        # A connection can be used only in the event loop that opened it.
        if loop not in self._clients or self._clients[loop][0].is_closed:
            self._clients = {
                loop_key: entry
                for loop_key, entry in self._clients.items()
                if not loop_key.is_closed()
            }
            client = self._new_client()
            keeper = _closing(client)
            # The generator must begin in this loop, so that the loop closes it at its end.
            await anext(keeper)
            self._clients[loop] = client, keeper
        return self._clients[loop][0]

    async def aclose(self) -> None:
        """Close the running event loop's connections; a later request opens them again."""
        from asyncio import get_running_loop

        if entry := self._clients.pop(get_running_loop(), None):
            await entry[1].aclose()

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        from mlx_tools.backends.loopback import LoopbackClient

        if self._client_options is None:
            self._client_options = client_options(
                self._address, has_key=not _PLAIN.issuperset(self._headers)
            )
        # No read timeouts of httpx: `Deadlines` limits each wait, by the request's timeouts.
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT)
        if self._address.loopback and self._address.base.startswith("http:"):
            return LoopbackClient(timeout, KEEPALIVE_SECONDS)
        with map_proxy_errors():
            return httpx.AsyncClient(
                **self._client_options,
                timeout=timeout,
                limits=httpx.Limits(
                    max_keepalive_connections=8, keepalive_expiry=KEEPALIVE_SECONDS
                ),
            )


def _encode(body: Mapping[str, Any]) -> bytes:
    """Return a request's body as JSON."""
    # msgspec writes a long prompt in a seventh of the time, but NaN as null. In a completion
    # `check_request` has refused NaN; in messages and tools it must be an error here.
    if "messages" not in body:
        with suppress(TypeError, ValueError, OverflowError):
            return msgspec.json.encode(body)
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def _raw_bytes(response: httpx.Response) -> AsyncIterator[bytes]:
    """Return the bytes of an answer as they come; they are not compressed."""
    # Not `aiter_bytes`, which decodes and cuts each piece again, and takes twice as long.
    stream: Any = response.stream
    return aiter(stream)


def client_options(address: Address, *, has_key: bool) -> dict[str, Any]:
    """Return the options of an HTTP client (httpx's, or one like it) for a server.

    Certificates and proxies are those of the environment. No proxy is used for this machine. Nor is
    one used for plain http with a key (``has_key``), because the proxy could read the key.

    Raises:
        UsageError: the environment's certificates cannot be used.
    """
    import httpx

    plain = address.base.startswith("http:")
    # A proxy can read every header of plain http.
    proxied = not address.loopback and not (plain and has_key)
    with map_proxy_errors():
        # Making a TLS context takes 15 to 50 ms, so none is made for plain http to this machine.
        context = httpx.create_ssl_context(verify=not (plain and address.loopback))
    return {"verify": context, "trust_env": proxied, "follow_redirects": False}


def find_network_hint(
    address: Address, error: BaseException, platform: str = sys.platform
) -> str | None:
    """Return the hint if macOS may forbid access to the local network, else None."""
    host = urlsplit(address.base).hostname or ""
    is_local = host.endswith(".local")
    with suppress(ValueError):
        number = ipaddress.ip_address(host)
        is_local = number.is_private and not number.is_loopback
    numbers = [errno.errno for errno in iter_causes(error) if isinstance(errno, OSError)]
    hints = (network_hint(errno, is_local=is_local, platform=platform) for errno in numbers)
    return next(filter(None, hints), None)


def _describe_proxy(address: Address) -> str | None:
    """Return the hint for an unreachable server behind a proxy, None without a proxy."""
    from urllib.request import getproxies, proxy_bypass

    scheme, _, host_and_path = address.base.partition("://")
    if not {scheme, "all"} & set(getproxies()) or proxy_bypass(host_and_path.partition("/")[0]):
        return None
    name = f"{scheme.upper()}_PROXY"
    return f"the request uses the proxy of {name} or ALL_PROXY; NO_PROXY lists exceptions"


@contextmanager
def map_proxy_errors() -> Iterator[None]:
    """Raise errors of proxy and certificate settings, in the block, as `UsageError`."""
    try:
        yield
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(
            f"the proxy or certificate settings of the environment cannot be used: {error}",
            hint="check HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
        ) from error


async def _closing(client: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    """Close ``client`` when this generator is closed.

    An event loop closes its generators when it ends, and when nothing refers to them any more. So
    callers need not close a backend, and no connection outlives its loop.
    """
    try:
        yield
    finally:
        await client.aclose()
