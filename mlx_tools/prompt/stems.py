"""Stems of words, by which two texts are compared.

*Areas* finds ``triangle_area``.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final

MAX_TEXT_CHARS: Final = 20_000
_WORD: Final = re.compile(r"[^\W_]+")
HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DIGITS: Final = re.compile(r"(?<=\d)(?=[^\W\d])|(?<=[^\W\d])(?=\d)")
_STOP_WORDS: Final = (
    "a about all also am an and any are as at be been being between both but by can could did do"
    " does each find for from get give given had has have he her here him his how i if in into is"
    " it its let like make many may me might more most much must my need no not of on one only or"
    " other our out please provide s set shall she should show so some such t tell than that the"
    " their them then there these they this those to two up us use used user using value want was"
    " we were what when where whether which who whom why will with would you your"
)
_COMMON: Final = frozenset(_STOP_WORDS.split(" "))
"""Words that say nothing about what is asked for."""


def stems(text: str) -> list[str]:
    """Return the stems of the words of ``text`` that carry meaning, in order.

    Names are split at underscores, humps and digits: ``getAreaOf2D`` is *get*, *area*, *of*, *2*,
    *d*. Words of scripts without spaces stay whole.
    """
    plain = unicodedata.normalize("NFKC", text[:MAX_TEXT_CHARS])
    words = (
        part
        for run in _WORD.findall(plain)
        for word in (_DIGITS.split(HUMP.sub(" ", run)) if not run.isdigit() else (run,))
        for part in word.casefold().split()
    )
    return [stem(word) for word in words if word not in _COMMON]


def is_common(word: str) -> bool:
    """Return True if a word says nothing about what is asked: *the*, *find*, *please*."""
    return word.casefold() in _COMMON


@functools.lru_cache(maxsize=16_384)
def stem(word: str) -> str:
    """Return a word in small letters without the commonest English endings.

    That is enough for two forms of it to meet.
    """
    word = word.casefold()
    if len(word) <= 3 or not word.isascii():
        return word
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + instead
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] in "ey" else word


_ENDINGS_BY_REPLACEMENT: Final = {
    "": ("ments", "ment", "ingly", "ings", "ing", "ions", "ion", "ers", "ed", "er", "s"),
    "ate": ("ations", "ation", "ators", "ator"),
    "y": ("ies", "ied"),
    "ize": ("ization",),
    "e": ("es",),
    **{ending: (ending,) for ending in ("us", "is")},
    "ss": ("sses", "ss"),
}
_ENDINGS: Final = sorted(
    ((one, instead) for instead, endings in _ENDINGS_BY_REPLACEMENT.items() for one in endings),
    key=lambda pair: -len(pair[0]),
)
