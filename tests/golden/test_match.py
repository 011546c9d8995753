"""Matchers and expectations: what a live check wants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import UsageError
from mlx_tools.golden.expect import Expectation, expectations, matcher
from tests.tables import table

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@table(
    ("wanted", "value", "fits"),
    [
        ("a", "a", True),
        ({"a": 1}, {"a": 1.0}, True),
        ({"exact": {"contains": "a"}}, {"contains": "a"}, True),
        ({"subset": {"a": 1}}, {"a": 1, "b": 2}, True),
        ({"subset": {"a": 1}}, {"b": 2}, False),
        ({"subset": {"a": {"contains": "x"}}}, {"a": "axb"}, True),
        ({"schema": {"type": "integer", "minimum": 3}}, 4, True),
        ({"schema": {"type": "integer", "minimum": 3}}, 2, False),
        ({"schema": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}}, None, True),
        ({"contains": "B"}, "abc", False),
        ({"contains": "1"}, 1, False),
        ({"regex": r"^\d+ eggs$"}, "12 eggs", True),
        ({"regex": r"^\d+$"}, "12 eggs", False),
        ({"number": 391}, "It is 391.", True),
        ({"number": 391}, "It is 3910.", False),
        ({"number": 1024.5, "tolerance": 0.5}, "about 1,025", True),
        ({"number": -3}, "−3 °C", True),
        ({"number": 5}, "3-5", True),
        ({"number": 5}, 5.0, True),
        ({"number": 1}, True, False),
        ({"number": 1.5}, 10**400, False),
        ({"anything": True}, None, True),
    ],
)
def test_a_value_fits_or_does_not(wanted: Any, value: Any, fits: bool) -> None:
    assert matcher(wanted)(value) is fits


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        ({"contains": 1}, "needs a text"),
        ({"contains": "a", "exact": "a"}, "no matcher"),
        ({"contains": "a", "number": 1, "x": 2}, "no matcher"),
        ({"exact": 1, "tolerance": 2}, "has no 'tolerance'"),
        ({"regex": "("}, "regex matcher"),
        ({"schema": {"type": "nothing"}}, "schema matcher"),
        ({"number": "1"}, "needs numbers"),
        ({"subset": [1]}, "object of matchers"),
    ],
)
def test_what_is_no_matcher_is_refused(wanted: Any, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        matcher(wanted)


@given(value=JSON)
def test_a_value_is_exactly_itself(value: Any) -> None:
    fits = matcher({"exact": value})
    assert fits(value) and not fits([value])


RECORDED = {
    "status": "answered",
    "calls": [{"name": "look", "arguments": {"x": "a"}}, {"name": "peek", "arguments": {}}],
}


def _calls(*calls: tuple[str, dict[str, Any]], status: str = "answered") -> dict[str, Any]:
    made = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {"status": status, "answer": "It is 42.", "calls": made}


def _found(wanted: dict[str, Any], outcome: dict[str, Any]) -> list[str]:
    return [d.subject for d in Expectation(wanted, RECORDED).differences(outcome)]


LOOK, PEEK = ("look", {"x": "a"}), ("peek", {})


def test_without_a_word_the_recorded_calls_and_the_status_are_wanted() -> None:
    assert _found({}, _calls(LOOK, PEEK)) == []
    assert _found({}, _calls(PEEK, LOOK)) == ["the calls"]
    assert _found({}, _calls(LOOK)) == ["the calls"]
    assert _found({}, _calls(("look", {"x": "b"}), PEEK)) == ["the calls"]
    assert _found({}, _calls(LOOK, PEEK, status="stopped")) == ["the status"]


def test_answers_and_reasons_are_matched() -> None:
    wanted = {"calls": [], "answer": {"number": 42}}
    assert _found(wanted, _calls()) == []
    assert _found({**wanted, "answer": {"contains": "43"}}, _calls()) == ["the answer"]
    assert _found({**wanted, "reason": "timeout"}, _calls()) == ["the reason"]


@pytest.mark.parametrize(
    "wanted",
    [{"call": []}, {"calls": "look"}, {"calls": ["look"]}, {"status": "done"}, ["x"], [], "x", 7],
)
def test_what_is_no_expectation_is_refused(wanted: Any) -> None:
    with pytest.raises(UsageError):
        Expectation(wanted, RECORDED)


def test_there_are_no_more_expectations_than_questions() -> None:
    assert len(expectations([], [RECORDED, RECORDED])) == 2
    with pytest.raises(UsageError, match="2 expectations for 1 questions"):
        expectations([{}, {}], [RECORDED])
