"""Arguments made up from a schema: they fit it, or there are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.schema.sample import sample_arguments
from tests.prompt.conversations import WORDS
from tests.tables import table

TEXTS = WORDS.examples.samples


def made(schema: Any, **root: Any) -> Any:
    """The value made up for a required argument ``x`` of this schema; None for nothing."""
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], **root}
    arguments = sample_arguments(parameters, TEXTS)
    assert arguments is None or set(arguments) == {"x"}
    return None if arguments is None else arguments["x"]


@table(
    ("schema", "value"),
    [
        ({"type": "string"}, TEXTS["string"]),
        ({"type": "string", "examples": ["Oslo", "Rome"]}, "Oslo"),
        ({"type": "string", "default": "Oslo"}, "Oslo"),
        ({"type": "string", "pattern": "^[A-Z]{3}$", "examples": ["EUR"]}, "EUR"),
        ({"type": "string", "enum": ["c", "f"]}, "c"),
        ({"const": {"a": 1}}, {"a": 1}),
        ({"type": "string", "format": "date"}, TEXTS["date"]),
        ({"type": "string", "maxLength": 3}, TEXTS["string"][:3]),
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 18}, 18),
        ({"type": "integer", "exclusiveMinimum": 18}, 19),
        ({"type": "integer", "maximum": -5}, -5),
        ({"type": "integer", "minimum": 3, "multipleOf": 5}, 5),
        ({"type": "number", "minimum": 0.5}, 1),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, 0.25),
        ({"type": "boolean"}, True),
        ({"type": "array", "items": {"type": "integer"}}, [1]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"type": "array", "maxItems": 0}, []),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}, [1, True]),
        ({"type": ["null", "integer"]}, 1),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 1),
        ({"anyOf": [{"type": "string", "pattern": "x"}, {"type": "integer"}]}, 1),
        ({"allOf": [{"type": "integer"}]}, 1),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
                "required": ["a"],
            },
            {"a": 1},
        ),
    ],
)
def test_a_value_is_the_schemas_own_or_the_plainest_that_fits(schema: Any, value: Any) -> None:
    assert made(schema) == value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[0-9]+$"},
        {"type": "string", "format": "no-such-format"},
        {"type": "string", "minLength": 10_000},
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "uniqueItems": True},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "string", "examples": [7]},
        {"$ref": "#/$defs/loop"},
        {"$ref": "https://example.com/schema"},
        {"not": {}},
        {"type": "nonsense"},
        False,
    ],
)
def test_where_nothing_fits_there_is_no_example(schema: Any) -> None:
    loop = {"type": "object", "properties": {"a": {"$ref": "#/$defs/loop"}}, "required": ["a"]}
    assert made(schema, **{"$defs": {"loop": loop}}) is None


def test_a_long_example_in_a_schema_is_not_taken() -> None:
    assert made({"type": "string", "examples": ["x" * 1000]}) == TEXTS["string"]


def test_an_example_that_its_own_pattern_does_not_match_is_not_taken() -> None:
    assert made({"type": "string", "pattern": "^(a+)+$", "examples": ["a" * 60 + "!"]}) is None


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(schema=JSON)
def test_what_is_no_schema_brings_no_harm(schema: Any) -> None:
    json.dumps(made(schema))
    whole = {"type": "object", "properties": schema, "required": schema}
    found = sample_arguments(whole, TEXTS)
    assert found is None or json.loads(json.dumps(found)) == found
