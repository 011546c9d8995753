"""Pages are fetched from the address that was checked, with nothing sent along, step by step; no
server makes a fetch take longer, hold more, or break, whatever it sends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Policy, builtin_tools
from mlx_tools.plugins.web.web_tools import fetch_url
from mlx_tools.toolbox.urls import Address, UrlRefused, read_local, read_url
from mlx_tools.toolbox.web_fetch import MAX_REDIRECTS, Fetcher, read_body
from mlx_tools.tools import ToolContext, ToolError, ToolResult
from tests.tables import table
from tests.tools.file_calls import execute_call
from tests.tools.web_server import (
    Asked,
    Handle,
    Names,
    certificate,
    fetch,
    make_fetcher,
    make_handler,
    read_refusal,
    read_text,
    site,
)
from tests.waiting import EXPIRES, HANG

PAGE = "<title>A page</title><p>Hello <a href='/other?a=1'>there</a>."
FIELDS = {"host", "user-agent", "accept", "accept-encoding", "connection"}
HELLO = make_handler("Hello", "text/plain")  # read here, where a page takes a process


def test_a_page_is_a_source_with_its_title_its_address_and_its_text() -> None:
    with site(make_handler(PAGE)) as server:
        result = fetch(make_fetcher(server), server.url("/dir/?q=ä b#part"))
        assert result.sources is not None
        (source,) = result.sources.items
        assert source.title == "A page"
        assert source.location == server.url("/dir/?q=%C3%A4%20b")
        assert source.text == f"Hello [there]({server.url('/other?a=1')})."
        assert result.content is not None and result.content.startswith("[1] A page (")
        (asked,) = server.asked
        assert asked.path == "/dir/?q=%C3%A4%20b"
        assert set(asked.fields) == FIELDS
        assert asked.fields["host"] == f"site.test:{server.port}"
        assert asked.fields["accept-encoding"] == "identity"


def test_what_is_usual_refuses_this_machine() -> None:
    with site(HELLO) as server:
        usual = builtin_tools().get("fetch_url")
        for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"):
            for port in (server.port, 8080):
                result = execute_call(usual, url=f"http://{host}:{port}/")
                assert read_refusal(result)[0] == "not_allowed"
        assert server.connected == 0


def opened(*hosts: str, url: str) -> ToolResult:
    return execute_call(builtin_tools(local_hosts=hosts).get("fetch_url"), url=url)


def test_a_local_host_that_was_named_is_asked_at_its_port_and_no_other() -> None:
    with site(HELLO) as server, site(HELLO) as other:
        for host in ("localhost", "127.0.0.1"):
            named = f"{host}:{server.port}"
            assert "Hello" in read_text(opened(named, url=f"http://{named}/"))
            for port in (other.port, 80):
                refused = opened(named, url=f"http://{host}:{port}/")
                assert read_refusal(refused)[0] == "not_allowed"
        for spelled in ("127.0.0.1", "127.1", "localhost.localdomain", "[::ffff:127.0.0.1]"):
            url = f"http://{spelled}:{server.port}/"
            assert read_refusal(opened(f"localhost:{server.port}", url=url))[0] == "not_allowed"
        assert (server.connected, other.connected) == (2, 0)


def test_no_other_page_leads_to_a_local_host() -> None:
    def handle(asked: Asked) -> None:
        paths = {"/own": f"http://localhost:{asked.fields['host'].rpartition(':')[2]}/page"}
        place = paths.get(asked.path) or (asked.path[1:] if "//" in asked.path else "")
        asked.lead_to(place) if place else asked.answer("Hello", "text/plain")

    with site(handle) as server, site(HELLO) as other:
        hosts = [
            f"{host}:{one.port}" for one in (server, other) for host in ("localhost", "127.0.0.1")
        ]
        assert "Hello" in read_text(opened(*hosts, url=f"http://localhost:{server.port}/own"))
        for host in ("localhost", "127.0.0.1"):
            url = f"http://localhost:{server.port}/http://{host}:{other.port}/"
            assert read_refusal(opened(*hosts, url=url))[0] == "not_allowed"
        assert other.connected == 0


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "0.0.0.0", "0.1.2.3", "224.0.0.1", "fe80::1", "ff02::1", "fd00:ec2::254"],
)
def test_a_local_name_that_leads_elsewhere_is_not_asked(address: str) -> None:
    names = Names({"wiki.lan": [address]})
    fetcher = Fetcher(local=frozenset((read_local("wiki.lan:80"),)), resolve=names)
    with pytest.raises(UrlRefused, match="not out on the internet"):
        asyncio.run(fetcher.admit(read_url("http://wiki.lan/", fetcher.local)))


class Turning(Names):
    """Gives an address that may be asked first, and another one at every further time."""

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return ["127.0.0.1"] if len(self.asked) == 1 else ["10.0.0.1"]


def test_what_was_checked_is_what_is_connected_to_and_no_other_address() -> None:
    names = Turning()
    with site(HELLO) as server:
        assert read_text(fetch(make_fetcher(server, names=names), server.url()))
        assert names.asked == ["site.test"]
    names = Names({"site.test": ["127.0.0.1", "10.0.0.1"]})
    with site(HELLO) as server:
        code, words = read_refusal(fetch(make_fetcher(server, names=names), server.url()))
        assert code == "not_allowed" and "not out on the internet" in words
        assert server.connected == 0

    def any_loopback(address: Address) -> bool:
        return address.is_loopback

    names = Names({"site.test": ["127.0.0.9", "127.0.0.1"], "gone.test": ["127.0.0.9"]})
    with site(HELLO) as server:
        fetcher = make_fetcher(server, names=names, may_ask=any_loopback)
        assert read_text(fetch(fetcher, server.url()))
        code, words = read_refusal(fetch(fetcher, server.url(host="gone.test")))
        assert code == "tool_error" and "gone.test cannot be reached" in words


# --- redirects ---


def test_every_redirect_is_checked_anew_and_the_last_address_is_told() -> None:
    names = Names({"site.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]})

    def handle(asked: Asked) -> None:
        match asked.path:
            case "/":
                more = {"Location": "/two", "Set-Cookie": "a=b; Path=/"}
                asked.answer("", status="301 Moved", fields=more)
            case "/two":
                asked.lead_to(f"//other.test:{server.port}/three", "307 Temporary Redirect")
            case _:
                asked.answer("Hello", "text/plain")

    with site(handle) as server:
        result = fetch(make_fetcher(server, names=names), server.url())
        assert result.sources is not None
        assert result.sources.items[0].location == server.url("/three", host="other.test")
        assert names.asked == ["site.test", "site.test", "other.test"]
        assert [asked.fields["host"] for asked in server.asked][-1] == f"other.test:{server.port}"
        assert all(set(asked.fields) == FIELDS for asked in server.asked)  # no cookie, no referer


@pytest.mark.parametrize(
    "place",
    [
        *("http://10.0.0.1/", "//169.254.169.254/latest/", "http://[::1]/", "http://localhost/"),
        *("http://user@site.test/", "file:///etc/passwd", "http://0x7f.1/", "//inner.test/"),
        *("http://site.test:22/", "\\\\site.test/", "http://127.0.0.1.nip.test:1/"),
    ],
)
def test_a_redirect_to_what_may_not_be_asked_is_refused(place: str) -> None:
    names = Names({"site.test": ["127.0.0.1"], "inner.test": ["192.168.1.1"]})
    place = place.replace("//inner.test/", "//inner.test:{port}/")
    with site(lambda asked: asked.lead_to(place.format(port=server.port))) as server:
        code, words = read_refusal(fetch(make_fetcher(server, names=names), server.url()))
        assert code == "not_allowed", words
        assert server.connected == 1


def test_a_name_that_changes_its_address_between_redirects_is_refused() -> None:
    with site(lambda asked: asked.lead_to("/again")) as server:
        assert (
            read_refusal(fetch(make_fetcher(server, names=Turning()), server.url()))[0]
            == "not_allowed"
        )
        assert server.connected == 1


def test_redirects_are_given_up_that_have_no_end_or_lead_to_several_places_or_none() -> None:
    with site(lambda asked: asked.lead_to("/again")) as server:
        code, words = read_refusal(fetch(make_fetcher(server), server.url()))
        assert code == "tool_error" and "redirects" in words
        assert len(server.asked) == MAX_REDIRECTS + 1

    def two(asked: Asked) -> None:
        asked.send(
            b"HTTP/1.1 302 Found\r\nLocation: /a\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"
        )

    def none(asked: Asked) -> None:
        asked.answer("", status="302 Found")

    for handle in (two, none):
        with site(handle) as server:
            assert read_refusal(fetch(make_fetcher(server), server.url()))[0] == "not_allowed"


# --- TLS ---


def test_the_certificate_is_held_to_the_name_and_the_server_is_told_it(tmp_path: Path) -> None:
    own, trusting = certificate(tmp_path, "site.test")
    told: list[str | None] = []
    own.sni_callback = lambda connection, name, context: told.append(name)
    with site(HELLO, own) as server:
        fetcher = make_fetcher(server, context=trusting)
        assert read_text(fetch(fetcher, server.url(scheme="https")))
        assert told == ["site.test"]
        names = Names({"other.test": ["127.0.0.1"]})
        other = make_fetcher(server, names=names, context=trusting)
        code, words = read_refusal(fetch(other, server.url(host="other.test", scheme="https")))
        assert code == "tool_error" and "certificate" in words.lower()
        by_address = server.url(host="127.0.0.1", scheme="https")
        assert "certificate" in read_refusal(fetch(fetcher, by_address))[1].lower()
        assert (
            "certificate"
            in read_refusal(fetch(make_fetcher(server), server.url(scheme="https")))[1].lower()
        )
        assert len(server.asked) == 1


def test_https_never_becomes_http(tmp_path: Path) -> None:
    own, trusting = certificate(tmp_path, "site.test")

    def handle(asked: Asked) -> None:
        asked.lead_to(f"http://site.test:{server.port}/plain")

    with site(handle, own) as server:
        fetcher = make_fetcher(server, context=trusting)
        code, words = read_refusal(fetch(fetcher, server.url(scheme="https")))
        assert code == "not_allowed" and "from https to http" in words
        assert len(server.asked) == 1


# --- what is not sent, and not believed ---


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with site(make_handler("proxy")) as proxy, site(HELLO) as server:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "")
        assert "Hello" in read_text(fetch(make_fetcher(server), server.url()))
        assert proxy.connected == 0


@pytest.mark.parametrize(
    "status", ["404 Not Found", "500 Oops", "403 \x1b[31mRed", "204 No Content"]
)
def test_an_answer_that_is_no_page_says_so(status: str) -> None:
    with site(lambda asked: asked.answer(b"", status=status)) as server:
        result = fetch(make_fetcher(server), server.url())
        if status.startswith("204"):
            assert result.sources is not None and "no text" in result.sources.note
        else:
            assert status[:3] in read_refusal(result)[1] and "\x1b" not in read_refusal(result)[1]


# --- settings and policy ---


def test_local_only_holds_in_the_tool_itself_too() -> None:
    with site(HELLO) as server:
        narrowed = Policy(allow=["*"]).intersect(Policy(allow=["*"], local_only=True))
        tool, context = fetch_url(make_fetcher(server)), ToolContext(policy=narrowed)
        assert read_refusal(execute_call(tool, context, url=server.url()))[0] == "not_allowed"
        assert server.connected == 0


# --- limits ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("encoding", ["gzip", "gzip,br", "x" * 999, "br\x9b2J\u202e"])
def test_an_encoding_that_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(ToolError, match="not asked for") as caught:
        read([b"x"], encoding)
    assert str(caught.value).isprintable()


def test_the_beginning_of_a_page_that_is_too_long_is_read_and_the_server_is_left() -> None:
    def endless(asked: Asked) -> None:
        asked.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            asked.send(b"2710\r\n" + b"word " * 2000 + b"\r\n")

    with site(endless) as server:
        result = fetch(make_fetcher(server, max_bytes=100_000), server.url())
        assert len(read_text(result)) == 100_000
        assert result.sources is not None and "only its beginning" in result.sources.note


DRIP = 0.005
"""Seconds between two pieces of a server that never ends."""


def silent(asked: Asked) -> None:
    asked.wait(HANG)


def half(asked: Asked) -> None:
    asked.send(HEAD + b"Content-Length: 100\r\n\r\nhalf")
    asked.wait(HANG)


def fields_without_end(asked: Asked) -> None:
    asked.send(b"HTTP/1.1 200 OK\r\n")
    while not asked.wait(DRIP):
        asked.send(b"X-A: " + b"a" * 1000 + b"\r\n")


def signs_of_life(asked: Asked) -> None:
    while not asked.wait(DRIP):
        asked.send(b"HTTP/1.1 102 Processing\r\n\r\n")


def dripping(asked: Asked) -> None:
    asked.send(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while not asked.wait(DRIP):
        asked.send(b"x")


@pytest.mark.parametrize("handle", [silent, half])
def test_a_silent_server_is_left(handle: Handle) -> None:
    with site(handle) as server:
        code, words = read_refusal(fetch(make_fetcher(server, idle=0.2), server.url()))
        assert code == "timeout" and "silent" in words


@pytest.mark.slow
@pytest.mark.parametrize("handle", [silent, half, signs_of_life, dripping])
def test_a_fetch_ends_in_its_time_whatever_comes(handle: Handle) -> None:
    with site(handle) as server:
        code, words = read_refusal(fetch(make_fetcher(server), server.url(), seconds=0.5))
        assert code == "timeout" and "0.5 s" in words


def test_the_calls_own_time_holds_where_it_is_shorter() -> None:
    with site(dripping) as server:
        result = execute_call(fetch_url(make_fetcher(server)), timeout=EXPIRES, url=server.url())
        assert read_refusal(result)[0] == "timeout"


@table(
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
        result = fetch(make_fetcher(server), server.url())
        code, words = read_refusal(result)
        assert code in ("tool_error", "not_allowed") and words.isprintable()


def test_fields_without_an_end_are_given_up() -> None:
    with site(fields_without_end) as server:
        assert read_refusal(fetch(make_fetcher(server), server.url()))[0] in (
            "tool_error",
            "timeout",
        )
