"""The words by which text is found: of a text, for the index; of a question, for a query.

All work on Unicode is done here, so that the index does not depend on what a version of SQLite
knows of it: FTS5 gets words of ASCII letters and digits, and of characters beyond ASCII, divided by
spaces, and stems the English ones.

Stemming is English alone. So a word that hardly a file has is looked for as the beginning of longer
ones too, and words in letters beyond ASCII, most of them of languages with many endings, without
their endings; one that is nowhere as those that share most of its letters in threes, since people
misspell, and some languages put words together. What a word is taken for counts beside it, never
instead of it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from mlx_tools.prompt import HUMP, is_common, stem

MAX_QUERY_CHARS: Final = 4_000
MAX_QUERY_TERMS: Final = 48
MAX_QUERY_PHRASES: Final = 8
MAX_TERM_CHARS: Final = 64
MAX_NEAR_TERMS: Final = 4
"""Words of a question that are nowhere for which others are looked for."""

FEW: Final = 3
"""A word that fewer files or notes have is looked for as a beginning too."""

_QUOTED_WEIGHT: Final = 4
"""How often what is quoted counts, beside its words."""

_LEAST: Final = 4
"""Letters that the beginning of a word has at least."""

_MARKS: Final = (
    "\u00ad\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    "\u102b-\u103e\u17b4-\u17d3"
)
"""Marks that belong to the letter before them, and the soft hyphen; ``\\w`` does not know them."""

_WORD: Final = re.compile(rf"(?:[^\W_][{_MARKS}]*)+(?:[_.-](?:[^\W_][{_MARKS}]*)+)*")
"""A word, or several that a name joins: ``os.path``, ``snake_case``, ``utf-8``."""

_JOINT: Final = re.compile(r"[_.-]")
_QUOTED: Final = re.compile('"([^"]{3,200})"|[“„]([^“”]{3,200})[”“]|«([^«»]{3,200})»')
_ACCENT: Final = re.compile("[\u00ad\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
_UNSPACED: Final = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
"""Scripts that put no spaces between words, and Hangul, which hangs endings onto them."""

_MOST_PARTS: Final = 5

# --- the words of a text ------------------------------------------------------------------------


def terms(text: str) -> Iterator[str]:
    """The words of a text as they are indexed, in their order.

    A name gives its parts, and itself in one piece: ``read_file`` and ``readFile`` both give
    *read*, *file* and *readfile*. Runs of a script without spaces give each two neighbours.
    """
    return chain.from_iterable(map(_terms_of, _WORD.findall(text)))


def index_text(text: str) -> str:
    """The words of a text with spaces between them: what is handed to FTS5."""
    return " ".join(terms(text))


def _terms_of(word: str) -> tuple[str, ...]:
    """The terms of one word or name; of short ones they are remembered, in bounded memory."""
    return (_split if len(word) <= MAX_TERM_CHARS else _split.__wrapped__)(word)


@lru_cache(maxsize=65_536)
def _split(word: str) -> tuple[str, ...]:
    parts = [part for joined in _JOINT.split(word) for part in HUMP.split(joined)]
    found = [term for part in parts for term in _of_part(part)]
    if 1 < len(parts) <= _MOST_PARTS and not _UNSPACED.search(word):
        found.append("".join(_plain("".join(parts)).split()))
    return tuple(term[:MAX_TERM_CHARS] for term in found if term)


def _of_part(part: str) -> Iterator[str]:
    """Its words; of each run of characters without spaces each two neighbours, and the last one
    alone, so that each character begins a term."""
    if part.isascii():
        yield part.lower()
        return
    for plain in _plain(part).split():
        for run in _UNSPACED.split(plain):
            if not _UNSPACED.match(run):
                yield run
            else:
                yield from (run[at : at + 2] for at in range(len(run)))


def _plain(word: str) -> str:
    """Without case, width and accents; with spaces where it holds what is of no word then: ``⑴`` is
    ``(1)``, and one Arabic ligature three words."""
    folded = _ACCENT.sub("", unicodedata.normalize("NFKD", word).casefold())
    plain = unicodedata.normalize("NFC", folded)
    if plain.isalnum():
        return plain
    return "".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in plain)


def folded(text: str) -> str:
    """A text without case, accents and joints: it holds the beginning of each of its `terms`."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    if not plain.isascii():
        plain = _ACCENT.sub("", plain)
    return plain.replace("_", "").replace(".", "").replace("-", "")


def _stem(term: str) -> str:
    """The stem of a term, of which short ones lose a doubled letter too: *running*, *run*."""
    short = stem(term)
    doubled = len(short) == 4 < len(term) and short[2] == short[3] and short[3] not in "aeiouls"
    return short[:3] if doubled else short


# --- what a question looks for ------------------------------------------------------------------


class QueryTerm(NamedTuple):
    """A term, or with ``begins`` all terms that begin so."""

    term: str
    begins: bool = False

    @property
    def expression(self) -> str:
        """As an FTS5 query has it. Terms hold no quotes, so that none can end one."""
        return f'"{self.term}"*' if self.begins else f'"{self.term}"'

    @property
    def root(self) -> str:
        """What all terms that match begin with."""
        return _stem(self.term)

    def matches(self, term: str) -> bool:
        """True where a text that has this term has what is wanted."""
        return term.startswith(self.root) if self.begins else _stem(term) == self.root


CountHolding = Callable[[QueryTerm], int]
"""How many files or notes have what is wanted, counted up to `FEW` at least."""


class Query(NamedTuple):
    """What is looked for: the words, and, as FTS5 expressions, they and what was quoted."""

    wanted: tuple[QueryTerm, ...]
    clauses: tuple[str, ...]

    @property
    def expression(self) -> str:
        """The FTS5 expression for any of them."""
        return " OR ".join(self.clauses)


class TermMatcher:
    """Tells which of the words that are wanted a line says."""

    def __init__(self, terms: Iterable[QueryTerm]) -> None:
        words = list(terms)
        self._stems = {one.root for one in words if not one.begins}
        self._beginnings = tuple(one.term for one in words if one.begins)

    def said(self, line: str) -> set[str]:
        """What is said of them, each under one name."""
        found = set()
        for term in terms(line):
            if (short := _stem(term)) in self._stems:
                found.add(short)
            elif term.startswith(self._beginnings):
                found.add(next(one for one in self._beginnings if term.startswith(one)))
        return found


FindNear = Callable[[str], Iterable[str]]
"""The terms there are that are spelled much like one that there is not."""


def query_of(question: str, count: CountHolding, near: FindNear = lambda term: ()) -> Query:
    """What is looked for. Where the question has no words, neither has this."""
    wanted: dict[QueryTerm, None] = {}
    looked = 0
    for term in select_terms(question):
        ways = list(_ways(term, count))
        if len(term) >= _LEAST and looked < MAX_NEAR_TERMS and not any(map(count, ways)):
            looked += 1
            ways += (QueryTerm(one, True) for one in near(term))
        wanted |= dict.fromkeys(ways)
    quoted = (f'"{one}"' for one in phrases(question) for _ in range(_QUOTED_WEIGHT))
    clauses = [*(one.expression for one in wanted), *quoted]
    return Query(tuple(wanted), tuple(clauses))


def _ways(term: str, count: CountHolding) -> Iterator[QueryTerm]:
    """A term, and what else it is looked for as."""
    if _UNSPACED.fullmatch(term):  # one character stands for every pair that it begins
        yield QueryTerm(term, len(term) == 1)
        return
    yield (plain := QueryTerm(term))
    if len(term) < _LEAST:
        return
    beginning = QueryTerm(term, True)
    without_ending = QueryTerm(term[: -1 if len(term) < 7 else -2 if len(term) < 10 else -3], True)
    if not term.isascii():
        yield without_ending
    elif count(plain) < FEW:
        yield beginning if count(beginning) or len(term) == _LEAST else without_ending


def select_terms(question: str) -> list[str]:
    """The terms to look for, those that carry meaning, each once, in their order; of a run of
    characters without spaces the pairs alone.

    Where all of them are common words, as in *to be or not to be*, all are taken.
    """
    found: dict[str, None] = {}
    common: dict[str, None] = {}
    for word in _WORD.findall(question[:MAX_QUERY_CHARS]):
        last = {run[-1] for run in _UNSPACED.findall(_plain(word)) if len(run) > 1}
        for term in _terms_of(word):
            if term not in last:
                (common if is_common(term) else found)[term] = None
    return [*(found or common)][:MAX_QUERY_TERMS]


# --- words that are spelled much like another -----------------------------------------------------

_ALIKE: Final = 0.75
"""How alike two words are at least, as `difflib` has it, of which one may be a slip for the other;
one that holds the other, as German puts words together, is as much like it."""

_PART: Final = 5
"""Letters of a word that another may hold, at least."""

_MOST_NEAR: Final = 3

LETTERS: Final = 3
"""Letters that are taken together, by which words are found that are spelled alike."""


def trigrams(term: str) -> list[str]:
    """The letters of a term in threes, each once."""
    ends = range(LETTERS, len(term) + 1)
    return list(dict.fromkeys(term[end - LETTERS : end] for end in ends))


def nearest(term: str, candidates: Iterable[str]) -> list[str]:
    """The stems of those of the candidates that are most like a term, the best first."""
    short = _stem(term)

    def likeness(word: str) -> float:
        held = min(len(short), len(word)) >= _PART and (short in word or word in short)
        return max(_ALIKE if held else 0.0, SequenceMatcher(None, short, word).ratio())

    stems = dict.fromkeys(map(_stem, candidates))
    scored = sorted(((likeness(one), one) for one in stems), key=lambda one: (-one[0], one[1]))
    return [one for score, one in scored[:_MOST_NEAR] if score >= _ALIKE]


def phrases(question: str) -> list[str]:
    """What stands in quotation marks in a question, of two words or more: its terms, in the order
    and with the spaces in which the index has them."""
    found: dict[str, None] = {}
    for quoted in _QUOTED.finditer(question[:MAX_QUERY_CHARS]):
        text = next(filter(None, quoted.groups()))
        words = index_text(text)
        if " " in words and not _UNSPACED.search(text):
            found[words] = None
    return [*found][:MAX_QUERY_PHRASES]
