"""Chat's line, at a real pseudo-terminal."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlx_tools.cli.inputs import read_line
from tests.cli.terminal import Terminal
from tests.interrupts import interrupted_in

PROGRAM = """
import os, select, signal, sys
from pathlib import Path
from mlx_tools.cli.line_editor import LineEditor
from mlx_tools.cli.type_ahead import TypeAhead

signal.signal(signal.SIGHUP, signal.SIG_IGN)
if named := os.environ.get("REDIRECTED"):
    stream, _, file = named.partition("=")
    setattr(sys, stream, open(file, "w"))
words = ("llama-3", "llama-2", "evil\\x1b[31m", "evil\\u202e")
ahead = TypeAhead.for_process()
editor = LineEditor(
    Path("HISTORY"),
    {"/model": "which model answers", "/mode": "another", "/help": "a list"},
    lambda command, beginning: [(word, "of it") for word in words if word.startswith(beginning)],
    lambda: "12 % of\\x1b[31m the context",
    ahead,
)
if "BETWEEN" in os.environ:
    with ahead.silence():
        editor.read()
        with ahead.buffer_input():
            pass
        print("BETWEEN")
        select.select([sys.stdin], [], [])
        print("READ", ascii(editor.read()))
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
    """Opens a terminal on which texts are read."""
    opened: list[Terminal] = []

    def open_terminal(columns: int = 80, **environ: str) -> Terminal:
        program = PROGRAM.replace("HISTORY", str(tmp_path / "state" / "chat_history"))
        opened.append(Terminal(program=program, environ=environ, columns=columns))
        opened[-1].see("^>$")
        return opened[-1]

    yield open_terminal
    for item in opened:
        item.close()


def type_slowly(screen: Terminal, *texts: str) -> None:
    """Type texts, each once the one before was taken in."""
    for text in texts:
        screen.read_rest()
        screen.type(text)
        screen.until("\x1b")


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["a", "\x1b\r", "b", "\r"], "a\nb"),  # Alt-Enter
        (["a", "\n", "b", "\r"], "a\nb"),  # Ctrl-J
        (['"""', "\r", "two", "\r", 'lines"""', "\r"], "\ntwo\nlines"),
        (["\x1b[200~a\r\tb\r\x1b[201~", "\r"], "a\n\tb\n"),
        (["pasted\runmarked\r"], "pasted\nunmarked"),
        (["漢字 e\u0301 🙂 שלום x", "\x7f", "\r"], "漢字 e\u0301 🙂 שלום "),
    ],
)
def test_a_text_is_read_as_it_was_meant(line: Open, typed: list[str], read: str) -> None:
    screen = line(columns=200)
    type_slowly(screen, *typed)
    assert f"READ {read!a}" in screen.see("READ")


def test_a_dumb_terminal_reads_lines_and_a_paste_as_one_text(line: Open) -> None:
    screen = line(TERM="dumb")
    screen.type("three\rlines\rpasted\r")
    screen.see(r"READ 'three\\nlines\\npasted'\n>$")
    screen.type('"""\r')
    screen.see('^> """$')
    screen.type('quoted"""\r')
    screen.see(r"READ '\\nquoted'\n>$")
    screen.type("half\x03")
    screen.see("INTERRUPTED\n>$")
    screen.type("\x04")
    assert screen.end() == 0 and "READ None" in screen.screen


def test_a_signal_just_before_the_wait_for_a_line_is_noticed() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as keyboard, interrupted_in(read_line):
        read_line(keyboard)
    os.close(writer)


def test_ctrl_c_clears_the_line_and_ctrl_d_leaves_a_terminal_as_it_was(line: Open) -> None:
    screen = line()
    screen.type("half a line")
    screen.see("half a line")
    screen.press("ctrl-c")
    screen.see("INTERRUPTED\n>$")
    screen.press("ctrl-d")
    assert screen.end() == 0 and screen.echoes() and "READ None" in screen.screen


def test_commands_and_what_follows_them_are_completed_below_the_line(line: Open) -> None:
    screen = line(columns=40)
    screen.type("/mo\t")
    seen = screen.see("> /mode\n.*/model  which model answers")
    assert "/help" not in seen
    screen.type("l")
    assert "which model" not in screen.gone("which model")
    screen.type(" ll\t")
    screen.see("> /model llama-\n.*llama-3")
    screen.type("3\r")
    screen.see("READ '/model llama-3'")


LONG = "".join(f"line {number}\n" for number in range(120))


def test_a_long_paste_is_shown_by_its_size_and_read_whole(line: Open) -> None:
    screen = line(columns=40)
    screen.type("What is ")
    screen.paste(LONG)
    screen.see(r"> What is \[120 lines pasted\]$")
    screen.type(", and ")
    screen.paste("x" * 5_000)
    screen.see(r"5,000 char")
    screen.press("backspace")
    screen.gone("5,000 char")
    screen.type("why?\r")
    screen.see("and why[?]'")
    whole = f"READ {f'What is {LONG}, and why?'!a}"
    assert "".join(whole.split()) in "".join(screen.paper.split())
    screen.press("up")
    screen.see("line 119\n  , and why[?]$")


def editor(folder: Path, old: str, new: str) -> str:
    """An editor that replaces a text in each file that it is given."""
    program = folder / "editor"
    changed = f"file.read_text().replace({old!r}, {new!r})"
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, sys\nfile = pathlib.Path(sys.argv[-1])\n"
        f"file.write_text({changed})\n"
    )
    program.chmod(0o755)
    return str(program)


def test_a_tab_or_an_editor_unfolds_a_long_paste(line: Open, tmp_path: Path) -> None:
    screen = line(VISUAL=editor(tmp_path, "line 7\n", "line seven\n"))
    screen.paste(LONG)
    screen.see(r"> \[120 lines pasted\]$")
    screen.type("\x1be")
    screen.see("line 119$")
    screen.press("enter")
    screen.see("READ 'line 0[^>]*line seven[^>]*^>$")
    screen.paste(LONG)
    screen.see(r"> \[120 lines pasted\]$")
    screen.type("\t")
    screen.gone("lines pasted")
    screen.type(" and more\r")
    screen.see("line 119\\\\n and more'")


def test_a_short_paste_stays_as_it_is(line: Open) -> None:
    screen = line()
    screen.paste("one\ntwo")
    screen.see("> one\n  two$")


def test_nothing_that_a_terminal_would_obey_is_shown_or_completed(line: Open) -> None:
    screen = line()
    type_slowly(screen, "\x1b[200~a\x1b[31mb\u202e\tc\x1b[201~")
    assert r"> a\x1b[31mb\u202e    c" in screen.see(r"    c$")
    screen.press("ctrl-c")
    screen.see(r"INTERRUPTED\n>\n12 % of\\x1b\[31m the context$")
    screen.type("/model ev\t")
    screen.type("x\r")
    screen.see("READ '/model evx'")
    assert "\x1b[31m" not in screen.text and "\u202e" not in screen.text


def test_of_a_long_line_the_part_around_the_cursor_is_shown(line: Open) -> None:
    screen = line()
    screen.paste("begin " + "x" * 100_000 + " end")
    screen.see("characters pasted")
    screen.type("\t")
    screen.see("x end$")
    screen.press("ctrl-a")
    screen.see("^> begin x")
    screen.press("ctrl-e", "backspace")
    screen.see("x en$")
    screen.press("enter")
    screen.see(" en'$")
    assert "READ 'begin xxx" in screen.paper.replace("\n", "")


def test_what_was_typed_is_kept_in_private_and_found_again(line: Open, tmp_path: Path) -> None:
    first = line()
    type_slowly(first, "\x1b[200~one\rtwo\x1b[201~", "\r")
    first.see(r"READ 'one\\ntwo'\n>$")
    type_slowly(first, "another", "\r")
    first.see("READ 'another'\n>$")  # before it, a terminal of its own accord takes Ctrl-D
    first.press("ctrl-d")
    assert first.end() == 0
    history = tmp_path / "state" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    second = line()
    second.press("up")
    second.see("> another")
    second.press("ctrl-r")
    second.type("one")
    second.see("> one\n  two")
    type_slowly(second, "\r", "\r")
    second.see(r"READ 'one\\ntwo'")


def test_the_history_is_bounded(line: Open, tmp_path: Path) -> None:
    history = tmp_path / "state" / "chat_history"
    history.parent.mkdir()
    history.write_text("".join(f"\n# then\n+{'x' * 1000} {n}\n" for n in range(2_500)))
    screen = line()
    screen.press("up")
    screen.see("x 2499")
    assert 900_000 < history.stat().st_size < 1_200_000


def test_an_editor_changes_the_text(line: Open, tmp_path: Path) -> None:
    screen = line(VISUAL=editor(tmp_path, "wrong", "right"))
    screen.type("all wrong")
    screen.see("all wrong")
    screen.type("\x18\x05")
    screen.see("> all right")
    screen.type(" wrong\x1be")
    screen.see("> all right right")
    screen.press("enter")
    screen.see("READ 'all right right'")


def test_an_editor_that_fails_is_told_and_changes_nothing(line: Open) -> None:
    screen = line(VISUAL="false")
    screen.type("all well\x1be")
    screen.see("editor: false ended with exit code 1; nothing was changed\n> all well$")


def test_a_line_is_drawn_anew_where_the_terminal_has_another_size(line: Open) -> None:
    screen = line()
    screen.type("a text that is wider than forty columns are")
    screen.see("forty columns are$")
    screen.resize(40, 30)
    screen.see("^> a text that is wider than forty column\n  s are$")


def test_a_terminal_that_goes_away_ends_the_input(line: Open, tmp_path: Path) -> None:
    screen = line(REDIRECTED=f"stdout={tmp_path / 'redirected'}")
    screen.type("half")
    screen.see("half")
    screen.hang_up()
    screen.process.wait(120)
    assert (tmp_path / "redirected").read_text() == "READ None\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_one_stream_that_is_a_terminal_is_enough(line: Open, tmp_path: Path, stream: str) -> None:
    file = tmp_path / "redirected"
    screen = line(REDIRECTED=f"{stream}={file}")
    screen.type("one\r")
    screen.see("^> one\n(READ 'one'\n)?>$")
    screen.press("ctrl-d")
    assert screen.end() == 0
    assert file.read_text() == ("READ 'one'\nREAD None\n" if stream == "stdout" else "")


def test_what_is_typed_between_one_reader_and_the_next_is_seen_once(line: Open) -> None:
    """Type while neither a command nor the prompt has the keyboard."""
    screen = line(BETWEEN="yes")
    screen.type("busy\r")
    screen.see("BETWEEN")
    assert not screen.echoes()
    screen.type("typed\r")
    assert screen.see("READ 'typed'").count("typed") == 2  # at the prompt, and as it was read
