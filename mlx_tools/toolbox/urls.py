"""URLs that may be fetched, and addresses that are on the internet.

A URL is parsed once, strictly, and written again from its parts. So the checked host is the one
that gets the request. Everything that browsers, libraries and servers read in different ways is
refused: user names, backslashes, escapes and spaces in the host, control and invisible characters,
and every spelling of an IPv4 address except four decimal numbers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import quote, urljoin

from msgspec import Struct

Address = IPv4Address | IPv6Address

MAX_CHARS: Final = 4096
"""Characters of a URL. Longer ones are not meant for people."""
PORTS: Final = {"http": 80, "https": 443}

_URL = re.compile(r"(https?)://([^/?#]*)(.*)", re.ASCII | re.IGNORECASE | re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\]]*\]?|[^:]*)(?::([0-9]{0,5}))?", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_SAFE: Final = "%/?:@!$&'()*+,;=-._~[]"
"""Characters that stay in a path and a query; others are percent-encoded."""
_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))

LOCAL: Final = frozenset(
    (
        *("localhost", "localhost6", "localdomain", "localdomain6", "local", "internal"),
        *("intranet", "private", "corp", "home", "lan", "home.arpa"),
    )
)
"""Last labels of names of this machine or its network (RFC 6761, 6762, 8375, and common use). They
give an early error. The real protection is the check of the address that a name leads to."""


class UrlRefused(Exception):
    """The URL is not allowed; the message says why."""


class Target(Struct, frozen=True):
    """The parts of a URL."""

    scheme: str
    host: str
    """A name in ASCII, or an address without brackets."""
    port: int
    path: str
    """Path and query, ready to be sent."""

    @property
    def authority(self) -> str:
        """Host and port in the form of the ``Host`` field."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def place(self) -> str:
        """Host and port, the form in which local hosts are named."""
        return f"{self.host} {self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def address(self) -> Address | None:
        try:
            return ip_address(self.host)
        except ValueError:
            return None


def read_url(text: str, local: Collection[str] = ()) -> Target:
    """Parse a URL.

    Args:
        text: the URL.
        local: hosts of this machine or its network that are allowed, in the form of `read_local`.

    Raises:
        UrlRefused: the URL is not allowed.
    """
    text = text.strip(" \t\r\n")
    if len(text) > MAX_CHARS:
        raise UrlRefused(f"a URL has at most {MAX_CHARS} characters")
    if "\\" in text or any(unicodedata.category(char) in _HIDDEN for char in text):
        raise UrlRefused("the URL holds a backslash, or characters that cannot be seen")
    match = _URL.fullmatch(text)
    if match is None:
        raise UrlRefused("a URL begins with https:// or http://")
    scheme, authority, path_and_query = match[1].lower(), match[2], match[3]
    host, port = _split_authority(authority)
    path = path_and_query.partition("#")[0]
    if not path.startswith("/"):
        path = "/" + path
    target = Target(scheme, host, PORTS[scheme] if port is None else port, quote(path, safe=_SAFE))
    if target.place not in local:
        _check_far(host)
    return target


def read_local(text: str) -> str:
    """Return a host of this machine or its network with its port, as `Target.place`.

    An example is ``localhost:8080``.

    Raises:
        UrlRefused: it is anything else.
    """
    host, port = _split_authority(text.strip())
    if port is None:
        raise UrlRefused(f"{text[:100]!r} names no port")
    return f"{host} {port}"


def join_url(base: Target, location: str, local: Collection[str] = ()) -> Target:
    """Return the target of a redirect from ``base`` to ``location``.

    Only a ``local`` host may redirect to itself: no other page may redirect to it.

    Raises:
        UrlRefused: the target is not allowed.
    """
    if len(location) > MAX_CHARS:
        raise UrlRefused("the server redirects to a URL that is too long")
    try:
        allowed_local = (base.place,) if base.place in local else ()
        target = read_url(urljoin(base.url, location.strip(" \t\r\n")), allowed_local)
    except ValueError:
        raise UrlRefused("the server redirects to an invalid URL") from None
    except UrlRefused as error:
        raise UrlRefused(f"{base.host} redirects to a URL that is not allowed: {error}") from None
    if target.place in local and target.place != base.place:
        raise UrlRefused(f"{base.host} redirects to {target.authority}, which no other page may")
    return target


def _split_authority(authority: str) -> tuple[str, int | None]:
    """Return host and port of a URL's authority. Raises UrlRefused."""
    if "@" in authority:
        raise UrlRefused("a URL with a user name or a password is not asked for")
    if "%" in authority or any(char.isspace() for char in authority):
        raise UrlRefused("the host is written with an escape or a space")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise UrlRefused("the port is no number")
    port = int(match[2]) if match[2] else None
    if port is not None and not 0 < port < 65536:
        raise UrlRefused("there is no such port")
    host = match[1]
    if not host.startswith("["):
        return _check_name(host), port
    try:
        return str(IPv6Address(host[1:-1] if host.endswith("]") else "")), port
    except ValueError:
        raise UrlRefused("the host in brackets is no IPv6 address") from None


def _check_name(text: str) -> str:
    """Return a host's name in lower-case ASCII, or an IPv4 address.

    Raises:
        UrlRefused: it is neither.
    """
    host = text if text.isascii() else _to_ascii(text)
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise UrlRefused("the URL names no host")
    if not _NUMBER.fullmatch(labels[-1]):
        return host
    try:  # programs read ``0177.1``, ``0x7f000001`` and ``2130706433`` in different ways
        return str(IPv4Address(host))
    except ValueError:
        raise UrlRefused("an IPv4 address is written as four decimal numbers") from None


def _check_far(host: str) -> None:
    """Raise UrlRefused for a host whose name is one of this machine or its network."""
    labels = host.split(".")
    has_name = ":" not in host and not _NUMBER.fullmatch(labels[-1])
    is_near_name = len(labels) == 1 or labels[-1] in LOCAL or ".".join(labels[-2:]) in LOCAL
    if has_name and is_near_name:
        raise UrlRefused(f"{host} is a name for this machine or its neighbours")


def _to_ascii(host: str) -> str:
    import idna

    if len(host) > 253:
        raise UrlRefused("the URL names no host")
    try:
        return idna.encode(host, uts46=True, std3_rules=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        raise UrlRefused("the host's name is none that can be written in ASCII") from None


# --- addresses ----------------------------------------------------------------------------------
#
# Addresses that are no sites on the internet lead to this machine or its network, directly or not.
# These are the special addresses that Python knows (RFC 6890 and its successors), multicast,
# relays, one cloud vendor's service for its own machines, and all of IPv6 except 2000::/3, the only
# range for sites. Within it, ranges without sites or with an IPv4 address inside count too.

_SPECIAL: Final = tuple(
    ip_network(network)
    for network in (
        *("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24"),
        *("192.88.99.0/24", "168.63.129.16/32", "224.0.0.0/4"),
        *("2001::/23", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)
_LOCAL_NETWORKS: Final = tuple(
    ip_network(network)
    for network in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
        *("::1/128", "fc00::/7"),
    )
)
_CLOUD: Final = IPv6Network("fd00:ec2::/32")
"""One vendor's services for its own machines, which give out keys. Its IPv4 one is link-local."""

_SITES: Final = IPv6Network("2000::/3")
_ISATAP: Final = frozenset((0x0000_5EFE, 0x0200_5EFE))
"""The upper half of an interface identifier whose lower half is an IPv4 address (RFC 5214)."""


def is_near(address: Address) -> bool:
    """Return whether an address belongs to this machine or a private network."""
    return any(address in network for network in _LOCAL_NETWORKS) and address not in _CLOUD


def is_public(address: Address) -> bool:
    """Return whether an address belongs to a site on the internet."""
    if isinstance(address, IPv6Address) and (
        address.scope_id is not None
        or address not in _SITES
        or (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP
    ):
        return False
    return address.is_global and not any(address in network for network in _SPECIAL)
