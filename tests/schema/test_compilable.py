"""A tool's parameters as llguidance compiles them: only loosened, and it says where."""

from __future__ import annotations

import functools
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from mlx_tools import builtin_tools
from mlx_tools.plugins.evaluate.bfcl_data import CATEGORIES, load_items
from mlx_tools.schema.compilable import COMPACT, Compilable, make_compilable
from mlx_tools.schema.validator import fits
from tests.decoding.schemas import typed
from tests.evaluate.questions import fetched_wheel
from tests.tables import table


@functools.cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def matcher(schema: Any) -> LLMatcher:
    found = LLMatcher(tokenizer(), f"start: %json {json.dumps({**schema, **COMPACT})}")
    assert not found.is_error(), found.get_error()
    return found


def written(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("\x7f", "\\u007f")  # the one spelling that llguidance takes


def takes(judge: LLMatcher, text: str) -> bool:
    judge.reset()
    tokens = tokenizer().tokenize_bytes(text.encode())
    return judge.try_consume_tokens(tokens) == len(tokens) and judge.is_accepting()


def object_of(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": value}, "required": ["v"], **more}


def held(schema: Any, value: Any) -> bool:
    found = make_compilable(object_of(schema)).schema
    assert found is not None
    return takes(matcher(found), written({"v": value}))


# --- what is left to validation ---------------------------------------------------------------

EXACT: list[Any] = [
    {"uniqueItems": False},
    {"minProperties": 1, "maxProperties": 2},
    {"then": {"const": 1}},
    {"patternProperties": {"^x": {"type": "integer"}}},
    *({"type": "string", "format": form} for form in ("date", "time", "int32")),
    {"pattern": r"^[A-Z]{2}-\d+$"},
    {"multipleOf": 3},
    {"oneOf": [{"type": "string"}, {"const": 1}]},
    {"title": "T", "default": 3, "deprecated": True, "nullable": True},
]
LOOSENED: list[Any] = [
    {"not": {"const": 3}},
    {"uniqueItems": True},
    *({"properties": {"a": {}}, name: 1} for name in ("minProperties", "maxProperties")),
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"not": {}}}},
    {"if": {"not": {}}, "then": {"not": {}}, "else": {}},
    {"contains": {"const": 1}, "minContains": 2, "maxContains": 3},
    {"propertyNames": {"maxLength": 3}},
    *({name: False} for name in ("unevaluatedProperties", "unevaluatedItems")),
    {"patternProperties": {"^x": {}, "y$": {}}},
    *({"pattern": one} for one in ("^a.b$", r"\bword\b", "(?=a)b", "[a&&b]")),
    {"multipleOf": 0.07},
    {"maximum": 1e300},
    {"type": "array", "minItems": 10**9},
    {"type": "string", "maxLength": 10**12},
    {"enum": ["a", 2**60]},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"type": "float"},
    {"items": 7},
    *({"$ref": one} for one in ("https://example.com/schema", "#/$defs/nowhere")),
    {"properties": {"a": {}}, "required": ["a", "b"], "additionalProperties": False},
]


@table(
    ("schema", "is_exact"), [*((one, True) for one in EXACT), *((one, False) for one in LOOSENED)]
)
def test_what_cannot_be_held_is_taken_out(schema: Any, is_exact: bool) -> None:
    found = make_compilable(object_of({"type": ["array", "null"], "items": schema}))
    assert found.is_exact == is_exact and found.schema is not None
    matcher(found.schema)


def test_without_the_patterns_of_keys_other_keys_are_let_in() -> None:
    schema = {"patternProperties": {"(?=x)": {}}, "additionalProperties": False, "type": "object"}
    assert held(schema, {"y": 1})


def test_of_very_many_optional_properties_the_needed_ones_are_held() -> None:
    many = {f"p{number}": {"type": "integer"} for number in range(3000)}
    schema = {"properties": many, "required": ["p7"], "additionalProperties": False}
    assert held(schema, {"p7": 1, "p2999": 2})
    assert not held(schema, {"p7": "1"})
    assert not held(schema, {"p2999": 2})


def test_nothing_is_held_where_nothing_compiles() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"items": deep}
    for schema in (object_of(deep), {"type": "array"}, {"type": "object", "const": {1, 2}}):
        assert make_compilable(schema) == Compilable(None)


@pytest.mark.parametrize(
    "reference", ["#/$defs/a~1b%20c", "#named", "#/properties/w", "#/x-parts/0", "#/not"]
)
def test_a_reference_leads_where_it_leads(reference: str) -> None:
    whole = {"type": "integer", "$anchor": "named"}
    places = {"$defs": {"a/b c": whole}, "x-parts": [whole], "not": whole}
    schema = {"type": "object", "properties": {"v": {"$ref": reference}, "w": whole}, **places}
    found = make_compilable(schema).schema
    assert found is not None
    assert takes(matcher(found), '{"v":1}')
    assert not takes(matcher(found), '{"v":"1"}')


def test_a_schema_may_refer_to_itself() -> None:
    tree = {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#"}}}}
    found = make_compilable(tree)
    assert found.schema is not None
    assert takes(matcher(found.schema), '{"below":[{"below":[]},{}]}')
    assert not takes(matcher(found.schema), '{"below":[7]}')


# --- it only loosens, and holds to the rest ---------------------------------------------------


SPELLED = re.compile(r"\d(?:\.0(?!\d)|[eE])|-0")
"""A number so written is not always taken where it has bounds."""


OVERFLOW = re.compile(r"[eE]\+?\d{3}")
"""A number beyond all doubles is no fault of the schema."""


def in_order(value: Any, schema: Any) -> Any:
    """The value with its keys as the schema has them, which is the one order that is held."""
    schema = schema.get("$defs", {}).get("all") or schema.get("allOf", [schema])[0]
    if isinstance(value, list):
        return [in_order(one, schema.get("items", {})) for one in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties", {})
    keys = [key for key in known if key in value] + [key for key in value if key not in known]
    return {key: in_order(value[key], known.get(key, {})) for key in keys}


def wrongly_taken(schema: Any, value: Any, chance: random.Random) -> list[str]:
    """A prepared schema takes a value that fits; and of its neighbours these, which do not."""
    found = make_compilable(schema)
    assert found.schema is not None
    judge = matcher(found.schema)
    if fits(value, schema):
        assert fits(value, found.schema)
        text = written(in_order(value, schema))
        assert takes(judge, text) or SPELLED.search(text)
    wrong: list[str] = []
    for _ in range(40 if found.is_exact else 0):
        text = written(in_order(value, schema))
        for _ in range(chance.randint(1, 3)):
            at = chance.randint(0, len(text))
            put = chance.choice(["", "0", "9", "-", ".", '"', ",", "null", "}", "]", "x"])
            text = text[:at] + put + text[at + chance.randint(0, 2) :]
        if takes(judge, text):
            changed = json.loads(text)
            if not fits(changed, schema) and not OVERFLOW.search(text):
                wrong.append(text)
    return wrong


KEYWORDS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["a", "b"]), st.integers(0, 3)
).flatmap(
    lambda some: st.sampled_from(
        [
            {"not": {"const": some}},
            {"uniqueItems": True},
            {"minProperties": 1},
            {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
            {"pattern": "^[ab]*$"},
            {"oneOf": [{"minLength": 1}, {"maximum": 3}]},
            {"propertyNames": {"enum": [*some, "city"]}},
            {"patternProperties": {"[a-z]": {}, "^c": {}}, "additionalProperties": False},
        ]
    )
)


@given(st.data(), typed(), st.none() | KEYWORDS)
def test_it_only_loosens_and_holds_to_what_it_does_not_name(
    data: st.DataObject, case: tuple[Any, Any], beside: dict[str, Any] | None
) -> None:
    schema, values = case
    if beside is not None:
        schema = {"allOf": [schema, beside]} if data.draw(st.booleans()) else {**beside, **schema}
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    assert wrongly_taken(object_of(schema), {"v": data.draw(values)}, chance) == []


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("category", CATEGORIES)
def test_all_of_bfcl_is_held_in_full(category: str, step: int) -> None:
    specs = {
        json.dumps(spec.parameters): spec
        for item in load_items(category, fetched_wheel())
        for spec in item.tools.values()
    }
    assert specs
    for spec in list(specs.values())[::step]:
        found = make_compilable(spec.parameters)
        assert found.schema is not None
        named = spec.parameters.get("properties", {})
        assert found.is_exact or not named.keys() >= {*spec.parameters["required"]}, spec.name
        matcher(found.schema)


def test_all_built_in_tools_are_held() -> None:
    for spec in builtin_tools().all_specs().values():
        assert make_compilable(spec.parameters).schema is not None, spec.name


def test_many_required_properties_without_a_schema_are_left_to_validation() -> None:
    names = [f"p{number}" for number in range(1000)]
    properties = {"a": {"type": "string"}}
    loosened = make_compilable(
        {"type": "object", "properties": properties, "required": ["a", *names]}
    )
    assert loosened.schema is not None
    assert loosened.schema["required"] == ["a", *names[:200]]
    assert not loosened.is_exact
