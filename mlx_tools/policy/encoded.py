"""What an encoded text says underneath: base64, hexadecimal, URL and JSON escapes.

Each layer has the decoded text and tells which stretch of the encoded text a stretch of it came
from, so that what is found underneath can be redacted above.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

SHORTEST_BASE64: Final = 20
"""Characters: fewer hold less than 15 bytes, which no secret of a known shape fits in."""
_SHORTEST_TEXT: Final = 12

_URL = re.compile(r"%([0-9A-Fa-f]{2})")
_JSON = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([\"'\\/bfnrt]))")
_JSON_SIGNS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}(?:\r?\n[A-Za-z0-9+/_-]+)*")
_HEX = re.compile(r"[0-9A-Fa-f]{40,}")
_URL_SAFE: Final = str.maketrans("-_", "+/", "\r\n")
_TEXT = re.compile(rb"[\t\n\r -~]{%d,}" % _SHORTEST_TEXT)
_WIDE = re.compile(rb"(?:[\t\n\r -~]\0){%d,}" % _SHORTEST_TEXT)


@dataclass(frozen=True, slots=True)
class DecodedText:
    """``text``, and where its characters stand above: `span` maps a stretch of it. It
    ``goes_on`` where it is all of the unit, so that what stands before the unit stands before it.
    """

    text: str
    span: Callable[[int, int], tuple[int, int]]
    goes_on: bool = False


def layers(unit: str) -> Iterator[DecodedText]:
    """Every way in which the unit, a stretch without blanks and quotes, can be decoded."""
    if "%" in unit:
        yield from _unescaped(unit, _URL, lambda found: chr(int(found[1], 16)))
    if "\\" in unit:
        yield from _unescaped(unit, _JSON, _json_sign)
    if len(unit) >= SHORTEST_BASE64:
        for run in _BASE64.finditer(unit):
            if run.end() - run.start() >= SHORTEST_BASE64:
                yield from _base64(run[0], run.start())
        for run in _HEX.finditer(unit):
            yield from _hexadecimal(run[0], run.start())


def _json_sign(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _JSON_SIGNS.get(found[3], found[3])


def _unescaped(
    unit: str, escape: re.Pattern[str], sign: Callable[[re.Match[str]], str]
) -> Iterator[DecodedText]:
    parts: list[str] = []
    starts: list[int] = []
    at = 0
    for found in escape.finditer(unit):
        parts += (unit[at : found.start()], sign(found))
        starts += range(at, found.start() + 1)
        at = found.end()
    if parts:
        starts += range(at, len(unit) + 1)
        text = "".join((*parts, unit[at:]))
        yield DecodedText(text, lambda start, end: (starts[start], starts[end]), goes_on=True)


def _base64(run: str, begin: int) -> Iterator[DecodedText]:
    compact = run.translate(_URL_SAFE)
    places: Sequence[int] = range(len(run))
    if len(compact) != len(run):
        places = [index for index, sign in enumerate(run) if sign not in "\r\n"]
    # What stands right before the encoded text may be of the same alphabet, so that any of four
    # places can be the beginning of a group.
    for shift in range(4):
        text = compact[shift:]
        text = text[:-1] if len(text) % 4 == 1 else text
        data = binascii.a2b_base64(text + "=" * (-len(text) % 4))

        def above(start: int, end: int, shift: int = shift) -> tuple[int, int]:
            first = start * 4 // 3 + shift
            last = min(-(-end * 4 // 3) + shift, len(places))
            return begin + places[first], begin + places[last - 1] + 1

        yield from _texts(data, above)


def _hexadecimal(run: str, begin: int) -> Iterator[DecodedText]:
    for shift in range(2):
        text = run[shift : len(run) - (len(run) - shift) % 2]

        def above(start: int, end: int, shift: int = shift) -> tuple[int, int]:
            return begin + shift + 2 * start, begin + shift + 2 * end

        yield from _texts(bytes.fromhex(text), above)


def _texts(data: bytes, above: Callable[[int, int], tuple[int, int]]) -> Iterator[DecodedText]:
    """The stretches of the bytes that are text, in one byte or in two for each character."""
    for found in _TEXT.finditer(data):
        yield _layer(found[0].decode("ascii"), found.start(), 1, above)
    if b"\0" in data:
        for found in _WIDE.finditer(data):
            yield _layer(found[0][::2].decode("ascii"), found.start(), 2, above)


def _layer(
    text: str, begin: int, width: int, above: Callable[[int, int], tuple[int, int]]
) -> DecodedText:
    return DecodedText(text, lambda start, end: above(begin + width * start, begin + width * end))
