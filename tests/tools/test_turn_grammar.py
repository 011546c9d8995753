"""The grammar of a turn, in both dialects: it takes what fits, as the host writes it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from mlx_tools import builtin_tools
from mlx_tools.backends.grammars import repeated_end, turn_grammar
from mlx_tools.errors import UsageError
from mlx_tools.messages import Style, ToolSpec
from mlx_tools.protocol import (
    ReadingRules,
    forcing_prefix,
    judge,
    read,
    write_answer,
    write_call,
)
from mlx_tools.schema import make_compilable
from mlx_tools.tools.exports import to_gbnf
from tests.decoding.schemas import tools
from tests.schema.test_compilable import OVERFLOW, SPELLED, in_order, tokenizer
from tests.tables import table

STYLES: tuple[Style, ...] = ("jsonl", "markdown-json", "xml")
BUILTIN = builtin_tools().all_specs()


def matcher(lark: str) -> LLMatcher:
    found = LLMatcher(tokenizer(), lark)
    assert not found.is_error(), found.get_error()
    return found


class Turn:
    """A turn's grammar in both dialects."""

    def __init__(self, specs: Any, **options: Any) -> None:
        self.prefix = options.get("prefix", "")
        lark = turn_grammar(specs, dialect="lark", **options)
        gbnf = turn_grammar(specs, dialect="gbnf", **options)
        names = [line.partition(" ::= ")[0] for line in gbnf.splitlines()]
        # llama.cpp takes no other names; llguidance, which reads the grammar here, does
        assert all(re.fullmatch("[a-zA-Z0-9-]+", name) for name in names)
        self._matchers = matcher(lark), matcher(gbnf_to_lark(gbnf))

    def takes(self, text: str) -> tuple[bool, bool]:
        """Return True if each dialect takes a whole turn, the prefix included."""
        assert text.startswith(self.prefix)
        rest = repeated_end(self.prefix) + text[len(self.prefix) :]
        tokens = tokenizer().tokenize_bytes(rest.encode())
        return tuple(self._takes(one, tokens) for one in self._matchers)  # type: ignore[return-value]

    @staticmethod
    def _takes(one: LLMatcher, tokens: list[int]) -> bool:
        one.reset()
        return one.try_consume_tokens(tokens) == len(tokens) and one.is_accepting()


def spec_of(schema: Any, **more: Any) -> ToolSpec:
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"], **more}
    return ToolSpec("t", parameters=parameters)


# --- the turn ---------------------------------------------------------------------------------


@table("style", STYLES)
@table("choice", ["auto", "none", "required", "clock"])
@table("most", [1, 3])
def test_a_turn_is_calls_or_the_answer_as_the_choice_has_it(
    style: Style, choice: str, most: int
) -> None:
    clock = write_call("clock", {}, style=style)
    sum_ = write_call("calculator", {"expression": '1+"é'}, style=style)
    answers = [write_answer(text, style) for text in ('a </x> "b"\n', " </final_answer>", "")]
    any_call, several = choice in ("auto", "required"), most > 1
    due = {
        clock: choice != "none",
        sum_: any_call,
        f"{clock}\n{clock}": several and choice != "none",
        f"{clock}\n{sum_}\n{clock}": several and any_call,
        "\n".join([clock] * 4): False,
        **dict.fromkeys(answers, choice in ("auto", "none")),
        f"{clock}\n{answers[0]}": False,
        f"{clock} ": False,
        write_call("clock", {"timezone": 1}, style=style): False,
        write_call("clocks", {}, style=style): False,
        write_call("clock", {}, "7", style): False,
    }
    for prefix in ("", forcing_prefix(style, choice)):
        options: Any = {"style": style, "tool_choice": choice, "max_calls": most}
        turn = Turn(BUILTIN, prefix=prefix, **options)
        for text, taken in due.items():
            if text.startswith(prefix):
                assert turn.takes(text) == (taken, taken), text


def test_an_answer_in_tags_ends_at_its_first_closing_tag() -> None:
    turn = Turn({}, style="xml")
    for content in ("", "<", "a<<b", "</final", "</final_answe</f", "</final_answer", "é😀\x00\n"):
        assert turn.takes(f"<final_answer>{content}</final_answer>") == (True, True), content
    for after in ("b", "</final_answer>"):
        assert turn.takes(f"<final_answer>a</final_answer>{after}") == (False, False)


def test_a_prefix_may_end_within_a_name() -> None:
    specs = {name: ToolSpec(name) for name in ("get", "get_all", "other")}
    turn = Turn(specs, prefix='{"type":"tool_call","name":"get', max_calls=2)
    for name, taken in (("get", True), ("get_all", True), ("get_some", False)):
        assert turn.takes(write_call(name, {})) == (taken, taken)
    assert turn.takes(f"{write_call('get', {})}\n{write_call('other', {})}") == (True, True)


def test_what_cannot_be_asked_for_is_refused() -> None:
    for options, words in (
        ({"tool_choice": "c"}, "no tool 'c'"),
        ({"prefix": "So"}, "begins with 'So'"),
    ):
        with pytest.raises(UsageError, match=words):
            turn_grammar({"a": ToolSpec("a")}, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no tools"):
        turn_grammar({}, tool_choice="required")


@pytest.mark.parametrize("name", ["a_b", "a.b", "A-b", "a-b", "value", "call-x", "root", "more"])
def test_any_tools_name_makes_sound_rules(name: str) -> None:
    specs = {one: ToolSpec(one) for one in (name, "a__b", "A_B", "rest", "first")}
    turn = Turn(specs)
    for one in specs:
        assert turn.takes(write_call(one, {})) == (True, True)


def test_a_rule_never_takes_the_place_of_another_tools() -> None:
    def needs(key: str) -> ToolSpec:
        parameters = {"type": "object", "properties": {key: {"type": "null"}}, "required": [key]}
        return ToolSpec("t", parameters=parameters)

    for number in range(10, 40):  # a name that is taken gets the number of rules so far
        specs = {"a.b": needs("p"), f"a-b-{number}": needs("q"), "a_b": needs("r")}
        written = turn_grammar(specs, dialect="gbnf")
        assert all(rf'("\"{key}\":"' in written for key in "pqr"), number


# --- the values -------------------------------------------------------------------------------

TREE = {
    "type": "object",
    "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
}
PLAIN = {"type": "object", "properties": {name: {"type": "integer"} for name in "pqr"}}


@table(
    ("schema", "fits", "not_fits"),
    [
        ({"type": "string"}, ["", 'a"\\\u2028'], [1, None]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é😀\n"], ["a", "abcd"]),
        ({"type": "integer"}, [0, -7, 10**15], [1.5, "1", True]),
        ({"type": "integer", "minimum": 0}, [0, 7], [-1]),
        ({"type": "number"}, [0, -1.5, 2.5e-7], ["1", None]),
        ({"type": ["integer", "null"]}, [1, None], ["x", 1.5]),
        ({"enum": ["a", "é\n", 1, None, {"k": [1]}]}, ["a", "é\n", 1, None, {"k": [1]}], ["b", 2]),
        ({"type": "integer", "enum": [3.0]}, [3], [3.5]),
        ({"const": 1}, [1], [2]),
        ({"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3]], [["a"]]),
        ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, "b"]], [[], [1, 2, 3]]),
        ({"type": "array", "maxItems": 0}, [[]], [[1]]),
        ({"type": "object"}, [{}, {"x": 1, "y": {}}], [[]]),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
            [{"x": 1}, {"x": 1, "y": 2}],
            [{}, {"x": "a"}],
        ),
        (
            PLAIN,
            [{}, {"p": 1}, {"q": 1}, {"r": 1}, {"p": 1, "r": 2}, {"p": 1, "q": 2, "r": 3}],
            [{"r": 1, "p": 2}, {"s": 1}, {"p": "x"}],
        ),
        ({**PLAIN, "required": ["q"]}, [{"q": 1}, {"p": 2, "q": 1}], [{}, {"p": 1}]),
        (
            {**PLAIN, "additionalProperties": {"type": "null"}},
            [{"x": None}, {"q": 1, "x": None}],
            [{"x": 1}],
        ),
        ({**PLAIN, "required": ["z"]}, [{"p": 1, "z": "any"}], [{"p": 1}]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}, PLAIN]}, [1, None, {"q": 3}], ["a"]),
        ({"oneOf": [{"const": "x"}, {"type": "integer"}]}, ["x", 3], ["y"]),
        ({"$ref": "#/$defs/T"}, [{}, {"below": [{"below": []}, {}]}], [{"below": [7]}, {"x": 1}]),
        ({"allOf": [{"$ref": "#/$defs/T"}]}, [{"below": [{}]}], [[7]]),
        (True, [1, "a", None, [{"a": []}]], []),
    ],
)  # fmt: skip
def test_both_dialects_hold_to_it(schema: Any, fits: list[Any], not_fits: list[Any]) -> None:
    turn = Turn({"t": spec_of(schema, **{"$defs": {"T": TREE}})})
    for value in fits:
        assert turn.takes(write_call("t", {"v": value})) == (True, True), value
    for value in not_fits:
        assert turn.takes(write_call("t", {"v": value})) == (False, False), value


UNSAID = [
    ({"type": "integer", "minimum": 3}, 3, 2),
    ({"type": "string", "pattern": "^a$"}, "a", "b"),
    ({"type": "array", "prefixItems": [{"type": "integer"}]}, [1], ["a"]),
    ({"allOf": [{"type": "number"}, {"maximum": 3}]}, 1, 4),
    ({"allOf": [PLAIN, {"required": ["p"]}]}, {"p": 1}, {"q": 1}),
]


@pytest.mark.parametrize(("schema", "fits", "not_fits"), UNSAID)
def test_what_gbnf_does_not_say_is_left_to_validation(
    schema: Any, fits: Any, not_fits: Any
) -> None:
    turn = Turn({"t": spec_of(schema)})
    assert turn.takes(write_call("t", {"v": fits})) == (True, True)
    assert turn.takes(write_call("t", {"v": not_fits})) == (False, True)


def test_properties_that_others_add_are_not_shut_out() -> None:
    mixed = {"allOf": [PLAIN, {"properties": {"s": {"type": "null"}}, "required": ["s"]}]}
    assert Turn({"t": spec_of(mixed)}).takes(write_call("t", {"v": {"p": 1, "s": None}}))[0]


def test_no_repetition_is_longer_than_llama_cpp_takes() -> None:
    text = {"type": "string", "minLength": 850, "maxLength": 1500}
    long = {"type": "array", "minItems": 899, "maxItems": 5000, "items": text}
    made = turn_grammar({"t": spec_of(long)}, dialect="gbnf")
    assert 850 < max(map(int, re.findall(r"\d+(?=[,}])", made))) < 1000


@pytest.mark.parametrize("needed", [True, False])
def test_the_text_grows_with_the_properties_and_no_faster(needed: bool) -> None:
    sizes = []
    for count in (100, 200, 3000):
        names = [f"p{number:04}" for number in range(count)]
        properties = {name: {"type": "string"} for name in names}
        parameters = {"type": "object", "properties": properties}
        if needed:
            parameters["required"] = names
        sizes.append(len(to_gbnf([ToolSpec("t", parameters=parameters)])))
    assert sizes[1] < 2.2 * sizes[0] and sizes[2] < 33 * sizes[0]


@given(st.data(), tools(), st.sampled_from(STYLES))
def test_a_call_that_fits_is_taken_and_its_neighbours_only_if_they_fit(
    data: st.DataObject, case: tuple[ToolSpec, dict[str, Any]], style: Style
) -> None:
    spec, arguments = case
    arguments = in_order(arguments, spec.parameters)
    turn = Turn({spec.name: spec}, style=style)
    line = write_call(spec.name, arguments, style=style)
    plain = "\x7f" not in line and "\\u003c" not in line and not SPELLED.search(line)
    in_gbnf = not re.search('"(?:minimum|maximum|allOf)":', json.dumps(spec.parameters))
    exact = make_compilable(spec.parameters).is_exact, in_gbnf
    by_lark, by_gbnf = turn.takes(line)
    assert by_gbnf and (by_lark or not plain)
    for _ in range(15):
        at = data.draw(st.integers(0, len(line)))
        put = data.draw(st.sampled_from(["", "0", "9", "-", ".", '"', ",", "{}", "null", "e", "]"]))
        changed = line[:at] + put + line[at + data.draw(st.integers(0, 2)) :]
        for taken, is_exact in zip(turn.takes(changed), exact, strict=True):
            if taken and is_exact and not OVERFLOW.search(changed):
                reading = read(changed, rules=ReadingRules(style=style, max_calls=1))
                assert reading.clean and reading.error is None
                assert [one.error for one in judge(reading, {spec.name: spec})] == [None]
