"""A call cut off anywhere is never another call, and never one that changes things unasked."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import FinishReason, ToolCall
from mlx_tools.protocol import ReadingRules, Style, read, write_call
from tests.protocol.texts import arguments

STYLES: tuple[Style, ...] = ("jsonl", "markdown-json", "xml")


def wrong_cuts(text: str, whole: list[Any], rules: ReadingRules) -> list[int]:
    """Where the text, which has all the calls, can be cut so that other than a beginning of them is
    read, or one freely that is not all there."""
    uncut = [m for m in read(text, "stop", rules).messages if isinstance(m, ToolCall)]
    wrong = [] if [(call.name, call.arguments) for call in uncut] == whole else [len(text)]
    for at, reason in itertools.product(range(len(text)), ("stop", "length")):
        finish: FinishReason = "stop" if reason == "stop" else "length"
        reading = read(text[:at], finish, rules)
        calls = [m for m in reading.messages if isinstance(m, ToolCall)]
        others = [(call.name, call.arguments) for call in calls] != whole[: len(calls)]
        early = 0 < len(calls) < len(whole) and "{" in text[:at].rpartition("}")[2]
        if others or early:
            wrong.append(at)
    return wrong


@pytest.mark.parametrize(
    "text",
    [
        "{'type': 'tool_call', 'name': 't', 'arguments': {'a': 'it\\'s', 'b': True, },}",
        '{"name":"t","arguments":{"a":"b"}}',
        '[{"type":"tool_call","name":"t","arguments":{"a":"b"}}]',
        'Sure: {"type":"tool_call","name":"t","arguments":{"a":"b"}}',
        '{"type":"tool_call","name":"t","arguments":"{\\"a\\":\\"b\\"}"}',
        '{\n  "type": "tool_call",\n  "name": "t",\n  "arguments": {\n    "a": "b"\n  }\n}\n',
        '{"type":"tool_call","name":"t"}',
    ],
)
def test_no_cut_of_a_call_in_another_form_is_a_call(text: str) -> None:
    end = text.rstrip("]\n").rfind("}")
    for at, reason in itertools.product(range(end + 1), ("stop", "length")):
        finish: FinishReason = "stop" if reason == "stop" else "length"
        assert not any(isinstance(m, ToolCall) for m in read(text[:at], finish).messages), at


@given(arguments, st.sampled_from(STYLES), st.sampled_from(("t", "tu")))
def test_every_cut_of_any_calls(given_arguments: dict[str, Any], style: Style, names: str) -> None:
    text = "\n".join(write_call(name, given_arguments, "c1", style) for name in names)
    whole = [(name, given_arguments) for name in names]
    assert wrong_cuts(text, whole, ReadingRules(style=style)) == []


@given(arguments, st.sampled_from(STYLES))
def test_a_read_only_call_cut_off_keeps_no_half_value(
    given_arguments: dict[str, Any], style: Style
) -> None:
    text = write_call("t", given_arguments, style=style)
    rules = ReadingRules(style=style, mutates=lambda name, args: False)
    for at in range(len(text)):
        for message in read(text[:at], "stop", rules).messages:
            if isinstance(message, ToolCall):
                kept = list(message.arguments.items())
                assert kept[:-1] == list(given_arguments.items())[: len(kept) - 1] or not kept
                assert not kept or kept[-1][0] in given_arguments
