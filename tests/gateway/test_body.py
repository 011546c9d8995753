"""A client's body is read strictly, and one error names one field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.gateway.body import (
    Body,
    Choice,
    SamplingBody,
    answer_schema,
    check_names,
    json_object,
    read,
    text_of,
    tool_spec,
    unknown_fields,
    usable_name,
)
from mlx_tools.gateway.request import ApiError
from mlx_tools.messages import TOOL_NAME, ToolSpec


class Part(Body):
    text: str


class Whole(SamplingBody):
    parts: list[Part]
    stop: str | list[str] | None = None


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({}, "parts"),
        ({"parts": 1}, "parts"),
        ({"parts": [{"text": "a"}, {"text": 1}]}, "parts[1].text"),
        ({"parts": [{}]}, "parts[0].text"),
        ({"parts": [], "temperature": "1"}, "temperature"),
        ({"parts": [], "temperature": 3}, "temperature"),
        ({"parts": [], "seed": True}, "seed"),
        ({"parts": [], "seed": 10**30}, "seed"),
        ({"parts": [], "stop": 5}, "stop"),
    ],
)
def test_the_field_that_is_wrong_is_named(value: Any, param: str) -> None:
    with pytest.raises(ApiError) as told:
        read(Whole, value)
    assert (told.value.status, told.value.param) == (400, param)
    assert param in str(told.value)


def test_a_part_of_no_kind_is_text() -> None:
    assert text_of([{"text": "a"}, {"type": None, "text": "b"}], "content") == "a\nb"


def test_a_part_of_another_kind_is_refused_though_it_has_a_text() -> None:
    with pytest.raises(ApiError) as refused:
        text_of([{"text": "a"}, {"type": "image", "text": "b"}], "content")
    assert (refused.value.status, refused.value.param) == (400, "content[1].type")


def test_what_is_sampled_with_goes_on_as_it_came_and_nothing_else_does() -> None:
    body = read(Whole, {"parts": [], "temperature": 0, "top_p": None, "min_p": 0.1, "extra": 1})
    assert body.sampling() == {"temperature": 0, "min_p": 0.1}
    assert unknown_fields(body, ()) == ("extra",)
    assert unknown_fields(body, {"extra"}) == ()


DEEP = f'{{"a": {"[" * 100_000}{"]" * 100_000}}}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"a": "\\ud800"}', '{"a": NaN}', '{"a": [1e999]}'),
        pytest.param(DEEP, id="deep"),
    ],
)
def test_what_is_no_object_that_can_be_written_again_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as told:
        json_object(text, "the body is")
    assert told.value.status == 400


@given(st.text(min_size=1), st.text())
def test_every_name_of_a_client_becomes_one_that_a_tool_may_have(name: str, space: str) -> None:
    known = usable_name(name, space)
    assert TOOL_NAME.fullmatch(known)
    assert known == usable_name(name, space)


def test_names_that_differ_only_where_they_are_cut_stay_apart() -> None:
    assert usable_name("a" * 65) != usable_name("a" * 66)
    assert usable_name("é") != usable_name("è")
    assert usable_name("spawn", "agents") == "agents.spawn"


WILD = r"^(?!\.)[a-z.]+@[a-z]+$"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"properties": []},
        {"$ref": "#"},
        {"type": "x"},
        {"type": "array"},
        {"properties": {"to": {"not": {"pattern": WILD}}}},  # without it less would fit
    ],
)
def test_a_schema_that_nothing_can_be_held_to_is_refused_by_its_place(schema: Any) -> None:
    with pytest.raises(ApiError) as told:
        tool_spec("f", None, schema, "tools[0].parameters", [])
    assert told.value.param == "tools[0].parameters"


def test_a_pattern_that_nothing_can_be_held_to_is_left_to_the_client_by_name() -> None:
    schema = {"properties": {"to": {"type": "string", "pattern": WILD}, "pattern": {}}}
    left_out: list[str] = []
    spec = tool_spec("f", None, schema, "tools[0].parameters", left_out)
    assert spec.parameters["properties"] == {"to": {"type": "string"}, "pattern": {}}
    assert left_out == ["tools[0].parameters/properties/to/pattern"]
    assert schema["properties"]["to"]["pattern"] == WILD
    assert tool_spec("f", None, None, "", []).parameters == {"type": "object", "properties": {}}
    with pytest.raises(ApiError):  # an answer is held to all of its schema
        answer_schema({"type": "object", "properties": {"to": {"pattern": WILD}}}, "schema")


def test_a_choice_is_of_tools_that_there_are() -> None:
    weather, other = ToolSpec("weather"), ToolSpec("other")
    for choice in (Choice("weather"), Choice("auto"), Choice("none"), Choice("required")):
        assert choice.among([weather, other]) == choice
    assert Choice("auto", frozenset({"other"})).among([weather, other]).allowed == {"other"}
    for choice, tools in (
        (Choice("nope"), [weather]),
        (Choice("auto", frozenset({"weather", "nope"})), [weather]),
        (Choice("weather"), []),
        (Choice("required"), []),
        (Choice("required", frozenset()), [weather]),
    ):
        with pytest.raises(ApiError) as refused:
            choice.among(tools)
        assert (refused.value.status, refused.value.param) == (400, "tool_choice")


def test_two_tools_of_one_name_are_refused() -> None:
    check_names([ToolSpec("a"), ToolSpec("b")])
    with pytest.raises(ApiError, match="'a' names two of them") as refused:
        check_names([ToolSpec("a"), ToolSpec("b"), ToolSpec("a")], "tools")
    assert refused.value.param == "tools"
