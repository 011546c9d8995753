"""The name of a note's file, made of its title: readable, safe in any file system, never a path."""

from __future__ import annotations

import unicodedata
from typing import Final

ENDING: Final = ".md"

MAX_CHARS: Final = 100
MAX_BYTES: Final = 180
"""What a title may take of a name, which has 255 bytes: there is room for a number and the ending,
also where a file system takes accents apart."""

NAMELESS: Final = "note"
"""The name of a note whose title has nothing that a name may hold."""

_DIVIDING: Final = frozenset('/\\:*?"<>|')
"""What divides paths or names streams, and what Windows has in no name."""

_EDGES: Final = " .-~_"
"""Not at either end: hidden files, options, home folders, names that differ in nothing visible."""

_DEVICES: Final = frozenset(
    (
        *("con", "prn", "aux", "nul", "conin$", "conout$"),
        *(
            f"{port}{number}"
            for port in ("com", "lpt")
            for number in "0123456789\u00b9\u00b2\u00b3"
        ),
    )
)
"""Names that Windows keeps for devices, with any ending."""


def has_a_title(text: str) -> bool:
    """Whether anything in the text can be seen."""
    return any(unicodedata.category(c)[0] not in "CZ" for c in text)


def note_stem(title: str) -> str:
    """The file's name without its ending: what of the title a name may hold, shortened.

    Characters that divide or steer become spaces, those that nobody sees are left out. The same
    title always gives the same name; different ones may share it.
    """
    text = unicodedata.normalize("NFC", title)
    if text.casefold().endswith(ENDING):
        text = text[: -len(ENDING)]
    words = "".join(map(_allowed, text)).split()
    stem = _shortened(" ".join(words).strip(_EDGES))
    if not stem:
        return NAMELESS
    device = stem.partition(".")[0].rstrip().casefold()
    return f"{NAMELESS} {stem}" if device in _DEVICES else stem


def _allowed(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cf", "Cs", "Co", "Cn"):
        return ""
    return " " if category[0] in "CZ" or character in _DIVIDING else character


def _shortened(stem: str) -> str:
    """The first whole words that are short enough; of one long word, its beginning."""
    raw = stem[:MAX_CHARS].encode()[:MAX_BYTES]
    kept = raw.decode(errors="ignore")
    if len(kept) == len(stem):
        return stem
    whole, space, _ = kept.rpartition(" ")
    if space and stem[len(kept)] != " " and len(whole) * 2 > len(kept):
        kept = whole
    return kept.rstrip(_EDGES)
