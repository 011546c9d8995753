"""HTML as text, in one pass that never goes back: whatever the page holds, the work is linear.

Headings come out as Markdown has them, so that passages can be cut at them. Nothing is fetched, and
nothing is run.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SILENT: Final = frozenset(
    ("script", "style", "template", "svg", "math", "noscript", "iframe", "object", "textarea")
)
"""What is no text of the page."""

_ENDS: Final = {name: re.compile(f"</{name}", re.IGNORECASE) for name in _SILENT}
_AROUND: Final = frozenset(("nav", "footer", "aside"))
"""What stands on every page of a site."""

_BREAKS: Final = frozenset(
    (
        *("address", "article", "blockquote", "body", "br", "caption", "center", "dd", "details"),
        *("div", "dl", "dt", "fieldset", "figcaption", "figure", "form", "header", "hr", "html"),
        *("legend", "li", "main", "menu", "ol", "option", "p", "pre", "section", "select"),
        *("summary", "table", "tbody", "tfoot", "thead", "title", "tr", "ul"),
    )
)
_PARAGRAPHS: Final = frozenset(("p", "pre", "table", "ul", "ol", "dl", "section", "article"))
_CELLS: Final = frozenset(("td", "th"))
_HEARD: Final = _AROUND | _BREAKS | _CELLS | {"h1", "h2", "h3", "h4", "h5", "h6"}
"""The tags that say something; most on a page do not."""

_TAG: Final = re.compile(r"</?([A-Za-z][A-Za-z0-9]{0,20})")
_ENTITY: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});?")
_NAVIGATION: Final = re.compile(r"""\brole\s{0,5}=\s{0,5}["']?navigation\b""", re.IGNORECASE)
_ATTRIBUTES_LOOKED_AT: Final = 1_000
_BLANKS: Final = re.compile(r"[ \t\r\f\v\u00a0]+")
_PILCROW: Final = "¶"


@dataclass(frozen=True, slots=True)
class HtmlDocument:
    """A page's title, empty where it has none, and its text; ``lines`` are the lines of the source,
    from 1, in which the lines of the text begin."""

    title: str
    text: str
    lines: tuple[int, ...]


def read_html(source: str) -> HtmlDocument:
    """The title and the text of a page. What stands around the text on every page of a site is left
    out, unless nothing else would be there."""
    page = _HtmlReader(source, around=False).read()
    return page if page.text else _HtmlReader(source, around=True).read()


class _HtmlReader:
    def __init__(self, source: str, *, around: bool) -> None:
        self._source = source
        self._around = around
        self._out: list[str] = []
        self._from: list[int] = []  # where in the source each piece of ``_out`` begins
        self._title: list[str] = []
        self._skipped = ""  # the tag of what is left out, and how deep within itself
        self._depth = 0
        self._in_title = False
        self._preformatted = False
        self._heading = False

    def read(self) -> HtmlDocument:
        source, at = self._source, 0
        while at < len(source):
            begin = source.find("<", at)
            if begin < 0:
                begin = len(source)
            if begin > at:
                self._text(at, begin)
            if source.startswith("<!--", begin):
                end = source.find("-->", begin + 4)
                at = len(source) if end < 0 else end + 3
                continue
            tag = _TAG.match(source, begin)
            if tag is None:
                if source[begin + 1 : begin + 2] not in ("!", "?", "/"):
                    self._text(begin, begin + 1)
                    at = begin + 1
                    continue
                end = source.find(">", begin)
                at = len(source) if end < 0 else end + 1
                continue
            end = source.find(">", tag.end())
            if end < 0:
                break
            name, closing = tag[1].lower(), source[begin + 1] == "/"
            at = end + 1
            if name in _SILENT and not closing and source[end - 1] != "/":
                close = _ENDS[name].search(source, at)
                at = len(source) if close is None else close.start()
                continue
            if name in _HEARD:
                attributes = source[tag.end() : min(end, begin + _ATTRIBUTES_LOOKED_AT)]
                self._tag(name, closing, attributes)
        text, lines = self._tidy()
        return HtmlDocument(_line("".join(self._title)), text, lines)

    def _tag(self, name: str, closing: bool, attributes: str) -> None:
        if self._skipped:
            if name == self._skipped:
                self._depth += -1 if closing else 1
                if self._depth == 0:
                    self._skipped = ""
            return
        if name in _AROUND or (name == "div" and _NAVIGATION.search(attributes)):
            if not closing and not self._around:
                self._skipped, self._depth = name, 1
            return
        if name == "title":
            self._in_title = not closing and not self._title
        elif len(name) == 2 and name[0] == "h" and name[1] in "123456":
            self._put("\n\n" if closing else "\n\n" + "#" * int(name[1]) + " ")
            self._heading = not closing
        elif name in _BREAKS:
            self._put("\n\n" if name in _PARAGRAPHS else "\n")
            if name == "pre":
                self._preformatted = not closing
        elif name in _CELLS and not closing:
            self._put(" ")

    def _put(self, text: str, at: int = -1) -> None:
        """``text``, which begins at a place of the source, or is none of it."""
        self._out.append(text)
        self._from.append(at)

    def _text(self, begin: int, end: int) -> None:
        if self._skipped:
            return
        raw = self._source[begin:end]
        text = unescape(raw)
        if self._in_title:
            self._title.append(text)
            return
        if self._heading:
            text = text.replace("\n", " ").replace(_PILCROW, "")
        elif not self._preformatted:
            begin += len(raw) - len(raw.lstrip())
            text = text.replace("\n", " ")
        self._put(text, begin)

    def _tidy(self) -> tuple[str, tuple[int, ...]]:
        """What was put, without trailing blanks, and with at most one blank line between lines; and
        the line of the source in which each begins."""
        kept: list[str] = []
        lines: list[int] = []
        for raw, number in self._lines():
            line = _tidy_line(raw)
            if line or (kept and kept[-1]):
                kept.append(line)
                lines.append(number or (lines[-1] if lines else 1))
        if kept and not kept[-1]:
            del kept[-1], lines[-1]
        if kept:
            kept[0] = kept[0].lstrip()
        return "\n".join(kept), tuple(lines)

    def _lines(self) -> Iterator[tuple[str, int]]:
        """The lines of what was put, and those of the source, 0 for a line that says nothing."""
        parts: list[str] = []
        begins = counted = 0
        number = 1
        for piece, at in zip((*self._out, "\n"), (*self._from, -1), strict=True):
            if at >= 0:
                number += self._source.count("\n", counted, at)
                counted = at
            for below, part in enumerate(piece.split("\n")):
                if below:
                    yield "".join(parts), begins
                    parts, begins = [], 0
                if not begins and at >= 0 and part and not part.isspace():
                    begins = number + below
                parts.append(part)


def unescape(text: str) -> str:
    """The text with its character references resolved; none of them can be large."""
    return _ENTITY.sub(lambda found: html.unescape(found[0]), text) if "&" in text else text


def _line(text: str) -> str:
    return " ".join(text.replace(_PILCROW, "").split())


def _tidy_line(line: str) -> str:
    """The line without trailing blanks; single blanks within, unless it is indented."""
    line = line.replace(_PILCROW, "").rstrip()
    bare = line.lstrip()
    if bare and (len(line) - len(bare) < 2 or not line.startswith("  ")):
        return _BLANKS.sub(" ", bare)
    return line
