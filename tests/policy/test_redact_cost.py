"""The cost of redaction is linear in the text: by the shape of its patterns, and by their steps."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from re import _constants, _parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import pytest

from mlx_tools.policy import redact, secret_kinds
from mlx_tools.policy.secret_kinds import TOKEN_KINDS
from tests.tables import table

MODULES = (redact, secret_kinds)
REPEATS = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}


def patterns_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, held in vars(module).items():
        if isinstance(held, re.Pattern):
            yield f"{module.__name__.rpartition('.')[2]}.{name}", held.pattern


KINDS = [(kind.name, kind.pattern) for kind in TOKEN_KINDS]
OTHERS = [pattern for module in MODULES for pattern in patterns_of(module)]


def inner_of(op: str, held: Any) -> list[Any]:
    if op == "BRANCH":
        return list(held[1])
    if op == "SUBPATTERN":
        return [held[3]]
    if op in REPEATS:
        return [held[2]]
    return [held[1]] if op in {"ASSERT", "ASSERT_NOT"} else []


def repeats_within_repeats(nodes: Any, within: bool = False) -> Iterator[tuple[Any, Any]]:
    """Least and most of each repeat of more than one that stands in another."""
    for op, held in nodes:
        many = str(op) in REPEATS and held[1] > 1
        if many and within and held[0] != held[1]:
            yield held[0], held[1]
        for inner in inner_of(str(op), held):
            yield from repeats_within_repeats(inner, within or many)


def endless_before_the_end(nodes: Any, last: bool = True) -> Iterator[str]:
    """The endless repeats that something follows which can fail, so that they can be retried."""
    kept = [node for node in nodes if str(node[0]) != "AT"]
    for at, (op, held) in enumerate(kept):
        following = kept[at + 1 :]
        ends = last and all(least_width([node]) == 0 for node in following)
        if str(op) in REPEATS and held[1] == _constants.MAXREPEAT and not ends:
            yield f"{op} before {following}"
        for inner in inner_of(str(op), held):
            yield from endless_before_the_end(inner, ends)


def least_width(nodes: Any) -> int:
    if any(str(op) in {"ASSERT", "ASSERT_NOT"} for op, _ in nodes):
        ahead = [held for op, held in nodes if str(op).startswith("ASSERT")]
        return 0 if all(held[0] < 0 for held in ahead) else 1
    state = _parser.State()
    return int(_parser.SubPattern(state, list(nodes)).getwidth()[0])


@table(("name", "pattern"), KINDS)
def test_a_kind_has_no_repeat_in_a_repeat_and_ends_with_its_endless_one(
    name: str, pattern: str
) -> None:
    tree = _parser.parse(pattern)
    assert list(repeats_within_repeats(tree)) == []
    assert list(endless_before_the_end(tree)) == []


@table(("name", "pattern"), OTHERS)
def test_other_patterns_have_a_repeat_in_a_repeat_only_where_a_sign_parts_them(
    name: str, pattern: Any
) -> None:
    # Lines of base64 (a line break begins each round), hosts and ports (a full stop does), and
    # a value's characters (a look ahead of at most 40).
    parted = {"redact._BASE64", "secret_kinds._ADDRESS", "secret_kinds._VALUE"}
    parted |= {"secret_kinds._TIME"}
    found = list(repeats_within_repeats(_parser.parse(pattern)))
    assert found == [] or name in parted


@pytest.mark.parametrize("unit", ["key=", "token:", "secret="])
@pytest.mark.heavy
def test_values_within_a_value_are_judged_by_few_characters_and_none_is_passed_over(
    unit: str,
) -> None:
    judged = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal judged
        if event == "call" and frame.f_code is secret_kinds.looks_random.__code__:
            judged += len(frame.f_locals["value"])

    secret = "c0ffee42dead17beef23"
    text = (unit * redact.WINDOW)[: redact.WINDOW - 40] + secret
    sys.setprofile(count)
    try:
        shown = redact.Redactor().redact(text).text
    finally:
        sys.setprofile(None)
    assert 0 < judged < 200 * len(text)
    assert secret not in shown


@pytest.mark.parametrize("behind", ["", "=key" * 400])
def test_a_password_that_many_signs_surround_is_found(behind: str) -> None:
    text = "key=" * 400 + "password=Tr0ub4dor&3xx" + behind
    assert "Tr0ub4dor" not in redact.Redactor().redact(text).text


HOSTILE = (
    *("a", "key=", "key=a1b2c3 ", 'key="a1b2c3', "eyJ.", "eyJ", "sk-", "ghp_", "%25", "\\u0041"),
    *("-----BEGIN ", "-----BEGIN PRIVATE" + " KEY-----\n", "http://a:", "password: ", "Bearer a1 "),
    *(
        "Authorization: ",
        "41",
        "QUtJ",
        "AKIA",
        "xoxb-1-",
        "A" * 76 + "\n",
        "a1-us",
        "M.",
        "@:/",
        '"',
    ),
    "".join(hint for kind in TOKEN_KINDS for hint in kind.hints),
)


@table("unit", HOSTILE)
@pytest.mark.heavy
def test_the_units_that_are_judged_add_up_to_little_more_than_the_text(unit: str) -> None:
    judged: list[int] = []

    def count(frame: Any, event: str, _: object) -> None:
        is_judging = event == "call" and frame.f_code is redact.find_unit_spans.__code__
        if is_judging and frame.f_locals["depth"] == redact.DEPTH:
            judged.append(len(frame.f_locals["unit"]))

    size = redact.WINDOW + redact.WINDOW // 2
    text = (unit * (size // len(unit) + 1))[:size]
    sys.setprofile(count)
    try:
        redact.Scanner().feed(text, closed=True)
    finally:
        sys.setprofile(None)
    # Each unit is judged once, with a context of a bounded length; windows overlap by a third.
    assert sum(judged) <= len(text) * redact.WINDOW / (redact.WINDOW - redact.OVERLAP)
    assert max(judged, default=0) <= redact.WINDOW
