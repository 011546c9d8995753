"""The grammar of a line: it takes what fits the tools' schemas, and makes nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.spec import ToolSpec
from mlx_tools.tools import Registry
from mlx_tools.tools.exports import to_gbnf as whole_gbnf
from mlx_tools.tools.exports import to_jsonschema
from mlx_tools.tools.grammar import line_grammar
from tests.tools.gbnf_matcher import Grammar

BUILTIN = tuple(Registry.builtin().all_specs().values())


def to_gbnf(specs: Iterable[ToolSpec]) -> str:
    """What is exported, with strings that a sample can fill."""
    return line_grammar({spec.name: spec for spec in specs}, max_chars=30).gbnf


def object_of(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def line(arguments: Any, name: str = "t") -> str:
    call = {"type": "tool_call", "name": name, "arguments": arguments}
    return json.dumps(call, ensure_ascii=False, separators=(",", ":"))


def takes(schema: Any, value: Any) -> bool:
    """Whether the grammar of a tool with one argument of this schema takes this value."""
    spec = ToolSpec("t", parameters=object_of(("a",), a=schema))
    return Grammar(to_gbnf([spec])).matches(line({"a": value}))


def test_it_takes_the_lines_of_the_built_in_tools() -> None:
    grammar = Grammar(whole_gbnf(BUILTIN))
    for text in (
        '{"type":"tool_call","name":"calculator","arguments":{"expression":"17 * 23"}}',
        '{"type":"tool_call","name":"clock","arguments":{}}',
        '{"type":"tool_call","name":"clock","arguments":{"timezone":"Europe/Berlin"}}',
        '{"type":"tool_call","name":"file_access","arguments":{"operation":"list","path":"."}}',
        '{"type":"final_answer","content":"17 times 23 is 391. \\"é\\" \\u00e9 \\ud83d\\ude00"}',
        '{"type":"final_answer","content":""}',
    ):
        assert grammar.matches(text), text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "391",
        '{"type":"final_answer"}',
        '{"type":"final_answer","content":null}',
        '{"type":"final_answer","content":"\n"}',
        '{"type":"final_answer","content":"\\d"}',
        '{"type":"final_answer","content":"\\ud83d"}',
        '{"type":"final_answer","content":"a"}\n',
        '{"type":"tool_call","name":"nothing","arguments":{}}',
        '{"type":"tool_call","name":"calculator","arguments":{}}',
        '{"type":"tool_call","name":"calculator","arguments":{"expression":""}}',
        '{"type":"tool_call","name":"calculator","arguments":{"expression":"1","x":1}}',
        '{"type":"tool_call","name":"clock","arguments":{,"timezone":"UTC"}}',
        '{"type":"tool_call","name":"clock","arguments":{"timezone":"UTC"',
        '{"type":"tool_call","name":"file_access","arguments":{"operation":"write","path":"."}}',
        '{"type":"tool_call","name":"file_access","arguments":{"operation":"read"}}',
    ],
)
def test_it_takes_no_other_line(text: str) -> None:
    assert not Grammar(to_gbnf(BUILTIN)).matches(text)


@pytest.mark.parametrize(
    ("schema", "fits", "not_fits"),
    [
        ({"type": "string"}, ["", 'a"\\\u2028'], [1, None, True]),
        ({"type": "string", "maxLength": 2}, ["", "ab", "é😀"], ["abc"]),
        ({"type": "string", "minLength": 2}, ["ab", "abc"], ["", "a"]),
        ({"type": "string", "minLength": 2, "maxLength": 2}, ["ab"], ["a", "abc"]),
        ({"type": "string", "maxLength": 0}, [""], ["a"]),
        ({"type": "string", "format": "date"}, ["2026-11-21"], ["2026-13-01", "x", "2026-11-40"]),
        (
            {"type": "string", "format": "date-time"},
            ["2026-11-21T10:00:00Z", "2026-11-21T23:59:59.5+02:00"],
            ["2026-11-21", "2026-11-21T25:00:00Z"],
        ),
        ({"type": "string", "format": "email"}, ["anything"], [1]),
        ({"type": "integer"}, [0, -7, 10**15], [1.5, "1", True]),
        ({"type": "integer", "minimum": 1}, [1, 7, 1000], [0, -1]),
        ({"type": "integer", "minimum": -3, "maximum": 12}, [-3, 0, 12], [-4, 13]),
        ({"type": "integer", "exclusiveMinimum": 1.5, "exclusiveMaximum": 4}, [2, 3], [1, 4]),
        ({"type": "number"}, [0, -1.5, 1e30, 2.5e-7], ["1", None]),
        ({"type": "number", "minimum": 0}, [0, 1.5], [-1]),
        ({"type": "number", "maximum": -1}, [-2.5], [1]),
        ({"type": "boolean"}, [True, False], [0, None]),
        ({"type": "null"}, [None], [False, 0]),
        ({"type": ["integer", "null"]}, [1, None], ["x", 1.5]),
        ({"enum": ["a", "é\n", 1, None]}, ["a", "é\n", 1, None], ["b", 2]),
        ({"enum": ["a", 1], "type": "string"}, ["a"], [1]),
        ({"const": {"k": [1]}}, [{"k": [1]}], [{}, {"k": [2]}]),
        ({"type": "array"}, [[], [1, "a", [{}]]], [{}]),
        ({"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3]], [["a"]]),
        ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
        ({"type": "array", "items": False}, [[]], [[1]]),
        ({"type": "array", "maxItems": 0}, [[]], [[1]]),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
            [[], [1], [1, "a"]],
            [["a"]],
        ),
        (
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}],
                "items": {"type": "string"},
                "minItems": 2,
            },
            [[1, "a"], [1, "a", "b"]],
            [[1], [], ["a", "b"]],
        ),
        ({"type": "object"}, [{}, {"x": 1, "y": {}}], [[]]),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            [{}, {"x": 1, "y": 2}],
            [{"x": "a"}],
        ),
        ({"type": "object", "additionalProperties": False}, [{}], [{"x": 1}]),
        ({"type": "object", "minProperties": 1}, [{"x": 1}], [{}]),
        (
            {"type": "object", "propertyNames": {"enum": ["k"]}, "additionalProperties": True},
            [{"k": 1}],
            [{"l": 1}],
        ),
        (
            object_of(p={"type": "integer"}, q={"type": "integer"}, r={"type": "integer"}),
            [{}, {"p": 1}, {"q": 1}, {"r": 1}, {"p": 1, "r": 2}, {"p": 1, "q": 2, "r": 3}],
            [{"r": 1, "p": 2}, {"s": 1}, {"p": "x"}],
        ),
        (
            object_of(("q",), p={"type": "integer"}, q={"type": "integer"}),
            [{"q": 1}, {"p": 2, "q": 1}],
            [{}, {"p": 1}, {"q": 1, "p": 2}],
        ),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["a"]),
        ({"oneOf": [{"const": "x"}, {"type": "integer"}]}, ["x", 3], ["y"]),
        ({"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 5}]}, [1, 5], [0, 6]),
        (
            {
                "type": "object",
                "properties": {"p": {"type": "integer"}, "q": {"type": "integer"}},
                "anyOf": [{"required": ["p"]}, {"required": ["q"]}],
            },
            [{"p": 1}, {"q": 1}, {"p": 1, "q": 2}],
            [{}],
        ),
        ({"type": "number", "allOf": [{"type": "integer"}]}, [1], [1.5]),
        ({"minimum": 3}, [3.5], [-1]),
        ({}, [1, "a", None, True, [], {"a": [1]}], []),
        (True, [1, {}], []),
    ],
)
def test_it_takes_the_values_that_fit(schema: Any, fits: list[Any], not_fits: list[Any]) -> None:
    for value in fits:
        assert takes(schema, value), value
    for value in not_fits:
        assert not takes(schema, value), value


def test_a_schema_may_refer_to_itself() -> None:
    node = object_of(
        ("v",), v={"type": "integer"}, kids={"type": "array", "items": {"$ref": "#/$defs/Node"}}
    )
    spec = ToolSpec(
        "t", parameters={**object_of(("a",), a={"$ref": "#/$defs/Node"}), "$defs": {"Node": node}}
    )
    grammar = Grammar(to_gbnf([spec]))
    assert grammar.matches(line({"a": {"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3}]}}))
    assert not grammar.matches(line({"a": {"v": 1, "kids": [{"kids": []}]}}))


TREE = {
    "type": "object",
    "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
}


@pytest.mark.parametrize(
    "specs", [BUILTIN, (*BUILTIN, ToolSpec("grow", parameters={**TREE, "$defs": {"tree": TREE}}))]
)
def test_a_reader_that_makes_one_token_of_all_that_is_regular_takes_the_same_lines(
    specs: tuple[ToolSpec, ...],
) -> None:
    """llguidance's lexer takes the longest token there may be, and does not go back: so no line may
    begin both as a token and as a part of a longer one, as calls beside an answer would."""
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(gbnf_to_lark(whole_gbnf(specs))))
    assert not matcher.is_error(), matcher.get_error()
    lines = {
        '{"type":"final_answer","content":"It is 391. \\"é\\""}': True,
        line({"expression": "17 * 23"}, "calculator"): True,
        line({"operation": "read", "path": "a"}, "file_access"): True,
        line({}, "clock"): True,
        line({"below": [{"below": []}, {}]}, "grow"): len(specs) > len(BUILTIN),
        line({"expression": 1}, "calculator"): False,
        line({}, "nothing"): False,
    }
    for text, fits in lines.items():
        matcher.reset()
        tokens = tokenizer.tokenize_bytes(text.encode())
        taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert taken == fits, text


def test_what_all_lines_begin_with_stands_once() -> None:
    grammar = whole_gbnf([ToolSpec(f"tool_{number}") for number in range(300)])
    assert grammar.count('"\\"tool_call\\""') == grammar.count('"\\"type\\""') == 1


def test_a_tool_that_nothing_fits_is_refused_by_name() -> None:
    endless = {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}
    for schema in (False, {"enum": []}, {"type": "integer", "minimum": 2, "maximum": 1}, endless):
        with pytest.raises(ToolDefinitionError, match=r"^t: no arguments fit"):
            to_gbnf([ToolSpec("t", parameters=object_of(("a",), a=schema))])


def test_a_schema_that_never_ends_is_refused() -> None:
    endless = {**object_of(("a",), a={"$ref": "#/$defs/A"}), "$defs": {"A": {"$ref": "#/$defs/A"}}}
    with pytest.raises(ToolDefinitionError, match="without end"):
        to_gbnf([ToolSpec("t", parameters=endless)])


def test_what_is_optional_and_fits_nothing_is_left_out() -> None:
    spec = ToolSpec("t", parameters=object_of((), a=False, b={"type": "integer"}))
    assert Grammar(to_gbnf([spec])).matches(line({"b": 1}))


@pytest.mark.parametrize("name", ["a_b", "a.b", "A-b", "a-b", "-", "value", "call-x", "root", "7"])
def test_any_tools_name_makes_sound_rules(name: str) -> None:
    specs = [ToolSpec(name), ToolSpec("a__b"), ToolSpec("A_B")]
    grammar = Grammar(to_gbnf(specs))
    for spec in specs:
        assert grammar.matches(line({}, spec.name))


def test_the_same_tools_give_the_same_grammar_in_any_order() -> None:
    assert whole_gbnf(BUILTIN) == whole_gbnf(reversed(BUILTIN))


def test_no_tools_leave_the_answer() -> None:
    grammar = Grammar(to_gbnf([]))
    assert grammar.matches('{"type":"final_answer","content":"x"}')


SCALARS: Any = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={"minLength": st.integers(0, 3), "maxLength": st.integers(3, 6)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("integer")},
        optional={"minimum": st.integers(-300, 5), "maximum": st.integers(5, 300)},
    ),
    st.fixed_dictionaries({"type": st.just("number")}, optional={"minimum": st.just(0)}),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": "x"}]),
    st.builds(
        lambda values: {"enum": values},
        st.lists(
            st.sampled_from(["a", "é", 1, None, True]), min_size=1, max_size=3, unique_by=repr
        ),
    ),
)


def larger(schemas: Any) -> Any:
    names = st.sampled_from(["p", "q", "r s", "t"])
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": schemas},
            optional={"minItems": st.integers(0, 2), "maxItems": st.integers(2, 3)},
        ),
        st.builds(
            lambda properties, required: object_of(
                tuple(name for name in properties if name in required), **properties
            ),
            st.dictionaries(names, schemas, max_size=3),
            st.sets(names),
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(schemas, min_size=1, max_size=3)),
        st.builds(lambda values: {"type": "object", "additionalProperties": values}, schemas),
    )


SCHEMAS: Any = st.recursive(SCALARS, larger, max_leaves=6)


@pytest.mark.slow
@given(SCHEMAS, st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_whatever_it_makes_fits_the_schema_of_the_line(schema: Any, seed: int) -> None:
    specs = [ToolSpec("t", parameters=object_of(("a",), a=schema)), *BUILTIN[:1]]
    grammar = Grammar(to_gbnf(specs))
    validator = Draft202012Validator(to_jsonschema(specs))
    chance = random.Random(seed)
    for _ in range(5):
        text = grammar.sample(chance)
        assert grammar.matches(text)
        validator.validate(json.loads(text))
