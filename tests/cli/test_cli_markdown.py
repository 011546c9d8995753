"""An answer drawn while it is written: the same text whatever its pieces, and nothing obeyed."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
from collections.abc import Iterable

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mlx_tools.cli.markdown import MarkdownScreen, PlainScreen
from mlx_tools.cli.output import cells
from tests.cli.terminal import Screen, resize
from tests.examples import FEW

MASTER, SLAVE = pty.openpty()
OWN = re.compile(r"\x1b\[(?:\d+A|[KJ]|\?7[lh]|[0-9;]*m)")
"""Sequences that the view itself may send to a terminal."""

MARKDOWN = (
    *(
        "# ",
        "## ",
        "- ",
        "* ",
        "1. ",
        "10) ",
        "> ",
        "```",
        "```python",
        "~~~",
        "    ",
        "---",
        "===",
    ),
    *("|", "| a | b |\n|---|--:|\n| 1 | 2 |\n", "**", "_", "`", "[x](http://y.example/z)", "<b>"),
    *("\n", "\n", "\n\n", " ", "\t", "\\", "&amp;", "[a]: /u", "![i](p)", "def f(): 'x'", "/* "),
    *("word", "words that go on ", "漢字", "é", "👍", "0", "{", "x" * 50),
)
HOSTILE = (
    *("\x1b[2J", "\x1b]0;evil\x07", "\x1b]8;;http://evil\x1b\\", "\x9b31m", "\r", "\x08" * 9),
    *("\u202e", "\u2066", "\u2028", "\x85", "\x0e", "\x1bc", "&#27;[2J", "&#x202e;", "&#8238;"),
    *("[a](\x1b]52;c;AA\x07)", "[\x1b[H](/&#x202e;)", "<http://a/\x1b[9A>", "\x00", "\ud800"),
    "```\x1b]2;t\x07\n",
)


class Paper(io.StringIO):
    """A terminal of a size, and what stands on it and above it in the end."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        super().__init__()
        resize(SLAVE, columns, rows)
        self.screen = Screen(columns, rows, os.open(os.devnull, os.O_WRONLY))
        self.screen.set_mode(pyte.modes.LNM)

    def fileno(self) -> int:
        return SLAVE

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """All rows, those that scrolled away too."""
        pyte.Stream(self.screen).feed(self.getvalue())
        rows = [*self.screen.above, *(row.rstrip() for row in self.screen.display)]
        return "\n".join(rows).rstrip()


def drawn(pieces: Iterable[str], columns: int = 80, rows: int = 24, *, often: bool = True) -> Paper:
    """The drawing of an answer that comes in these pieces, after each of them or but once."""
    paper, now = Paper(columns, rows), [-1.0]
    view = MarkdownScreen(paper, lambda: now[0])
    for piece in pieces:
        now[0] += often
        view.write(piece)
    view.finish()
    return paper


def parted(text: str, sizes: Iterable[int]) -> list[str]:
    """The text in pieces of these sizes, over and over."""
    pieces, rest = [], text
    for size in itertools.cycle(sizes):
        pieces.append(rest[:size])
        rest = rest[size:]
        if not rest:
            return pieces
    raise AssertionError


texts = st.lists(st.sampled_from(MARKDOWN), max_size=40).map("".join)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(texts, sizes, st.sampled_from([(40, 5), (80, 24), (200, 9)]))
def test_what_stands_there_in_the_end_is_the_same_however_it_came(
    text: str, sizes: list[int], size: tuple[int, int]
) -> None:
    columns, rows = size
    whole = drawn([text], columns, rows, often=False)
    assert drawn(parted(text, sizes), columns, rows).text == whole.text
    assert all(cell_len(row) <= columns for row in OWN.sub("", whole.getvalue()).split("\n"))


@given(texts, sizes, st.sampled_from([40, 80, 200]))
def test_plain_text_stands_there_the_same_however_it_came(
    text: str, sizes: list[int], columns: int
) -> None:
    assert plain(parted(text, sizes), columns).text == plain([text], columns).text


def test_plain_text_keeps_the_white_space_that_begins_a_line() -> None:
    code = "def f():\n    if x:\n\t  return 1"
    assert plain(code, 80).text == code.expandtabs()


@FEW
@given(st.lists(st.sampled_from((*MARKDOWN, *HOSTILE)), max_size=30).map("".join), sizes)
def test_a_terminal_obeys_nothing_that_a_model_wrote(text: str, sizes: list[int]) -> None:
    for view in (lambda paper: MarkdownScreen(paper, lambda: 0.0), PlainScreen):
        paper = Paper()
        paper.write("before\n")
        screen = view(paper)
        for piece in parted(text, sizes):
            screen.write(piece)
        screen.finish()
        left = OWN.sub("", paper.getvalue())
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", left)
        assert paper.text.split("\n")[0] == "before"
        assert paper.screen.title == ""


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_words_are_folded_and_wide_characters_count_as_two(columns: int) -> None:
    text = "Some words and 漢字 of two columns, " * 20
    for paper in (drawn([text], columns), plain(text, columns)):
        rows = paper.text.split("\n")
        assert " ".join(" ".join(rows).split()) == text.strip()
        assert all(columns - 10 <= cells(row) <= columns for row in rows[:-1])


def plain(pieces: Iterable[str], columns: int) -> Paper:
    """The drawing of an answer in plain words; a text comes a character at a time."""
    paper = Paper(columns)
    view = PlainScreen(paper)
    for piece in pieces:
        view.write(piece)
    view.finish()
    return paper


def test_an_answer_longer_than_the_screen_is_whole_above_it() -> None:
    for text in (
        "```\n" + "".join(f"line {n}\n" for n in range(20)) + "```\n",
        "".join(f"- item {n}\n" for n in range(20)),
        "".join(f"| {n} | {'x' * (n % 7)} |\n" + "|-|-|\n" * (n == 0) for n in range(20)),
    ):
        paper = drawn(parted(text, [7]), 40, 10)
        numbers = [int(n) for n in re.findall(r"\d+", paper.text)]
        assert numbers == list(range(20))


def test_a_finished_block_is_drawn_once_and_of_an_open_one_what_changed() -> None:
    paper, now = Paper(), [0.0]
    view = MarkdownScreen(paper, lambda: now[0])
    view.write("# First\n\nSecond " + "and more words " * 10)
    before = len(paper.getvalue())
    now[0] += 1
    view.write("to the end")
    assert "First" not in paper.getvalue()[before:]
    assert paper.getvalue()[before:].count("\n") == 1  # of the rows of the paragraph the last one


def test_markdown_is_shown_and_what_it_has_no_sign_for_stays() -> None:
    text = (
        "# Title\nA **bold** [word](http://b.example/c) <b>tag</b> &lt; ![image](http://p.example)\n"
        "next line\n\n[1]: http://ref.example\n\n```python\nreturn 1\n```\n\n"
        "| a | b |\n|--|--|\n| 1 | 2 |\n"
    )
    paper = drawn([text])
    assert paper.text.split("\n") == [
        "Title",
        "",
        "A bold word (http://b.example/c) <b>tag</b> &lt; !image (http://p.example)",
        "next line",
        "",
        "[1]: http://ref.example",
        "",
        "return 1",
        "",
        " a  b",
        " ────",
        " 1  2",
    ]
    assert re.search(r"\x1b\[94\S*mreturn", paper.getvalue()) and "\x1b[1mbold" in paper.getvalue()


def test_what_is_nested_or_crowded_beyond_a_screen_stays_as_it_is() -> None:
    crowded = "|" + "a|" * 40 + "\n|" + "-|" * 40
    for text in (">" * 300 + " deep", crowded, "1.", "-", "```", "[" * 9000):
        assert "".join(drawn([text], 40).text.split()) == "".join(text.split())


def test_pieces_wait_for_the_clock_and_none_is_forgotten() -> None:
    paper, now = Paper(), [100.0]
    view = MarkdownScreen(paper, lambda: now[0])
    view.write("one ")
    view.write("two")
    assert "two" not in paper.getvalue()
    now[0] += 1
    view.tick()
    assert "two" in paper.getvalue()


@pytest.mark.parametrize("kind", [MarkdownScreen, PlainScreen])
def test_what_others_wrote_in_between_stays(kind: type[MarkdownScreen | PlainScreen]) -> None:
    paper = Paper()
    view = kind(paper)
    view.write("words that a shell breaks " * 5)
    paper.write("[1]+ Stopped\n$ fg\n")
    view.reset_position()
    view.write("and go on")
    view.finish()
    assert "[1]+ Stopped\n$ fg\n" in paper.text
    assert paper.text.endswith("and go on")
