"""Strict JSON (reading rule 6): what is read without any repair.

Standard JSON as RFC 8259 writes it, and narrower where a looser reader would have to choose: no
duplicate keys, no ``NaN`` or ``Infinity``, no number that overflows, no lone surrogate (it cannot
be written as UTF-8 again), no more than `MAX_DEPTH` levels and `MAX_DIGITS` digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from json import encoder
from json.decoder import JSONDecodeError, JSONDecoder
from json.encoder import encode_basestring
from typing import Any, Final

MAX_DEPTH: Final = 64
MAX_DIGITS: Final = 4300
"""Digits of an integer: the most that Python reads and writes by default."""

_SHORT: Final = 500  # characters
_WHITE: Final = " \t\r\n"
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


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise Unreadable("a number is too large")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Unreadable(f"a number has more than {MAX_DIGITS} digits")
    try:
        return int(digits)
    except ValueError:  # the process has a lower limit
        raise Unreadable("a number has too many digits") from None


def _constant(word: str) -> Any:
    raise Unreadable(f"{word} is no JSON")


HOOKS: Final[Mapping[str, Any]] = {
    "object_pairs_hook": _object,
    "parse_float": _float,
    "parse_int": _integer,
    "parse_constant": _constant,
}
"""What holds the standard library's reader to it: whatever is not sound raises `Unreadable`."""

_DECODER: Final[Any] = JSONDecoder(**HOOKS)
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _DECODER.scan_once


def loads(text: str) -> Any:
    """The value that ``text`` holds, white space around it aside. Raises `Unreadable`."""
    body = text.strip(_WHITE)
    value, end = decode(body)
    if end != len(body):
        raise Unreadable("more text follows the value")
    return value


def decode(text: str) -> tuple[Any, int]:
    """The value that ``text`` begins with, and where it ends. Raises `Unreadable`.

    Brackets are counted before anything recurses, so depth costs no stack.
    """
    size = len(text)
    if size > 2 * MAX_DEPTH and _has_many_brackets(text) and _is_deep(text):
        raise Unreadable(f"brackets do not match, or nest deeper than {MAX_DEPTH}")
    try:
        value, end = _scan(text, 0)
    except JSONDecodeError as error:
        raise Unreadable(f"{error.msg} at character {error.pos + 1}") from None
    except StopIteration as stop:
        raise Unreadable(f"a value is missing at character {stop.value + 1}") from None
    if size < _SHORT and text.isascii() and "\\u" not in text:
        return value, end
    if not text.isascii() or _may_hold_surrogates(text, value):
        _refuse_surrogates(text, value)
    return value, end


def _has_many_brackets(text: str) -> bool:
    if len(text) < _SHORT:
        return text.count("{") + text.count("[") > MAX_DEPTH
    left = MAX_DEPTH  # in a long text find() is many times as fast as count()
    for bracket in "{[":
        pos = text.find(bracket)
        while pos >= 0:
            left -= 1
            if left < 0:
                return True
            pos = text.find(bracket, pos + 1)
    return False


def _may_hold_surrogates(text: str, value: Any) -> bool:
    """Whether a string of ``value`` may hold one, where ``text`` is ASCII: only by an escape."""
    if len(text) >= _SHORT and not _may_hold_more_than_ascii(value):
        return False
    return "\\u" in text and ("\\ud" in text or "\\uD" in text)


def _may_hold_more_than_ascii(value: Any) -> bool:
    """Whether one of a few strings does, or there are many: searching a text costs as much as
    reading it."""
    seen = [value]
    for item in seen:  # which grows as it is gone through
        kind = type(item)
        if kind is str:
            if not item.isascii():
                return True
        elif kind is dict:
            seen += item
            seen += item.values()
        elif kind is list:
            seen += item
        if len(seen) > MAX_DEPTH:
            return True
    return False


def _is_deep(text: str) -> bool:
    """Whether the brackets outside strings nest deeper than `MAX_DEPTH`, or are left open."""
    without_escapes = text.replace("\\\\", "").replace('\\"', "")
    outside = "".join(without_escapes.split('"')[::2])
    brackets = _NOT_BRACKETS.sub("", outside).replace("[", "{").replace("]", "}")
    for _ in range(MAX_DEPTH):  # each time one level less
        shorter = brackets.replace("{}", "")
        if len(shorter) == len(brackets):
            break
        brackets = shorter
    return bool(brackets)


def encodable(text: str) -> bool:
    """Whether ``text`` holds no lone surrogate, so that it can be written as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_surrogates(text: str, value: Any) -> None:
    if encodable(text) and "\\ud" not in text and "\\uD" not in text:
        return
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, str) and not encodable(item):
            raise Unreadable("a string holds half of a surrogate pair")


# --- one text for a call however it was written: RFC 8785 of its name and arguments -------------

Write = Callable[[Any], str]


def writer(*, sort_keys: bool = False, allow_nan: bool = True) -> Write:
    """A function that writes JSON's own types.

    A `json.JSONEncoder` makes its inner writer anew for every text, which takes longer than to
    write a short one; here it is made once. Raises what ``json.dumps`` raises, but RecursionError
    for a value that holds itself.
    """
    plain = json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys, allow_nan=allow_nan
    )
    make: Any = getattr(encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the extension module
        return plain.encode
    options = (None, ":", ",", sort_keys, False, allow_nan)
    write = make(None, plain.default, encoder.encode_basestring, *options)
    return lambda value: "".join(write(value, 0))


compact: Final = writer()


_SEPARATORS: Final = re.compile(r"[-_.]")
_sorted: Final = writer(sort_keys=True)


def canonical(name: str, arguments: Mapping[str, Any]) -> str:
    """The canonical form of a call: the same for the same call, whatever its spelling.

    RFC 8785 has no form for an integer beyond 2**53 and for half a surrogate pair; a call that
    holds one gets a form of its own, with sorted keys and every number as Python writes it.
    """
    if type(name) is str and _is_canonical(arguments):
        text = f'{{"arguments":{_sorted(arguments)},"name":{encode_basestring(name)}}}'
        if encodable(text):
            return text
    import rfc8785

    try:
        return rfc8785.dumps({"name": name, "arguments": _plain(arguments)}).decode()
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        call = {"name": name, "arguments": _plain(arguments, whole=True)}
        return json.dumps(call, sort_keys=True, separators=(",", ":"))


def _is_canonical(value: Any) -> bool:
    """Whether Python's JSON of ``value``, with sorted keys, is that of RFC 8785 for certain.

    Strings are written alike. Keys are sorted alike where they are ASCII: RFC 8785 sorts by UTF-16.
    Of numbers, those of moderate size that are an int, or have a fraction, are written alike.
    """
    kind: type[Any] = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-(2**53) < value < 2**53)
    if kind is float:
        return bool(1e-4 <= abs(value) < 1e15) and not value.is_integer()
    if kind is dict:
        return all(type(key) is str and key.isascii() for key in value) and all(
            map(_is_canonical, value.values())
        )
    return kind is list and all(map(_is_canonical, value))


def _plain(value: Any, *, whole: bool = False) -> Any:
    """``value`` in JSON's own types; ``whole``: a number without a fraction is an integer."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, whole=whole) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, whole=whole) for item in value]
    if whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def loose_name(name: str) -> str:
    """A name without case, ``-``, ``_`` and ``.``: what a close match may differ in (rule 10)."""
    return _SEPARATORS.sub("", name).lower()
