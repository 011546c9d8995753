"""A server cannot make a fetch take longer, hold more, or break: whatever it sends, and however."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.toolbox.web_text import read_body
from mlx_tools.toolbox.web_tools import fetch_url
from mlx_tools.tools import ToolError, execute
from tests.tools.web_server import Asked, Handle, fetched, fetching, refusal, site, text

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def read(pieces: Iterable[bytes], encoding: str = "", limit: int = 1000) -> tuple[bytes, bool]:
    async def given_pieces() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return asyncio.run(read_body(given_pieces(), encoding, limit))


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


@given(st.binary(max_size=300), st.integers(1, 400), st.lists(st.integers(0, 300), max_size=6))
def test_a_body_is_what_came_up_to_the_limit(whole: bytes, limit: int, places: list[int]) -> None:
    body = read(cut_at(whole, places), "identity", limit)
    assert body == (whole[:limit], len(whole) > limit)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "gzip,br", "x" * 999])
def test_an_encoding_that_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(ToolError, match="not asked for"):
        read([b"x"], encoding)


def test_what_a_server_calls_its_encoding_is_told_without_what_a_terminal_obeys() -> None:
    with pytest.raises(ToolError) as caught:
        read([b"x"], "br\x9b2J\u202e\u200b")
    assert str(caught.value).isprintable()


def test_the_beginning_of_a_page_that_is_too_long_is_read_and_the_server_is_left() -> None:
    def endless(asked: Asked) -> None:
        asked.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            asked.send(b"2710\r\n" + b"word " * 2000 + b"\r\n")

    with site(endless) as server:
        result = fetched(fetching(server, max_bytes=100_000), server.url())
        assert len(text(result)) == 100_000
        assert result.sources is not None and "only its beginning" in result.sources.note


def silent(asked: Asked) -> None:
    asked.wait(30)


def half(asked: Asked) -> None:
    asked.send(HEAD + b"Content-Length: 100\r\n\r\nhalf")
    asked.wait(30)


def fields_without_end(asked: Asked) -> None:
    asked.send(b"HTTP/1.1 200 OK\r\n")
    while not asked.wait(0.001):
        asked.send(b"X-A: " + b"a" * 1000 + b"\r\n")


def signs_of_life(asked: Asked) -> None:
    while not asked.wait(0.005):
        asked.send(b"HTTP/1.1 102 Processing\r\n\r\n")


def dripping(asked: Asked) -> None:
    asked.send(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while not asked.wait(0.02):
        asked.send(b"x")


@pytest.mark.parametrize("handle", [silent, half])
def test_a_silent_server_is_left(handle: Handle) -> None:
    with site(handle) as server:
        code, words = refusal(fetched(fetching(server, idle=0.2), server.url()))
        assert code == "timeout" and "silent" in words


@pytest.mark.slow
@pytest.mark.parametrize("handle", [silent, half, signs_of_life, dripping])
def test_a_fetch_ends_in_its_time_whatever_comes(handle: Handle) -> None:
    with site(handle) as server:
        code, words = refusal(fetched(fetching(server), server.url(), seconds=0.5))
        assert code == "timeout" and "0.5 s" in words


def test_the_calls_own_time_holds_where_it_is_shorter() -> None:
    async def call(url: str) -> tuple[str, str]:
        return refusal(await execute(fetch_url(fetching(server)), {"url": url}, timeout=0.5))

    with site(dripping) as server:
        assert asyncio.run(call(server.url()))[0] == "timeout"


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"nonsense", b"\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"HTTP/1.1 99999 OK\r\n\r\n"),
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nbroken off",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nA B: c\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nnot gzip",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\n\r\n",
        b"\x16\x03\x01\x00\x00",
    ],
)
def test_an_answer_that_is_none_is_an_error_in_words(answer: bytes) -> None:
    with site(lambda asked: asked.send(answer)) as server:
        result = fetched(fetching(server), server.url())
        code, words = refusal(result)
        assert code in ("tool_error", "not_allowed") and words.isprintable()


def test_fields_without_an_end_are_given_up() -> None:
    with site(fields_without_end) as server:
        assert refusal(fetched(fetching(server), server.url()))[0] in ("tool_error", "timeout")
