"""Anthropic's and Ollama's own interfaces, as their SDKs speak them with a server on loopback."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from importlib.util import find_spec

import pytest

from mlx_tools import Answered, Controller, Policy, tool
from mlx_tools.app import list_backend_makers
from mlx_tools.backends import SelectedBackend, choose_backend
from mlx_tools.backends.address import parse_address
from mlx_tools.controller import RunSettings
from mlx_tools.errors import (
    BackendBroken,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    UsageError,
)
from mlx_tools.plugins.vendors.vendors import AnthropicBackend, OllamaBackend
from tests.backends.asking import ask
from tests.backends.loopback import SSE, Connection
from tests.backends.vendor_servers import (
    VENDORS,
    Turn,
    list_requests,
    retry_at_once,
    script_anthropic_turn,
    serve_turns,
)

__all__ = ["retry_at_once"]  # a fixture

for _vendor in ("anthropic", "ollama"):  # which take a second to import
    if find_spec(_vendor) is None:
        pytest.skip(f"{_vendor} is not installed", allow_module_level=True)


@pytest.fixture(params=VENDORS)
def vendor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# --- what comes ---------------------------------------------------------------------------------


def test_a_turn_is_thought_words_and_calls_in_either(vendor: str) -> None:
    backend, says = VENDORS[vendor]
    turn = says("Let me look.", ("weather", {"city": "Köln"}), ("clock", {}), thought="hm, so")
    with serve_turns(turn) as server:
        text, last = ask(backend(server.url, "m"))
    lines = text.splitlines()
    assert lines[:2] == ["<think>hm, so</think>", "Let me look."]
    made = [json.loads(line) for line in lines[2:]]
    assert [(one["name"], one["arguments"]) for one in made] == [
        ("weather", {"city": "Köln"}),
        ("clock", {}),
    ]
    assert last.finish_reason == "stop" and last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (100, 7)
    assert last.usage.cached_tokens == (80 if vendor == "anthropic" else None)


def test_a_run_goes_through_calls_and_results(vendor: str) -> None:
    make, says = VENDORS[vendor]

    @tool(effects={"read"})
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    turns = (
        says("", ("weather", {"city": ["Paris", "Rome"]})),
        says("", ("weather", {"city": "Paris"})),
    )
    with serve_turns(*turns, says("It is sunny.")) as server:
        controller = Controller(
            backend=make(server.url, "m"),
            tools=[weather],
            policy=Policy(allow=["weather"]),
            settings=RunSettings(route={"path": "native", "completes": False}),
        )
        outcome = controller.run_sync("Is it sunny in Paris?")
        bodies = list_requests(server)
    assert isinstance(outcome, Answered) and outcome.answer == "It is sunny."
    said = json.dumps(bodies[1])
    assert "city: string" in said  # what was wrong with the first call
    last = bodies[2]["messages"]
    if vendor == "anthropic":
        assert [one["role"] for one in last] == ["user", *["assistant", "user"] * 2]
        use, result = last[-2]["content"][-1], last[-1]["content"][0]
        assert use["input"] == {"city": "Paris"} and use["id"] == result["tool_use_id"]
        assert "system" in bodies[2] and bodies[2]["tools"][0]["name"] == "weather"
        assert bodies[2]["tool_choice"] == {"type": "auto"}
    else:
        assert last[-2]["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
        assert (last[-1]["role"], last[-1]["tool_name"]) == ("tool", "weather")
        assert bodies[2]["tools"][0]["function"]["name"] == "weather"
        assert bodies[2]["options"]["num_predict"] == 8192


def test_calls_that_are_shown_are_of_tools_that_are_told_even_where_none_may_be_called() -> None:
    call = {"id": "a b", "function": {"name": "weather", "arguments": "{}"}}
    messages = (
        {"role": "user", "content": "Sunny?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a b", "content": "yes"},
        {"role": "user", "content": "So?"},
    )
    with serve_turns(script_anthropic_turn("Yes.")) as server:
        ask(AnthropicBackend(server.url, "m"), messages=messages, tool_choice="none")
        (body,) = list_requests(server)
    assert [one["name"] for one in body["tools"]] == ["weather"]
    assert body["tool_choice"] == {"type": "none"}
    assert [block["type"] for block in body["messages"][-1]["content"]] == ["tool_result", "text"]
    assert body["messages"][1]["content"][0]["id"] == "a_b"


def test_a_request_without_messages_is_one_question(vendor: str) -> None:
    make, says = VENDORS[vendor]
    with serve_turns(says("Hi.")) as server:
        assert ask(make(server.url, "m"), "Sum this up.")[0] == "Hi."
        assert "Sum this up." in json.dumps(list_requests(server)[0]["messages"])


# --- what goes wrong ----------------------------------------------------------------------------

FAULTS: dict[str, tuple[Turn, type[BackendError], str]] = {
    "refused": (
        lambda to: to.answer(400, {"type": "error", "error": {"message": "no such model"}}),
        BackendRefused,
        "no such model",
    ),
    "no key": (lambda to: to.answer(401, {"error": "who are you?"}), BackendRefused, "401"),
    "no answer": (lambda to: to.send(b""), BackendError, "http://127"),
    "no sense": (lambda to: to.answer(200, b"<html>"), BackendBroken, "http://127"),
    "silence": (lambda to: to.until_gone(), BackendTimeout, "silent"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_in_our_words(vendor: str, fault: str) -> None:
    turn, kind, said = FAULTS[fault]
    idle = 0.3 if fault == "silence" else 20.0
    with serve_turns(*[turn] * 9) as server, pytest.raises(kind, match=said):
        ask(VENDORS[vendor][0](server.url, "m"), idle_timeout=idle)


def test_a_server_that_is_not_there_is_unreachable(vendor: str) -> None:
    with pytest.raises(BackendUnreachable):
        ask(VENDORS[vendor][0]("http://127.0.0.1:9", "m"))


def test_an_answer_that_breaks_off_never_counts(vendor: str) -> None:
    def cut(to: Connection) -> None:
        whole: list[bytes] = []
        send, to.send = to.send, whole.append  # type: ignore[method-assign]
        VENDORS[vendor][1]("It is sunny.")(to)
        to.send = send  # type: ignore[method-assign]
        to.send(b"".join(whole)[: -300 if vendor == "anthropic" else -20])

    with serve_turns(*[cut] * 9) as server, pytest.raises(BackendError):
        ask(VENDORS[vendor][0](server.url, "m"))


def test_closing_a_turn_closes_the_connection(vendor: str) -> None:
    make, _ = VENDORS[vendor]

    def endless(to: Connection) -> None:
        if vendor == "anthropic":
            to.send(SSE)
            to.send(b"event: ping\n")
            to.event({"type": "ping"})
            begun = {"type": "text", "text": "It"}
            to.send(b"event: content_block_start\n")
            to.event({"type": "content_block_start", "index": 0, "content_block": begun})
        else:
            to.send(b"HTTP/1.0 200 OK\r\n\r\n")
            to.send(b'{"model":"m","done":false,"message":{"role":"assistant","content":"It"}}\n')
        to.until_gone()

    async def first(url: str) -> str:
        from tests.backends.asking import request

        backend = make(url, "m")
        async with aclosing(backend.complete(request())) as chunks:
            async for chunk in chunks:
                return str(chunk.text)
        return ""

    with serve_turns(endless) as server:
        assert asyncio.run(first(server.url)) == "It"
        assert server.closed_by_client.wait(120)


# --- how they are named -------------------------------------------------------------------------


def test_the_address_says_whose_interface_it_is() -> None:
    address = parse_address("Anthropic:https://api.anthropic.com/v1/")
    assert (address.interface, str(address)) == ("anthropic", "https://api.anthropic.com")
    assert parse_address(address.url) == address
    assert parse_address("ollama:http://127.0.0.1:11434").loopback
    assert parse_address("gemini:http://127.0.0.1:1").interface == "gemini"


def test_they_are_chosen_by_the_address_and_stand_so_in_the_header() -> None:
    async def chosen(url: str) -> SelectedBackend:
        return await choose_backend(url=url, model="m", interfaces=list_backend_makers)

    found = asyncio.run(chosen("ollama:http://127.0.0.1:11434"))
    assert isinstance(found.backend, OllamaBackend)
    assert found.header_fields()["url"] == "ollama:http://127.0.0.1:11434"
    assert found.header_fields()["kind"] == "native"
    with pytest.raises(UsageError, match="needs the name of a model"):
        address = "anthropic:https://api.anthropic.com"
        asyncio.run(choose_backend(url=address, interfaces=list_backend_makers))
    with pytest.raises(UsageError, match="nothing here speaks the interface gemini"):
        asyncio.run(chosen("gemini:http://127.0.0.1:1"))


def test_a_key_of_the_environment_goes_to_anthropics_own_service_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    with serve_turns(script_anthropic_turn("Hi.")) as server:
        ask(AnthropicBackend(server.url, "m"))
        assert "sk-secret" not in json.dumps(server.requests[0].headers)
