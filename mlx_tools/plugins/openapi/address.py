"""Addresses of operations, which are joined from an agreed server and a path.

A joined text may name another host, such as `https://zoo.test` and `@evil.test/x`. So a server must
have one plain form, and a path must begin with `/`. Before a secret is added, the library that
sends the request parses the joined address again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    import httpx

_SERVER: Final = re.compile(
    r"https?://(?:[A-Z0-9](?:[A-Z0-9._-]*[A-Z0-9])?\.?|\[[0-9A-F:.]+\])(?::[0-9]{1,5})?"
    r"(?P<path>/[^\s?#\\@]*)?",
    re.IGNORECASE | re.ASCII,
)
"""A scheme, a host of ASCII letters, a port, a path. There is no user, no query, and no character
that only some programs read as a part of the host."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
"""The name of a header (RFC 9110)."""

_RESERVED: Final = frozenset(
    (
        # headers with the kind, the length or the target of a request
        *("connection", "content-encoding", "content-length", "content-range", "cookie", "cookie2"),
        *("expect", "forwarded", "host", "http2-settings", "keep-alive", "max-forwards", "te"),
        *("trailer", "transfer-encoding", "upgrade", "via"),
        # headers that change the request at some servers
        *("x-http-method", "x-http-method-override", "x-method-override", "x-original-url"),
        *("x-rewrite-url", "x-real-ip"),
    )
)
_RESERVED_BEGINNINGS: Final = ("proxy-", "sec-", "x-forwarded-")


def is_reserved(header: str) -> bool:
    """Return whether a header is invalid, or must not come from arguments or secrets."""
    name = header.lower().replace("_", "-")  # some servers treat both in the same way
    reserved = name in _RESERVED or name.startswith(_RESERVED_BEGINNINGS)
    return reserved or not _TOKEN.fullmatch(header)


def find_server_fault(server: str) -> str:
    """Return the fault of a server's address, empty if there is none."""
    match = _SERVER.fullmatch(server)
    if match is None:
        return "it is not plainly SCHEME://HOST:PORT/PATH, in ASCII, with http or https"
    return _find_dots(match["path"] or "")


PATH_PARTS: Final = re.compile(r"\{([^{}]*)\}")
"""The parts of a path that parameters fill."""


def find_path_fault(path: str) -> str:
    """Return the fault of an operation's path, empty if there is none."""
    if not path.startswith("/"):
        return "its path does not begin with /"
    if not path.isprintable() or {" ", "\\", "#"} & set(path):
        return "its path holds a blank, a backslash, a # or what cannot be printed"
    return _find_dots(path.partition("?")[0])


def join_url(server: str, path: str) -> str:
    """Return the address of an operation.

    Raises:
        ValueError: the address is on another server.
    """
    import httpx

    if fault := find_server_fault(server) or find_path_fault(path):
        raise ValueError(fault)
    try:
        agreed, url = httpx.URL(server), httpx.URL(f"{server}{path}")
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None
    if url.userinfo or _origin(url) != _origin(agreed):
        raise ValueError("its address is not on the server that was agreed to")
    return f"{server}{path}"


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _find_dots(path: str) -> str:
    """Return the fault of a path with ``.`` or ``..`` in any spelling, or ""."""
    names = unquote(unquote(path)).replace("\\", "/").split("/")
    return "its path goes up, with . or .." if {".", ".."}.intersection(names) else ""
