"""Answers of chat interfaces, in all the shapes that servers give them, read as a turn's text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends.chat_wire import ChatCollector
from mlx_tools.backends.interface import Chunk
from mlx_tools.errors import BackendBroken, BackendError, BackendRefused
from mlx_tools.messages import ToolCall
from mlx_tools.protocol import ReadingRules, read
from tests.backends.asking import json_values
from tests.tables import table

RULES = ReadingRules(catalog={"weather": {}, "clock": {}})
PARIS = {"city": "Paris"}


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"delta": said, "finish_reason": finish}]}


def call(arguments: Any, index: int | None = 0, **more: Any) -> dict[str, Any]:
    name = more.pop("name", None)
    function = {"arguments": arguments} | ({"name": name} if name else {})
    found = {"function": function} | more
    return found if index is None else found | {"index": index}


def stream(*events: dict[str, Any], done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def turn(data: bytes, step: int = 0) -> tuple[str, Chunk]:
    """The text of a streamed answer that comes in pieces of so many bytes, and its end."""
    collector, texts = ChatCollector("http://there", 512), []
    step = step or len(data)
    for start in range(0, len(data), step):
        texts += collector.feed(data[start : start + step])
    if not collector.done:
        texts += collector.feed(None)
    last = collector.last()
    return "".join(texts) + last.text, last


def calls(text: str) -> list[tuple[str | None, str, Any]]:
    messages = read(text, "stop", RULES).messages
    return [(m.id, m.name, m.arguments) for m in messages if isinstance(m, ToolCall)]


TWO = stream(
    delta(role="assistant", content=None, reasoning_content="Paris,"),
    delta(reasoning_content=" then the time."),
    delta(content="Let me "),
    delta(content="look: ü😀."),
    delta(tool_calls=[call("", id="a1", name="weather")]),
    delta(tool_calls=[call('{"ci')]),
    delta(tool_calls=[call('ty": "Paris"}')]),
    delta(tool_calls=[call("{}", 1, id="a2", name="clock")]),
    delta("tool_calls"),
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 5},
        },
    },
)


def test_a_turn_is_its_thought_its_words_and_a_line_for_each_call() -> None:
    text, last = turn(TWO)
    assert text == (
        "<think>Paris, then the time.</think>\nLet me look: ü😀.\n"
        '{"type":"tool_call","id":"a1","name":"weather","arguments":{"city": "Paris"}}\n'
        '{"type":"tool_call","id":"a2","name":"clock","arguments":{}}\n'
    )
    assert last.finish_reason == "stop"
    assert last.usage is not None and last.usage.cached_tokens == 5
    assert calls(text) == [("a1", "weather", PARIS), ("a2", "clock", {})]


@table("step", range(1, 60))
def test_a_turn_is_the_same_however_its_bytes_are_split(step: int) -> None:
    assert turn(TWO, step) == turn(TWO)


def test_arguments_are_told_as_they_come() -> None:
    collector = ChatCollector("http://there", 512)
    told = list(collector.feed(stream(delta(tool_calls=[call("", name="weather")]), done=False)))
    told += collector.feed(stream(delta(tool_calls=[call('{"city":')]), done=False))
    assert told == ['{"type":"tool_call","name":"weather","arguments":', '{"city":']


SHAPES: dict[str, Sequence[dict[str, Any]]] = {
    "no index": [
        delta(tool_calls=[call('{"city":', None, id="a", name="weather")]),
        delta(tool_calls=[call('"Paris"}', None)]),
    ],
    "no id": [delta(tool_calls=[call('{"city":', name="weather"), call('"Paris"}')])],
    "arguments as an object": [delta(tool_calls=[call(PARIS, name="weather")])],
    "the name in every piece": [
        delta(tool_calls=[call('{"city":', name="weather", id="a")]),
        delta(tool_calls=[call('"Paris"}', name="weather", id="a")]),
    ],
    "no function within": [
        delta(tool_calls=[{"index": 0, "name": "weather", "arguments": '{"city":"Paris"}'}])
    ],
    "an id that is a number": [delta(tool_calls=[call(PARIS, id=7, name="weather")])],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_call_is_read_in_every_shape_that_servers_give_it(shape: str) -> None:
    text, _ = turn(stream(*SHAPES[shape], delta("tool_calls")))
    assert [(name, arguments) for _, name, arguments in calls(text)] == [("weather", PARIS)]


def test_calls_that_all_have_one_number_are_several() -> None:
    pieces = [delta(tool_calls=[call(PARIS, id=f"a{n}", name="weather")]) for n in range(3)]
    assert [key for key, _, _ in calls(turn(stream(*pieces, delta("stop")))[0])] == [
        "a0",
        "a1",
        "a2",
    ]


def test_calls_whose_pieces_are_mixed_are_kept_apart() -> None:
    mixed = stream(
        delta(tool_calls=[call('{"city":', 0, id="a", name="weather")]),
        delta(tool_calls=[call("{", 1, id="b", name="clock")]),
        delta(tool_calls=[call('"Paris"}', 0)]),
        delta(tool_calls=[call("}", 1)]),
        delta("tool_calls"),
    )
    assert calls(turn(mixed)[0]) == [("a", "weather", PARIS), ("b", "clock", {})]


@pytest.mark.parametrize("begins", ["", " ", None])
def test_arguments_that_come_after_the_next_call_began_are_not_lost(begins: str | None) -> None:
    mixed = stream(
        delta(tool_calls=[call(begins, 0, id="a", name="weather")]),
        delta(tool_calls=[call(begins, 1, id="b", name="clock")]),
        delta(tool_calls=[call('{"city":"Paris"}', 0)]),
        delta("tool_calls"),
    )
    assert calls(turn(mixed)[0]) == [("a", "weather", PARIS), ("b", "clock", {})]


def test_calls_that_the_server_kept_to_itself_are_told_by_the_finish_reason() -> None:
    text, last = turn(stream(delta(content=None), delta("tool_calls")))
    assert (text, last.finish_reason) == ("", "tool_calls")


def test_a_call_that_was_cut_off_stays_open() -> None:
    text, last = turn(
        stream(delta(tool_calls=[call('{"city":"Par', name="weather")]), delta("length"))
    )
    assert text.endswith('{"city":"Par')
    assert read(text, last.finish_reason or "stop", RULES).error is not None


def test_an_answer_that_comes_whole_is_read_as_one_that_is_streamed() -> None:
    message = {
        "content": "Let me look.",
        "reasoning": "hm",
        "tool_calls": [{"id": "a", "type": "function", **call('{"city":"Paris"}', name="weather")}],
    }
    answer = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    chunk = ChatCollector("http://there", 512).take_whole(json.dumps(answer).encode())
    assert chunk.text.startswith("<think>hm</think>\nLet me look.\n")
    assert calls(chunk.text) == [("a", "weather", PARIS)]


def test_an_error_in_the_stream_is_the_servers_own() -> None:
    with pytest.raises(BackendRefused, match="out of memory"):
        turn(stream(delta(content="a"), {"error": {"message": "out of memory"}}))
    with pytest.raises(BackendBroken):
        turn(stream(delta(content="a"), done=False))


VALUES = json_values(
    "index", "id", "function", "name", "arguments", "tool_calls", "content", "text"
)


@given(st.lists(VALUES, max_size=5), st.sampled_from(["stop", "length", "tool_calls", None]))
def test_no_delta_raises_anything_but_our_errors(values: list[Any], finish: str | None) -> None:
    events = [{"choices": [{"delta": value, "finish_reason": None}]} for value in values]
    try:
        turn(stream(*events, delta(finish)))
    except BackendError as error:
        assert error.message


@pytest.mark.parametrize("piece", [lambda n: call("[" * 999, 1), lambda n: call("", n, name="x")])
def test_what_waits_behind_an_open_call_is_bounded_too(piece: Any) -> None:
    collector = ChatCollector("http://there", 16)
    list(collector.feed(stream(delta(tool_calls=[call('{"a', 0, name="weather")]), done=False)))
    with pytest.raises(BackendBroken, match="far more"):
        for number in range(1, 9_999):
            list(collector.feed(stream(delta(tool_calls=[piece(number)]), done=False)))
