"""docs/protocol.md names what the code knows. Its examples are run with those of all pages."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from mlx_tools.errors import ErrorCode
from mlx_tools.protocol import COERCIONS, DEFAULT_REASONING_MARKERS, REPAIRS

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_every_repair_coercion_and_error_code_is_on_the_page() -> None:
    names = (*REPAIRS, *COERCIONS, *get_args(ErrorCode))
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_every_reasoning_marker_is_on_the_page() -> None:
    assert [pair for pair in DEFAULT_REASONING_MARKERS if f"`{pair[0]}`" not in PAGE] == []


def test_the_reading_rules_are_numbered_as_the_code_cites_them() -> None:
    assert [line for line in range(1, 13) if f"\n### {line}. " not in PAGE] == []
