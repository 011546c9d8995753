"""`/v1/messages`: bodies into turns, and turns into what Anthropic's own client reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from mlx_tools.gateway.anthropic_messages import (
    anthropic_messages_error,
    read_anthropic_messages,
)
from mlx_tools.gateway.request import (
    ApiError,
    ClientCall,
    ClientMessage,
    Reply,
    TurnDone,
    TurnRequest,
)
from mlx_tools.testing import answer, call
from tests.gateway import conftest
from tests.gateway.conftest import send, write_message
from tests.gateway.scripted_turns import (
    Script,
    json_values,
    parse_events,
    script_calls,
    stream_events,
    turns,
)

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "read", "description": "Read a file", "input_schema": SCHEMA}
LONG = {"name": "mcp__server__" + "x" * 80, "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
HELLO = [{"role": "user", "content": "Hello"}]


@cache
def stream_type() -> TypeAdapter[Any]:
    """The client's type of what is streamed."""
    from anthropic.types import RawMessageStreamEvent

    return TypeAdapter(RawMessageStreamEvent)


def reading(body: Mapping[str, Any]) -> tuple[TurnRequest, Reply]:
    usual = {"model": "tiny", "max_tokens": 99, "messages": HELLO}
    return read_anthropic_messages({**usual, **body}, new_id=lambda: "x")


def asked(**body: Any) -> TurnRequest:
    return reading(body)[0]


# --- bodies ---------------------------------------------------------------------------------------


def test_blocks_are_the_conversation_in_their_order() -> None:
    turn = asked(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: v=1; id=77"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {"role": "user", "content": "Hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "So:"},
                    {"type": "tool_use", "id": "1", "name": "read", "input": {"path": "a"}},
                    {"type": "tool_use", "id": "2", "name": "read", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "one"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "2",
                        "is_error": True,
                        "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "b"}],
                    },
                    {"type": "text", "text": "Go on."},
                ],
            },
            {"role": "system", "content": "Now in French."},
        ],
    )
    assert turn.messages == (
        ClientMessage("system", "Be brief."),
        ClientMessage("user", "Hello"),
        ClientMessage(
            "assistant",
            "So:",
            (ClientCall("1", "read", '{"path": "a"}'), ClientCall("2", "read", "{}")),
        ),
        ClientMessage("tool", "one", call_id="1"),
        ClientMessage("tool", "no\nb", call_id="2", is_error=True),
        ClientMessage("user", "Go on."),
        ClientMessage("system", "Now in French."),
    )


@pytest.mark.parametrize(
    ("choice", "tool", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "read"}, "read", True),
        ({"type": "none"}, "none", True),
    ],
)
def test_a_choice_of_tools_counts_in_all_its_forms(choice: Any, tool: str, parallel: bool) -> None:
    turn = asked(tools=[READ, SEARCH], tool_choice=choice)
    assert (turn.tool_choice, turn.parallel) == (tool, parallel)


def test_tools_are_those_the_client_runs_and_the_others_are_left_out_by_name() -> None:
    servers = [{"type": "url", "url": "http://127.0.0.1", "name": "s"}]
    nameless = {"type": "mcp_toolset", "mcp_server_name": "s"}
    turn = asked(tools=[READ, SEARCH, nameless, {**LONG, "type": "custom"}], mcp_servers=servers)
    assert [tool.name == "read" for tool in turn.tools] == [True, False]
    assert turn.tools[0].parameters == SCHEMA
    assert turn.left_out == ("mcp_servers", "web_search_20250305", "mcp_toolset")


def test_what_changes_the_answer_goes_on() -> None:
    turn = asked(
        temperature=0.3, top_p=0.9, top_k=5, stop_sequences=["END"], output_config={"effort": "low"}
    )
    assert turn.sampling == {"temperature": 0.3, "top_p": 0.9, "top_k": 5}
    assert (turn.model, turn.max_tokens, turn.stop) == ("tiny", 99, ("END",))
    assert turn.schema is None
    wanted = {"type": "json_schema", "schema": SCHEMA}
    assert asked(output_config={"format": wanted}).schema == SCHEMA
    assert asked(output_format=wanted).schema == SCHEMA


def test_what_changes_nothing_here_is_accepted_and_the_unknown_is_named() -> None:
    accepted = {
        "metadata": {"user_id": "u"},
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "system": None,
        "container": None,
    }
    assert asked(**accepted).left_out == ()
    assert asked(container="c_1", new=1).left_out == ("container", "new")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_an_error_is_told_by_its_kind(status: int, kind: str) -> None:
    assert anthropic_messages_error(ApiError(status, "c", "m"))["error"]["type"] == kind


FIELDS = st.sampled_from(["messages", "system", "tools", "tool_choice", "stop_sequences", "model"])
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking"])},
    optional=dict.fromkeys(("text", "id", "name", "input", "tool_use_id", "content"), json_values),
)
MESSAGES = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": st.lists(BLOCKS | json_values, max_size=3) | json_values,
    }
)
TOOLS = st.fixed_dictionaries({"name": json_values, "input_schema": json_values})


@given(
    st.dictionaries(FIELDS, json_values)
    | st.fixed_dictionaries({"messages": st.lists(MESSAGES, max_size=3)})
    | st.fixed_dictionaries({"tools": st.lists(TOOLS, max_size=2), "tool_choice": json_values})
)
def test_a_body_of_any_shape_is_read_or_refused(body: dict[str, Any]) -> None:
    try:
        _, reply = reading(body)
    except ApiError as error:
        assert error.status == 400
    else:
        json.dumps(reply.whole(TurnDone(finish="stop", text="a"))).encode()


# --- messages and events --------------------------------------------------------------------------


def test_an_answer_and_a_call_are_told_by_the_events_of_the_interface() -> None:
    _, reply = reading({"tools": [READ], "stream": True})
    assert reply.streamed
    events = parse_events(stream_events(reply, script_calls(("read", {"path": "a"}), text="So:")))
    assert [event["type"] for event in events] == [
        *("message_start", "ping", "content_block_start", "content_block_delta"),
        *("content_block_stop", "content_block_start", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert [event["index"] for event in events if "index" in event] == [0, 0, 0, 1, 1, 1]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["input_tokens"] == 10
    assert events[-2]["usage"]["cache_read_input_tokens"] == 20


@pytest.mark.parametrize(
    ("done", "reason", "text"),
    [
        (TurnDone(finish="stop", text="a"), "end_turn", None),
        (TurnDone(finish="length", text="a"), "max_tokens", None),
        (TurnDone(finish="stop", text="a", stopped_by="END"), "stop_sequence", "END"),
    ],
)
def test_a_message_says_why_it_ended(done: TurnDone, reason: str, text: str | None) -> None:
    message = reading({})[1].whole(done)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, text)
    usage = message["usage"]  # of which nobody counted any
    assert (usage["input_tokens"], usage["output_tokens"]) == (0, 0)


def test_a_tool_is_called_by_the_name_that_its_client_gave() -> None:
    turn, reply = reading({"tools": [LONG]})
    name = turn.tools[0].name
    done = TurnDone(finish="tool_calls", calls=(ClientCall("1", name, "{}"),))
    assert reply.whole(done)["content"][0]["name"] == LONG["name"]
    said_again = {"type": "tool_use", "id": "1", "name": LONG["name"], "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1"}
    again = asked(
        messages=[
            *HELLO,
            {"role": "assistant", "content": [said_again]},
            {"role": "user", "content": [result]},
        ]
    )
    assert again.messages[1].calls[0].name == name


@given(turns())
def test_streamed_equals_whole_and_all_of_it_fits_the_clients_types(script: Script) -> None:
    from anthropic.types import Message

    done = script[-1]
    assert isinstance(done, TurnDone)
    whole = reading({})[1].whole(done)
    Message.model_validate(whole)
    events = parse_events(stream_events(reading({})[1], script))
    for event in events:
        if event["type"] != "ping":
            stream_type().validate_python(event)
    assert blocks_of(events) == whole["content"]
    assert events[-2]["usage"] == whole["usage"]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]


def blocks_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content that the events come to."""
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            texts[-1] += event["delta"].get("text", "") + event["delta"].get("partial_json", "")
        elif event["type"] == "content_block_stop":
            if blocks[-1]["type"] == "text":
                blocks[-1]["text"] = texts[-1]
            elif texts[-1].endswith("}"):
                blocks[-1]["input"] = json.loads(texts[-1])
    return blocks


# --- the whole of the gateway ---------------------------------------------------------------------


def with_client(one: Any, use: Any) -> Any:
    """The result of the use of the official client, which takes a second to import."""
    from anthropic import AsyncAnthropic

    return conftest.with_client(AsyncAnthropic, "", one, use)


ASK: dict[str, Any] = {"model": "scripted", "max_tokens": 99, "messages": HELLO}
CALLED = f"So:\n{call('read', path='a')}\n"


class Weather(BaseModel):
    place: str


def test_the_official_client_reads_calls_and_goes_on_with_their_results(serving: Any) -> None:
    one = serving(CALLED, answer("Done."), CALLED)

    async def use(client: AsyncAnthropic) -> Message:
        first = await client.messages.create(**ASK, tools=[READ, SEARCH])
        made = first.content[1]
        assert (first.stop_reason, made.type, made.input) == ("tool_use", "tool_use", {"path": "a"})
        result = {"type": "tool_result", "tool_use_id": made.id, "content": "text"}
        messages = [
            *HELLO,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        second = await client.messages.create(**{**ASK, "messages": messages}, tools=[READ])
        assert second.content[0].text == "Done."
        async with client.messages.stream(**ASK, tools=[READ]) as stream:
            kinds = [event.type async for event in stream]
            assert {"text", "input_json"} <= set(kinds)
            return await stream.get_final_message()

    message = with_client(one, use)
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert message.content[1].input == {"path": "a"}
    assert (message.stop_reason, message.usage.output_tokens > 0) == ("tool_use", True)
    assert one.backend.prompts[1].startswith(one.backend.prompts[0] + CALLED.rstrip())


BROKEN = '{"type":"tool_observation","name":"read","content":"so"}'


def test_the_official_client_parses_an_answer_and_is_told_what_is_wrong(serving: Any) -> None:
    from anthropic import APIStatusError

    one = serving(call("final_result", place="Oslo"), *[BROKEN] * 3)
    parsed = with_client(one, lambda c: c.messages.parse(**ASK, output_format=Weather))
    assert parsed.parsed_output == Weather(place="Oslo")
    with pytest.raises(APIStatusError, match="stop_sequences") as refused:
        with_client(one, lambda c: c.messages.create(**ASK, stop_sequences=[""]))
    assert refused.value.status_code == 400

    async def use(client: AsyncAnthropic) -> None:
        async with client.messages.stream(**ASK, tools=[READ]) as stream:
            async for _ in stream:
                pass

    with pytest.raises(APIStatusError, match="no turn that fits"):
        with_client(one, use)


def test_a_prompt_is_counted_and_no_model_is_asked(serving: Any) -> None:
    one, body = serving(), {"model": "scripted", "messages": HELLO}
    few = with_client(one, lambda c: c.messages.count_tokens(**body)).input_tokens
    more = with_client(one, lambda c: c.messages.count_tokens(**body, tools=[READ])).input_tokens
    assert 0 < few < more
    assert one.backend.requests == []
    wrong = send(one, "POST", "/v1/messages/count_tokens", {"model": "nobody"})
    assert (wrong.status_code, wrong.json()["type"]) == (400, "error")


def test_a_message_fits_its_schema(serving: Any) -> None:
    held = {"format": {"type": "json_schema", "schema": SCHEMA}}
    told = write_message(serving(call("final_result", path="a")), output_config=held).json()
    assert json.loads(told["content"][0]["text"]) == {"path": "a"}


@pytest.mark.parametrize(("size", "said"), [(9, True), (501, False)])
def test_a_call_that_failed_is_told_to_the_model_as_one(
    serving: Any, size: int, said: bool
) -> None:
    one = serving(answer("Sorry."))
    made = {"type": "tool_use", "id": "1", "name": "read", "input": {"path": "a"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "x" * size, "is_error": True}
    told = [
        *HELLO,
        {"role": "assistant", "content": [made]},
        {"role": "user", "content": [result]},
    ]
    assert write_message(one, tools=[READ], messages=told).status_code == 200
    assert ('"tool_error"' in one.backend.prompts[0]) is said
    assert "x" * size in one.backend.prompts[0]


def test_a_stop_sequence_ends_a_message_and_is_named(serving: Any) -> None:
    told = write_message(serving("Rain. END of it"), stop_sequences=["END"]).json()
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")
    assert told["content"][0]["text"] == "Rain. "
