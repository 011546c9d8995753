"""A small reader of literals as in Python and similar languages; it runs nothing.

It reads keyword arguments (``x=1, y=['a']``) and objects with bare keys (``{x:1}``), whose strings
may be between marks of their own. Other expressions (a name, a sum, an f-string) are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlx_tools.parsing.strict import MAX_DEPTH, Unreadable, encodable, loads

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


_AMBIGUOUS_ESCAPES: Final = frozenset("abfrtvx")
"""Escapes that may be meant as the beginning of a name, as in ``C:\\temp``."""


def keywords(text: str) -> dict[str, Any]:
    """Return the arguments between a call's brackets.

    Raises `Unreadable`, also if an argument has no name.
    """
    return _Literals(text).members("=", "")


def literal_object(text: str, string_marks: Sequence[str] = ()) -> dict[str, Any]:
    """Return the object that ``text`` is, its keys bare or quoted.

    Raises `Unreadable`.

    ``string_marks`` are marks around a string, like quotes.
    """
    value = literal(text, string_marks)
    if not isinstance(value, dict):
        raise Unreadable("an object is due")
    return value


def literal(text: str, string_marks: Sequence[str] = ()) -> Any:
    """Return the one value in ``text``. Raises `Unreadable`."""
    reader = _Literals(text, string_marks)
    value = reader.value()
    if not reader.at_end():
        raise Unreadable("more text follows the value")
    return value


class _Literals:
    def __init__(self, text: str, string_marks: Sequence[str] = ()) -> None:
        self._text = text
        self._string_marks = string_marks
        self._pos = 0
        self._depth = 0

    def _space(self) -> None:
        while space := _SPACE.match(self._text, self._pos):
            self._pos = space.end()

    def at_end(self) -> bool:
        self._space()
        return self._pos >= len(self._text)

    def takes(self, mark: str) -> bool:
        """Skip ``mark`` if it comes next; return whether it did."""
        self._space()
        if not self._text.startswith(mark, self._pos):
            return False
        self._pos += len(mark)
        return True

    def _key(self, colon: str) -> str:
        """Read a name and the text after it, or a string and a colon."""
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
        """Read keys and values up to ``end``, or to the end of the text if it is empty."""
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
        """Read a string, or several in a row, as one; None if there is none."""
        pieces: list[str] = []
        while (piece := self._one_string()) is not None:
            pieces.append(piece)
            self._space()
        return "".join(pieces) if pieces else None

    def _one_string(self) -> str | None:
        text, pos = self._text, self._pos
        for mark in self._string_marks:
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
    """Return ``raw`` with its escapes read.

    A backslash before any other character stays as it is.
    """
    if "\\" not in raw:
        return raw
    text = _ESCAPE.sub(_escaped, raw)
    kinds = {found[5] or "x" for found in _ESCAPE.finditer(raw)}
    is_mixed = bool(kinds & _AMBIGUOUS_ESCAPES) and not kinds <= {*_ESCAPES, "x"}
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
