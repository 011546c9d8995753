"""Chat's line, at a real pseudo-terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal

PROGRAM = """
import sys
from pathlib import Path
from mlx_tools.cli.line_editor import LineEditor

words = ("llama-3", "llama-2", "src/a b", "evil\\x1b[31m")
editor = LineEditor(
    Path("HISTORY"),
    lambda: {"/model": "which model answers", "/mode": "another", "/help": "a list"},
    lambda command, beginning: [word for word in words if word.startswith(beginning)],
    lambda: "12 % of the context\\x1b[31m",
)
while True:
    try:
        text = editor.read()
    except KeyboardInterrupt:
        print("INTERRUPTED")
        continue
    print("READ", ascii(text))
    if text is None:
        break
"""

Open = Callable[..., Terminal]


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_terminal(columns: int = 80, rows: int = 24, **environ: str) -> Terminal:
        program = PROGRAM.replace("HISTORY", str(tmp_path / "state" / "chat_history"))
        opened.append(Terminal(program=program, environ=environ, columns=columns, rows=rows))
        opened[-1].see("^>$")
        return opened[-1]

    yield open_terminal
    for item in opened:
        item.close()


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("plain\r", "plain"),
        ("a\x1b\rb\r", r"a\nb"),
        ("a\nb\r", r"a\nb"),
        ('"""\rtwo\r', r"two\nlines"),
        ("\x1b[200~a\r\tb\r\x1b[201~\r", r"a\n\tb\n"),
        ("pasted\runmarked\r", r"pasted\nunmarked"),
        ("漢字 e\u0301 שלום x\x7f\r", r"\u6f22\u5b57 e\u0301 \u05e9\u05dc\u05d5\u05dd "),
    ],
)
def test_a_text_is_read_as_it_was_meant(line: Open, typed: str, read: str) -> None:
    screen = line()
    screen.type(typed)
    if typed.startswith('"""'):
        screen.see("^  two\n^$")
        screen.type('lines"""\r')
    assert f"READ '{read}'" in screen.see("READ")
