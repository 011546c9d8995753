"""Every kind of item, block and part that the clients' own types know can stand in a history."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest

from mlx_tools.gateway.anthropic_messages import read_anthropic_messages
from mlx_tools.gateway.chat_completions import read_chat_completion
from mlx_tools.gateway.request import ApiError, TurnRequest
from mlx_tools.gateway.responses import read_responses
from scripts.client_kinds import KINDS, render_client_kinds
from tests.gateway.conftest import chat, respond, write_message
from tests.tables import table

CANNOT_BE_TOLD = frozenset({"item_reference"})
"""Kinds that name what only another server keeps: the one 400 that is left."""


@cache
def kinds_of(interface: str) -> tuple[Any, ...]:
    """Items or messages of every kind that the interface's own types know."""
    return tuple(json.loads(KINDS.read_text())[interface])


def read_items(found: list[Any]) -> TurnRequest:
    body = {"model": "m", "input": [*found, {"role": "user", "content": "Go on."}]}
    return read_responses(body, new_id=lambda: "x", now=lambda: 0.0)[0]


def read_blocks(blocks: list[Any], role: str = "user") -> TurnRequest:
    return read_claude([{"role": role, "content": [block]} for block in blocks])


def read_claude(found: list[Any]) -> TurnRequest:
    messages = [*found, {"role": "user", "content": "Go on."}]
    body = {"model": "m", "max_tokens": 9, "messages": messages}
    return read_anthropic_messages(body, new_id=lambda: "x")[0]


def read_messages(found: list[Any]) -> TurnRequest:
    body = {"model": "m", "messages": [*found, {"role": "user", "content": "Go on."}]}
    return read_chat_completion(body, new_id=lambda: "x", now=lambda: 0.0)[0]


def is_reference(item: Any) -> bool:
    """Return whether it is an item that only another server keeps, whose type may be missing."""
    kind = item.get("type", "item_reference" if "role" not in item else "message")
    return kind in CANNOT_BE_TOLD or kind is None


# --- what they come to ---


@pytest.mark.slow  # the types take seconds to be imported
def test_the_kinds_are_those_of_the_clients_types() -> None:
    assert KINDS.read_text() == render_client_kinds()


def test_many_kinds_are_known() -> None:
    kinds = {item.get("type") for item in kinds_of("responses")}
    assert kinds >= {"custom_tool_call", "local_shell_call", "web_search_call", "mcp_call"}
    assert len(kinds) > 25
    blocks = [message["content"][0] for message in kinds_of("messages") if message["content"]]
    assert len({block["type"] for block in blocks if isinstance(block, dict)}) > 15
    assert {m["role"] for m in kinds_of("chat")} >= {"system", "user", "assistant", "tool"}


def test_every_kind_of_item_is_read_and_only_a_reference_cannot_be_told() -> None:
    for item in kinds_of("responses"):
        if is_reference(item):
            with pytest.raises(ApiError) as refused:
                read_items([item])
            assert refused.value.param == "input[0].type"
        else:
            read_items([item])


def test_every_kind_of_block_and_message_is_read() -> None:
    for message in kinds_of("messages"):
        read_claude([message])
    for message in kinds_of("chat"):
        read_messages([message])


@pytest.mark.parametrize("seed", range(5))
def test_all_kinds_in_any_order_are_a_conversation_that_a_model_can_go_on_with(
    serving: Any, seed: int
) -> None:
    chosen = random.Random(seed)
    items = [item for item in kinds_of("responses") if not is_reference(item)]
    one, last = serving(*["Fine."] * 3), {"role": "user", "content": "Go on."}
    said = [
        respond(one, input=chosen.sample(items, 50)),
        write_message(one, messages=[*chosen.choices(kinds_of("messages"), k=50), last]),
        chat(one, messages=[*chosen.choices(kinds_of("chat"), k=20), last]),
    ]
    for response in said:
        assert response.status_code == 200, response.text
        assert "Fine." in response.text


# --- what of them is told ---


def test_a_call_of_any_kind_is_told_by_name_and_text_and_named() -> None:
    turn = read_items(
        [
            {
                "type": "web_search_call",
                "id": "w",
                "status": "completed",
                "action": {"type": "search", "query": "rain"},
            },
            {
                "type": "mcp_call",
                "id": "m",
                "server_label": "files",
                "name": "read",
                "arguments": '{"path":"a"}',
                "output": "CONTENT",
            },
            {"type": "local_shell_call", "id": "l", "call_id": "l1", "status": "completed",
             "action": {"type": "exec", "command": ["ls", "-l"], "env": {}}},
            {"type": "local_shell_call_output", "id": "l1", "output": "total 0"},
        ]
    )  # fmt: skip
    calls = [call for message in turn.messages for call in message.calls]
    assert [call.name for call in calls] == ["web_search", "files_read", "local_shell"]
    assert json.loads(calls[0].arguments) == {"type": "search", "query": "rain"}
    assert json.loads(calls[1].arguments) == {"path": "a"}
    assert json.loads(calls[2].arguments)["command"] == ["ls", "-l"]
    results = [m.content for m in turn.messages if m.role == "tool"]
    assert results == ["completed", "CONTENT", "total 0"]
    assert set(turn.left_out) >= {"web_search_call", "mcp_call", "local_shell_call"}


def test_calls_and_results_of_a_server_in_one_message_are_told_in_their_order() -> None:
    turn = read_blocks(
        [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [
                {"type": "web_search_result", "title": "Rome", "url": "https://x.org",
                 "encrypted_content": "SECRET"}]},
            {"type": "text", "text": "Found."},
        ],
        "assistant",
    )  # fmt: skip
    roles = [message.role for message in turn.messages]
    assert roles == ["assistant", "tool", "assistant", "user"]
    assert turn.messages[0].calls[0].name == "web_search"
    assert "Rome" in turn.messages[1].content and "https://x.org" in turn.messages[1].content
    assert "SECRET" not in str(turn.messages)
    assert "server_tool_use" in turn.left_out


PICTURE = "iVBORw0KGgo" * 1000


@table(
    ("block", "line"),
    [
        (
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
            "[a picture of 8 kB was left out: this model reads text]",
        ),
        (
            {"type": "input_image", "image_url": "https://x.org/a.png", "detail": "auto"},
            "[a picture was left out: this model reads text]",
        ),
        (
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": PICTURE},
            },
            "[a picture of 8 kB was left out: this model reads text]",
        ),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": PICTURE},
            '[a file "a.pdf" of 8 kB was left out: this model reads text]',
        ),
        (
            {"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}},
            "[a sound of 8 kB was left out: this model reads text]",
        ),
        (
            {
                "type": "document",
                "title": "Notes",
                "source": {"type": "text", "media_type": "text/plain", "data": "The text."},
            },
            "Notes\nThe text.",
        ),
        (
            {
                "type": "search_result",
                "source": "https://x.org",
                "title": "T",
                "content": [{"type": "text", "text": "found"}],
            },
            "https://x.org\nT\nfound",
        ),
        ({"type": "tool_reference", "tool_name": "get_weather"}, "get_weather"),
    ],
)
def test_what_is_no_text_is_one_line_in_a_message_and_in_a_result(block: Any, line: str) -> None:
    turns = [
        read_items([{"role": "user", "content": [block]}]),
        read_items([{"type": "function_call_output", "call_id": "c", "output": [block]}]),
        read_blocks([block]),
        read_blocks([{"type": "tool_result", "tool_use_id": "c", "content": [block]}]),
        read_messages([{"role": "user", "content": [block]}]),
    ]
    for turn in turns:
        assert turn.messages[0].content == line
        assert turn.left_out == (block["type"],)


def test_a_summary_is_told_and_what_is_encrypted_or_a_marker_is_left_out() -> None:
    turn = read_items(
        [
            {"type": "compaction", "encrypted_content": "SECRET"},
            {"type": "compaction_trigger"},
            {"type": "context_summary", "summary": [{"type": "summary_text", "text": "So far."}]},
        ]
    )
    assert [message.content for message in turn.messages] == ["So far.", "Go on."]
    assert turn.left_out == ("compaction", "compaction_trigger", "context_summary")
    turn = read_blocks([{"type": "compaction", "content": "So far."}], "assistant")
    assert turn.messages[0].content == "So far."


def test_tools_that_an_item_offers_can_be_called(serving: Any) -> None:
    tool = {"type": "function", "name": "late", "parameters": {"type": "object"}}
    for kind in ("additional_tools", "tool_search_output"):
        item = {"type": kind, "role": "developer", "call_id": "c", "tools": [tool, tool]}
        one = serving('{"type":"tool_call","name":"late","arguments":{}}')
        response = respond(one, input=[item, {"role": "user", "content": "Go."}], tools=[tool])
        assert response.json()["output"][0]["name"] == "late"
