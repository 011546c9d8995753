"""An answer at a terminal, drawn while it is written.

Markdown, or plain text with wrapped lines.

Finished blocks of Markdown are drawn once and stay in the scrollback. The last block, which is
still being written, is drawn again from the first row that changed. If it is longer than the screen
its end is shown, and all of it once it is finished. Only whole lines decide where a block ends, and
each block is drawn from its own lines. So the result is the same in whatever pieces the text came.

A text reaches the terminal only through `escape_for_terminal`, before it is read as Markdown and
after. HTML, entities and definitions of links would be invisible, so they are not read. A link is
shown as its words and its address.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Final, TextIO

from mlx_tools.cli.call_text import get_screen_size
from mlx_tools.cli.output import PROSE, cells, color_text, escape_for_terminal, wrap_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
    from rich.markdown import Markdown, MarkdownIt, Token
    from rich.segment import Segment

_PAUSE: Final = 0.03
"""The fewest seconds between two drawings: a person sees no more, and drawing takes time."""
_PAUSE_FACTOR: Final = 4
"""The pause is also at least this many times the last drawing: it takes at most a fifth of the
time."""

_MIN_COLUMN_WIDTH: Final = 5
"""Columns of the screen for each column of a table; with fewer its source is shown."""

_MAX_PARAGRAPH_CHARS: Final = 5000
"""Characters of a paragraph: the time to read its marks grows with the square of its length."""

_MAX_LEVELS: Final = 20
"""Levels of nesting that are drawn: no screen shows more."""

_MARKS: Final = " \t-=`~*_#>|:+.0123456789"
"""A line of only these characters may still become anything: it is drawn only when it is complete.
"""

_STYLES: Final = {
    "markdown.h1": "bold underline",
    **{f"markdown.h{level}": "bold" for level in range(2, 7)},
    "markdown.code": "cyan",
    "markdown.code_block": "none",
    "markdown.block_quote": "dim",
    "markdown.item.bullet": "none",
    "markdown.item.number": "none",
    "markdown.hr": "dim",
    "markdown.table.border": "dim",
    "markdown.table.header": "bold",
}


class PlainScreen:
    """Shows words as soon as they are complete, in rows that fit."""

    def __init__(self, output: TextIO, colour: str = "") -> None:
        self._output = output
        self._colour = colour
        self._column = 0  # columns that are used in the row
        self._blank = ""  # white space before the next word
        self._word = ""  # a word that may continue

    def write(self, text: str) -> None:
        """Add more of the text."""
        *parts, self._word = re.split(
            r"([ \t]+|\n)", self._word + escape_for_terminal(text, keep=PROSE)
        )
        self._write_parts(parts)

    def reset_position(self) -> None:
        """Forget the cursor's position, since others have written to the terminal."""
        self._column = 0

    def finish(self) -> None:
        """Show all of the text, and end the line."""
        word, self._word = self._word, ""
        self._write_parts([word, "\n"] if word or self._column else [])

    def _write_parts(self, parts: Iterable[str]) -> None:
        columns, out = get_screen_size(self._output).columns, ""
        for part in parts:
            size = cells(part)
            if part == "\n":
                out += part
                self._column, self._blank = 0, ""
            elif part.isspace():
                self._blank += part
            elif part:
                fits = self._column + len(self._blank) + size <= columns
                before = self._blank if fits or not self._column else "\n"
                out += before + part
                self._column = size + (0 if before == "\n" else self._column + len(before))
                self._blank = ""
        if out:
            self._output.write(color_text(out, self._colour, self._output))
            self._output.flush()


class MarkdownScreen:
    """Markdown on a terminal that obeys; used like a `PlainScreen`.

    ``clock`` returns seconds.
    """

    def __init__(self, output: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._output = output
        self._clock = clock
        self._text = ""  # the unfinished blocks
        self._live: list[str] = []  # their rows on the screen, above the cursor
        self._columns = 0
        self._spaced = False  # True if a block is above
        self._due = 0.0
        self._waits = False

    def prepare(self) -> None:
        """Import the drawing code while the program waits for the model."""
        _ = self._parser, _renderer()

    def write(self, text: str) -> None:
        """Add more of the text."""
        self._text += escape_for_terminal(text, keep=PROSE)
        self._waits = True
        self.tick()

    def tick(self) -> None:
        """Draw what has not been drawn, if it is time."""
        if self._waits and self._clock() >= self._due:
            self._draw(self._text.rfind("\n") + 1)

    def reset_position(self) -> None:
        """Forget the rows on the screen, since others have written to the terminal."""
        self._live = []

    def finish(self) -> None:
        """Draw all of the text."""
        if self._text:
            self._draw(len(self._text), last=True)
        self._text, self._spaced = "", False

    @cached_property
    def _parser(self) -> MarkdownIt:
        from rich.markdown import MarkdownIt

        parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 2 * _MAX_LEVELS})
        parser.enable(["table", "strikethrough"])
        return parser.disable(["reference", "image", "entity", "html_inline", "html_block"])

    def _lines(self, text: str) -> list[Token]:
        """Return the blocks of a text, without reading their contents."""
        with self._parser.reset_rules():
            self._parser.disable(["inline", "text_join"])
            return self._parser.parse(text)

    def _draw(self, whole: int, *, last: bool = False) -> None:
        """Draw the text so far; up to ``whole`` it has complete lines."""
        started_at = self._clock()
        size = get_screen_size(self._output)
        columns = max(size.columns - 1, 4)
        done: list[str] = []
        *finished, last_block = self._blocks(self._text[:whole])
        for block in (*finished, last_block) if last else finished:
            self._add(done, block, columns)
        live: list[str] = []
        if last:
            self._text = ""
        else:
            tail = self._text[whole:]
            self._text = last_block + tail
            unfinished = last_block + tail if tail.strip(_MARKS) else last_block
            self._add(live, unfinished, columns, max_rows=size.lines)
        self._replace_rows(done, live[-(size.lines - 1) :], columns)
        self._waits = False
        now = self._clock()
        self._due = now + max(_PAUSE, _PAUSE_FACTOR * (now - started_at))

    def _blocks(self, text: str) -> list[str]:
        """Return the lines of each block; the last one may continue."""
        starts = [t.map[0] for t in self._lines(text) if t.level == 0 and t.map]
        starts = list(dict.fromkeys(starts))
        lines = text.splitlines(keepends=True)
        return ["".join(lines[a:b]) for a, b in pairwise([0, *starts[1:], len(lines)])]

    def _add(
        self, rows: list[str], block: str, columns: int, *, max_rows: int | None = None
    ) -> None:
        """Add the rows of a block; ``max_rows`` of them if it is unfinished."""
        if block.strip():
            rows += [""] * self._spaced + self._rows(block, columns, max_rows)
            self._spaced = self._spaced or max_rows is None

    def _replace_rows(self, done: list[str], live: list[str], columns: int) -> None:
        """Draw these rows in place of the unfinished ones."""
        rows = [*done, *live]
        same = 0
        # A row that may have been clipped must be drawn whole now.
        if columns == self._columns and all(r.isascii() and len(r) <= columns for r in done):
            while same < min(len(self._live), len(rows)) and self._live[same] == rows[same]:
                same += 1
        up = len(self._live) - same
        text = f"\x1b[{up}A" if up else ""
        for number, row in enumerate(rows[same:], same):
            # A terminal that counts a row longer must not wrap it: the second row would stay.
            clipped = number >= len(done)
            text += f"\x1b[?7l{row}\x1b[?7h\x1b[K\n" if clipped else f"{row}\x1b[K\n"
        if len(rows) < len(self._live):
            text += "\x1b[J"
        self._live, self._columns = live, columns
        if text:
            self._output.write(text)
            self._output.flush()

    def _rows(self, block: str, columns: int, max_rows: int | None) -> list[str]:
        """Return a block as rows for ``columns``.

        Its source if the drawing would show less.
        """
        tokens = self._lines(block)
        heads = sum(token.type == "th_open" for token in tokens)
        deepest = max((token.level for token in tokens), default=0)
        longest = max((len(token.content) for token in tokens if token.type == "inline"), default=0)
        crowded = heads * _MIN_COLUMN_WIDTH > columns or deepest > min(_MAX_LEVELS, columns // 4)
        rows = (
            []
            if crowded or longest > _MAX_PARAGRAPH_CHARS
            else self._render_rows(block, columns, max_rows)
        )
        drawn = "\n".join(rows).strip("\n")
        source = "\n".join(wrap_line(line, columns) for line in block.rstrip().split("\n"))
        return (drawn or source).split("\n")

    def _render_rows(self, block: str, columns: int, max_rows: int | None) -> list[str]:
        from rich.segment import Segment

        console, markdown = _renderer()
        markdown.parsed = [_prepare_token(token) for token in self._parser.parse(block)]
        for token in markdown.parsed:
            if max_rows is not None and token.type == "fence":
                token.content = "\n".join(token.content.rsplit("\n", max_rows)[-max_rows:])
        options = console.options.update(width=columns)
        options.encoding = self._output.encoding or "utf-8"
        rows = []
        for parts in console.render_lines(markdown, options, pad=False):
            while parts and not parts[-1].text.strip():
                parts.pop()
            *segments, last_segment = parts or [Segment("")]
            rows.append(
                "".join(
                    map(
                        _color_segment,
                        [*segments, Segment(last_segment.text.rstrip(), last_segment.style)],
                    )
                )
            )
        return rows


def _color_segment(segment: Segment) -> str:
    """Return a part of a row, in the colours that every terminal has."""
    from rich.color import ColorSystem

    text = escape_for_terminal(segment.text, keep=PROSE)
    style = segment.style
    return style.render(text, color_system=ColorSystem.STANDARD) if style else text


def _prepare_token(token: Token) -> Token:
    """Return a parser's token with its line breaks, and addresses of links as text."""
    children: list[Token] = []
    from rich.markdown import Token

    address, begin = "", 0
    for child in token.children or ():
        if child.type == "link_open":
            address, begin = str(child.attrs.get("href", "")), len(children)
        elif child.type == "link_close":
            label = "".join(child_token.content for child_token in children[begin:])
            if label != address:
                children.append(Token("text", "", 0, content=f" ({address})"))
        else:
            child.type = "hardbreak" if child.type == "softbreak" else child.type
            children.append(child)
    token.children = children or None
    return token


@cache
def _renderer() -> tuple[Console, Markdown]:
    """Return the renderer of Markdown, which leaves nothing out.

    It uses the terminal's own colours.
    """
    from rich import markdown
    from rich.console import Console
    from rich.segment import Segment
    from rich.syntax import Syntax
    from rich.theme import Theme

    class DrawnHeading(markdown.Heading):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield self.text

    class DrawnCode(markdown.CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code, kind = str(self.text).rstrip(), self.lexer_name
            yield Syntax(code, kind, theme="ansi_dark", word_wrap=True, background_color="default")

    class DrawnCell(markdown.TableDataElement):
        def __init__(self, justify: JustifyMethod) -> None:
            super().__init__(justify)
            self.content.overflow = "fold"

    class DrawnItem(markdown.ListItem):
        def render_number(
            self, console: Console, options: ConsoleOptions, number: int, last_number: int
        ) -> RenderResult:
            mark = f"{number}. ".rjust(len(f" {last_number - 1}. "))
            within = options.update(width=options.max_width - len(mark))
            for line in console.render_lines(self.elements, within, style=self.style):
                yield Segment(mark)
                yield from line
                yield Segment.line()
                mark = " " * len(mark)

    class MarkdownElements(markdown.Markdown):
        elements: ClassVar = {
            **markdown.Markdown.elements,
            "heading_open": DrawnHeading,
            "list_item_open": DrawnItem,
            **dict.fromkeys(("fence", "code_block"), DrawnCode),
            **dict.fromkeys(("td_open", "th_open"), DrawnCell),
        }

    console = Console(
        file=io.StringIO(), force_terminal=True, theme=Theme(_STYLES), legacy_windows=False
    )
    return console, MarkdownElements("")
