"""Repairs: each has its name, none invents, and what can be read in two ways is an error."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlx_tools.messages import FinalAnswer, ToolCall, ToolSpec
from mlx_tools.protocol import ReadingRules, judge, read
from tests.protocol.texts import BROKEN, CALL, MESSAGES, REPAIRS, mixtures, streamed
from tests.tables import table

SPECS = {name: ToolSpec(name) for name in ("calculator", "clock", "a", "b", "c", "x", "t")}


def call_with(arguments: str) -> str:
    return f'{{"type":"tool_call","name":"t","arguments":{arguments}}}'


@table(
    ("arguments", "expected", "repair"),
    [
        ("{'a': 'b'}", {"a": "b"}, "single_quotes"),
        ("{'a': 'say \"b\"'}", {"a": 'say "b"'}, "single_quotes"),
        ("{'a': 'it\\'s \\n'}", {"a": "it's \n"}, "single_quotes"),
        ("{\"a\": 'b'}", {"a": "b"}, "single_quotes"),
        ('{"a":True,"b":[False,None]}', {"a": True, "b": [False, None]}, "python_literal"),
        ('{"a":1,}', {"a": 1}, "trailing_comma"),
        ('{"a":[1,2, ] }', {"a": [1, 2]}, "trailing_comma"),
        ('{"a":1 "b":2}', {"a": 1, "b": 2}, "missing_comma"),
        ('{"a":"x"\n"b":"y"}', {"a": "x", "b": "y"}, "missing_comma"),
        ('{"a":[{"b":1}{"b":2}]}', {"a": [{"b": 1}, {"b": 2}]}, "missing_comma"),
        ('{"a":["x" "y"]}', {"a": ["x", "y"]}, "missing_comma"),
        ('{"a":[1 2 30]}', {"a": [1, 2, 30]}, "missing_comma"),
        ('{"a":[true false null]}', {"a": [True, False, None]}, "missing_comma"),
        ("{a:1,b_2$:{c-d:2}}", {"a": 1, "b_2$": {"c-d": 2}}, "unquoted_key"),
        ('{"a":"x\ny\r\nz"}', {"a": "x\ny\r\nz"}, "raw_newline"),
        ('{"a":"x\ty\x00"}', {"a": "x\ty\x00"}, "raw_control"),
        ('{"a":1 // one\n}', {"a": 1}, "comment"),
        ('{/* a */"a"/**/:/* b\n */1}', {"a": 1}, "comment"),
        ('{"a":1 # one\n}', {"a": 1}, "comment"),
        ('{"a"://\n1,#\n"b":/**/2}', {"a": 1, "b": 2}, "comment"),
        ('{"a":"\\d+\\(\\s\\)"}', {"a": "\\d+\\(\\s\\)"}, "invalid_escape"),
        ('{"a":"it\\\'s"}', {"a": "it\\'s"}, "invalid_escape"),
        ('{"a":"C:\\users\\U1 \\u12"}', {"a": "C:\\users\\U1 \\u12"}, "invalid_escape"),
        ('{"a":"\\x41"}', {"a": "\\x41"}, "invalid_escape"),
    ],
)
def test_each_repair_has_its_name(arguments: str, expected: dict[str, Any], repair: str) -> None:
    reading = read(call_with(arguments))
    assert reading.messages == (ToolCall("t", expected, None, (repair,)),)
    assert reading.clean  # nothing stood beside it: the repair itself asks for the approval
    (judged,) = judge(reading, SPECS)
    assert (judged.error, judged.runs) == (None, "with_approval")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\\u12", "\\u12"),  # half an escape is no escape
        ("a \\u00 b", "a \\u00 b"),
        ("\\\\u12", "\\u12"),
        ("\\ud83d\\ude00 \\u00e9", "\N{GRINNING FACE} é"),
    ],
)
def test_half_an_escape_is_read_as_it_is_written(text: str, value: str) -> None:
    (call,) = read(call_with(f'{{"a":"{text}"}}')).messages
    assert isinstance(call, ToolCall)
    assert call.arguments == {"a": value}


@pytest.mark.parametrize(
    "tail", ["\\", "\\u", "\\u0", "\\u00", "\\u00e", "\\ud83d", "\\ud83d\\ude0"]
)
@pytest.mark.parametrize("quote", ['"', "'"])
def test_a_text_cut_within_an_escape_is_cut_off(tail: str, quote: str) -> None:
    text = '{"type":"final_answer","content":"caf' + tail
    reading = read(text.replace('"', quote), "stop")
    assert reading.messages == ()
    assert reading.error is not None and reading.error.code == "truncated_output"


@pytest.mark.parametrize("count", [9_999, 10_000, 10_001, 30_000])
def test_a_string_may_hold_any_number_of_escapes(count: int) -> None:
    text = "x\\n" * count + "\\d" + "\\n" * count
    (call,) = read(call_with(f'{{"a":"{text}"}}')).messages
    assert isinstance(call, ToolCall)
    assert call.arguments == {"a": "x\n" * count + "\\d" + "\n" * count}
    assert call.repairs == ("invalid_escape",)


@table(
    "text",
    [
        *(r"C:\bin\app.exe", r"C:\dir\temp", r"\d+\t", r"\(x\) \u00e9", r"\rho \alpha"),
        *(r"a\bc", r"\f", r"a\u0008", "a\bc", "a\fc", r"\\d \b"),
    ],
)
@pytest.mark.parametrize("place", ["arguments", "a tag", "a list of objects", "cut closers"])
def test_an_escape_of_a_call_that_has_two_readings_is_an_error(text: str, place: str) -> None:
    call = call_with(f'{{"a":"{text}"}}')
    whole = {
        "arguments": call,
        "a tag": f'<tool_call>{{"name":"t","arguments":{{"a":"{text}"}}}}</tool_call>',
        "a list of objects": f'[{{"name":"t","arguments":{{"b":1,"a":"{text}"}}}}]',
        "cut closers": call[:-1],
    }[place]
    rules = ReadingRules(catalog={"t": {}}, mutates=lambda name, arguments: False)
    reading = read(whole, "stop", rules)
    assert reading.messages == () and reading.error is not None
    assert reading.error.code == "truncated_output" if place == "cut closers" else "invalid_json"
    if place == "arguments":
        assert "write a backslash as" in reading.error.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((r"C:\\bin\\temp", r"C:\bin\temp"), (r"\d+\n", "\\d+\n"), (r"a\tb", "a\tb")),
        *((r"\u00e9\r\n", "é\r\n"), (r"\(\d\) \"q\"", r'\(\d\) "q"'), (r"\\b", r"\b")),
    ],
)
def test_an_escape_of_a_call_that_has_one_reading_is_read(text: str, value: str) -> None:
    (call,) = read(call_with(f'{{"a":"{text}"}}')).messages
    assert isinstance(call, ToolCall) and call.arguments == {"a": value}


@pytest.mark.parametrize("literal", [r"'C:\bin'", r"'C:\dir\temp'", r"'a\x08'"])
def test_an_escape_of_a_call_in_pythons_form_is_held_to_the_same(literal: str) -> None:
    reading = read(f"[t(a={literal})]", "stop", ReadingRules(catalog={"t": {}}))
    assert reading.messages == () and reading.error is not None


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\frac{a}{b} \beta \(x\) \alpha", r"\frac{a}{b} \beta \(x\) \alpha"),
        *((r"C:\bin\\x", r"C:\bin\x"), (r"\\frac", r"\frac"), (r"\u12 \x41", r"\u12 \x41")),
        *(
            (r"\ud83d x", r"\ud83d x"),
            (r"\udc00", r"\udc00"),
            (r"\y \ud83d\ude00", "\\y \U0001f600"),
        ),
    ],
)
@pytest.mark.parametrize("quote", ['"', "'"])
def test_no_answer_is_refused_for_its_escapes(text: str, content: str, quote: str) -> None:
    whole = f'{{"type":"final_answer","content":"{text}"}}'.replace('"', quote)
    for reading in (read(whole), streamed(whole)):
        (answer,) = reading.messages
        assert isinstance(answer, FinalAnswer) and answer.content == content


def test_every_repair_that_occurs_is_listed() -> None:
    for text in (*BROKEN, *MESSAGES, f"x {CALL}", CALL[:-1]):
        for message in read(text, "stop", ReadingRules(mutates=lambda name, args: False)).messages:
            assert set(message.repairs) <= set(REPAIRS)


@table(
    "arguments",
    [
        '{"a":"say "b" now"}',  # quotes within quotes
        '{"a":"x""y"}',
        "{'a': 'b' 'c'}",  # Python joins these
        "{\"a\": ['b' 'c']}",
        '{"a":[\'b\' "c"]}',
        "{'a': 'it's'}",
        "{'a': '\\x41'}",  # means A to Python and JavaScript
        "{'a': '\\101'}",
        '{"a":[1 234]}',  # a number with a separator
        '{"a":[1 -2]}',  # a difference
        *('{"a":1,"a":2}', "{a:1,'a':2}", '{"a":01}', '{"a":1_000}', '{"a":+1}', '{"a":.5}'),
        *('{"a":1.}', '{"a":0x10}', '{"a":1e999}', '{"a":-1e999}', '{"a":NaN}', '{"a":Infinity}'),
        *('{"a":１}', '{"a":undefined}', '{"a":b}', '{"a"=1}', '{"a"=>1}', '{"a":1;"b":2}'),
        *('{"a":1,,"b":2}', '{,"a":1}', '{"a":[,1]}', '{"a":[1}]', '{"a":(1,2)}', "{1:2}"),
        *('{"a" 1}', '{"a":“b”}', '{"a":"""b"""}', '{"a":"\\ud800"}', '{"a":"\\udc00\\ud800"}'),
        *('{"\\ud800":1}', '{"a":"\ud800"}', '{"a\nb":1}', '{"a":1 / 2}', '{"a":\u00a01}'),
        *('{"a":\x0c1}', f'{{"a":{"9" * 5000}}}', f'{{"a":-{"9" * 5000}}}'),
        *(f'{{"a":{"[" * 100}{"]" * 100}}}', f'{{"a":{"[" * 62}{{}}{"]" * 62}}}'),
    ],
)
def test_what_has_no_one_meaning_is_an_error(arguments: str) -> None:
    for text in (
        call_with(arguments),
        f"[{call_with(arguments)}]",
        f"```json\n{call_with(arguments)}\n```",
    ):
        reading = read(text)
        assert reading.messages == ()
        assert reading.error is not None and reading.error.code == "invalid_json"


def test_a_missing_comma_that_a_second_reader_takes_otherwise_is_an_error() -> None:
    # Two strings that lack their comma, or one string with quotes in it.
    reading = read(call_with("{\"a\":'s'\n\"b\":'s'}"))
    assert reading.messages == ()
    assert reading.error is not None and "two ways" in reading.error.message
    # A text too long for the second reader is taken as the grammar has it.
    long = "x" * 3000
    reading = read(call_with(f'{{"a":"{long}" "b":1}}'))
    assert reading.messages == (ToolCall("t", {"a": long, "b": 1}, None, ("missing_comma",)),)


def _letters(text: str) -> str:
    """``text`` without what repairing and escaping change: quotes, backslashes, white space."""
    return re.sub(r"[\\\"'\s\x00-\x1f]", "", text)


def _source(text: str) -> str:
    """The letters of a text in which JSON's escapes may stand for what `_letters` leaves out."""
    text = text.replace("\\u00e9", "é").replace("\\ud83d\\ude00", "😀")
    text = re.sub(r"\\(.)", lambda m: "" if m[1] in "bfnrt" else m[1], text, flags=re.DOTALL)
    return _letters(text)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *(leaf for item in value.values() for leaf in _leaves(item))]
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


_WORDS = st.text(st.sampled_from("abcXYZ012 -'\"\\/dn(){}[],:#é\n\t"), max_size=8)
_VALUES = st.recursive(
    _WORDS.map(lambda text: json.dumps(text, ensure_ascii=False))
    | _WORDS.map(lambda text: f'"{text}"')
    | _WORDS.map(lambda text: f"'{text}'")
    | st.sampled_from(("1", "-2.5", "1e3", "true", "True", "None", "null", "x", "12 345")),
    lambda inner: st.builds(
        lambda items, sep, end: "[" + sep.join(items) + end + "]",
        st.lists(inner, max_size=3),
        st.sampled_from((",", ", ", " ", "\n", ",,", " /* c */ ")),
        st.sampled_from(("", ",", " ")),
    ),
    max_leaves=5,
)


@given(_VALUES)
@example("[1 -2.5, 1e3,]")
@example("12")
@example("'a' # 1\n")
def test_a_repair_never_invents(value: str) -> None:
    text = call_with(f'{{"k":{value}}}')
    source = _source(text)
    for message in read(text).messages:
        assert isinstance(message, ToolCall)
        for leaf in _leaves(message.arguments):
            if isinstance(leaf, str):
                assert _letters(leaf) in source
            elif isinstance(leaf, float):
                assert any(float(n) == leaf for n in re.findall(r"-?\d[\d.]*(?:e\d+)?", text))
            elif leaf is not None and not isinstance(leaf, bool):
                assert str(leaf) in text


@given(mixtures(), st.sampled_from(("jsonl", "markdown-json", "xml")))
def test_of_any_text_names_and_strings_stand_in_it(text: str, style: Any) -> None:
    sources = (_source(text), _letters(text))  # as JSON, and as prose
    catalog: dict[str, Any] = {"get_weather": {}}
    reading = read(text, "stop", ReadingRules(style=style, catalog=catalog))
    if reading.bare_text and reading.dropped:
        return  # what stood on both sides of a forged observation stands side by side now
    for message in reading.messages:
        strings = (
            [message.content]
            if isinstance(message, FinalAnswer)
            else [message.name, *_leaves(message.arguments)]
        )
        for string in strings:
            if isinstance(string, str):
                assert any(_letters(string) in source for source in sources)


@given(mixtures(), st.sampled_from(("jsonl", "markdown-json", "xml")))
def test_only_an_untouched_call_that_stands_alone_may_change_things_freely(
    text: str, style: Any
) -> None:
    reading = read(text, "stop", ReadingRules(style=style))
    for judged in judge(reading, SPECS):
        if judged.runs == "freely":
            assert judged.call.repairs == ()
            assert reading.commentary == "" and reading.dropped == ()
            rest = text
            for thought in ("<think>", "</think>", "[THINK]", "◁think▷"):
                if thought in rest:
                    break
            else:
                wrapping = r"(?:```|~~~)\w*|</?tool_call>|</?final_answer>|</s>|\s"
                rest = re.sub(wrapping, "", rest)
                rest = rest.strip("[]")
                assert rest.startswith("{") and rest.endswith("}")
