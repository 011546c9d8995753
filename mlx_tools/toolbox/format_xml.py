"""``format_xml``: writes XML over several lines, and says what is wrong with what is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from xml.parsers import expat
from xml.sax.saxutils import escape

from mlx_tools.tools import Tool, ToolError, words_of

NAME: Final = "format_xml"
MAX_DEPTH: Final = 200
MAX_CHARS: Final = 2_000_000
_INDENT: Final = "  "
_VALUE: Final = {'"': "&quot;", "\n": "&#10;", "\t": "&#9;", "\r": "&#13;"}
_UNDEFINED: Final = 11
"""Expat's code for an entity that is not defined."""


def format_xml() -> Tool:
    """The tool. No document type is taken, so there are no entities to expand and no other files to
    be read; how deep elements stand and how long the result gets is limited."""
    return Tool(
        words_of(NAME).spec(frozenset(("read",))), lambda given: pretty(str(given["content"]))
    )


def _fault(kind: str, **facts: Any) -> ToolError:
    return ToolError(words_of(NAME).notices[kind].format(**facts))


def pretty(text: str) -> str:
    """The document, each element on a line of its own. Raises ToolError."""
    text = text.removeprefix("\ufeff")
    bare = text.lstrip()  # nothing may stand before a declaration, and nobody means what does
    try:
        data = bare.encode()
    except UnicodeEncodeError:
        raise _fault("unreadable") from None
    document = _Document(data)
    try:
        document.parser.Parse(data, True)
    except expat.ExpatError as error:
        why = expat.ErrorString(error.code)
        if error.code == _UNDEFINED:
            why = "it uses an entity that XML does not have by itself"
        number = error.lineno + text[: len(text) - len(bare)].count("\n")
        raise _fault("malformed", line=number, column=error.offset + 1, why=why) from None
    lines: list[str] = []
    size = 0
    for line in document.lines():
        lines.append(line)
        size += len(line) + 1
        if size > MAX_CHARS:
            raise _fault("long", most=MAX_CHARS)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of an element that is none itself. Blanks are layout unless they stood in a CDATA
    section or as a reference, which nobody writes for layout; a comment or an instruction is a
    line."""

    kind: Literal["text", "layout", "line"]
    text: str


@dataclass(slots=True)
class _Element:
    """``exact``: every character in it is content."""

    name: str
    start: str
    exact: bool
    parts: list[_Element | _Piece] = field(default_factory=list)

    def inline(self) -> str:
        """The element with every character of it."""
        if not self.parts:
            return f"<{self.start}/>"
        inner = (part.inline() if isinstance(part, _Element) else part.text for part in self.parts)
        return f"<{self.start}>{''.join(inner)}</{self.name}>"

    def lines(self, depth: int) -> Iterator[str]:
        """The element on lines of its own, layout left out. One with text in it stays on one line;
        blanks alone are content where there is nothing else."""
        kinds = {part.kind if isinstance(part, _Piece) else "element" for part in self.parts}
        if self.exact or "text" in kinds or kinds <= {"layout"}:
            yield _INDENT * depth + self.inline()
            return
        yield f"{_INDENT * depth}<{self.start}>"
        for part in self.parts:
            if isinstance(part, _Element):
                yield from part.lines(depth + 1)
            elif part.kind == "line":
                yield _INDENT * (depth + 1) + part.text
        yield f"{_INDENT * depth}</{self.name}>"


class _Document:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._top: list[_Element | _Piece] = []
        self._open: list[_Element] = []
        self._cdata: list[str] | None = None
        self._size = 0
        parser = self.parser = expat.ParserCreate("UTF-8")
        parser.buffer_text = False
        parser.ordered_attributes = True
        parser.XmlDeclHandler = self._declare
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = lambda name: self._open.pop()
        parser.CharacterDataHandler = self._text
        parser.StartCdataSectionHandler = self._begin_cdata
        parser.EndCdataSectionHandler = self._end_cdata
        parser.CommentHandler = lambda text: self._put(_Piece("line", f"<!--{text}-->"))
        parser.ProcessingInstructionHandler = lambda target, text: self._put(
            _Piece("line", f"<?{target} {text}?>" if text else f"<?{target}?>")
        )

    def lines(self) -> Iterator[str]:
        for part in self._top:
            if isinstance(part, _Element):
                yield from part.lines(0)
            else:
                yield part.text

    def _put(self, part: _Element | _Piece) -> None:
        """Take in what stands next. Raises ToolError as soon as all of it will be too long."""
        (self._open[-1].parts if self._open else self._top).append(part)
        if isinstance(part, _Element):
            self._size += len(part.start) + 3
        elif part.kind != "layout":
            self._size += len(part.text)
        if self._size > MAX_CHARS:
            raise _fault("long", most=MAX_CHARS)

    def _refuse(self, *_: Any) -> None:
        raise _fault("doctype")

    def _declare(self, version: str, encoding: str | None, standalone: int) -> None:
        text = f'<?xml version="{version}"'
        text += f' encoding="{encoding}"' if encoding else ""
        text += f' standalone="{"yes" if standalone else "no"}"' if standalone != -1 else ""
        self._put(_Piece("line", f"{text}?>"))

    def _begin(self, name: str, attributes: list[str]) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise _fault("deep", most=MAX_DEPTH)
        pairs = dict(zip(attributes[::2], attributes[1::2], strict=True))
        start = name + "".join(f' {key}="{escape(value, _VALUE)}"' for key, value in pairs.items())
        space = pairs.get("xml:space")
        above = bool(self._open) and self._open[-1].exact
        element = _Element(name, start, space == "preserve" or (above and space != "default"))
        self._put(element)
        self._open.append(element)

    def _text(self, text: str) -> None:
        if self._cdata is not None:
            self._cdata.append(text)
        elif self._open:
            at = self.parser.CurrentByteIndex
            if not text.isspace():
                self._put(_Piece("text", escape(text, {"\r": "&#13;"})))
            elif self._data[at : at + 1] == b"&":
                self._put(_Piece("text", "".join(f"&#{ord(c)};" for c in text)))
            else:
                self._put(_Piece("layout", text))

    def _begin_cdata(self) -> None:
        self._cdata = []

    def _end_cdata(self) -> None:
        text, self._cdata = "".join(self._cdata or ()), None
        self._put(_Piece("text", f"<![CDATA[{text}]]>"))
