"""Finds where a JSON object in a model's text ends, and what keeps it from being JSON.

`ObjectScanner` goes over an object once, in as many pieces as it comes, with a stack of its own
instead of recursion. It follows a grammar somewhat wider than JSON's: each deviation that has one
meaning becomes a `Fix`, a change of a few characters that turns the text into JSON (reading rule
7); at the first that has none it stops. It decodes nothing but what a stream must know early: the
outermost keys, the type, the name, and the text of ``content``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple, Protocol

from mlx_tools.protocol.strict import MAX_DEPTH, Unreadable, loads

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


# --- named repairs (reading rule 7): a text that is almost JSON, made JSON by its `Fix`es -------

REPAIRS: Final[tuple[str, ...]] = (
    "single_quotes",
    "python_literal",
    "trailing_comma",
    "missing_comma",
    "unquoted_key",
    "raw_newline",
    "raw_control",
    "comment",
    "invalid_escape",
    "inline",
    "missing_closers",
    "envelope_alias",
    "arguments_string",
    "missing_arguments",
    "id_string",
    "tool_name",
    "dialect",
    "noise",
)
"""Every repair a message can bear, those of the envelope and of the tool's name included."""

SECOND_OPINION_CHARS: Final = 2000
"""The longest text for which `json_repair`, which is not linear, is asked."""


def repaired(text: str, fixes: Sequence[Fix], closers: str = "") -> tuple[Any, tuple[str, ...]]:
    """The value of ``text`` with ``fixes`` and ``closers`` put in, and the names of the repairs.

    Raises `Unreadable` where the result is no strict JSON, or a second reader finds another
    meaning in it.
    """
    if not fixes and not closers:
        return loads(text), ()
    ordered = sorted(fixes)
    value = loads(_patched(text, ordered) + closers)
    names = tuple(dict.fromkeys(fix.name for fix in ordered))
    if "missing_comma" in names:
        _agree(text + closers, value)
    return value, (*names, "missing_closers") if closers else names


def _patched(text: str, fixes: Sequence[Fix]) -> str:
    pieces: list[str] = []
    done = 0
    for fix in fixes:
        pieces += (text[done : fix.start], fix.text)
        done = fix.end
    pieces.append(text[done:])
    return "".join(pieces)


def _agree(text: str, value: Any) -> None:
    """Raises `Unreadable` where `json_repair` reads ``text`` as something else than ``value``.

    Where a comma is missing, the text alone does not say what the writer meant to separate. Two
    readings that differ are an error, not a choice (reading rule 8).
    """
    if len(text) > SECOND_OPINION_CHARS:
        return
    import json_repair

    try:
        agrees = _loose(json_repair.loads(text, skip_json_loads=True)) == _loose(value)
    except Exception:  # a guesser that stumbles has no opinion
        return
    if not agrees:
        raise Unreadable("a comma is missing, and the text can be read in two ways")


def _loose(value: Any) -> Any:
    """``value`` without what `json_repair` is known to get wrong: backslashes and white space."""
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_loose(item) for item in value]
    if isinstance(value, str):
        return "".join(value.replace("\\", "").split())
    return value


# What may come next. The order matters: keys, then values, then what stands after them.
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
PROTOCOL_TYPES: Final = frozenset(("tool_call", "final_answer", "tool_observation"))

_WHITE: Final = re.compile(r"[ \t\r\n]++")
_QUICK_KEY: Final = re.compile(rf'"({PLAIN})"[ \t\r\n]*+:')
_QUICK_STRING: Final = re.compile(rf'"{PLAIN}(?:{ESCAPE}{PLAIN})*+"')


class ObjectScanner:
    """One object, from its opening brace.

    Call `advance` until ``status`` is no longer `MORE`. At `CLOSED` the end is reached; at `FAULT`
    the position returned is that of the character that fits nothing, ``back`` holds what of
    earlier pieces must be read again before it, and ``reason`` says what was wrong.

    ``answer`` (decoded text of ``content``) and ``raw_arguments`` are for a stream, which empties
    them as it goes; ``quiet`` leaves them out.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.status = MORE
        self.fixes: list[Fix] = []
        self.first_key: str | None = None
        self.message_like = False
        self.type: str | None = None
        self.name: str | None = None
        self.reason = ""
        self.bad = ""  # why it cannot be read, although its end can be found
        self.back = ""
        self.answer: list[str] = []
        self.raw_arguments: list[str] = []
        self._quiet = quiet
        self._state = _FIRST_KEY
        self._stack: list[bool] = []  # True: an object, False: an array
        self._token: Token | None = None  # what is open: a string, a word or a comment
        self._text = ""
        self._length = 0  # characters taken in before the present piece
        self._base = 0  # what makes an index of the piece one of the object
        self._arguments_from = -1  # index in the piece where the arguments go on, or -1
        self._lenient = False  # it may be a message: its strings may hold raw newlines
        self._field: str | None = None  # the outermost key whose value is due or open
        self._key = ""
        self._key_quoted = False
        self._last = ""  # what the last value was
        self._value_end = 0
        self._comma = 0
        self._after_number = False  # a comma was left out after a number
        self._commented = False

    # --- what a caller asks when the text ends ---

    @property
    def begun(self) -> bool:
        """Whether a first key and its colon were there: before that it is only a brace."""
        return self.first_key is not None

    @property
    def restartable(self) -> bool:
        """Whether what follows the brace should be read anew where this is no object."""
        return not self.begun and not self._commented

    def partial_key(self) -> str | None:
        """What there is of the first key, or None where what is there is no quoted key."""
        if isinstance(self._token, StringToken):
            return "".join(self._token.pieces or ())
        if self._token is not None:
            return None
        if self._state == _FIRST_KEY:
            return ""
        return self._key if self._key_quoted else None

    @property
    def closable(self) -> bool:
        """Whether nothing but closing brackets is missing."""
        return self._token is None and self._state == _COMMA and not self.bad

    def closers(self) -> str:
        """The brackets that would close what is open."""
        return "".join("}" if is_object else "]" for is_object in reversed(self._stack))

    # --- going on ---

    def advance(self, text: str, pos: int) -> int:
        """Reads on from ``text[pos]``; returns where it stopped. See the class for what then."""
        begin = pos
        self._text = text
        self._base = self._length - pos
        if self._arguments_from >= 0:
            self._arguments_from = pos
        if not self._stack:
            self._stack.append(True)
            pos += 1
        while self.status == MORE:
            if self._token is None:
                pos = self._structure(pos)
                if self._token is None:
                    break
            pos = self._token.advance(text, pos, self._base, self.fixes)
            if self._token.status == MORE:
                break
            pos = self._end_token(self._token, pos)
        self._length += pos - begin
        if self.status == MORE and self._arguments_from >= 0:
            self.raw_arguments.append(text[self._arguments_from : pos])
        self._text = ""
        return pos

    def _fail(self, pos: int, reason: str) -> int:
        self.status = FAULT
        self.reason = f"{reason} at character {pos + self._base + 1}"
        return pos

    def _structure(self, pos: int) -> int:
        """Everything but the insides of tokens: to the end of the piece, or to a token."""
        text, size = self._text, len(self._text)
        while self.status == MORE and self._token is None:
            if white := _WHITE.match(text, pos):
                pos = white.end()
            if pos >= size:
                break
            char, state = text[pos], self._state
            if char in "/#":
                if char == "/" and pos == size - 1:
                    break
                pos = self._open_comment(pos)
            elif state <= _NEXT_KEY:
                pos = self._at_key(pos, char)
            elif state <= _NEXT_ITEM:
                pos = self._at_value(pos, char)
            elif state == _COMMA:
                pos = self._at_comma(pos, char)
            elif char == ":":
                self._take_key()
                pos += 1
            else:
                pos = self._no_colon(pos, char)
        return pos

    # --- keys and values ---

    def _at_key(self, pos: int, char: str) -> int:
        if char == '"':
            quick = _QUICK_KEY.match(self._text, pos)
            if quick is not None:
                self._key, self._key_quoted = quick[1], True
                self._take_key()
                return quick.end()
        elif char == "}":
            if self._state == _NEXT_KEY:
                self._drop_comma()
            return self._close(pos)
        elif char in KEY_START:
            self._token = WordToken(pos + self._base, is_key=True)
            return pos
        if char in "\"'":
            pieces: list[str] | None = [] if len(self._stack) == 1 else None
            return self._open_string(pos, char, pieces, is_key=True)
        return self._fail(pos, "a key is due")

    def _take_key(self) -> None:
        """The key in ``_key`` and its colon are there."""
        self._state = _VALUE
        if len(self._stack) > 1:
            return
        self._field = self._key
        if self.first_key is None:
            self.first_key = self._key
            self.message_like = self._key_quoted and self._key in HEADS
            self._lenient = self._key in _ENVELOPE

    def _no_colon(self, pos: int, char: str) -> int:
        # {"name", "age"} is a set; {"type" "tool_call"} is a message without its colon.
        if not self.begun and self._key_quoted and self._key in HEADS and char in "\"'=":
            self.first_key = self._key
            self.message_like = True
        return self._fail(pos, "':' is due")

    def _at_value(self, pos: int, char: str) -> int:
        if char == '"' and (quick := _QUICK_STRING.match(self._text, pos)):
            if (pieces := self._wanted()) is not None:
                pieces.append(decoded(self._text[pos + 1 : quick.end() - 1]))
                self._take_string(pieces)
            return self._end_value(quick.end(), "string")
        if char in "\"'":
            return self._open_string(pos, char, self._wanted(), is_key=False)
        if char in "{[":
            return self._open(pos, char == "{")
        if char == "]" and self._state != _VALUE:
            if self._state == _NEXT_ITEM:
                self._drop_comma()
            return self._close(pos)
        if char in WORD_START:
            start = pos + self._base
            self._token = WordToken(start, is_key=False, after_number=self._after_number)
            return pos
        return self._fail(pos, "a value is due")

    def _open(self, pos: int, is_object: bool) -> int:
        if len(self._stack) == 1 and not self._quiet and is_object and self._field == "arguments":
            self._arguments_from = pos
        self._stack.append(is_object)
        self._state = _FIRST_KEY if is_object else _FIRST_ITEM
        if len(self._stack) > MAX_DEPTH:
            self.bad = self.bad or f"it nests deeper than {MAX_DEPTH} levels"
            if self.message_like:
                return self._fail(pos, self.bad)
        return pos + 1

    def _close(self, pos: int) -> int:
        self._stack.pop()
        if not self._stack:
            self.status = CLOSED
            return pos + 1
        if len(self._stack) == 1 and self._arguments_from >= 0:
            self.raw_arguments.append(self._text[self._arguments_from : pos + 1])
            self._arguments_from = -1
        return self._end_value(pos + 1, "closed")

    def _end_value(self, end: int, kind: str) -> int:
        self._state = _COMMA
        self._last = kind
        self._value_end = end + self._base
        self._after_number = False
        return end

    # --- commas ---

    def _at_comma(self, pos: int, char: str) -> int:
        is_object = self._stack[-1]
        if char == ",":
            self._comma = pos + self._base
            self._state = _NEXT_KEY if is_object else _NEXT_ITEM
            return pos + 1
        if char == ("}" if is_object else "]"):
            return self._close(pos)
        apart = pos + self._base > self._value_end
        if not self._comma_is_missing(char, is_object, apart):
            return self._fail(pos, "',' or a closing bracket is due")
        self.fixes.append(Fix(pos + self._base, pos + self._base, ",", "missing_comma"))
        # FIRST, not NEXT: what follows must be a key or an item, as there is no comma to drop.
        self._state = _FIRST_KEY if is_object else _FIRST_ITEM
        self._after_number = self._last == "number"
        return pos

    def _comma_is_missing(self, char: str, is_object: bool, apart: bool) -> bool:
        """Whether a comma was left out before ``char``, and nothing else can be meant."""
        after_string = self._last in ("string", "single string")
        if is_object:
            # "a""b" may be one string with quotes in it. A key needs its colon: "a" "b": is two.
            return char in "\"'" and (apart or not after_string)
        if char == '"':
            return apart and self._last != "single string"  # Python joins 'a' "b"
        if char == "'":
            return apart and not after_string
        if char in "{[":
            return apart or (char == "{" and self._last == "closed")
        return apart and char in WORD_START

    def _drop_comma(self) -> None:
        self.fixes.append(Fix(self._comma, self._comma + 1, "", "trailing_comma"))

    # --- tokens ---

    def _wanted(self) -> list[str] | None:
        """Where the decoded text of the value that begins here goes, if it is wanted."""
        if len(self._stack) > 1:
            return None
        if self._field == "content" and not self._quiet:
            return self.answer
        if (self._field == "type" and self.type is None) or (
            self._field == "name" and self.name is None
        ):
            return []
        return None

    def _take_string(self, pieces: list[str]) -> None:
        if self._field == "type":
            self.type = "".join(pieces)
            if self.type in PROTOCOL_TYPES:
                self.message_like = self._lenient = True
        elif self._field == "name":
            self.name = "".join(pieces)

    def _open_string(self, pos: int, quote: str, pieces: list[str] | None, *, is_key: bool) -> int:
        newlines = self._lenient and not is_key
        self._token = StringToken(quote, pieces, newlines=newlines, controls=not is_key)
        if quote == "'":
            self.fixes.append(Fix(pos + self._base, pos + self._base + 1, '"', "single_quotes"))
        return pos + 1

    def _open_comment(self, pos: int) -> int:
        is_block = self._text.startswith("/*", pos)
        if self._text[pos] == "/" and not is_block and self._text[pos + 1] != "/":
            return self._fail(pos, "'/' fits nothing")
        self._commented = True
        self._token = CommentToken(pos + self._base, is_block=is_block, lines=self.begun)
        return pos + (1 if self._text[pos] == "#" else 2)

    def _end_token(self, token: Token, pos: int) -> int:
        if token.status == FAULT:
            self.back = token.back if isinstance(token, WordToken) else ""
            self._fail(pos - len(self.back), token.reason)
            return pos
        self._token = None
        if isinstance(token, CommentToken):
            return pos
        is_key = self._state <= _NEXT_KEY
        if is_key:
            self._state = _COLON
        if isinstance(token, WordToken):
            if is_key:
                self._key, self._key_quoted = token.word, False
                return pos
            return self._end_value(pos, token.kind)
        self.bad = self.bad or token.bad
        if is_key:
            self._key, self._key_quoted = "".join(token.pieces or ()), True
            return pos
        if token.pieces is not None:
            self._take_string(token.pieces)
        return self._end_value(pos, "single string" if token.quote == "'" else "string")


class Parts(Protocol):
    """What an `ObjectWalker` tells of each part of an object once it is whole.

    Offsets are those of the object's text. Where one returns False, the walk stops at a fault.
    """

    def opened(self, begin: int, is_object: bool) -> bool:
        """A brace or bracket was opened."""

    def keyed(self, begin: int, key: str) -> bool:
        """A key and its colon are there."""

    def valued(self, begin: int, end: int, value: str, is_string: bool) -> bool:
        """A string, number or literal; ``value`` is decoded, a literal JSON's own."""

    def closed(self, begin: int) -> bool:
        """A brace or bracket was closed."""


class OpenToken(NamedTuple):
    """A string or a word that has not ended, and where it begins."""

    begin: int
    is_key: bool
    is_string: bool
    pieces: Sequence[str]

    @property
    def text(self) -> str:
        """What there is of it, decoded."""
        return "".join(self.pieces)


class ObjectWalker(ObjectScanner):
    """Goes over an object as `ObjectScanner` does, and tells ``parts`` of it.

    ``settled_end`` is where the last bracket or value ends: white space, a comma, a key or an open
    token may follow. ``begin`` is where the last key or value began.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(quiet=True)
        self.settled_end = 0
        self._parts = parts
        self.begin = 0
        self._decoded = ""
        self._word = ""

    @property
    def field(self) -> str | None:
        """The outermost key whose value is due, open or just ended."""
        return self._field

    @property
    def comma_open(self) -> bool:
        """Whether a comma was the last part."""
        return self._token is None and self._state in (_NEXT_KEY, _NEXT_ITEM)

    @property
    def value_ended(self) -> bool:
        """Whether a value was the last part, and a comma or a closing bracket is due."""
        return self._token is None and self._state == _COMMA

    def open_token(self) -> OpenToken | None:
        """The token that is open."""
        token = self._token
        is_key = self._state <= _NEXT_KEY
        if isinstance(token, StringToken):
            return OpenToken(self.begin, is_key, True, token.pieces or ())
        if isinstance(token, WordToken):
            return OpenToken(self.begin, is_key, False, token.seen)
        return None

    def _tell(self, fits: bool) -> None:
        if not fits:
            self.status = FAULT

    # --- what the scanner does, told on the way ---

    def advance(self, text: str, pos: int) -> int:
        if not self._stack:
            self._tell(self._parts.opened(0, True))
            self.settled_end = 1
        return super().advance(text, pos)

    def _at_key(self, pos: int, char: str) -> int:
        if char != "}":
            self.begin = pos + self._base
        return super()._at_key(pos, char)

    def _open_string(self, pos: int, quote: str, pieces: list[str] | None, *, is_key: bool) -> int:
        return super()._open_string(pos, quote, [] if pieces is None else pieces, is_key=is_key)

    def _take_key(self) -> None:
        super()._take_key()
        self._tell(self._parts.keyed(self.begin, self._key))

    def _at_value(self, pos: int, char: str) -> int:
        if char != "]":
            self.begin = pos + self._base
        return super()._at_value(pos, char)

    def _wanted(self) -> list[str]:
        return []

    def _take_string(self, pieces: list[str]) -> None:
        self._decoded = "".join(pieces)
        if len(self._stack) == 1:
            super()._take_string(pieces)

    def _end_token(self, token: Token, pos: int) -> int:
        if isinstance(token, WordToken):
            self._word = PYTHON_LITERALS.get(token.word, token.word)
        return super()._end_token(token, pos)

    def _end_value(self, end: int, kind: str) -> int:
        stop = super()._end_value(end, kind)
        if kind != "closed":
            is_string = kind.endswith("string")
            value = self._decoded if is_string else self._word
            self._tell(self._parts.valued(self.begin, end + self._base, value, is_string))
        if self.status != FAULT:
            self.settled_end = end + self._base
        return stop

    def _open(self, pos: int, is_object: bool) -> int:
        self._tell(self._parts.opened(pos + self._base, is_object))
        if self.status != FAULT:
            self.settled_end = pos + 1 + self._base
        return super()._open(pos, is_object)

    def _close(self, pos: int) -> int:
        self._tell(self._parts.closed(pos + self._base))
        return pos if self.status == FAULT else super()._close(pos)
