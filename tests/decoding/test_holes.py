from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.decoding.answers import AnswerHole, TextHole
from mlx_tools.decoding.holes import FreeHole, NumberHole, StringHole

MARKS = st.text(alphabet='"\\/bfnrtudDcC089aF{}[],:. \n\t\x00é😀\ud83d-+eE$<>')


def splits(data: Any, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    bounds = [0, *cuts, len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


def told(make: Callable[[], Any], pieces: list[str]) -> tuple[Any, ...]:
    hole = make()
    for piece in pieces:
        hole.feed(piece)
    done, rest = hole.done, hole.rest
    hole.finish()
    return done, rest, getattr(hole, "text", None), getattr(hole, "literal", None)


@pytest.mark.parametrize(
    "make",
    [
        StringHole,
        AnswerHole,
        lambda: StringHole(3),
        lambda: NumberHole(whole=True),
        lambda: NumberHole(whole=False, grouped=False),
        lambda: TextHole("</final_answer>"),
        FreeHole,
    ],
)
@given(text=MARKS | st.text(), data=st.data())
def test_a_hole_is_read_the_same_however_its_text_is_split(
    make: Callable[[], Any], text: str, data: Any
) -> None:
    assert told(make, splits(data, text)) == told(make, [text])


@pytest.mark.parametrize("make", [StringHole, AnswerHole])
@given(text=MARKS | st.text())
def test_a_string_hole_always_holds_the_inside_of_a_json_string(
    make: Callable[[], StringHole], text: str
) -> None:
    hole = make()
    hole.feed(text)
    hole.finish()
    value = json.loads(f'"{hole.text}"')
    value.encode()  # nothing that could not be sent
    assert hole.value == value


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_a_string_that_is_written_well_is_taken_as_it_is(value: str, ascii_only: bool) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only)
    hole = StringHole()
    hole.feed(written[1:] + ',"x":1}')
    assert (hole.done, hole.rest, hole.value) == (True, ',"x":1}', value)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=5), st.integers(0, 4))
def test_a_string_hole_never_holds_more_than_it_may(value: str, most: int) -> None:
    hole = StringHole(most)
    hole.feed(json.dumps(value)[1:])
    assert hole.done and hole.value == value[:most]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("line\none", "line\none"),
        ("a\\d+b", "a\\d+b"),
        ("C:\\\\new", "C:\\new"),
        ("\\u00e9", "é"),
        ("\\ud83d\\ude00", "😀"),
        ("\\ud83dx", "\ufffdx"),
        ("\\ude00", "\ufffd"),
        ("\\u12", "\\u12"),
    ],
)
def test_what_escapes_nothing_is_text(written: str, value: str) -> None:
    hole = StringHole()
    hole.feed(written + '"')
    assert hole.value == value


@pytest.mark.parametrize(
    ("written", "whole", "grouped", "literal"),
    [
        ("42,", True, True, "42"),
        ("-7}", True, True, "-7"),
        ("007}", True, True, "7"),
        ("3.5}", False, True, "3.5"),
        ("3.9}", True, True, "3"),
        ("1e5}", True, True, "100000"),
        ("1e-9}", False, True, "1e-9"),
        ("200,000}", True, True, "200000"),
        ("200,000,000.50}", False, True, "200000000.50"),
        ("200,000]", True, False, "200"),
        ("20,00}", True, True, "20"),
        (' "$1,500"', True, True, "1500"),
        ("€ 5}", True, True, "5"),
        ("five", True, True, None),
        ("1e999}", False, True, None),
        ("-", True, True, None),
        ("", True, True, None),
    ],
)
def test_the_longest_number_is_read(
    written: str, whole: bool, grouped: bool, literal: str | None
) -> None:
    hole = NumberHole(whole=whole, grouped=grouped)
    hole.feed(written)
    hole.finish()
    assert hole.literal == literal


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_that_is_written_well_is_taken_as_it_is(value: float) -> None:
    hole = NumberHole(whole=False)
    hole.feed(json.dumps(value) + "}")
    if abs(value) < 1e30:
        assert hole.done and json.loads(hole.literal or "null") == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON)
def test_a_free_value_ends_where_it_is_whole(value: Any) -> None:
    try:
        written = json.dumps(value)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    hole = FreeHole()
    hole.feed(" " + written + ',"next":')
    assert hole.done and hole.rest == ',"next":'
    assert hole.value() == (value,)


@pytest.mark.parametrize("text", ["{a:1}", "[1,2", "}", "nil ", '{"a":1]', "NaN,", "[" * 99])
def test_a_free_value_that_is_none_is_refused(text: str) -> None:
    hole = FreeHole()
    hole.feed(text)
    hole.finish()
    assert hole.value() is None
