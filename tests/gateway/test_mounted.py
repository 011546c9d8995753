"""The responses and messages interfaces over the whole of the gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import openresponses_types as published
import pytest

from mlx_tools.app import Door
from mlx_tools.backends import Chunk, CompletionRequest
from mlx_tools.errors import BackendBroken
from mlx_tools.testing import answer, call

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
GROUP = {"type": "namespace", "name": "skies", "description": "Skies", "tools": [WEATHER]}
WEATHER_TOOL = {"name": "get_weather", "input_schema": PARAMETERS}
ROME = call("get_weather", city="Rome")


class BreaksOff:
    """A server that begins to answer."""

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        yield Chunk("Rain and ")
        raise BackendBroken("it broke off")


def send(one: Any, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """What a request is answered with."""

    async def ask() -> Any:
        return await one.client.request(method, path, json=body, headers=headers)

    return anyio.run(ask)


def respond(one: Any, **body: Any) -> Any:
    return send(one, "POST", "/v1/responses", {"model": "scripted", "input": "Rome?", **body})


def message(one: Any, **body: Any) -> Any:
    usual = {"model": "scripted", "max_tokens": 99}
    asked = [{"role": "user", "content": "Rome?"}]
    return send(one, "POST", "/v1/messages", {**usual, "messages": asked, **body})


def events(response: Any) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_call_of_a_grouped_tool_goes_out_and_its_result_comes_back(serving: Any) -> None:
    one = serving(call("skies.get_weather", city="Rome"), answer("Rain."))
    tools = [GROUP, {"type": "web_search"}]
    first = respond(one, tools=tools, stream=True)
    assert first.headers["x-mlx-tools-left-out"] == "web_search"
    told = events(first)[-1]["response"]
    published.ResponseResource.model_validate(told)
    made = told["output"][0]
    assert (made["namespace"], made["name"]) == ("skies", "get_weather")
    output = {"type": "function_call_output", "call_id": made["call_id"], "output": "rain"}
    second = respond(one, tools=tools, input=[{"role": "user", "content": "Rome?"}, made, output])
    assert second.json()["output"][0]["content"][0]["text"] == "Rain."
    assert one.backend.prompts[1].startswith(one.backend.prompts[0])


ACCEPTANCE: dict[str, dict[str, Any]] = {
    "basic": {"input": [{"type": "message", "role": "user", "content": "Say hello."}]},
    "streaming": {
        "input": [{"type": "message", "role": "user", "content": "Count."}],
        "stream": True,
    },
    "system prompt": {
        "input": [
            {"type": "message", "role": "system", "content": "You are a pirate."},
            {"type": "message", "role": "user", "content": "Say hello."},
        ]
    },
    "tool": {"tools": [WEATHER]},
    "tool, streaming": {"tools": [WEATHER], "stream": True},
    "several turns": {
        "input": [
            {"type": "message", "role": "user", "content": "My name is Alice."},
            {"type": "message", "role": "assistant", "content": "Hello Alice!"},
            {"type": "message", "role": "user", "content": "What is my name?"},
        ]
    },
}
"""What the acceptance tests of Open Responses ask, but for an image, which a model of text cannot
see."""


@pytest.mark.parametrize("name", ACCEPTANCE)
def test_what_the_specifications_acceptance_tests_ask_is_answered(serving: Any, name: str) -> None:
    asked = ACCEPTANCE[name]
    response = respond(serving(ROME if "tools" in asked else "Ahoy."), **asked)
    told = events(response)[-1]["response"] if "stream" in asked else response.json()
    published.ResponseResource.model_validate(told)
    assert told["status"] == "completed"
    kind = "function_call" if "tools" in asked else "message"
    assert [item["type"] for item in told["output"]] == [kind]


TRIP = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
HELD = {"text": {"format": {"type": "json_schema", "name": "trip", "schema": TRIP}}}
GIVEN = call("final_result", city="Rome", days=3)


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["output"][0]["content"][0]["text"])


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        (GIVEN, {}),
        (GIVEN, {"tools": [WEATHER]}),
        ('{"city":"Rome","days":"3"}', {"tools": [WEATHER]}),
        (GIVEN, {"tools": [WEATHER], "tool_choice": "none"}),
        (
            GIVEN,
            {
                "tools": [WEATHER],
                "tool_choice": {
                    "type": "allowed_tools",
                    "tools": [{"type": "function", "name": "get_weather"}],
                },
            },
        ),
    ],
)
def test_an_answer_fits_its_schema_with_tools_and_without(
    serving: Any, script: str, asked: dict[str, Any]
) -> None:
    assert json.loads(text_of(respond(serving(script), **HELD, **asked))) == {
        "city": "Rome",
        "days": 3,
    }


def test_beside_an_answer_that_must_fit_tools_are_called(serving: Any) -> None:
    told = respond(serving(ROME), **HELD, tools=[WEATHER]).json()
    assert [item["name"] for item in told["output"]] == ["get_weather"]


def test_an_answer_that_does_not_fit_is_an_error_and_no_answer(serving: Any) -> None:
    response = respond(serving(*["Rome, I guess."] * 9), **HELD)
    assert response.json()["error"]["code"] == "model_output_invalid"


def test_answers_of_earlier_turns_stand_in_the_form_that_is_asked_for(serving: Any) -> None:
    one = serving(GIVEN)
    earlier = {"role": "assistant", "content": '{"city":"Oslo","days":1}'}
    asked = [{"role": "user", "content": "Oslo?"}, earlier, {"role": "user", "content": "Rome?"}]
    text_of(respond(one, **HELD, input=asked))
    assert '"name":"final_result","arguments":{"city":"Oslo","days":1}' in one.backend.prompts[0]


def test_a_message_fits_its_schema(serving: Any) -> None:
    held = {"format": {"type": "json_schema", "schema": TRIP}}
    told = message(serving(GIVEN), output_config=held).json()
    assert json.loads(told["content"][0]["text"]) == {"city": "Rome", "days": 3}


def test_a_chats_answer_fits_its_schema(serving: Any) -> None:
    held = {"type": "json_schema", "json_schema": {"name": "trip", "schema": TRIP}}
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Rome?"}]}
    told = send(
        serving(GIVEN), "POST", "/v1/chat/completions", {**body, "response_format": held}
    ).json()
    assert json.loads(told["choices"][0]["message"]["content"]) == {"city": "Rome", "days": 3}


def test_a_temperature_that_nobody_named_is_the_settings_own(serving: Any) -> None:
    one = serving("a", "b")
    assert respond(one).json()["temperature"] == 0.0
    assert respond(one, temperature=0.5).json()["temperature"] == 0.5


def test_a_message_calls_a_tool_and_goes_on_with_its_result(serving: Any) -> None:
    one = serving(ROME, answer("Rain."))
    first = message(one, tools=[WEATHER_TOOL]).json()
    assert first["stop_reason"] == "tool_use"
    made = first["content"][0]
    assert made["input"] == {"city": "Rome"}
    result = {"type": "tool_result", "tool_use_id": made["id"], "content": "rain"}
    told = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": [made]},
        {"role": "user", "content": [result]},
    ]
    second = events(message(one, tools=[WEATHER_TOOL], messages=told, stream=True))
    assert [e["delta"]["text"] for e in second if e["type"] == "content_block_delta"] == ["Rain."]
    assert second[-2]["delta"]["stop_reason"] == "end_turn"


@pytest.mark.parametrize(("size", "said"), [(9, True), (501, False)])
def test_a_call_that_failed_is_told_to_the_model_as_one(
    serving: Any, size: int, said: bool
) -> None:
    one = serving(answer("Sorry."))
    made = {"type": "tool_use", "id": "1", "name": "get_weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "x" * size, "is_error": True}
    told = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": [made]},
        {"role": "user", "content": [result]},
    ]
    assert message(one, tools=[WEATHER_TOOL], messages=told).status_code == 200
    assert ('"tool_error"' in one.backend.prompts[0]) is said
    assert "x" * size in one.backend.prompts[0]


def test_a_stop_sequence_ends_a_message_and_is_named(serving: Any) -> None:
    told = message(serving("Rain. END of it"), stop_sequences=["END"]).json()
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")
    assert told["content"][0]["text"] == "Rain. "


def test_a_prompt_is_counted_and_no_model_is_asked(serving: Any) -> None:
    one = serving()
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Rome?"}]}
    few = send(one, "POST", "/v1/messages/count_tokens", body).json()["input_tokens"]
    more = {**body, "tools": [WEATHER_TOOL]}
    assert 0 < few < send(one, "POST", "/v1/messages/count_tokens", more).json()["input_tokens"]
    assert one.backend.requests == []


def test_errors_have_the_shape_of_their_interface(serving: Any) -> None:
    one = serving(context=10)
    long = message(one, messages=[{"role": "user", "content": "a " * 400}])
    assert (long.status_code, long.json()["error"]["type"]) == (400, "invalid_request_error")
    assert long.json()["error"]["message"].startswith("prompt is too long: ")
    told = respond(one, input="a " * 400).json()["error"]
    assert (told["code"], told["param"]) == ("context_length_exceeded", "input")
    unknown = send(one, "POST", "/v1/messages/count_tokens", {"model": "nobody"})
    assert (unknown.status_code, unknown.json()["type"]) == (400, "error")
    missing = send(one, "GET", "/v1/responses/resp_none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("door", [Door(key="secret")])
def test_a_key_is_taken_from_either_header(serving: Any, door: Door) -> None:
    one = serving("Rain.", "Rain.", door=door)
    body = {"model": "scripted", "input": "Rome?"}
    assert send(one, "POST", "/v1/responses", body).status_code == 401
    for header in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
        assert send(one, "POST", "/v1/responses", body, **header).status_code == 200


@pytest.mark.parametrize(("ask", "last"), [(respond, "response.failed"), (message, "error")])
def test_a_server_that_breaks_off_in_the_middle_is_told(serving: Any, ask: Any, last: str) -> None:
    told = events(ask(serving(backend=BreaksOff()), stream=True))
    assert told[-1]["type"] == last
    assert "it broke off" in json.dumps(told[-1])


@pytest.mark.parametrize("name", ["a\r\nset-cookie: b", "名前", "\x00", "é", ""])
def test_a_field_of_any_name_is_named_in_a_header_that_can_be_sent(serving: Any, name: str) -> None:
    one = serving("Rain.", "Rain.")
    for stream in (False, True):
        response = respond(one, **{name: 1}, stream=stream)
        assert response.status_code == 200
        assert "set-cookie" not in response.headers
        left_out = response.headers["x-mlx-tools-left-out"]
        assert left_out.isascii() and left_out.isprintable()
