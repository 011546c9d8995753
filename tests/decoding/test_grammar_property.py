"""Whatever the tools: the grammar takes what fits them, as the host writes it, and nothing else.

llguidance judges its own dialect, byte by byte, and a small reader of GBNF the other.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from mlx_tools.decoding.grammar import Grammar, grammar_for
from mlx_tools.messages import Style, ToolCall
from mlx_tools.protocol import (
    ReadingRules,
    forcing_prefix,
    judge,
    read,
    write_answer,
    write_call,
)
from mlx_tools.spec import ToolSpec
from tests.tools.gbnf_matcher import Grammar as GbnfGrammar

MAX_CHARS = 20
STYLES: tuple[Style, ...] = ("jsonl", "markdown-json", "xml")


@functools.cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


grammar_of = functools.partial(grammar_for, max_chars=MAX_CHARS)


class Judge:
    """Says of a text whether both dialects of a grammar take it, which must agree.

    llguidance reads GBNF by rewriting it; that reading takes no more than the grammar does.
    """

    def __init__(self, grammar: Grammar) -> None:
        self._gbnf = GbnfGrammar(grammar.gbnf)
        self._lark = self._matcher(grammar.lark)
        self._rewritten = self._matcher(gbnf_to_lark(grammar.gbnf))

    def takes(self, text: str) -> bool:
        verdict = self._gbnf.matches(text)
        assert _takes(self._lark, text) == verdict, f"the dialects differ on {text!r}"
        assert verdict or not _takes(self._rewritten, text)
        return verdict

    def _matcher(self, lark: str) -> LLMatcher:
        matcher = LLMatcher(tokenizer(), LLMatcher.grammar_from_lark(lark))
        assert not matcher.is_error(), matcher.get_error()
        return matcher


def _takes(matcher: LLMatcher, text: str) -> bool:
    matcher.reset()
    tokens = tokenizer().tokenize_bytes(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


# --- schemas, each with values that fit it ----------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A schema, and a strategy of values that fit it, with keys in the schema's order."""

    schema: Any
    values: st.SearchStrategy[Any]


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
KEYS = st.text(st.sampled_from("abé_ \"\\<'/😀\n"), min_size=0, max_size=4)


@st.composite
def strings(draw: st.DrawFn) -> Case:
    least = draw(st.integers(0, 3))
    most = draw(st.none() | st.integers(least, 6))
    schema: dict[str, Any] = {"type": "string"}
    if least or draw(st.booleans()):
        schema["minLength"] = least
    if most is not None:
        schema["maxLength"] = most
    text = st.text(
        st.characters(codec="utf-8"), min_size=least, max_size=8 if most is None else most
    )
    return Case(schema, text)


@st.composite
def integers(draw: st.DrawFn) -> Case:
    least = draw(st.none() | st.integers(-(10**6), 10**6))
    most = draw(st.none() | st.integers(-(10**6) if least is None else least, 10**7))
    schema: dict[str, Any] = {"type": "integer"}
    if least is not None:
        barred = draw(st.booleans())
        schema["exclusiveMinimum" if barred else "minimum"] = least - barred
    if most is not None:
        barred = draw(st.booleans())
        schema["exclusiveMaximum" if barred else "maximum"] = most + barred
    low = -(10**19) if least is None else least
    return Case(schema, st.integers(low, max(low, 10**19) if most is None else most))


@st.composite
def numbers(draw: st.DrawFn) -> Case:
    if draw(st.booleans()):
        floats = st.floats(-1e250, 1e250, allow_nan=False)
        return Case({"type": "number"}, floats | st.integers(-(10**19), 10**19))
    least = draw(st.none() | st.integers(-2000, 2000).map(lambda whole: whole / 8))
    most = draw(st.none() | st.integers(0, 3000).map(lambda more: (least or 0) + more / 8))
    schema: dict[str, Any] = {"type": "number"}
    if least is not None:
        schema["minimum"] = least
    if most is not None:
        schema["maximum"] = most
    low = (most - 500 if most is not None else -500) if least is None else least
    high = low + 500 if most is None else most
    eighths = st.integers(math.ceil(low * 8), math.floor(high * 8)).map(lambda whole: whole / 8)
    return Case(schema, eighths)


CONSTANTS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-99, 99),
    st.sampled_from([1.5, -0.25, 1e30]),
    TEXTS,
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(KEYS, st.integers(0, 3), max_size=2),
)


@st.composite
def listed(draw: st.DrawFn) -> Case:
    values = draw(st.lists(CONSTANTS, min_size=1, max_size=4))
    if draw(st.booleans()):
        return Case({"const": values[0]}, st.just(values[0]))
    return Case({"enum": values}, st.sampled_from(values))


PLAIN_CASES = st.one_of(
    strings(),
    integers(),
    numbers(),
    listed(),
    st.just(Case({"type": "boolean"}, st.booleans())),
    st.just(Case({"type": ["null", "integer"]}, st.none() | st.integers(-(10**9), 10**9))),
    st.just(
        Case(
            {},
            st.recursive(
                CONSTANTS,
                lambda inner: (
                    st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2)
                ),
                max_leaves=4,
            ),
        )
    ),
)


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    case = draw(inner)
    least = draw(st.integers(0, 2))
    most = draw(st.none() | st.integers(least, 3))
    schema: dict[str, Any] = {"type": "array", "items": case.schema, "minItems": least}
    if most is not None:
        schema["maxItems"] = most
    return Case(schema, st.lists(case.values, min_size=least, max_size=3 if most is None else most))


@st.composite
def tuples(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = draw(st.lists(inner, min_size=1, max_size=3))
    schema = {
        "type": "array",
        "prefixItems": [case.schema for case in cases],
        "minItems": len(cases),
        "maxItems": len(cases),
    }
    return Case(schema, st.tuples(*(case.values for case in cases)).map(list))


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    named = draw(st.dictionaries(KEYS, inner, max_size=4))
    required = [key for key in named if draw(st.booleans())]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key: case.schema for key, case in named.items()},
        "required": required,
    }
    extra = draw(st.none() | inner)
    others: st.SearchStrategy[dict[str, Any]] = st.just({})
    if extra is not None:
        schema["additionalProperties"] = extra.schema
        plain = st.text(st.sampled_from("abxé 😀"), max_size=3).filter(lambda key: key not in named)
        others = st.dictionaries(plain, extra.values, max_size=2)
    elif not named:
        schema["additionalProperties"] = False
    elif draw(st.booleans()):
        least, most = len(required), draw(st.integers(len(required), len(named)))
        schema |= {"minProperties": least, "maxProperties": most}
        return Case(schema, _members(named, required, most))
    return Case(
        schema,
        st.builds(lambda own, more: own | more, _members(named, required, len(named)), others),
    )


@st.composite
def _members(
    draw: st.DrawFn, named: Mapping[str, Case], required: list[str], most: int
) -> dict[str, Any]:
    left = most - len(required)
    found = {}
    for key, case in named.items():
        optional = key not in required
        if optional and (left == 0 or not draw(st.booleans())):
            continue
        left -= optional
        found[key] = draw(case.values)
    return found


@st.composite
def unions(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = draw(st.lists(inner, min_size=1, max_size=3))
    schema = {"anyOf": [case.schema for case in cases]}
    return Case(schema, st.one_of([case.values for case in cases]))


def _larger(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    return st.one_of(objects(inner), arrays(inner), tuples(inner), unions(inner))


CASES: st.SearchStrategy[Case] = st.recursive(PLAIN_CASES, _larger, max_leaves=5)
ARGUMENTS: st.SearchStrategy[Case] = objects(CASES)


def tool(case: Case, name: str = "t") -> ToolSpec:
    return ToolSpec(name, parameters=case.schema)


# --- the properties ---------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.data(), ARGUMENTS, st.sampled_from(STYLES))
def test_a_call_that_fits_is_taken_as_the_host_writes_it(
    data: st.DataObject, case: Case, style: Style
) -> None:
    tools = {"t": tool(case), "other": ToolSpec("other")}
    judged = Judge(grammar_of(tools, style=style))
    validator = Draft202012Validator(case.schema)
    for _ in range(3):
        arguments = data.draw(case.values)
        assert validator.is_valid(arguments)
        assert judged.takes(write_call("t", arguments, style=style))
    assert judged.takes(write_answer(data.draw(TEXTS), style))


@settings(max_examples=40, deadline=None)
@given(st.data(), ARGUMENTS, st.sampled_from(STYLES))
def test_a_line_that_is_changed_is_taken_only_if_it_is_valid(
    data: st.DataObject, case: Case, style: Style
) -> None:
    spec = tool(case)
    grammar = grammar_of({"t": spec}, style=style)
    assume(not grammar.left_to_validation)
    judged = Judge(grammar)
    line = write_call("t", data.draw(case.values), style=style)
    for _ in range(12):
        at = data.draw(st.integers(0, len(line)))
        cut = data.draw(st.integers(0, 2))
        put = data.draw(
            st.sampled_from(["", "0", "9", "-", ".", '"', ",", "{}", "null", "e", " ", "]"])
        )
        changed = line[:at] + put + line[at + cut :]
        if judged.takes(changed):
            assert_reads_well(changed, spec, style)


def assert_reads_well(text: str, spec: ToolSpec, style: Style) -> None:
    """The text is an answer or a valid call, and needed no repair. A key that comes twice in an
    object of free keys is all that a grammar cannot see."""
    reading = read(text, rules=ReadingRules(style=style, max_calls=1))
    if reading.error is not None and _has_key_twice(text):
        return
    assert reading.error is None
    assert reading.clean
    (message,) = reading.messages
    assert message.repairs == ()
    if isinstance(message, ToolCall):
        (verdict,) = judge(reading, {spec.name: spec})
        assert verdict.error is None, verdict.error
        assert verdict.call.repairs == ()


def _has_key_twice(text: str) -> bool:
    found = False

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        found = found or len(dict(pairs)) != len(pairs)
        return dict(pairs)

    body = text[text.index("{") : text.rindex("}") + 1]
    json.loads(body, object_pairs_hook=look)
    return found


@settings(max_examples=40, deadline=None)
@given(st.data(), ARGUMENTS, st.sampled_from(STYLES), st.sampled_from(["t", "required", "none"]))
def test_a_prefix_is_cut_from_the_front(
    data: st.DataObject, case: Case, style: Style, choice: str
) -> None:
    tools = {"t": tool(case), "tt": ToolSpec("tt")}
    prefix = forcing_prefix(style, choice)
    whole = Judge(grammar_of(tools, style=style, tool_choice=choice))
    rest = Judge(grammar_of(tools, style=style, tool_choice=choice, prefix=prefix))
    lines = [write_call("t", data.draw(case.values), style=style), write_answer("a<b", style)]
    lines.append(write_call("tt", {}, style=style))
    for line in lines:
        if line.startswith(prefix):
            assert rest.takes(line[len(prefix) :]) == whole.takes(line)
        else:
            assert not whole.takes(line)


@settings(max_examples=40, deadline=None)
@given(st.data(), ARGUMENTS, st.sampled_from(STYLES))
def test_any_beginning_of_a_line_may_be_the_prefix(
    data: st.DataObject, case: Case, style: Style
) -> None:
    line = write_call("t", data.draw(case.values), style=style)
    at = data.draw(st.integers(0, len(line) - 1))
    judged = Judge(grammar_of({"t": tool(case)}, style=style, prefix=line[:at]))
    assert judged.takes(line[at:])
    assert not judged.takes(line[at:] + "}")
