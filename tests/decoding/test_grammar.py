"""What the grammar of a turn holds, what it says that it leaves, and what it refuses."""

from __future__ import annotations

import functools
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from mlx_tools.backends.base import GrammarText
from mlx_tools.decoding.grammar import Grammar, grammar_for
from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.messages import Style
from mlx_tools.protocol import forcing_prefix, write_answer, write_call
from mlx_tools.spec import ToolSpec
from mlx_tools.tools.grammar.nodes import NOTHING, Node, Rules
from mlx_tools.tools.grammar.ranges import Bounds, decimals, integers
from mlx_tools.tools.grammar.write import to_lark
from tests.tools.gbnf_matcher import Grammar as GbnfGrammar

STYLES: tuple[Style, ...] = ("jsonl", "markdown-json", "xml")


@functools.cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def matcher(lark: str) -> LLMatcher:
    found = LLMatcher(tokenizer(), LLMatcher.grammar_from_lark(lark))
    assert not found.is_error(), found.get_error()
    return found


def takes(grammar: GrammarText, text: str) -> bool:
    tokens = tokenizer().tokenize_bytes(text.encode())
    judge = matcher(grammar.lark)
    verdict = judge.try_consume_tokens(tokens) == len(tokens) and judge.is_accepting()
    assert GbnfGrammar(grammar.gbnf).matches(text) == verdict
    return verdict


def tools(*names: str, **schemas: Any) -> dict[str, ToolSpec]:
    """Tools of these names without arguments, and some with one argument of a schema."""
    found = {name: ToolSpec(name) for name in names}
    for name, schema in schemas.items():
        parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
        found[name] = ToolSpec(name, parameters=parameters)
    return found


def grammar(schema: Any, **definitions: Any) -> Grammar:
    spec = tools(t=schema)["t"]
    parameters = {**spec.parameters, "$defs": definitions}
    return grammar_for({"t": ToolSpec("t", parameters=parameters)}, max_chars=40)


def fits(schema: Any, value: Any, **definitions: Any) -> bool:
    return takes(grammar(schema, **definitions), write_call("t", {"v": value}))


LINE = write_call("t", {"v": 0})


# --- the line ---------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_calls_and_the_answer_are_taken_together(style: Style) -> None:
    made = grammar_for(tools("a", "b"), style=style)
    for text in (
        write_call("a", {}, style=style),
        write_call("b", {}, style=style),
        write_answer('it is "7" <b>\n', style),
        write_answer(" with </final_answer> and white space ", style),
    ):
        assert takes(made, text), text
    for text in ("", "7", write_call("c", {}, style=style), write_call("a", {}, "7", style)):
        assert not takes(made, text), text


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        ("auto", ("a", "b", "answer")),
        ("none", ("answer",)),
        ("required", ("a", "b")),
        ("b", ("b",)),
    ],
)
def test_a_choice_narrows_it(style: Style, choice: str, taken: tuple[str, ...]) -> None:
    prefix = forcing_prefix(style, choice)
    whole = grammar_for(tools("a", "b"), style=style, tool_choice=choice)
    rest = grammar_for(tools("a", "b"), style=style, tool_choice=choice, prefix=prefix)
    lines = {name: write_call(name, {}, style=style) for name in ("a", "b")}
    lines["answer"] = write_answer("so < be it", style)
    for name, line in lines.items():
        assert takes(whole, line) == (name in taken)
        if line.startswith(prefix):
            assert takes(rest, line.removeprefix(prefix)) == (name in taken)


@pytest.mark.parametrize("style", STYLES)
def test_several_calls_stand_one_a_line(style: Style) -> None:
    made = grammar_for(tools("a", "b"), style=style, max_calls=2)
    one, other = (write_call(name, {}, style=style) for name in ("a", "b"))
    assert takes(made, one)
    assert takes(made, f"{one}\n{other}")
    assert not takes(made, f"{one}\n{other}\n{one}")
    assert not takes(made, f"{one}{other}")
    assert not takes(made, f"{one}\n{write_answer('x', style)}")


def test_an_answer_in_tags_ends_at_its_first_closing_tag() -> None:
    made = grammar_for({}, style="xml")
    for content in ("", "<", "a<<b", "</final", "</final_answe</f", "</final_answer", "é😀\x00\n"):
        assert takes(made, f"<final_answer>{content}</final_answer>"), content
    assert not takes(made, "<final_answer>a</final_answer></final_answer>")
    assert not takes(made, "<final_answer>a</final_answer>b</final_answer>")


def test_names_that_begin_alike_are_told_apart() -> None:
    made = grammar_for(tools("get", "get_all"), prefix='{"type":"tool_call","name":"get')
    assert takes(made, '","arguments":{}}')
    assert takes(made, '_all","arguments":{}}')
    assert not takes(made, '_some","arguments":{}}')


def test_a_prefix_may_end_anywhere() -> None:
    made = grammar_for(tools(t={"type": "integer"}), prefix=write_call("t", {"v": 12})[:-2])
    assert takes(made, "}}")
    assert takes(made, "3}}")
    assert not takes(made, ".5}}")


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(UsageError, match="no tool 'c'"):
        grammar_for(tools("a"), tool_choice="c")
    with pytest.raises(UsageError, match="no tools"):
        grammar_for({}, tool_choice="required")
    with pytest.raises(UsageError, match="begins with 'So'"):
        grammar_for(tools("a"), prefix="So")
    with pytest.raises(UsageError, match="max_calls is 0"):
        grammar_for(tools("a"), max_calls=0)


def test_the_same_tools_give_the_same_text() -> None:
    catalog = tools("a", t={"anyOf": [{"type": "integer", "minimum": 3}, {"type": "object"}]})
    assert grammar_for(catalog) == grammar_for(dict(catalog))


# --- strings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [899, 900, 901, 1800, 2345])
def test_a_long_bound_is_held_to_the_character(most: int) -> None:
    made = grammar({"type": "string", "minLength": most - 3, "maxLength": most})
    for size, taken in ((most - 4, False), (most - 3, True), (most, True), (most + 1, False)):
        assert takes(made, write_call("t", {"v": "é" * size})) == taken


def test_no_repetition_is_longer_than_llama_cpp_takes() -> None:
    long = {"type": "string", "maxLength": 10**12}
    made = grammar_for(
        tools(t={"type": "array", "minItems": 1000, "maxItems": 50_000, "items": long})
    )
    matcher(made.lark)
    counts = [int(count) for count in re.findall(r"\d+(?=[,}])", made.gbnf)]
    assert max(counts) < 1000


@pytest.mark.parametrize("style", STYLES)
def test_what_is_repeated_is_never_a_group_which_llama_cpp_would_count_in_full(
    style: Style,
) -> None:
    pairs = {"type": "array", "items": {"type": "object", "minProperties": 2}, "minItems": 3}
    made = grammar_for(tools(t=pairs), style=style, max_calls=5)
    assert "){" not in made.gbnf
    matcher(made.lark)


def test_a_string_without_a_bound_gets_one() -> None:
    made = grammar_for(tools(t={"type": "string"}), max_chars=5)
    assert takes(made, write_call("t", {"v": "12345"}))
    assert not takes(made, write_call("t", {"v": "123456"}))
    assert takes(made, write_answer("12345"))
    assert not takes(made, write_answer("123456"))


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (r'"\u00e9\ud83d\ude00\n\/\\\""', True),
        (r'"\ud83d"', False),
        (r'"\ude00\ud83d"', False),
        (r'"\ud83dx"', False),
        (r'"\x41"', False),
        (r'"\u12"', False),
        ('"\t"', False),
        ('"\x7f\u2028"', True),
    ],
)
def test_escapes_are_those_of_the_strict_reader(text: str, taken: bool) -> None:
    assert takes(grammar({"type": "string"}), LINE.replace("0", text)) == taken


# --- schemas ----------------------------------------------------------------------------------


def test_a_schema_may_refer_to_itself() -> None:
    node = {
        "type": "object",
        "properties": {"k": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
        "required": ["k"],
    }
    tree = {"k": [{"k": []}, {"k": [{"k": []}]}]}
    assert fits({"$ref": "#/$defs/Node"}, tree, Node=node)
    assert not fits({"$ref": "#/$defs/Node"}, {"k": [{}]}, Node=node)


def test_a_schema_that_grows_by_merging_with_itself_ends() -> None:
    base = {"type": "object", "properties": {"n": {"$ref": "#/$defs/Base"}}}
    node = {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"n": {"$ref": "#/$defs/Node"}}}]}
    assert fits({"$ref": "#/$defs/Node"}, {"n": {"n": {}}}, Base=base, Node=node)


def test_all_of_closes_what_one_part_closes() -> None:
    closed = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    other = {"properties": {"b": {"type": "integer"}}}
    assert fits({"allOf": [closed, other]}, {"a": 1})
    assert not fits({"allOf": [closed, other]}, {"b": 1})
    with pytest.raises(ToolDefinitionError, match="no arguments fit"):
        grammar({"allOf": [closed, {**other, "required": ["b"]}]})


def test_true_and_one_are_different_constants() -> None:
    merged = {"allOf": [{"enum": [True, 2]}, {"enum": [1, 2.0]}]}
    assert fits(merged, 2)
    assert not fits(merged, True)


def test_listed_values_keep_to_the_other_keywords() -> None:
    schema = {"enum": [1, 5, "ab", "abc", None, 2.0], "minimum": 2, "maxLength": 2}
    assert [value for value in schema["enum"] if fits(schema, value)] == [5, "ab", None, 2.0]


def test_a_whole_number_is_spelled_as_one() -> None:
    assert fits({"type": "integer", "enum": [3.0]}, 3)
    assert not fits({"type": "integer", "enum": [3.0]}, 3.0)


def test_named_keys_of_a_map_come_once() -> None:
    schema = {"type": "object", "propertyNames": {"enum": ["x", "y"]}}
    assert fits(schema, {"x": 1, "y": []})
    assert not takes(
        grammar(schema), '{"type":"tool_call","name":"t","arguments":{"v":{"x":1,"x":1}}}'
    )
    with pytest.raises(ToolDefinitionError, match="no arguments fit"):
        grammar({**schema, "required": ["z"]})


def test_members_are_counted() -> None:
    properties = {name: {"type": "integer"} for name in "abcd"}
    schema = {"type": "object", "properties": properties, "minProperties": 2, "maxProperties": 3}
    for names, taken in (("a", False), ("ac", True), ("bcd", True), ("abcd", False)):
        assert fits(schema, dict.fromkeys(names, 1)) == taken
    others = {**schema, "additionalProperties": {"type": "null"}}
    assert fits(others, {"a": 1, "x": None, "y": None})
    assert not fits(others, {"a": 1, "b": 1, "x": None, "y": None})
    assert not fits(others, {"x": None})


def test_an_object_of_many_members_is_no_trouble() -> None:
    properties = {f"k{number}": {"type": "integer"} for number in range(60)}
    schema = {"type": "object", "properties": properties}
    assert fits(schema, {"k7": 1, "k59": 2})
    assert not fits(schema, {"k59": 1, "k7": 2})


def test_another_key_is_never_one_of_the_named() -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in ("a", "ab", "", "é")},
        "additionalProperties": {"type": "null"},
    }
    for key in ("b", "abc", "aé", "éa", "\U0001f600", " "):
        assert fits(schema, {key: None})
    for key in ("a", "ab", "", "é"):
        assert not fits(schema, {key: None})
    spelled = '{"type":"tool_call","name":"t","arguments":{"v":{"\\u0061":null}}}'
    assert not takes(grammar(schema), spelled)


# --- numbers ----------------------------------------------------------------------------------

EIGHTHS = st.integers(-9000, 9000).map(lambda whole: Decimal(whole) / 8)
DECIMALS = EIGHTHS | st.decimals(-30, 30, places=3) | st.sampled_from([Decimal(0), Decimal(1)])


def written_by(node: Node, text: str) -> bool:
    if node == NOTHING:
        return False
    rules = Rules()
    rules.add("root", rules.add("number", node, terminal=True))
    judge = matcher(to_lark(rules))
    tokens = tokenizer().tokenize_bytes(text.encode())
    return judge.try_consume_tokens(tokens) == len(tokens) and judge.is_accepting()


@settings(max_examples=100, deadline=None)
@given(
    st.none() | DECIMALS,
    st.none() | DECIMALS,
    st.booleans(),
    st.booleans(),
    st.lists(DECIMALS, max_size=5),
)
def test_a_range_of_decimals_takes_its_numbers_alone(
    least: Decimal | None, most: Decimal | None, above: bool, below: bool, others: list[Decimal]
) -> None:
    bounds = Bounds(least, most, above and least is not None, below and most is not None)
    node = decimals(bounds)
    near = [
        bound + step
        for bound in (least, most)
        if bound is not None
        for step in (Decimal(0), Decimal("0.001"), Decimal("-0.001"))
    ]
    for number in {*near, *others}:
        text = format(number, "f")
        if not number.is_zero():
            assert written_by(node, text) == bounds.holds(number), text
    assert not written_by(node, "007")


@settings(max_examples=100, deadline=None)
@given(
    st.none() | st.integers(-(10**6), 10**6),
    st.none() | st.integers(-(10**6), 10**6),
    st.lists(st.integers(-(10**7), 10**7), max_size=5),
)
def test_a_range_of_integers_takes_its_numbers_alone(
    least: int | None, most: int | None, others: list[int]
) -> None:
    node = integers(least, most)
    ends = [bound + step for bound in (least, most) if bound is not None for step in (-1, 0, 1)]
    for number in {0, -1, 1, *ends, *others}:
        held = (least is None or number >= least) and (most is None or number <= most)
        assert written_by(node, str(number)) == held, number


@pytest.mark.parametrize("text", ["9e99", "1e279", "99999999999999999999e279", "5e-999", "-1E+5"])
def test_no_number_that_it_takes_overflows(text: str) -> None:
    assert takes(grammar({"type": "number"}), LINE.replace("0", text))
    assert abs(float(text)) < float("inf")


@pytest.mark.parametrize("bound", [1, 100, 12345.5, 0.001])
def test_a_number_just_under_a_bound_stays_under_it_when_it_is_read(bound: float) -> None:
    made = grammar({"type": "number", "exclusiveMaximum": bound})
    near = [format(Decimal(str(bound)) - Decimal(10) ** -places, "f") for places in range(1, 22)]
    taken = [text for text in near if takes(made, LINE.replace("0", text))]
    assert len(taken) > 5
    assert all(float(text) < bound for text in taken)


# --- what is left -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"type": "string", "pattern": "^a"}, ("t: pattern",)),
        ({"type": "string", "format": "email"}, ("t: format",)),
        ({"type": "string", "format": "date"}, ()),
        ({"type": "array", "uniqueItems": True}, ("t: uniqueItems",)),
        ({"type": "array", "uniqueItems": False}, ()),
        ({"type": "integer", "multipleOf": 5}, ("t: multipleOf",)),
        ({"type": "object", "patternProperties": {"^x": {}}}, ("t: patternProperties",)),
        ({"not": {"type": "null"}}, ("t: not",)),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ()),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ("t: oneOf",)),
        ({"oneOf": [{"const": 1}, {"type": "string"}, {"enum": [2, "x"]}]}, ("t: oneOf",)),
        (
            {
                "oneOf": [
                    {"type": "object", "properties": {"k": {"const": kind}}, "required": ["k"]}
                    for kind in ("a", "b")
                ]
            },
            (),
        ),
        ({"type": "number", "minimum": 1e300}, ("t: minimum",)),
        ({"type": "number", "exclusiveMaximum": 123456789012345.5}, ("t: exclusiveMaximum",)),
        ({"properties": {"a": {"type": "string"}}, "minLength": 1}, ()),
    ],
)
def test_what_is_left_to_validation_is_named(schema: Any, left: tuple[str, ...]) -> None:
    assert grammar(schema).left_to_validation == left


LONG = {"anyOf": [{"type": "string", "minLength": size} for size in range(20)]}


def test_a_long_list_of_constants_is_one_alternative() -> None:
    schema = {"anyOf": [{"const": number} for number in range(500)]}
    assert fits({"allOf": [schema, {**schema, "title": "again"}]}, 499)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#/$defs/Nowhere"}, r"^t: \$ref: .*points to nothing"),
        ({"$ref": "other.json"}, r"^t: \$ref: .*points outside"),
        ({"$ref": "#/$defs/Loop"}, r"^t: \$ref: .*without end"),
        ({"type": "dict"}, r"^t: type: 'dict' is no type"),
        ({"allOf": [LONG, {**LONG, "title": "again"}]}, r"^t: allOf: more than"),
        ({"items": 7}, r"^t: a schema is neither"),
        ({"type": "string", "minLength": 10**9}, r"^t: minLength: more than"),
        (False, r"^t: no arguments fit its schema"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_tool_and_keyword(schema: Any, words: str) -> None:
    with pytest.raises(ToolDefinitionError, match=words):
        grammar(schema, Loop={"anyOf": [{"$ref": "#/$defs/Loop"}]})


def test_a_deep_schema_is_refused() -> None:
    deep: Any = {}
    for _ in range(2000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ToolDefinitionError, match=r"^t: .*deep"):
        grammar(deep)
