"""A completions server that behaves: what is sent, and what is made of the answer."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

import httpx
import pytest

from mlx_tools.backends import Chunk, CompletionsBackend, GrammarText, takes_grammar
from mlx_tools.errors import BackendRefused, UsageError
from mlx_tools.messages import Usage
from tests.backends.asking import ask, collect, request
from tests.backends.loopback import SSE, Connection, answers, says, serving
from tests.tables import table
from tests.waiting import HANG, until

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 7},
}


def test_the_text_comes_in_pieces_and_the_last_chunk_says_why_it_ended() -> None:
    with serving(says("Hel", "lo, ", "Wörld €", usage=USAGE)) as server:
        chunks = asyncio.run(collect(CompletionsBackend(server.url)))
    assert "".join(chunk.text for chunk in chunks) == "Hello, Wörld €"
    assert chunks[-1] == Chunk("", "stop", Usage(9, 7, 4))
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])


@pytest.mark.parametrize("bad", [{"prompt_tokens": -1}, {"prompt_tokens": True}, "x", [], 0, {}])
def test_usage_that_is_no_usage_is_none(bad: object) -> None:
    with serving(says("Hi", usage=bad)) as server:
        assert ask(CompletionsBackend(server.url))[1].usage is None


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("a word of next year's", "length"),
    ],
)
def test_finish_reasons_are_read_as_ours_and_unknown_ones_promise_nothing(
    said: str, read: str
) -> None:
    with serving(says("Hi", finish=said)) as server:
        assert ask(CompletionsBackend(server.url))[1].finish_reason == read


def test_a_done_without_a_reason_counts_as_cut_off() -> None:
    with serving(says("Hi", finish=None)) as server:
        assert ask(CompletionsBackend(server.url)) == ("Hi", Chunk("", "length", None))


def test_a_surrogate_pair_cut_in_two_is_joined_and_a_lone_half_replaced() -> None:
    def complete(request: Connection) -> None:
        request.send(SSE)
        for text in ("a\ud83d", "\ude00b", "\ude00", "\ud83d"):
            request.text(text)
        request.text("", "stop")
        request.done()

    with serving(complete) as server:
        text, _ = ask(CompletionsBackend(server.url))
    assert text == "a😀b\ufffd\ufffd"


def test_the_body_is_what_completions_servers_expect() -> None:
    with serving(says("Hi")) as server:
        backend = CompletionsBackend(server.url, "a-model", forbidden_tokens=(5, 6))
        ask(backend, "Größe?\u2028\udcff\ud83d\ude00", max_tokens=7, temperature=0.5, seed=11)
        keyed = {"api_key": " abc\n", "headers": {"X-Team": "blue"}}
        ask(CompletionsBackend(server.url, **keyed))  # type: ignore[arg-type]
        sent = server.bodies[0]
        headers, named = (request.headers for request in server.requests)
    assert sent == {
        "prompt": "Größe?\u2028\ufffd😀",  # a lone surrogate cannot be sent
        "max_tokens": 7,
        "temperature": 0.5,
        "seed": 11,
        "stream": True,
        "stream_options": {"include_usage": True},
        "model": "a-model",
        "logit_bias": {"5": -100, "6": -100},
    }
    assert headers["accept-encoding"] == "identity"
    assert "authorization" not in headers
    assert (named["authorization"], named["x-team"]) == ("Bearer abc", "blue")


def test_further_sampling_parameters_are_sent_as_they_are_and_take_no_field_of_ours() -> None:
    sampling = {"top_p": 0.9, "min_p": 0, "presence_penalty": -1, "new": [1], "stream": False}
    with serving(says("Hi")) as server:
        ask(CompletionsBackend(server.url), sampling=sampling | {"prompt": "another"})
        sent = server.bodies[0]
    assert {name: sent[name] for name in sampling} == sampling | {"stream": True}
    assert sent["prompt"] != "another"


def test_every_request_carries_a_seed() -> None:
    with serving(says("Hi")) as server:
        backend = CompletionsBackend(server.url)
        for temperature in (0.0, 0.0, 0.7, 0.7, 0.7):
            ask(backend, temperature=temperature)
        seeds = [body["seed"] for body in server.bodies]
    assert all(isinstance(seed, int) for seed in seeds)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[2:])) == 3


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", "a\x00"])
def test_a_key_that_cannot_stand_in_a_header_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        CompletionsBackend("http://127.0.0.1:1", api_key=key)
    assert key not in str(caught.value)


NOT_TO_BE_SENT = {
    "prompt": [""],
    "max_tokens": [0, True, 1.5],
    "temperature": [-0.1, math.nan, math.inf, "hot"],
    "seed": [-1, 2**63, 1.0, False],
    "timeout": [0, math.inf, "soon", None],
    "idle_timeout": [-1],
    "logit_bias": [{-1: 1}, {5: 101}],
    "sampling": [{"top_p": float("nan")}, {"top_p": {1, 2}}, ["top_p"]],
}


@table("options", [{name: value} for name, values in NOT_TO_BE_SENT.items() for value in values])
def test_what_no_server_can_complete_is_refused_before_anything_is_sent(
    options: dict[str, Any],
) -> None:
    with serving(says("Hi")) as server:
        with pytest.raises(UsageError) as caught:
            ask(CompletionsBackend(server.url), **options)
        assert server.requests == []
    assert caught.value.hint


@pytest.mark.parametrize("cancels", [False, True], ids=["closed", "cancelled"])
def test_a_completion_that_is_given_up_closes_the_connection(cancels: bool) -> None:
    def complete(request: Connection) -> None:
        request.send(SSE)
        request.text("Hi")
        request.until_gone()

    async def given_up(backend: CompletionsBackend) -> None:
        if not cancels:
            async with aclosing(backend.complete(request())) as chunks:
                assert (await anext(chunks)).text == "Hi"
            return
        task = asyncio.create_task(collect(backend))
        await until(lambda: server.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with serving(complete) as server:
        asyncio.run(given_up(CompletionsBackend(server.url)))
        assert server.closed_by_client.wait(HANG)


def test_one_backend_serves_several_event_loops_and_several_tasks() -> None:
    async def four(backend: CompletionsBackend) -> list[list[Chunk]]:
        return await asyncio.gather(*(collect(backend) for _ in range(4)))

    with serving(says("Hi")) as server:
        backend = CompletionsBackend(server.url)
        for _ in range(3):
            assert ask(backend)[0] == "Hi"
        assert len(asyncio.run(four(backend))) == 4


def test_a_client_of_the_callers_is_used_and_stays_open() -> None:
    def handle(sent: httpx.Request) -> httpx.Response:
        event = b'data: {"choices":[{"text":"Hi","finish_reason":"stop"}]}\n\n'
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=event)

    async def twice() -> list[str]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
            backend = CompletionsBackend("http://anywhere", client=client)
            texts = [(await collect(backend))[0].text for _ in range(2)]
            await backend.aclose()
            assert not client.is_closed
            return texts

    assert asyncio.run(twice()) == ["Hi", "Hi"]


def test_proxies_of_the_environment_are_not_asked_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(says("Hi")) as server:
        assert ask(CompletionsBackend(server.url))[0] == "Hi"


def test_redirects_are_not_followed() -> None:
    with serving(says("Hi")) as other:
        head = f"Location: {other.url}/v1/completions\r\n"
        with serving(answers(307, b"", "text/plain", head)) as server:
            with pytest.raises(BackendRefused, match="307") as caught:
                ask(CompletionsBackend(server.url))
            assert other.url in str(caught.value)
        assert other.requests == []


def test_the_models_and_the_health_are_read() -> None:
    listed = {"object": "list", "data": [{"id": "a"}, {"id": ""}, {"id": 3}, "x", {"id": "b/c"}]}
    with serving(says(), health=answers(200, {"status": "ok"}), models=answers(200, listed)) as it:
        backend = CompletionsBackend(it.url)
        assert asyncio.run(backend.models()) == ("a", "b/c")
        assert asyncio.run(backend.health()).ok


@pytest.mark.parametrize("value", [b"", b"<html>", {"data": 3}, [], {"data": [1]}])
def test_a_server_that_cannot_list_its_models_lists_none(value: object) -> None:
    with serving(says(), models=answers(200, value)) as server:
        assert asyncio.run(CompletionsBackend(server.url).models()) == ()


@pytest.mark.parametrize(
    ("status", "value", "expected"),
    [
        (200, {"status": "ok"}, "ok"),
        (200, b"", "ok"),
        (200, b"<html>hello</html>", "unknown"),
        (503, {"status": "unavailable"}, "dead"),
        (503, {"error": {"message": "Loading model"}}, "loading"),
        (404, b"Not Found", "unknown"),
    ],
)
def test_health_is_told_from_the_answer(status: int, value: object, expected: str) -> None:
    with serving(says(), health=answers(status, value)) as server:
        assert asyncio.run(CompletionsBackend(server.url).health()).status == expected


def test_importing_the_backends_loads_no_http_library() -> None:
    code = (
        "import sys, mlx_tools.backends.completions, mlx_tools.backends.server\n"
        "import mlx_tools.backends.choose, mlx_tools.app.checks\n"
        "import mlx_tools.backends.models.listing\n"
        "print({'httpx', 'anyio', 'asyncio', 'ssl', 'platformdirs'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- a grammar reaches a server in the option that it takes; one that takes none is n ---------

GRAMMAR = GrammarText('root ::= "held"', 'start: "held"')
OPTIONS = ("grammar", "structured_outputs")


def grammar_in(body: Mapping[str, Any]) -> dict[str, str]:
    """The options for grammars in a request's body, each with its grammar."""
    found = {option: body[option] for option in OPTIONS if option in body}
    return {k: v["grammar"] if isinstance(v, Mapping) else v for k, v in found.items()}


def grammar_server(takes: str, bodies: list[dict[str, Any]]) -> Callable[[Connection], None]:
    """Follows a grammar of one literal where it stands in the option that it takes."""

    def complete(request: Connection) -> None:
        bodies.append(request.body)
        given = grammar_in(request.body).get(takes)
        text = given.split('"')[1] if given else "free"
        if request.body["stream"]:
            request.send(SSE)
            request.text(text, "stop")
            request.done()
        else:
            request.answer(200, {"choices": [{"text": text, "finish_reason": "stop"}]})

    return complete


@pytest.mark.parametrize("option", OPTIONS)
def test_the_option_is_found_once_and_used(option: str) -> None:
    bodies: list[dict[str, Any]] = []
    with serving(grammar_server(option, bodies)) as running:
        backend = CompletionsBackend(running.url)
        assert asyncio.run(takes_grammar(backend))
        probes = len(bodies)
        assert probes == OPTIONS.index(option) + 1
        assert ask(backend, "Go", grammar=GRAMMAR)[0] == "held"
        assert ask(backend, "Go on", grammar=GRAMMAR)[0] == "held"
        assert ask(backend, "Go free")[0] == "free"
        assert len(bodies) == probes + 3
    assert grammar_in(bodies[probes]) == {option: GRAMMAR.gbnf}
    assert grammar_in(bodies[-1]) == {}


def refusing(bodies: list[dict[str, Any]]) -> Callable[[Connection], None]:
    """Refuses what it does not know, as grammars."""

    def complete(request: Connection) -> None:
        bodies.append(request.body)
        unknown = answers(400, {"error": "extra fields not permitted"})
        (unknown if grammar_in(request.body) else says("free"))(request)

    return complete


@pytest.mark.parametrize("server", [partial(grammar_server, "none"), refusing])
def test_a_server_without_grammars_is_not_asked_for_the_completion(server: Any) -> None:
    bodies: list[dict[str, Any]] = []
    refused = pytest.raises(UsageError, match="does not take grammars")
    with serving(server(bodies)) as running, refused as caught:
        ask(CompletionsBackend(running.url), "Go", grammar=GRAMMAR)
    assert "--backend local" in str(caught.value.hint)
    assert all(body["prompt"] != "Go" for body in bodies)


def test_a_grammar_that_the_server_cannot_read_is_its_error() -> None:
    def complete(request: Connection) -> None:
        given = grammar_in(request.body).get("grammar", "")
        if "zq7" in given:
            request.answer(200, {"choices": [{"text": "zq7", "finish_reason": "stop"}]})
        else:
            request.answer(400, {"error": {"message": "failed to parse grammar"}})

    with serving(complete) as running, pytest.raises(BackendRefused, match="failed to parse"):
        ask(CompletionsBackend(running.url), "Go", grammar=GRAMMAR)
