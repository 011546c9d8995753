"""URLs that may be asked for: read once, strictly, and written again from what was read; and which
addresses are out on the internet.

What browsers, libraries and servers read in different ways is refused, so that the host that is
checked is the host that is asked: user names, backslashes, escapes and spaces in the host, control
and invisible characters, and every spelling of an IPv4 address but four decimal numbers.
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
PORTS: Final = {"http": 80, "https": 443}

_URL = re.compile(r"(https?)://([^/?#]*)(.*)", re.ASCII | re.IGNORECASE | re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\]]*\]?|[^:]*)(?::([0-9]{0,5}))?", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_SAFE: Final = "%/?:@!$&'()*+,;=-._~[]"
"""Left as they are in a path and a query; the rest is percent-encoded."""
_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))

LOCAL: Final = frozenset(
    (
        *("localhost", "localhost6", "localdomain", "localdomain6", "local", "internal"),
        *("intranet", "private", "corp", "home", "lan", "home.arpa"),
    )
)
"""Last labels of names that mean this machine or its neighbours (RFC 6761, 6762, 8375, and habit).
An early word only: what holds is the check of the address that a name leads to."""


class UrlRefused(Exception):
    """A request that is not made; says why."""


class Target(Struct, frozen=True):
    """The parts of a URL. ``host`` is a name in ASCII or an address without brackets, ``path`` is
    path and query, ready to be sent."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host and port as the ``Host`` field has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def place(self) -> str:
        """Host and port, by which a local one is named."""
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
    """The target of a URL. ``local`` are the hosts with their ports, as `read_local` writes them,
    that may have a name for this machine or its neighbours. Raises UrlRefused."""
    text = text.strip(" \t\r\n")
    if len(text) > MAX_CHARS:
        raise UrlRefused(f"a URL has at most {MAX_CHARS} characters")
    if "\\" in text or any(unicodedata.category(char) in _HIDDEN for char in text):
        raise UrlRefused("the URL holds a backslash, or characters that cannot be seen")
    match = _URL.fullmatch(text)
    if match is None:
        raise UrlRefused("a URL begins with https:// or http://")
    scheme, authority, rest = match[1].lower(), match[2], match[3]
    host, port = _split(authority)
    path = rest.partition("#")[0]
    if not path.startswith("/"):
        path = "/" + path
    target = Target(scheme, host, PORTS[scheme] if port is None else port, quote(path, safe=_SAFE))
    if target.place not in local:
        _check_far(host)
    return target


def read_local(text: str) -> str:
    """A host of this machine or its neighbours with its port, such as ``localhost:8080``, as
    `Target.place` has it. Raises UrlRefused for anything else."""
    host, port = _split(text.strip())
    if port is None:
        raise UrlRefused(f"{text[:100]!r} names no port")
    return f"{host} {port}"


def join_url(base: Target, location: str, local: Collection[str] = ()) -> Target:
    """The target that ``location``, which a server named, means as seen from ``base``. Of what is
    ``local`` only ``base`` itself leads there: no page of somebody else's does. Raises
    UrlRefused."""
    if len(location) > MAX_CHARS:
        raise UrlRefused("the server leads on to a URL that is too long")
    try:
        own = (base.place,) if base.place in local else ()
        found = read_url(urljoin(base.url, location.strip(" \t\r\n")), own)
    except ValueError:
        raise UrlRefused("the server leads on to what is no URL") from None
    except UrlRefused as error:
        raise UrlRefused(f"{base.host} leads on to what is not asked for: {error}") from None
    if found.place in local and found.place != base.place:
        raise UrlRefused(f"{base.host} leads on to {found.authority}, which no other page may")
    return found


def _split(authority: str) -> tuple[str, int | None]:
    """The host of a URL, as `Target` has it, and the port that it names. Raises UrlRefused."""
    if "@" in authority:
        raise UrlRefused("a URL with a user name or a password is not asked for")
    if "%" in authority or any(char.isspace() for char in authority):
        raise UrlRefused("the host is written with an escape or a space")
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise UrlRefused("the port is no number")
    port = int(found[2]) if found[2] else None
    if port is not None and not 0 < port < 65536:
        raise UrlRefused("there is no such port")
    host = found[1]
    if not host.startswith("["):
        return _name(host), port
    try:
        return str(IPv6Address(host[1:-1] if host.endswith("]") else "")), port
    except ValueError:
        raise UrlRefused("the host in brackets is no IPv6 address") from None


def _name(text: str) -> str:
    """A host's name in ASCII and lower case, or an IPv4 address. Raises UrlRefused."""
    host = text if text.isascii() else _in_ascii(text)
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise UrlRefused("the URL names no host")
    if not _NUMBER.fullmatch(labels[-1]):
        return host
    try:  # programs do not agree on what ``0177.1``, ``0x7f000001`` or ``2130706433`` mean
        return str(IPv4Address(host))
    except ValueError:
        raise UrlRefused("an IPv4 address is written as four decimal numbers") from None


def _check_far(host: str) -> None:
    """Raises UrlRefused for a host whose name is one for this machine or its neighbours."""
    labels = host.split(".")
    named = ":" not in host and not _NUMBER.fullmatch(labels[-1])
    near = len(labels) == 1 or labels[-1] in LOCAL or ".".join(labels[-2:]) in LOCAL
    if named and near:
        raise UrlRefused(f"{host} is a name for this machine or its neighbours")


def _in_ascii(host: str) -> str:
    import idna

    if len(host) > 253:
        raise UrlRefused("the URL names no host")
    try:
        return idna.encode(host, uts46=True, std3_rules=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        raise UrlRefused("the host's name is none that can be written in ASCII") from None


# --- addresses ----------------------------------------------------------------------------------
#
# Everything but sites on the internet is this machine, its neighbours, or what leads there by
# another name. Beside what Python knows to be special (RFC 6890 and its successors) that is
# multicast, relays, the host's own service in one vendor's cloud, and of IPv6 all but 2000::/3,
# which alone is for sites, and in it ranges that are no site's or carry an IPv4 address inside.

_SPECIAL: Final = tuple(
    ip_network(network)
    for network in (
        *("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24"),
        *("192.88.99.0/24", "168.63.129.16/32", "224.0.0.0/4"),
        *("2001::/23", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)
_NEAR: Final = tuple(
    ip_network(network)
    for network in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
        *("::1/128", "fc00::/7"),
    )
)
_CLOUD: Final = IPv6Network("fd00:ec2::/32")
"""One vendor's services for its own machines, keys among them; its IPv4 one is of the link."""

_SITES: Final = IPv6Network("2000::/3")
_ISATAP: Final = frozenset((0x0000_5EFE, 0x0200_5EFE))
"""Upper half of an interface's identifier whose lower half is an IPv4 address (RFC 5214)."""


def is_near(address: Address) -> bool:
    """True for an address of this machine, or of a private network."""
    return any(address in network for network in _NEAR) and address not in _CLOUD


def is_public(address: Address) -> bool:
    """True for the address of a site on the internet."""
    if isinstance(address, IPv6Address) and (
        address.scope_id is not None
        or address not in _SITES
        or (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP
    ):
        return False
    return address.is_global and not any(address in network for network in _SPECIAL)
