"""Schemas of arguments: what is accepted, and what is refused before anything else reads it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.schema.resolve import check_parameters, walk
from tests.tables import table


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@table(
    "schema",
    [
        {"type": "object"},
        object_of(a={"type": "integer"}, b=True, c=False, d={}),
        object_of(a={"$ref": "#"}),
        {**object_of(a={"$ref": "#/$defs/A"}), "$defs": {"A": {"type": "string"}}},
        {**object_of(a={"$ref": "#here"}), "$defs": {"A": {"$anchor": "here"}}},
        {"$anchor": "top", **object_of(a={"$ref": "#top"})},
        {"$dynamicAnchor": "top", **object_of(a={"$dynamicRef": "#top"})},
        {**object_of(a={"$ref": "#/$defs/a~1b%20c~0"}), "$defs": {"a/b c~": {}}},
        object_of(a={"$ref": "#/properties/b/anyOf/1"}, b={"anyOf": [{}, {"type": "null"}]}),
        object_of(**{"$ref": {"type": "string"}, "$id": {}, "pattern": {"const": "("}}),
        object_of(a={"enum": [{"$ref": "https://example.org"}], "default": {"$ref": 1}}),
        object_of(a={"pattern": "^[a-z]+(-[a-z]+)*$"}, b={"patternProperties": {"^x": {}}}),
        object_of(a={"type": "string", "format": "nobody knows", "x-mine": [1]}),
        {"$id": "https://example.org/t", **object_of(a={"$ref": "#/$defs/A"}), "$defs": {"A": {}}},
    ],
)
def test_a_sound_schema_is_accepted_as_it_is(schema: Any) -> None:
    before = copy.deepcopy(schema)
    check_parameters(schema)
    assert schema == before


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return object_of(a=schema)


def tower(levels: int) -> dict[str, Any]:
    """Each definition refers twice to the next one: short to write, long to expand."""
    definitions = {
        f"d{n}": object_of(a={"$ref": f"#/$defs/d{n + 1}"}, b={"$ref": f"#/$defs/d{n + 1}"})
        for n in range(levels)
    }
    return {**object_of(a={"$ref": "#/$defs/d0"}), "$defs": {**definitions, f"d{levels}": {}}}


@table(
    ("schema", "what"),
    [
        (None, "must be an object"),
        ([], "must be an object"),
        (True, "must be an object"),
        ({}, '"type": "object"'),
        ({"type": "string"}, '"type": "object"'),
        ({"type": ["object", "null"]}, '"type": "object"'),
        (object_of(a={"type": "strin"}), "#/properties/a/type"),
        (object_of(a=5), "#/properties/a: not a schema"),
        ({"type": "object", "properties": []}, "#/properties"),
        ({"type": "object", "required": "a"}, "#/required"),
        ({"type": "object", "allOf": [3]}, "#/allOf/0: not a schema"),
        (object_of(a={"$ref": "https://example.org/schema"}), "points outside"),
        (object_of(a={"$ref": "other.json#/x"}), "points outside"),
        (object_of(a={"$ref": "file:///etc/passwd"}), "points outside"),
        (object_of(a={"$dynamicRef": "x#y"}), "points outside"),
        (object_of(a={"items": {"not": {"$ref": "x.json"}}}), "points outside"),
        (object_of(a={"$ref": "#/nowhere"}), "points to nothing"),
        (object_of(a={"$ref": "#nowhere"}), "points to nothing"),
        ({**object_of(a={"$ref": "#/x"}), "x": {}}, "#/x is not a schema"),
        ({**object_of(a={"$ref": "#/required/0"}), "required": ["a"]}, "is not a schema"),
        (object_of(a={"$id": "https://example.org/inner"}), r"\$id"),
        (object_of(a={"$ref": "#/properties/a"}), "without end"),
        ({"type": "object", "allOf": [{"$ref": "#"}]}, "without end"),
        ({"type": "object", "not": {"anyOf": [{"$ref": "#/not"}]}}, "without end"),
        (object_of(a={"pattern": "("}), "#/properties/a: pattern"),
        (object_of(a={"patternProperties": {"[": {}}}), "pattern"),
        (object_of(a={"pattern": r"(a)\1"}), "pattern"),
        (object_of(a={"pattern": "^(?=x)"}), "linear"),
        (object_of(a={"patternProperties": {"(?<!a)b": {}}}), "linear"),
        (
            {"type": "object", "patternProperties": {"a": {}}, "unevaluatedProperties": False},
            "combined",
        ),
        (object_of(a={"default": float("nan")}), "not plain JSON"),
        (object_of(a={"default": {1, 2}}), "not plain JSON"),
        (object_of(a={"default": "\ud800"}), "half of a surrogate pair"),
        (object_of(**{"\udfff": {}}), "half of a surrogate pair"),
        ({"type": "object", "$anchor": "top", "allOf": [{"$ref": "#top"}]}, "without end"),
        (object_of(a={"const": "x" * 300_000}), "larger than"),
        (nested(70), "levels deep"),
        (nested(100_000), "not plain JSON"),
    ],
)
def test_an_unsound_schema_is_refused_with_its_place(schema: Any, what: str) -> None:
    with pytest.raises(ToolDefinitionError, match=what):
        check_parameters(schema)


def test_references_are_not_expanded() -> None:
    schema = tower(200)
    check_parameters(schema)
    assert len(list(walk(schema))) < 2_000  # expanded there would be 2 ** 200


def test_a_walk_visits_subschemas_alone() -> None:
    schema = object_of(
        a={"const": {"properties": {"x": {}}}, "items": {"not": {}}}, properties={"type": "string"}
    )
    assert [path for path, _ in walk(schema)] == [
        (),
        ("properties", "a"),
        ("properties", "a", "items"),
        ("properties", "a", "items", "not"),
        ("properties", "properties"),
    ]


def test_a_schema_that_was_sound_and_changed_is_looked_at_again() -> None:
    schema = object_of(a={"type": "string"})
    for _ in range(2):
        check_parameters(schema)
        schema["properties"]["a"]["type"] = "text"
        for _ in range(2):
            with pytest.raises(ToolDefinitionError, match="#/properties/a/type"):
                check_parameters(schema)
        schema["properties"]["a"]["type"] = "string"
