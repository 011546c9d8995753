"""Approval templates: which calls they cover, and all the ways not to be one of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ToolSpec, replace
from mlx_tools.policy import ApprovalTemplate, CallNow, pin_of
from mlx_tools.policy.approval_template import fits

SAVE = ToolSpec("save", "Saves.", {"type": "object"}, frozenset({"write"}))
NOW = datetime(2026, 3, 1, tzinfo=UTC)
YES = ApprovalTemplate(
    id="1",
    tool="save",
    pin=pin_of(SAVE, "v1"),
    arguments={"path": "drafts/*.md", "text": "*"},
    roots=("/home/u/work", "/srv/x"),
    made_at="2026-02-01T00:00:00+00:00",
    expires_at="2026-04-01T00:00:00+00:00",
)
CALL = CallNow(
    spec=SAVE,
    pinned="v1",
    arguments={"path": "anything", "text": "tea"},
    paths={"path": "/home/u/work/drafts/a.md"},
    roots=("/home/u/work/sub",),
    nested=False,
    at=NOW,
)


@pytest.mark.parametrize(
    ("pattern", "value", "fit"),
    [
        ("write", "write", True),
        ("write", "Write", False),
        ("write", "rewrite", False),
        ("write", "writer", False),
        ("write", "wr\u0456te", False),
        ("caf\u00e9", "cafe\u0301", False),
        ("a*", "abc", True),
        ("a*", "a/b", False),
        ("a*", "ba", False),
        ("a/**", "a/b/c", True),
        ("a/**", "a", False),
        ("a/b**", "a/bc", True),
        ("a/**", "a/../b", False),
        ("a/**", "a/b/..", False),
        ("a/**", "a/%2e%2e/b", False),
        ("a/**", "a\\..\\b", False),
        ("a/*", "a/b\nc", False),
        ("a/*", "a/\u202eb", False),
        ("a/*", "a/..", False),
        ("a/*", "a/", False),
        ("a/**/z.md", "a/z.md", True),
        ("a/**/z.md", "a/b/c/z.md", True),
        ("a/**/z.md", "a/b/c/zz.md", False),
        ("?[ab]", "xa", True),
        ("[*]", "*", True),
        ("[*]", "x", False),
        ("https://docs.example/**", "https://docs.example/a/b", True),
        ("https://docs.example/**", "https://docs.example.evil/a", False),
        ("https://docs.example/**", "http://x/https://docs.example/a", False),
        ("*", "a/../b\n", True),
        ("*", {"any": [1]}, True),
        ("3", 3, False),
        (3, 3, True),
        (3, 3.0, False),
        (1, True, False),
        (None, None, True),
        (["commit", "-m", "*"], ["commit", "-m", "a\nb"], True),
        (["commit", "-m", "*"], ["commit", "-m", "a", "--no-verify"], False),
        (["status"], "status", False),
        ("s*", ["status"], False),
        ({"a": "x*"}, {"a": "xy"}, True),
        ({"a": "x*"}, {"a": "xy", "b": 1}, False),
        ({"a": "x*"}, {}, False),
    ],
)
def test_a_pattern_is_held_against_the_whole_value(pattern: Any, value: Any, fit: bool) -> None:
    assert fits(pattern, value) is fit


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON, JSON)
def test_any_two_values_can_be_held_against_each_other(pattern: Any, value: Any) -> None:
    assert fits("*", value)
    if fits(pattern, value) and not any(c in repr(pattern) for c in "*?["):
        assert pattern == value


def test_a_call_of_the_shape_is_covered() -> None:
    assert YES.covers(CALL)
    assert replace(YES, arguments={"path": "/home/u/work/drafts/*", "text": "*"}).covers(CALL)
    assert YES.covers(replace(CALL, paths={"path": "/srv/x/drafts/b.md"}, roots=()))
    assert replace(YES, nested=True).covers(replace(CALL, nested=True))


OTHER: dict[str, dict[str, Any]] = {
    "one more argument": {"arguments": {**CALL.arguments, "mode": "x"}},
    "one argument less": {"arguments": {"path": "anything"}},
    "another tool": {"spec": replace(SAVE, name="save_")},
    "another schema": {"spec": replace(SAVE, parameters={"type": "object", "properties": {}})},
    "other words of the tool": {"spec": replace(SAVE, description="Saves!")},
    "other effects": {"spec": replace(SAVE, effects=frozenset({"write", "network"}))},
    "another plugin": {"spec": replace(SAVE, plugin="stranger")},
    "another version": {"pinned": "v2"},
    "no version": {"pinned": None},
    "a run within a call": {"nested": True},
    "another folder of the run": {"roots": ("/home/u/work", "/home/u")},
    "a folder beside it": {"roots": ("/home/u/work-evil",)},
    "a relative folder": {"roots": ("work",)},
    "a path beside": {"paths": {"path": "/home/u/work/drafts-evil/a.md"}},
    "a path deeper": {"paths": {"path": "/home/u/work/drafts/b/a.md"}},
    "a path elsewhere": {"paths": {"path": "/etc/drafts/a.md"}},
    "a path up": {"paths": {"path": "/home/u/work/drafts/../drafts/a.md"}},
    "a path nowhere": {"paths": {"path": ""}},
    "a path of two slashes": {"paths": {"path": "//home/u/work/drafts/a.md"}},
    "a path that looks alike": {"paths": {"path": "/home/u/work/dr\u0430fts/a.md"}},
    "a path that goes to the left": {"paths": {"path": "/home/u/work/drafts/\u202edm.a.md"}},
    "too late": {"at": datetime(2026, 4, 1, tzinfo=UTC)},
    "a clock set back": {"at": datetime(2026, 1, 31, tzinfo=UTC)},
}


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_a_call_that_differs_in_anything_is_not_covered(change: dict[str, Any]) -> None:
    assert not YES.covers(replace(CALL, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"roots": ()},
        {"roots": ("/home/u/work/drafts",)},
        {"arguments": {"path": ["drafts/*.md"], "text": "*"}},
        {"expires_at": "soon"},
        {"made_at": ""},
        {"expires_at": "2026-04-01T00:00:00"},
    ],
)
def test_a_template_that_cannot_be_right_covers_nothing(change: dict[str, Any]) -> None:
    assert not replace(YES, **change).covers(CALL)


def test_a_clock_may_be_a_little_behind() -> None:
    made = datetime.fromisoformat(YES.made_at)
    assert YES.holds(made - timedelta(minutes=4)) and not YES.holds(made - timedelta(minutes=6))
