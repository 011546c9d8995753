"""The address of a model server."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from msgspec import Struct

from mlx_tools.errors import (
    UsageError,
    require_text,
)

if TYPE_CHECKING:
    pass

_TAIL: Final = re.compile(r"/*(?:/v1(?:/+(?:chat/+)?completions)?)?/*\Z")
"""The end of an address that is removed: people copy it with ``/v1`` or with the whole path."""
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
        UsageError: the address is not valid. A user name or password in it is refused, too,
            because an address is shown and recorded.
    """
    text = require_text("url", url, "give the server's address: http://127.0.0.1:8080").strip()
    interface = ""
    if (prefix := re.match(r"(?i)([a-z][a-z0-9_-]{0,40}):(?=https?:)", text)) is not None:
        interface, text = prefix[1].lower(), text[prefix.end() :]
    # Messages show the address. A password may be before an @, and must not be shown.
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
