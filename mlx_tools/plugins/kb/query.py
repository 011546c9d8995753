"""The words of a text for the index, and the words of a question for a search.

All work on Unicode is done here, so that the index does not depend on the version of SQLite. FTS5
gets words with spaces between them, and stems the English ones.

Stemming is only for English. So a rare word is also searched as the beginning of longer words.
Words beyond ASCII are searched without their endings, because most are of languages with many
endings. For a word that no file has, words with mostly the same groups of three letters are
searched: people misspell words, and some languages join them. These variants are always searched
besides the word itself.
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
"""Unknown words of a question for which similar words are searched."""

RARE_COUNT: Final = 3
"""Files or notes. A word that fewer of them have is also searched as a beginning."""

_QUOTED_WEIGHT: Final = 4
"""The weight of a quoted phrase, besides its words."""

_MIN_PREFIX_LETTERS: Final = 4
"""Letters that the beginning of a word must have."""

_MARKS: Final = (
    "\u00ad\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    "\u102b-\u103e\u17b4-\u17d3"
)
r"""Marks that belong to the letter before them, and the soft hyphen; ``\\w`` does not include them.
"""

_WORD: Final = re.compile(rf"(?:[^\W_][{_MARKS}]*)+(?:[_.-](?:[^\W_][{_MARKS}]*)+)*")
"""A word, or a name of several words: ``os.path``, ``snake_case``, ``utf-8``."""

_JOINT: Final = re.compile(r"[_.-]")
_QUOTED: Final = re.compile('"([^"]{3,200})"|[“„]([^“”]{3,200})[”“]|«([^«»]{3,200})»')
_ACCENT: Final = re.compile("[\u00ad\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
_UNSPACED: Final = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
"""Scripts without spaces between words, and Hangul, which adds endings to them."""

_MAX_PARTS: Final = 5

# --- the words of a text ------------------------------------------------------------------------


def iter_terms(text: str) -> Iterator[str]:
    """Return the words of a text for the index, in their order.

    A name gives its parts and the joined name: ``read_file`` and ``readFile`` both give *read*,
    *file* and *readfile*. A text without spaces gives each pair of neighbouring characters.
    """
    return chain.from_iterable(map(_split_word, _WORD.findall(text)))


def index_text(text: str) -> str:
    """Return the words of a text with spaces between them, for FTS5."""
    return " ".join(iter_terms(text))


def _split_word(word: str) -> tuple[str, ...]:
    """Return the terms of one word or name, from a cache for short ones."""
    return (_split if len(word) <= MAX_TERM_CHARS else _split.__wrapped__)(word)


@lru_cache(maxsize=65_536)
def _split(word: str) -> tuple[str, ...]:
    parts = [part for joined in _JOINT.split(word) for part in HUMP.split(joined)]
    terms = [term for part in parts for term in _split_part(part)]
    if 1 < len(parts) <= _MAX_PARTS and not _UNSPACED.search(word):
        terms.append("".join(_normalize("".join(parts)).split()))
    return tuple(term[:MAX_TERM_CHARS] for term in terms if term)


def _split_part(part: str) -> Iterator[str]:
    """Yield the words of a part.

    A text without spaces gives each pair of neighbouring characters, and the last character alone.
    So each character begins a term.
    """
    if part.isascii():
        yield part.lower()
        return
    for plain in _normalize(part).split():
        for run in _UNSPACED.split(plain):
            if not _UNSPACED.match(run):
                yield run
            else:
                yield from (run[start : start + 2] for start in range(len(run)))


def _normalize(word: str) -> str:
    """Return a word without case, width and accents.

    Characters that are no longer part of a word become spaces: ``⑴`` becomes ``(1)``, and one
    Arabic ligature becomes three words.
    """
    folded = _ACCENT.sub("", unicodedata.normalize("NFKD", word).casefold())
    plain = unicodedata.normalize("NFC", folded)
    if plain.isalnum():
        return plain
    return "".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in plain)


def fold_text(text: str) -> str:
    """Return a text without case, accents and joints.

    The result contains the beginning of each term of `iter_terms`.
    """
    plain = unicodedata.normalize("NFKD", text).casefold()
    if not plain.isascii():
        plain = _ACCENT.sub("", plain)
    return plain.replace("_", "").replace(".", "").replace("-", "")


def _stem(term: str) -> str:
    """Return the stem of a term. A doubled letter is removed: *running*, *run*."""
    short = stem(term)
    doubled = len(short) == 4 < len(term) and short[2] == short[3] and short[3] not in "aeiouls"
    return short[:3] if doubled else short


# --- the words of a question --------------------------------------------------------------------


class QueryTerm(NamedTuple):
    """A term, or with ``begins`` all terms that begin so."""

    term: str
    begins: bool = False

    @property
    def expression(self) -> str:
        """The term in an FTS5 query. Terms have no quotes, so they cannot end the query."""
        return f'"{self.term}"*' if self.begins else f'"{self.term}"'

    @property
    def root(self) -> str:
        """The beginning of all terms that match."""
        return _stem(self.term)

    def matches(self, term: str) -> bool:
        """Return whether a text with this term matches."""
        return term.startswith(self.root) if self.begins else _stem(term) == self.root


CountHolding = Callable[[QueryTerm], int]
"""Returns the number of files or notes that match. It may stop counting at `RARE_COUNT`."""


class Query(NamedTuple):
    """The words to search, and the FTS5 expressions of words and quoted phrases."""

    terms: tuple[QueryTerm, ...]
    clauses: tuple[str, ...]

    @property
    def expression(self) -> str:
        """The FTS5 expression for any of them."""
        return " OR ".join(self.clauses)


class TermMatcher:
    """Finds the query's words in a line."""

    def __init__(self, terms: Iterable[QueryTerm]) -> None:
        words = list(terms)
        self._stems = {term.root for term in words if not term.begins}
        self._beginnings = tuple(term.term for term in words if term.begins)

    def match_line(self, line: str) -> set[str]:
        """Return the query's words that the line has, variants under the same name."""
        matching = set()
        for term in iter_terms(line):
            if (short := _stem(term)) in self._stems:
                matching.add(short)
            elif term.startswith(self._beginnings):
                matching.add(
                    next(beginning for beginning in self._beginnings if term.startswith(beginning))
                )
        return matching


FindNear = Callable[[str], Iterable[str]]
"""Returns existing terms with a spelling similar to an unknown one."""


def build_query(question: str, count: CountHolding, near: FindNear = lambda term: ()) -> Query:
    """Return the query for a question, empty if the question has no words."""
    query_terms: dict[QueryTerm, None] = {}
    unknown_count = 0
    for term in select_terms(question):
        ways = list(_list_ways(term, count))
        if (
            len(term) >= _MIN_PREFIX_LETTERS
            and unknown_count < MAX_NEAR_TERMS
            and not any(map(count, ways))
        ):
            unknown_count += 1
            ways += (QueryTerm(variant, True) for variant in near(term))
        query_terms |= dict.fromkeys(ways)
    quoted = (f'"{variant}"' for variant in find_phrases(question) for _ in range(_QUOTED_WEIGHT))
    clauses = [*(variant.expression for variant in query_terms), *quoted]
    return Query(tuple(query_terms), tuple(clauses))


def _list_ways(term: str, count: CountHolding) -> Iterator[QueryTerm]:
    """Yield a term, and its variants."""
    if _UNSPACED.fullmatch(term):  # a single character matches every pair that begins with it
        yield QueryTerm(term, len(term) == 1)
        return
    yield (exact := QueryTerm(term))
    if len(term) < _MIN_PREFIX_LETTERS:
        return
    beginning = QueryTerm(term, True)
    without_ending = QueryTerm(term[: -1 if len(term) < 7 else -2 if len(term) < 10 else -3], True)
    if not term.isascii():
        yield without_ending
    elif count(exact) < RARE_COUNT:
        yield beginning if count(beginning) or len(term) == _MIN_PREFIX_LETTERS else without_ending


def select_terms(question: str) -> list[str]:
    """Return the terms to search, without common words, each once, in their order.

    A text without spaces gives only its pairs of characters. If all words are common, as in *to be
    or not to be*, all are searched.
    """
    meaningful: dict[str, None] = {}
    common: dict[str, None] = {}
    for word in _WORD.findall(question[:MAX_QUERY_CHARS]):
        last = {run[-1] for run in _UNSPACED.findall(_normalize(word)) if len(run) > 1}
        for term in _split_word(word):
            if term not in last:
                (common if is_common(term) else meaningful)[term] = None
    return [*(meaningful or common)][:MAX_QUERY_TERMS]


# --- words with a similar spelling ----------------------------------------------------------------

_MIN_LIKENESS: Final = 0.75
"""The minimum similarity (`difflib`) for two words of which one may be a misspelling. A word that
contains the other, such as a German compound, counts as at least this similar. A choice: a lower
one finds more misspellings, but also more words with another meaning."""

_PART: Final = 5
"""Letters of a word that another may contain, so that they count as similar."""

_MAX_NEAR: Final = 3

LETTERS: Final = 3
"""Letters of a group in the index of letters."""


def split_trigrams(term: str) -> list[str]:
    """Return the groups of three letters of a term, each once."""
    ends = range(LETTERS, len(term) + 1)
    return list(dict.fromkeys(term[end - LETTERS : end] for end in ends))


def find_nearest(term: str, candidates: Iterable[str]) -> list[str]:
    """Return the stems of the candidates most similar to a term, best first."""
    short = _stem(term)

    def likeness(word: str) -> float:
        is_contained = min(len(short), len(word)) >= _PART and (short in word or word in short)
        return max(
            _MIN_LIKENESS if is_contained else 0.0, SequenceMatcher(None, short, word).ratio()
        )

    stems = dict.fromkeys(map(_stem, candidates))
    scored = sorted(
        ((likeness(candidate), candidate) for candidate in stems),
        key=lambda candidate: (-candidate[0], candidate[1]),
    )
    return [candidate for score, candidate in scored[:_MAX_NEAR] if score >= _MIN_LIKENESS]


def find_phrases(question: str) -> list[str]:
    """Return the quoted phrases of a question, in the form of the index.

    Only phrases of two words or more count.
    """
    unique: dict[str, None] = {}
    for quoted in _QUOTED.finditer(question[:MAX_QUERY_CHARS]):
        text = next(filter(None, quoted.groups()))
        words = index_text(text)
        if " " in words and not _UNSPACED.search(text):
            unique[words] = None
    return [*unique][:MAX_QUERY_PHRASES]
