"""Names that tell that what is assigned to them is secret: ``password``, ``api_key``, a vendor's.

A name is cut into words, and the table says what each word, or a few of them together, tell. What
stands last decides: a ``page_token`` is none, a ``landing_page_api_key`` is one.
"""

from __future__ import annotations

import re
from typing import Final

from mlx_tools.policy.secret_kinds import TABLE, words_of

LONGEST_NAME: Final = 64
"""Characters of a name that are looked at: those right before its sign."""

_NO_NAME = re.compile(r"[^\w.\- \t]+", re.ASCII)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_MOST_BLANKS: Final = 4
"""Words with blanks between them that a name is read from: ``secret access key``."""


def _glued(phrases: str) -> list[str]:
    """The phrases of the table as one word each, in the plural too."""
    glued = phrases.replace("-", "").split()
    return [*glued, *(word + "s" for word in glued)]


_NO: Final = ""
_TELLS: Final[dict[str, str]] = {
    glued: entry["kind"]
    for entry in reversed(TABLE["names"])
    for glued in _glued(f"{entry['words']} {entry['whole']}")
} | {glued: _NO for entry in TABLE["not_names"] for glued in _glued(entry.get("names", ""))}
"""The kind that words tell, `_NO` where they tell that it is none."""
_LAST: Final = frozenset(_glued(" ".join(words_of("not_names", "last"))))
_MOST_WORDS: Final = 4
"""Words of the longest phrase of the table, camelCase of it included: ``New York Times``."""


def _any_of(phrases: frozenset[str]) -> re.Pattern[str]:
    """A pattern that branches on the first letter, so that it is quick to fail."""
    branches = []
    for letter in sorted({phrase[0] for phrase in phrases}):
        rests = sorted((one[1:] for one in phrases if one[0] == letter), key=len, reverse=True)
        branches.append(f"{letter}(?:{'|'.join(map(re.escape, rests))})".replace("\\-", "[-_. ]?"))
    return re.compile("|".join(branches))


_STEM = _any_of(words_of("names", "words"))
"""What is found in a longer word, too."""
_JOINT = re.compile(r"[-_. ]")


def named(text: str) -> str | None:
    """The kind of secret that is assigned to the name at the end of the text, None for none."""
    piece = " ".join(_NO_NAME.split(text)[-1].split()[-_MOST_BLANKS:])
    told = _told([word.lower() for word in _WORD.findall(piece)])
    if told is None and (stem := _STEM.search(piece.lower())):
        told = _TELLS[_JOINT.sub("", stem[0])]
    return told or None


def _told(words: list[str]) -> str | None:
    """What the words tell, the last of those that tell anything; None where none does."""
    kind, at = None, 0
    while at < len(words):
        for size in range(min(_MOST_WORDS, len(words) - at), 0, -1):
            told = _TELLS.get("".join(words[at : at + size]))
            if told is not None:
                kind = told
                break
        else:
            size = 1
            if stem := _STEM.search(words[at]):
                kind = _TELLS[stem[0]]
            elif at == len(words) - 1 and words[at] in _LAST:
                kind = _NO
        at += size
    return kind
