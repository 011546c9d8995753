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
from tests.tools.address_spellings import (
    FORBIDDEN_V4,
    FORBIDDEN_V6,
    in_v4,
    v4_hosts,
    v6_hosts,
)


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
