"""Addresses that no page may be fetched from, in every spelling that some program understands."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address

from hypothesis import strategies as st

FORBIDDEN_V4 = [
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
    *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
    *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    *("192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24"),
    *("168.63.129.16/32", "169.254.169.254/32", "255.255.255.255/32", "127.0.0.1/32"),
]
FORBIDDEN_V6 = [
    *("::/128", "::1/128", "::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"),
    *("100::/64", "2001::/32", "2001:2::/48", "2001:10::/28", "2001:20::/28", "2001:db8::/32"),
    *("2002::/16", "3fff::/20", "4000::/2", "5f00::/16", "fc00::/7", "fd00:ec2::254/128"),
    *("fe80::/10", "fec0::/10", "ff00::/8", "8000::/1", "2001::/23", "2620:4f:8000::/48"),
]


@st.composite
def in_v4(draw: st.DrawFn) -> IPv4Address:
    """A forbidden IPv4 address."""
    network = ipaddress.IPv4Network(draw(st.sampled_from(FORBIDDEN_V4)))
    return network[draw(st.integers(0, network.num_addresses - 1))]


@st.composite
def v4_hosts(draw: st.DrawFn) -> str:
    """A forbidden IPv4 address as a host: of one to four parts, in three bases, padded, with other
    digits and dots, escaped."""
    value = int(draw(in_v4()))
    count = draw(st.integers(1, 4))
    parts = [(value >> (24 - 8 * n)) & 0xFF for n in range(count - 1)]
    parts.append(value & ((1 << (8 * (5 - count))) - 1))
    written = [draw(st.sampled_from(_written(part))) for part in parts]
    host = ".".join(written) + draw(st.sampled_from(["", "."]))
    return draw(st.sampled_from(_disguised(host)))


def _written(part: int) -> list[str]:
    return [str(part), f"0{part:o}", f"000{part:o}", hex(part), f"0X{part:X}", f"0x000{part:x}"]


def _disguised(host: str) -> list[str]:
    wide = "".join(chr(ord(c) + 0xFEE0) if c.isdigit() else c for c in host)
    circled = "".join(chr(0x2460 + int(c) - 1) if c in "123456789" else c for c in host)
    return [
        *(
            *(host, host, host, wide, circled, host.replace(".", "\u3002")),
            host.replace(".", "\uff61"),
        ),
        *("".join(f"%{ord(c):02x}" for c in host), f"site.org@{host}", f"{host}#@site.org"),
        *(f"site.org\\@{host}", f"{host}\u200b", f"\u00ad{host}", f" {host}", f"{host}\t"),
        *(f"{host}%00.site.org", f"{host}:80:80", f"[::ffff:{host.removesuffix('.')}]"),
    ]


@st.composite
def v6_hosts(draw: st.DrawFn) -> str:
    """A forbidden IPv6 address as a host, or one that has a forbidden IPv4 address inside."""
    inside = draw(in_v4())
    high, low = int(inside) >> 16, int(inside) & 0xFFFF
    network = ipaddress.IPv6Network(draw(st.sampled_from(FORBIDDEN_V6)))
    address = network[draw(st.integers(0, network.num_addresses - 1))]
    text = draw(
        st.sampled_from(
            [
                *(str(address), address.exploded, str(address).upper()),
                *(f"::ffff:{inside}", f"::ffff:{high:x}:{low:x}", f"::{inside}"),
                *(f"0:0:0:0:0:ffff:{inside}", f"64:ff9b::{inside}", f"64:ff9b:1::{inside}"),
                *(f"2002:{high:x}:{low:x}::1", f"2001:0:{high:x}:{low:x}::1"),
                *(f"2a00:1450::5efe:{inside}", f"2a00:1450::200:5efe:{inside}"),
                *(f"2001::{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}", f"fe80::1%25{high}"),
            ]
        )
    )
    return f"[{text}]"
