"""Addresses of operations: an agreed server and a path, joined and read again.

Joined text may name another host: `https://zoo.test` and `@evil.test/x`. So a server has one plain
form, and a path begins with `/`. The joined address is read again, by the library that sends the
request, before a secret goes along.
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
"""A scheme, a host of ASCII letters, a port, a path. No user and no query, and nothing that one
program reads as a part of the host and another does not."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
"""The name of a header (RFC 9110)."""

_RESERVED: Final = frozenset(
    (
        # what a request is, where it ends and who it is for
        *("connection", "content-encoding", "content-length", "content-range", "cookie", "cookie2"),
        *("expect", "forwarded", "host", "http2-settings", "keep-alive", "max-forwards", "te"),
        *("trailer", "transfer-encoding", "upgrade", "via"),
        # what makes another request of it at some servers
        *("x-http-method", "x-http-method-override", "x-method-override", "x-original-url"),
        *("x-rewrite-url", "x-real-ip"),
    )
)
_RESERVED_BEGINNINGS: Final = ("proxy-", "sec-", "x-forwarded-")


def is_reserved(header: str) -> bool:
    """Return whether a header may be filled by no argument and no secret, or is none."""
    name = header.lower().replace("_", "-")  # some servers take both for the same
    reserved = name in _RESERVED or name.startswith(_RESERVED_BEGINNINGS)
    return reserved or not _TOKEN.fullmatch(header)


def find_server_fault(server: str) -> str:
    """Return why an address cannot be a server's, in words; empty if it can."""
    match = _SERVER.fullmatch(server)
    if match is None:
        return "it is not plainly SCHEME://HOST:PORT/PATH, in ASCII, with http or https"
    return _find_dots(match["path"] or "")


PATH_PARTS: Final = re.compile(r"\{([^{}]*)\}")
"""The parts of a path that parameters fill."""


def find_path_fault(path: str) -> str:
    """Return why a path cannot be an operation's, in words; empty if it can."""
    if not path.startswith("/"):
        return "its path does not begin with /"
    if not path.isprintable() or {" ", "\\", "#"} & set(path):
        return "its path holds a blank, a backslash, a # or what cannot be printed"
    return _find_dots(path.partition("?")[0])


def join_url(server: str, path: str) -> str:
    """Return the address of an operation.

    Raises:
        ValueError: it would be on another server.
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
    """Return the fault of a path that goes up in any spelling; empty if it does not."""
    names = unquote(unquote(path)).replace("\\", "/").split("/")
    return "its path goes up, with . or .." if {".", ".."}.intersection(names) else ""
