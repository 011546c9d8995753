"""`/v1/responses`: bodies into turns, and turns into what Open Responses specifies."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

import openresponses_types as published
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from mlx_tools.gateway.request import (
    ApiError,
    ClientCall,
    ClientMessage,
    Reply,
    TurnDone,
    TurnRequest,
)
from mlx_tools.gateway.responses import read_responses
from mlx_tools.messages import Usage
from mlx_tools.testing import answer, call
from tests.gateway import conftest
from tests.gateway.conftest import respond
from tests.gateway.scripted_turns import (
    Script,
    json_values,
    parse_events,
    script_answer,
    script_calls,
    stream_events,
    turns,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"type": "function", "name": "read", "description": "Read a file", "parameters": SCHEMA}
GROUP = {
    "type": "namespace",
    "name": "agents",
    "description": "Helpers",
    "tools": [{"type": "function", "name": "spawn", "parameters": SCHEMA}],
}
SEARCH = {"type": "web_search"}

KINDS = (
    *("Created", "InProgress", "Completed", "Failed", "Incomplete", "OutputItemAdded"),
    *("OutputItemDone", "ContentPartAdded", "ContentPartDone", "OutputTextDelta", "OutputTextDone"),
    *("FunctionCallArgumentsDelta", "FunctionCallArgumentsDone"),
)
EVENTS: TypeAdapter[Any] = TypeAdapter(
    published.ErrorStreamingEvent
    | Union[tuple(getattr(published, f"Response{kind}StreamingEvent") for kind in KINDS)]  # noqa: UP007
)


def reading(body: Mapping[str, Any]) -> tuple[TurnRequest, Reply]:
    return read_responses(body, new_id=lambda: "x", now=lambda: 1000.5)


def asked(body: Mapping[str, Any]) -> TurnRequest:
    return reading(body)[0]


def messages_of(*items: Mapping[str, Any]) -> tuple[ClientMessage, ...]:
    return asked({"input": items and list(items)}).messages


def user(text: str) -> ClientMessage:
    return ClientMessage("user", text)


def text_of(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def call_of(key: str, name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": key, "name": name, "arguments": "{}"}


def check_published(response: Mapping[str, Any]) -> None:
    """Hold a response to the published types, in which a schema that the specification lets be an
    object can only be null."""
    plain = copy.deepcopy(dict(response))
    if plain["text"]["format"]["type"] == "json_schema":
        plain["text"]["format"]["schema"] = None
    published.ResponseResource.model_validate(plain)


# --- bodies ---------------------------------------------------------------------------------------


def test_items_are_the_conversation_with_calls_beside_what_was_said() -> None:
    said_and_called = messages_of(
        {"type": "message", "role": "developer", "content": [text_of("A")]},
        {"role": "user", "content": [text_of("B")]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "C", "annotations": []}],
        },
        {**call_of("1", "read"), "arguments": '{"path": "a"}'},
        {"type": "reasoning", "summary": []},
        {**call_of("2", "spawn"), "namespace": "agents"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "function_call_output", "call_id": "2", "output": [text_of("two"), text_of("3")]},
        call_of("3", "read"),
        {"type": "function_call_output", "call_id": "3", "output": ""},
        {"role": "system", "content": "D"},
    )
    assert said_and_called == (
        ClientMessage("system", "A"),
        user("B"),
        ClientMessage(
            "assistant",
            "C",
            (ClientCall("1", "read", '{"path": "a"}'), ClientCall("2", "agents_spawn", "{}")),
        ),
        ClientMessage("tool", "one", call_id="1"),
        ClientMessage("tool", "two\n3", call_id="2"),
        ClientMessage("assistant", "", (ClientCall("3", "read", "{}"),)),
        ClientMessage("tool", "", call_id="3"),
        ClientMessage("system", "D"),
    )
    turn = asked({"model": "tiny", "instructions": "Be brief.", "input": "Hello"})
    assert turn.messages == (ClientMessage("system", "Be brief."), user("Hello"))
    assert (turn.model, turn.left_out) == ("tiny", ())


@pytest.mark.parametrize(
    ("choice", "tool", "allowed"),
    [
        (None, "auto", None),
        ("auto", "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        ({"type": "function", "name": "read"}, "read", None),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "agents_spawn", None),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "read"}]},
            "auto",
            {"read"},
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "agents.spawn"}, SEARCH],
            },
            "required",
            {"agents_spawn"},
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}, "none", None),
    ],
)
def test_a_choice_of_tools_counts_in_all_its_forms(
    choice: Any, tool: str, allowed: set[str] | None
) -> None:
    turn, reply = reading({"input": "a", "tools": [READ, GROUP, SEARCH], "tool_choice": choice})
    assert turn.tool_choice == tool
    assert turn.allowed == (None if allowed is None else frozenset(allowed))
    check_published(reply.whole(TurnDone(finish="stop", text="a")))


def test_a_group_is_its_tools_and_a_tool_for_a_server_is_left_out_by_name() -> None:
    turn = asked({"input": "a", "tools": [READ, GROUP, SEARCH]})
    assert [(tool.name, tool.description) for tool in turn.tools] == [
        ("read", "Read a file"),
        ("agents_spawn", "Helpers"),
    ]
    assert turn.tools[0].parameters == SCHEMA
    assert turn.left_out == ("web_search",)


def test_what_changes_the_answer_goes_on() -> None:
    turn = asked(
        {
            "input": "a",
            "temperature": 0.3,
            "top_p": 0.9,
            "presence_penalty": None,
            "max_output_tokens": 99,
            "parallel_tool_calls": False,
            "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
        }
    )
    assert turn.sampling == {"temperature": 0.3, "top_p": 0.9}
    assert (turn.max_tokens, turn.parallel, turn.schema) == (99, False, SCHEMA)
    assert asked({"input": "a", "text": {"format": {"type": "json_object"}}}).schema == {
        "type": "object"
    }
    assert asked({"input": "a", "text": {"format": {"type": "text"}}}).schema is None


def test_what_changes_nothing_here_is_accepted_and_the_unknown_is_named() -> None:
    accepted = {
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "minimal", "summary": "auto"},
        "prompt_cache_key": "k",
        "client_metadata": {"x": "y"},
        "service_tier": "flex",
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "s",
        "stream_options": {"include_obfuscation": False},
        "truncation": "disabled",
        "background": False,
        "top_logprobs": 0,
        "conversation": None,
        "previous_response_id": None,
        "text": {"verbosity": "low"},
        "max_tool_calls": 3,
        "tools": [],
        "new_and_null": None,
    }
    assert asked({"input": "a", **accepted}).left_out == ()
    assert asked({"input": "a", "truncation": "auto", "new": 1}).left_out == ("new", "truncation")


FIELDS = st.sampled_from(
    "input tools tool_choice text store model metadata include instructions".split()  # noqa: SIM905
)
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"])},
    optional=dict.fromkeys(
        ("role", "content", "call_id", "name", "arguments", "output", "namespace"), json_values
    ),
)
TOOLS = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "namespace", "web_search"])},
    optional=dict.fromkeys(("name", "description", "parameters", "tools"), json_values),
)


@given(
    st.dictionaries(FIELDS, json_values)
    | st.fixed_dictionaries({"input": st.lists(ITEMS | json_values, max_size=3)})
    | st.fixed_dictionaries(
        {"input": st.just("a"), "tools": st.lists(TOOLS, max_size=3)},
        optional={"tool_choice": TOOLS | json_values},
    )
)
def test_a_body_of_any_shape_is_read_or_refused(body: dict[str, Any]) -> None:
    try:
        _, reply = reading(body)
    except ApiError as error:
        assert error.status == 400
    else:
        json.dumps(reply.whole(TurnDone(finish="stop", text="a"))).encode()


# --- responses and events -------------------------------------------------------------------------


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_an_answer_is_told_by_the_events_of_the_specification() -> None:
    _, reply = reading({"model": "tiny", "input": "a", "stream": True})
    assert reply.streamed
    texts = list(stream_events(reply, script_answer("Hello")))
    assert texts[-1] == "data: [DONE]\n\n"
    events = parse_events(texts)
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert (response["created_at"], response["completed_at"]) == (1000, 1000)
    assert response["store"] is False
    assert response["usage"]["input_tokens_details"] == {"cached_tokens": 20}
    assert response["usage"]["total_tokens"] == 35
    assert [item["content"][0]["text"] for item in response["output"]] == ["Hello"]


def test_calls_are_told_as_they_grow_and_as_done_once_all_of_the_turn_is() -> None:
    _, reply = reading({"input": "a", "stream": True, "tools": [READ, GROUP]})
    script = script_calls(("read", {"path": "a"}), ("agents_spawn", {"path": "b"}), text="So:")
    events = parse_events(stream_events(reply, script))
    done = ("function_call_arguments.done", "output_item.done")
    assert kinds(events)[2:] == [
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", *done) * 2,
        "completed",
    ]
    calls = events[-1]["response"]["output"][1:]
    same = {"type": "function_call", "status": "completed"}
    read = {"id": "fc_xo1", "call_id": "call_0", "name": "read", "arguments": '{"path": "a"}'}
    spawn = {"id": "fc_xo2", "call_id": "call_1", "name": "spawn", "arguments": '{"path": "b"}'}
    assert calls == [same | read, same | spawn | {"namespace": "agents"}]


def test_a_call_that_was_cut_off_is_never_told_as_done() -> None:
    _, reply = reading({"input": "a", "stream": True, "tools": [READ]})
    events = parse_events(stream_events(reply, [TurnDone(finish="length")]))
    assert kinds(events)[2:] == ["incomplete"]
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (response["output"], response["completed_at"]) == ([], None)


def test_an_error_in_the_middle_is_an_event_and_the_response_has_failed() -> None:
    _, reply = reading({"input": "a", "stream": True})
    broken = ApiError(502, "model_output_invalid", "no call that fits")
    texts = list(stream_events(reply, ["So", broken]))
    events = parse_events(texts)
    assert kinds(events)[-2:] == ["error", "failed"]
    assert texts[-1] == "data: [DONE]\n\n"
    assert events[-2]["error"]["code"] == events[-2]["code"] == "model_output_invalid"
    # Codex repeats a request that failed with a code that it does not know.
    said = {"code": "invalid_prompt", "message": "no call that fits"}
    assert events[-1]["response"]["error"] == said
    for event in events:
        EVENTS.validate_python(event)


def test_a_turn_of_nothing_is_an_empty_message_and_its_tokens_are_not_told() -> None:
    _, reply = reading({"input": "a"})
    response = reply.whole(TurnDone(finish="stop", usage=Usage(prompt_tokens=3)))
    assert [item["content"][0]["text"] for item in response["output"]] == [""]
    assert response["usage"] is None
    check_published(response)


BODIES = st.fixed_dictionaries(
    {"input": st.just("a"), "tools": st.sampled_from([[], [READ, GROUP, SEARCH]])},
    optional={
        "text": st.sampled_from(
            [
                {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
                {"format": {"type": "json_object"}},
            ]
        ),
        "metadata": st.just({"a": "b"}),
        "temperature": st.just(0.5),
        "instructions": st.just("Be brief."),
        "store": st.just(False),
        "max_output_tokens": st.just(16),
        "reasoning": st.just({"effort": "minimal"}),
    },
)


@given(BODIES, turns())
def test_streamed_equals_whole_and_all_of_it_fits_the_published_types(
    body: dict[str, Any], script: Script
) -> None:
    done = script[-1]
    assert isinstance(done, TurnDone)
    whole = reading(body)[1].whole(done)
    check_published(whole)
    events = parse_events(stream_events(reading(body)[1], script))
    assert events[-1]["response"] == whole
    finished = {e["output_index"]: e["item"] for e in events if e["type"].endswith("item.done")}
    assert list(finished.values()) == whole["output"]
    for event in events:
        if "response" in event:
            check_published(event["response"])
        else:
            EVENTS.validate_python(event)
    assert texts_by_deltas(events) == said_in(whole)


def texts_by_deltas(events: list[dict[str, Any]]) -> dict[str, str]:
    """The joined deltas of each item that was done."""
    ended = {e["item"]["id"] for e in events if e["type"].endswith("item.done")}
    texts = dict.fromkeys(sorted(ended), "")
    for event in events:
        if event["type"].endswith(".delta") and event["item_id"] in ended:
            texts[event["item_id"]] += event["delta"]
    return texts


def said_in(response: dict[str, Any]) -> dict[str, str]:
    return {
        item["id"]: item["arguments"] if "arguments" in item else item["content"][0]["text"]
        for item in sorted(response["output"], key=lambda item: item["id"])
    }


# --- the whole of the gateway ---------------------------------------------------------------------


def with_client(one: Any, use: Any) -> Any:
    """The result of the use of the official client, which takes a second to import."""
    from openai import AsyncOpenAI

    return conftest.with_client(AsyncOpenAI, "/v1", one, use)


CALLED = f"So:\n{call('read', path='a')}\n"


class Weather(BaseModel):
    place: str


def test_the_official_client_reads_calls_and_goes_on_with_what_it_read(serving: Any) -> None:
    one = serving(CALLED, answer("Done."), CALLED)
    given: Any = {"model": "scripted", "tools": [READ, SEARCH]}

    async def use(client: AsyncOpenAI) -> Any:
        first = await client.responses.create(input="a", **given)
        made = first.output[1]
        assert (first.output_text, made.type, made.name) == ("So:", "function_call", "read")
        assert (json.loads(made.arguments), first.usage.total_tokens > 0) == ({"path": "a"}, True)
        output = {"type": "function_call_output", "call_id": made.call_id, "output": "text"}
        items = [{"role": "user", "content": "a"}, *first.output, output]
        second = await client.responses.create(input=items, **given)
        assert second.output_text == "Done."
        async with client.responses.stream(input="a", **given) as stream:
            found = [event.type async for event in stream]
            return found, await stream.get_final_response()

    found, response = with_client(one, use)
    assert "response.function_call_arguments.delta" in found
    assert [item.type for item in response.output] == ["message", "function_call"]
    assert one.backend.prompts[1].startswith(one.backend.prompts[0] + CALLED.rstrip())


BROKEN = '{"type":"tool_observation","name":"read","content":"so"}'


def test_the_official_client_parses_an_answer_and_is_told_what_is_wrong(serving: Any) -> None:
    from openai import APIError, APIStatusError

    one = serving(call("final_result", place="Oslo"), *[BROKEN] * 3)
    given: Any = {"model": "scripted", "input": "a"}
    response = with_client(one, lambda c: c.responses.parse(**given, text_format=Weather))
    assert response.output_parsed == Weather(place="Oslo")
    with pytest.raises(APIStatusError) as refused:
        with_client(one, lambda c: c.responses.create(**given, background=True))
    assert (refused.value.status_code, refused.value.param) == (400, "background")

    async def use(client: AsyncOpenAI) -> None:
        async for _ in await client.responses.create(**given, tools=[READ], stream=True):
            pass

    with pytest.raises(APIError) as broken:
        with_client(one, use)
    assert broken.value.code == "model_output_invalid"


def test_a_call_of_a_grouped_tool_goes_out_and_its_result_comes_back(serving: Any) -> None:
    one = serving(call("agents_spawn", path="a"), answer("Rain."))
    tools = [GROUP, SEARCH]
    first = respond(one, tools=tools, stream=True)
    assert first.headers["x-mlx-tools-left-out"] == "web_search"
    made = parse_events(first.text.split("\n\n")[:-1])[-1]["response"]["output"][0]
    assert (made["namespace"], made["name"]) == ("agents", "spawn")
    output = {"type": "function_call_output", "call_id": made["call_id"], "output": "rain"}
    second = respond(one, tools=tools, input=[{"role": "user", "content": "Rome?"}, made, output])
    assert second.json()["output"][0]["content"][0]["text"] == "Rain."
    assert one.backend.prompts[1].startswith(one.backend.prompts[0])


def message(role: str, content: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


ACCEPTANCE: dict[str, dict[str, Any]] = {
    "basic": {"input": [message("user", "Say hello.")]},
    "streaming": {"input": [message("user", "Count.")], "stream": True},
    "system prompt": {"input": [message("system", "You are a pirate."), message("user", "Ahoy?")]},
    "tool": {"tools": [READ]},
    "tool, streaming": {"tools": [READ], "stream": True},
    "several turns": {
        "input": [
            message("user", "My name is Alice."),
            message("assistant", "Hello Alice!"),
            message("user", "What is my name?"),
        ]
    },
}
"""The requests of the acceptance tests of Open Responses, but for an image, which no model of text
can see."""


@pytest.mark.parametrize("name", ACCEPTANCE)
def test_what_the_specifications_acceptance_tests_ask_is_answered(serving: Any, name: str) -> None:
    asked = ACCEPTANCE[name]
    response = respond(serving(call("read", path="a") if "tools" in asked else "Ahoy."), **asked)
    streamed = "stream" in asked
    whole = parse_events(response.text.split("\n\n")[:-1])[-1]["response"] if streamed else None
    told = whole or response.json()
    published.ResponseResource.model_validate(told)
    kind = "function_call" if "tools" in asked else "message"
    assert (told["status"], [item["type"] for item in told["output"]]) == ("completed", [kind])


TRIP = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
HELD = {"text": {"format": {"type": "json_schema", "name": "trip", "schema": TRIP}}}
GIVEN = call("final_result", city="Rome", days=3)
ALLOWED = {"type": "allowed_tools", "tools": [{"type": "function", "name": "read"}]}


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        (GIVEN, {}),
        (GIVEN, {"tools": [READ]}),
        ('{"city":"Rome","days":"3"}', {"tools": [READ]}),
        (GIVEN, {"tools": [READ], "tool_choice": "none"}),
        (GIVEN, {"tools": [READ], "tool_choice": ALLOWED}),
    ],
)
def test_an_answer_fits_its_schema_with_tools_and_without(
    serving: Any, script: str, asked: dict[str, Any]
) -> None:
    told = respond(serving(script), **HELD, **asked).json()["output"][0]["content"][0]["text"]
    assert json.loads(told) == {"city": "Rome", "days": 3}


def test_beside_an_answer_that_must_fit_calls_come_and_one_that_does_not_fit_is_an_error(
    serving: Any,
) -> None:
    told = respond(serving(call("read", path="a")), **HELD, tools=[READ]).json()
    assert [item["name"] for item in told["output"]] == ["read"]
    unfit = respond(serving(*["Rome, I guess."] * 9), **HELD)
    assert unfit.json()["error"]["code"] == "model_output_invalid"


def test_an_answer_that_fitted_stands_in_the_prompt_as_the_model_wrote_it(serving: Any) -> None:
    one = serving(GIVEN)
    earlier = message("assistant", '{"city":"Oslo","days":1}')
    respond(one, **HELD, input=[message("user", "Oslo?"), earlier, message("user", "Rome?")])
    assert '"name":"final_result","arguments":{"city":"Oslo","days":1}' in one.backend.prompts[0]


def test_a_temperature_that_nobody_named_is_the_settings_own(serving: Any) -> None:
    one = serving("a", "b")
    assert respond(one).json()["temperature"] == 0.0
    assert respond(one, temperature=0.5).json()["temperature"] == 0.5
