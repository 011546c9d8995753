"""The examples that begin a conversation: made from schemas, in every style, and read back."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_tools import builtin_tools
from mlx_tools.messages import FinalAnswer, ToolCall, ToolSpec
from mlx_tools.prompt import build_examples
from mlx_tools.prompt.opening import MAX_CALLS, MAX_WHOLE
from mlx_tools.protocol import ReadingRules, read
from mlx_tools.schema.validator import fits
from tests.prompt.conversations import WORDS
from tests.prompt.transcripts import STYLES

BUILTIN = builtin_tools(roots=()).specs()
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 2},
        "points": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "unit": {"enum": ["m", "km"]}},
                "required": ["x", "unit"],
            },
        },
    },
    "required": ["city", "points"],
}
IMPOSSIBLE = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}$"}},
    "required": ["code"],
}


def messages(turns: Any, style: Any = "jsonl") -> list[Any]:
    """The messages of the assistant's turns, read by the protocol's own reader."""
    said = [
        read(t["content"], rules=ReadingRules(style=style))
        for t in turns
        if t["role"] == "assistant"
    ]
    assert all(reading.clean and len(reading.messages) == 1 for reading in said)
    return [reading.messages[0] for reading in said]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("names", [["calculator"], ["clock", "format_xml"], list(BUILTIN)])
def test_a_model_that_is_not_weak_sees_one_answer_and_one_call(
    style: str, names: list[str]
) -> None:
    turns = build_examples(WORDS, [BUILTIN[name] for name in names], style)
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2
    answer, call = messages(turns, style)
    assert isinstance(answer, FinalAnswer)
    assert call.name == names[0]
    assert fits(dict(call.arguments), BUILTIN[call.name].parameters)


def test_without_a_tool_that_can_be_called_a_model_that_is_not_weak_sees_one_answer() -> None:
    for tools in ([], [ToolSpec("coded", "", IMPOSSIBLE)]):
        assert [type(m) for m in messages(build_examples(WORDS, tools, "jsonl"))] == [FinalAnswer]


@pytest.mark.parametrize("style", STYLES)
def test_a_weak_model_sees_a_whole_call_and_a_direct_answer(style: str) -> None:
    turns = build_examples(WORDS, [ToolSpec("weather", "", PLACE)], style, weak_model=True)
    assert [turn["role"] for turn in turns[:6]] == [
        *("user", "assistant", "observation", "assistant"),
        *("user", "assistant"),
    ]
    call, answer, direct, *_ = messages(turns, style)
    assert isinstance(call, ToolCall)
    assert isinstance(answer, FinalAnswer)
    assert isinstance(direct, FinalAnswer)
    assert call.name == "weather"
    assert call.arguments == {
        "city": WORDS.examples.samples["string"],
        "points": [{"x": 1, "unit": "m"}],
    }


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("names", [["calculator"], ["calculator", "clock"], list(BUILTIN)])
def test_every_call_that_is_shown_fits_its_tools_schema(style: str, names: list[str]) -> None:
    tools = [BUILTIN[name] for name in names]
    turns = build_examples(WORDS, tools, style, weak_model=True)
    calls = [m for m in messages(turns, style) if m.type != "final_answer"]
    assert {call.name for call in calls} <= set(names)
    assert len(calls) <= MAX_WHOLE + MAX_CALLS
    for call in calls:
        assert fits(dict(call.arguments), BUILTIN[call.name].parameters)


def test_the_last_thing_shown_is_a_call_where_a_tool_has_a_second_example() -> None:
    tools = [*BUILTIN.values()]
    assert isinstance(
        messages(build_examples(WORDS, tools, "jsonl", weak_model=True))[-1], ToolCall
    )


def test_without_tools_for_which_arguments_can_be_made_up_only_direct_answers_are_shown() -> None:
    said = messages(build_examples(WORDS, [], "jsonl", weak_model=True))
    assert [type(message) for message in said] == [FinalAnswer] * len(WORDS.examples.direct)
    tools = [ToolSpec("coded", "", IMPOSSIBLE), ToolSpec("weather", "", PLACE)]
    both, only = (
        messages(build_examples(WORDS, some, "jsonl", weak_model=True))
        for some in (tools, tools[:1])
    )
    assert {m.name for m in both if m.type == "tool_call"} == {"weather"}
    assert {type(message) for message in only} == {FinalAnswer}


def test_a_natural_example_that_does_not_fit_gives_way_to_one_from_the_schema() -> None:
    other = ToolSpec(
        "calculator",
        "",
        {
            "type": "object",
            "properties": {"formula": {"type": "string", "examples": ["1+1"]}},
            "required": ["formula"],
            "additionalProperties": False,
        },
    )
    _, first = messages(build_examples(WORDS, [other], "jsonl"))
    assert first.arguments == {"formula": "1+1"}


def test_the_natural_examples_fit_the_built_in_tools() -> None:
    every = builtin_tools().all_specs()  # those that want a folder or a package, too
    for name, examples in WORDS.examples.tools.items():
        assert examples[0].observation, name
        assert all(fits(one.arguments, every[name].parameters) for one in examples), name


def test_every_tool_for_files_is_shown_by_natural_examples() -> None:
    every = builtin_tools().all_specs()
    for name in ("file_access", "create_file", "edit_file", "search_files"):
        turns = build_examples(WORDS, [every[name]], "jsonl", weak_model=True)
        asked = [turn["content"] for turn in turns if turn["role"] == "user"]
        assert not any(name in question for question in asked), name
