"""Strict JSON (reading rule 6): text that is read without any repair.

It is standard JSON as in RFC 8259, but narrower where a looser reader would have to choose: no
duplicate keys, no ``NaN`` or ``Infinity``, no number that overflows, no lone surrogate (it cannot
be written as UTF-8 again), no more than `MAX_DEPTH` levels and `MAX_DIGITS` digits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from json.decoder import JSONDecodeError, JSONDecoder
from typing import Any, Final

MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 4300
"""Characters of a number: the most that Python reads and writes of an integer by default."""

_TOO_DEEP: Final = f"brackets nest deeper than {MAX_DEPTH}"
_WHITE: Final = " \t\r\n"
_ARGUMENTS_KEY: Final = '"arguments"'
_ARGUMENTS: Final = re.compile(rf"{_ARGUMENTS_KEY}[ \t\r\n]*+:[ \t\r\n]*+")
_NOT_BRACKETS: Final = re.compile(r"[^{}\[\]]++")


class Unreadable(ValueError):
    """The text is not JSON as it is read here; the message says why, in a few words."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Unreadable(f"the key {key[:40]!a} stands twice in one object")
            seen.add(key)
    return value


def _number(digits: str) -> int | float:
    if len(digits) > MAX_DIGITS:
        raise Unreadable(f"a number has more than {MAX_DIGITS} digits")
    if not digits.lstrip("-").isdigit():
        if math.isinf(value := float(digits)):
            raise Unreadable("a number is too large")
        return value
    try:
        return int(digits)
    except ValueError:  # the process has a lower limit
        raise Unreadable("a number has too many digits") from None


def _constant(word: str) -> Any:
    raise Unreadable(f"{word} is no JSON")


HOOKS: Final[Mapping[str, Any]] = {
    "object_pairs_hook": _object,
    "parse_float": _number,
    "parse_int": _number,
    "parse_constant": _constant,
}
"""Options that make the standard library's reader strict: invalid text raises `Unreadable`."""

_DECODER: Final[Any] = JSONDecoder(**HOOKS)
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _DECODER.scan_once
_skip: Final[Callable[[str, int], tuple[Any, int]]] = JSONDecoder().scan_once  # type: ignore[attr-defined]


def loads(text: str) -> Any:
    """Return the value in ``text``, apart from white space. Raises `Unreadable`."""
    body = text.strip(_WHITE)
    value, end = decode(body)
    if end != len(body):
        raise Unreadable("more text follows the value")
    return value


def decode(text: str, begin: int = 0) -> tuple[Any, int]:
    """Return the value at ``begin``, and its end. Raises `Unreadable`."""
    try:
        value, end = _scan(text, begin)
    except JSONDecodeError as error:
        raise Unreadable(f"{error.msg} at character {error.pos + 1}") from None
    except StopIteration as stop:
        raise Unreadable(f"a value is missing at character {stop.value + 1}") from None
    except RecursionError:
        raise Unreadable(_TOO_DEEP) from None
    body = text[begin:end]
    # In a long text, splitting is many times as fast as counting.
    opened = len(body.split("{", MAX_DEPTH + 1)) + len(body.split("[", MAX_DEPTH + 1)) - 2
    if opened > MAX_DEPTH and _is_deep(body):
        raise Unreadable(_TOO_DEEP)
    if "\\ud" in body or "\\uD" in body or not (body.isascii() or encodable(body)):
        _refuse_surrogates(value)
    return value, end


def arguments_span(text: str) -> tuple[int, int] | None:
    """Return where the arguments are in a valid object.

    None if that cannot be told at once.
    """
    key = _ARGUMENTS.search(text)
    if key is None or text.count(_ARGUMENTS_KEY) > 1 or "\\u" in text:
        return None
    return key.end(), _skip(text, key.end())[1]


def _is_deep(text: str) -> bool:
    """Return whether the brackets outside strings nest deeper than `MAX_DEPTH`."""
    outside = "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])
    brackets = _NOT_BRACKETS.sub("", outside).replace("[", "{").replace("]", "}")
    for _ in range(MAX_DEPTH):  # each time one level less
        brackets = brackets.replace("{}", "")
    return bool(brackets)


def _refuse_surrogates(value: Any) -> None:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str) and not encodable(item):
            raise Unreadable("a string holds half of a surrogate pair")
        if isinstance(item, (dict, list)):
            todo += (*item, *item.values()) if isinstance(item, dict) else item


def encodable(text: str) -> bool:
    """Return whether ``text`` can be written as UTF-8: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def writable(text: str) -> str:
    """Return ``text`` with U+FFFD for lone surrogates, which UTF-8 cannot encode."""
    return text if encodable(text) else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""The text of a value, without white space."""


def iter_values(value: Any) -> Iterator[Any]:
    """Yield a value and all values in it."""
    todo = [value]
    while todo:
        item = todo.pop()
        yield item
        if isinstance(item, Mapping | list):
            todo += item.values() if isinstance(item, Mapping) else item


def canonical_json(value: Any) -> str:
    """Return the canonical text of a value, as in RFC 8785.

    RFC 8785 has no form for an integer beyond 2**53 and for half a surrogate pair. A value with one
    gets a form of its own, with sorted keys and every number as Python writes it.
    """
    import rfc8785

    try:
        return rfc8785.dumps(_plain(value)).decode()
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        return json.dumps(_plain(value, whole=True), sort_keys=True, separators=(",", ":"))


def _plain(value: Any, *, whole: bool = False) -> Any:
    """Return ``value`` in JSON's own types.

    ``whole``: a number without a fraction is an integer.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(item, whole=whole) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, whole=whole) for item in value]
    if whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
