"""Schemas of other people's tools are read as they were meant; what is no schema is dropped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_tools.schema import check_parameters, fits, read_lenient_schema, sample_arguments
from tests.faulty_schemas import mutants, real_schemas
from tests.prompt.conversations import WORDS
from tests.tables import table

TEXTS = WORDS.examples.samples


# --- habits ---


@table(
    ("member", "meant"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        (
            {"type": "string", "enum": ["a"], "nullable": True},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        (
            {"$ref": "#/definitions/X", "nullable": True},
            {"anyOf": [{"$ref": "#/definitions/X"}, {"type": "null"}]},
        ),
        (
            {"oneOf": [{"type": "string"}], "nullable": True},
            {"oneOf": [{"type": "string"}, {"type": "null"}]},
        ),
        (
            {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
            {"type": "integer", "exclusiveMinimum": 0},
        ),
        (
            {"type": "number", "maximum": 9, "exclusiveMaximum": False},
            {"type": "number", "maximum": 9},
        ),
        ({"type": "STRING"}, {"type": "string"}),
        ({"type": ["String", "NULL"]}, {"type": ["string", "null"]}),
        ({"type": "float"}, {"type": "number"}),
        ({"type": "any"}, {}),
        ({"type": "string", "required": None}, {"type": "string"}),
        (
            {"type": "array", "items": [{"type": "Number"}], "additionalItems": False},
            {"type": "array", "prefixItems": [{"type": "number"}], "items": False},
        ),
        ({"dependencies": {"a": ["b"]}}, {"dependentRequired": {"a": ["b"]}}),
        (
            {"dependencies": {"a": {"minProperties": 2}}},
            {"dependentSchemas": {"a": {"minProperties": 2}}},
        ),
        ({"$id": "urn:x", "type": "string"}, {"type": "string"}),
        ({"type": "string", "minLength": "3"}, {"type": "string", "minLength": 3}),
        ({"$ref": "urn:whole#/definitions/X"}, {"$ref": "#/definitions/X"}),
        ({"$ref": "#/components/schemas/Y"}, {"$ref": "#/$defs/Y"}),
    ],
)
def test_a_habit_of_another_draft_is_read_as_meant_and_nothing_is_dropped(
    member: Any, meant: Any
) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "$id": "urn:whole",
        "properties": {"x": member},
        "definitions": {"X": {"type": "string"}},
        "components": {"schemas": {"Y": {"type": "Integer"}}},
    }
    read = read_lenient_schema(schema)
    check_parameters(read.parameters)
    assert read.parameters["properties"]["x"] == meant
    assert read.dropped == ()


def test_a_member_that_says_itself_that_it_is_required_is() -> None:
    members = {"a": {"type": "string", "required": True}, "b": {"required": False}}
    read = read_lenient_schema({"properties": members, "required": ["b"]})
    assert read.parameters["required"] == ["b", "a"]
    assert read.dropped == ()


def test_null_is_no_schema_at_all_and_a_text_may_hold_one() -> None:
    nothing = {"type": "object", "properties": {}}
    assert read_lenient_schema(None).parameters == nothing
    assert read_lenient_schema({}).parameters == nothing
    assert read_lenient_schema('{"properties": {"a": {}}}').parameters["properties"] == {"a": {}}


def test_a_sound_schema_stays_as_it_is() -> None:
    for schema in real_schemas():
        read = read_lenient_schema(schema)
        assert read.dropped == ()
        expected = {key: value for key, value in schema.items() if key != "$schema"}
        assert {"properties": {}, **expected} == read.parameters


# --- faults ---


@table(
    ("member", "left", "dropped"),
    [
        ({"type": "string", "enum": []}, {"type": "string"}, ["/enum"]),
        ({"type": "string", "enum": "a"}, {"type": "string"}, ["/enum"]),
        ({"type": "what", "title": "T"}, {"title": "T"}, ["/type"]),
        ({"type": "string", "description": None}, {"type": "string"}, ["/description"]),
        ({"$ref": "#/$defs/Gone"}, {}, ["/$ref"]),
        ({"$ref": "https://example.org/x.json"}, {}, ["/$ref"]),
        ({"$ref": "#/properties/x"}, {}, ["/$ref"]),
        ({"pattern": "^(?!x)"}, {}, ["/pattern"]),
        ({"pattern": "("}, {}, ["/pattern"]),
        ({"not": {"pattern": "^(?!x)"}}, {}, ["/not/pattern", "/not"]),
        (
            {"oneOf": [{"pattern": "^(?!x)"}, {"type": "string"}]},
            {"anyOf": [{}, {"type": "string"}]},
            ["/oneOf/0/pattern", "/oneOf"],
        ),
        ({"if": {"minLength": "x"}, "then": {"maxLength": 3}}, {}, ["/if/minLength", "/if"]),
        ({"items": 5}, {}, ["/items"]),
        ({"anyOf": [5, {"type": "null"}]}, {"anyOf": [{}, {"type": "null"}]}, ["/anyOf/0"]),
        ({"patternProperties": {"(": {}}, "additionalProperties": False}, {"patternProperties": {}},
         ["/patternProperties/(", "/additionalProperties"]),
        ({"required": ["a"], "properties": {}, "additionalProperties": False},
         {"required": [], "properties": {}, "additionalProperties": False}, ["/required"]),
        ({"type": "integer", "enum": ["1", "2"]}, {"enum": ["1", "2"]}, ["/type"]),
        (5, {}, [""]),
    ],
)  # fmt: skip
def test_what_is_no_schema_is_dropped_keyword_by_keyword(
    member: Any, left: Any, dropped: list[str]
) -> None:
    good = {"type": "integer", "minimum": 1}
    read = read_lenient_schema({"properties": {"x": member, "y": good}})
    check_parameters(read.parameters)
    assert read.parameters["properties"] == {"x": left, "y": good}
    assert list(read.dropped) == [f"/properties/x{pointer}" for pointer in dropped]


@table(
    ("schema", "dropped"),
    [
        ([], [""]),
        (5, [""]),
        ("x", [""]),
        ({"type": "string"}, ["/type"]),
        ({"type": ["array", "null"]}, ["/type"]),
        ({"$ref": "#"}, ["/$ref"]),
        ({"properties": {"a": {"description": "x" * 300_000}}}, [""]),
    ],
)
def test_what_can_be_no_schema_of_arguments_takes_any_object(schema: Any, dropped: Any) -> None:
    read = read_lenient_schema(schema)
    assert read.parameters == {"type": "object", "properties": {}}
    assert list(read.dropped) == dropped


def test_what_is_nested_too_deeply_takes_anything_there() -> None:
    schema: Any = {"type": "string"}
    for _ in range(200):
        schema = {"properties": {"a": schema}}
    read = read_lenient_schema(schema)
    check_parameters(read.parameters)
    assert len(read.dropped) == 1
    assert read.dropped[0].startswith("/properties/a/properties/a/")


# --- mutations ---


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_mutations_of_real_schemas_are_usable_and_none_takes_less_than_its_original(
    count: int,
) -> None:
    quiet = 0
    for original, schema in mutants(count):
        before = json.dumps(schema)
        read = read_lenient_schema(schema)
        assert json.dumps(schema) == before
        check_parameters(read.parameters)
        quiet += not read.dropped
        arguments = sample_arguments({"type": "object", **original}, TEXTS)
        if arguments is not None:
            assert fits(arguments, read.parameters), (schema, read)
    assert quiet < count / 10  # habits such as "required": null
