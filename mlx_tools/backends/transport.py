"""The exchange with one server over its open connections."""

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
"""Seconds that an unused connection stays open: a tool may run that long between two completions.
"""

ERROR_BYTES: Final = 1 << 16
"""The most bytes read of an error's body. A choice: messages are shorter, web pages may be longer.
"""

DRAIN_SECONDS: Final = 0.1
"""Seconds to wait for the end of an answer that is complete: its connection can be reused only
then."""

_BLANK: Final = b" \t\r\n\xef\xbb\xbf"
"""Bytes that may come before JSON: white space, and a byte order mark."""


@dataclass(slots=True)
class ResponseStart:
    """An answer whose first bytes have come."""

    response: httpx.Response
    stream: AsyncIterator[bytes]
    first: bytes
    waits: ResponseWaits

    @property
    def whole(self) -> bool:
        """True if the answer is one JSON value and no stream.

        Its first character tells: a server may answer either way, whatever was asked for.
        """
        return self.first.lstrip(_BLANK).startswith((b"{", b"["))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes, from the first on."""
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
        """Wait a moment for the end of an answer that is not needed any more."""
        # An HTTP/1.0 server closes the connection after each answer, so there is nothing to reuse.
        if self.response.http_version == "HTTP/1.0":
            return  # HTTP/1.0 closes its connection anyway
        try:
            while True:
                await self.next(DRAIN_SECONDS)
        except (StopAsyncIteration, BackendTimeout):
            return

    async def aclose(self) -> None:
        """Release the connection; it is closed if the answer was not read to its end."""
        self.waits.close()
        await self.response.aclose()


_PLAIN: Final = frozenset(("Content-Type", "Accept", "Accept-Encoding"))
"""Headers that hold no key; any other may."""


class Exchange:
    """Sends requests to one server.

    Its connections stay open as long as the event loop in which they were made, or until `aclose`.
    Each event loop has its own.

    Args:
        address: the server's address.
        headers: sent with every request.
        client: a client of the caller to use instead; it is never closed here.
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
            body: the body as OpenAI's interface has it.
            limits: the deadlines of the request.
            silent: no sign of life can be expected before the whole answer has come.
            watch: called while the server is silent; raises if it cannot answer any more.

        Raises:
            ConnectionDropped, ServerFailed, EmptyResponse: it may work if it is sent once more.
            BackendError: any other failure.
        """
        # Imported late: it loads asyncio, and most commands send no request.
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
        """Return the path that a body is sent to, and the body as it is sent."""
        return f"/v1/{'chat/' if 'messages' in body else ''}completions", body

    def decode_stream(self, path: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return the bytes of an answer in the form of OpenAI's interface."""
        return stream

    async def _start_response(
        self, response: httpx.Response, waits: ResponseWaits
    ) -> ResponseStart:
        headers, stream, first = response.headers, _raw_bytes(response), b""
        if response.status_code == 200:
            stream = self.decode_stream(response.request.url.path, stream)
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            # unpacking it could take any amount of memory
            raise BackendBroken(f"{self._address} sent compressed bytes that were not asked for")

        # One byte shows that an answer has begun; of an error as much is read as its message may
        # need.
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
        """Turn errors of httpx and of the system, raised within, into errors of our tree."""
        import httpx

        try:
            yield
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
            raise self.as_backend_error(error) from error

    def as_backend_error(self, error: Exception) -> MlxToolsError:
        """Return the error of our tree for one of httpx or of the system.

        Names a proxy on the way.
        """
        mapped = translate(error, str(self._address))
        if mapped.hint == START_HINT and self._client_options and self._client_options["trust_env"]:
            mapped.hint = _describe_proxy(self._address) or mapped.hint
        mapped.hint = local_network_hint(self._address, error) or mapped.hint
        return mapped

    async def client(self) -> httpx.AsyncClient:
        """Return the running event loop's HTTP client; make it at its first use."""
        from asyncio import get_running_loop

        if self._client is not None:
            return self._client
        loop = get_running_loop()
        # A connection belongs to the event loop that opened it: another loop cannot wait for it.
        if loop not in self._clients or self._clients[loop][0].is_closed:
            self._clients = {
                loop_key: entry
                for loop_key, entry in self._clients.items()
                if not loop_key.is_closed()
            }
            client = self._new_client()
            keeper = _closing(client)
            # The generator must have begun in this loop: only then does the loop close it at its
            # end.
            await anext(keeper)
            self._clients[loop] = client, keeper
        return self._clients[loop][0]

    async def aclose(self) -> None:
        """Close the connections of the running event loop.

        A later request opens them again.
        """
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
        # No timeouts of httpx: `Deadlines` limits each wait, in the terms of the request.
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT)
        if self._address.loopback and self._address.base.startswith("http:"):
            return LoopbackClient(timeout, KEEPALIVE_SECONDS)
        with proxy_named():
            return httpx.AsyncClient(
                **self._client_options,
                timeout=timeout,
                limits=httpx.Limits(
                    max_keepalive_connections=8, keepalive_expiry=KEEPALIVE_SECONDS
                ),
            )


def _encode(body: Mapping[str, Any]) -> bytes:
    """Return a request's body as JSON."""
    # msgspec writes a long prompt in a seventh of the time. It would write NaN as null, which
    # `check_request` forbids in the fields of a completion, and nothing in the schemas of tools.
    if "messages" not in body:
        with suppress(TypeError, ValueError, OverflowError):
            return msgspec.json.encode(body)
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def _raw_bytes(response: httpx.Response) -> AsyncIterator[bytes]:
    """Return the bytes of an answer as they come, which are not compressed."""
    # Not `aiter_bytes`: it unpacks and cuts each piece anew, at twice the cost of reading it.
    stream: Any = response.stream
    return aiter(stream)


def client_options(address: Address, *, has_key: bool) -> dict[str, Any]:
    """Return the options of an HTTP client (httpx's, or one like it) for a server.

    Certificates and proxies are those of the environment. No proxy is used for this machine, nor
    over plain http if a key is sent (``has_key``): the proxy could read it.

    Raises:
        UsageError: the environment's certificates cannot be used.
    """
    import httpx

    plain = address.base.startswith("http:")
    # A proxy on the way of plain http reads every header.
    proxied = not address.loopback and not (plain and has_key)
    with proxy_named():
        # a TLS context takes 15 to 50 ms: not for plain http to this machine
        context = httpx.create_ssl_context(verify=not (plain and address.loopback))
    return {"verify": context, "trust_env": proxied, "follow_redirects": False}


def local_network_hint(
    address: Address, error: BaseException, platform: str = sys.platform
) -> str | None:
    """Return what to do if macOS may forbid the local network, else None."""
    host = urlsplit(address.base).hostname or ""
    is_local = host.endswith(".local")
    with suppress(ValueError):
        number = ipaddress.ip_address(host)
        is_local = number.is_private and not number.is_loopback
    numbers = [errno.errno for errno in iter_causes(error) if isinstance(errno, OSError)]
    hints = (network_hint(errno, is_local=is_local, platform=platform) for errno in numbers)
    return next(filter(None, hints), None)


def _describe_proxy(address: Address) -> str | None:
    """Return what to do if an unreachable server is asked through a proxy.

    None without a proxy.
    """
    from urllib.request import getproxies, proxy_bypass

    scheme, _, host_and_path = address.base.partition("://")
    if not {scheme, "all"} & set(getproxies()) or proxy_bypass(host_and_path.partition("/")[0]):
        return None
    name = f"{scheme.upper()}_PROXY"
    return f"it is asked by way of the proxy of {name} or ALL_PROXY; NO_PROXY names what is not"


@contextmanager
def proxy_named() -> Iterator[None]:
    """Turn errors about proxy and certificate settings into a `UsageError`."""
    try:
        yield
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(
            f"the proxy or certificate settings of the environment cannot be used: {error}",
            hint="check HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
        ) from error


async def _closing(client: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    """Close ``client`` when this generator is closed.

    An event loop closes the generators that were begun in it when it ends, and when nobody holds
    them any more. So nobody has to close a backend, and no connection outlives its loop.
    """
    try:
        yield
    finally:
        await client.aclose()
