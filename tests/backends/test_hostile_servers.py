"""Servers that drip, break off, lie or flood: a clear error each, in bounded time and memory."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import itertools
import json
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import httpx
import pytest

from mlx_tools.backends import Chunk, CompletionsBackend
from mlx_tools.backends.server_errors import read_error_body, translate
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    MlxToolsError,
    UsageError,
)
from mlx_tools.testing import run, skip
from tests.backends.asking import AT_ONCE, ask, collect, request
from tests.backends.loopback import SSE, Connection, answers, says, serving
from tests.tables import table
from tests.waiting import EXPIRES, HANG, until

Complete = Callable[[Connection], None]


def sends(data: bytes, *, head: bytes = SSE) -> Complete:
    return lambda request: request.send(head + data)


def raised_by(complete: Complete, **options: object) -> BackendError:
    with serving(complete) as server, pytest.raises(BackendError) as caught:
        ask(CompletionsBackend(server.url, retry=AT_ONCE), **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return caught.value


PIECE = b'data: {"choices":[{"text":"Hi","finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    "data",
    [
        PIECE,
        PIECE + b'data: {"choices":[{"te',
        PIECE + 'data: {"choices":[{"text":"ä'.encode()[:-1],
        PIECE + b": keepalive 1/2\n\n",
        b": keepalive 1/2\n\n",
        b"data:\n\n",
        b"event: end\n\n",
    ],
    ids=["piece", "half event", "half character", "comment", "only comment", "empty", "no data"],
)
def test_a_stream_that_ends_in_the_middle_is_broken(data: bytes) -> None:
    error = raised_by(sends(data))
    assert isinstance(error, BackendBroken)
    assert error.hint


@pytest.mark.parametrize(
    "after",
    [b'data: {"error":"the thread died"}\n\n', b"data: rubbish\n\n", b"\x00 rubbish\n\n"],
    ids=["error", "no JSON", "no event"],
)
def test_text_that_came_together_with_a_fault_is_given_before_it_is_raised(after: bytes) -> None:
    async def received(backend: CompletionsBackend) -> str:
        text = ""
        async with aclosing(backend.complete(request())) as chunks:
            with pytest.raises(BackendError):
                async for chunk in chunks:
                    text += chunk.text
        return text

    with serving(sends(PIECE + after)) as server:
        assert asyncio.run(received(CompletionsBackend(server.url))) == "Hi"


RUBBISH = (
    *(b"hello\n\n", b"\x00\xff\x13\n", b"<html><body>Welcome</body></html>\n"),
    *(b"data: hello\n\n", b"data: 3\n\n", b"data: []\n\n"),
    *(b'data: {"choices":3}\n\n', b'data: {"choices":[3]}\n\n'),
    *(b'data: {"choices":[{"text":3}]}\n\n', b'data: {"choices":[{"text":["a"]}]}\n\n'),
    b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n',
    b'data: {"choices":[{"text":"","finish_reason":3}]}\n\n',
    b'data: {"choices":[{"text":"\xff"}]}\n\n',
    *(b"data: " + b"[" * 100_000 + b"\n\n", b"data: " + b"9" * 100_000 + b"\n\n"),
)


NO_HTTP = (b"", b"HTTP/1.0 200", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.0 200 OK\r\nContent-Le")
ZIPPED = SSE[:-2] + b"Content-Encoding: gzip\r\n\r\n"
NO_STREAMS = (
    *(sends(data) for data in RUBBISH),
    *(sends(data, head=b"") for data in NO_HTTP),
)


@table("complete", NO_STREAMS)
def test_what_is_no_stream_of_a_completion_is_broken_and_never_text(complete: Complete) -> None:
    assert isinstance(raised_by(complete), BackendBroken)


WHOLE = b'data: {"choices":[{"text":"Hi","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("complete", "words"),
    [
        (sends(gzip.compress(WHOLE), head=ZIPPED), "compressed"),
        (answers(200, b"<!doctype html><title>Hi</title>", "text/html; charset=utf-8"), "web page"),
    ],
)
def test_what_is_packed_or_a_page_is_told_as_that(complete: Complete, words: str) -> None:
    error = raised_by(complete)
    assert isinstance(error, BackendBroken) and words in error.message


ERRORS: tuple[Any, ...] = ("no room", {"message": "no room"}, {"error": "no room"})


@pytest.mark.parametrize(
    ("complete", "words"),
    [
        *(
            (sends(PIECE + b'data: {"error":%s}\n\n' % json.dumps(e).encode()), "no room")
            for e in ERRORS
        ),
        *((says("Hi", finish=reason), reason) for reason in ("error", "abort", "content_filter")),
    ],
)
def test_a_server_that_gives_up_in_the_stream_has_refused(complete: Complete, words: str) -> None:
    error = raised_by(complete)
    assert isinstance(error, BackendRefused) and words in error.message


@pytest.mark.parametrize(
    ("status", "value", "kind", "words"),
    [
        (404, {"error": "No model named x"}, "application/json", "No model named x"),
        (400, {"error": {"message": "bad prompt", "code": 3}}, "application/json", "bad prompt"),
        (422, {"detail": [{"msg": "field required"}]}, "application/json", "field required"),
        (500, b"<html><head><title>It broke</title></head>", "text/html", "It broke"),
        (500, b"<p>It <b>broke</b></p>", "text/html", "It broke"),
        (502, b"", "text/plain", "502"),
        (401, {"message": "who are you"}, "application/json", "who are you"),
        (503, {"error": {"message": "Loading model"}}, "application/json", "Loading model"),
        (200, {"error": "no room"}, "application/json", "no room"),
        (404, b"\x1b[31mred\x07\xe2\x80\xaeevil\n\nx", "text/plain", "red evil x"),
    ],
)
def test_an_error_of_the_servers_is_told_in_one_clean_line(
    status: int, value: object, kind: str, words: str
) -> None:
    error = raised_by(answers(status, value, kind))
    assert isinstance(error, BackendRefused)
    assert words in error.message
    assert error.message.isprintable()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 4096 tokens. Your prompt has 9000."),
        (400, "the request exceeds the available context size, try increasing it"),
        (400, "tokens to keep from the prompt is greater than the context length"),
        (500, "exceed_context_size_error"),
        (413, "prompt is too long: 9000 tokens > 4096 maximum"),
        (200, "the input is longer than the model's context length"),
    ],
)
def test_a_prompt_that_is_too_long_for_the_model_is_told_with_what_to_do(
    status: int, message: str
) -> None:
    error = raised_by(answers(status, {"error": {"message": message}}))
    assert isinstance(error, BackendRefused) and message in error.message
    assert "model.context" in (error.hint or "")


def test_nobody_at_the_address_is_unreachable_and_says_what_to_do() -> None:
    with serving(says("Hi")) as server:
        url = server.url
    with pytest.raises(BackendUnreachable) as caught:
        ask(CompletionsBackend(url))
    assert url in caught.value.message
    assert "refused" in caught.value.message.lower()
    assert "--url" in (caught.value.hint or "")


def test_a_proxy_that_cannot_be_is_the_callers_fault_whatever_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks9://x:1")
    backend = CompletionsBackend("http://192.0.2.1:8080")
    for asking in (backend.health, backend.models, partial(collect, backend)):
        with pytest.raises(UsageError, match="check HTTPS_PROXY"):
            asyncio.run(asking())


def endless(piece: bytes, begin: bytes = SSE, pause: float = 0.0) -> Complete:
    """Sends a piece again and again."""

    def complete(request: Connection) -> None:
        request.send(begin)
        while not request.wait(pause):
            request.send(piece)

    return complete


LIVES = b": keepalive 1/2\n\n"
PAGE = b"HTTP/1.0 500 X\r\nContent-Type: text/html\r\n\r\n"
LONG = PIECE.replace(b"Hi", b"x" * 5000)


@pytest.mark.parametrize(
    ("complete", "options", "kind", "words"),
    [
        (endless(b"", SSE + PIECE, 60), {"idle_timeout": 0.2}, BackendTimeout, "silent"),
        # keep-alives break the silence, and do not extend the whole
        (endless(LIVES, pause=0.02), {"idle_timeout": 5, "timeout": 6}, BackendTimeout, "6 s"),
        (endless(LIVES * 5000), {"timeout": 0.5}, BackendTimeout, "0.5 s"),
        (endless(b"x" * 65536, SSE + b"data: "), {}, BackendBroken, "longer"),
        (endless(LONG), {"max_tokens": 4}, BackendBroken, "far more text"),
        (endless(b"<b>oh no</b> " * 1000, PAGE), {}, BackendRefused, "oh no"),
    ],
    ids=["silence", "keep-alives", "flood", "line", "text", "error page"],
)
@pytest.mark.heavy
def test_what_has_no_end_is_ended(
    complete: Complete, options: dict[str, Any], kind: type[BackendError], words: str
) -> None:
    error = raised_by(complete, **options)
    assert isinstance(error, kind) and words in error.message


def test_silence_after_the_reason_ends_the_completion_without_an_error() -> None:
    def complete(request: Connection) -> None:
        request.send(SSE)
        request.text("Hi", "stop")
        request.until_gone()

    async def silence() -> list[Chunk]:
        backend = CompletionsBackend(server.url)
        heard: list[Chunk] = []

        async def long_after() -> None:
            await until(lambda: heard)
            await skip(HANG)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(long_after)
            async with aclosing(backend.complete(request(idle_timeout=HANG))) as chunks:
                async for chunk in chunks:
                    heard.append(chunk)
        return heard

    with serving(complete) as server:
        heard = run(silence)
    assert ("".join(c.text for c in heard), heard[-1].finish_reason) == ("Hi", "stop")


@pytest.mark.parametrize(
    "after",
    [
        b'data: {"choices":[],"usage":{"promp',
        b"rubbish\n\n",
        b"data: rubbish\n\n",
        b'data: {"error":"too late"}\n\n',
        b"data: \xff\n\n",
    ],
)
def test_what_comes_after_the_reason_cannot_spoil_the_completion(after: bytes) -> None:
    end = b'data: {"choices":[{"text":"!","finish_reason":"stop"}]}\n\n'
    for pause in (0.0, 0.05):

        def complete(request: Connection, pause: float = pause) -> None:
            request.send(SSE + PIECE + end + (b"" if pause else after))
            request.wait(pause)
            request.send(after)

        with serving(complete) as server:
            text, last = ask(CompletionsBackend(server.url))
        assert (text, last.finish_reason) == ("Hi!", "stop")


# --- the server whose model thread has died ---------------------------------------------------


def test_a_dead_servers_own_words_are_recognised() -> None:
    error = raised_by(answers(404, {"error": "generation thread died"}))
    assert isinstance(error, BackendDead)
    assert "restart" in (error.hint or "")


@pytest.mark.parametrize(
    "complete",
    [sends(PIECE), answers(404, {"error": "x"}), Connection.until_gone],
    ids=["broken off", "refused", "silent"],
)
def test_a_failure_of_a_server_that_is_unavailable_is_its_death(complete: Complete) -> None:
    with serving(complete, health=answers(503, {"status": "unavailable"})) as server:
        with pytest.raises(BackendDead) as caught:
            ask(CompletionsBackend(server.url), idle_timeout=EXPIRES)
        assert server.url in caught.value.message


# --- the empty stream of a prompt that the cache holds whole ------------------------------------


def empty_first(times: int) -> Complete:
    """Answers nothing, as often as ``times`` says, to the prompt; text to every other prompt."""
    left = itertools.count(times, -1)

    def complete(request: Connection) -> None:
        request.send(SSE)
        if request.body["prompt"] == "P" and next(left) > 0:
            return
        request.text("Hi", "stop")
        request.done()

    return complete


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_a_prompt_that_the_cache_holds_is_pushed_out_and_asked_again(times: int) -> None:
    with serving(empty_first(times)) as server:
        assert ask(CompletionsBackend(server.url), "P", seed=5)[0] == "Hi"
        prompts = [body["prompt"] for body in server.bodies]
        between = [body for body in server.bodies if body["prompt"] != "P"]
    assert prompts.count("P") == times + 1
    assert all(body["max_tokens"] == 1 and "seed" in body for body in between)
    assert all(prompt.startswith("P") for prompt in prompts[: 2 * min(times, 3)])


def test_a_server_that_always_ends_without_a_byte_is_refused_after_a_bounded_number() -> None:
    with serving(lambda request: request.send(SSE)) as server:
        with pytest.raises(BackendRefused) as caught:
            ask(CompletionsBackend(server.url))
        assert len(server.bodies) < 30
    assert caught.value.hint


# --- translation --------------------------------------------------------------------------------


def httpx_errors() -> list[type[Exception]]:
    found = [getattr(httpx, name) for name in httpx.__all__]
    return [c for c in found if inspect.isclass(c) and issubclass(c, Exception)]


@table("kind", httpx_errors(), ids=lambda kind: kind.__name__)
def test_every_exception_of_httpx_has_a_place_in_our_tree(kind: type[Exception]) -> None:
    error = translate(kind.__new__(kind), "http://there")
    assert isinstance(error, BackendError | UsageError)
    assert "http://there" in error.message


def test_an_exception_of_a_client_is_translated_on_its_way_out() -> None:
    async def failing(kind: type[httpx.RequestError]) -> MlxToolsError:
        def handle(request: httpx.Request) -> httpx.Response:
            raise kind("went wrong")

        async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
            with pytest.raises(MlxToolsError) as caught:
                await collect(CompletionsBackend("http://there", client=client, retry=AT_ONCE))
            return caught.value

    for kind, ours in (
        (httpx.ConnectTimeout, BackendUnreachable),
        (httpx.ReadTimeout, BackendTimeout),
        (httpx.RemoteProtocolError, BackendBroken),
        (httpx.ProxyError, BackendUnreachable),
    ):
        assert isinstance(asyncio.run(failing(kind)), ours)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"error":' * 900 + b"1" + b"}" * 900,
        b'{"error":[' * 450 + b"1" + b"]}" * 450,
        b"\xff" * 10,
        b"{}",
    ],
)
def test_no_error_body_is_too_odd_to_be_told(body: bytes) -> None:
    assert len(read_error_body(body)) <= 300
