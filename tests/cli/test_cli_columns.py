"""Lists and errors in the columns of a terminal, and as they are elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlx_tools.cli.output import beside, folded


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


@pytest.mark.slow
def test_a_terminal_gets_rows_that_fit(terminal: Any, run: Any) -> None:
    def screen(columns: int, *arguments: str) -> list[str]:
        opened = terminal(*arguments, columns=columns)
        opened.end()
        shown: list[str] = opened.text.split("\r\n")
        return shown

    for columns in (60, 100):
        rows = screen(columns, "tools", "list")
        assert max(map(len, rows)) <= columns
        assert " ".join(" ".join(rows).split()) == " ".join(run("tools", "list").out.split())
        rows = screen(columns, "tools", "show", "nothing")
        assert len(rows) > 2 and max(map(len, rows)) <= columns
        assert all(row.startswith("  ") for row in rows[1:-1])


def test_elsewhere_a_row_is_a_line(home: Path, run: Any, environ: Any) -> None:
    folder = home / "two\nlines"
    (folder / "tools" / "broken").mkdir(parents=True)
    environ(DATA_DIR=str(folder))
    listed = run("tools", "list").out.splitlines()
    assert len(listed) == len(run("tools", "list", "--json").lines)
    assert max(map(len, listed)) > 100
