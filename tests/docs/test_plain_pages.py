"""The pages that a new user meets first begin with the command, and in usual words."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from scripts import sentences
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "architecture"),
]

FIRST_LINES = 12
"""Lines in which the first command, program, picture or table of a page stands."""


@table(
    ("text", "parts"),
    [
        ("One. Two! Is it? `three` is.", ["One.", "Two!", "Is it?", "C is."]),
        ("See e.g. [this\npage](a.md). It is.", ["See e.g. this page.", "It is."]),
        ("- an item\n  goes on\n- another", ["an item goes on", "another"]),
        ("# Head\n\nText.\n\n| a | b |\n", ["Text."]),
        ("Text:\n\n```console\n$ a\n```\nMore.", ["Text:", "More."]),
        ("<!-- x: written by y.py -->\nOne.\n<!-- end of x -->\nTwo.", ["Two."]),
    ],
)
def test_a_page_is_split_into_sentences(text: str, parts: list[str]) -> None:
    assert [part for _, part in sentences.sentences(text)] == parts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_what_to_type(page: Path) -> None:
    first = page.read_text(encoding="utf-8").split("\n")[:FIRST_LINES]
    assert any(line.startswith(("```", "| ", "<img")) for line in first)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@table("page", [page for page in PAGES if page.stem != "traces"], ids=lambda page: page.stem)
def test_a_name_of_the_package_is_one_that_can_be_imported(page: Path) -> None:
    """Names in traces.md are attributes of spans."""
    for name in re.findall(r"`(mlx_tools(?:\.\w+)+)", page.read_text(encoding="utf-8")):
        assert pkgutil.resolve_name(name)
