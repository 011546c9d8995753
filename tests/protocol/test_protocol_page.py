"""docs/protocol.md names what the code knows. Its examples are run with those of all pages."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from mlx_tools.errors import ErrorCode
from mlx_tools.protocol import DEFAULT_REASONING_MARKERS, DIALECTS
from tests.protocol.texts import COERCIONS, REPAIRS

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_every_repair_coercion_and_error_code_is_on_the_page() -> None:
    names = (*REPAIRS, *COERCIONS, *get_args(ErrorCode))
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_every_reasoning_marker_is_on_the_page() -> None:
    assert [pair for pair in DEFAULT_REASONING_MARKERS if f"`{pair[0]}`" not in PAGE] == []


def test_every_dialect_is_on_the_page_under_what_stands_between_its_marks() -> None:
    points = " ".join(PAGE.split()).split(" - ")
    for one in DIALECTS:
        (point,) = (text for text in points if text.startswith(f"`{one.body}`, "))
        assert f"`{one.name}`" in point


def test_the_reading_rules_are_numbered_as_the_code_cites_them() -> None:
    numbers = (*range(1, 13), "8a", "8b", "8c")
    assert [line for line in numbers if f"\n### {line}. " not in PAGE] == []
