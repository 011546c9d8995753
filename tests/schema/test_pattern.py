"""Regular expressions of schemas: the same matches as Python's, in linear time."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.schema.pattern import TextTooLong, UnsupportedPattern, compile_pattern
from tests.tables import table

PATTERNS = (
    *(r"^(a+)+$", r"^[\w.+-]+@[\w-]+\.[\w.-]+$", r"^\d{4}-\d{2}$", r"foo|ba[rz]", r"\bcat\b"),
    *(r"\Ba", r"^(?:a|ab)(?:c|bcd)(d*)$", r"a{2,4}b?$", r"a{0}b", r"^$", r"", r"a|", r"(?:)*x"),
    *(r"[^abc]\S\D\W", r"[\d\s]x", r"(ab)*c", r"(a*)*b", r"x*?y+?", r"a.c", r"[a-c.-]{3,}"),
    *(r"\Aa\Z", r"^(0|[1-9]\d*)(?:\.(?:0|[1-9]\d*))*$"),
)


@given(st.sampled_from(PATTERNS), st.text(st.sampled_from("abcdxyz019.-@ _\n"), max_size=10))
def test_it_matches_what_python_matches(pattern: str, text: str) -> None:
    # Python's $ also stands before a newline at the end; JSON Schema's dialect has no such thing.
    expected = re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
    assert compile_pattern(pattern).search(text) == expected


ATOMS = (
    *("a", "b", "-", "(", ")", "[", "]", "{", "}", "*", "+", "?", "|", "^", ",", "1", " "),
    *(
        r"\d",
        r"\W",
        r"\b",
        "(?:",
        r"\x61",
        r"\u0061",
        r"\n",
        r"\-",
        r"\]",
        "[a-c]",
        "[^ab]",
        "[]a]",
    ),
    *(
        "{2}",
        "{1,3}",
        "{,2}",
        "{2,}",
        "{}",
        "*?",
        "[a-",
        r"[\d-]",
        r"\061",
        r"[\1]",
        "--",
        "[[]",
        "é",
    ),
)


@given(
    st.lists(st.sampled_from(ATOMS), max_size=7).map("".join),
    st.text(st.sampled_from("ab1-]{} é\n"), max_size=6),
)
def test_it_takes_what_python_takes_and_matches_the_same(pattern: str, text: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = re.search(pattern, text, re.ASCII) is not None
    except re.error:
        expected = None
    try:
        found = compile_pattern(pattern).search(text)
    except UnsupportedPattern as error:
        found = None
        if expected is not None:  # what Python takes is refused for one reason alone
            assert "linear time" in str(error), pattern
            return
    assert found == expected, pattern


def test_where_python_differs_from_javascript_it_is_as_in_javascript() -> None:
    assert compile_pattern(r"^(?<year>\d+)$").search("1999")
    assert not compile_pattern("^[a-z]+$").search("abc\n")
    assert compile_pattern(r"^[^\ud800-\udfff]+$").search("é")  # halves of characters are none
    assert not compile_pattern(r"[\ud800-\udbff][\udc00-\udfff]|a.b").search("a\u2028b")
    assert not compile_pattern(r"\d").search("٣")
    assert not compile_pattern(r"\w").search("é")
    assert compile_pattern(r"\s").search("\u00a0")


@table(
    "pattern",
    [
        *("(a)\\1", "(?=a)", "(?!a)", "(?<=a)b", "(?i)a", "(?i:a)", "\\p{L}", "(", "[", "a{2,1}"),
        *("(?>a)", "a++", "(" * 3000 + ")" * 3000, "((a{100}){100}){100}", "a{99999999}"),
    ],
)
def test_what_is_not_regular_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", [r"^(a+)+$", r"(.*)(.*)(.*)(.*)[^a!]$", r"^(a|a|aa)*$", r"(a?){200}b$"]
)
def test_no_pattern_runs_away(pattern: str) -> None:
    assert not compile_pattern(pattern).search("a" * 3000 + "!")


def test_a_text_too_long_for_its_pattern_is_said_to_be_so() -> None:
    with pytest.raises(TextTooLong):
        compile_pattern("(ab|b){1000}").search("ab" * 10_000)
