"""Names, arguments, coercions, and what may run without asking: rules 9 and 10."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mlx_tools.messages import ErrorInfo, ToolCall, ToolSpec
from mlx_tools.protocol import (
    JudgedCall,
    judge,
    read,
    resolve,
    validate_arguments,
    write_call,
)
from mlx_tools.schema.resolve import is_plain
from mlx_tools.schema.validator import fits_plainly, limit_steps, make_validator
from tests.protocol.texts import CALL, COERCIONS, json_values
from tests.tables import table

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, NULL = {"type": "boolean"}, {"type": "null"}
INTEGERS = {"type": "array", "items": INTEGER}
STRINGS = {"type": "array", "items": STRING}


def schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def checked(
    parameters: dict[str, Any], arguments: dict[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...], ErrorInfo | None]:
    return validate_arguments(ToolSpec("t", "", parameters), arguments)


def message_of(parameters: dict[str, Any], arguments: dict[str, Any]) -> str:
    given_back, coercions, error = checked(parameters, arguments)
    assert (given_back, coercions) == (arguments, ())
    assert error is not None and error.code == "invalid_arguments"
    return error.message


TOOLS = {
    "create_file": ToolSpec("create_file", "", schema("path", path=STRING, content=STRING)),
    "calculator": ToolSpec(
        "calculator", "", schema("expression", expression=STRING), effects=frozenset({"read"})
    ),
    "file_access": ToolSpec(
        "file_access",
        "",
        schema("operation", operation={"enum": ["read", "write"]}, count=INTEGER),
        effects=lambda arguments: frozenset({arguments["operation"]}),
    ),
}


def judged(text: str, **more: Any) -> JudgedCall:
    (call,) = judge(read(text), TOOLS, **more)
    return call


# --- errors -----------------------------------------------------------------------------------


@table(
    ("parameters", "arguments", "message"),
    [
        (schema("expression", expression=STRING), {}, "expression: required"),
        (schema(a=INTEGER), {"a": "x"}, "a: integer"),
        (schema(a={"type": ["integer", "null"]}), {"a": "x"}, "a: integer or null"),
        (schema(a=STRING), {"b": 1}, "b: no such key"),
        (schema(a={"enum": ["m", "ft"]}), {"a": "km"}, 'a: one of "m", "ft"'),
        (schema(a={"const": 1}), {"a": 2}, "a: 1"),
        (schema(a={"minimum": 1, "maximum": 3}), {"a": 9}, "a: at most 3"),
        (schema(a={"exclusiveMinimum": 1}), {"a": 1}, "a: more than 1"),
        (schema(a={"multipleOf": 5}), {"a": 3}, "a: a multiple of 5"),
        (schema(a={"minLength": 2}), {"a": "x"}, "a: at least 2 characters"),
        (schema(a={"pattern": "^[a-z]+$"}), {"a": "X"}, "a: text that matches ^[a-z]+$"),
        (schema(a={"minItems": 1}), {"a": []}, "a: at least 1 items"),
        (schema(a={"uniqueItems": True}), {"a": [{"b": 1}, {"b": 1.0}]}, "a: no item twice"),
        (schema(a=INTEGERS), {"a": [1, "x"]}, "a[1]: integer"),
        (schema(a=schema("b", b=schema("c", c=STRING))), {"a": {"b": {}}}, "a.b.c: required"),
        (schema(**{"a b": INTEGER}), {"a b": "x"}, '["a b"]: integer'),
        (schema(a={"anyOf": [INTEGER, NULL]}), {"a": "x"}, "a: integer or null"),
        (schema(a={"anyOf": [schema("b", b=INTEGER), NULL]}), {"a": {}}, "a.b: required"),
        (schema(a={"oneOf": [INTEGER, NUMBER]}), {"a": 1}, "a: exactly one of the forms allowed"),
        (schema(a={"not": {}}), {"a": 1}, "a: another form"),
        (schema(a=False), {"a": 1}, "a: no such key"),
        (schema(a={"anyOf": [False]}), {"a": 1}, "a: nothing"),
        (schema(a={"oneOf": [False, INTEGER]}), {"a": "x"}, "a: nothing or integer"),
        ({"type": "object", "minProperties": 1}, {}, "arguments: at least 1 keys"),
        (
            schema("b", a=INTEGER, b=STRING),
            {"a": "x", "c": None},
            "a: integer; b: required; c: no such key",
        ),
    ],
)
def test_every_fault_is_listed_with_what_was_expected(
    parameters: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    assert sorted(message_of(parameters, arguments).split("; ")) == message.split("; ")


def test_the_message_has_at_most_500_characters() -> None:
    parameters = schema(**{f"property_{n}": INTEGER for n in range(100)})
    text = message_of(parameters, {f"property_{n}": "x" * 1000 for n in range(100)})
    assert 400 < len(text) <= 500


# --- coercions --------------------------------------------------------------------------------


@table(
    ("expected", "given_value", "value", "coercions"),
    [
        (INTEGER, "5", 5, ("coerced_integer",)),
        (INTEGER, "-17", -17, ("coerced_integer",)),
        (INTEGER, 5.0, 5, ("coerced_integer",)),
        (INTEGER, "5.0", 5, ("coerced_integer",)),
        (NUMBER, "2.5", 2.5, ("coerced_number",)),
        (NUMBER, "1e3", 1000.0, ("coerced_number",)),
        (NUMBER, "5", 5, ("coerced_integer",)),
        (BOOLEAN, "true", True, ("coerced_boolean",)),
        (BOOLEAN, "False", False, ("coerced_boolean",)),
        ({"type": "array", "items": STRING}, "x", ["x"], ("wrapped_list",)),
        (INTEGERS, 5, [5], ("wrapped_list",)),
        (INTEGERS, "5", [5], ("wrapped_list", "coerced_integer")),
        (INTEGERS, ["1", 2, "3"], [1, 2, 3], ("coerced_integer",)),
        ({"anyOf": [INTEGER, NULL]}, "7", 7, ("coerced_integer",)),
        ({"anyOf": [INTEGERS, NULL]}, ["7"], [7], ("coerced_integer",)),
        ({"enum": [1, 2]}, "2", 2, ("coerced_integer",)),
        (schema(b=INTEGER), {"b": "1"}, {"b": 1}, ("coerced_integer",)),
        ({"$ref": "#/$defs/n"}, "1", 1, ("coerced_integer",)),
        (STRING, 5, "5", ("coerced_text",)),
        (STRING, -2.5, "-2.5", ("coerced_text",)),
        (STRINGS, 5, ["5"], ("wrapped_list", "coerced_text")),
        (STRINGS, '["x", "y"]', ["x", "y"], ("coerced_json",)),
        (INTEGERS, ' ["1", 2]', [1, 2], ("coerced_json", "coerced_integer")),
        (schema(b=INTEGER, c=STRING), '{"c":"x","b":1}', {"c": "x", "b": 1}, ("coerced_json",)),
        ({"anyOf": [INTEGERS, NULL]}, "[7]", [7], ("coerced_json",)),
        ({"enum": ["Metre"]}, "metre", "Metre", ("coerced_case",)),
        ({"type": "string", "enum": ["ON", "Off"]}, "off", "Off", ("coerced_case",)),
        ({"const": "Metre"}, "METRE", "Metre", ("coerced_case",)),
    ],
)
def test_coercions_that_cannot_change_meaning_are_made_and_recorded(
    expected: dict[str, Any], given_value: Any, value: Any, coercions: tuple[str, ...]
) -> None:
    parameters = schema("a", a=expected) | {"$defs": {"n": INTEGER}}
    arguments = {"a": given_value}
    result, names, error = checked(parameters, arguments)
    assert (result, names, error) == ({"a": value}, coercions, None)
    assert type(result["a"]) is type(value)
    assert arguments == {"a": given_value}
    assert set(names) <= set(COERCIONS)


def test_null_for_an_optional_is_dropped_and_for_a_required_one_an_error() -> None:
    parameters = schema("a", a=STRING, b=STRING, c=schema(d=INTEGER))
    result = checked(parameters, {"a": "x", "b": None, "c": {"d": None}})
    assert result == ({"a": "x", "c": {}}, ("dropped_null",), None)
    assert message_of(parameters, {"a": None}) == "a: required"
    assert checked(schema(a={"type": ["string", "null"]}), {"a": None})[0] == {"a": None}


@table(
    ("expected", "value"),
    [
        *(
            (INTEGER, value)
            for value in ("5 apples", "05", "1_000", "1,000", "٥", " 5", 5.5, True, "9" * 5000)
        ),
        *((NUMBER, value) for value in ("NaN", "1e999", True)),
        *((BOOLEAN, value) for value in ("yes", 1)),
        (STRING, True),
        *((INTEGERS, value) for value in ('["x"', '{"a":1}', "[1, 2", "[NaN]", "(1, 2)")),
        *(({"type": "object"}, value) for value in ('{"a":1,"a":2}', "[1]", "a: 1")),
        ({"enum": ["Metre", "metre"]}, "METRE"),
        ({"enum": ["Metre"]}, "meter"),
        ({"anyOf": [{"const": 1}, {"const": True}]}, "x"),
    ],
)
def test_what_might_change_meaning_is_not_coerced(expected: dict[str, Any], value: Any) -> None:
    assert message_of(schema("a", a=expected), {"a": value}).startswith("a: ")


def test_a_value_that_could_become_two_things_is_left_alone() -> None:
    parameters = schema(a={"anyOf": [INTEGER, {"type": "array", "items": STRING}]})
    assert message_of(parameters, {"a": "5"})


def test_a_value_that_fits_is_never_coerced() -> None:
    for value, expected in (("5", STRING), ("true", STRING), (None, NULL), ([5], INTEGERS)):
        assert checked(schema(a=expected), {"a": value}) == ({"a": value}, (), None)


_SCHEMAS = st.recursive(
    st.sampled_from(
        (
            *(STRING, INTEGER, NUMBER, BOOLEAN, NULL, {"enum": [1, "a", True]}, {}),
            *({"type": "string", "maxLength": 1}, {"type": "string", "minLength": 1}),
            {"type": "string", "enum": ["", "a", "b"]},
        )
    ),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner)
        | st.builds(lambda a, b: schema("a", a=a, b=b), inner, inner)
    ),
    max_leaves=5,
)


@given(_SCHEMAS, json_values)
def test_what_validation_gives_back_validates_as_it_is(parameters: Any, value: Any) -> None:
    spec = ToolSpec("t", "", schema("v", v=parameters))
    result, coercions, error = validate_arguments(spec, {"v": value})
    if error is None:
        assert validate_arguments(spec, result) == (result, (), None)
    else:
        assert (result, coercions) == ({"v": value}, ())
        assert len(error.message) <= 500


_STRINGS = (
    STRING,
    {**STRING, "maxLength": 1},
    {**STRING, "minLength": 1},
    {**STRING, "enum": ["a"]},
)
_PAIRS = st.recursive(
    st.tuples(st.sampled_from(_STRINGS), st.sampled_from(("", "a", "ab", 1)))
    | st.tuples(st.sampled_from((INTEGER, NUMBER, BOOLEAN)), st.sampled_from((1, 1.5, True, None))),
    lambda inner: st.builds(
        lambda a, b: (schema("a", a=a[0], b=b[0]), {"a": a[1], "b": b[1]}), inner, inner
    ),
    max_leaves=3,
)
"""Plain schemas, each with a value that it may take."""


@settings(max_examples=4 * settings().max_examples)
@given(_PAIRS)
def test_what_is_known_to_fit_at_a_glance_has_no_fault(pair: tuple[Any, Any]) -> None:
    parameters, value = pair
    whole, given = schema("v", v=parameters), {"v": value}
    if fits_plainly(given, whole):
        with limit_steps():
            assert list(make_validator(whole).iter_errors(given)) == []


_ANYHOW = st.fixed_dictionaries(
    {"type": st.sampled_from(("string", "object", "integer", "array", "text", ["string"]))},
    optional={
        "minLength": st.sampled_from((0, 2, -1, True, 1.5, "1")),
        "enum": st.sampled_from((["a"], [], "a", None)),
        "examples": st.sampled_from((["a"], "a")),
        "title": st.sampled_from(("a", 1)),
        "required": st.sampled_from((["a"], ["a", "a"], [1], "a", [[]])),
        "additionalProperties": st.sampled_from((True, False, {}, 1)),
    },
)
"""Schemas, most of them unsound."""


@given(_ANYHOW, _ANYHOW)
def test_a_plain_schema_is_sound(outer: Any, inner: Any) -> None:
    for whole in (inner, outer | {"properties": {"a": inner}}, outer | {"properties": [inner]}):
        if is_plain(whole):
            Draft202012Validator.check_schema(whole)


def test_most_schemas_are_plain() -> None:
    assert is_plain(schema("a", a={"type": "string", "enum": ["x"]}, b=INTEGER))


# --- bounds -----------------------------------------------------------------------------------


def test_numbers_that_json_does_not_have_are_refused() -> None:
    for value in (math.nan, math.inf):
        assert message_of(schema(a=NUMBER), {"a": value}) == "a: a finite number"
        assert message_of({"type": "object"}, {"a": [{"b": value}]}) == "a[0].b: a finite number"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (schema(a={"items": {"not": {"$ref": "file:///etc/passwd"}}}), "points outside"),
        (schema(a={"pattern": "(?=a)b"}), "linear"),
        ({"type": "object", "$ref": "#"}, "without end"),
        ({"type": "array"}, "of the arguments must"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_an_error_of_the_tool(
    parameters: dict[str, Any], words: str
) -> None:
    _, _, error = checked(parameters, {})
    assert error is not None and error.code == "tool_error" and words in error.message


def test_names_that_look_like_keywords_are_only_names() -> None:
    parameters = schema(**{"$ref": STRING, "pattern": STRING, "$id": STRING})
    assert checked(parameters, {"$ref": "http://x"})[2] is None


def test_a_check_takes_a_bounded_number_of_steps() -> None:
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    parameters = {"type": "object", "$defs": doubled | {"d40": {}}, "$ref": "#/$defs/d0"}
    assert "too large" in message_of(parameters, {})


def test_a_pattern_matches_in_linear_time() -> None:
    parameters = schema(a={"pattern": "^(a+)+$"})
    assert "matches" in message_of(parameters, {"a": "a" * 50_000 + "!"})
    assert checked(parameters, {"a": "a" * 50_000})[2] is None
    by_key = {"type": "object", "patternProperties": {"^(a|a)*b$": INTEGER}}
    by_key["additionalProperties"] = False
    assert checked(by_key, {"a" * 3000 + "b": 1})[2] is None
    assert "no such key" in message_of(by_key, {"a" * 3000: 1})
    assert "shorter" in message_of(parameters, {"a": "a" * 2_000_000})


# --- names and rule 9: what may run without asking ---------------------------------------------

WRITE = write_call("create_file", {"path": "a", "content": "b"})
ACCESS = '{{"type":"tool_call","name":"file_access","arguments":{{"operation":"{}","count":"1"}}}}'


@pytest.mark.parametrize(
    "text",
    [
        # A clean call may change things.
        *(WRITE, f"\n{WRITE}\n", f"```json\n{WRITE}\n```", f"<tool_call>{WRITE}</tool_call>"),
        *(f"<think>hm</think>{WRITE}", f"[{WRITE}]"),
        # One that only reads runs all the same.
        *(
            f"Sure: {CALL}",
            f"- {CALL}",
            CALL.replace('"}', '",}'),
            f"{CALL}.",
            ACCESS.format("read"),
        ),
    ],
)
def test_it_may_run_freely(text: str) -> None:
    assert judged(text).runs == "freely"


@table(
    "text",
    [
        *(f"Sure.\n{WRITE}", f"{WRITE}\nDone.", f"Sure: {WRITE}", f"- {WRITE}", f"{WRITE},"),
        *(f"{WRITE}}}", f"so</think>{WRITE}"),
        WRITE.replace('"b"}', '"b",}'),
        *(WRITE.replace("create_file", name) for name in ("create-file", "Create_File")),
        *(WRITE.replace("create_file", name) for name in ("createFile", "create.file")),
        WRITE[:-1] + ',"x":1}',
        '{"name":"create_file","arguments":{"path":"a"}}',
        '{"type":"tool_call","name":"create_file","arguments":{"path":"a","content":null}}',
        ACCESS.format("write"),
    ],
)
def test_a_call_that_is_less_than_clean_asks_before_it_changes_things(text: str) -> None:
    call = judged(text)
    assert (call.error, call.runs) == (None, "with_approval")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        *(("calculate", "calculator"), ("creat_file", "create_file"), ("caIculator", "calculator")),
        # In other scripts are other names, however alike.
        *(("сalculator", "calculator"), ("calculator\u200b", "calculator")),
        *(("\u202ecalculator", "calculator"), ("Kalculator", "calculator")),
        *(("calculator\n", "calculator"), ("x" * 5000, "")),
    ],
)
def test_a_close_name_is_only_suggested(name: str, suggestion: str) -> None:
    call = judged(write_call(name, {"expression": "1"}))
    assert call.error is not None
    assert (call.error.code, call.runs) == ("unknown_tool", "with_approval")
    assert call.error.message.isascii() and "\n" not in call.error.message
    assert call.error.message.endswith(f"did you mean {suggestion}?") == bool(suggestion)


def test_a_name_may_be_written_otherwise_where_it_can_mean_but_one_tool() -> None:
    tools = {name: ToolSpec(name) for name in ("a_b", "a.b")}
    assert resolve("a-b", tools) == (None, ())
    assert resolve("a.b", tools) == (tools["a.b"], ())
    aliases = {"computeNow": "calculator", "gone": "not_there"}
    assert resolve("computeNow", TOOLS, aliases) == (TOOLS["calculator"], ())
    assert resolve("compute_now", TOOLS, aliases) == (TOOLS["calculator"], ("tool_name",))
    assert resolve("gone", TOOLS, aliases) == (None, ())


def test_each_call_of_a_run_is_judged_alone() -> None:
    bad, unknown = write_call("calculator", {}), write_call("nothing", {})
    calls = judge(read(f"{bad}\n{WRITE}\n{unknown}\n{CALL}"), TOOLS)
    assert [(call.error.code if call.error else None, call.runs) for call in calls] == [
        ("invalid_arguments", "with_approval"),
        (None, "freely"),
        ("unknown_tool", "with_approval"),
        (None, "freely"),
    ]
    assert judge(read("It is 391."), TOOLS) == ()


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [("auto", True), ("required", True), ("calculator", True), ("none", False), ("clock", False)],
)
def test_only_the_chosen_tool_may_be_called(choice: str, allowed: bool) -> None:
    error = judged(CALL, tool_choice=choice).error
    assert (error is None) == allowed
    assert error is None or error.code == "not_allowed"


@pytest.mark.parametrize("written", ['""', '" "', "[]"])
def test_arguments_that_are_written_as_nothing_are_none(written: str) -> None:
    reading = read(f'{{"type":"tool_call","name":"t","arguments":{written}}}')
    (call,) = reading.messages
    assert isinstance(call, ToolCall)
    assert (call.arguments, call.repairs) == ({}, ("empty_arguments",))


def test_a_name_that_is_right_is_that_tools_however_alike_others_are() -> None:
    tools = {name: ToolSpec(name) for name in ("look_up", "lookUp", "Lookup")}
    for name, spec in tools.items():
        assert resolve(name, tools) == (spec, ())
    assert resolve("look-up", tools) == (None, ())
