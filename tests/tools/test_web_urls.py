"""URLs are read once, strictly, and written anew; and no page is fetched from this machine, its
neighbours, or what leads there by another name."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.toolbox.urls import (
    MAX_CHARS,
    UrlRefused,
    is_public,
    join_url,
    read_url,
)
from mlx_tools.toolbox.web_fetch import Fetcher, system_resolve
from mlx_tools.tools import ToolError
from tests.tables import table


@table(
    ("text", "url"),
    [
        ("https://example.org", "https://example.org/"),
        (" HTTPS://Example.ORG:443/A/b?c=D#e \n", "https://example.org/A/b?c=D"),
        ("http://example.org:8080", "http://example.org:8080/"),
        ("http://example.org:/x", "http://example.org/x"),
        ("https://example.org./", "https://example.org/"),
        ("https://example.org?q=1", "https://example.org/?q=1"),
        (
            'https://example.org/a b/é?ü={x}|"<>',
            "https://example.org/a%20b/%C3%A9?%C3%BC=%7Bx%7D%7C%22%3C%3E",
        ),
        ("https://example.org/%41%zz", "https://example.org/%41%zz"),
        ("https://bücher.example.org/", "https://xn--bcher-kva.example.org/"),
        ("https://例え.テスト/", "https://xn--r8jz45g.xn--zckzah/"),
        ("https://Faß.example/", "https://xn--fa-hia.example/"),
        ("https://[2A00:1450::200E]:8443/", "https://[2a00:1450::200e]:8443/"),
        ("https://a_b.example.org/@user:pw@", "https://a_b.example.org/@user:pw@"),
    ],
)
def test_a_url_has_one_spelling(text: str, url: str) -> None:
    assert read_url(text).url == url
    assert read_url(url).url == url


REFUSED = {
    "begins with https": [
        *("", "example.org", "//example.org", "/etc/passwd", "file:///etc/passwd", "https:/x"),
        *("ftp://example.org/", "data:text/html,x", "javascript:1", "gopher://x.org"),
    ],
    "user name": ["https://a@example.org/", "https://a:b@example.org/", "https://@a.org/"],
    "backslash": ["https://example.org\\@127.0.0.1/", "https:\\\\example.org/"],
    "cannot be seen": [
        *("https://exam\tple.org/", "https://example.org/a\r\nHost: b", "http://\ud800.org/"),
        *("https://exam\u200bple.org/", "https://\u202eorg.example/", "https://example.org/\u2028"),
    ],
    "escape or a space": [
        *("https://example%2eorg/", "https://exam ple.org/", "https://exam\u00a0ple.org/")
    ],
    "no host": [
        f"https://{host}/"
        for host in (
            *("", ".", "..", "a..b", "-a.org", "a-.org", "a*.org", "example.org.."),
            *("a" * 64 + ".org", "a." * 200 + "org", "é." * 200 + "org"),
        )
    ],
    "port": [
        *(f"https://example.org:{p}/" for p in ("x", "-1", "0", "65536", "999999", "+80")),
        "https://[2a00::1]x/",
    ],
    "IPv6": [f"https://[{host}/" for host in ("]", "example.org]", ":::]", "1.2.3.4]", "::1")],
    "four decimal": [
        f"http://{host}/"
        for host in (
            *("1", "1.2", "0x1", "1.2.3.4.5", "256.1.1.1", "01.2.3.4", "example.0", "a.0x"),
            "1.2.3.04",
        )
    ],
    "this machine": [
        f"http://{host}/"
        for host in (
            *("localhost", "LOCALHOST.", "a.localhost", "router", "printer.local", "a.internal"),
            *("b.home.arpa", "ⓛocalhost", "ｌｏｃａｌｈｏｓｔ", "lоcalhost"),
        )
    ],
    "at most": ["https://example.org/" + "a" * MAX_CHARS],
}


@table(("text", "why"), [(t, why) for why in REFUSED for t in REFUSED[why]])
def test_what_could_be_read_in_two_ways_is_refused(text: str, why: str) -> None:
    with pytest.raises(UrlRefused, match=why):
        read_url(text)


@given(st.text(max_size=80).map(lambda text: "https://" + text))
def test_a_url_that_is_read_is_read_the_same_again(text: str) -> None:
    try:
        target = read_url(text)
    except UrlRefused:
        return
    assert target.url.isascii() and target.url.isprintable() and " " not in target.url
    assert read_url(target.url) == target


@pytest.mark.parametrize(
    ("place", "url"),
    [
        *(("/b", "https://example.org/b"), ("b?c", "https://example.org/x/b?c")),
        *(("//other.org/d", "https://other.org/d"), ("http://other.org", "http://other.org/")),
        *(("?y", "https://example.org/x/a?y"), ("../../../z", "https://example.org/z")),
    ],
)
def test_a_place_is_seen_from_where_it_was_named(place: str, url: str) -> None:
    assert join_url(read_url("https://example.org/x/a"), place).url == url


@pytest.mark.parametrize(
    "place",
    [
        *("//127.1/", "//user@other.org/", "file:///x", "//[::1]x", "http://[", "\\\\other.org"),
        "x" * 5000,
    ],
)
def test_a_place_that_is_no_url_is_refused(place: str) -> None:
    with pytest.raises(UrlRefused, match=r"^(example\.org|the server) redirects to"):
        join_url(read_url("https://example.org/x/a"), place)


def test_only_some_ports_are_asked() -> None:
    for port in (80, 443, 8080, 8443):
        assert admitted(f"http://93.184.215.14:{port}/")
    for port in (22, 25, 81, 3306, 6379, 11434, 65535):
        with pytest.raises(UrlRefused, match=f"port {port}"):
            asyncio.run(Fetcher().admit(read_url(f"http://93.184.215.14:{port}/")))


# --- addresses ------------------------------------------------------------------------------------


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


def spellings(text: str) -> list[str]:
    """An IPv4 address as a host: of one to four parts, in three bases, padded, with other digits
    and dots, escaped, beside a name, and inside IPv6 addresses."""
    value = int(ipaddress.IPv4Address(text))
    high, low = value >> 16, value & 0xFFFF
    parts = text.split(".")
    wide = "".join(chr(ord(c) + 0xFEE0) if c.isdigit() else c for c in text)
    inside = [
        *(f"::ffff:{text}", f"::ffff:{high:x}:{low:x}", f"::{text}", f"0:0:0:0:0:ffff:{text}"),
        *(f"64:ff9b::{text}", f"64:ff9b:1::{text}", f"2002:{high:x}:{low:x}::1"),
        *(f"2001:0:{high:x}:{low:x}::1", f"2a00:1450::5efe:{text}", f"2a00:1450::200:5efe:{text}"),
        *(f"2001::{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}", f"fe80::1%25{high}"),
    ]
    return [
        *(text, f"{text}.", f"{value}", f"{value:#x}", f"0{value:o}", wide, f"site.org@{text}"),
        *(f"{parts[0]}.{value & 0xFFFFFF}", f"{parts[0]}.{parts[1]}.{low}", f" {text}"),
        *(".".join(form(int(part)) for part in parts) for form in (hex, "0{:o}".format)),
        *(".".join(f"000{int(part):o}" for part in parts), f"{text}#@site.org", f"{text}\u200b"),
        *(text.replace(".", "\u3002"), text.replace(".", "\uff61"), f"{text}:80:80"),
        *("".join(f"%{ord(c):02x}" for c in text), f"{text}%00.site.org", f"site.org\\@{text}"),
        *(f"[{address}]" for address in inside),
    ]


async def as_the_system_reads_it(host: str, port: int) -> Sequence[str]:
    """The addresses that the system's resolver makes of a host written in numbers."""
    flags = socket.AI_NUMERICHOST
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, flags=flags)]


def admitted(url: str) -> list[str]:
    """The addresses that would be asked for a URL; none where it is refused."""
    try:
        return asyncio.run(Fetcher(resolve=as_the_system_reads_it).admit(read_url(url)))
    except (UrlRefused, ToolError):
        return []


@table(
    "host",
    [
        *(
            host
            for address in ("127.0.0.1", "169.254.169.254", "10.1.2.3", "192.168.0.255", "0.0.0.0")
            for host in spellings(address)
        ),
        *(f"[{ipaddress.ip_network(network)[-1]}]" for network in FORBIDDEN_V6),
        *(f"[{ipaddress.ip_network(network)[0].exploded}]" for network in FORBIDDEN_V6),
        *(str(ipaddress.ip_network(network)[-1]) for network in FORBIDDEN_V4),
    ],
)
def test_no_spelling_of_a_forbidden_address_is_asked(host: str) -> None:
    for url in (f"http://{host}/", f"hTTps://{host}:443?q=1", f"http://{host}:080/@site.org/"):
        assert admitted(url) == []


def test_a_name_that_leads_to_a_forbidden_address_is_not_asked() -> None:
    for network in FORBIDDEN_V4:
        answers = ["93.184.215.14", str(ipaddress.ip_network(network)[0])]

        async def resolve(host: str, port: int, found: Sequence[str] = answers) -> Sequence[str]:
            return found

        with pytest.raises(UrlRefused, match="not out on the internet"):
            asyncio.run(Fetcher(resolve=resolve).admit(read_url("https://site.example.org/")))


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_nothing_is_public_that_python_takes_for_special(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert not is_public(address)


@table("network", [*FORBIDDEN_V4, *FORBIDDEN_V6])
def test_a_forbidden_network_is_so_from_its_first_address_to_its_last(network: str) -> None:
    block = ipaddress.ip_network(network)
    assert not is_public(block[0]) and not is_public(block[-1])
    assert not is_public(ipaddress.ip_address("2a00:1450::1%eth0"))


@table(
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


def test_a_host_has_addresses_by_the_system_of_which_four_are_tried_and_all_checked() -> None:
    found = asyncio.run(system_resolve("127.0.0.1", 80))
    assert found == ["127.0.0.1"]
    with pytest.raises(OSError):
        asyncio.run(system_resolve("no-such-name.invalid", 80))
    many = [f"93.184.215.{n}" for n in range(1, 30)]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return many

    target = read_url("https://site.org/")
    assert asyncio.run(Fetcher(resolve=resolve).admit(target)) == many[:4]
    many.append("10.0.0.1")
    with pytest.raises(UrlRefused):
        asyncio.run(Fetcher(resolve=resolve).admit(target))


@pytest.mark.parametrize("answers", [[], ["nonsense"], ["93.184.215.14", ""]])
def test_a_name_without_an_address_is_an_error(answers: list[str]) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers

    with pytest.raises(ToolError, match=r"no host site\.org"):
        asyncio.run(Fetcher(resolve=resolve).admit(read_url("https://site.org/")))
