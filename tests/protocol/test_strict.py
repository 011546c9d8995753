"""Strict JSON: what the suite says, and what is narrower here."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given

from mlx_tools.messages import ToolCall, ToolSpec
from mlx_tools.parsing import Unreadable, loads
from mlx_tools.protocol import ReadingRules, judge, read
from tests.protocol.texts import json_values, one_line
from tests.suites import json_test_suite

WRITES = {"t": ToolSpec("t")}


def named(kind: str) -> dict[str, bytes]:
    """The files of one kind: ``y_`` must be accepted, ``n_`` refused, ``i_`` either."""
    files = {name: raw for name, raw in json_test_suite().items() if name.startswith(kind)}
    assert len(files) > 30
    return files


def texts_of(raw: bytes) -> set[str]:
    """A file as text: JSON is UTF-8, and these are partly not."""
    return {raw.decode("utf-8", errors) for errors in ("replace", "surrogateescape")}


def as_messages(text: str) -> list[str]:
    return [
        text,
        f'{{"type":"tool_call","name":"t","arguments":{text}}}',
        f'{{"type":"tool_call","name":"t","arguments":{{"v":{text}}}}}',
    ]


def test_none_that_must_be_refused_is_strict_json_or_runs_a_mutating_tool_freely() -> None:
    for name, raw in named("n_").items():
        for message in (m for text in texts_of(raw) for m in as_messages(text)):
            with pytest.raises(Unreadable):
                pytest.fail(f"{name}: {loads(message)}")
            for mutates in (True, False):
                rules = ReadingRules(mutates=lambda name, args, it=mutates: it)
                for judged in judge(read(message, "stop", rules), WRITES):
                    assert judged.runs == "with_approval" or judged.error, name


def test_strict_reading_accepts_all_that_must_be_accepted() -> None:
    for name, raw in named("y_").items():
        text = raw.decode()
        if "duplicated_key" in name:
            with pytest.raises(Unreadable, match="twice"):
                loads(text)
            continue
        reading = read(as_messages(text)[2])
        if "\\b" in text:  # strict JSON, and yet no call: C:\bin would hold a control character
            assert loads(text) and reading.error is not None and not reading.messages, name
            assert "control character" in reading.error.message
            continue
        assert reading.messages == (ToolCall("t", {"v": loads(text)}),), name


def test_what_may_be_either_gives_a_value_that_can_be_written_or_an_error() -> None:
    for name, raw in named("i_").items():
        for message in (m for text in texts_of(raw) for m in as_messages(text)):
            reading = read(message)
            assert reading.messages or reading.error, name
            for found in reading.messages:
                if isinstance(found, ToolCall):
                    one_line(found.arguments).encode()


@given(json_values)
def test_what_json_writes_is_read_back(value: object) -> None:
    assert loads(one_line(value)) == value


def test_a_long_text_with_half_a_surrogate_pair_is_refused_too() -> None:
    for size in (10, 100_000):
        for text in (f'{{"a":"{"x" * size}\\udead"}}', f'{{"a":[{"1," * size}"\\udead"]}}'):
            with pytest.raises(Unreadable):
                loads(text)
        assert loads(f'["{"x" * size}\\ud83d\\ude00"]') == ["x" * size + "😀"]


def test_half_a_surrogate_pair_is_refused_in_capitals_and_small_letters() -> None:
    for half in ("ud800", "uD800", "udbff", "uDBFF", "udEad", "uDeAD", "udc00", "uDC00"):
        for text in (f'["\\{half}"]', f'{{"a":"x\\{half} y"}}', f'{{"\\{half}":1}}'):
            with pytest.raises(Unreadable, match="surrogate"):
                loads(text)
    for pair in ("\\uD83D\\uDE00", "\\ud83d\\uDE00", "\\ud83d\\ude00"):
        assert loads(f'["{pair}"]') == ["😀"]


@pytest.mark.parametrize("rest", ["x", " {}", ",", "]", "1", "\n\n//", "\0"])
def test_nothing_may_stand_behind_a_value_but_white_space(rest: str) -> None:
    for value in ("{}", '{"a":[1]}', "[]", "1.5", '"a"', "null"):
        assert loads(f" {value}\n\t ") == loads(value)
        if (value, rest) != ("1.5", "1"):
            with pytest.raises(Unreadable):
                loads(value + rest)


def test_integers_have_as_many_digits_as_python_writes() -> None:
    assert loads("9" * 4300) == int("9" * 4300)
    for digits in (4301, 5000, 1_000_000):
        with pytest.raises(Unreadable, match="digits"):
            loads("9" * digits)


@pytest.mark.parametrize(
    "text", ["[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, "[" * 100_000]
)
def test_depth_is_counted_before_anything_recurses(text: str) -> None:
    assert sys.getrecursionlimit() < 100_000
    with pytest.raises(Unreadable, match=r"deeper|match"):
        loads(text)
