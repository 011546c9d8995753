"""No page is fetched from this machine, its neighbours, or what leads there by another name."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlx_tools.toolbox.urls import UrlRefused, is_public, read_url
from mlx_tools.toolbox.web_fetch import Fetcher, system_resolve
from mlx_tools.tools import ToolError

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
def in_v4(draw: st.DrawFn) -> ipaddress.IPv4Address:
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


async def as_the_system_reads_it(host: str, port: int) -> Sequence[str]:
    """What the system's own resolver makes of a host that is written in numbers."""
    flags = socket.AI_NUMERICHOST
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, flags=flags)]


def admitted(url: str) -> list[str]:
    """The addresses that would be asked for a URL; none where it is refused."""
    try:
        return asyncio.run(Fetcher(resolve=as_the_system_reads_it).admit(read_url(url)))
    except (UrlRefused, ToolError):
        return []


@given(
    st.sampled_from(["http", "https", "HTTP", "hTTps"]),
    st.one_of(v4_hosts(), v6_hosts()),
    st.sampled_from(["", ":80", ":443", ":0443", ":"]),
    st.sampled_from(["", "/", "/x", "?q=1", "#f", "/@site.org/"]),
)
@example("http", "127.1", "", "/")
@example("http", "2130706433", "", "/")
@example("http", "0x7f.1", ":80", "")
@example("http", "[::ffff:127.0.0.1]", "", "/")
@example("http", "169.254.169.254", "", "/latest/meta-data/")
def test_no_spelling_of_a_forbidden_address_is_asked(
    scheme: str, host: str, port: str, rest: str
) -> None:
    assert admitted(f"{scheme}://{host}{port}{rest}") == []


@given(in_v4())
def test_a_name_that_leads_to_a_forbidden_address_is_not_asked(
    address: ipaddress.IPv4Address,
) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["93.184.215.14", str(address)]

    with pytest.raises(UrlRefused, match="not out on the internet"):
        asyncio.run(Fetcher(resolve=resolve).admit(read_url("https://site.example.org/")))


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_nothing_is_public_that_python_takes_for_special(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert not is_public(address)


@pytest.mark.parametrize("network", [*FORBIDDEN_V4, *FORBIDDEN_V6])
def test_a_forbidden_network_is_so_from_its_first_address_to_its_last(network: str) -> None:
    block = ipaddress.ip_network(network)
    assert not is_public(block[0]) and not is_public(block[-1])


@pytest.mark.parametrize(
    "text",
    [
        *("1.1.1.1", "8.8.8.8", "93.184.215.14", "172.32.0.1", "172.15.255.255", "100.128.0.1"),
        *("11.0.0.0", "9.255.255.255", "128.0.0.0", "126.255.255.255", "223.255.255.255"),
        *("2606:2800:21f:cb07:6820:80da:af6b:8b2c", "2a00:1450:4001:81b::200e", "2001:4860::8888"),
    ],
)
def test_sites_on_the_internet_are_asked(text: str) -> None:
    host = f"[{text}]" if ":" in text else text
    assert admitted(f"https://{host}/") == [text]


def test_an_address_that_holds_its_interface_is_refused() -> None:
    assert not is_public(ipaddress.ip_address("2a00:1450::1%eth0"))


def test_the_systems_resolver_gives_addresses() -> None:
    found = asyncio.run(system_resolve("127.0.0.1", 80))
    assert found == ["127.0.0.1"]
    with pytest.raises(OSError):
        asyncio.run(system_resolve("no-such-name.invalid", 80))


@pytest.mark.parametrize("answers", [[], ["nonsense"], ["93.184.215.14", ""]])
def test_a_name_without_an_address_is_an_error(answers: list[str]) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers

    with pytest.raises(ToolError, match=r"no host site\.org"):
        asyncio.run(Fetcher(resolve=resolve).admit(read_url("https://site.org/")))


def test_at_most_four_addresses_of_a_host_are_tried_and_all_of_them_checked() -> None:
    many = [f"93.184.215.{n}" for n in range(1, 30)]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return many

    target = read_url("https://site.org/")
    assert asyncio.run(Fetcher(resolve=resolve).admit(target)) == many[:4]
    many.append("10.0.0.1")
    with pytest.raises(UrlRefused):
        asyncio.run(Fetcher(resolve=resolve).admit(target))
