"""The connection to one server.

Its address, deadlines, open connections and errors.
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import re
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from mlx_tools.backends.interface import CompletionRequest
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    MlxToolsError,
    UsageError,
    require_text,
)
from mlx_tools.macos import network_hint
from mlx_tools.process import clean

if TYPE_CHECKING:
    import asyncio
    import ssl

    import httpx

START_HINT: Final = "start one with mlx-tools models serve NAME, or name another with --url"
LOG_HINT: Final = "see the server's log; ask again"
MORE_TIME_HINT: Final = (
    "allow more time with --timeout, of which a completion gets two fifths, or fewer tokens with "
    "--max-tokens"
)

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


# --- the address ------------------------------------------------------------------------------

_TAIL: Final = re.compile(r"/*(?:/v1(?:/+(?:chat/+)?completions)?)?/*\Z")
"""The end of an address that is cut off: people copy it with ``/v1`` or the whole path."""
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]+\]", re.ASCII)
"""A host name or an IPv6 address in brackets."""


class Address(Struct, frozen=True):
    """The address of a server."""

    base: str
    """The address without ``/v1`` and without a slash at its end."""
    loopback: bool
    """True if the host is this machine, by name or number. No proxy is used then."""
    interface: str = ""
    """The interface that a plugin speaks, such as ``ollama``; empty for OpenAI's."""

    def __str__(self) -> str:
        return self.base

    @property
    def port(self) -> int:
        """The TCP port."""
        parts = urlsplit(self.base)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def url(self) -> str:
        """The address as `parse_address` reads it."""
        return f"{self.interface}:{self.base}" if self.interface else self.base


def parse_address(url: str) -> Address:
    """Read the address of a server.

    Args:
        url: an http or https address, with or without ``/v1`` and a slash at the end.
            A word before it, such as ``ollama:``, names the interface of the server.

    Raises:
        UsageError: this is no such address. A user name or password in it is refused too, because
            an
            address is shown and recorded.
    """
    text = require_text("url", url, "give the server's address: http://127.0.0.1:8080").strip()
    interface = ""
    if (prefix := re.match(r"(?i)([a-z][a-z0-9_-]{0,40}):(?=https?:)", text)) is not None:
        interface, text = prefix[1].lower(), text[prefix.end() :]
    # Messages show the address: a password, which could be before an @, must not be in it.
    shown = re.sub(r"//[^/@]*@", "//…@", text)[:200]

    def address_error(
        reason: str, hint: str = "an address looks like http://127.0.0.1:8080"
    ) -> UsageError:
        return UsageError(f"the server's address {shown!r} {reason}", hint=hint)

    if not text.isprintable() or " " in text or "\\" in text:
        raise address_error("holds white space or control characters")
    scheme = re.match(r"(?i)(https?)://", text)
    # The commonest mistake is an address without its scheme, so that has a hint of its own.
    if scheme is None:
        if re.match(r"(?:\w[\w.-]*|\[[0-9A-Fa-f:]+\]):\d+(?:/|\Z)", text):
            raise address_error("does not say http or https", f"write http://{text}")
        raise address_error("is no http or https address")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise address_error(f"cannot be read: {error}") from error
    if "@" in parts.netloc:
        raise address_error(
            "holds a user name or password", "leave it out; a key has its own option"
        )
    if "?" in text or "#" in text:
        raise address_error("has a query or a fragment", "leave it out")
    # urlsplit takes the brackets off an IPv6 address.
    netloc_host = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(netloc_host) or ".." in host or port == 0:
        raise address_error("names no host that can be reached")
    netloc = netloc_host if port is None else f"{netloc_host}:{port}"
    base = f"{scheme[1].lower()}://{netloc}{_TAIL.sub('', parts.path)}"
    return Address(base, _is_loopback(host), interface)


def _is_loopback(host: str) -> bool:
    try:
        return host.lower().rstrip(".") == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- time -------------------------------------------------------------------------------------

Clock = Callable[[], float]
"""Returns seconds since some fixed point."""


def now() -> float:
    """Return the time of the event loop, in seconds."""
    import anyio

    return anyio.current_time()


class Deadlines:
    """The deadlines of one request: for all of it, and for each silence of the server.

    Nothing extends the time for all of it; any sign of life ends a silence.

    Args:
        request: the request whose timeouts hold.
        name: the backend's name in messages.
        hint: what to do if it was silent.
        clock: returns the time.
    """

    def __init__(
        self, request: CompletionRequest, name: str, hint: str = LOG_HINT, clock: Clock = now
    ) -> None:
        self._request, self._name, self._hint, self._now = request, name, hint, clock
        self._end = clock() + request.timeout

    @property
    def seconds_left(self) -> float:
        """Seconds that are left for the whole request; below 0 if there are none."""
        return self._end - self._now()

    @contextmanager
    def step(self, max_seconds: float | None = None, *, silent: bool = False) -> Iterator[None]:
        """Limit one wait by the time left, the idle timeout, and ``max_seconds``.

        Args:
            max_seconds: a further limit, None for none.
            silent: no sign of life can be expected yet, so the idle timeout does not count.

        Raises:
            BackendTimeout: a limit was reached; the message names it.
        """
        import anyio

        left, idle = self.seconds_left, self._request.idle_timeout
        bound = left if silent else min(left, idle, idle if max_seconds is None else max_seconds)
        # With no time left nothing is awaited at all: a wait of 0 seconds could still succeed.
        if bound > 0:
            with anyio.move_on_after(bound) as scope:
                yield
            if not scope.cancelled_caught:
                return
        # Which limit was the shortest decides what a person can do about it.
        if bound >= left:
            raise BackendTimeout(
                f"{self._name} did not complete within {self._request.timeout:g} s",
                hint=MORE_TIME_HINT,
            )
        raise BackendTimeout(f"{self._name} was silent for {bound:g} s", hint=self._hint)


async def _sleep(seconds: float) -> None:
    import anyio

    await anyio.sleep(seconds)


class Retry(Struct, frozen=True, kw_only=True):
    """Repetitions of a request that failed in passing, and the pauses before them.

    The pauses are ``pause`` seconds, twice that, four times that. Each is multiplied by 0.5 to 1.5,
    as ``jitter`` (0 to 1) decides, so that many clients do not come back at the same moment.
    """

    times: int = 3
    """Repetitions. A choice: their pauses take about 0.7 seconds, enough for a failure that passes.
    """
    pause: float = 0.1
    jitter: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = _sleep
    clock: Clock = now

    def delay(self, tries: int) -> float:
        """Return the seconds to wait before the next try, after ``tries`` repetitions."""
        # Exponential, so that a server that restarts is not hit by every client at once.
        seconds: float = self.pause * 2**tries * (0.5 + self.jitter())
        return seconds


# --- foreign errors ---------------------------------------------------------------------------


class ConnectionDropped(BackendBroken):
    """The connection broke off."""


class EmptyResponse(BackendBroken):
    """The server began an answer and ended it without a byte.

    mlx-lm's server does so for a prompt that its cache holds whole.
    """


class TryAnotherServer(BackendRefused):
    """The server is busy, or has no such model: another server may take the request."""


class ServerFailed(BackendRefused):
    """The server says that it failed, with a status from 500 on."""


_HTTPX: Final[Mapping[str, tuple[type[MlxToolsError], str, str | None]]] = {
    # name of the httpx class, or of one it is derived from: what it becomes, what it means
    "ConnectTimeout": (BackendUnreachable, "{0} accepts no connection in time", START_HINT),
    "TimeoutException": (
        BackendTimeout,
        "{0} did not answer in time",
        "allow more time with --timeout, or see the server's log",
    ),
    "ConnectError": (BackendUnreachable, "no server answers at {0}", START_HINT),
    "NetworkError": (ConnectionDropped, "the connection to {0} broke off", LOG_HINT),
    "RemoteProtocolError": (ConnectionDropped, "{0} broke off, or does not speak HTTP", LOG_HINT),
    "ProxyError": (BackendUnreachable, "the proxy on the way to {0} refused", START_HINT),
    "LocalProtocolError": (UsageError, "the request to {0} cannot be sent", None),
    "UnsupportedProtocol": (UsageError, "{0} is no http or https address", None),
    "InvalidURL": (UsageError, "{0} is no address", None),
    "Exception": (BackendBroken, "the exchange with {0} failed", LOG_HINT),
}
"""Errors of httpx by name of their class, and the error, message and hint that stand for them.

The name may also be that of a base class; the most derived one wins.
"""

DEAD_WORDS: Final = "generation thread died"
"""The answer of mlx-lm's server after the thread that runs its model has ended."""


def translate(error: Exception, address: str) -> MlxToolsError:
    """Return the error of our tree for an error of httpx or of the operating system."""
    import ssl

    # httpx wraps a TLS failure in a ConnectError, whose words do not say that it is the
    # certificate.
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError):
            return _untrusted(cause, address)
    names = [cls.__name__ for cls in type(error).__mro__]
    kind, words, hint = next(_HTTPX[name] for name in names if name in _HTTPX)
    detail = clean(_reason(error)) or names[0]
    return kind(f"{words.format(address)}: {detail}", hint=hint)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = error
    # Chains are two or three long; the limit guards against one that runs in a circle.
    for _ in range(8):
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _reason(error: BaseException) -> str:
    """Return the operating system's message behind an error, else the error's own."""
    for cause in _causes(error):
        # os.strerror gives the same words on every path; strerror may come from getaddrinfo, with a
        # number of its own below 0.
        if isinstance(cause, OSError) and cause.strerror:
            return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror
    return str(error)


_CERTIFICATES: Final[Mapping[int, str]] = {
    # OpenSSL's number of what is wrong with a certificate: what to do
    10: "the server needs a new one, or this machine's clock is wrong",
    62: "name the server as its certificate does",
    64: "name the server as its certificate does",
}
"""Advice by OpenSSL's number of what is wrong with a certificate."""


def _untrusted(error: ssl.SSLError, address: str) -> BackendUnreachable:
    """Return the error for a certificate that is not trusted, or for missing TLS."""
    message, number = getattr(error, "verify_message", ""), getattr(error, "verify_code", 0)
    if not number:
        reason = clean((error.reason or str(error)).replace("_", " ").lower())
        hint = "does it speak http:// there, not https://?"
        return BackendUnreachable(f"{address} does not speak TLS: {reason}", hint=hint)
    default_hint = (
        "SSL_CERT_FILE=FILE trusts the certificates in FILE (PEM), such as your own authority's"
    )
    return BackendUnreachable(
        f"the certificate of {address} is not trusted: {clean(message)}",
        hint=_CERTIFICATES.get(number, default_hint),
    )


class DiedAtWork(BackendDead):
    """The thread that runs the model ended while a request waited for it."""


WATCH_SECONDS: Final = 4.0
"""Seconds of silence after which a server is asked whether its model still runs.

A choice: a dead thread is reported within 10 seconds, and a long prompt costs only a few requests
for the server's health.
"""

T = TypeVar("T")

Watch = Callable[[], Awaitable[None]]
"""Raises an error if the server cannot answer any more."""


async def watched(
    answer: Callable[[], Coroutine[Any, Any, T]],
    watch: Watch | None,
    interval: float = WATCH_SECONDS,
) -> T:
    """Wait for an answer, and call ``watch`` every few seconds until it comes.

    Args:
        answer: waits for the answer.
        watch: raises if no answer can come any more; None to wait without it.
        interval: seconds between two calls of ``watch``.
    """
    if watch is None:
        return await answer()
    import asyncio

    import anyio

    # A task, since wait() with a timeout must not cancel the answer as wait_for() would.
    task = asyncio.create_task(answer())
    try:
        while not (await asyncio.wait({task}, timeout=interval))[0]:
            await watch()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):  # the connection is free only after that
                await asyncio.wait({task})
        del task  # its exception refers to this frame: without this they keep each other alive


def dead(address: str, kind: type[BackendDead] = BackendDead) -> BackendDead:
    """Return the error for a server whose model thread has ended."""
    return kind(
        f"the server at {address} still answers, but the thread that runs its model has died",
        hint="restart it; another program may have sent a prompt that its cache held whole",
    )


def as_refusal(
    status: int,
    body: bytes,
    address: str,
    headers: Mapping[str, str],
    path: str = "/v1/completions",
) -> MlxToolsError:
    """Return the error for an answer that is no completion.

    Args:
        status: the HTTP status.
        body: the first bytes of the body.
        address: the server's address, for the message.
        headers: the headers of the answer.
        path: the path that was asked for.
    """
    detail = read_error_body(body)
    if DEAD_WORDS in detail:
        return dead(address)
    message = f"{address} answered {status}" + (f": {detail}" if detail else "")
    hint = None
    if 300 <= status < 400:
        location = clean(headers.get("location", ""))
        hint = f"redirects are not followed; name the address itself: {location}"
    elif status in (401, 403):
        hint = "the server wants a key, or refuses this one"
    # A short 404 without a word about an error or a model is a web server that has no such page.
    elif status in (404, 405) and len(detail) < 20 and not re.search("(?i)error|model", detail):
        hint = f"it may be no completions server: {path} is not offered there"
        if path.endswith("/completions") and "chat" not in path:
            hint += "; --backend native asks a server by its own chat interface"
    elif status == 404:
        hint = "it may not have that model: leave --model out, or name one of its /v1/models"
    elif status in (429, 503):
        hint = "the server is busy or still loading its model; ask again in a while"
    kind = TryAnotherServer if status in (404, 429) else BackendRefused
    error = (ServerFailed if status >= 500 else kind)(message, hint=hint)
    error.status = status
    if re.fullmatch(r"(?a)[\w ,:+-]{1,40}", retry_after := headers.get("retry-after", "")):
        error.retry_after = retry_after
    return error


def read_error_body(body: bytes) -> str:
    """Return the message in an error's body, at most 300 characters.

    It is the error of a JSON object, the title of a web page, or the text itself.
    """
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if "<" in text[:200]:
            # A proxy's error page says what is wrong in its title; the rest is decoration.
            title = re.search(r"(?is)<title[^>]*>([^<]{1,300})", text)
            text = title[1] if title else re.sub(r"<[^<>]{0,300}>", " ", text[:4000])
        return clean(text)
    return clean(error_text(value) or text)


def json_object(text: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a text; empty if there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def error_text(value: Any, depth: int = 4) -> str:
    """Return the message in an error object of any common shape.

    Empty if there is none.
    """
    for key in ("error", "message", "detail"):
        inner = value.get(key) if isinstance(value, dict) and depth else None
        if isinstance(inner, str) and inner:
            return inner
        if isinstance(inner, dict | list) and inner:
            try:
                return error_text(inner, depth - 1) or json.dumps(inner)[:300]
            except RecursionError:
                return "an error too deep to be shown"
    return ""


# --- the exchange -----------------------------------------------------------------------------


@dataclass(slots=True)
class ResponseStart:
    """An answer whose first bytes have come."""

    response: httpx.Response
    stream: AsyncIterator[bytes]
    first: bytes
    limits: Deadlines
    silent: bool
    """True if no sign of life can be expected before the whole answer has come."""
    watch: Watch | None = None

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
        with self.limits.step(max_seconds, silent=self.silent):
            return await watched(self._piece, self.watch)

    async def _piece(self) -> bytes:
        return await anext(self.stream)

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
        path, body = self.target(body)
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        with self.map_errors():
            client = await self.client()
            url = f"{self._address}{path}"
            http_request = client.build_request("POST", url, content=content, headers=self._headers)

            async def send() -> httpx.Response:
                return await client.send(http_request, stream=True, follow_redirects=False)

            with limits.step(silent=silent):
                response = await watched(send, watch)
            try:
                return await self._start_response(response, limits, silent, watch)
            except BaseException:
                await response.aclose()
                raise

    def target(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the path that a body is sent to, and the body as it is sent."""
        return f"/v1/{'chat/' if 'messages' in body else ''}completions", body

    def decode_stream(self, path: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return the bytes of an answer in the form of OpenAI's interface."""
        return stream

    async def _start_response(
        self, response: httpx.Response, limits: Deadlines, silent: bool, watch: Watch | None
    ) -> ResponseStart:
        headers, stream, first = response.headers, response.aiter_bytes(), b""
        if response.status_code == 200:
            stream = self.decode_stream(response.request.url.path, stream)
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            # unpacking it could take any amount of memory
            raise BackendBroken(f"{self._address} sent compressed bytes that were not asked for")

        async def piece() -> bytes:
            return await anext(stream)

        # One byte shows that an answer has begun; of an error as much is read as its message may
        # need.
        wanted = 1 if response.status_code == 200 else ERROR_BYTES
        while len(first.lstrip(_BLANK)) < wanted and len(first) < ERROR_BYTES:
            try:
                with limits.step(silent=silent):
                    first += await watched(piece, watch)
            except StopAsyncIteration:
                break
        if response.status_code != 200:
            text, path = first[:ERROR_BYTES], response.request.url.path
            raise as_refusal(response.status_code, text, str(self._address), headers, path)
        if not first:
            raise EmptyResponse(f"{self._address} answered without a byte", hint=LOG_HINT)
        start = ResponseStart(response, stream, first, limits, silent, watch)
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
            mapped.hint = _by_proxy(self._address) or mapped.hint
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

        if self._client_options is None:
            self._client_options = client_options(
                self._address, has_key=not _PLAIN.issuperset(self._headers)
            )
        with proxy_named():
            # No timeouts of httpx: `Deadlines` limits each wait, in the terms of the request.
            return httpx.AsyncClient(
                **self._client_options,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
                limits=httpx.Limits(
                    max_keepalive_connections=8, keepalive_expiry=KEEPALIVE_SECONDS
                ),
            )


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
    numbers = [errno.errno for errno in _causes(error) if isinstance(errno, OSError)]
    hints = (network_hint(errno, is_local=is_local, platform=platform) for errno in numbers)
    return next(filter(None, hints), None)


def _by_proxy(address: Address) -> str | None:
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
