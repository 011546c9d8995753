r"""Regular expressions of ``pattern``, matched in time linear in the text.

The author of the tool wrote the pattern, and the model wrote the text. Either can make a
backtracking engine run for ever. So `_Translator` reads the pattern and writes it for Rust's linear
engine, which pydantic contains. A pattern that is not regular, or not JSON Schema's, is refused.

JSON Schema's dialect is ECMA-262. Where it differs from Python's, ECMA-262 wins: ``$`` is the very
end, and ``\d`` and ``\w`` are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

_MAX_NODES: Final = 4000
"""Nodes of the largest automaton. A choice: patterns of tools are far smaller."""
_MAX_STEPS: Final = 10_000_000  # characters times nodes: under half a second
_MAX_DEPTH: Final = 200
"""Groups within groups. A choice: far more than people write, and no deep recursion."""
_MAX_COUNT: Final = 100_000
"""The largest count of a repetition; one that is too large for the automaton is refused anyway."""
_EMPTY_CLASS: Final = r"[^\x{0}-\x{10ffff}]"
"""A class that matches no character."""

_DIGIT: Final = "0-9"
_WORD: Final = "0-9A-Za-z_"
_SPACE: Final = r"\s\x{1c}-\x{1f}\x{feff}"
_CLASSES: Final[Mapping[str, str]] = {
    "d": f"[{_DIGIT}]",
    "D": f"[^{_DIGIT}]",
    "w": f"[{_WORD}]",
    "W": f"[^{_WORD}]",
    "s": f"[{_SPACE}]",
    "S": f"[^{_SPACE}]",
}
"""Escapes of sets of characters as Rust writes them with ECMA-262's meaning."""

_POSITIONS: Final[Mapping[str, str]] = {
    "A": "^",
    "Z": "$",
    "b": r"(?-u:\b)",
    "B": r"\B",  # beside letters that are not ASCII it differs
}
"""Escapes of positions as Rust writes them."""

_CONTROLS: Final[Mapping[str, int]] = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
"""Escapes of control characters, by their letters."""

_HEX: Final = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})", re.ASCII)
_OCTAL: Final = re.compile(r"0[0-7]{0,2}|[0-3][0-7]{2}", re.ASCII)
_OCTAL_IN_SET: Final = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])", re.ASCII)
"""In a set no escape is a backreference: any digits that can be are octal."""
_COUNT: Final = re.compile(r"\{(\d*)(?:(,)(\d*))?\}", re.ASCII)
_GROUP: Final = re.compile(r"\?(?::|P?<([A-Za-z_]\w*)>)")


class UnsupportedPattern(ValueError):
    """The pattern is no regular expression, or cannot be matched in linear time."""


class TextTooLong(ValueError):
    """The text is too long for this pattern."""


class Pattern:
    """A compiled pattern.

    Raises:
        UnsupportedPattern: it cannot be compiled.
    """

    def __init__(self, pattern: str) -> None:
        from pydantic_core import SchemaError, SchemaValidator

        text, self._nodes = _Translator(pattern).translate()
        form: Any = {"type": "str", "pattern": text, "regex_engine": "rust-regex"}
        try:
            self._matches = SchemaValidator(form).isinstance_python
        except SchemaError:
            raise UnsupportedPattern("it cannot be matched in linear time") from None

    def search(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in ``text``.

        Raises:
            TextTooLong: matching would take too long.
        """
        if len(text) * self._nodes > _MAX_STEPS:
            raise TextTooLong
        return self._matches(text)


class _Translator:
    """Reads a pattern and writes it for Rust's engine.

    It is a recursive descent: alternatives of sequences of repeated items. Each method reads at
    ``_pos`` and returns the text for Rust and the number of nodes of its automaton.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern, self._pos, self._depth = pattern, 0, 0
        self._names: set[str] = set()

    def translate(self) -> tuple[str, int]:
        """Return the whole pattern for Rust, and its nodes.

        Raises:
            UnsupportedPattern: it is no regular expression, too large, or not regular.
        """
        translated = self._alternatives()
        if self._pos < len(self._pattern):
            raise self._fault("a bracket closes nothing")
        return translated

    def _fault(self, reason: str) -> UnsupportedPattern:
        return UnsupportedPattern(f"it is no regular expression: {reason} at {self._pos}")

    def _take(self, text: str) -> bool:
        """Read ``text`` if it comes next."""
        if not self._pattern.startswith(text, self._pos):
            return False
        self._pos += len(text)
        return True

    def _alternatives(self) -> tuple[str, int]:
        ways = [self._sequence()]
        while self._take("|"):
            ways.append(self._sequence())
        text = ways[0][0] if len(ways) == 1 else f"(?:{'|'.join(text for text, _ in ways)})"
        return text, sum(nodes for _, nodes in ways)

    def _sequence(self) -> tuple[str, int]:
        parts: list[str] = []
        total = 0
        while self._pos < len(self._pattern) and self._pattern[self._pos] not in "|)":
            text, nodes = self._repeated(*self._item())
            parts.append(text)
            total += nodes
            if total > _MAX_NODES:
                raise UnsupportedPattern("it is too large")
        return "".join(parts), total

    def _item(self) -> tuple[str, int, bool]:
        """Read one item. The last value says whether it can be repeated."""
        if self._count() is not None:
            raise self._fault("nothing to repeat")
        char = self._pattern[self._pos]
        self._pos += 1
        match char:
            case "^" | "$":
                return char, 1, False
            case ".":
                return r"[^\n\r\x{2028}\x{2029}]", 1, True
            case "(":
                return (*self._group(), True)
            case "[":
                return self._set(), 1, True
            case "\\":
                escape = self._pattern[self._pos : self._pos + 1]
                if escape in _POSITIONS and escape:
                    self._pos += 1
                    return _POSITIONS[escape], 1, False
                return self._escape(), 1, True
        return f"[{_range(ord(char), ord(char))}]", 1, True

    def _group(self) -> tuple[str, int]:
        match = _GROUP.match(self._pattern, self._pos)
        if match is None and self._pattern.startswith("?", self._pos):
            # Lookaround, backreferences, flags and atomic groups: none of it is regular, or
            # JSON Schema's.
            raise UnsupportedPattern("it cannot be matched in linear time")
        if match is not None:
            self._pos = match.end()
            if match[1] in self._names:
                raise self._fault(f"a second group {match[1]}")
            self._names.update(filter(None, (match[1],)))
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnsupportedPattern("it is too large")
        text, nodes = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            raise self._fault("a bracket is not closed")
        return f"(?:{text})", nodes

    def _repeated(self, text: str, nodes: int, can_repeat: bool) -> tuple[str, int]:
        count = self._count()
        if count is None:
            return text, nodes
        if not can_repeat:
            raise self._fault("nothing to repeat")
        if self._take("+"):  # it never gives back what it took: not regular
            raise UnsupportedPattern("it cannot be matched in linear time")
        self._take("?")  # which way is tried first does not change whether there is a match
        if self._count() is not None:
            raise self._fault("a repetition of a repetition")
        low, high = count
        if text in ("", "(?:)"):
            return "", 1
        times = low + 1 if high is None else high
        if nodes * times > _MAX_NODES:
            raise UnsupportedPattern("it is too large")
        return f"(?:{text}){{{low},{'' if high is None else high}}}", nodes * times

    def _count(self) -> tuple[int, int | None] | None:
        """Read a quantifier and return its bounds, None if there is none.

        An upper bound of None stands for no bound.
        """
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        match = _COUNT.match(self._pattern, self._pos)
        if match is None or match[0] == "{}":  # a brace like any other character
            return None
        self._pos = match.end()
        low = int(match[1] or 0)
        high = low if match[2] is None else int(match[3]) if match[3] else None
        if max(low, high or 0) > _MAX_COUNT:
            raise UnsupportedPattern("it is too large")
        if high is not None and high < low:
            raise self._fault("a repetition's bounds are the wrong way round")
        return low, high

    def _escape(self) -> str:
        """Read an escape outside of a set, and return its set of characters."""
        letter = self._pattern[self._pos : self._pos + 1]
        if letter in _CLASSES and letter:
            self._pos += 1
            return _CLASSES[letter]
        code = self._code()
        return f"[{_range(code, code)}]"

    def _code(self, octal: re.Pattern[str] = _OCTAL) -> int:
        """Read the rest of an escape of one character, and return its code."""
        letter = self._pattern[self._pos : self._pos + 1]
        if match := _HEX.match(self._pattern, self._pos):
            self._pos = match.end()
            code = int(next(filter(None, match.groups())), 16)
            if code > 0x10FFFF:
                raise self._fault("no such character")
            return code
        if match := octal.match(self._pattern, self._pos):
            self._pos = match.end()
            return int(match[0], 8)
        if letter.isdigit() and letter.isascii():
            raise UnsupportedPattern("it cannot be matched in linear time")
        if not letter or (letter.isascii() and letter.isalpha() and letter not in _CONTROLS):
            raise self._fault(f"an unknown escape \\{letter}")
        self._pos += 1
        return _CONTROLS.get(letter, ord(letter))

    def _set(self) -> str:
        """Read the rest of a set of characters."""
        negated = self._take("^")
        members: list[str] = []
        while not (members and self._take("]")):  # a bracket that comes first is a member
            first = self._member()
            if not self._take("-"):
                members.append(first if isinstance(first, str) else _range(first, first))
                continue
            if self._take("]"):  # a minus at the end is a member
                members += (first if isinstance(first, str) else _range(first, first), r"\-")
                break
            last = self._member()
            if isinstance(first, str) or isinstance(last, str) or last < first:
                raise self._fault("a range that is none")
            members.append(_range(first, last))
        return f"[{'^' * negated}{''.join(members)}]"

    def _member(self) -> int | str:
        """Read one member of a set: the code of a character, or a set as Rust writes it."""
        if self._pos >= len(self._pattern):
            raise self._fault("a set is not closed")
        char = self._pattern[self._pos]
        self._pos += 1
        if char != "\\":
            return ord(char)
        letter = self._pattern[self._pos : self._pos + 1]
        if letter in _CLASSES and letter:
            self._pos += 1
            return _CLASSES[letter]
        if self._take("b"):
            return 8  # backspace, in a set
        return self._code(_OCTAL_IN_SET)


def _range(first: int, last: int) -> str:
    """Return characters as Rust writes them, without surrogates."""
    first = 0xE000 if 0xD800 <= first <= 0xDFFF else first
    last = 0xD7FF if 0xD800 <= last <= 0xDFFF else last
    return rf"\x{{{first:x}}}-\x{{{last:x}}}" if first <= last else _EMPTY_CLASS


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern.

    Raises:
        UnsupportedPattern: it cannot be compiled.
    """
    try:
        return Pattern(pattern)
    except RecursionError:
        raise UnsupportedPattern("it nests too deeply") from None
