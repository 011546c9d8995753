"""The way to one server: its address, deadlines, kept connections, failures in our words."""

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

KEPT: Final = 60.0
"""Seconds that a connection is kept unused: a tool may run that long between two completions."""

ERROR_BYTES: Final = 1 << 16
"""How much of an error's body is read."""

DRAIN: Final = 0.1
"""Seconds for the end of an answer that is known whole: only then can its connection be kept."""

_BLANK: Final = b" \t\r\n\xef\xbb\xbf"


# --- the address ------------------------------------------------------------------------------

INTERFACES: Final = ("anthropic", "ollama")
"""What stands before an address that speaks an interface of its own: `mlx_tools.backends.vendors`
has a backend for each."""

_TAIL: Final = re.compile(r"/*(?:/v1(?:/+(?:chat/+)?completions)?)?/*\Z")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%]+\]", re.ASCII)


class Address(Struct, frozen=True):
    """``base`` is the address without ``/v1`` and without a slash at its end.

    ``loopback`` says that its host is this machine by name or number; then no proxy is asked.
    ``interface`` is whose interface the server speaks, where the address says that it is not
    OpenAI's, one of `INTERFACES`.
    """

    base: str
    loopback: bool
    interface: str = ""

    def __str__(self) -> str:
        return self.base

    @property
    def port(self) -> int:
        """Its TCP port."""
        parts = urlsplit(self.base)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def url(self) -> str:
        """The address as `parse_address` reads it."""
        return f"{self.interface}:{self.base}" if self.interface else self.base


def parse_address(url: str) -> Address:
    """Read ``url``: http or https, with or without ``/v1`` and a slash at the end, and before it
    ``anthropic:`` or ``ollama:`` where the server speaks that interface.

    Raises:
        UsageError: it is no such address; a user name or password in it is refused too, because an
            address is shown and recorded.
    """
    text = require_text("url", url, "give the server's address: http://127.0.0.1:8080").strip()
    interface = ""
    if (own := re.match(rf"(?i)({'|'.join(INTERFACES)}):(?=https?:)", text)) is not None:
        interface, text = own[1].lower(), text[own.end() :]
    shown = re.sub(r"//[^/@]*@", "//…@", text)[:200]  # before an @ could stand a password

    def refused(
        reason: str, hint: str = "an address looks like http://127.0.0.1:8080"
    ) -> UsageError:
        return UsageError(f"the server's address {shown!r} {reason}", hint=hint)

    if not text.isprintable() or " " in text or "\\" in text:
        raise refused("holds white space or control characters")
    scheme = re.match(r"(?i)(https?)://", text)
    if scheme is None:
        if re.match(r"(?:\w[\w.-]*|\[[0-9A-Fa-f:]+\]):\d+(?:/|\Z)", text):
            raise refused("does not say http or https", f"write http://{text}")
        raise refused("is no http or https address")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise refused(f"cannot be read: {error}") from error
    if "@" in parts.netloc:
        raise refused("holds a user name or password", "leave it out; a key has its own option")
    if "?" in text or "#" in text:
        raise refused("has a query or a fragment", "leave it out")
    written = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(written) or ".." in host or port == 0:
        raise refused("names no host that can be reached")
    netloc = written if port is None else f"{written}:{port}"
    base = f"{scheme[1].lower()}://{netloc}{_TAIL.sub('', parts.path)}"
    return Address(base, _is_loopback(host), interface)


def _is_loopback(host: str) -> bool:
    try:
        return host.lower().rstrip(".") == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- time -------------------------------------------------------------------------------------

Clock = Callable[[], float]
"""Seconds, from any beginning."""


def now() -> float:
    import anyio

    return anyio.current_time()


class Deadlines:
    """A request's deadlines: nothing extends the whole, any sign of life breaks the silence.

    ``name`` is what the messages call the backend, ``hint`` what to do where it was silent.
    """

    def __init__(
        self, request: CompletionRequest, name: str, hint: str = LOG_HINT, clock: Clock = now
    ) -> None:
        self._request, self._name, self._hint, self._now = request, name, hint, clock
        self._end = clock() + request.timeout

    @property
    def seconds_left(self) -> float:
        """Seconds that are left of the whole; below 0 where it is over."""
        return self._end - self._now()

    @contextmanager
    def step(self, max_seconds: float | None = None, *, silent: bool = False) -> Iterator[None]:
        """Bound one wait by what is left of the whole, the idle limit, and ``max_seconds`` seconds.

        ``silent``: no sign of life can be expected yet, so the idle limit does not count.

        Raises:
            BackendTimeout: which limit it was stands in the message.
        """
        import anyio

        left, idle = self.seconds_left, self._request.idle_timeout
        bound = left if silent else min(left, idle, idle if max_seconds is None else max_seconds)
        if bound > 0:
            with anyio.move_on_after(bound) as scope:
                yield
            if not scope.cancelled_caught:
                return
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


# --- foreign errors ---------------------------------------------------------------------------


class ConnectionDropped(BackendBroken):
    """The connection broke off."""


class EmptyResponse(BackendBroken):
    """The server began an answer and ended it without a byte: mlx-lm's, for a prompt it caches."""


class TryAnotherServer(BackendRefused):
    """The server is busy, or has no such model: another one may take the request."""


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

DEAD_WORDS: Final = "generation thread died"
"""What mlx-lm's server answers once the thread that runs its model has ended."""


def translate(error: Exception, address: str) -> MlxToolsError:
    """The error of our tree that stands for ``error`` (httpx's, or the operating system's)."""
    import ssl

    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError):
            return _untrusted(cause, address)
    names = [cls.__name__ for cls in type(error).__mro__]
    kind, words, hint = next(_HTTPX[name] for name in names if name in _HTTPX)
    detail = clean(_reason(error)) or names[0]
    return kind(f"{words.format(address)}: {detail}", hint=hint)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what stands behind it."""
    seen: BaseException | None = error
    for _ in range(8):
        if isinstance(seen, BaseExceptionGroup):
            seen = seen.exceptions[0]
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


def _reason(error: BaseException) -> str:
    """What the operating system said, where it stands behind ``error``; else the error's words."""
    for seen in _causes(error):
        if isinstance(seen, OSError) and seen.strerror:
            return os.strerror(seen.errno) if seen.errno and seen.errno > 0 else seen.strerror
    return str(error)


_CERTIFICATES: Final[Mapping[int, str]] = {
    # OpenSSL's number of what is wrong with a certificate: what to do
    10: "the server needs a new one, or this machine's clock is wrong",
    62: "name the server as its certificate does",
    64: "name the server as its certificate does",
}


def _untrusted(error: ssl.SSLError, address: str) -> BackendUnreachable:
    said, number = getattr(error, "verify_message", ""), getattr(error, "verify_code", 0)
    if not number:
        reason = clean((error.reason or str(error)).replace("_", " ").lower())
        hint = "does it speak http:// there, not https://?"
        return BackendUnreachable(f"{address} does not speak TLS: {reason}", hint=hint)
    own = "SSL_CERT_FILE=FILE trusts the certificates in FILE (PEM), such as your own authority's"
    return BackendUnreachable(
        f"the certificate of {address} is not trusted: {clean(said)}",
        hint=_CERTIFICATES.get(number, own),
    )


class DiedAtWork(BackendDead):
    """The thread that runs the model ended while a request waited for it."""


WATCH: Final = 4.0
"""Seconds of silence after which a server is asked whether its model still runs: a thread that died
is told within 10 seconds, and a long prompt costs no more than some requests for its health."""

T = TypeVar("T")

Watch = Callable[[], Awaitable[None]]
"""Raises an error if the server cannot answer any more."""


async def watched(
    answer: Callable[[], Coroutine[Any, Any, T]], watch: Watch | None, every: float = WATCH
) -> T:
    """Wait for an answer, and call ``watch`` each ``every`` seconds until it comes."""
    if watch is None:
        return await answer()
    import asyncio

    import anyio

    task = asyncio.create_task(answer())
    try:
        while not (await asyncio.wait({task}, timeout=every))[0]:
            await watch()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):  # the connection is let go of after that
                await asyncio.wait({task})
        del task  # its error holds this frame


def dead(address: str, kind: type[BackendDead] = BackendDead) -> BackendDead:
    """The error for a server whose model thread has ended."""
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
    """The error for an answer that is no completion: ``status``, the body's first bytes and the
    ``headers``. ``path`` is what was asked for."""
    said = words_of(body)
    if DEAD_WORDS in said:
        return dead(address)
    message = f"{address} answered {status}" + (f": {said}" if said else "")
    hint = None
    if 300 <= status < 400:
        elsewhere = clean(headers.get("location", ""))
        hint = f"redirects are not followed; name the address itself: {elsewhere}"
    elif status in (401, 403):
        hint = "the server wants a key, or refuses this one"
    elif status in (404, 405) and len(said) < 20 and not re.search("(?i)error|model", said):
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
    if re.fullmatch(r"(?a)[\w ,:+-]{1,40}", later := headers.get("retry-after", "")):
        error.retry_after = later
    return error


def words_of(body: bytes) -> str:
    """What an error's body says, in at most 300 characters: JSON's error, or a page's title."""
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if "<" in text[:200]:
            title = re.search(r"(?is)<title[^>]*>([^<]{1,300})", text)
            text = title[1] if title else re.sub(r"<[^<>]{0,300}>", " ", text[:4000])
        return clean(text)
    return clean(error_text(value) or text)


def json_object(text: bytes | str) -> dict[str, Any]:
    """The JSON object that a text is, empty where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def error_text(value: Any, depth: int = 4) -> str:
    """The message in an error object of any common shape; empty where ``value`` is none."""
    for key in ("error", "message", "detail"):
        inner = value.get(key) if isinstance(value, dict) and depth else None
        if isinstance(inner, str) and inner:
            return inner
        if isinstance(inner, dict | list) and inner:
            try:
                return error_text(inner, depth - 1) or json.dumps(inner)[:300]
            except RecursionError:
                return "an error too deep to be told"
    return ""


# --- the exchange -----------------------------------------------------------------------------


@dataclass(slots=True)
class ResponseStart:
    """An answer of which the ``first`` bytes are there. ``silent``: no sign of life can be expected
    before it is there as a whole."""

    response: httpx.Response
    stream: AsyncIterator[bytes]
    first: bytes
    limits: Deadlines
    silent: bool
    watch: Watch | None = None

    @property
    def whole(self) -> bool:
        """Whether it is one JSON value, and no stream, as its first character tells: a server may
        answer either way whatever was asked for."""
        return self.first.lstrip(_BLANK).startswith((b"{", b"["))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes, from the first on."""
        yield self.first
        while True:
            try:
                yield await self.next()
            except StopAsyncIteration:
                return

    async def next(self, max_seconds: float | None = None) -> bytes:
        """The bytes after those that came, within ``max_seconds`` seconds where given.

        Raises `StopAsyncIteration` at the end.
        """
        with self.limits.step(max_seconds, silent=self.silent):
            return await watched(self._piece, self.watch)

    async def _piece(self) -> bytes:
        return await anext(self.stream)

    async def drain(self) -> None:
        """Wait a moment for the end of an answer of which nothing more is wanted."""
        if self.response.http_version == "HTTP/1.0":
            return  # such a connection is not kept
        try:
            while True:
                await self.next(DRAIN)
        except (StopAsyncIteration, BackendTimeout):
            return

    async def aclose(self) -> None:
        """Let go of the connection; it is closed where the answer was not read to its end."""
        await self.response.aclose()


_PLAIN: Final = frozenset(("Content-Type", "Accept", "Accept-Encoding"))
"""Headers that hold no key; any other may."""


class Exchange:
    """Sends requests to the server at ``address``, each with ``headers``.

    Its connections are kept as long as the event loop in which they were made, or until `aclose`;
    each loop has its own. ``client`` is a client of the caller's to use instead, and stays open.
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
        self._way: dict[str, Any] | None = None

    async def begin(
        self,
        body: Mapping[str, Any],
        limits: Deadlines,
        *,
        silent: bool,
        watch: Watch | None = None,
    ) -> ResponseStart:
        """Send a request for a completion, and wait for the first byte of what is no error.

        ``silent``: no sign of life can be expected before the answer is there as a whole.
        ``watch`` is called while the server is silent, and raises if it cannot answer any more.

        Raises:
            ConnectionDropped, ServerFailed, EmptyResponse: it may work when it is sent once more.
            BackendError: it came to nothing otherwise.
        """
        path, body = self.target(body)
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        with self.map_errors():
            client = await self.client()
            url = f"{self._address}{path}"
            sent = client.build_request("POST", url, content=content, headers=self._headers)

            async def send() -> httpx.Response:
                return await client.send(sent, stream=True, follow_redirects=False)

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

    def decoded(self, path: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return the bytes of an answer in the form of OpenAI's interface."""
        return stream

    async def _start_response(
        self, response: httpx.Response, limits: Deadlines, silent: bool, watch: Watch | None
    ) -> ResponseStart:
        headers, stream, first = response.headers, response.aiter_bytes(), b""
        if response.status_code == 200:
            stream = self.decoded(response.request.url.path, stream)
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            # unpacking it could take any amount of memory
            raise BackendBroken(f"{self._address} sent compressed bytes that were not asked for")

        async def piece() -> bytes:
            return await anext(stream)

        wanted = 1 if response.status_code == 200 else ERROR_BYTES
        while len(first.lstrip(_BLANK)) < wanted and len(first) < ERROR_BYTES:
            try:
                with limits.step(silent=silent):
                    first += await watched(piece, watch)
            except StopAsyncIteration:
                break
        if response.status_code != 200:
            said, path = first[:ERROR_BYTES], response.request.url.path
            raise as_refusal(response.status_code, said, str(self._address), headers, path)
        if not first:
            raise EmptyResponse(f"{self._address} answered without a byte", hint=LOG_HINT)
        begun = ResponseStart(response, stream, first, limits, silent, watch)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html" and not begun.whole:
            raise BackendBroken(
                f"{self._address} answered with a web page where a completion was asked for",
                hint="is it a completions server?",
            )
        return begun

    @contextmanager
    def map_errors(self) -> Iterator[None]:
        """Turns httpx's and the system's errors, raised within, into ours."""
        import httpx

        try:
            yield
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
            raise self.as_backend_error(error) from error

    def as_backend_error(self, error: Exception) -> MlxToolsError:
        """The error of our tree for one of httpx's or the system's; a proxy on the way is named."""
        told = translate(error, str(self._address))
        if told.hint == START_HINT and self._way and self._way["trust_env"]:
            told.hint = _by_proxy(self._address) or told.hint
        told.hint = local_network_hint(self._address, error) or told.hint
        return told

    async def client(self) -> httpx.AsyncClient:
        from asyncio import get_running_loop

        if self._client is not None:
            return self._client
        loop = get_running_loop()
        if loop not in self._clients or self._clients[loop][0].is_closed:
            self._clients = {
                old: kept for old, kept in self._clients.items() if not old.is_closed()
            }
            client = self._new_client()
            keeper = _closing(client)
            await anext(keeper)
            self._clients[loop] = client, keeper
        return self._clients[loop][0]

    async def aclose(self) -> None:
        """Close the connections of the running event loop. They are made anew where needed."""
        from asyncio import get_running_loop

        if kept := self._clients.pop(get_running_loop(), None):
            await kept[1].aclose()

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        if self._way is None:
            self._way = way_to(self._address, has_key=not _PLAIN.issuperset(self._headers))
        with proxy_named():
            return httpx.AsyncClient(
                **self._way,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
                limits=httpx.Limits(max_keepalive_connections=8, keepalive_expiry=KEPT),
            )


def way_to(address: Address, *, has_key: bool) -> dict[str, Any]:
    """What an HTTP client (httpx's, or one with the same options) is made with to go to a server.

    Certificates and proxies are those that the environment names. No proxy is asked for this
    machine, nor over plain http where a key goes along (``has_key``): the proxy could read it.
    Raises `UsageError` for certificates that cannot be used.
    """
    import httpx

    plain = address.base.startswith("http:")
    proxied = not address.loopback and not (plain and has_key)
    with proxy_named():
        # a TLS context takes 15 to 50 ms: not for plain http to this machine
        context = httpx.create_ssl_context(verify=not (plain and address.loopback))
    return {"verify": context, "trust_env": proxied, "follow_redirects": False}


def local_network_hint(
    address: Address, error: BaseException, platform: str = sys.platform
) -> str | None:
    """Return what to do where macOS may keep the local network from this program."""
    host = urlsplit(address.base).hostname or ""
    is_local = host.endswith(".local")
    with suppress(ValueError):
        number = ipaddress.ip_address(host)
        is_local = number.is_private and not number.is_loopback
    numbers = [one.errno for one in _causes(error) if isinstance(one, OSError)]
    hints = (network_hint(one, is_local=is_local, platform=platform) for one in numbers)
    return next(filter(None, hints), None)


def _by_proxy(address: Address) -> str | None:
    """What to do where a server cannot be reached that is asked by way of a proxy; None where it is
    not."""
    from urllib.request import getproxies, proxy_bypass

    scheme, _, rest = address.base.partition("://")
    if not {scheme, "all"} & set(getproxies()) or proxy_bypass(rest.partition("/")[0]):
        return None
    name = f"{scheme.upper()}_PROXY"
    return f"it is asked by way of the proxy of {name} or ALL_PROXY; NO_PROXY names what is not"


@contextmanager
def proxy_named() -> Iterator[None]:
    """Turns what is raised within of settings in the environment into a `UsageError`."""
    try:
        yield
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(
            f"the proxy or certificate settings of the environment cannot be used: {error}",
            hint="check HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
        ) from error


async def _closing(client: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    """Closes ``client`` when it is closed itself: an event loop closes the generators that were
    begun in it when it ends, and when nobody holds them any more. So nobody has to close a
    backend, and no connection outlives its loop."""
    try:
        yield
    finally:
        await client.aclose()
