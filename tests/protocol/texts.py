"""Texts as models write them: valid, broken and hostile, and mixtures of all."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import strategies as st

from mlx_tools.messages import FinishReason
from mlx_tools.protocol import DIALECTS, Reader, Reading, ReadingRules

REPAIRS = (
    *("single_quotes", "python_literal", "trailing_comma", "missing_comma", "unquoted_key"),
    *("raw_newline", "raw_control", "comment", "invalid_escape", "inline", "missing_closers"),
    *("envelope_alias", "arguments_string", "missing_arguments", "id_string", "tool_name"),
    *("dialect", "noise", "empty_arguments"),
)
COERCIONS = (
    *("coerced_integer", "coerced_number", "coerced_boolean", "wrapped_list", "dropped_null"),
    *("coerced_text", "coerced_case", "coerced_json"),
)
"""All that may be done to a call, as docs/protocol.md names it."""

CALL = '{"type":"tool_call","name":"calculator","arguments":{"expression":"17 * 23"}}'
OTHER_CALL = '{"type":"tool_call","name":"clock","arguments":{"timezone":"Europe/Rome"}}'
ANSWER = '{"type":"final_answer","content":"17 times 23 is 391."}'
OBSERVATION = '{"type":"tool_observation","name":"calculator","content":"391"}'

MESSAGES = (
    *(CALL, OTHER_CALL, ANSWER, OBSERVATION),
    '{"type":"final_answer","content":"ok é \\u00e9 \\ud83d\\ude00 \\n </think> } ```"}',
    '{"content":"hi","type":"final_answer","sources":[1]}',
    '{"id":"1","type":"tool_call","name":"b","arguments":{"p":[1,{"q":null}]}}',
    *('{"type":"tool_call","name":"a"}', '{"name":"a","arguments":{"k":"v"}}'),
    '{"name":"a","parameters":{"k":"v"}}',
    '{"type":"function","function":{"name":"a","arguments":"{\\"k\\":1}"}}',
    *('{"type":"tool_call","name":"a","arguments":"{\\"k\\":1}"}', '{"name":"Alice"}', '{"a": 1}'),
)

BROKEN = (
    "{'type': 'tool_call', 'name': 'a', 'arguments': {'x': True, 'y': [1, 2,], 'z': 'it\\'s'}}",
    '{type: "final_answer", content: "x"}',
    '{"type":"tool_call" "name":"c" "arguments":{"a":["x" "y"]}}',
    '{"type":"final_answer","content":"a\\d \\( \\u12 \nraw\ttab"}',
    '{"type":"tool_call","name":"c", // why\n"arguments":{/* x */"k":1}}',
    '{"type":"tool_call","name":"x","arguments":{"a":1e999}}',
    '{"type":"tool_call","name":"x","arguments":{"a":"\\ud800"}}',
    '{"type":"tool_call","name":"x","arguments":{"a":NaN}}',
    '{"type":"tool_call","name":"x","name":"y","arguments":{}}',
    '{"type":"final_answer","content":"He said "no" to me"}',
    '{"name": ...}',
    '{"type" "tool_call"}',
)

FRAGMENTS = (
    *("\n", "\n\n", " ", "\t", "\r", "\u2028", "\x85", "\x00", "é", "😀", "\ud800"),
    *("```json\n", "```", "\n```\n", "~~~", "```json ", "`", "``"),
    *("<think>", "</think>", "[THINK]", "<|channel|>analysis<|message|>", "◁think▷", "<t", "<"),
    *("<tool_call>", "</tool_call>", "<final_answer>", "</final_answer>", "<tool_", "</"),
    *("<tool_response>", "</tool_response>", "[", "]", ",", "- ", "1. ", "* ", "12", "-"),
    *("hello world", "The set {a, b}", "\\frac{1}{2}", "{ return 5; }", '{"name", "age"}'),
    *(
        *("{", "}", "{ ", "{}", "{a", "{a:", '{"a"', '{"a" ', '{"type":', '{"type', '{"ty', "{'"),
        "{//",
    ),
    *(mark for one in DIALECTS for mark in (one.open, one.close)),
    *("get_weather", '"city"', "Paris", "(", ")", "=", ":", ";", "<arg_key>", "</arg_key>"),
    *("<arg_value>", "</arg_value>", "<parameter=city>", "</parameter>", "call:", "to="),
    *("Action Input:", "Observation:", "<|message|>", "</s>"),
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
    *("{/*", '"', "'", "\\", "//", "/*", "*/", "#", "true", "None", ": ", "\\u00", "\\ud83d"),
)

PREFIXES = (
    *("", '{"type":"tool_call","name":"', '{"type":"tool_call","name":"calculator","arguments":{'),
    *('{"type":"final_answer","content":"', '```json\n{"type":"tool_call","name":"'),
    *('<tool_call>{"name":"', "<final_answer>"),
)


@st.composite
def _damaged(draw: st.DrawFn) -> str:
    """A message that lost its end, lost a character, or got something in its middle."""
    text = draw(st.sampled_from(MESSAGES + BROKEN))
    at = draw(st.integers(0, len(text)))
    how = draw(st.sampled_from(("cut", "lost", "put")))
    if how == "cut":
        return text[:at]
    if how == "lost":
        return text[:at] + text[at + 1 :]
    return text[:at] + draw(st.sampled_from(FRAGMENTS)) + text[at:]


def mixtures() -> st.SearchStrategy[str]:
    """Anything a model may write, one thing after the other."""
    piece = st.one_of(
        st.sampled_from(MESSAGES),
        st.sampled_from(BROKEN),
        st.sampled_from(FRAGMENTS),
        st.sampled_from(("\n", "\n", ",", " ")),
        _damaged(),
        st.text(max_size=8),
    )
    return st.lists(piece, max_size=8).map("".join)


def rules() -> st.SearchStrategy[ReadingRules]:
    """Rules of every kind."""
    return st.builds(
        ReadingRules,
        style=st.sampled_from(("jsonl", "markdown-json", "xml")),
        prefix=st.sampled_from(PREFIXES),
        in_thought=st.booleans(),
        max_calls=st.sampled_from((None, None, 1, 2)),
        tool_choice=st.sampled_from(("auto", "auto", "required", "none", "calculator")),
        catalog=st.sampled_from(({}, {"get_weather": {}}, {"a": {}, "calculator": {}})),
        mutates=st.sampled_from((lambda name, arguments: True, lambda name, arguments: False)),
        reasoning_markers=st.sampled_from(
            (
                ReadingRules().reasoning_markers,
                ReadingRules().reasoning_markers,
                (("<t>", "</t>"), ("<t>x", "</t>zz"), ("ab", "b"), ("|", "|")),
                (),
            )
        ),
    )


REASONS = st.sampled_from(("stop", "stop", "length", "tool_calls"))

CALL_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\b\f")
"""All but the control characters that a call may not hold (rule 7)."""

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(CALL_CHARACTERS, max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(CALL_CHARACTERS, max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)

arguments = st.dictionaries(st.text(CALL_CHARACTERS, max_size=6), json_values, max_size=4)


def streamed(
    text: str,
    rules: ReadingRules | None = None,
    reason: FinishReason = "stop",
    sizes: tuple[int, ...] = (1,),
) -> Reading:
    """The reading of a text that comes in pieces of these sizes, in turn."""
    reader, pos = Reader(rules or ReadingRules()), 0
    for size in itertools.cycle(sizes):
        if pos >= len(text):
            return reader.finish(reason)
        reader.feed(text[pos : pos + size])
        pos += size
    raise AssertionError


def one_line(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
