"""A small reader of literals as Python and its kin write them; it runs nothing.

It reads keyword arguments (``x=1, y=['a']``) and objects with bare keys (``{x:1}``), the strings of
the latter between marks of their own. What is no literal (a name, a sum, an f-string) is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.protocol.strict import MAX_DEPTH, Unreadable, encodable, loads
from mlx_tools.schema import follow, list_branches, list_types, read_properties

STRING_MARKS: Final = ('<|"|>', "<escape>")
"""What stands before and after a string in the families that quote so."""

_SPACE: Final = re.compile(r"[ \t\r\n]++|\\\n")
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*+")
_NUMBER: Final = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F]++"
    r"|(?:[0-9][0-9_]*+(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)"
)
_WORDS: Final[Mapping[str, bool | None]] = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}
_OPENING: Final = re.compile(r"([rRuU]?)('''|\"\"\"|'|\")")
_ESCAPES: Final = {
    **dict(zip("ntrbfav", "\n\t\r\b\f\a\v", strict=True)),
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "",
}
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))", re.DOTALL
)


_DOUBTFUL: Final = frozenset("abfrtvx")
"""Escapes that may be meant as the beginning of a name, as in ``C:\\temp``."""


def keywords(text: str) -> dict[str, Any]:
    """Return the arguments between a call's brackets.

    Raises `Unreadable`, also where one has no name.
    """
    return _Literals(text).members("=", "")


def literal_object(text: str) -> dict[str, Any]:
    """The object that ``text`` is, its keys bare or quoted. Raises `Unreadable`."""
    value = literal(text)
    if not isinstance(value, dict):
        raise Unreadable("an object is due")
    return value


def literal(text: str) -> Any:
    """The one value in ``text``. Raises `Unreadable`."""
    reader = _Literals(text)
    value = reader.value()
    if not reader.at_end():
        raise Unreadable("more text follows the value")
    return value


class _Literals:
    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._depth = 0

    def _space(self) -> None:
        while space := _SPACE.match(self._text, self._pos):
            self._pos = space.end()

    def at_end(self) -> bool:
        self._space()
        return self._pos >= len(self._text)

    def takes(self, mark: str) -> bool:
        """Goes past ``mark`` where it stands here."""
        self._space()
        if not self._text.startswith(mark, self._pos):
            return False
        self._pos += len(mark)
        return True

    def _key(self, colon: str) -> str:
        """A name and what follows it, or a string and a colon."""
        self._space()
        found = _KEY.match(self._text, self._pos)
        if found is None or _OPENING.match(self._text, self._pos):
            key = self._string() if colon == ":" else None
        else:
            key, self._pos = found[0], found.end()
        if key is None or not self.takes(colon):
            raise Unreadable("a name and its value are due")
        return key

    def value(self) -> Any:
        self._space()
        text, pos = self._text, self._pos
        char = text[pos : pos + 1]
        if char in ("{", "[", "("):
            return self._nested(char)
        if (string := self._string()) is not None:
            return string
        if found := _NUMBER.match(text, pos):
            return self._number(found)
        if (word := _KEY.match(text, pos)) and word[0] in _WORDS:
            self._pos = word.end()
            return _WORDS[word[0]]
        raise Unreadable("a literal is due")

    def _nested(self, char: str) -> Any:
        self._pos += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable(f"it nests deeper than {MAX_DEPTH} levels")
        value = self.members(":", "}") if char == "{" else self._items("]" if char == "[" else ")")
        self._depth -= 1
        return value

    def _items(self, end: str) -> Any:
        items: list[Any] = []
        comma = False
        while not self.takes(end):
            if items and not comma:
                raise Unreadable("a comma is due between items")
            items.append(self.value())
            comma = self.takes(",")
        return items[0] if end == ")" and len(items) == 1 and not comma else items

    def members(self, colon: str, end: str) -> dict[str, Any]:
        """Keys and values, up to ``end``, or to the end of the text where that is empty."""
        found: dict[str, Any] = {}
        comma = True
        while not (self.takes(end) if end else self.at_end()):
            if not comma:
                raise Unreadable("a comma is due between members")
            key = self._key(colon)
            if key in found:
                raise Unreadable(f"the key {key[:40]!a} stands twice in one object")
            found[key] = self.value()
            comma = self.takes(",")
        return found

    def _number(self, match: re.Match[str]) -> int | float:
        text, self._pos = match[0].replace("_", ""), match.end()
        if "x" in text or "X" in text:
            return int(text, 16)
        if self._text[self._pos : self._pos + 1].isalnum():
            raise Unreadable("a literal is due")
        sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text.lstrip("+"))
        if digits.isdigit():
            if len(digits) > 1 and digits[0] == "0":
                raise Unreadable("a number begins with a zero")
        elif digits[0] == ".":
            digits = "0" + digits
        value: int | float = loads(sign + re.sub(r"\.(?![0-9])", ".0", digits))
        return value

    def _string(self) -> str | None:
        """A string, or several that stand next to each other; None where there is none."""
        pieces: list[str] = []
        while (piece := self._one_string()) is not None:
            pieces.append(piece)
            self._space()
        return "".join(pieces) if pieces else None

    def _one_string(self) -> str | None:
        text, pos = self._text, self._pos
        for mark in STRING_MARKS:
            if text.startswith(mark, pos):
                return self._slice_to(text.find(mark, pos + len(mark)), pos + len(mark), len(mark))
        opening = _OPENING.match(text, pos)
        if opening is None:
            return None
        quote = opening[2]
        end = opening.end()
        while not text.startswith(quote, end):
            if end >= len(text):
                raise Unreadable("a string is not closed")
            end += 2 if text[end] == "\\" else 1
        raw = self._slice_to(end, opening.end(), len(quote))
        return raw if opening[1] in ("r", "R") else _unescaped(raw)

    def _slice_to(self, end: int, begin: int, width: int) -> str:
        if end < 0:
            raise Unreadable("a string is not closed")
        self._pos = end + width
        return self._text[begin:end]


def _unescaped(raw: str) -> str:
    """``raw`` with its escapes read; a backslash before any other character is one."""
    if "\\" not in raw:
        return raw
    text = _ESCAPE.sub(_escaped, raw)
    kinds = {found[5] or "x" for found in _ESCAPE.finditer(raw)}
    is_mixed = bool(kinds & _DOUBTFUL) and not kinds <= {*_ESCAPES, "x"}
    if is_mixed or "\b" in text or "\f" in text:
        raise Unreadable("an escape in a string has two readings; write a backslash as \\\\")
    if not encodable(text):
        try:  # a pair of escapes that is one character
            text = text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise Unreadable("a string holds half of a surrogate pair") from None
    return text


def _escaped(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits or match[4]:
        code = int(digits, 16) if digits else int(match[4], 8)
        if code > 0x10FFFF:
            raise Unreadable("an escape names no character")
        return chr(code)
    return _ESCAPES.get(match[5], match[0])


# --- text between tags as the value that a tool's schema wants there ----------------------------

_KINDS: Final[Mapping[str, tuple[type[Any], ...]]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
    "string": (str,),
}
_MOST_STEPS: Final = 8
_MOST_LEVELS: Final = 64


def without_first_line_break(text: str) -> str:
    """``text`` without a line break at its beginning."""
    return text.removeprefix("\r\n" if text.startswith("\r\n") else "\n")


def without_line_breaks(text: str) -> str:
    """Return ``text`` without one line break at each end.

    A value may stand on lines of its own.

    Text of several lines, or indented, that begins right behind its mark keeps the last one: who
    writes so puts none around values, and a file ends in one.
    """
    first = without_first_line_break(text)
    both = first.removesuffix("\r\n" if first.endswith("\r\n") else "\n")
    is_inline = len(first) == len(text) and ("\n" in both or both[:1] in (" ", "\t"))
    return text if is_inline else both


def typed_value(text: str, parameters: Mapping[str, Any], key: str) -> Any:
    """Return ``text`` as the value of a property; as it stands if that is a string.

    Never raises: what fits no type stays text, and validation says what was expected.
    """
    schema = read_properties(parameters).get(key)
    if schema is None and isinstance(more := parameters.get("additionalProperties"), Mapping):
        schema = more
    if schema is None:
        return text
    return _as_one_of(text, frozenset(_types(schema, parameters)) or frozenset(_KINDS))


def _as_one_of(text: str, kinds: frozenset[str]) -> Any:
    wanted = tuple(kind for name in kinds - {"string"} for kind in _KINDS.get(name, ()))
    for read in (loads, literal) if wanted else ():
        try:
            value = read(text.strip())
        except Unreadable:
            continue
        if type(value) in wanted and (read is loads or type(value) not in (int, float)):
            return value
    return text


def _types(schema: Any, root: Mapping[str, Any], steps: int = _MOST_STEPS) -> Iterator[str]:
    """The JSON types that a schema allows; none where it says nothing of them."""
    if not isinstance(schema, Mapping) or not steps:
        return
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if named := list_types(schema):
        yield from named
    elif isinstance(reference := schema.get("$ref"), str):
        yield from _types(follow(reference, root), root, steps - 1)
    elif isinstance(values, list):
        yield from (n for value in values for n, kinds in _KINDS.items() if type(value) in kinds)
    for word in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(word)
        for part in parts if isinstance(parts, list) else ():
            yield from _types(part, root, steps - 1)


@dataclass
class _TaggedValue:
    tag: str
    children: list[_TaggedValue]
    text: str = ""


def elements(pieces: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that tags hold of which each is a parameter's name, or an item's.

    ``pieces`` begin with a tag each, text after it. Raises `Unreadable` where they do not match.
    """
    root = _TaggedValue("", [])
    open_elements = [root]
    for piece in pieces:
        tag, _, text = piece.partition(">")
        if tag.startswith("</"):
            if open_elements.pop().tag != tag[2:] or not open_elements:
                raise Unreadable("tags do not match")
            if text.strip():
                raise Unreadable("text stands between tags")
        elif tag.startswith("<") and len(open_elements) <= _MOST_LEVELS:
            element = _TaggedValue(tag[1:], [], text)
            open_elements[-1].children.append(element)
            open_elements.append(element)
        else:
            raise Unreadable("a tag is due")
    if len(open_elements) > 1:
        raise Unreadable("a tag is not closed")
    return _members(root, parameters)


def _members(element: _TaggedValue, schema: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for child in element.children:
        if child.tag in found:
            raise Unreadable(f"the parameter {child.tag[:40]!a} stands twice")
        found[child.tag] = _content(child, read_properties(schema).get(child.tag))
    return found


def _content(element: _TaggedValue, schema: Any) -> Any:
    ways = [schema, *list_branches(schema)] if isinstance(schema, Mapping) else []
    ways = [way for way in ways if isinstance(way, Mapping)]
    if not element.children:
        kinds = frozenset(kind for way in ways for kind in _types(way, way))
        return _as_one_of(without_line_breaks(element.text), kinds)
    if element.text.strip():
        raise Unreadable("text stands between tags")
    lists = [way for way in ways if way.get("type") == "array"]
    objects = [way for way in ways if read_properties(way)]
    if all(child.tag == "item" for child in element.children) and (lists or not objects):
        items = lists[0].get("items", {}) if lists else {}
        return [_content(child, items) for child in element.children]
    return _members(element, objects[0] if objects else {})
