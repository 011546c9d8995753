"""The words by which a note is found: without case, width and accents, and by their stems.

Scripts that put no spaces between words are looked for by each two neighbouring characters, and a
name, such as ``readFile`` or ``v2.1``, as it stands besides by its parts.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from mlx_tools.prompt.lexical import HUMP, is_common, stems

_ACCENT: Final = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
"""What is written over or under letters and is often left out: Latin, Hebrew, Arabic."""

_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Scripts without spaces between words, and Hangul, which hangs endings onto them."""

_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]{1,40}")
_JOINED: Final = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]")
"""Whether a text holds words that are joined by capital letters."""

MAX_TERMS: Final = 32
"""How many stems, pieces and words of a query are looked for: a long one takes bounded time."""

_AROUND: Final = ".,;:!?()[]{}<>\"'`*…。、，！？「」"


def plain(text: str) -> str:
    """The text without case, width and accents."""
    if text.isascii():
        return text.lower()
    return _BEYOND_ASCII.sub(lambda found: _folded(found[0]), text).lower()


def plain_in_place(text: str) -> str:
    """`plain` with each character where it was; one that becomes several or none stays."""
    if text.isascii():
        return text.lower()
    chars = {char: _folded(char) for char in set(text)}
    return text.translate({ord(c): p if len(p) == 1 else c for c, p in chars.items()})


@lru_cache(maxsize=4_096)
def _folded(text: str) -> str:
    folded = _ACCENT.sub("", unicodedata.normalize("NFKD", text).casefold())
    return unicodedata.normalize("NFC", folded)


class Asked:
    """What a query looks for. ``stems`` are those of its words, ``pieces`` stand in a text as they
    are; ``words`` are all of its words, those that say nothing among them."""

    def __init__(self, query: str) -> None:
        text = plain(query)
        words = text.split()[:MAX_TERMS]
        self.words = tuple(dict.fromkeys(words))
        self.phrase = " ".join(words)
        spaced = _UNSPACED.sub(" ", plain(HUMP.sub(" ", query)))
        self.stems = frozenset([*dict.fromkeys(stems(spaced))][:MAX_TERMS])
        pieces = dict.fromkeys((*_names(query), *_pairs(text)))
        self.pieces = frozenset([*pieces][:MAX_TERMS])
        ends = "|".join(map(re.escape, sorted(self.stems)))
        self._beginning = re.compile(rf"(?<![^\W_])(?:{ends})[^\W_]*")

    @property
    def places(self) -> re.Pattern[str]:
        """Finds where a `plain` text has what is asked for: stems where a word begins."""
        words = {word for word in self.words if not (self.terms and is_common(word))}
        anywhere = {word for word in words if not word.isalnum()} | self.pieces
        beginning = self.stems | (words - anywhere)
        both = ((r"(?<![^\W_])", beginning), ("", anywhere))
        longest = [(mark, sorted(some, key=len, reverse=True)) for mark, some in both if some]
        one_of = (f"{mark}(?:{'|'.join(map(re.escape, some))})" for mark, some in longest)
        return re.compile("|".join(one_of) or r"\Z")

    @property
    def terms(self) -> frozenset[str]:
        """All that is counted."""
        return self.stems | self.pieces

    def counts(self, text: str, folded: str) -> Counter[str]:
        """How often each term stands in a text; ``folded`` is what `plain` makes of it."""
        found: Counter[str] = Counter()
        for piece in self.pieces:
            if number := folded.count(piece):
                found[piece] += number
        if any(stem in folded for stem in self.stems):  # much quicker than to look for words
            if _JOINED.search(text):
                folded = plain(HUMP.sub(" ", text))
            for word, number in Counter(self._beginning.findall(folded)).items():
                for stem in stems(word):
                    if stem in self.stems:
                        found[stem] += number
        return found


def _pairs(text: str) -> Iterator[str]:
    """Each two neighbours of a run without spaces; of one character, itself."""
    for run in _UNSPACED.findall(text):
        yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))


def _names(query: str) -> Iterator[str]:
    """The words that are more than letters, or joined of several, as they stand."""
    for word in query.split():
        name = word.strip(_AROUND)
        if (not name.isalnum() or HUMP.search(name)) and not _UNSPACED.search(name):
            yield from filter(None, (plain(name),))
