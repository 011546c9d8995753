"""A page from the web: asked for at checked addresses alone, within limits, redirects followed one
by one; its HTML read in a process of its own, since it comes from strangers.

A URL's host is looked up once, and what is asked is what was found and checked. No cookies, no
credentials, no proxy.
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
from mlx_tools.toolbox.worker import Bounds, WorkerFailed, ask_apart
from mlx_tools.tools import ToolError, submit
from mlx_tools.transcript import Source

if TYPE_CHECKING:
    import ssl

    import httpx

ALLOWED_PORTS: Final = frozenset((80, 443, 8080, 8443))
"""Ports on which sites serve pages. Others are other services, which no page is fetched from."""
MAX_ADDRESSES: Final = 4
"""Addresses of one host that are tried."""
MAX_REDIRECTS: Final = 5
CONNECT_SECONDS: Final = 5.0
"""For one address: where a host has several, the next is tried."""
ENCODING: Final = "identity"
"""What is asked for. A body that comes packed is refused."""

_ASKED: Final = {
    "Accept": "text/html,application/xhtml+xml,text/markdown,text/plain,application/json,*/*;q=0.5",
    "Accept-Encoding": ENCODING,
}
"""What a page is asked for with."""
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Looks a name up: the addresses of a host, as texts. Raises OSError where there are none."""


async def system_resolve(host: str, port: int) -> list[str]:
    """The addresses that the system knows for a name, its order kept."""
    look = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    value, error = await submit(look) or (None, None)
    if error is not None:
        raise error
    return [str(entry[4][0]) for entry in value or ()]


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """The answer of a server, which stands at ``target`` after all redirects; ``cut`` is whether
    there was more than the ``data``."""

    target: Target
    media: Media
    data: bytes = field(repr=False)
    cut: bool = False


class Fetcher(Struct, frozen=True, kw_only=True):
    """Fetches pages.

    ``local`` are hosts of this machine or its neighbours that may be asked, each with its port, as
    `read_local` writes them. ``may_ask`` says whether an address is asked; ``resolve`` looks names
    up. ``idle`` is how many seconds a server may be silent, ``context`` the TLS context, None for
    the one that trusts the usual authorities, ``max_bytes`` how much of a body is read.
    """

    local: frozenset[str] = frozenset()
    ports: frozenset[int] = ALLOWED_PORTS
    may_ask: Callable[[Address], bool] = is_public
    resolve: Resolve = system_resolve
    idle: float = 10.0
    context: ssl.SSLContext | None = None
    max_bytes: int = 3_000_000

    async def fetch(self, target: Target) -> FetchedPage:
        """The page at a URL. There is no limit of time here but that of a silent server. Raises
        UrlRefused for what is never asked, ToolError for what went wrong."""
        for _ in range(MAX_REDIRECTS + 1):
            async with self._response(target, "GET", _ASKED) as response:
                if response.status_code not in _REDIRECTS:
                    return await self._page(target, response)
                target = self._next(target, response)
        raise ToolError(f"the page leads on and on: more than {MAX_REDIRECTS} redirects")

    async def post(self, target: Target, body: bytes, headers: Mapping[str, str]) -> int:
        """The status that a server gives for a body; nothing else of its answer is read, and no
        redirect followed. Raises as `fetch` does."""
        own = {**headers, "Content-Length": str(len(body))}
        async with self._response(target, "POST", own, body) as response:
            return response.status_code

    async def admit(self, target: Target) -> list[str]:
        """The addresses to ask for a target, at least one. Raises UrlRefused where any address of
        its host is refused, ToolError where there is none."""
        self.check(target)
        fixed, local = target.address, target.place in self.local
        if fixed is not None and local:
            return [str(fixed)]
        found = [fixed] if fixed is not None else await self._look_up(target)
        if not all(self.may_ask(one) or (local and is_near(one)) for one in found):
            raise UrlRefused(
                f"{target.host} is not out on the internet; such addresses are never asked"
            )
        return [str(address) for address in found[:MAX_ADDRESSES]]

    def check(self, target: Target) -> None:
        """Check all that needs no look-up of the name. Raises UrlRefused."""
        if target.place not in self.local and target.port not in self.ports:
            listed = ", ".join(map(str, sorted(self.ports)))
            raise UrlRefused(f"port {target.port} is not asked; the ports are {listed}")

    async def _look_up(self, target: Target) -> list[Address]:
        try:
            texts = await self.resolve(target.host, target.port)
            found = [ip_address(text) for text in dict.fromkeys(texts)]
        except (OSError, UnicodeError, ValueError):
            found = []
        if not found:
            raise ToolError(f"there is no host {target.host}, or its name cannot be looked up")
        return found

    def _next(self, target: Target, response: httpx.Response) -> Target:
        """The target of a redirect. Raises UrlRefused."""
        named = set(response.headers.get_list("location"))
        if len(named) != 1:
            raise UrlRefused(
                f"{target.host} leads on without saying where to, or to several places"
            )
        found = join_url(target, named.pop(), self.local)
        if target.scheme == "https" and found.scheme == "http":
            raise UrlRefused(
                f"{target.host} leads from https to http ({found.host}), which is not done"
            )
        return found

    @contextlib.asynccontextmanager
    async def _response(
        self, target: Target, method: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[httpx.Response]:
        """The response of the first address of the host that can be connected to, its body not yet
        read. The host's name stands in the request, and is what the certificate is held to; the
        address alone decides who is asked. Raises as `fetch` does."""
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
                    verify=self.context or _usual_context(), trust_env=False, http2=False
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
                        told = clean(str(error), 200)
                        raise ToolError(
                            f"{target.host} cannot be reached" + (f": {told}" if told else "")
                        ) from None
                except httpx.HTTPError as error:
                    raise _read_error(target, error) from None
            stack.push_async_callback(response.aclose)
            yield response

    async def _page(self, target: Target, response: httpx.Response) -> FetchedPage:
        import httpx

        status = response.status_code
        if not 200 <= status < 300:
            phrase = clean(response.reason_phrase, 60)
            raise ToolError(f"{target.host} answered {status} {phrase}".rstrip())
        media = media_of(response.headers.get("content-type", ""))
        encoding = response.headers.get("content-encoding", "")
        try:
            data, cut = await read_body(response.aiter_raw(), encoding, self.max_bytes)
        except httpx.HTTPError as error:
            raise _read_error(target, error) from None
        return FetchedPage(target, media, data, cut)


def _read_error(target: Target, error: Exception) -> ToolError:
    """The error for what went wrong while a server answered."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return ToolError(f"{target.host} went silent", code="timeout")
    return ToolError(f"{target.host} did not answer as a web server does: {clean(str(error), 200)}")


@functools.cache
def _usual_context() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


# --- bodies -------------------------------------------------------------------------------------


async def read_body(pieces: AsyncIterator[bytes], encoding: str, limit: int) -> tuple[bytes, bool]:
    """The body that comes in ``pieces``, in the encoding that the server names, and whether there
    was more: no more than ``limit`` bytes are read. Raises ToolError."""
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
"""Where browsers look for a charset in the page itself (HTML standard, prescan)."""

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
"""Encodings that are read as a wider one, as browsers do (WHATWG Encoding Standard)."""
_READ: Final = frozenset(
    (
        *("utf-8", "utf-16-le", "utf-16-be", "gb18030", "cp932", "cp949", "big5hkscs", "euc_jp"),
        *("iso2022_jp", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "cp866", "cp874"),
        *(f"cp{number}" for number in range(1250, 1259)),
        *(f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
    )
)
"""Encodings of pages. Python knows others that are no such thing, and some that unpack."""


class Media(NamedTuple):
    """How a body is read, by its media type, and the charset that was declared, empty where none
    was."""

    kind: Kind
    charset: str = ""


def media_of(content_type: str) -> Media:
    """The meaning of a ``Content-Type`` field. Raises ToolError for what is no text."""
    content_type = content_type[:1000]
    name = content_type.partition(";")[0].strip().lower()
    found = _CHARSET.search(content_type)
    charset = found[1] if found else ""
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
    """True if a body is HTML: by its type, and where none was declared by how it begins."""
    if media.kind != "unknown":
        return media.kind == "html"
    begin = data[:_META_BYTES].lstrip()
    return begin.startswith(b"<") and _TAG.search(begin) is not None


def text_of(media: Media, data: bytes) -> str:
    """A body as text: by its byte order mark, else as declared, else as the page itself says, else
    UTF-8, else Windows-1252. A byte that does not fit becomes U+FFFD. Raises ToolError where it is
    no text at all."""
    declared, data = split_bom(data)
    declared = (
        declared
        or _find_charset(media.charset)
        or (find_charset(data) if is_html(media, data) else None)
    )
    if declared is not None:
        return _text(data.decode(declared, "replace"))
    try:
        return _text(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        cut_off = error.reason == "unexpected end of data" and error.start > 0
        return _text(data.decode("utf-8" if cut_off else "cp1252", "replace"))


def split_bom(data: bytes) -> tuple[str | None, bytes]:
    """The charset of the byte order mark, None where there is none, and what follows the mark."""
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name, data.removeprefix(mark)
    return None, data


def find_charset(data: bytes) -> str | None:
    """The charset that a page says itself that it is in."""
    meta = _META.search(data[:_META_BYTES])
    found = _find_charset(meta[1].decode("ascii")) if meta else None
    # it could not have been read as ASCII up to here
    return "utf-8" if found is not None and found.startswith("utf-16") else found


def _find_charset(label: str) -> str | None:
    """The charset of a label, None where there is no such charset for pages."""
    try:
        name = codecs.lookup(label).name if label else ""
    except (LookupError, ValueError):
        return None
    name = _WIDER.get(name, name)
    return name if name in _READ else None


def _text(text: str) -> str:
    if "\0" in text[:4096]:
        raise ToolError("this is no text: it holds bytes that no text has")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


# --- a page's text ------------------------------------------------------------------------------

MAX_TEXT: Final = 1_000_000
"""Characters of a page's text."""
CPU_SECONDS: Final = 10
MEMORY_MB: Final = 1000


async def page_text(page: FetchedPage, seconds: float) -> tuple[Source, bool]:
    """A page as a model reads it, made within ``seconds``, and whether it was longer, on the way or
    as text. Raises ToolError where it is no text, and where its HTML would take too much to
    read."""
    url, text = page.target.url, text_of(page.media, page.data)
    if not is_html(page.media, page.data):
        cut = page.cut or len(text) > MAX_TEXT
        return Source("", url, visible(text[:MAX_TEXT]).strip("\n")), cut
    question = {"html": text, "url": url, "max_chars": MAX_TEXT}
    bounds = Bounds(seconds=seconds, cpu_seconds=CPU_SECONDS, memory_mb=MEMORY_MB)
    try:
        found = await ask_apart("html_text.read_html", "justhtml", question, bounds)
        title, body = visible(str(found["title"])), visible(str(found["text"]))
    except WorkerFailed as error:
        why = "it would take too much time or memory" if error.beyond else "its reader failed"
        raise ToolError(f"the page's HTML cannot be read, {why}: {url}") from None
    return Source(title, url, body), page.cut or bool(found.get("cut"))
