"""Strict JSON: what the suite says, and what is narrower here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given

from mlx_tools.messages import ToolCall, ToolSpec
from mlx_tools.protocol import ReadingRules, judge, read
from mlx_tools.protocol.strict import Unreadable, loads
from tests.protocol.texts import json_values, one_line

SUITES = os.environ.get("MLX_TOOLS_SUITES")
needs_suites = pytest.mark.skipif(SUITES is None, reason="MLX_TOOLS_SUITES is not set")
FILES = sorted(Path(SUITES or "").glob("json_test_suite/test_parsing/*.json")) if SUITES else []
WRITES = {"t": ToolSpec("t")}


def named(kind: str) -> list[Path]:
    return [path for path in FILES if path.name.startswith(kind)]


def texts_of(path: Path) -> set[str]:
    """The file as text: JSON is UTF-8, and these are partly not."""
    raw = path.read_bytes()
    return {raw.decode("utf-8", errors) for errors in ("replace", "surrogateescape")}


def as_messages(text: str) -> list[str]:
    return [
        text,
        f'{{"type":"tool_call","name":"t","arguments":{text}}}',
        f'{{"type":"tool_call","name":"t","arguments":{{"v":{text}}}}}',
    ]


@needs_suites
@pytest.mark.parametrize("path", named("n_"), ids=lambda path: path.stem)
def test_none_that_must_be_refused_is_strict_json_or_runs_a_mutating_tool_freely(
    path: Path,
) -> None:
    for text in texts_of(path):
        for message in as_messages(text):
            with pytest.raises(Unreadable):
                loads(message)
            for mutates in (True, False):
                rules = ReadingRules(mutates=lambda name, args, it=mutates: it)
                reading = read(message, "stop", rules)
                for judged in judge(reading, WRITES):
                    assert judged.runs == "with_approval" or judged.error


@needs_suites
@pytest.mark.parametrize("path", named("y_"), ids=lambda path: path.stem)
def test_strict_reading_accepts_all_that_must_be_accepted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if "duplicated_key" in path.name:
        with pytest.raises(Unreadable, match="twice"):
            loads(text)
        return
    value = loads(text)
    reading = read(as_messages(text)[2])
    assert reading.messages == (ToolCall("t", {"v": value}),)


@needs_suites
@pytest.mark.parametrize("path", named("i_"), ids=lambda path: path.stem)
def test_what_may_be_either_gives_a_value_that_can_be_written_or_an_error(path: Path) -> None:
    for text in texts_of(path):
        for message in as_messages(text):
            reading = read(message)
            assert reading.messages or reading.error
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
