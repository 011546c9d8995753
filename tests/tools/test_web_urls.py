"""URLs are read once, strictly, and written anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.toolbox.urls import (
    MAX_CHARS,
    UrlRefused,
    is_within,
    joined,
    read_domain,
    read_url,
)
from mlx_tools.toolbox.web_fetch import Fetcher


@pytest.mark.parametrize(
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
        *("https://example%2eorg/", "https://exam ple.org/", "https://exam\u00a0ple.org/"),
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


@pytest.mark.parametrize(("text", "why"), [(t, why) for why in REFUSED for t in REFUSED[why]])
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
    assert joined(read_url("https://example.org/x/a"), place).url == url


@pytest.mark.parametrize(
    "place",
    [
        *("//127.1/", "//user@other.org/", "file:///x", "//[::1]x", "http://[", "\\\\other.org"),
        "x" * 5000,
    ],
)
def test_a_place_that_is_no_url_is_refused(place: str) -> None:
    with pytest.raises(UrlRefused, match=r"^(example\.org|the server) leads on to"):
        joined(read_url("https://example.org/x/a"), place)


def test_a_domain_means_itself_and_what_is_below_it() -> None:
    domains = (read_domain("Example.org"), read_domain("*.b.net"), read_domain("bücher.de"))
    assert domains == ("example.org", "b.net", "xn--bcher-kva.de")
    assert is_within("example.org", domains) and is_within("a.b.net", domains)
    assert not is_within("notexample.org", domains) and not is_within("example.org.uk", domains)


@pytest.mark.parametrize(
    "text", ["", "a b.org", "https://a.org", "a.org/x", "u@a.org", "a.org:80", "x"]
)
def test_what_is_no_domain_is_refused(text: str) -> None:
    with pytest.raises(UrlRefused):
        read_domain(text)


def test_only_some_ports_are_asked_and_only_some_domains() -> None:
    for port in (80, 443, 8080, 8443):
        Fetcher().check(read_url(f"http://example.org:{port}/"))
    for port in (22, 25, 81, 3306, 6379, 11434, 65535):
        with pytest.raises(UrlRefused, match=f"port {port}"):
            Fetcher().check(read_url(f"http://example.org:{port}/"))
    gate = Fetcher(domains=("example.org",), blocked=("bad.example.org",))
    gate.check(read_url("https://docs.example.org/"))
    for host, why in (("other.org", "web.domains"), ("a.bad.example.org", "web.blocked_domains")):
        with pytest.raises(UrlRefused, match=why):
            gate.check(read_url(f"https://{host}/"))
