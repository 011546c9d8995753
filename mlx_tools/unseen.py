"""Characters that are not seen, made visible for people and models.

In a foreign text a terminal obeys some of them, some turn the direction of the text around them,
and some show nothing at all. There is one escaper; the places differ in which characters they let
stand, and in how they write the others.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from itertools import groupby
from typing import Final

from msgspec import Struct

Notation = Callable[[str, int], str]
"""Returns what stands for a character that is repeated some times."""

MAX_MARKS: Final = 4
"""The most marks on one letter: more of them would paint over the lines around it."""

_CONTROLS: Final = frozenset(("Cc", "Cs", "Zl", "Zp"))
"""Unicode categories of what ends a line or controls a terminal, and of half characters."""

_NEVER_SEEN: Final = frozenset((*_CONTROLS, "Cf", "Cn", "Co", "Zs"))
"""Unicode categories of characters that show nothing; the plain space is exempt."""

_FILLERS: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159\u180b-\u180f"
    "\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Characters of visible categories that are not seen: fillers, variation selectors."""

_JOINERS: Final = frozenset("\u200c\u200d\ufe0e\ufe0f")
"""Characters that scripts and emoji need between, or after, their own."""

_NOT_PLAIN: Final = re.compile("[^ -~]+")


class Unseen(Struct, frozen=True):
    """The characters that one place does not let stand."""

    categories: frozenset[str]
    """Their Unicode categories."""
    by_look: bool = False
    """True to escape fillers too, and marks that are on no letter or too many on one."""
    joiners: bool = False
    """True to let a joiner stand where it joins."""


FOR_MODELS: Final = Unseen(_CONTROLS)
"""A line that a model reads: nothing in it ends the line."""

FOR_PEOPLE: Final = Unseen(_CONTROLS | {"Cf"})
"""A text on a terminal: nothing in it is obeyed, hidden or turned around."""

FOR_DECISIONS: Final = Unseen(_NEVER_SEEN, by_look=True)
"""A text that a person decides about: what looks alike is alike."""

FOR_PAGES: Final = Unseen(_NEVER_SEEN, by_look=True, joiners=True)
"""A text on a page or in a report: all scripts and emoji are readable."""

FOR_PATHS: Final = Unseen(_NEVER_SEEN | {"Mc", "Me", "Mn"})
"""A path that a model is to write again: also accents that are characters of their own."""


def as_literal(char: str, count: int) -> str:
    """Return a character as an escape of Python's, such as ``\\x1b``."""
    return ascii(char)[1:-1] * count


def as_json_escape(char: str, count: int) -> str:
    """Return a character as an escape of JSON's, such as ``\\u001b``."""
    import json  # not above: --help needs none

    return (json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f") * count


def as_number(char: str, count: int) -> str:
    """Return the number of a character and of its repetitions: ``U+00A0×3``."""
    return f"U+{ord(char):04X}" + (f"×{count}" if count > 1 else "")


def escape_unseen(
    text: str, unseen: Unseen, notation: Notation = as_literal, *, keep: str = ""
) -> str:
    """Return a text in which each unseen character is written in its place.

    Args:
        text: the text.
        unseen: the characters that are escaped.
        notation: how they are written.
        keep: characters that stay as they are.
    """

    def replace_unseen(match: re.Match[str]) -> str:
        out: list[str] = []
        previous = text[match.start() - 1 : match.start()]
        on_letter, marks = previous.isalpha(), 0
        for char, run in groupby(match[0]):
            count = len([*run])
            kind = unicodedata.category(char)
            if char in keep:
                is_seen, on_letter = True, False
            elif unseen.joiners and char in _JOINERS:
                # Seen only after what it joins; within emoji also after a selector.
                joins = previous not in _JOINERS or (previous, char) == ("\ufe0f", "\u200d")
                is_seen = joins and count == 1 and not previous.isascii()
                on_letter = on_letter and is_seen
            elif unseen.by_look and kind[0] == "M":
                marks += count
                is_seen = on_letter and marks <= MAX_MARKS and not _FILLERS.match(char)
            else:
                is_seen = kind not in unseen.categories
                is_seen = is_seen and not (unseen.by_look and _FILLERS.match(char))
                on_letter, marks = is_seen and kind[0] == "L", 0
            out.append(char * count if is_seen else notation(char, count))
            previous = char
        return "".join(out)

    return text if text.isascii() and text.isprintable() else _NOT_PLAIN.sub(replace_unseen, text)
