"""The way to a server: addresses as people write them, kept connections, failures that pass."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import pytest

from mlx_tools.backends import Chunk, CompletionsBackend, parse_address
from mlx_tools.backends.deadlines import Retry
from mlx_tools.errors import BackendBroken, BackendDead, BackendError, BackendRefused, UsageError
from mlx_tools.messages import Usage
from tests.backends.asking import AT_ONCE, ask, collect
from tests.backends.loopback import (
    SSE,
    Connection,
    answer_in_turn,
    answers,
    drop_connection,
    keep_alive,
    make_likelihoods,
    says,
    serving,
)
from tests.tables import table
from tests.waiting import HANG


@table(
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


NO_ADDRESSES = (
    *("", "  ", "localhost:8080", "127.0.0.1:8080/v1", "example.org", "ftp://example.org"),
    *("file:///etc/passwd", "unix:/tmp/socket", "http://", "http:///v1", "http://:8080"),
    *("http://a b", "http://a\nb", "http://a\x00", "http://a\u200b.org", "http://exämple.org"),
    *("http://a..b", "http://a:0", "http://a:99999", "http://a:eight", "http://[::1"),
    *("http://a/v1?key=x", "http://a/v1#x", "http://a?", "http://a\\b"),
    *("http://user:secret@a/v1", "http://secret@a"),
)


@table("url", NO_ADDRESSES)
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


# --- servers as they are: connections that are kept, failures that pass, answers that ---------

Route = Callable[[Connection], None]
OK = answers(200, {"status": "ok"})
MODELS = answers(200, {"data": [{"id": "m"}]})
FAILS = answers(500, {"error": "out of memory"})
SCORED = make_likelihoods(" 7", {"Ġ7": -0.1, "Ġ8": -2.5})
DEAD = answers(503, {"status": "unavailable"})


# --- connections ----------------------------------------------------------------------------------


def test_all_that_is_asked_in_one_loop_goes_over_one_connection() -> None:
    async def several(backend: CompletionsBackend) -> None:
        assert (await backend.health()).ok
        assert await backend.models() == ("m",)
        for _ in range(5):
            assert (await collect(backend))[0].text == "Hi"
        assert (await collect(backend, top_logprobs=2))[0].scores

    route = answer_in_turn(
        *[keep_alive(says("Hi", usage={"completion_tokens": 1}))] * 5, keep_alive(SCORED)
    )
    with serving(route, health=keep_alive(OK), models=keep_alive(MODELS)) as server:
        asyncio.run(several(CompletionsBackend(server.url)))
        assert (server.connections, len(server.requests)) == (1, 8)
        assert server.ended.acquire(timeout=HANG)  # the loop's end closed it


def test_each_event_loop_has_a_connection_of_its_own_and_closes_it() -> None:
    with serving(keep_alive(says("Hi"))) as server:
        backend = CompletionsBackend(server.url)
        for number in range(1, 4):
            assert ask(backend)[0] == "Hi"
            assert server.connections == number
            assert server.ended.acquire(timeout=HANG)


def test_a_closed_backend_has_no_connection_and_may_be_asked_again() -> None:
    async def closed(backend: CompletionsBackend) -> None:
        await collect(backend)
        await backend.aclose()
        await backend.aclose()
        assert await asyncio.to_thread(server.ended.acquire, timeout=HANG)
        await collect(backend)

    with serving(keep_alive(says("Hi"))) as server:
        asyncio.run(closed(CompletionsBackend(server.url)))
        assert server.connections == 2


def test_a_backend_that_nobody_holds_any_more_has_let_go_of_its_connection() -> None:
    async def forgotten() -> bool:
        await collect(CompletionsBackend(server.url))
        gc.collect()
        return await asyncio.to_thread(server.ended.acquire, timeout=HANG)

    with serving(keep_alive(says("Hi"))) as server:
        assert asyncio.run(forgotten())


def test_a_connection_that_the_server_gave_up_is_replaced() -> None:
    async def twice(backend: CompletionsBackend) -> list[str]:
        return [(await collect(backend))[0].text for _ in range(2)]

    # the request comes in and the server closes: what a client that is not quick enough sees
    route = answer_in_turn(keep_alive(says("One")), drop_connection, keep_alive(says("Two")))
    with serving(route) as server:
        backend = CompletionsBackend(server.url, retry=AT_ONCE)
        assert asyncio.run(twice(backend)) == ["One", "Two"]
        assert server.connections == 2 + 1  # and one for the look at its health


# --- failures that pass ---------------------------------------------------------------------------


class Clock:
    """A time that passes only in sleep."""

    def __init__(self, jitter: float = 0.5, pause: float = 0.1) -> None:
        self.time = 0.0
        self.slept: list[float] = []
        self.retry = Retry(
            pause=pause, sleep=self._sleep, jitter=lambda: jitter, clock=lambda: self.time
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


GATEWAY = answers(502, b"<title>Bad gateway</title>", "text/html")


@table("failure", [FAILS, answers(503, b""), GATEWAY, drop_connection])
@table("options", [{}, {"top_logprobs": 2}], ids=["streamed", "whole"])
@table("times", [1, 3])
def test_what_failed_before_its_first_byte_is_sent_again(
    failure: Route, options: dict[str, Any], times: int
) -> None:
    clock = Clock()
    route = answer_in_turn(*[failure] * times, SCORED)
    with serving(route, health=OK) as server:
        backend = CompletionsBackend(server.url, retry=clock.retry)
        assert ask(backend, **options)[0] == " 7"
        bodies = server.bodies
    assert bodies == [bodies[0]] * (times + 1)
    assert clock.slept == [0.1, 0.2, 0.4][:times]


def breaks(request: Connection) -> None:
    """Begins an answer."""
    request.send(SSE)
    request.text("Hi")


@pytest.mark.parametrize(
    ("route", "health", "kind", "times"),
    [
        # three times more, and then the failure is told
        *((FAILS, OK, BackendRefused, 4), (drop_connection, OK, BackendBroken, 4)),
        # what the server refuses, what came after a first byte, and what is dead: once
        *((answers(n, {"error": "no"}), OK, BackendRefused, 1) for n in (400, 401, 404, 422, 429)),
        *((breaks, OK, BackendBroken, 1), (drop_connection, DEAD, BackendDead, 1)),
    ],
)
def test_how_often_a_failure_is_sent_again(
    route: Route, health: Route, kind: type[BackendError], times: int
) -> None:
    with serving(route, health=health) as server:
        with pytest.raises(kind):
            ask(CompletionsBackend(server.url, retry=AT_ONCE))
        assert len(server.bodies) == times


def test_nothing_is_sent_again_for_which_no_time_is_left() -> None:
    clock = Clock(pause=100)
    with serving(FAILS, health=OK) as server:
        with pytest.raises(BackendRefused, match="out of memory"):
            ask(CompletionsBackend(server.url, retry=clock.retry), timeout=500)
        assert len(server.bodies) == 3
    assert clock.slept == [100, 200]  # a third pause would have outlasted the request


# --- likelihoods ----------------------------------------------------------------------------------


TOO_LONG = answers(400, {"error": "the prompt is too long"})
EMPTY = answers(200, {"choices": [{"text": "", "finish_reason": "stop", "logprobs": None}]})


@pytest.mark.parametrize(
    ("routes", "kind"),
    [
        *(([FAILS] * 4, BackendRefused), ([drop_connection] * 4, BackendBroken)),
        ([TOO_LONG] * 3, BackendRefused),  # with likelihoods and without
        ([EMPTY], None),
    ],
    ids=["500", "dropped", "refused", "empty"],
)
def test_a_request_for_likelihoods_that_gave_none_of_itself_says_nothing_of_the_next(
    routes: list[Route], kind: type[BackendError] | None
) -> None:
    with serving(answer_in_turn(*routes, SCORED), health=OK) as server:
        backend = CompletionsBackend(server.url, retry=AT_ONCE)
        if kind is None:
            assert ask(backend, top_logprobs=2)[1].scores == ()
        else:
            with pytest.raises(kind):
                ask(backend, top_logprobs=2)
        assert ask(backend, top_logprobs=2)[1].scores


def test_a_server_that_refuses_likelihoods_alone_is_asked_for_them_once() -> None:
    def complete(request: Connection) -> None:
        refuses = "logprobs" in request.body
        (answers(400, {"error": "logprobs?"}) if refuses else says("Hi"))(request)

    with serving(complete, health=OK) as server:
        backend = CompletionsBackend(server.url, retry=AT_ONCE)
        assert ask(backend, top_logprobs=2) == ("Hi", Chunk("Hi", "stop"))
        assert ask(backend, top_logprobs=2)[1].scores == ()
        assert len(server.bodies) == 3


# --- answers that come whole, and streams of all kinds ------------------------------------------

USAGE = {"prompt_tokens": 9, "completion_tokens": 2}
WHOLE = {"choices": [{"text": "Größe", "finish_reason": "stop"}], "usage": USAGE}


@table("before", [b"", b" \r\n", b"\xef\xbb\xbf"])
@table("kind", ["application/json", "text/event-stream", "text/plain", "text/html"])
def test_an_answer_that_comes_whole_is_read_whole(kind: str, before: bytes) -> None:
    with serving(answers(200, before + json.dumps(WHOLE).encode(), kind)) as server:
        text, last = ask(CompletionsBackend(server.url))
        assert server.bodies[0]["stream"] is True
    assert (text, last.finish_reason, last.usage) == ("Größe", "stop", Usage(9, None, 2))


@pytest.mark.parametrize(
    ("choice", "usage", "finish", "edited"),
    [
        ({"text": "Hi", "finish_reason": "length"}, None, "length", False),
        ({"text": "Hi"}, None, "length", False),
        ({"text": None, "finish_reason": "tool_calls"}, None, "tool_calls", True),
        ({"text": "Hi", "finish_reason": "stop"}, {"completion_tokens": 40}, "stop", True),
    ],
)
def test_the_end_of_a_whole_answer_says_what_a_streams_end_does(
    choice: dict[str, Any], usage: Any, finish: str, edited: bool
) -> None:
    with serving(answers(200, {"choices": [choice], "usage": usage})) as server:
        text, last = ask(CompletionsBackend(server.url))
    assert (text, last.finish_reason, last.edited) == (choice["text"] or "", finish, edited)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"choices": []},
        {"choices": [{"message": {"content": "Hi"}}]},
        {"choices": [{"text": 3}]},
        {"choices": [{"text": "x" * 100_000}]},
        b"{",
        b'{"choices": [{"text": "\xff"}]}',
        [1],
    ],
)
def test_what_comes_whole_and_is_no_completion_is_broken(value: Any) -> None:
    with serving(answers(200, value)) as server, pytest.raises(BackendBroken):
        ask(CompletionsBackend(server.url), max_tokens=4)


def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
    value = {"choices": [] if choice is None else [choice], **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


PIECES = event({"text": "Hel"}) + event({"text": "lo"})
END = event({"text": "", "finish_reason": "stop"})
DONE = b"data: [DONE]\n\n"


@table(
    "stream",
    [
        PIECES + END + event(None, usage=USAGE) + DONE,
        PIECES + END + event(None, usage=USAGE),
        PIECES + END.replace(b"\n\n", b"\r\n\r\n") + event({"text": ""}, usage=USAGE) + DONE,
        PIECES + event({"text": None}) + event({"finish_reason": "stop"}, usage=USAGE) + DONE,
        (PIECES + END + event(None, usage=USAGE) + DONE).replace(b"data: ", b"data:"),
        event({"text": "Hel"}, usage=USAGE)
        + event({"text": "lo", "finish_reason": "stop"}, usage=USAGE),
        b": keepalive 1/2\n\n" + event(None) + PIECES + END + event(None, usage=USAGE),
        (PIECES + event({"finish_reason": "stop"}, usage=USAGE))[:-1],
        (PIECES + event({"finish_reason": "stop"}, usage=USAGE))[:-2],
    ],
    ids=[
        *("all", "no done", "usage late", "reason late", "no space", "reason with text"),
        *("comment", "no empty line", "no line's end"),
    ],
)
@table("kind", ["text/event-stream", "application/json", "text/plain"])
@table("options", [{}, {"top_logprobs": 2}], ids=["asked for", "not asked for"])
def test_streams_of_all_kinds_are_read(stream: bytes, kind: str, options: dict[str, Any]) -> None:
    with serving(answers(200, stream, kind)) as server:
        text, last = ask(CompletionsBackend(server.url), **options)
    assert (text, last.finish_reason, last.usage) == ("Hello", "stop", Usage(9, None, 2))
