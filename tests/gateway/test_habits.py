"""Habits of clients that public reports tell of, which a local server is expected to take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.app import config
from mlx_tools.testing import answer, call
from tests.gateway.conftest import WEATHER, chat, respond, send, write_message

HI = [{"role": "user", "content": "hi"}]
FLAT = {"type": "function", **WEATHER["function"]}
OWN = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}


def test_no_limit_no_model_and_empty_lists_are_nothing_that_is_asked_for(serving: Any) -> None:
    for tokens in (-1, 0, 100.0, None):
        one = serving("Hello.", "Hello.", "Hello.", "Hello.")
        said = [
            chat(one, model=None, max_tokens=tokens, messages=HI, stop=[], tools=[], stream=False),
            chat(one, messages=HI, max_completion_tokens=tokens, seed=7.0, top_k=40.0),
            respond(one, max_output_tokens=tokens),
            write_message(one, **({} if tokens is None else {"max_tokens": tokens})),
        ]
        assert [response.status_code for response in said] == [200] * 4
        assert all("Hello." in response.text for response in said)
        limits = [request.max_tokens for request in one.backend.requests]
        if tokens == 100.0:
            assert limits == [100] * 4
        else:
            assert min(limits) > 100 or tokens is None


@pytest.mark.parametrize("interface", ["chat", "responses"])
def test_empty_arguments_of_a_call_are_none(serving: Any, interface: str) -> None:
    one = serving(answer("Fine."))
    if interface == "chat":
        called = [{"id": "c", "type": "function", "function": {"name": "now", "arguments": ""}}]
        messages = [
            *HI,
            {"role": "assistant", "content": None, "tool_calls": called},
            {"role": "tool", "tool_call_id": "c", "content": None},
        ]
        response = chat(one, messages=messages, tools=[WEATHER])
    else:
        items = [
            *HI,
            {"type": "function_call", "call_id": "c", "name": "now", "arguments": ""},
            {"type": "function_call_output", "call_id": "c", "output": ""},
        ]
        response = respond(one, input=items, tools=[FLAT])
    assert response.status_code == 200, response.text
    assert '"name":"now","arguments":{}' in one.backend.prompts[0]


def test_all_calls_of_a_turn_are_told(serving: Any) -> None:
    calls = "\n".join(call("get_weather", city=city) for city in "ABCDEFGHIJ")
    one = serving(calls, calls, calls)
    told = chat(one, tools=[WEATHER]).json()["choices"][0]["message"]["tool_calls"]
    assert [json.loads(c["function"]["arguments"])["city"] for c in told] == list("ABCDEFGHIJ")
    assert len(respond(one, tools=[FLAT]).json()["output"]) == 10
    assert len(write_message(one, tools=[OWN]).json()["content"]) == 10


def test_the_example_of_any_object_has_members(serving: Any) -> None:
    one = serving('{"a": 1}')
    response = chat(one, response_format={"type": "json_object"})
    assert json.loads(response.json()["choices"][0]["message"]["content"]) == {"a": 1}
    assert '"arguments":{"name":"text","count":2}}' in one.backend.prompts[0]


def test_the_names_of_other_peoples_models_lead_to_the_first_model(tmp_path: Path) -> None:
    loaded = config.load(environ={}, cwd=tmp_path, user_file=tmp_path / "none", home=tmp_path)
    gateway = loaded.settings.gateway
    assert gateway.models == {"clau" + "de-*": "default"}
    assert gateway.any_model is False


def test_a_faulty_tool_of_each_published_report_does_not_lose_the_others(serving: Any) -> None:
    members: list[Any] = [
        {"type": "any"},
        {"type": "None"},
        {"type": "string", "enum": []},
        {"type": "integer", "default": "3"},
        {"type": "string", "description": None},
        {"type": "string", "examples": "abc"},
        {"type": "string", "pattern": "^\\p{L}+$"},
        {"type": "float"},
        {"$dynamicRef": "#meta"},
        True,
    ]
    for member in members:
        one = serving(call("get_weather", city="Paris"))
        parameters = {"type": "object", "properties": {"x": member}}
        odd = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
        told = chat(one, tools=[odd, WEATHER]).json()["choices"][0]["message"]["tool_calls"]
        assert json.loads(told[0]["function"]["arguments"]) == {"city": "Paris"}


def test_models_are_found_by_the_names_that_lead_to_them(serving: Any) -> None:
    one = serving()
    one.gateway.models.aliases = {"gpt-*": "scripted"}
    assert send(one, "GET", "/v1/models/gpt-5").json()["id"] == "gpt-5"
    assert send(one, "GET", "/v1/models/other").status_code == 404
