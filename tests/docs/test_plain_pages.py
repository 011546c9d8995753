"""The pages that a new user meets first begin with the command, and in usual words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            *("README", "approvals", "backends", "built-in", "chat", "commands", "compared"),
            *("configuration", "cookbook", "decoding", "golden", "library", "macos", "policy"),
            *("prompts", "tools", "web"),
        )
    ),
]

UNUSUAL = re.compile(
    r"\b(?:go(?:es)? over (?:the|your|its)|told (?:as|of|at once)|whoever|that speaks decides"
    r"|and its like|save for|save where|by way of|what is said|stands? behind words)\b",
    re.IGNORECASE,
)
"""Turns of phrase for which there are usual words: *overrides*, *reported*, *somebody who*."""

FIRST_LINES = 12
"""Lines in which the first command, program, picture or table of a page stands."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_for_new_users_is_in_usual_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = re.sub(r"<!-- .*: written by scripts.*?<!-- end of", "", text, flags=re.S).split("\n")
    found = [f"{n}: {one[0]}" for n, line in enumerate(lines, 1) for one in UNUSUAL.finditer(line)]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_for_new_users_begins_with_what_to_type(page: Path) -> None:
    first = page.read_text(encoding="utf-8").split("\n")[:FIRST_LINES]
    assert any(line.startswith(("```", "| ", "<img")) for line in first)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
