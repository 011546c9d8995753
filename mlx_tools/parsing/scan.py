"""The end of a JSON object in a model's text, and its faults.

`ObjectScanner` goes over an object once, in any number of pieces, with a stack of its own instead
of recursion. Its grammar is somewhat wider than JSON's. A deviation with only one meaning becomes a
`Fix`: a change of a few characters that turns the text into JSON (reading rule 7). At the first
deviation with several meanings it stops. `repaired` makes the changes and reads the result
strictly.

So a repair changes punctuation, quotes and escapes, and brings in nothing else: every string and
every number of the result is in the text (reading rule 8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct

from mlx_tools.parsing.strict import (
    MAX_DEPTH,
    MAX_DIGITS,
    Unreadable,
    arguments_span,
    decode,
    loads,
)

INCOMPLETE: Final = 0
CLOSED: Final = 1
FAULT: Final = 2

# What may come next. The order matters: keys, then values, then the parts after them.
_FIRST_KEY: Final = 0
_NEXT_KEY: Final = 1
_VALUE: Final = 2
_FIRST_ITEM: Final = 3
_NEXT_ITEM: Final = 4
_COLON: Final = 5
_COMMA: Final = 6

HEADS: Final = frozenset(("type", "name", "tool", "function"))
"""An object whose first key is one of these begins like a message (reading rule 11)."""

_ENVELOPE: Final = HEADS | {"arguments", "parameters", "content", "id", "sources"}
_PROTOCOL_TYPES: Final = frozenset(("tool_call", "final_answer", "tool_observation"))

_WHITE: Final = re.compile(r"[ \t\r\n]++")
_WORD: Final = re.compile(r"[A-Za-z0-9_$+\-.]*+")
_KEY_START: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_$")
_WORD_START: Final = _KEY_START | frozenset("0123456789-+.")
_MAX_WORD_CHARS: Final = MAX_DIGITS + 1
"""Characters of a key or a number, at most."""

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_UNSURE_NUMBER: Final = re.compile(r"[0-9]{3}|-.*", re.DOTALL)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_ESCAPES: Final = {chr(code): f"\\u{code:04x}" for code in range(32)}
"""The escapes of control characters."""

_PYTHON_LITERALS: Final = {"True": "true", "False": "false", "None": "null"}


# A long text may have one for every second character. They have no cycles, so the garbage collector
# need not look at them again and again.
class Fix(Struct, frozen=True, order=True, gc=False):
    """A replacement of ``start`` to ``end`` of the object; ``name`` is the repair's."""

    start: int
    end: int
    text: str
    name: str


class Parts(Protocol):
    """A listener that is called with each complete part of an object.

    Offsets are those of the object's text. If a method returns False, the scan stops at a fault.
    """

    def on_open(self, begin: int, is_object: bool) -> bool:
        """Handle an opened brace or bracket."""

    def on_key(self, begin: int, key: str) -> bool:
        """Handle a key, once its colon was read."""

    def on_value(self, begin: int, end: int, value: str, is_string: bool) -> bool:
        """Handle a string, number or literal, with its value.

        ``value`` is decoded if it is a string; a literal is one of JSON's own.
        """

    def on_close(self, begin: int) -> bool:
        """Handle a closed brace or bracket."""


class OpenToken(NamedTuple):
    """A string or a word that has not ended, and its beginning."""

    begin: int
    is_key: bool
    is_string: bool
    pieces: Sequence[str]

    @property
    def text(self) -> str:
        """The text of it so far, decoded."""
        return "".join(self.pieces)


class ObjectScanner:
    """One object of a text that grows, from its opening brace at ``start``.

    Call `advance` until ``status`` is no longer `INCOMPLETE`; it has come up to ``pos``. At
    `CLOSED` that is the end of the object. At `FAULT` the character there does not fit, and
    ``reason`` says what is wrong. ``bad`` says why an object cannot be read although its end is
    known, and ``bad_escape`` why it cannot if it is a call. ``value`` is an object that `take_line`
    took. All offsets are the text's.

    It decodes only what a stream must know early: the outermost keys, ``type``, ``name``,
    ``answer`` (the text of ``content``, which a stream takes away as it goes) and where
    ``arguments`` begin and end, -1 before that. With ``parts`` it decodes everything, and calls the
    listener. ``begin`` is where the last key or value began, ``settled_end`` where the last bracket
    or value ends: white space, a comma, a key or an open token may follow.
    """

    def __init__(self, start: int = 0, parts: Parts | None = None) -> None:
        self.status = INCOMPLETE
        self.start = self.pos = self.begin = self.settled_end = start
        self.fixes: list[Fix] = []
        self.first_key: str | None = None
        self.message_like = False
        self.type: str | None = None
        self.name: str | None = None
        self.reason = ""
        self.bad = self.bad_escape = ""
        self.value: dict[str, Any] | None = None
        self.answer: list[str] = []
        self.arguments = (-1, -1)
        self.field: str | None = None  # the outermost key before its value, in it or right after it
        self._parts = parts
        self._state = _FIRST_KEY
        self._stack: list[bool] = []  # True: an object, False: an array
        self._string: _StringToken | None = None  # the word that is open
        self._open_word = ""  # the beginning of a word at the end of the text
        self._comment = ""  # the end mark of the comment that is open
        self._comment_begin = -1  # of the last comment
        self._text = ""
        self._lenient = False  # it may be a message, whose strings may hold raw newlines
        self._key = ""
        self._key_quoted = False
        self._last = ""  # the kind of the last value
        self._comma = 0
        self._after_number = False  # a comma was left out after a number

    # --- what a caller asks when the text ends ---

    @property
    def has_key(self) -> bool:
        """True if a first key and its colon were there; before that it is only a brace."""
        return self.first_key is not None

    @property
    def restartable(self) -> bool:
        """True if the text after the brace is to be read again if this is no object."""
        return not self.has_key and self._comment_begin < 0

    def partial_key(self) -> str | None:
        """Return the first key so far, None if it is no quoted key."""
        if self._string is not None:
            return "".join(self._string.pieces or ())
        if self._is_open:
            return None
        if self._state == _FIRST_KEY:
            return ""
        return self._key if self._key_quoted else None

    @property
    def _is_open(self) -> bool:
        return self._string is not None or bool(self._open_word or self._comment)

    @property
    def comma_open(self) -> bool:
        """True if a comma was the last part."""
        return not self._is_open and self._state in (_NEXT_KEY, _NEXT_ITEM)

    @property
    def value_ended(self) -> bool:
        """True if a value was the last part, and a comma or a closing bracket is due."""
        return not self._is_open and self._state == _COMMA

    @property
    def closable(self) -> bool:
        """True if nothing but closing brackets is missing."""
        return self.value_ended and not self.bad_reason

    @property
    def bad_reason(self) -> str:
        """The fault of an object whose end can be found; empty if it can be read."""
        return self.bad or ("" if self.type == "final_answer" else self.bad_escape)

    def open_token(self) -> OpenToken | None:
        """Return the string or word that is open."""
        is_key = self._state <= _NEXT_KEY
        if self._string is not None:
            return OpenToken(self.begin, is_key, True, self._string.pieces or ())
        return OpenToken(self.begin, is_key, False, [self._open_word]) if self._open_word else None

    # --- going on ---

    def advance(self, text: str) -> None:
        """Read on in ``text``, which begins with all that was read: see the class."""
        self._text = text
        if not self._stack:
            self.pos = self._open(self.start, True)
        while self.status == INCOMPLETE and self.pos < len(text):
            after = self._next(self.pos)
            if after == self.pos:
                break
            self.pos = after
        self._text = ""

    def take_line(self, text: str, known_end: int) -> int:
        """Take the object at once if it is on one line and strict JSON.

        Most objects are, and to decode one is many times as fast. For others use `advance`.

        Returns the end of the line: up to there nothing need be tried again, as up to
        ``known_end``.
        """
        line_end = text.find("\n", self.start) % (len(text) + 1)
        if line_end <= known_end:
            return known_end
        line = text[self.start : line_end]
        if CONTROL_ESCAPE.search(line):
            return line_end
        try:
            value, end = decode(line)
        except Unreadable:
            return line_end
        if isinstance(value.get("arguments"), dict):
            span = arguments_span(line[:end])
            if span is None:
                return line_end
            self.arguments = self.start + span[0], self.start + span[1]
        kind, name, answer = value.get("type"), value.get("name"), value.get("content")
        self.type = kind if isinstance(kind, str) else None
        self.name = name if isinstance(name, str) else None
        self.first_key = next(iter(value), None)
        self.message_like = self.first_key in HEADS or self.type in _PROTOCOL_TYPES
        if isinstance(answer, str):
            self.answer = [answer]
        self.status, self.value, self.pos = CLOSED, value, self.start + end
        return line_end

    def read(self, text: str, *, close: bool = False) -> tuple[Any, tuple[str, ...]]:
        """Return the value of the object after its fixes, and the repairs.

        It is read up to the scanner's place. ``close``: the missing closing brackets are added.

        Raises `Unreadable` if the result is no strict JSON, or if a second reader finds another
        meaning in it.
        """
        if self.value is not None:
            return self.value, ()
        pieces: list[str] = []
        done = self.start
        names: dict[str, None] = {}
        for fix in sorted(self.fixes):
            pieces += (text[done : fix.start], fix.text)
            done = fix.end
            names[fix.name] = None
        closers = "".join("}" if is_object else "]" for is_object in reversed(self._stack))
        closers = closers if close else ""
        value = loads("".join((*pieces, text[done : self.pos], closers)))
        if "missing_comma" in names:
            _agree(text[self.start : self.pos] + closers, value)
        return value, (*names, "missing_closers") if close else (*names,)

    def _next(self, pos: int) -> int:
        """Read the next part and return its end, or ``pos`` if more text must come."""
        if self._string is not None:
            return self._in_string(self._string, pos)
        if self._comment:
            return self._in_comment(pos)
        if white := _WHITE.match(self._text, pos):
            return white.end()
        char = self._text[pos]
        if char in "/#":
            return self._open_comment(pos)
        if self._state <= _NEXT_KEY:
            return self._at_key(pos, char)
        if self._state <= _NEXT_ITEM:
            return self._at_value(pos, char)
        return self._at_comma(pos, char) if self._state == _COMMA else self._at_colon(pos, char)

    def _fail(self, pos: int, reason: str) -> int:
        self.status = FAULT
        self.reason = f"{reason} at character {pos - self.start + 1}"
        return pos

    # --- keys and values ---

    def _at_key(self, pos: int, char: str) -> int:
        if char == "}":
            return self._close(pos, drop_comma=self._state == _NEXT_KEY)
        self.begin = pos
        if char in "\"'":
            return self._open_string(pos, char)
        return self._word(pos) if char in _KEY_START else self._fail(pos, "a key is due")

    def _at_colon(self, pos: int, char: str) -> int:
        if char != ":":
            # {"name", "age"} is a set; {"type" "tool_call"} is a message without its colon.
            if not self.has_key and self._key_quoted and self._key in HEADS and char in "\"'=":
                self.first_key = self._key
                self.message_like = True
            return self._fail(pos, "':' is due")
        self._state = _VALUE
        if len(self._stack) == 1:
            self.field = self._key
            if self.first_key is None:
                self.first_key = self._key
                self.message_like = self._key_quoted and self._key in HEADS
                self._lenient = self._key in _ENVELOPE
        if self._parts is not None and not self._parts.on_key(self.begin, self._key):
            self.status = FAULT
        return pos + 1

    def _at_value(self, pos: int, char: str) -> int:
        if char == "]" and self._state != _VALUE:
            return self._close(pos, drop_comma=self._state == _NEXT_ITEM)
        self.begin = pos
        if char in "\"'":
            return self._open_string(pos, char)
        if char in "{[":
            return self._open(pos, char == "{")
        return self._word(pos) if char in _WORD_START else self._fail(pos, "a value is due")

    def _open(self, pos: int, is_object: bool) -> int:
        if self._parts is not None and not self._parts.on_open(pos, is_object):
            self.status = FAULT
        else:
            self.settled_end = pos + 1
        if len(self._stack) == 1 and is_object and self.field == "arguments":
            self.arguments = pos, -1
        self._stack.append(is_object)
        self._state = _FIRST_KEY if is_object else _FIRST_ITEM
        if len(self._stack) > MAX_DEPTH:
            self.bad = self.bad or f"it nests deeper than {MAX_DEPTH} levels"
            if self.message_like:
                return self._fail(pos, self.bad)
        return pos + 1

    def _close(self, pos: int, *, drop_comma: bool = False) -> int:
        if drop_comma:
            self.fixes.append(Fix(self._comma, self._comma + 1, "", "trailing_comma"))
        if self._parts is not None and not self._parts.on_close(pos):
            self.status = FAULT
            return pos
        self._stack.pop()
        if not self._stack:
            self.status = CLOSED
            return pos + 1
        if len(self._stack) == 1 and self.arguments[1] < self.arguments[0]:
            self.arguments = self.arguments[0], pos + 1
        return self._end_value(pos + 1, "closed")

    def _end_value(self, end: int, kind: str, value: str = "", *, is_string: bool = False) -> int:
        self._state = _COMMA
        self._last = kind
        self._after_number = False
        parts = self._parts if kind != "closed" else None
        if parts is not None and not parts.on_value(self.begin, end, value, is_string):
            self.status = FAULT
        else:
            self.settled_end = end
        return end

    # --- commas ---

    def _at_comma(self, pos: int, char: str) -> int:
        is_object = self._stack[-1]
        if char == ",":
            self._comma = pos
            self._state = _NEXT_KEY if is_object else _NEXT_ITEM
            return pos + 1
        if char == ("}" if is_object else "]"):
            return self._close(pos)
        apart = pos > self.settled_end
        if not self._comma_is_missing(char, is_object, apart):
            return self._fail(pos, "',' or a closing bracket is due")
        self.fixes.append(Fix(pos, pos, ",", "missing_comma"))
        # FIRST, not NEXT: what follows must be a key or an item, as there is no comma to drop.
        self._state = _FIRST_KEY if is_object else _FIRST_ITEM
        self._after_number = self._last == "number"
        return self._at_key(pos, char) if is_object else self._at_value(pos, char)

    def _comma_is_missing(self, char: str, is_object: bool, is_apart: bool) -> bool:
        """Return whether a comma was left out here, and nothing else can be meant."""
        after_string = self._last in ("string", "single string")
        if is_object:
            # "a""b" may be one string with quotes in it. A key needs its colon: "a" "b": is two.
            return char in "\"'" and (is_apart or not after_string)
        if char == '"':
            return is_apart and self._last != "single string"  # Python joins 'a' "b"
        if char == "'":
            return is_apart and not after_string
        if char in "{[":
            return is_apart or (char == "{" and self._last == "closed")
        return is_apart and char in _WORD_START

    # --- strings ---

    def _open_string(self, pos: int, quote: str) -> int:
        is_key, field = self._state <= _NEXT_KEY, self.field
        known = {"type": self.type, "name": self.name}
        outermost = len(self._stack) == 1
        pieces: list[str] | None = None  # the place for its decoded text, if it is wanted
        if self._parts is not None or (
            outermost and (is_key or (field in known and known[field] is None))
        ):
            pieces = []
        elif outermost and field == "content":
            pieces = self.answer
        newlines = self._lenient and not is_key
        self._string = _StringToken(
            quote,
            pieces,
            newlines=newlines,
            controls=not is_key,
            is_answer=outermost and field == "content" and not is_key,
        )
        if quote == "'":
            self.fixes.append(Fix(pos, pos + 1, '"', "single_quotes"))
        return pos + 1

    def _in_string(self, token: _StringToken, pos: int) -> int:
        end = token.advance(self._text, pos, self.fixes)
        if token.status == FAULT:
            return self._fail(end, "a control character stands in a string")
        if token.status == INCOMPLETE:
            return end
        self._string = None
        self.bad = self.bad or token.bad
        self.bad_escape = self.bad_escape or token.bad_escape
        if self._state <= _NEXT_KEY:
            self._key, self._key_quoted = "".join(token.pieces or ()), True
            self._state = _COLON
            return end
        text = "".join(token.pieces) if token.pieces and token.pieces is not self.answer else ""
        if token.pieces is not None and len(self._stack) == 1:
            if self.field == "type":
                self.type = text
                if text in _PROTOCOL_TYPES:
                    self.message_like = self._lenient = True
            elif self.field == "name":
                self.name = text
        kind = "single string" if token.quote == "'" else "string"
        return self._end_value(end, kind, text, is_string=True)

    # --- words and comments ---

    def _word(self, pos: int) -> int:
        """Read a key without quotes, a number or a literal, once all of it is there."""
        known, self._open_word = self._open_word, ""  # the part of it in earlier pieces
        begin = pos + len(known)
        found = _WORD.match(self._text, begin, pos + _MAX_WORD_CHARS)
        end = found.end() if found else begin
        word = known + self._text[begin:end]
        if end == len(self._text) and len(word) < _MAX_WORD_CHARS:
            self._open_word = word
            return pos
        if self._state <= _NEXT_KEY:
            if not _IDENTIFIER.fullmatch(word):
                return self._fail(pos, "a key is due")
            self.fixes.append(Fix(pos, end, f'"{word}"', "unquoted_key"))
            self._key, self._key_quoted = word, False
            self._state = _COLON
            return end
        if self._after_number and _UNSURE_NUMBER.fullmatch(word):
            return self._fail(pos, "two numbers may be meant, or one")
        if _NUMBER.fullmatch(word):
            return self._end_value(end, "number", word)
        literal = _PYTHON_LITERALS.get(word, word)
        if literal not in ("true", "false", "null"):
            return self._fail(pos, "a value is due")
        if literal != word:
            self.fixes.append(Fix(pos, end, literal, "python_literal"))
        return self._end_value(end, "literal", literal)

    def _open_comment(self, pos: int) -> int:
        """Open a comment; return ``pos`` if only more text can show whether it is one."""
        opener = self._text[pos : pos + 2]
        if opener == "/":
            return pos
        if opener[0] == "/" and opener not in ("/*", "//"):
            return self._fail(pos, "'/' fits nothing")
        self._comment = "*/" if opener == "/*" else "\n"
        self._comment_begin = pos
        return pos + (1 if opener[0] == "#" else 2)

    def _in_comment(self, pos: int) -> int:
        text, size = self._text, len(self._text)
        end = text.find(self._comment, pos)
        is_block = self._comment == "*/"
        # a text that is only a brace so far does not go over a line
        if is_block and not self.has_key:
            newline = text.find("\n", pos, size if end < 0 else end)
            if newline >= 0:
                return self._fail(newline, "a comment does not end")
        if end < 0:
            return size - 1 if is_block and text[-1] == "*" else size
        end += 2 if is_block else 0
        self.fixes.append(Fix(self._comment_begin, end, " ", "comment"))
        self._comment = ""
        return end if end > pos else self._next(end)  # an empty one has ended and takes no text


NO_OBJECT: Final = re.compile(
    r"[ \t\r\n]*+(?:[^ \t\r\n\"'A-Za-z_$/#]"
    r"|[A-Za-z_$][A-Za-z0-9_$+.\-]*+[ \t\r\n]*+[^ \t\r\n:/#A-Za-z0-9_$+.\-]"
    r"|[A-Za-z_$][A-Za-z0-9_$+.\-]*+[ \t\r\n]++[^ \t\r\n:/#]"
    r"|\"[^\"\\\x00-\x1f]*+(?:[\x00-\x1f]|\"[ \t\r\n]*+[^ \t\r\n:/#\"'=])"
    r"|'[^'\"\\\x00-\x1f]*+(?:[\x00-\x1f]|'[ \t\r\n]*+[^ \t\r\n:/#\"'=]))"
)
"""Text after a brace that shows that no key and colon follow, so it begins no object. With it a
text of nothing but braces takes a twentieth of the time."""

_MAX_REREADS: Final = 4
"""Times that a text is read at most if braces in it begin no object."""


def find_objects(text: str, braces: str = "") -> Iterator[tuple[ObjectScanner, Any]]:
    """Yield the outermost objects in ``text``: the scanner of each, and its value.

    The value is None if it cannot be read. Braces are searched in ``braces``, which is as long as
    the text; by default in the text itself.
    """
    braces = braces or text
    left = _MAX_REREADS * len(text)
    pos, tried = braces.find("{"), -1
    while pos >= 0:
        if NO_OBJECT.match(text, pos + 1):
            pos = braces.find("{", pos + 1)
            continue
        scanner, value = ObjectScanner(pos), None
        tried = scanner.take_line(text, tried)
        if scanner.status == INCOMPLETE:
            scanner.advance(text)
        left -= scanner.pos - pos
        with suppress(Unreadable):
            value = scanner.read(text)[0] if scanner.status == CLOSED else None
        yield scanner, value
        is_part = value is not None or left <= 0
        pos = braces.find("{", max(scanner.pos if is_part else 0, pos + 1))


_PLAIN: Final = r'[^"\\\x00-\x1f]*+'
_PLAIN_SINGLE: Final = r"[^'\"\\\x00-\x1f]*+"
_ESCAPE: Final = r"\\[\"\\/n]"
"""A valid escape that is never meant as a backslash and a letter."""

_AMBIGUOUS_ESCAPE: Final = re.compile(
    r"\\(?:[bfrt]|u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""A valid escape that may be meant as the beginning of a name, as in ``C:\\bin``, ``\\frac``.

Both halves of a surrogate pair are one."""

CONTROL_ESCAPE: Final = re.compile(r"\\(?:[bf]|u000[8cC])")
"""An escape of U+0008 or U+000C, which nobody means, or a text that looks like one."""

TWO_BACKSLASHES: Final = r"write a backslash as \\"

_MAX_ESCAPES: Final = 10_000
"""Escapes that one match takes: `re` keeps some 100 bytes for each until the match ends."""

_BODY: Final = {
    '"': re.compile(rf"{_PLAIN}(?:{_ESCAPE}{_PLAIN}){{0,{_MAX_ESCAPES}}}"),
    "'": re.compile(rf"{_PLAIN_SINGLE}(?:{_ESCAPE}{_PLAIN_SINGLE}){{0,{_MAX_ESCAPES}}}"),
}
_LONE: Final = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_OPEN_ESCAPE: Final = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3}"
    r"|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?\Z"
)
_FOREIGN_ESCAPES: Final = frozenset("xavNU01234567\n")
"""Escapes that have a meaning in Python or JavaScript and none in JSON."""


class _StringToken:
    """A string, after its opening quote.

    ``pieces`` takes its decoded text, if that is wanted. ``newlines`` says whether raw newlines may
    be in it, and ``controls`` the other control characters. ``bad`` says why a string with a known
    end cannot be read, ``bad_escape`` why a string of a call cannot because of its escapes. In an
    answer every escape is read.
    """

    def __init__(
        self,
        quote: str,
        pieces: list[str] | None,
        *,
        newlines: bool,
        controls: bool,
        is_answer: bool,
    ) -> None:
        self.status = INCOMPLETE
        self.bad = self.bad_escape = ""
        self._is_answer = is_answer
        self._doubtful = self._invalid = ""  # the last escape that may be either
        self.quote = quote
        self.pieces = pieces
        self._newlines = newlines
        self._controls = controls

    def advance(self, text: str, pos: int, fixes: list[Fix]) -> int:
        """Read on to the closing quote, or to a character that may not be in it."""
        size, body = len(text), _BODY[self.quote]
        while True:
            plain = body.match(text, pos)
            if plain is not None and plain.end() > pos:
                if self.pieces is not None:
                    piece = plain[0]
                    self.pieces.append(scanstring(piece + '"', 0)[0] if "\\" in piece else piece)
                pos = plain.end()
                if text.startswith("\\", pos):
                    continue  # a valid escape may follow: one match takes so many of them
            if pos >= size:
                return pos
            char = text[pos]
            if char == self.quote:
                self.status = CLOSED
                if char == "'":
                    fixes.append(Fix(pos, pos + 1, '"', "single_quotes"))
                return pos + 1
            if char == "\\":
                after = self._escape(text, pos, fixes)
                if after == pos:
                    return pos
                pos = after
            elif char == '"':
                self._append(char, Fix(pos, pos + 1, '\\"', "single_quotes"), fixes)
                pos += 1
            elif self._newlines if char in "\r\n" else self._controls:
                name = "raw_newline" if char in "\r\n" else "raw_control"
                self._take_control(char)
                self._append(char, Fix(pos, pos + 1, _ESCAPES[char], name), fixes)
                pos += 1
            else:
                self.status = FAULT
                return pos

    def _append(self, char: str, fix: Fix, fixes: list[Fix]) -> None:
        fixes.append(fix)
        if self.pieces is not None:
            self.pieces.append(char)

    def _escape(self, text: str, pos: int, fixes: list[Fix]) -> int:
        """Take a backslash that begins no valid escape.

        Returns ``pos`` if more text must come.
        """
        if _OPEN_ESCAPE.match(text, pos):
            return pos
        found = _AMBIGUOUS_ESCAPE.match(text, pos)
        is_lone = _LONE.match(text, pos) is not None and (found is None or len(found[0]) == 6)
        if found is not None and not (self._is_answer and is_lone):
            if not (self._is_answer and found[0] in ("\\b", "\\f")):
                return self._doubtful_escape(found)
        elif self.quote == "'" and text[pos + 1] == "'":
            self._append("'", Fix(pos, pos + 1, "", "single_quotes"), fixes)
            return pos + 2
        elif is_lone and not self._is_answer:
            self.bad = "a string holds half of a surrogate pair"
            return pos + 6
        elif self.quote == "'" and text[pos + 1] in _FOREIGN_ESCAPES and not self._is_answer:
            self.bad = "an escape in single quotes can be read in two ways"
        self._invalid = text[pos : pos + 2]
        self._judge_escapes()
        self._append("\\", Fix(pos, pos + 1, "\\\\", "invalid_escape"), fixes)
        return pos + 1

    def _doubtful_escape(self, match: re.Match[str]) -> int:
        value = scanstring(match[0] + '"', 0)[0]
        if self.pieces is not None:
            self.pieces.append(value)
        self._doubtful = match[0][:2]
        self._take_control(value)
        self._judge_escapes()
        return match.end()

    def _take_control(self, char: str) -> None:
        if char in ("\b", "\f") and not self._is_answer:
            self.bad_escape = f"a string holds a control character; {TWO_BACKSLASHES}"

    def _judge_escapes(self) -> None:
        """Note a fault of escapes with two readings, such as ``C:\\dir\\temp``."""
        if self._doubtful and self._invalid and not self._is_answer:
            both = f"{self._invalid} and {self._doubtful}"
            self.bad_escape = f"a string holds {both}, and has two readings; {TWO_BACKSLASHES}"


# --- the fixes put in ---------------------------------------------------------------------------

MAX_JSON_REPAIR_CHARS: Final = 2000
"""The longest text for which `json_repair` is asked, which is not linear."""


def _agree(text: str, value: Any) -> None:
    """Compare with `json_repair`: raise `Unreadable` if it reads something else.

    If a comma is missing, the text alone does not say what the writer meant to separate. Two
    different readings are an error, not a choice (reading rule 8).
    """
    if len(text) > MAX_JSON_REPAIR_CHARS:
        return
    import json_repair

    try:
        agrees = _loose(json_repair.loads(text, skip_json_loads=True)) == _loose(value)
    except Exception:  # it guesses, and a failure of it says nothing
        return
    if not agrees:
        raise Unreadable("a comma is missing, and the text can be read in two ways")


def _loose(value: Any) -> Any:
    """Return ``value`` without what `json_repair` is known to get wrong.

    That is backslashes and white space.
    """
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_loose(item) for item in value]
    if isinstance(value, str):
        return "".join(value.replace("\\", "").split())
    return value
