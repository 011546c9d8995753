"""From a question in plain words to what is looked for: its words, and where a knowledge base does
not have one of them, what comes close.

Stemming is English alone, and German puts words together. So a word that hardly a file has is
looked for as the beginning of longer ones, in the other spelling of its umlauts, in its parts, and
without its ending, in this order, until something is found. Words in letters beyond ASCII, most of
them of languages with many endings, are looked for without their endings too. What a word is taken
for counts beside it, never instead of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mlx_tools.prompt.lexical import stem
from mlx_tools.toolbox.kb.terms import asked, is_unspaced, phrases, terms

FEW: Final = 3
"""A word that fewer files have is looked for in other ways too."""

_MOST_RARE: Final = 8
"""Words of a question that are looked for in other ways, at most."""

_QUOTED_WEIGHT: Final = 4
"""How often what is quoted counts, beside its words."""

_LEAST: Final = 4
"""Letters that the beginning, or a part, of a word has at least."""

_LINKS: Final = ("", "s", "n", "en", "es")
"""What stands between the parts of a German word."""

_UMLAUTS: Final = (("ae", "a"), ("oe", "o"), ("ue", "u"))
_DIGITS: Final = re.compile(r"(?<=\d)(?=[a-z])|(?<=[a-z])(?=\d)")

CountFiles = Callable[[str], int]
"""How many files an FTS5 expression matches, counted up to `FEW`."""


class WantedTerm(NamedTuple):
    """A term, or with ``begins`` all terms that begin so."""

    term: str
    begins: bool = False

    @property
    def expression(self) -> str:
        """As an FTS5 query has it. Terms hold no quotes, so that none can end one."""
        return f'"{self.term}"*' if self.begins else f'"{self.term}"'


class TermMatcher:
    """Tells which of the words that are wanted a line says."""

    def __init__(self, wanted: Iterable[WantedTerm]) -> None:
        words = list(wanted)
        self._stems = {stem(one.term) for one in words if not one.begins}
        self._beginnings = tuple(one.term for one in words if one.begins)

    def said(self, line: str) -> set[str]:
        """What is said of them, each under one name."""
        return set(self._found(line))

    def _found(self, line: str) -> Iterator[str]:
        for term in terms(line):
            if (short := stem(term)) in self._stems:
                yield short
            elif term.startswith(self._beginnings):
                yield next(one for one in self._beginnings if term.startswith(one))


class Query(NamedTuple):
    """What is looked for: the words, and, as FTS5 expressions, they and what was quoted."""

    wanted: tuple[WantedTerm, ...]
    clauses: tuple[str, ...]

    @property
    def expression(self) -> str:
        """The FTS5 expression for any of them."""
        return " OR ".join(self.clauses)


def query_of(question: str, count: CountFiles) -> Query:
    """What is looked for. Where the question has no words, neither has this."""
    wanted: dict[WantedTerm, None] = {}
    rare = 0
    for term in asked(question):
        if is_unspaced(term):  # one character stands for every pair that it begins
            wanted[WantedTerm(term, len(term) == 1)] = None
            continue
        wanted[WantedTerm(term)] = None
        if not term.isascii():
            if len(term) >= _LEAST:
                wanted[WantedTerm(_without_ending(term), True)] = None
        elif rare < _MOST_RARE and (files := count(WantedTerm(term).expression)) < FEW:
            rare += 1
            wanted.update(dict.fromkeys(_close(term, files, count)))
    quoted = (f'"{one}"' for one in phrases(question) for _ in range(_QUOTED_WEIGHT))
    clauses = [*(one.expression for one in wanted), *quoted]
    return Query(tuple(wanted), tuple(clauses))


def _without_ending(term: str) -> str:
    """The beginning that forms of a word share, in a language that hangs endings onto it."""
    return term[: -1 if len(term) < 7 else -2 if len(term) < 10 else -3]


def _close(term: str, files: int, count: CountFiles) -> Sequence[WantedTerm]:
    """What comes close to a word that only so many files have; all of it is found. Of a word that
    is not missing these are longer words alone."""
    if not term.isalpha():
        parts = [WantedTerm(part) for part in _DIGITS.split(term)]
        return parts if not files and len(parts) == 2 and _all(parts, count) else ()
    if len(term) < _LEAST:
        return ()
    longer = WantedTerm(term, True)
    if count(longer.expression) > files:
        return (longer,)
    if files:
        return ()
    endings = (term[:-cut] for cut in (1, 2) if len(term) - cut >= max(_LEAST, len(term) * 0.7))
    ways: tuple[Iterable[Sequence[WantedTerm]], ...] = (
        ([WantedTerm(plain, True)] for plain in _plain_umlauts(term)),
        _parts(term, False),
        ([WantedTerm(beginning, True)] for beginning in endings),
        _parts(term, True),
    )
    return next((found for way in ways for found in way if _all(found, count)), ())


def _all(wanted: Iterable[WantedTerm], count: CountFiles) -> bool:
    return all(count(one.expression) for one in wanted)


def _plain_umlauts(term: str) -> Iterator[str]:
    plain = term
    for spelled, letter in _UMLAUTS:
        plain = plain.replace(spelled, letter)
    if plain != term and len(plain) >= _LEAST:
        yield plain


def _parts(term: str, begins: bool) -> Iterator[Sequence[WantedTerm]]:
    """A word as two, the longest first part first; ``begins`` takes the first as a beginning."""
    for at in range(len(term) - _LEAST, _LEAST - 1, -1):
        for link in _LINKS:
            first = term[:at].removesuffix(link) if link else term[:at]
            if len(first) >= _LEAST and len(first) + len(link) == at:
                yield WantedTerm(first, begins), WantedTerm(term[at:])
