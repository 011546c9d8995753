"""A call cut off anywhere is never another call, and never one that changes things unasked."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import FinishReason, ToolCall
from mlx_tools.protocol import ReadingRules, Style, read, write_call
from tests.protocol.texts import arguments

STYLES = st.sampled_from(("jsonl", "markdown-json", "xml"))
REASONS: tuple[FinishReason, ...] = ("stop", "length")


def calls_of(text: str, reason: FinishReason, rules: ReadingRules) -> list[tuple[str, Any]]:
    messages = read(text, reason, rules).messages
    return [(m.name, m.arguments) for m in messages if isinstance(m, ToolCall)]


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
    for at, reason in product(range(text.rstrip("]\n").rfind("}") + 1), REASONS):
        assert calls_of(text[:at], reason, ReadingRules()) == [], at


@given(arguments, STYLES, st.sampled_from(("t", "tu")))
def test_every_cut_of_any_calls(given_arguments: dict[str, Any], style: Style, names: str) -> None:
    text = "\n".join(write_call(name, given_arguments, "c1", style) for name in names)
    whole = [(name, given_arguments) for name in names]
    rules = ReadingRules(style=style)
    assert calls_of(text, "stop", rules) == whole
    for at, reason in product(range(len(text)), REASONS):
        found = calls_of(text[:at], reason, rules)
        assert found == whole[: len(found)], at
        is_early = 0 < len(found) < len(whole) and "{" in text[:at].rpartition("}")[2]
        assert not is_early, at


@given(arguments, STYLES)
def test_a_read_only_call_cut_off_keeps_no_half_value(
    given_arguments: dict[str, Any], style: Style
) -> None:
    text = write_call("t", given_arguments, style=style)
    rules = ReadingRules(style=style, mutates=lambda name, args: False)
    for at in range(len(text)):
        for _, found in calls_of(text[:at], "stop", rules):
            kept = list(found.items())
            assert kept[:-1] == list(given_arguments.items())[: len(kept) - 1] or not kept
            assert not kept or kept[-1][0] in given_arguments
