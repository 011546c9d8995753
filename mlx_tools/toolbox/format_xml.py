"""``format_xml``: writes XML over several lines, and says what is wrong with what is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mlx_tools.tools import Tool, ToolError, words_of

MAX_DEPTH: Final = 200
MAX_CHARS: Final = 2_000_000
_INDENT: Final = "  "

_TEXT: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}
_VALUE: Final = {**_TEXT, '"': "&quot;", "\n": "&#10;", "\t": "&#9;"}


class XmlFault(Exception):
    """The text cannot be written. ``kind`` says why, ``facts`` fill the words for it."""

    def __init__(
        self, kind: Literal["malformed", "doctype", "deep", "long", "unreadable"], **facts: Any
    ) -> None:
        super().__init__(kind)
        self.kind = kind
        self.facts = facts


@dataclass(slots=True)
class _OpenElement:
    """An element that is open: its start, and what has come in it so far.

    ``parts`` are texts and whole children; ``exact``: every character in it is content.
    """

    start: str
    exact: bool
    parts: list[_OpenElement | _Piece] = field(default_factory=list)

    @property
    def mixed(self) -> bool:
        """Whether text stands in it that is more than layout. Blanks alone are content where there
        is nothing else."""
        texts = [p for p in self.parts if isinstance(p, _Piece) and p.is_text]
        only = len(texts) == len(self.parts)
        return any(only or piece.written or not piece.text.isspace() for piece in texts)


@dataclass(slots=True)
class _Piece:
    """Text, a comment or an instruction, as it is written. ``written``: it stood in a CDATA section
    or as a reference, which nobody writes for layout."""

    text: str
    is_text: bool = False
    written: bool = False


def pretty(text: str) -> str:
    """The document, each element on a line of its own. Raises Fault."""
    from xml.parsers import expat

    text = text.removeprefix("\ufeff")
    bare = text.lstrip()  # nothing may stand before a declaration, and nobody means what does
    above = text[: len(text) - len(bare)].count("\n")
    try:
        data = bare.encode()
    except UnicodeEncodeError:
        raise XmlFault("unreadable") from None
    document = _Document(expat.ParserCreate("UTF-8"), data)
    try:
        document.parser.Parse(data, True)
    except expat.ExpatError as error:
        if error.code == _UNDEFINED:
            kind = "it uses an entity that XML does not have by itself"
        else:
            kind = expat.ErrorString(error.code)
        line, column = error.lineno + above, error.offset + 1
        raise XmlFault("malformed", line=line, column=column, why=kind) from None
    return document.written()


_UNDEFINED: Final = 11
"""Expat's code for an entity that is not defined."""


class _Document:
    """Takes in what the parser tells."""

    def __init__(self, parser: Any, data: bytes) -> None:
        self.parser = parser
        self._data = data
        self._top = _OpenElement("", exact=False)
        self._open = [self._top]
        self._cdata: list[str] | None = None
        self._least = 0
        parser.buffer_text = False
        parser.ordered_attributes = True
        parser.XmlDeclHandler = self._declared
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartCdataSectionHandler = self._begin_cdata
        parser.EndCdataSectionHandler = self._end_cdata
        parser.CommentHandler = lambda text: self._put(_Piece(f"<!--{text}-->"))
        parser.ProcessingInstructionHandler = self._instruct

    def _declared(self, version: str, encoding: str | None, standalone: int) -> None:
        text = f'<?xml version="{version}"'
        text += f' encoding="{encoding}"' if encoding else ""
        text += f' standalone="{"yes" if standalone else "no"}"' if standalone != -1 else ""
        self._put(_Piece(f"{text}?>"))

    def _refuse(self, *_: Any) -> None:
        raise XmlFault("doctype")

    def _put(self, part: _OpenElement | _Piece) -> None:
        """Takes in what stands next. Raises Fault as soon as all of it will be too long."""
        self._open[-1].parts.append(part)
        if isinstance(part, _OpenElement):
            self._least += len(f"<{part.start}/>")
        elif part.written or not part.text.isspace():
            self._least += len(part.text)
        if self._least > MAX_CHARS:
            raise XmlFault("long", most=MAX_CHARS)

    def _instruct(self, target: str, text: str) -> None:
        self._put(_Piece(f"<?{target} {text}?>" if text else f"<?{target}?>"))

    def _begin(self, name: str, attributes: list[str]) -> None:
        if len(self._open) > MAX_DEPTH:
            raise XmlFault("deep", most=MAX_DEPTH)
        pairs = list(zip(attributes[::2], attributes[1::2], strict=True))
        start = name + "".join(f' {key}="{_escaped(value, _VALUE)}"' for key, value in pairs)
        space = dict(pairs).get("xml:space")
        exact = space == "preserve" or (self._open[-1].exact and space != "default")
        element = _OpenElement(start, exact)
        self._put(element)
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        if self._cdata is not None:
            self._cdata.append(text)
            return
        start = self.parser.CurrentByteIndex
        written = self._data[start : start + 1] == b"&"
        own = "".join(f"&#{ord(c)};" for c in text) if written and text.isspace() else None
        if len(self._open) > 1:
            self._put(_Piece(own or _escaped(text, _TEXT), is_text=True, written=written))

    def _begin_cdata(self) -> None:
        self._cdata = []

    def _end_cdata(self) -> None:
        text, self._cdata = "".join(self._cdata or ()), None
        self._put(_Piece(f"<![CDATA[{text}]]>", is_text=True, written=True))

    def written(self) -> str:
        """The document as text. Raises Fault where it gets too long."""
        lines: list[str] = []
        size = 0
        # what is to be written yet, the next last: an element or a line, and how deep it stands
        left: list[tuple[_OpenElement | str, int]] = []
        _push(left, self._top, 0)
        while left:
            part, depth = left.pop()
            if isinstance(part, str):
                line = part
            elif part.exact or part.mixed or not part.parts:
                line = _inline(part, MAX_CHARS - size)
            else:
                line = f"<{part.start}>"
                left.append((f"</{_name(part)}>", depth))
                _push(left, part, depth + 1)
            lines.append(_INDENT * depth + line)
            size += len(lines[-1]) + 1
            if size > MAX_CHARS:
                raise XmlFault("long", most=MAX_CHARS)
        return "\n".join(lines)


def _push(left: list[tuple[_OpenElement | str, int]], element: _OpenElement, depth: int) -> None:
    """What stands in an element line by line, layout left out."""
    for part in reversed(element.parts):
        if isinstance(part, _OpenElement):
            left.append((part, depth))
        elif not part.is_text:
            left.append((part.text, depth))


def _inline(element: _OpenElement, room: int) -> str:
    """An element with every character of it, on one line but for those in its text."""
    out: list[str] = []
    left: list[_OpenElement | str] = [element]
    while left:
        part = left.pop()
        text = part if isinstance(part, str) else f"<{part.start}"
        if isinstance(part, _OpenElement):
            if not part.parts:
                text += "/>"
            else:
                text += ">"
                left.append(f"</{_name(part)}>")
                left += [p if isinstance(p, _OpenElement) else p.text for p in reversed(part.parts)]
        out.append(text)
        room -= len(text)
        if room < 0:
            raise XmlFault("long", most=MAX_CHARS)
    return "".join(out)


def _name(element: _OpenElement) -> str:
    return element.start.partition(" ")[0]


def _escaped(text: str, marks: dict[str, str]) -> str:
    for mark, instead in marks.items():
        if mark in text:
            text = text.replace(mark, instead)
    return text


NAME: Final = "format_xml"


def format_xml() -> Tool:
    """The tool. No document type is taken, so there are no entities to expand and no other files to
    be read; how deep elements stand and how long the result gets is limited."""
    words = words_of(NAME)

    def run(arguments: Mapping[str, Any]) -> str:
        try:
            return pretty(str(arguments["content"]))
        except XmlFault as fault:
            raise ToolError(words.notices[fault.kind].format(**fault.facts)) from None

    return Tool(words.spec(frozenset(("read",))), run)
