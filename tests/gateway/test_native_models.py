"""Models whose server calls tools by itself, behind the gateway: asked by its chat interface."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from mlx_tools.backends import CompletionsBackend
from mlx_tools.testing import ChatCall, Completion, ScriptedServer
from tests.gateway.conftest import WEATHER

NATIVE = {"path": "native", "reason": "as asked", "completes": True, "obeys": True}
ROME = Completion(
    "", calls=[ChatCall("get_weather", '{"city": "Rome"}')], finish_reason="tool_calls"
)
ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather in Rome?"},
]


def asks(serving: Any, server: ScriptedServer, *bodies: dict[str, Any]) -> list[Any]:
    """The answers to these requests, one after the other."""

    async def ask() -> list[Any]:
        one = serving(backend=CompletionsBackend(server.url), route=NATIVE)
        path = "/v1/chat/completions"
        return [await one.client.post(path, json={"model": "scripted", **b}) for b in bodies]

    return list(anyio.run(ask))


def message(response: Any) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


def test_a_conversation_with_tools_goes_on_as_messages(serving: Any) -> None:
    with ScriptedServer(ROME, Completion("Sunny."), chat=True) as server:
        (first,) = asks(serving, server, {"messages": ASKED, "tools": [WEATHER]})
        said = message(first)
        (call,) = said["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": '{"city":"Rome"}'}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "sun"}
        (last,) = asks(serving, server, {"messages": [*ASKED, said, result], "tools": [WEATHER]})
        assert message(last)["content"] == "Sunny."
        first_sent, last_sent = server.chats
        assert server.prompts == []
    assert first_sent == ASKED
    assert last_sent[:2] == ASKED
    function = last_sent[2]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {"city": "Rome"}
    assert last_sent[3]["content"] == "sun"


def test_without_tools_the_servers_own_template_is_used(serving: Any) -> None:
    with ScriptedServer(Completion("Hello."), chat=True) as server:
        (response,) = asks(serving, server, {"messages": ASKED})
        assert message(response)["content"] == "Hello."
        assert server.chats == [ASKED]
        assert "tools" not in server.bodies[0]


def test_sampling_goes_along(serving: Any) -> None:
    body = {"messages": ASKED, "tools": [WEATHER], "top_p": 0.5, "temperature": 0.25}
    with ScriptedServer(Completion("Hello."), chat=True) as server:
        asks(serving, server, body)
        assert (server.bodies[0]["top_p"], server.bodies[0]["temperature"]) == (0.5, 0.25)


@pytest.mark.parametrize("text", ["get_weather(city=Rome)", "Hm."])
def test_what_is_no_call_though_one_is_required_is_corrected_by_the_prompt(
    serving: Any, text: str
) -> None:
    body = {"messages": ASKED, "tools": [WEATHER], "tool_choice": "required"}
    rest = 'get_weather","arguments":{"city":"Rome"}}'
    with ScriptedServer(Completion(text), rest, chat=True) as server:
        (response,) = asks(serving, server, body)
        assert [c["function"]["name"] for c in message(response)["tool_calls"]] == ["get_weather"]
        assert (len(server.chats), len(server.prompts)) == (1, 1)


def test_words_are_told_as_they_come_and_stand_before_what_is_corrected(serving: Any) -> None:
    said = 'I will look.\n{"name": "get_weather", "arguments": {"city": "Rome"}}'
    first = Completion(said, size=4)
    rest = '{"type":"tool_call","name":"get_weather","arguments":{"city":"Rome"}}'
    body = {"messages": ASKED, "tools": [WEATHER], "stream": True}
    with ScriptedServer(first, rest, chat=True) as server:
        (response,) = asks(serving, server, body)
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
    told = [delta["content"] for delta in deltas if delta.get("content")]
    assert len(told) > 2 and "".join(told).startswith("I will look.")
    assert "city" not in "".join(told)
    assert any(delta.get("tool_calls") for delta in deltas)


TAGS = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["tags"],
}
ONCE = {**TAGS, "properties": {"tags": {**TAGS["properties"]["tags"], "uniqueItems": True}}}


def held_to(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": ASKED, "response_format": form, "stream": True}


def streamed(response: Any) -> tuple[str, Any]:
    """The text that was told, and the error, None without one."""
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
    events = [json.loads(line[6:]) for line in lines]
    deltas = [event["choices"][0]["delta"] for event in events if event.get("choices")]
    return "".join(d.get("content") or "" for d in deltas), events[-1].get("error")


def test_half_an_answer_that_must_fit_is_an_error_and_none_stands_behind_it(serving: Any) -> None:
    begun = '{"type":"tool_call","name":"final_result","arguments":{"tags":["a",'
    right = '{"type":"tool_call","name":"final_result","arguments":{"tags":["b"]}}'
    script = [Completion(begun + "5x]}}", size=4), *["5x"] * 3, *[right] * 9]
    with ScriptedServer(*script, chat=True) as server:
        (response,) = asks(serving, server, held_to(TAGS))
    text, error = streamed(response)
    assert text.startswith('{"tags":["a"') and "\n" not in text
    assert error["code"] == "model_output_invalid"


@pytest.mark.parametrize("native", [True, False])
def test_an_answer_that_nothing_can_be_held_to_wholly_is_told_once_it_fits(
    serving: Any, native: bool
) -> None:
    def written(prompt: str) -> Completion:
        tags = '["a","a"]' if len(server.bodies) == 1 else '["b"]'
        whole = f'{{"type":"tool_call","name":"final_result","arguments":{{"tags":{tags}}}}}'
        begun = prompt.rpartition("\n")[2] if native is False else ""
        return Completion(whole.removeprefix(begun), size=4)

    with ScriptedServer(*[written] * 9, chat=native) as server:
        one = serving(backend=CompletionsBackend(server.url), route=NATIVE if native else {})
        body = {"model": "scripted", **held_to(ONCE)}
        response = anyio.run(lambda: one.client.post("/v1/chat/completions", json=body))
    assert streamed(response) == ('{"tags":["b"]}', None)
