"""An answer at a terminal, drawn while it is written: Markdown, or plain words folded.

Blocks of Markdown that are finished are drawn once and stay in the scrollback; the last one, that
goes on, is drawn again from the first row that changed. Of one that is longer than the screen the
end is shown while it goes on, and all of it once it is finished. Where a block ends is told by
whole lines, and each is drawn of its own lines alone, so what stands there in the end is the same
however the text came.

Nothing of a text reaches the terminal but what `shown` lets through, before it is read as Markdown
and after. Nothing in it is HTML, an entity or a definition of a link, which would not be seen; a
link is its words and its address.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Final, TextIO

from mlx_tools.cli.call_text import size_of
from mlx_tools.cli.output import PROSE, cells, color_text, for_terminal, wrap_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
    from rich.markdown import Markdown, MarkdownIt, Token
    from rich.segment import Segment

_PAUSE: Final = 0.03
"""Seconds at the least between two drawings, and of the time no more than a `_SHARE`."""
_SHARE: Final = 4

_NARROWEST: Final = 5
"""Columns of the screen for each column of a table; below that its source is shown."""

_LONGEST: Final = 5000
"""Characters of a paragraph: the time that its marks take grows with their square."""

_DEEPEST: Final = 20
"""What is nested deeper than any screen shows is no Markdown."""

_MARKS: Final = " \t-=`~*_#>|:+.0123456789"
"""A line of nothing else may turn out to be anything: it is not drawn before it is whole."""

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
    """Words, each as soon as it is whole, in rows that fit."""

    def __init__(self, output: TextIO, colour: str = "") -> None:
        self._output = output
        self._colour = colour
        self._column = 0  # columns of the row
        self._blank = ""  # white space that a word may follow
        self._word = ""  # one that goes on

    def write(self, text: str) -> None:
        """Take in more of the text."""
        *parts, self._word = re.split(r"([ \t]+|\n)", self._word + for_terminal(text, keep=PROSE))
        self._write_parts(parts)

    def reset_position(self) -> None:
        """Others have written to the terminal: what stands above is not what was shown last."""
        self._column = 0

    def finish(self) -> None:
        """Show all of it, and begin a line: what is written next is another text."""
        word, self._word = self._word, ""
        self._write_parts([word, "\n"] if word or self._column else [])

    def _write_parts(self, parts: Iterable[str]) -> None:
        columns, out = size_of(self._output).columns, ""
        for part in parts:
            size = cells(part)
            if part == "\n":
                out += part
                self._column, self._blank = 0, ""
            elif part.isspace():
                self._blank = part
            elif part:
                room = self._column + len(self._blank) + size <= columns
                before = self._blank if room or not self._column else "\n"
                out += before + part
                self._column = size + (0 if before == "\n" else self._column + len(before))
                self._blank = ""
        if out:
            self._output.write(color_text(out, self._colour, self._output))
            self._output.flush()


class MarkdownScreen:
    """Markdown on a terminal that obeys; used as a `PlainScreen`. ``clock`` counts seconds."""

    def __init__(self, output: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._output = output
        self._clock = clock
        self._text = ""  # the blocks that are not finished
        self._live: list[str] = []  # their rows, as they stand above the cursor
        self._columns = 0
        self._spaced = False  # a block stands above
        self._due = 0.0
        self._waits = False

    def prepare(self) -> None:
        """Import what draws, while the model is waited for."""
        _ = self._parser, _renderer()

    def write(self, text: str) -> None:
        self._text += for_terminal(text, keep=PROSE)
        self._waits = True
        self.tick()

    def tick(self) -> None:
        """Show what waits to be shown."""
        if self._waits and self._clock() >= self._due:
            self._draw(self._text.rfind("\n") + 1)

    def reset_position(self) -> None:
        self._live = []

    def finish(self) -> None:
        if self._text:
            self._draw(len(self._text), last=True)
        self._text, self._spaced = "", False

    @cached_property
    def _parser(self) -> MarkdownIt:
        from rich.markdown import MarkdownIt

        parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 2 * _DEEPEST})
        parser.enable(["table", "strikethrough"])
        return parser.disable(["reference", "image", "entity", "html_inline", "html_block"])

    def _lines(self, text: str) -> list[Token]:
        """The blocks of a text, what stands in them not read."""
        with self._parser.reset_rules():
            self._parser.disable(["inline", "text_join"])
            return self._parser.parse(text)

    def _draw(self, whole: int, *, last: bool = False) -> None:
        """Draw what has come; up to ``whole`` the text has whole lines."""
        began = self._clock()
        size = size_of(self._output)
        columns = max(size.columns - 1, 4)
        done: list[str] = []
        *finished, rest = self._blocks(self._text[:whole])
        for block in (*finished, rest) if last else finished:
            self._add(done, block, columns)
        live: list[str] = []
        if last:
            self._text = ""
        else:
            tail = self._text[whole:]
            self._text = rest + tail
            going_on = rest + tail if tail.strip(_MARKS) else rest
            self._add(live, going_on, columns, max_rows=size.lines)
        self._replace_rows(done, live[-(size.lines - 1) :], columns)
        self._waits = False
        now = self._clock()
        self._due = now + max(_PAUSE, _SHARE * (now - began))

    def _blocks(self, text: str) -> list[str]:
        """The lines of each block; the last one may go on."""
        starts = [t.map[0] for t in self._lines(text) if t.level == 0 and t.map]
        starts = list(dict.fromkeys(starts))
        lines = text.splitlines(keepends=True)
        return ["".join(lines[a:b]) for a, b in pairwise([0, *starts[1:], len(lines)])]

    def _add(
        self, rows: list[str], block: str, columns: int, *, max_rows: int | None = None
    ) -> None:
        """Add a block; of one that goes on, ``max_rows`` rows are seen."""
        if block.strip():
            rows += [""] * self._spaced + self._rows(block, columns, max_rows)
            self._spaced = self._spaced or max_rows is None

    def _replace_rows(self, done: list[str], live: list[str], columns: int) -> None:
        """Have these rows where those stand that were not finished."""
        rows = [*done, *live]
        same = 0
        # A row that may have been clipped is to be whole now.
        if columns == self._columns and all(r.isascii() and len(r) <= columns for r in done):
            while same < min(len(self._live), len(rows)) and self._live[same] == rows[same]:
                same += 1
        up = len(self._live) - same
        text = f"\x1b[{up}A" if up else ""
        for number, row in enumerate(rows[same:], same):
            # Where terminals disagree about a row's length none may make two of one that goes away.
            clipped = number >= len(done)
            text += f"\x1b[?7l{row}\x1b[?7h\x1b[K\n" if clipped else f"{row}\x1b[K\n"
        if len(rows) < len(self._live):
            text += "\x1b[J"
        self._live, self._columns = live, columns
        if text:
            self._output.write(text)
            self._output.flush()

    def _rows(self, block: str, columns: int, max_rows: int | None) -> list[str]:
        """A block as rows for a terminal of so many columns; its source where that says more."""
        tokens = self._lines(block)
        heads = sum(token.type == "th_open" for token in tokens)
        deepest = max((token.level for token in tokens), default=0)
        longest = max((len(token.content) for token in tokens if token.type == "inline"), default=0)
        crowded = heads * _NARROWEST > columns or deepest > min(_DEEPEST, columns // 4)
        rows = [] if crowded or longest > _LONGEST else self._laid_out(block, columns, max_rows)
        drawn = "\n".join(rows).strip("\n")
        source = "\n".join(wrap_line(line, columns) for line in block.rstrip().split("\n"))
        return (drawn or source).split("\n")

    def _laid_out(self, block: str, columns: int, max_rows: int | None) -> list[str]:
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
            *before, last = parts or [Segment("")]
            rows.append(
                "".join(map(_color_segment, [*before, Segment(last.text.rstrip(), last.style)]))
            )
        return rows


def _color_segment(segment: Segment) -> str:
    """A part of a row, with the colours that every terminal has."""
    from rich.color import ColorSystem

    text = for_terminal(segment.text, keep=PROSE)
    style = segment.style
    return style.render(text, color_system=ColorSystem.STANDARD) if style else text


def _prepare_token(token: Token) -> Token:
    """A token of the parser, its lines kept apart as they are, and its links' addresses as text."""
    children: list[Token] = []
    from rich.markdown import Token

    address, begin = "", 0
    for child in token.children or ():
        if child.type == "link_open":
            address, begin = str(child.attrs.get("href", "")), len(children)
        elif child.type == "link_close":
            said = "".join(one.content for one in children[begin:])
            if said != address:
                children.append(Token("text", "", 0, content=f" ({address})"))
        else:
            child.type = "hardbreak" if child.type == "softbreak" else child.type
            children.append(child)
    token.children = children or None
    return token


@cache
def _renderer() -> tuple[Console, Markdown]:
    """What lays Markdown out, in the terminal's own colours, and so that nothing is left out."""
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
