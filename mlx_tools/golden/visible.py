"""Texts of others as a page may show them: nothing that is obeyed, nothing that is not seen.

A character that shows nothing, or turns the text around it, is written by its number, ``U+202E``:
control characters, marks of direction, halves of surrogate pairs, fillers, blanks that are no plain
space, and marks beyond what one letter carries. Line ends and tabs stay.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

MAX_MARKS: Final = 4
"""Marks that may stand on one letter; more of them paint over the lines around it."""

MAX_NAME: Final = 160
"""Characters of a name that are shown."""

_UNSEEN: Final = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"))
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

_JOINERS: Final = frozenset("\u200c\u200d\ufe0e\ufe0f")
"""What scripts and emoji need between, or behind, their own characters."""

_PLAIN: Final = re.compile(r"[^ -~\n\t]+")
"""Stretches with something other than plain ASCII in them."""

_TOO_DEEP: Final = "(nested too deeply to be shown)"


def pieces(text: str) -> Iterator[tuple[bool, str]]:
    """The text in stretches: True with one that stays as it is, False with a character, however
    often in a row, that is to be written by its number. Joined they are the text."""
    end = 0
    for found in _PLAIN.finditer(text):
        if found.start() > end:
            yield True, text[end : found.start()]
        yield from _stretch(found[0], text[found.start() - 1 : found.start()])
        end = found.end()
    if end < len(text):
        yield True, text[end:]


def by_number(run: str) -> str:
    """A character's number, as it is written for one that is not seen, and how often it stands
    there."""
    number = f"U+{ord(run[0]):04X}"
    return number if len(run) == 1 else f"{number}×{len(run)}"


def brief(value: Any) -> str:
    """A value as a text that is a name, or a few words: cut where it is neither."""
    text = as_text(value)
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


def spelled(text: str, mark: Callable[[str], str] = str) -> str:
    """The text, with ``mark`` of the number of each character that is not seen in its place."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(part if seen else mark(by_number(part)) for seen, part in pieces(text))


def as_text(value: Any) -> str:
    """A value of a record as a text: texts as they are, nothing where there is none, else JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else as_json(value)


def as_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON, whatever it is."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)
    except RecursionError:
        return _TOO_DEEP
    except (ValueError, TypeError):  # it holds itself, or keys that are no JSON
        return repr(value)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _stretch(text: str, before: str) -> Iterator[tuple[bool, str]]:
    """The pieces of a stretch; ``before`` is the character in front of it, if there is one."""
    for (seen, _), own in groupby(_judged(text, before), key=lambda each: each[0]):
        yield seen, "".join(char for _, char in own)


def _judged(text: str, before: str) -> Iterator[tuple[tuple[bool, str], str]]:
    """Each character behind what it is grouped by: whether it stays, and itself where not."""
    marks, last = 0, before
    for place, char in enumerate(text):
        kind = unicodedata.category(char)
        if char in _JOINERS:
            seen = _joins(char, last, text[place + 1 : place + 2])
        elif char in _BLANK:
            seen = False
        elif kind[0] == "M":
            marks += 1
            seen = bool(last.strip()) and marks <= MAX_MARKS
        else:
            seen, marks = kind not in _UNSEEN, 0
        yield (seen, "" if seen else char), char
        last = char


def _joins(char: str, before: str, after: str) -> bool:
    """Whether a joiner stands where scripts and emoji have one."""
    if not before or (before.isascii() and char not in "\ufe0e\ufe0f") or before in _JOINERS:
        # Digits have a variation too (keycaps); two joiners in a row say nothing.
        return before == "\ufe0f" and char == "\u200d" and bool(after) and not after.isascii()
    if char in "\ufe0e\ufe0f":
        return before in "#*0123456789" if before.isascii() else True
    return bool(after) and not after.isascii() and after not in _JOINERS
