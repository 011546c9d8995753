"""The words by which text is found: of a text, for the index; of a question, for a query.

All work on Unicode is done here, so that the index does not depend on what a version of SQLite
knows of it: FTS5 gets words of ASCII letters and digits, and of characters beyond ASCII, divided by
spaces, and stems the English ones.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Final

from mlx_tools.prompt.lexical import is_common

MAX_QUERY_CHARS: Final = 4_000
MAX_QUERY_TERMS: Final = 48
MAX_QUERY_PHRASES: Final = 8
MAX_TERM_CHARS: Final = 64

_MARKS: Final = (
    "\u00ad\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    "\u102b-\u103e\u17b4-\u17d3"
)
"""Marks that belong to the letter before them, and the soft hyphen; ``\\w`` does not know them."""

_WORD: Final = re.compile(
    rf"(?:[^\W_][{_MARKS}]*)+"
    rf"(?:(?:[_.-]|(?<=\d),(?=\d{{3}}(?!\d))|(?<=[^\W\d_])-\n[ \t]{{0,8}}(?=[^\W\d_]))"
    rf"(?:[^\W_][{_MARKS}]*)+)*"
)
"""A word, or several that a name joins: ``os.path``, ``snake_case``, ``utf-8``, ``12,450``; or one
that a line's end parts."""

_JOINT: Final = re.compile(r"[_.,-]\s*")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LETTERS: Final = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"}
)
"""Letters that Unicode does not take apart, as those without them on the keyboard write them."""

_UMLAUT: Final = re.compile("[äöüÄÖÜ]")
_SPELLED_OUT: Final = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"}
)
_ARTICLE: Final = re.compile("^(?:[وبكف]?ال|لل)(?=[\u0621-\u064a]{3})")
"""The Arabic article and what is written together with it (Larkey and others, *light10*, 2007)."""

_QUOTED: Final = re.compile('"([^"]{3,200})"|[“„]([^“”]{3,200})[”“]|«([^«»]{3,200})»')

_ACCENT: Final = re.compile("[\u00ad\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Scripts that put no spaces between words, and Hangul, which hangs endings onto them."""

_MOST_PARTS: Final = 5
_KEPT_CHARS: Final = 64
"""Words that are no longer are remembered with their terms: so the memory for them is bounded."""


def terms(text: str) -> Iterator[str]:
    """The words of a text as they are indexed, in their order.

    A name gives its parts, and itself in one piece: ``read_file`` and ``readFile`` both give
    *read*, *file* and *readfile*. Runs of a script without spaces give each two neighbours.
    """
    return chain.from_iterable(map(_terms_of, _WORD.findall(text)))


def indexed(text: str) -> str:
    """The words of a text with spaces between them: what is handed to FTS5."""
    return " ".join(terms(text))


def _terms_of(word: str) -> tuple[str, ...]:
    """The terms of one word, or of one name."""
    return _remembered(word) if len(word) <= _KEPT_CHARS else _of_word(word)


@lru_cache(maxsize=65_536)
def _remembered(word: str) -> tuple[str, ...]:
    return _of_word(word)


def _of_word(word: str) -> tuple[str, ...]:
    parts = [p for joined in _JOINT.split(word) for p in _HUMP.split(joined)]
    found = [term for part in parts for term in _of_part(part)]
    if 1 < len(parts) <= _MOST_PARTS and not _UNSPACED.search(word):
        found.append("".join(_pieces(_plain("".join(parts)))))
    return tuple(term[:MAX_TERM_CHARS] for term in found if term)


def _of_part(part: str) -> Iterator[str]:
    if part.isascii():
        yield part.lower()
        return
    for plain in _pieces(_plain(part)):
        at = 0
        for run in _UNSPACED.finditer(plain):
            if run.start() > at:
                yield plain[at : run.start()]
            yield from _pairs(run[0])
            at = run.end()
        if at < len(plain):
            yield plain[at:]


def _pieces(plain: str) -> list[str]:
    """The words of what was one before it was made plain: ``⑴`` is ``(1)`` then, and one Arabic
    ligature three words."""
    if plain.isalnum():
        return [plain]
    kept = (
        char if char.isalnum() or unicodedata.category(char)[0] == "M" else " " for char in plain
    )
    return "".join(kept).split()


def _pairs(run: str) -> Iterator[str]:
    """Each two neighbours, and the last character alone: so each character begins a term."""
    for number in range(len(run) - 1):
        yield run[number : number + 2]
    yield run[-1]


def _plain(word: str) -> str:
    """Without case, width, accents, and the Arabic article."""
    if word.isascii():
        return word.lower()
    folded = _ACCENT.sub("", unicodedata.normalize("NFKD", word).casefold()).translate(_LETTERS)
    return _ARTICLE.sub("", unicodedata.normalize("NFC", folded))


def asked(question: str) -> list[str]:
    """The terms to look for, those that carry meaning, each once, in their order.

    Where all of them are common words, as in *to be or not to be*, all are taken.
    """
    found: dict[str, None] = {}
    common: dict[str, None] = {}
    for word in _WORD.findall(question[:MAX_QUERY_CHARS]):
        for term in _asked_of(word):
            (common if is_common(term) else found)[term] = None
    return [*(found or common)][:MAX_QUERY_TERMS]


def _asked_of(word: str) -> Iterable[str]:
    """The terms of a word of a question: of a run of characters without spaces, the pairs alone; of
    a word with umlauts, its other spelling too."""
    given = [*_terms_of(word)]
    composed = unicodedata.normalize("NFC", word)
    if _UMLAUT.search(composed):
        given += _terms_of(composed.translate(_SPELLED_OUT))
    runs = _UNSPACED.findall(_plain(word))
    last = {run[-1] for run in runs if len(run) > 1}
    return [term for term in given if term not in last]


def phrases(question: str) -> list[str]:
    """What stands in quotation marks in a question, of two words or more: its terms, in the order
    and with the spaces in which the index has them."""
    found: dict[str, None] = {}
    for quoted in _QUOTED.finditer(question[:MAX_QUERY_CHARS]):
        text = next(filter(None, quoted.groups()))
        words = indexed(text)
        if " " in words and not _UNSPACED.search(text):
            found[words] = None
    return [*found][:MAX_QUERY_PHRASES]


def is_unspaced(term: str) -> bool:
    """Whether a term is of a script that puts no spaces between words."""
    return _UNSPACED.fullmatch(term) is not None
