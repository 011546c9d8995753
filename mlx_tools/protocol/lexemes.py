"""The tokens of a JSON object that may come in pieces: strings, bare words, comments.

Each reads on with ``advance(text, pos, base, fixes)``, where ``pos + base`` is a place in the
object, until ``status`` is no longer `MORE`; it appends what must be changed to ``fixes``. At
`FAULT`, ``reason`` says why, and the position returned is where it was.
"""

from __future__ import annotations

import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Final, NamedTuple

MORE: Final = 0
CLOSED: Final = 1
FAULT: Final = 2


class Fix(NamedTuple):
    """``start`` to ``end`` of the object's text, to be replaced; ``name`` is the repair's."""

    start: int
    end: int
    text: str
    name: str


PLAIN: Final = r'[^"\\\x00-\x1f]*+'
_PLAIN_SINGLE: Final = r"[^'\"\\\x00-\x1f]*+"
ESCAPE: Final = (
    r"\\(?:[\"\\/bfnrt]|u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""A valid escape; both halves of a surrogate pair are one."""

_BODY: Final = {
    '"': re.compile(rf"{PLAIN}(?:{ESCAPE}{PLAIN})*+"),
    "'": re.compile(rf"{_PLAIN_SINGLE}(?:{ESCAPE}{_PLAIN_SINGLE})*+"),
}
_LONE_HIGH: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_OPEN_ESCAPE: Final = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3}"
    r"|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?\Z"
)
_OTHERS_ESCAPES: Final = frozenset("xavNU01234567\n")
"""Escapes that mean something in Python or JavaScript and nothing in JSON."""

_WORD: Final = re.compile(r"[A-Za-z0-9_$+\-.]*+")
KEY_START: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_$")
WORD_START: Final = KEY_START | frozenset("0123456789-+.")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_UNSURE_NUMBER: Final = re.compile(r"[0-9]{3}|-.*", re.DOTALL)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_LITERALS: Final = frozenset(("true", "false", "null"))
PYTHON_LITERALS: Final = {"True": "true", "False": "false", "None": "null"}


def decoded(body: str) -> str:
    """The inside of a JSON string that holds nothing but valid escapes."""
    if "\\" not in body:
        return body
    text: str = scanstring(body + '"', 0, True)[0]
    return text


class StringToken:
    """A string, after its opening quote.

    ``pieces`` takes its decoded text, where that is wanted. ``newlines`` says whether raw newlines
    may stand in it, and ``controls`` the other control characters. ``bad`` says why a string whose
    end was found cannot be read all the same.
    """

    def __init__(
        self, quote: str, pieces: list[str] | None, *, newlines: bool, controls: bool
    ) -> None:
        self.status = MORE
        self.reason = ""
        self.bad = ""
        self.quote = quote
        self.pieces = pieces
        self._newlines = newlines
        self._controls = controls

    def advance(self, text: str, pos: int, base: int, fixes: list[Fix]) -> int:
        """Reads on; stops after the closing quote."""
        size, body, pieces = len(text), _BODY[self.quote], self.pieces
        while True:
            plain = body.match(text, pos)
            if plain is not None and plain.end() > pos:
                if pieces is not None:
                    pieces.append(decoded(plain[0]))
                pos = plain.end()
            if pos >= size:
                return pos
            char = text[pos]
            if char == self.quote:
                self.status = CLOSED
                if char == "'":
                    fixes.append(Fix(pos + base, pos + base + 1, '"', "single_quotes"))
                return pos + 1
            if char == "\\":
                after = self._escape(text, pos, base, fixes)
                if after == pos:
                    return pos
                pos = after
            elif char == '"':
                self._put(char, Fix(pos + base, pos + base + 1, '\\"', "single_quotes"), fixes)
                pos += 1
            elif self._newlines if char in "\r\n" else self._controls:
                name = "raw_newline" if char in "\r\n" else "raw_control"
                escape = f"\\u{ord(char):04x}"
                self._put(char, Fix(pos + base, pos + base + 1, escape, name), fixes)
                pos += 1
            else:
                self.status = FAULT
                self.reason = "a control character stands in a string"
                return pos

    def _put(self, char: str, fix: Fix, fixes: list[Fix]) -> None:
        fixes.append(fix)
        if self.pieces is not None:
            self.pieces.append(char)

    def _escape(self, text: str, pos: int, base: int, fixes: list[Fix]) -> int:
        """A backslash that begins no valid escape; returns ``pos`` where more text must come."""
        if _OPEN_ESCAPE.match(text, pos):
            return pos
        place = pos + base
        if self.quote == "'":
            if text[pos + 1] == "'":
                self._put("'", Fix(place, place + 1, "", "single_quotes"), fixes)
                return pos + 2
            if text[pos + 1] in _OTHERS_ESCAPES:
                self.bad = "an escape in single quotes can be read in two ways"
        if _LONE_HIGH.match(text, pos):
            self.bad = "a string holds half of a surrogate pair"
            return pos + 6
        self._put("\\", Fix(place, place + 1, "\\\\", "invalid_escape"), fixes)
        return pos + 1


class WordToken:
    """Characters without quotes: a number, a literal, or a key.

    ``after_number`` says that a number and no comma stood before. ``kind`` is ``key``, ``number``
    or ``literal``. At a fault, ``back`` holds what earlier pieces had of the word.
    """

    def __init__(self, start: int, *, is_key: bool, after_number: bool = False) -> None:
        self.status = MORE
        self.reason = ""
        self.kind = "key" if is_key else ""
        self.word = ""
        self.back = ""
        self.seen: list[str] = []  # of earlier pieces
        self._start = start
        self._after_number = after_number

    def advance(self, text: str, pos: int, base: int, fixes: list[Fix]) -> int:
        """Reads on; stops at the first character that is no part of the word."""
        match = _WORD.match(text, pos)
        end = match.end() if match else pos
        if end == len(text):
            self.seen.append(text[pos:])
            return end
        self.back = "".join(self.seen)
        word = self.word = self.back + text[pos:end]
        self.status = CLOSED
        if self.kind == "key" and _IDENTIFIER.fullmatch(word):
            fixes.append(Fix(self._start, end + base, f'"{word}"', "unquoted_key"))
        elif self.kind == "key":
            return self._fault(pos, "a key is due")
        elif self._after_number and _UNSURE_NUMBER.fullmatch(word):
            return self._fault(pos, "two numbers may be meant, or one")
        elif _NUMBER.fullmatch(word):
            self.kind = "number"
        elif word in _LITERALS:
            self.kind = "literal"
        elif word in PYTHON_LITERALS:
            self.kind = "literal"
            fixes.append(Fix(self._start, end + base, PYTHON_LITERALS[word], "python_literal"))
        else:
            return self._fault(pos, "a value is due")
        return end

    def _fault(self, pos: int, reason: str) -> int:
        self.status = FAULT
        self.reason = reason
        return pos


class CommentToken:
    """A comment, after its opener. ``lines``: a block comment may go over more than one line."""

    def __init__(self, start: int, *, is_block: bool, lines: bool) -> None:
        self.status = MORE
        self.reason = ""
        self._start = start
        self._is_block = is_block
        self._lines = lines

    def advance(self, text: str, pos: int, base: int, fixes: list[Fix]) -> int:
        """Reads on; stops after the closing characters, or at the newline."""
        size = len(text)
        end = text.find("*/" if self._is_block else "\n", pos)
        if self._is_block and not self._lines:
            newline = text.find("\n", pos, size if end < 0 else end)
            if newline >= 0:
                self.status = FAULT
                self.reason = "a comment does not end"
                return newline
        if end < 0:
            half = self._is_block and size > pos and text[-1] == "*"
            return size - 1 if half else size
        end += 2 if self._is_block else 0
        self.status = CLOSED
        fixes.append(Fix(self._start, end + base, " ", "comment"))
        return end


Token = StringToken | WordToken | CommentToken
