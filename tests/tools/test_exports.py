"""Tools in the words of other programs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mlx_tools import builtin_tools
from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.messages import ToolSpec
from mlx_tools.protocol import write_answer, write_call
from mlx_tools.tools.exports import (
    FORMATS,
    export,
    to_anthropic,
    to_jsonschema,
    to_mcp,
    to_openai,
)
from tests.tables import table

TREE = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/Node"}, "again": {"$ref": "#here"}},
    "required": ["node"],
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "value": {"$anchor": "here", "type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                "whole": {"$ref": "#"},
                "$ref": {"const": {"$ref": "no reference"}},
            },
        }
    },
}
BUILTIN = tuple(builtin_tools().all_specs().values())
SPECS = (
    *BUILTIN,
    ToolSpec("tree.walk", "Walks.", TREE),
    ToolSpec("a", "Does.", effects=frozenset()),
)


def test_openai_and_anthropic() -> None:
    openai, anthropic = to_openai(SPECS), to_anthropic(SPECS)
    names = [entry["function"]["name"] for entry in openai]
    assert names == sorted(spec.name.replace(".", "_") for spec in SPECS)
    assert {entry["type"] for entry in openai} == {"function"}
    for one, other in zip(openai, anthropic, strict=True):
        function = one["function"]
        assert set(function) == {"name", "description", "parameters"}
        assert other == {
            "name": function["name"],
            "description": function["description"],
            "input_schema": function["parameters"],
        }


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "$anchor": "top", "properties": {"a": {"$ref": "#top"}}},
    {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "title": "T"},
    {"type": "object", "patternProperties": {"^x": {"const": None}}, "minProperties": 2},
    {"type": "object", "properties": {"a": {"enum": [{"$ref": "#/none"}, 1.0, 10**40]}}},
]
"""Schemas as few people write them."""


def test_the_vendors_own_types_accept_the_exports() -> None:
    from anthropic.types import ToolParam
    from mcp.types import ListToolsResult
    from openai.types.chat import ChatCompletionFunctionToolParam
    from pydantic import TypeAdapter, ValidationError

    odd = [
        ToolSpec(f"{number:x<64}", "日本 \u202e\x1b", schema)
        for number, schema in enumerate(SCHEMAS)
    ]
    for write, kind in (
        (to_openai, ChatCompletionFunctionToolParam),
        (to_anthropic, ToolParam),
    ):
        judge: TypeAdapter[Any] = TypeAdapter(kind)
        for entry in write([*SPECS, *odd]):
            assert judge.validate_python(entry) == entry  # a key that it does not know is left out
        with pytest.raises(ValidationError):
            judge.validate_python({"name": 1, "function": {"name": 1}})
    entries = to_mcp([*SPECS, *odd])
    listed = ListToolsResult.model_validate({"tools": entries})
    assert listed.model_dump(by_alias=True, exclude_none=True, mode="json")["tools"] == entries


CHOICE = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "anyOf": [
        {"properties": {"b": {"type": "integer"}}, "required": ["a", "b"]},
        {"$ref": "#/$defs/c"},
        {"oneOf": [{"properties": {"a": {"type": "string"}, "d": True}}, {"$ref": "#/$defs/c"}]},
    ],
    "not": {"required": ["z"]},
    "required": ["a"],
    "$defs": {"c": {"properties": {"b": {"type": "null"}, "e": {"anyOf": [{}]}}}},
}


@pytest.mark.parametrize("write", [to_openai, to_anthropic])
def test_choices_at_the_top_are_loosened_for_services_that_take_none(write: Any) -> None:
    (entry,) = write([ToolSpec("chooses", "Chooses.", CHOICE)])
    schema = entry["input_schema"] if "input_schema" in entry else entry["function"]["parameters"]
    assert schema == {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "e": {"anyOf": [{}]},
            "d": True,
        },
        "required": ["a"],
        "$defs": CHOICE["$defs"],
    }
    assert "anyOf" in CHOICE
    assert "anyOf" in to_mcp([ToolSpec("chooses", "Chooses.", CHOICE)])[0]["inputSchema"]


@pytest.mark.parametrize("key", ["größe", "", "a b", "x" * 65])
def test_an_arguments_name_that_one_service_refuses_is_told_of(key: str) -> None:
    spec = ToolSpec("measures", "", {"type": "object", "properties": {key: {"type": "number"}}})
    with pytest.raises(ToolDefinitionError, match=r"^measures: .* no argument called"):
        to_anthropic([spec])
    assert to_openai([spec])[0]["function"]["parameters"] == spec.parameters


def test_two_names_that_would_become_one_are_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="both be called a_b"):
        to_openai([ToolSpec("a.b"), ToolSpec("a_b")])
    assert len(to_mcp([ToolSpec("a.b"), ToolSpec("a_b")])) == 2


def test_mcp_hints_come_from_the_declared_effects() -> None:
    hints = {entry["name"]: entry["annotations"] for entry in to_mcp(SPECS)}
    reads = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
    assert hints["calculator"] == hints["file_access"] == reads
    assert hints["create_file"]["destructiveHint"]
    anything = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
    assert hints["tree.walk"] == anything


CALL = {"type": "tool_call"}
LINES = Draft202012Validator(to_jsonschema(SPECS))


@pytest.mark.parametrize(
    "line",
    [
        write_call("calculator", {"expression": "17 * 23"}),
        write_call("clock", {}, id="c1"),
        write_call("tree.walk", {"node": {"value": 1, "children": [{"value": 2}]}, "again": 3}),
        write_call(
            "tree.walk", {"node": {"whole": {"node": {}}, "$ref": {"$ref": "no reference"}}}
        ),
        write_answer("17 times 23 is 391.", "jsonl"),
        '{"type":"final_answer","content":"x","sources":[1]}',
    ],
)
def test_the_schema_of_the_line_takes_real_lines(line: str) -> None:
    Draft202012Validator.check_schema(LINES.schema)
    LINES.validate(json.loads(line))


@table(
    "value",
    [
        {},
        [],
        {"type": "final_answer"},
        {"type": "final_answer", "content": 1},
        {"type": "final_answer", "content": "x", "extra": 1},
        {"type": "tool_observation", "name": "clock", "content": "now"},
        {**CALL, "name": "clock"},
        {**CALL, "name": "unknown", "arguments": {}},
        {**CALL, "name": "calculator", "arguments": {}},
        {**CALL, "name": "clock", "arguments": {"expression": "1"}},
        {**CALL, "name": "tree.walk", "arguments": {"node": {"value": "x"}}},
        {**CALL, "name": "tree.walk", "arguments": {"node": {"whole": {}}}},
        {**CALL, "name": "tree.walk", "arguments": {"node": {}, "again": "x"}},
    ],
)
def test_and_no_others(value: Any) -> None:
    assert not LINES.is_valid(value)


@pytest.mark.parametrize("format_", FORMATS)
def test_the_same_tools_give_the_same_bytes_in_any_order(format_: str) -> None:
    text = export(SPECS, format_)
    assert text == export(reversed(SPECS), format_)
    assert text.endswith("\n")
    if format_ != "gbnf":
        assert json.loads(text)
    assert export([], format_)
    assert "é<|im_end|>" in export([ToolSpec("t", "é<|im_end|>")], "openai")


def test_an_unknown_format_is_the_callers_fault() -> None:
    with pytest.raises(UsageError, match="one of openai, anthropic, mcp, jsonschema, gbnf"):
        export(SPECS, "yaml")
