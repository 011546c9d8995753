"""Fetches web pages from checked addresses only, within limits.

Each redirect is checked before it is followed. A host is looked up once, and the request goes to
the checked address. There are no cookies, no credentials and no proxy. HTML is read in a separate
process, since it is not trusted.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from msgspec import Struct

from mlx_tools.lazy import VERSION
from mlx_tools.process import clean, visible
from mlx_tools.toolbox.urls import (
    Address,
    Target,
    UrlRefused,
    is_near,
    is_public,
    join_url,
)
from mlx_tools.toolbox.worker import Bounds, WorkerFailed, run_in_worker
from mlx_tools.tools import ToolError, submit
from mlx_tools.transcript import Source

if TYPE_CHECKING:
    import ssl

    import httpx

ALLOWED_PORTS: Final = frozenset((80, 443, 8080, 8443))
"""Ports on which sites serve pages. Other ports belong to other services, and are refused."""
MAX_ADDRESSES: Final = 4
"""Addresses of one host that are tried."""
MAX_REDIRECTS: Final = 5
"""Redirects that are followed. A site with https and www needs two."""
CONNECT_SECONDS: Final = 5.0
"""Seconds to connect to one address. Then the next one of the host is tried."""
ENCODING: Final = "identity"
"""The requested encoding. A compressed body is refused, because it may unpack to any size."""

_REQUEST_HEADERS: Final = {
    "Accept": "text/html,application/xhtml+xml,text/markdown,text/plain,application/json,*/*;q=0.5",
    "Accept-Encoding": ENCODING,
}
"""The headers of a request."""
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Looks up the addresses of a host, as texts. Raises OSError if there are none."""


async def system_resolve(host: str, port: int) -> list[str]:
    """Return the addresses that the system knows for a name, in its order."""
    look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    value, error = await submit(look_up) or (None, None)
    if error is not None:
        raise error
    return [str(entry[4][0]) for entry in value or ()]


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """The answer of a server."""

    target: Target
    """The place of the page after all redirects."""
    media: Media
    data: bytes = field(repr=False)
    cut: bool = False
    """True if there was more than ``data``."""


class Fetcher(Struct, frozen=True, kw_only=True):
    """Fetches pages."""

    local: frozenset[str] = frozenset()
    """Hosts of this machine or its network that are allowed, in the form of `read_local`."""
    ports: frozenset[int] = ALLOWED_PORTS
    """The allowed ports."""
    may_ask: Callable[[Address], bool] = is_public
    """Returns whether an address is allowed."""
    resolve: Resolve = system_resolve
    """Looks up the addresses of names."""
    idle: float = 10.0
    """Seconds that a server may be silent."""
    context: ssl.SSLContext | None = None
    """The TLS context, None for the usual authorities."""
    max_bytes: int = 3_000_000
    """Bytes of a body that are read."""

    async def fetch(self, target: Target) -> FetchedPage:
        """Return the page at a URL. The time limit is only for a server's silence.

        Raises:
            UrlRefused: the URL is not allowed.
            ToolError: the page could not be fetched.
        """
        for _ in range(MAX_REDIRECTS + 1):
            async with self._open_response(target, "GET", _REQUEST_HEADERS) as response:
                if response.status_code not in _REDIRECTS:
                    return await self._read_page(target, response)
                target = self._find_redirect(target, response)
        raise ToolError(f"the page redirects too often: more than {MAX_REDIRECTS} redirects")

    async def post(self, target: Target, body: bytes, headers: Mapping[str, str]) -> int:
        """Post a body and return the status; redirects are not followed.

        The rest of the answer is not read. Raises the same errors as `fetch`.
        """
        all_headers = {**headers, "Content-Length": str(len(body))}
        async with self._open_response(target, "POST", all_headers, body) as response:
            return response.status_code

    async def admit(self, target: Target) -> list[str]:
        """Return the checked addresses of a target, at least one.

        Raises:
            UrlRefused: an address of its host is refused.
            ToolError: the host has no address.
        """
        self.check(target)
        literal_address, local = target.address, target.place in self.local
        if literal_address is not None and local:
            return [str(literal_address)]
        addresses = (
            [literal_address] if literal_address is not None else await self._resolve_host(target)
        )
        if not all(
            self.may_ask(candidate) or (local and is_near(candidate)) for candidate in addresses
        ):
            raise UrlRefused(
                f"{target.host} is not out on the internet; such addresses are never asked"
            )
        return [str(address) for address in addresses[:MAX_ADDRESSES]]

    def check(self, target: Target) -> None:
        """Check the parts that need no look-up of the name. Raises UrlRefused."""
        if target.place not in self.local and target.port not in self.ports:
            listed = ", ".join(map(str, sorted(self.ports)))
            raise UrlRefused(f"port {target.port} is not asked; the ports are {listed}")

    async def _resolve_host(self, target: Target) -> list[Address]:
        try:
            texts = await self.resolve(target.host, target.port)
            addresses = [ip_address(text) for text in dict.fromkeys(texts)]
        except (OSError, UnicodeError, ValueError):
            addresses = []
        if not addresses:
            raise ToolError(f"there is no host {target.host}, or its name cannot be looked up")
        return addresses

    def _find_redirect(self, target: Target, response: httpx.Response) -> Target:
        """Return the target of a redirect. Raises UrlRefused."""
        locations = set(response.headers.get_list("location"))
        if len(locations) != 1:
            raise UrlRefused(f"{target.host} redirects without a place, or to several")
        next_target = join_url(target, locations.pop(), self.local)
        if target.scheme == "https" and next_target.scheme == "http":
            raise UrlRefused(
                f"{target.host} leads from https to http ({next_target.host}), which is not done"
            )
        return next_target

    @contextlib.asynccontextmanager
    async def _open_response(
        self, target: Target, method: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[httpx.Response]:
        """Yield the response of the host's first address that accepts a connection.

        Its body is not read yet. The request has the host's name, which the certificate must match,
        but the connection goes to the checked address. Raises the same errors as `fetch`.
        """
        import httpx

        addresses = await self.admit(target)
        sent = {
            "Host": target.authority,
            "User-Agent": f"mlx-tools/{VERSION}",
            **headers,
            "Connection": "close",
        }
        times = {"connect": CONNECT_SECONDS, "read": self.idle, "write": self.idle, "pool": 1.0}
        async with contextlib.AsyncExitStack() as stack:
            for address in addresses:
                transport = httpx.AsyncHTTPTransport(
                    verify=self.context or _make_default_context(), trust_env=False, http2=False
                )
                await stack.enter_async_context(transport)
                url = httpx.URL(
                    scheme=target.scheme,
                    host=address,
                    port=target.port,
                    raw_path=target.path.encode("ascii"),
                )
                extensions = {"timeout": times, "sni_hostname": target.host}
                request = httpx.Request(
                    method, url, headers=sent, content=body, extensions=extensions
                )
                try:
                    response = await transport.handle_async_request(request)
                    break
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    if address == addresses[-1]:
                        message = clean(str(error), 200)
                        raise ToolError(
                            f"{target.host} cannot be reached" + (f": {message}" if message else "")
                        ) from None
                except httpx.HTTPError as error:
                    raise _read_error(target, error) from None
            stack.push_async_callback(response.aclose)
            yield response

    async def _read_page(self, target: Target, response: httpx.Response) -> FetchedPage:
        import httpx

        status = response.status_code
        if not 200 <= status < 300:
            phrase = clean(response.reason_phrase, 60)
            raise ToolError(f"{target.host} answered {status} {phrase}".rstrip())
        media = parse_media(response.headers.get("content-type", ""))
        encoding = response.headers.get("content-encoding", "")
        try:
            data, cut = await read_body(response.aiter_raw(), encoding, self.max_bytes)
        except httpx.HTTPError as error:
            raise _read_error(target, error) from None
        return FetchedPage(target, media, data, cut)


def _read_error(target: Target, error: Exception) -> ToolError:
    """Return the error for a failure during a server's answer."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return ToolError(f"{target.host} went silent", code="timeout")
    return ToolError(f"{target.host} did not answer as a web server does: {clean(str(error), 200)}")


@functools.cache
def _make_default_context() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


# --- bodies -------------------------------------------------------------------------------------


async def read_body(pieces: AsyncIterator[bytes], encoding: str, limit: int) -> tuple[bytes, bool]:
    """Return the body, and True if it was longer than ``limit`` bytes.

    Args:
        pieces: the pieces of the body.
        encoding: the encoding that the server names.
        limit: bytes that are read.

    Raises:
        ToolError: the body is compressed.
    """
    if encoding.strip().lower() not in ("", ENCODING):
        raise ToolError(f"the page is packed as {clean(encoding, 60)}, which was not asked for")
    data = bytearray()
    async for piece in pieces:
        data += piece[: limit + 1 - len(data)]
        if len(data) > limit:
            return bytes(data[:limit]), True
    return bytes(data), False


# --- media types and charsets -------------------------------------------------------------------

Kind = Literal["html", "text", "unknown"]

_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([A-Za-z0-9_.:-]{1,40})", re.ASCII | re.IGNORECASE)
_META = re.compile(
    rb"<meta[^>]{0,500}?charset\s{0,20}=\s{0,20}[\"']?\s{0,20}([A-Za-z0-9_.:-]{1,40})",
    re.IGNORECASE,
)
_META_BYTES: Final = 1024
"""Bytes of a page in which browsers search a charset (HTML standard, prescan)."""

_TAG = re.compile(rb"<(?:!doctype\s{1,20}html|html|head|body)\b", re.IGNORECASE)
_HTML: Final = frozenset(("text/html", "application/xhtml+xml"))
_TEXT: Final = frozenset(
    (
        *("application/json", "application/xml", "application/yaml", "application/x-yaml"),
        *("application/toml", "application/javascript", "application/x-ndjson", "application/sql"),
        *("application/x-sh", "application/graphql", "message/rfc822"),
    )
)
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDER: Final = {
    "ascii": "cp1252",
    "big5": "big5hkscs",
    "euc_kr": "cp949",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "iso8859-1": "cp1252",
    "iso8859-11": "cp874",
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "tis-620": "cp874",
    "utf-16": "utf-16-le",
}
"""Encodings that are read as a larger one, as in browsers (WHATWG Encoding Standard)."""
_ALLOWED_CHARSETS: Final = frozenset(
    (
        *("utf-8", "utf-16-le", "utf-16-be", "gb18030", "cp932", "cp949", "big5hkscs", "euc_jp"),
        *("iso2022_jp", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "cp866", "cp874"),
        *(f"cp{number}" for number in range(1250, 1259)),
        *(f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
    )
)
"""Encodings of pages. Python has others that are no charsets, and some that decompress."""


class Media(NamedTuple):
    """The kind of a body by its media type, and its declared charset or ""."""

    kind: Kind
    charset: str = ""


def parse_media(content_type: str) -> Media:
    """Return the meaning of a ``Content-Type`` field.

    Raises:
        ToolError: it is not a type of text.
    """
    content_type = content_type[:1000]
    name = content_type.partition(";")[0].strip().lower()
    match = _CHARSET.search(content_type)
    charset = match[1] if match else ""
    if name in _HTML:
        return Media("html", charset)
    if not name or name == "application/octet-stream":
        return Media("unknown", charset)
    if name == "text/event-stream":
        raise ToolError(f"the server sends a stream without an end ({name})")
    if name in _TEXT or name.startswith("text/") or name.endswith(("+json", "+xml", "+yaml")):
        return Media("text", charset)
    raise ToolError(
        f"this is no text but {clean(name, 100)}; only text, HTML, JSON and the like can be read"
    )


def is_html(media: Media, data: bytes) -> bool:
    """Return whether a body is HTML, by its type, or by its beginning if it has none."""
    if media.kind != "unknown":
        return media.kind == "html"
    begin = data[:_META_BYTES].lstrip()
    return begin.startswith(b"<") and _TAG.search(begin) is not None


def decode_body(media: Media, data: bytes) -> str:
    """Return a body as text, with U+FFFD in place of invalid bytes.

    The encoding is the first of these that is there: that of the byte order mark, the declared one,
    that of the page itself, UTF-8 if it is valid, and Windows-1252.

    Raises:
        ToolError: the body is binary.
    """
    declared, data = split_bom(data)
    declared = (
        declared
        or _find_charset(media.charset)
        or (find_charset(data) if is_html(media, data) else None)
    )
    if declared is not None:
        return _clean_text(data.decode(declared, "replace"))
    try:
        return _clean_text(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        cut_off = error.reason == "unexpected end of data" and error.start > 0
        return _clean_text(data.decode("utf-8" if cut_off else "cp1252", "replace"))


def split_bom(data: bytes) -> tuple[str | None, bytes]:
    """Return the charset of the byte order mark, or None, and the bytes after it."""
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name, data.removeprefix(mark)
    return None, data


def find_charset(data: bytes) -> str | None:
    """Return the charset that a page itself declares."""
    meta = _META.search(data[:_META_BYTES])
    charset = _find_charset(meta[1].decode("ascii")) if meta else None
    # UTF-16 is impossible, since the declaration was read as ASCII
    return "utf-8" if charset is not None and charset.startswith("utf-16") else charset


def _find_charset(label: str) -> str | None:
    """Return the charset of a label, None if it is no charset of pages."""
    try:
        name = codecs.lookup(label).name if label else ""
    except (LookupError, ValueError):
        return None
    name = _WIDER.get(name, name)
    return name if name in _ALLOWED_CHARSETS else None


def _clean_text(text: str) -> str:
    if "\0" in text[:4096]:
        raise ToolError("this is not text: it contains zero bytes")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


# --- a page's text ------------------------------------------------------------------------------

MAX_TEXT: Final = 1_000_000
"""Characters of a page's text."""
CPU_SECONDS: Final = 10
MEMORY_MB: Final = 1000


async def extract_text(page: FetchedPage, seconds: float) -> tuple[Source, bool]:
    """Return a page's text for a model, and True if the text was cut.

    Raises:
        ToolError: the page is no text, or its HTML takes too much time or memory to read.
    """
    url, text = page.target.url, decode_body(page.media, page.data)
    if not is_html(page.media, page.data):
        cut = page.cut or len(text) > MAX_TEXT
        return Source("", url, visible(text[:MAX_TEXT]).strip("\n")), cut
    question = {"html": text, "url": url, "max_chars": MAX_TEXT}
    bounds = Bounds(seconds=seconds, cpu_seconds=CPU_SECONDS, memory_mb=MEMORY_MB)
    try:
        result = await run_in_worker("toolbox.html_text.read_html", "justhtml", question, bounds)
        title, body = visible(str(result["title"])), visible(str(result["text"]))
    except WorkerFailed as error:
        why = "it would take too much time or memory" if error.over_limit else "its reader failed"
        raise ToolError(f"the page's HTML cannot be read, {why}: {url}") from None
    return Source(title, url, body), page.cut or bool(result.get("cut"))
