"""Lists and errors in the columns of a terminal, and as they are elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.cli.columns import beside, cells, folded
from tests.cli.terminal import Terminal

WORDS = st.lists(st.text("abc/.é日", min_size=1, max_size=12), min_size=1, max_size=12)


@given(words=WORDS, columns=st.integers(10, 60), indent=st.sampled_from(["", "  ", "   : "]))
def test_words_are_kept_whole_and_rows_are_not_too_wide(
    words: list[str], columns: int, indent: str
) -> None:
    rows = folded(" ".join(words), columns, indent).split("\n")
    parts = [rows[0], *(row.removeprefix(indent) for row in rows[1:])]
    assert all(row.startswith(indent) for row in rows[1:])
    assert " ".join(parts).split() == words
    for row, part in zip(rows, parts, strict=True):
        assert cells(row) <= columns or " " not in part


@given(words=WORDS, columns=st.integers(20, 120), width=st.integers(1, 60))
def test_a_text_beside_columns_is_whole(words: list[str], columns: int, width: int) -> None:
    head = "h" * width
    assert beside(head, " ".join(words), columns).split() == [head, *words]
    assert beside(head, " ".join(words), None) == f"{head} {' '.join(words)}"


def test_a_long_text_is_folded_in_one_pass() -> None:
    for text in (" " * 1_000_000 + "end", "word " * 200_000, "x" * 1_000_000):
        assert folded(text, 60, "  ").split() == text.split()


def test_what_is_before_a_text_stays_before_it() -> None:
    code = "   | def f(x): return x"
    assert folded(code, 18, "   : ") == "   | def f(x):\n   : return x"
    assert beside("name  read", "two words", 16) == "name  read\n    two words"
    assert beside("name", "some words that go on and on", 36) == (
        "name some words that go on and on"
    )
    wide = beside("name", "some words that go on and on", 35)
    assert wide == "name some words that go on and on"
    assert beside("name", "some words that go on and on, all day", 35) == (
        "name some words that go on and on,\n     all day"
    )


def screen(columns: int, *arguments: str) -> list[str]:
    """What a command shows on a terminal of so many columns."""
    terminal = Terminal(*arguments)
    try:
        terminal.resize(columns, 30)
        terminal.end()
        terminal.read_rest()
        return terminal.text.split("\r\n")
    finally:
        terminal.close()


@pytest.mark.slow
def test_a_terminal_gets_rows_that_fit(home: Path, run: Any) -> None:
    for columns in (60, 100):
        rows = screen(columns, "tools", "list")
        assert max(map(len, rows)) <= columns
        assert " ".join(" ".join(rows).split()) == " ".join(run("tools", "list").out.split())
        rows = screen(columns, "tools", "show", "nothing")
        assert len(rows) > 2 and max(map(len, rows)) <= columns
        assert all(row.startswith("  ") for row in rows[1:-1])


def test_elsewhere_a_row_is_a_line(home: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "two\nlines"
    (folder / "tools" / "broken").mkdir(parents=True)
    monkeypatch.setenv("MLX_TOOLS_DATA_DIR", str(folder))
    listed = run("tools", "list").out.splitlines()
    assert len(listed) == len(run("tools", "list", "--json").lines)
    assert max(map(len, listed)) > 100
