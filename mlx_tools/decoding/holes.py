"""Reads what a model writes into a hole, piece by piece, up to where the hole ends. Pure.

Each reader takes pieces of any size and gives the same for every split of a text. ``done`` says
that the hole is closed; ``rest`` is what came after it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from mlx_tools.protocol import strict

_SIMPLE: Final = '"\\/bfnrt'
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_CONTROL: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}

MAX_FREE_CHARS: Final = 64_000
MAX_DEPTH: Final = 64


class StringHole:
    """The inside of a JSON string, up to its closing quote.

    ``text`` is what was written, in valid JSON: a raw control character is escaped, and so is a
    backslash that escapes nothing. It never holds half an escape. With ``most`` the string is
    closed after so many characters.
    """

    def __init__(self, most: int | None = None) -> None:
        self.text = ""
        self.length = 0
        self.done = most is not None and most <= 0
        self.rest = ""
        self._most = most
        self._held = ""

    def feed(self, piece: str) -> str:
        """Takes a piece; gives what it adds to ``text``."""
        if self.done:
            self.rest += piece
            return ""
        held, self._held = self._held + piece, ""
        added: list[str] = []
        at = 0
        while at < len(held) and not self.done:
            char = held[at]
            if char == '"':
                closes = self._closes(held[at + 1 :])
                if closes is None:
                    self._held = held[at:]
                    break
                if closes:
                    self.done, self.rest = True, held[at + 1 :]
                    break
                added.append('\\"')
                at += 1
            elif char != "\\":
                added.append(_escaped(char))
                at += 1
            else:
                unit = _escape_at(held, at)
                if unit is None:
                    self._held = held[at:]
                    break
                written, taken = unit
                added.append(written)
                at += taken
            self.length += 1
            if self._most is not None and self.length >= self._most:
                self.done, self.rest = True, held[at:]
        new = "".join(added)
        self.text += new
        return new

    def _closes(self, after: str) -> bool | None:
        """Whether a quote closes the string, by what comes after it; None where more must come to
        tell."""
        return True

    def finish(self) -> str:
        """The model ended its text: gives what was held back, where that is something whole."""
        held, self._held = self._held, ""
        if re.match(r"\\u[0-9a-fA-F]{4}", held):  # the first half of a pair, alone
            self.text += held[:6]
            return held[:6]
        return ""

    @property
    def value(self) -> str:
        """What the text says."""
        return str(json.loads(f'"{self.text}"'))


def _escaped(char: str) -> str:
    if char >= " ":
        # half of a surrogate pair could not be sent
        return char if not "\ud800" <= char <= "\udfff" else "\ufffd"
    return _CONTROL.get(char) or f"\\u{ord(char):04x}"


def _escape_at(text: str, at: int) -> tuple[str, int] | None:
    """The escape that begins at ``at``, as it is to be written, and how many characters it took;
    None where more must come to tell."""
    if at + 1 >= len(text):
        return None
    kind = text[at + 1]
    if kind in _SIMPLE:
        return text[at : at + 2], 2
    if kind != "u":
        return "\\\\", 1
    digits = text[at + 2 : at + 6]
    if not _HEX.issuperset(digits):
        return "\\\\", 1
    if len(digits) < 4:
        return None
    code = int(digits, 16)
    if not 0xD800 <= code <= 0xDFFF:
        return text[at : at + 6], 6
    return _pair_at(text, at) if code < 0xDC00 else ("\ufffd", 6)


def _pair_at(text: str, at: int) -> tuple[str, int] | None:
    """A surrogate pair in two escapes; U+FFFD for a first half that has no second."""
    second = text[at + 6 : at + 12]
    if not re.fullmatch(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}", second):
        begun = "\\uD" if len(second) >= 3 else "\\u"
        if len(second) < 6 and (
            begun.casefold().startswith(second.casefold()) or _may_be_low(second)
        ):
            return None
        return "\ufffd", 6
    return text[at : at + 12], 12


def _may_be_low(text: str) -> bool:
    return re.fullmatch(r"\\u[dD]([c-fC-F]([0-9a-fA-F]{1,2})?)?", text) is not None


_LEAD: Final = re.compile(r"[\s\"'$€£¥₹+~=:(]{0,12}")
_NUMBER: Final = re.compile(r"-?(?:[0-9]{1,30})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?")
_GROUPED: Final = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")
_MAX_NUMBER_CHARS: Final = 96


class NumberHole:
    """A number: the longest beginning of what was written that is one.

    A sign of a currency, a quote or a blank before it is passed over. Thousands may be grouped by
    commas where ``grouped`` says that a comma cannot begin another item. ``literal`` is the number
    in JSON; None where there is none.
    """

    def __init__(self, *, whole: bool, grouped: bool = True) -> None:
        self.done = False
        self.literal: str | None = None
        self.rest = ""
        self._whole = whole
        self._grouped = grouped
        self._text = ""

    def feed(self, piece: str) -> None:
        """Takes a piece."""
        if self.done:
            self.rest += piece
            return
        self._text += piece
        self._read(final=len(self._text) > _MAX_NUMBER_CHARS)

    def finish(self) -> None:
        """The model ended its text."""
        if not self.done:
            self._read(final=True)

    def _read(self, *, final: bool) -> None:
        lead = _LEAD.match(self._text)
        start = lead.end() if lead else 0
        body = self._text[start:]
        if not body or body == "-":
            self.done = final
            return
        found = _NUMBER.match(body)
        if found is None:
            self.done, self.rest = True, body
            return
        if self._grouped and (groups := _GROUPED.match(body)):
            if not final and len(body) - groups.end() < 5:
                return  # another group may follow
            tail = re.match(r"\.[0-9]{1,30}", body[groups.end() :])
            end = groups.end() + (tail.end() if tail else 0)
            self._settle(body[:end].replace(",", ""), body[end:])
            return
        after = body[found.end() :]
        if not final and (not after or (self._grouped and after[0] == "," and len(after) < 5)):
            return
        if not final and after[0] in ".eE" and len(after) < 4:
            return
        self._settle(found[0], after)

    def _settle(self, written: str, rest: str) -> None:
        self.done, self.rest = True, rest
        self.literal = _whole(written) if self._whole else _plain(written)


def _plain(written: str) -> str | None:
    """A number as JSON has it: no leading zeros; None where it is too large to be one."""
    sign, digits = ("-", written[1:]) if written.startswith("-") else ("", written)
    head = re.match(r"[0-9]+", digits)
    assert head is not None
    literal = sign + (head[0].lstrip("0") or "0") + digits[head.end() :]
    try:
        strict.loads(literal)
    except (ValueError, OverflowError):
        return None
    return literal


def _whole(written: str) -> str | None:
    """The number without its fraction; one with an exponent is written out, if it is whole."""
    literal = _plain(written)
    if literal is None:
        return None
    if "e" in literal.lower():
        value = float(literal)
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else None
    return literal.partition(".")[0]


class FreeHole:
    """Any JSON value: up to its matching bracket, its closing quote, or the end of its word.

    ``value`` holds the value where what was written is one by the strict reader.
    """

    def __init__(self) -> None:
        self.done = False
        self.rest = ""
        self.text = ""
        self._open: list[str] = []
        self._string: StringHole | None = None
        self._begun = False

    def feed(self, piece: str) -> None:
        """Takes a piece."""
        at = 0
        while at < len(piece) and not self.done:
            at = self._step(piece, at)
            if len(self.text) > MAX_FREE_CHARS or len(self._open) > MAX_DEPTH:
                self.done, self.text = True, ""
        if self.done:
            self.rest += piece[at:]

    def finish(self) -> None:
        """The model ended its text."""
        self.done = True

    def value(self) -> tuple[Any] | None:
        """The value in a tuple; None where there is none."""
        try:
            return (strict.loads(self.text.strip()),)
        except (ValueError, OverflowError, RecursionError):
            return None

    def _step(self, piece: str, at: int) -> int:
        if self._string is not None:
            return self._in_string(piece, at)
        char = piece[at]
        if not self._begun and char.isspace():
            return at + 1
        if self._begun and not self._open and char in ",]} \t\r\n":
            self.done = True
            return at
        self._begun = True
        self.text += char
        if char == '"':
            self._string = StringHole()
        elif char in "{[":
            self._open.append("}" if char == "{" else "]")
        elif char in "}]":
            if not self._open or self._open.pop() != char:
                self.done, self.text = True, ""
            elif not self._open:
                self.done = True
        return at + 1

    def _in_string(self, piece: str, at: int) -> int:
        assert self._string is not None
        self.text += self._string.feed(piece[at:])
        if not self._string.done:
            return len(piece)
        self.text += '"'
        at = len(piece) - len(self._string.rest)
        self._string = None
        self.done = not self._open
        return at
