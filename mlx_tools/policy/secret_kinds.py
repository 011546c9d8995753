"""The table of secrets, ``config/secrets.toml``: shapes, names that tell, and words that do not.

It is read once, when this module is first imported, which redaction alone does. A name is cut into
words, and the table says what each word, or a few of them together, tell. What stands last decides:
a ``page_token`` is none, a ``landing_page_api_key`` is one.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from typing import Any, Final

from msgspec import Struct

from mlx_tools.paths import read_data

_COLOUR: Final = r"(?<=[\[;0-9][0-9]m)|(?<=\[m)"
_PARTS: Final = {
    "<left>": rf"(?:(?<![A-Za-z0-9])|{_COLOUR})",
    "<edge>": rf"(?:(?<![\w.-])|{_COLOUR})",
    "<right>": "(?![A-Za-z0-9])",
    "<uuid>": "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
}
"""What a pattern of the table may hold by name."""

TABLE: Final[dict[str, list[dict[str, Any]]]] = tomllib.loads(read_data("config/secrets.toml"))


class Kind(Struct, frozen=True):
    """A kind of secret: its name as placeholders show it, hints (one of them is in every such
    secret), and its shape."""

    name: str
    hints: tuple[str, ...]
    pattern: str


def _kind(entry: dict[str, str]) -> Kind:
    pattern = entry["pattern"]
    for name, part in _PARTS.items():
        pattern = pattern.replace(name, part)
    return Kind(entry["kind"], tuple(entry["hints"].split()), pattern)


TOKEN_KINDS: Final = tuple(map(_kind, TABLE["tokens"]))
"""All that have a shape; where two meet, the one that comes first names what was found."""

CONTEXT_KINDS: Final = tuple(entry["kind"] for entry in (*TABLE["contexts"], *TABLE["names"]))
"""Kinds that are known by what stands before them (`mlx_tools.policy.secret_context`)."""

PATH: Final = "path"
"""What a redacted folder is called, where paths are redacted too."""

KIND_NAMES: Final = frozenset({kind.name for kind in TOKEN_KINDS} | {*CONTEXT_KINDS, PATH})
"""Every name that a placeholder of ours can hold."""


def words_of(group: str, column: str) -> frozenset[str]:
    """The words in a column of all entries of a group of the table."""
    return frozenset(word for entry in TABLE[group] for word in entry.get(column, "").split())


@cache
def compiled() -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, re.Pattern[str]], ...]]:
    """Every hint with the place of its kind, and the kinds' names and patterns.

    Compiled when first used, since it takes a while.
    """
    hints = tuple((hint, at) for at, kind in enumerate(TOKEN_KINDS) for hint in kind.hints)
    return hints, tuple((kind.name, re.compile(kind.pattern, re.ASCII)) for kind in TOKEN_KINDS)


# --- names that tell that what is assigned to them is secret --------------------------------------

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
    """Return what the words tell, the last of those that tell anything; None where none does."""
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
