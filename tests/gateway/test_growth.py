"""Counts that a client chooses: work grows with them and no faster, and they have bounds."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mlx_tools.controller import prior_from_messages
from mlx_tools.gateway.body import MAX_MESSAGES, MAX_PARTS, MAX_STOPS, MAX_TOOLS
from mlx_tools.gateway.conversation import WaitingCalls
from mlx_tools.gateway.exchange import LARGE, left_out_headers, read_json
from mlx_tools.gateway.responses import read_responses
from mlx_tools.messages import ToolSpec
from mlx_tools.prompt import build_catalog
from mlx_tools.schema import read_lenient_schema
from mlx_tools.transcript import (
    ObservationRecord,
)
from tests.gateway.conftest import WEATHER, send

pytestmark = pytest.mark.anyio


class Counted(str):
    """A text that counts how often one of its kind is compared or hashed."""

    uses = 0

    def __hash__(self) -> int:
        Counted.uses += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Counted.uses += 1
        return super().__eq__(other)


def uses_of(work: Callable[[], object]) -> int:
    Counted.uses = 0
    work()
    return Counted.uses


def test_hiding_tools_looks_at_each_name_a_few_times() -> None:
    tools = [ToolSpec(name=Counted(f"tool_{number}")) for number in range(500)]
    found = build_catalog(tools, budget=200)
    assert len(found.hidden_names) > 400
    assert uses_of(lambda: build_catalog(tools, budget=200)) < 5 * len(tools)


@pytest.mark.parametrize("known", ["from the last on", "no id at all", "one id"])
def test_a_result_finds_its_call_at_once(known: str) -> None:
    ids = [Counted("x" if known == "one id" else f"x{number}") for number in range(500)]
    waiting = WaitingCalls((id_, f"c{number}") for number, id_ in enumerate(ids))
    order = [Counted("?")] * 500 if known == "no id at all" else ids[::-1]
    keys: list[str] = []
    assert uses_of(lambda: keys.extend(map(waiting.take, order))) < 10 * len(ids)
    expected = [f"c{number}" for number in range(500)]
    assert keys == (expected[::-1] if known == "from the last on" else expected)
    assert len(waiting) == 0


def test_results_of_several_calls_with_one_id_are_taken_in_order() -> None:
    waiting = WaitingCalls([("a", "c1"), ("b", "c2"), ("a", "c3"), ("d", "c4")])
    assert [waiting.take(id_) for id_ in ("a", "?", "a", "a")] == ["c1", "c2", "c3", "c4"]


def test_results_before_a_run_find_their_calls_at_once() -> None:
    calls = [
        {"id": f"x{n}", "function": {"name": "f", "arguments": "{}"}, "type": "function"}
        for n in range(300)
    ]
    results = [{"role": "tool", "content": str(n)} for n in range(300)]
    said = prior_from_messages(
        [{"role": "assistant", "content": "", "tool_calls": calls}, *results]
    ).records
    observed = [one for one in said if isinstance(one, ObservationRecord)]
    assert [one.content for one in observed] == [str(n) for n in range(300)]
    assert [one.id for one in observed] == [f"x{n}" for n in range(300)]


# --- bounds ---------------------------------------------------------------------------------------

USER = {"role": "user", "content": "Hi"}
NAMED = {"type": "function", "name": "f", "parameters": {}}
LIMITED = {"model": "scripted", "max_tokens": 9}
TEXT = {"type": "text", "text": "a"}
CALLING = {"role": "assistant", "content": None}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": [USER] * (MAX_MESSAGES + 1)}, "messages"),
        ("chat/completions", {"messages": [USER], "tools": [WEATHER] * (MAX_TOOLS + 1)}, "tools"),
        ("responses", {"input": [USER] * (2 * MAX_MESSAGES + 1)}, "input"),
        ("responses", {"input": "Hi", "tools": [NAMED] * (MAX_TOOLS + 1)}, "tools"),
        (
            "responses",
            {
                "input": "Hi",
                "tools": [
                    {
                        "type": "namespace",
                        "name": f"n{half}",
                        "tools": [NAMED | {"name": f"f{n}"} for n in range(MAX_TOOLS // 2 + 1)],
                    }
                    for half in range(2)
                ],
            },
            "tools",
        ),
        ("messages", LIMITED | {"messages": [USER] * (MAX_MESSAGES + 1)}, "messages"),
        (
            "messages",
            LIMITED | {"messages": [USER], "tools": [{"name": "f"}] * (MAX_TOOLS + 1)},
            "tools",
        ),
        (
            "chat/completions",
            {"messages": [USER | {"content": [TEXT] * (MAX_PARTS + 1)}]},
            "content",
        ),
        (
            "chat/completions",
            {"messages": [USER, CALLING | {"tool_calls": [CALL] * (MAX_PARTS + 1)}]},
            "tool_calls",
        ),
        (
            "chat/completions",
            {"messages": [USER, *[CALLING | {"tool_calls": [CALL] * (MAX_PARTS // 4)}] * 4]},
            "messages and calls",
        ),
        (
            "messages",
            LIMITED | {"messages": [USER | {"content": [TEXT] * (MAX_PARTS + 1)}]},
            "content",
        ),
        (
            "messages/count_tokens",
            LIMITED
            | {
                "messages": [
                    USER,
                    *[{"role": "assistant", "content": [USE] * (MAX_PARTS // 4)}] * 4,
                ]
            },
            "messages and calls",
        ),
        ("chat/completions", {"messages": [USER], "stop": ["a"] * (MAX_STOPS + 1)}, "stop"),
        ("completions", {"prompt": "Hi", "stop": ["a"] * (MAX_STOPS + 1)}, "stop"),
        (
            "messages",
            LIMITED | {"messages": [USER], "stop_sequences": ["a"] * (MAX_STOPS + 1)},
            "stop_sequences",
        ),
        (
            "responses",
            {
                "input": "Hi",
                "tools": [NAMED],
                "tool_choice": {"type": "allowed_tools", "tools": [NAMED] * (MAX_TOOLS + 1)},
            },
            "tool_choice",
        ),
    ],
)
def test_too_many_of_anything_are_refused_by_name(
    serving: Any, path: str, body: dict[str, Any], param: str
) -> None:
    got = send(serving("never"), "POST", f"/v1/{path}", body)
    assert (got.status_code, param in got.json()["error"]["message"]) == (400, True), got.text


def test_a_header_is_made_of_no_more_names_than_it_has_room_for() -> None:
    names: Any = ["a"] * 10_000 + [None]  # whoever looks at the last one fails
    assert left_out_headers(names)["x-mlx-tools-left-out"].startswith("a, a, a")


def test_each_kind_of_hosted_tool_is_named_once(serving: Any) -> None:
    body = {"messages": [USER], "tools": [WEATHER, *[{"type": "web_search"}] * 3]}
    got = send(serving("Hi."), "POST", "/v1/chat/completions", body)
    assert got.headers["x-mlx-tools-left-out"] == "tools.web_search"


# --- the event loop -------------------------------------------------------------------------------


LONG = "x" * (LARGE + 1)


@pytest.mark.parametrize(
    ("body", "in_thread"),
    [
        ({"a": "x"}, False),
        ({"a": LONG}, True),
        ({"messages": [USER | {"content": LONG}]}, False),
        ({"messages": [USER | {"content": [{"text": LONG}]}]}, True),
        ({"messages": [USER] * LARGE}, True),
        ({"messages": LONG}, True),
        ({"messages": [LONG]}, True),
    ],
    ids=["short", "long", "long text", "parts", "many", "no list", "no message"],
)
async def test_a_body_of_which_much_is_no_text_of_messages_is_read_in_a_thread(
    body: dict[str, Any], in_thread: bool
) -> None:
    threads: list[int] = []

    def read(body: dict[str, Any]) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return body

    assert await read_json(json.dumps(body).encode(), read) == body
    assert (threads != [threading.get_ident()]) is in_thread


def python_calls(work: Callable[[], object]) -> int:
    """The Python functions that are called in some work: a measure of time that no load changes."""
    count = 0

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(count_call)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def schema_of_references(count: int) -> dict[str, Any]:
    members = {f"m{n}": {"$ref": f"#/components/schemas/s{n}"} for n in range(count)}
    found = {f"s{n}": {"type": "STRING", "nullable": True} for n in range(count)}
    return {"properties": members, "components": {"schemas": found}}


def schema_of_circles(count: int) -> dict[str, Any]:
    return {"properties": {f"m{n}": {"$ref": f"#/properties/m{n}"} for n in range(count)}}


def schema_of_faults(count: int) -> dict[str, Any]:
    faulty = {"oneOf": [{"pattern": "("}, {"type": 5}], "not": {"enum": 5}, "required": [1]}
    return {"properties": {f"m{n}": faulty for n in range(count)}}


def items_of(count: int) -> dict[str, Any]:
    kinds: list[Any] = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "q"}},
        {"type": "local_shell_call_output", "id": "gone", "output": "x"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png,AAAA"}]},
    ]
    return {"input": [kinds[n % 4] | {"x": n} for n in range(count)]}


def odd_tools(count: int) -> dict[str, Any]:
    tools = [
        {"type": "function", "name": f"tool/{n}", "parameters": {"type": "x"}} for n in range(count)
    ]
    return {"input": "a", "tools": tools}


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (schema_of_references, lambda schema: read_lenient_schema(schema)),
        (schema_of_circles, lambda schema: read_lenient_schema(schema)),
        (schema_of_faults, lambda schema: read_lenient_schema(schema)),
        (items_of, lambda body: read_responses(body, new_id=lambda: "x", now=lambda: 0.0)),
        (odd_tools, lambda body: read_responses(body, new_id=lambda: "x", now=lambda: 0.0)),
    ],
)
@pytest.mark.heavy
def test_reading_what_a_client_sends_takes_time_that_grows_as_its_length(
    make: Callable[[int], Any], read: Callable[[Any], object]
) -> None:
    small, large = make(100), make(400)
    read(make(3))  # what is loaded and cached once
    assert python_calls(lambda: read(large)) < 6 * python_calls(lambda: read(small))
