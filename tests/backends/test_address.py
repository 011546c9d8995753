"""Addresses as people write them."""

from __future__ import annotations

import pytest

from mlx_tools.backends import parse_address
from mlx_tools.errors import UsageError


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080//v1//", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1/completions", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1/chat/completions/", "http://127.0.0.1:8080"),
        (" HTTP://Mac.local ", "http://mac.local"),
        ("https://example.org/api/v1", "https://example.org/api"),
        ("https://example.org/v1beta", "https://example.org/v1beta"),
        ("http://[::1]:8080/v1", "http://[::1]:8080"),
        ("http://a_b:1", "http://a_b:1"),
    ],
)
def test_an_address_is_read_with_or_without_its_tail(url: str, base: str) -> None:
    address = parse_address(url)
    assert str(address) == base
    assert parse_address(f"{base}/v1/completions") == address


NO_ADDRESSES = [
    "localhost:8080",
    "127.0.0.1:8080/v1",
    "example.org",
    "ftp://example.org",
    "file:///etc/passwd",
    "unix:/tmp/socket",
    "http://",
    "http:///v1",
    "http://:8080",
    "http://a\u200b.org",
    "http://exämple.org",
    "http://a..b",
    "http://a:0",
    "http://a:99999",
    "http://a:eight",
    "http://[::1",
    "http://a/v1?key=x",
    "http://a/v1#x",
    "http://a?",
    "http://a\\b",
    "http://user:secret@a/v1",
    "http://secret@a",
]


@pytest.mark.parametrize(
    "url", ["", "  ", "http://a b", "http://a\nb", "http://a\x00", *NO_ADDRESSES]
)
def test_what_is_no_address_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(url)
    assert caught.value.hint
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_address_without_its_scheme_is_told_how_to_write_it() -> None:
    with pytest.raises(UsageError, match="write http://localhost:8080"):
        parse_address("localhost:8080")


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1", True),
        ("http://127.9.9.9:80", True),
        ("http://localhost", True),
        ("http://LOCALHOST.", True),
        ("http://[::1]", True),
        ("http://192.168.0.1", False),
        ("http://localhost.example.org", False),
        ("http://127.0.0.1.example.org", False),
        ("http://0.0.0.0", False),
    ],
)
def test_loopback_is_this_machine_alone(url: str, loopback: bool) -> None:
    assert parse_address(url).loopback is loopback
