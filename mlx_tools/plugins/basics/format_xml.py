"""``format_xml``: writes each XML element on a line, and explains errors in XML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal
from xml.parsers import expat
from xml.sax.saxutils import escape

from mlx_tools.tools import Tool, ToolError, load_words

NAME: Final = "format_xml"
MAX_DEPTH: Final = 200
"""Levels of nested elements."""
MAX_CHARS: Final = 2_000_000
"""Characters of the result."""
_INDENT: Final = "  "
_ATTRIBUTE_ESCAPES: Final = {'"': "&quot;", "\n": "&#10;", "\t": "&#9;", "\r": "&#13;"}
_UNDEFINED: Final = 11
"""Expat's error code for an undefined entity."""

Kind = Literal["element", "text", "layout", "line"]
"""The kind of a piece of content. ``layout`` is white space between elements, ``line`` a comment, a
declaration or a processing instruction."""


def format_xml(max_chars: int = MAX_CHARS) -> Tool:
    """Return the tool.

    A document with a DOCTYPE is refused. So no entity can expand, and no other file is read.

    Args:
        max_chars: the maximum length of a result in characters.
    """
    return Tool(
        load_words(NAME).spec(frozenset(("read",))),
        lambda arguments: format_document(str(arguments["content"]), max_chars),
    )


def _make_error(notice: str, **values: Any) -> ToolError:
    """Return an error with a notice of the tool's texts, filled with values."""
    return ToolError(load_words(NAME).notices[notice].format(**values))


def format_document(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return an XML document with each element on a line.

    Args:
        text: the document.
        max_chars: the maximum length of the result in characters.

    Raises:
        ToolError: the text is not well-formed XML, has a DOCTYPE, or is too deep or too long.
    """
    text = text.removeprefix("\ufeff")
    # XML allows nothing before its declaration, but models often put a line break there.
    stripped = text.lstrip()
    try:
        data = stripped.encode()
    except UnicodeEncodeError:
        raise _make_error("unreadable") from None
    document = _Document(data, max_chars)
    try:
        document.parser.Parse(data, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        if error.code == _UNDEFINED:
            reason = "it uses an entity that XML does not have by itself"
        number = error.lineno + text[: len(text) - len(stripped)].count("\n")
        raise _make_error("malformed", line=number, column=error.offset + 1, why=reason) from None
    lines: list[str] = []
    size = 0
    for depth, line in document.lines:
        size += len(_INDENT) * depth + len(line) + 1
        if size > max_chars:
            raise _make_error("long", most=max_chars)
        lines.append(_INDENT * depth + line)
    return "\n".join(lines)


@dataclass(slots=True)
class _Element:
    """An open element."""

    start: str
    """Its name and attributes."""
    exact: bool
    """True if all of its white space is content (``xml:space="preserve"``)."""
    first_piece: int
    """The index of its first piece in `_Document._pieces`."""
    first_line: int
    """The index of its first line in `_Document.lines`."""
    kinds: set[Kind] = field(default_factory=set)
    """The kinds of its content so far."""


class _Document:
    """Parses a document, and collects its lines with their depths.

    White space between elements is layout, except in a CDATA section or as a character reference,
    which are never written for layout. An element that has text, or nothing but white space, stays
    on one line.
    """

    def __init__(self, data: bytes, max_chars: int) -> None:
        self.lines: list[tuple[int, str]] = []
        self._data, self._max_chars = data, max_chars
        self._pieces: list[str] = []  # all pieces in order, for elements on one line
        self._open: list[_Element] = []
        self._cdata: list[str] | None = None
        self._size = 0
        parser = self.parser = expat.ParserCreate("UTF-8")
        parser.buffer_text = False
        parser.ordered_attributes = True
        parser.XmlDeclHandler = self._declare
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartCdataSectionHandler = self._begin_cdata
        parser.EndCdataSectionHandler = self._end_cdata
        parser.CommentHandler = lambda text: self._append("line", f"<!--{text}-->")
        parser.ProcessingInstructionHandler = lambda target, text: self._append(
            "line", f"<?{target} {text}?>" if text else f"<?{target}?>"
        )

    def _append(self, kind: Kind, text: str) -> None:
        """Add a piece of the document.

        Raises:
            ToolError: the result would be too long.
        """
        self._pieces.append(text)
        if kind != "layout":
            self.lines.append((len(self._open), text))
            self._size += len(text)
        if self._open:
            self._open[-1].kinds.add(kind)
        if self._size > self._max_chars:
            raise _make_error("long", most=self._max_chars)

    def _refuse(self, *_: Any) -> None:
        raise _make_error("doctype")

    def _declare(self, version: str, encoding: str | None, standalone: int) -> None:
        text = f'<?xml version="{version}"'
        text += f' encoding="{encoding}"' if encoding else ""
        text += f' standalone="{"yes" if standalone else "no"}"' if standalone != -1 else ""
        self._append("line", f"{text}?>")

    def _begin(self, name: str, attributes: list[str]) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise _make_error("deep", most=MAX_DEPTH)
        pairs = dict(zip(attributes[::2], attributes[1::2], strict=True))
        start = name + "".join(
            f' {key}="{escape(value, _ATTRIBUTE_ESCAPES)}"' for key, value in pairs.items()
        )
        space = pairs.get("xml:space")
        parent_is_exact = bool(self._open) and self._open[-1].exact
        exact = space == "preserve" or (parent_is_exact and space != "default")
        element = _Element(start, exact, len(self._pieces), len(self.lines))
        self._append("element", f"<{start}>")
        self._open.append(element)

    def _end(self, name: str) -> None:
        element = self._open.pop()
        if element.kinds:
            self._pieces.append(f"</{name}>")
        else:
            self._pieces[-1] = f"<{element.start}/>"
        if element.exact or "text" in element.kinds or element.kinds <= {"layout"}:
            del self.lines[element.first_line :]
            self.lines.append((len(self._open), "".join(self._pieces[element.first_piece :])))
        else:
            self.lines.append((len(self._open), f"</{name}>"))

    def _text(self, text: str) -> None:
        if self._cdata is not None:
            self._cdata.append(text)
        elif self._open:
            byte_offset = self.parser.CurrentByteIndex
            if not text.isspace():
                self._append("text", escape(text, {"\r": "&#13;"}))
            elif self._data[byte_offset : byte_offset + 1] == b"&":
                self._append("text", "".join(f"&#{ord(c)};" for c in text))
            else:
                self._append("layout", text)

    def _begin_cdata(self) -> None:
        self._cdata = []

    def _end_cdata(self) -> None:
        text, self._cdata = "".join(self._cdata or ()), None
        self._append("text", f"<![CDATA[{text}]]>")
