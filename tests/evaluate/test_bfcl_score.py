"""BFCL's rules, as its checker has them, and the official checker agrees."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ToolCall
from mlx_tools.plugins.evaluate.bfcl_data import load_items
from mlx_tools.plugins.evaluate.bfcl_score import CallScore, score
from tests.evaluate.questions import AREA, AREA_ANSWER, PLAY, PLAY_ANSWER, QUESTIONS, make_wheel
from tests.tables import table

RIGHT = {"width": 2.5, "height": 4}


def area(**arguments: Any) -> ToolCall:
    return ToolCall("shapes.area", {**RIGHT, **arguments})


def play(*songs: Any, **arguments: Any) -> ToolCall:
    return ToolCall("play", {"songs": list(songs), **arguments})


def fault(*calls: ToolCall, category: str = "simple_python") -> str:
    return score(category, [AREA], calls, [AREA_ANSWER]).fault


def value_fault(kind: str, value: Any, allowed: list[Any], **schema: Any) -> str:
    """The fault in the value of one parameter."""
    properties = {"p": {"type": kind, **schema}}
    function = {"name": "f", "parameters": {"properties": properties, "required": []}}
    category = "simple_python"
    return score(category, [function], [ToolCall("f", {"p": value})], [{"f": {"p": allowed}}]).fault


@table(
    ("calls", "said"),
    [
        ((), "not_called"),
        ((area(), area()), "wrong_count"),
        ((ToolCall("shapes_area", RIGHT),), "wrong_name"),
        ((ToolCall("shapes.area", {"width": 2.5}),), "missing"),
        ((area(depth=3),), "unexpected"),
        ((area(width="2.5"),), "wrong_type"),
        ((area(width=2),), "wrong_value"),
        ((area(height=4.0),), "wrong_type"),
        ((area(height=True),), "wrong_type"),
        ((area(unit="m"),), "wrong_value"),
        ((area(unit="C.M"),), ""),
        ((area(unit=""),), ""),
        ((area(round=False),), ""),
        ((area(round=0),), "wrong_type"),
        ((area(round=None),), "wrong_type"),
    ],
)
def test_what_is_wrong_with_a_call_is_told(calls: tuple[ToolCall, ...], said: str) -> None:
    assert fault(*calls) == said


@pytest.mark.parametrize(
    ("value", "allowed", "said"),
    [
        ("April 1, 2024", ["April 1 2024"], ""),
        ("NEW_york", ["New York"], ""),
        ("it's", ['it"s'], ""),
        ("a;b", ["a b"], "wrong_value"),
        ("", ["", "a"], ""),
        ("true", [True], "wrong_value"),
        (True, ["", True], ""),
        (None, ["", None], ""),
        ("x", [""], "wrong_value"),
    ],
)
def test_texts_are_compared_without_case_spaces_and_some_punctuation(
    value: Any, allowed: list[Any], said: str
) -> None:
    assert value_fault("string", value, allowed) == said


@table(
    ("kind", "value", "allowed", "said"),
    [
        ("float", 3, [3.0], ""),
        ("float", 3.0, [3], ""),
        ("float", 10**400, [3.0], "wrong_value"),
        ("float", True, [1.0], "wrong_type"),
        ("integer", 3, [3.0], ""),
        ("boolean", 1, [True], "wrong_type"),
        ("any", "a B", ["A.b"], ""),
        ("any", 5, ["5"], "wrong_type"),
        ("any", 5, [5], ""),
        ("integer", "n", ["n"], ""),
        ("integer", "N", ["n"], "wrong_value"),
        ("array", "data['x']", ["data['x']"], ""),
        ("unheard of", "x", ["x"], "wrong_type"),
    ],
)
def test_types_are_exact_but_for_whole_numbers_and_names_of_variables(
    kind: str, value: Any, allowed: list[Any], said: str
) -> None:
    assert value_fault(kind, value, allowed, items={"type": "float"}) == said


@table(
    ("inner", "value", "allowed", "said"),
    [
        ("string", ["Blue moon"], [["blue-Moon"]], ""),
        ("string", ["b", "a"], [["a", "b"]], "wrong_value"),
        ("string", ["a", 1], [["a", "b"]], "wrong_type"),
        ("float", [1, 2], [[1.0, 2.0]], "wrong_type"),
        ("float", [1, 2], [[1, 2]], ""),
        ("float", [1.0, 2.0], [[1, 2]], ""),
        ("array", [[1, 2]], [[[1, 2]]], ""),
        ("array", [["A"]], [[["a"]]], "wrong_value"),
        ("dict", [{"a": "X"}], [[{"a": ["x"]}]], ""),
        ("dict", [{"a": "x"}, {"a": "x"}], [[{"a": ["x"]}]], "wrong_value"),
        ("dict", [{}], [[{"a": ["x", ""]}]], ""),
        ("string", [], ["", ["a"]], ""),
        ("dict", [], ["", [{}]], ""),
    ],
)
def test_arrays_are_compared_in_order_and_their_items_types_checked(
    inner: str, value: Any, allowed: list[Any], said: str
) -> None:
    assert value_fault("array", value, allowed, items={"type": inner}) == said
    assert value_fault("tuple", value, allowed, items={"type": inner}) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"volume": 3}, ""),
        ({"volume": 3, "mood": "Calm"}, ""),
        ({"mood": "calm"}, "wrong_value"),
        ({"volume": 3, "speed": 1}, "wrong_value"),
        ({"volume": 4}, "wrong_value"),
        ({}, "wrong_value"),
        ("", "wrong_type"),
        ([{"volume": 3}], "wrong_type"),
    ],
)
def test_a_dictionary_has_allowed_values_and_lacks_only_what_it_may(value: Any, said: str) -> None:
    call = play("Blue Moon", "So What", options=value)
    assert score("multiple", [AREA, PLAY], [call], [PLAY_ANSWER]).fault == said


def test_parallel_calls_may_come_in_any_order() -> None:
    calls = [play("Blue Moon", "So What"), area()]
    answers = [AREA_ANSWER, PLAY_ANSWER]
    for order in (calls, calls[::-1]):
        assert score("parallel_multiple", [AREA, PLAY], order, answers).correct
    said = score("parallel_multiple", [AREA, PLAY], [area(), area()], answers)
    assert said == CallScore(False, "unmatched", "play")
    assert score("parallel_multiple", [AREA, PLAY], calls[:1], answers).fault == "wrong_count"


def test_where_no_call_is_due_none_is_right_and_where_one_is_any() -> None:
    for category in ("irrelevance", "live_irrelevance"):
        assert score(category, [AREA], [], []).correct
        assert score(category, [AREA], [area()], []) == CallScore(False, "called", "shapes.area")
        assert score(category, [], [ToolCall("made.up", {})], []).fault == "called"
    assert score("live_relevance", [AREA], [ToolCall("made.up", {})], []).correct
    assert score("live_relevance", [AREA], [], []).fault == "not_called"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
kinds = st.sampled_from(
    ["string", "integer", "float", "boolean", "array", "tuple", "dict", "any", "?"]
)


@given(kinds, st.none() | kinds, json_values, st.lists(json_values, max_size=3))
def test_any_value_against_any_answer_gets_a_verdict(
    kind: str, inner: str | None, value: Any, allowed: list[Any]
) -> None:
    schema = {} if inner is None else {"items": {"type": inner}}
    assert value_fault(kind, value, allowed, **schema) in ("", "wrong_type", "wrong_value")


# --- what the official checker is held against: calls that are right, and others --------------

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "bfcl_official"


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("mutations")


@pytest.mark.parametrize("category", [c for c in QUESTIONS if "relevance" not in c])
def test_right_calls_are_right_and_changed_ones_of_both_kinds(
    mutations: Any, category: str, tmp_path: Path
) -> None:
    item = load_items(category, make_wheel(tmp_path / "bfcl.whl"))[0]

    def correct(calls: Any) -> bool:
        made = [ToolCall(call["name"], call["arguments"]) for call in calls]
        return score(category, item.functions, made, item.answers).correct

    for turn in (0, 2):  # an odd turn writes out what may be left out
        right = mutations.right_calls(item, turn)
        assert correct(right)
        changed = [*mutations.mutations(item, right, random.Random(turn))]
        assert len({json.dumps(calls) for calls in changed}) > 20
        assert {correct(calls) for calls in changed} == {True, False}


@pytest.mark.slow
def test_the_official_checker_agrees() -> None:
    command = [sys.executable, str(SCRIPTS / "agree.py"), "--every", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 disagreements" in done.stdout
