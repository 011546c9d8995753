r"""Regular expressions of ``pattern``, matched in time linear in the text.

The author of the tool wrote the pattern, and the model wrote the text. Either can make a
backtracking engine run for ever. So Python's own parser reads the pattern, and Rust's linear
engine, which pydantic contains, matches it. A pattern that is not regular, or not JSON Schema's, is
refused.

JSON Schema's dialect is ECMA-262. Where it differs from Python's, ECMA-262 wins: ``$`` is the very
end, and ``\d`` and ``\w`` are ASCII.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

_MAX_NODES: Final = 4000
"""Nodes of the largest automaton. A choice: patterns of tools are far smaller."""
_MAX_STEPS: Final = 10_000_000  # characters times nodes: under half a second
_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z_])")
_NOTHING: Final = r"[^\x{0}-\x{10ffff}]"
"""A class that matches no character."""

_RUST_FORMS: Final[Mapping[str, str]] = {
    "CATEGORY_DIGIT": "[0-9]",
    "CATEGORY_NOT_DIGIT": "[^0-9]",
    "CATEGORY_WORD": "[0-9A-Za-z_]",
    "CATEGORY_NOT_WORD": "[^0-9A-Za-z_]",
    "CATEGORY_SPACE": r"[\s\x{1c}-\x{1f}\x{feff}]",
    "CATEGORY_NOT_SPACE": r"[^\s\x{1c}-\x{1f}\x{feff}]",
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": "^",
    "AT_END": "$",
    "AT_END_STRING": "$",
    "AT_BOUNDARY": r"(?-u:\b)",
    "AT_NON_BOUNDARY": r"\B",  # beside letters that are not ASCII it differs
}
"""Python's categories and positions as Rust writes them with ECMA-262's meaning."""


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

        text, self._nodes = _sequence(_parse(pattern))
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


def _parse(pattern: str) -> Any:
    """Return the pattern as Python's own parser reads it."""
    try:
        parser = import_module("re._parser")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parser.parse(_NAMED_GROUP.sub("(?P<", pattern), re.ASCII)
    except (ImportError, AttributeError, RecursionError, OverflowError, re.error) as error:
        raise UnsupportedPattern(f"it is no regular expression: {error}") from None
    if tree.state.flags & ~(re.ASCII | re.UNICODE):
        raise UnsupportedPattern("flags are no part of JSON Schema")
    return tree


def _sequence(items: Iterable[Any]) -> tuple[str, int]:
    """Return the text for Rust, and the number of nodes of its automaton."""
    parts = [_item(str(operation), argument) for operation, argument in items]
    nodes = sum(size for _, size in parts)
    if nodes > _MAX_NODES:
        raise UnsupportedPattern("it is too large")
    return "".join(text for text, _ in parts), nodes


def _item(operation: str, argument: Any) -> tuple[str, int]:
    match operation:
        case "ANY":
            return r"[^\n\r\x{2028}\x{2029}]", 1
        case "LITERAL" | "NOT_LITERAL":
            return f"[{'^' * (operation != 'LITERAL')}{_range(argument, argument)}]", 1
        case "IN":
            return f"[{''.join(map(_member, argument))}]", 1
        case "AT" if str(argument) in _RUST_FORMS:
            return _RUST_FORMS[str(argument)], 1
        case "BRANCH":
            ways = [_sequence(way) for way in argument[1]]
            return f"(?:{'|'.join(text for text, _ in ways)})", sum(size for _, size in ways)
        case "SUBPATTERN" if not argument[1] and not argument[2]:
            text, nodes = _sequence(argument[3])
            return f"(?:{text})", nodes
        case "MAX_REPEAT" | "MIN_REPEAT":
            minimum, maximum, item = argument
            text, nodes = _sequence(item)
            if not text:
                return "", 1
            endless = str(maximum) == "MAXREPEAT"
            count = f"{minimum}," if endless else f"{minimum},{int(maximum)}"
            return f"(?:{text}){{{count}}}", nodes * (minimum + 1 if endless else int(maximum))
    raise UnsupportedPattern(f"{operation.lower()} cannot be matched in linear time")


def _member(member: tuple[Any, Any]) -> str:
    """Return one part of a set of characters for Rust."""
    match str(member[0]), member[1]:
        case "NEGATE", _:
            return "^"
        case "LITERAL", code:
            return _range(code, code)
        case "RANGE", (first, last):
            return _range(first, last)
        case "CATEGORY", category if str(category) in _RUST_FORMS:
            return _RUST_FORMS[str(category)]
    raise UnsupportedPattern("a set of characters is not known")


def _range(first: int, last: int) -> str:
    """Return characters as Rust writes them, without surrogates."""
    first = 0xE000 if 0xD800 <= first <= 0xDFFF else first
    last = 0xD7FF if 0xD800 <= last <= 0xDFFF else last
    return rf"\x{{{first:x}}}-\x{{{last:x}}}" if first <= last else _NOTHING


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
