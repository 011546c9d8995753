r"""What a person decides about, in writing: exact, and with nothing in it that a terminal obeys.

A character that a terminal would obey, or that would not be seen, is written as JSON writes it:
``\u202e``. Sixteen or more of one escape or of spaces are written once, with their number:
``\u0020{10000}``. So nothing can be pushed out of sight by characters that show nothing, and the
text still stands for one value only: a brace that follows an escape is itself written ``\u007b``.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

MAX_INDENT: Final = 6
"""Levels that are indented. What is nested deeper stands on one line: depth is no padding."""

MAX_MARKS: Final = 3
"""Marks that may stand on one letter; more of them paint over the lines around it."""

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_BLANK: Final = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x16FE4, 0x1D159),
            *range(0x180B, 0x1810),
            *range(0xFE00, 0xFE10),
            *range(0xE0100, 0xE01F0),
        ),
    )
)
"""Characters of categories that are seen, and that are not: fillers, variation selectors."""

_RUNS: Final = re.compile(r"(\\(?:u[0-9a-f]{4}|.)| )\1*(\{?)", re.DOTALL)
_SPACES: Final = re.compile(r" {40,}")
_RUN: Final = 16
_SPACE: Final = "\\u0020"


def exact(value: Any, *, fold: bool = True) -> str:
    """A JSON value over several lines, as it may be shown to a person who decides about it.

    With ``fold`` long runs are written as the module says. Without it the text is JSON.
    """
    return _written(value, "", 0, fold)


def on_one_line(value: Any) -> str:
    """A JSON value on one line, as `exact` writes it."""
    return _scalar(value, True)


def in_words(text: str) -> str:
    """A text on one line: control characters, what is unseen and long runs of spaces spelled."""
    return _SPACES.sub(_counted, spelled(text))


def as_name(name: str) -> str:
    """A name, in ASCII: a letter that only looks like another one is spelled."""
    text = json.dumps(name)[1:-1]
    return text if len(text) <= 200 else f"{text[:199]}… ({len(name)} characters)"


def as_code(line: str) -> str:
    """A line of a file: as `in_words`, with tabs as arrows."""
    return in_words(line.replace("\t", "→   "))


def _written(value: Any, indent: str, depth: int, fold: bool) -> str:
    if not isinstance(value, Mapping | list | tuple) or not value or depth >= MAX_INDENT:
        return _scalar(value, fold)
    inner = indent + "  "
    if isinstance(value, Mapping):
        items = [
            f"{_scalar(str(key), fold)}: {_written(item, inner, depth + 1, fold)}"
            for key, item in value.items()
        ]
        opening, closing = "{", "}"
    else:
        items = [_written(item, inner, depth + 1, fold) for item in value]
        opening, closing = "[", "]"
    lines = f",\n{inner}".join(items)
    return f"{opening}\n{inner}{lines}\n{indent}{closing}"


def _scalar(value: Any, fold: bool) -> str:
    value = dict(value) if isinstance(value, Mapping) else value
    text = spelled(json.dumps(value, ensure_ascii=False))
    return _RUNS.sub(_folded, text) if fold else text


def _folded(found: re.Match[str]) -> str:
    unit, brace = found[1], found[2]
    run = found[0].removesuffix(brace)
    count = len(run) // len(unit)
    if count >= _RUN:
        run = f"{_SPACE if unit == ' ' else unit}{{{count}}}"
    elif unit == " ":
        return found[0]
    return run + ("\\u007b" if brace else "")


def _counted(found: re.Match[str]) -> str:
    return f"{_SPACE}{{{len(found[0])}}}"


def spelled(text: str) -> str:
    """The text with each character that is not plainly seen as JSON's escape of it."""
    if text.isascii() and text.isprintable():
        return text
    out: list[str] = []
    on_letter, marks = False, 0
    for char in text:
        kind = unicodedata.category(char)
        if char in _BLANK:
            seen = False
        elif kind[0] == "M":
            marks += 1
            seen = on_letter and marks <= MAX_MARKS
        else:
            seen = char == " " or kind not in _UNSEEN
            on_letter, marks = seen and kind[0] == "L", 0
        out.append(char if seen else json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f")
    return "".join(out)
