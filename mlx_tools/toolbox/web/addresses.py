"""Which addresses are out on the internet. Everything else is this machine, its neighbours, or what
leads there by another name.

IPv4: what the registry of special-purpose addresses (RFC 6890 and its successors) lists, multicast,
and the host's own service in one vendor's cloud. IPv6: only 2000::/3 is given out to sites; in it,
ranges that are no site's, or that carry an IPv4 address inside, are left out.
"""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address
from typing import Final

Address = IPv4Address | IPv6Address

_V4: Final = tuple(
    (ipaddress.IPv4Network(network), words)
    for network, words in (
        ("0.0.0.0/8", "this machine"),
        ("10.0.0.0/8", "a private network"),
        ("100.64.0.0/10", "a provider's own network"),
        ("127.0.0.0/8", "this machine"),
        ("168.63.129.16/32", "the host of a cloud machine"),
        ("169.254.0.0/16", "the local link"),
        ("172.16.0.0/12", "a private network"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.31.196.0/24", "reserved"),
        ("192.52.193.0/24", "reserved"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "a private network"),
        ("192.175.48.0/24", "reserved"),
        ("198.18.0.0/15", "for measurements"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)

_V6: Final = tuple(
    (ipaddress.IPv6Network(network), words)
    for network, words in (
        ("::/128", "this machine"),
        ("::1/128", "this machine"),
        ("::ffff:0:0/96", "an IPv4 address inside an IPv6 address"),
        ("::/96", "an IPv4 address inside an IPv6 address"),
        ("64:ff9b::/96", "an IPv4 address inside an IPv6 address (NAT64)"),
        ("64:ff9b:1::/48", "an IPv4 address inside an IPv6 address (NAT64)"),
        ("fc00::/7", "a private network"),
        ("fe80::/10", "the local link"),
        ("fec0::/10", "a private network"),
        ("ff00::/8", "multicast"),
        ("2001::/32", "an IPv4 address inside an IPv6 address (Teredo)"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "an IPv4 address inside an IPv6 address (6to4)"),
        ("2620:4f:8000::/48", "reserved"),
        ("3fff::/20", "for documentation"),
    )
)
_GIVEN_OUT: Final = ipaddress.IPv6Network("2000::/3")
_ISATAP: Final = frozenset((0x0000_5EFE, 0x0200_5EFE))
"""Upper half of an interface's identifier whose lower half is an IPv4 address (RFC 5214)."""


def not_public(address: Address) -> str | None:
    """What an address leads to where that is no site on the internet, None where it is one."""
    if isinstance(address, IPv4Address):
        return next((words for network, words in _V4 if address in network), None)
    if address.scope_id is not None:
        return "the local link"
    found = next((words for network, words in _V6 if address in network), None)
    if found is None and address not in _GIVEN_OUT:
        return "reserved"
    if found is None and (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return "an IPv4 address inside an IPv6 address (ISATAP)"
    return found


def address_of(text: str) -> Address:
    """The address that a resolver gave, as a value. Raises ValueError for what is none."""
    return ipaddress.ip_address(text)
