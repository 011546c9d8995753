"""Search for tools that match a request, and the tools that a model knows.

The matches serve a shortlist, a search, and the tools that a question brings. All rank by BM25 over
names, descriptions and parameters. Tools that match alike stand in the order of their names, so the
result depends on the tools and not on the order they came in.

Every permitted tool may be called by its exact name. What the host offers while it writes a call
(guided decoding, grammars) are the tools that the model could know: those in the catalog, those
that came with a question, those that a search found, and the reader once an output was cut.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from typing import Any, Final

from mlx_tools.messages import ToolSpec
from mlx_tools.policy import BUILTIN
from mlx_tools.prompt.catalog import MIN_SHOWN_TOOLS, build_catalog, parse_tool_names
from mlx_tools.transcript import (
    CompactedRecord,
    Header,
    ObservationRecord,
    Record,
    UserRecord,
)

SEARCH: Final = "tool_search"
"""The name of the built-in tool that looks through the tools; another plugin's tool of this name is
like any other."""

READER: Final = "read_artifact"
"""The same of the one that reads on in an output that was cut."""

OFFERED: Final = 5
"""So many of the best matches of a later question are told of with it."""

OFFER_BUDGET: Final = 400
"""Tokens that the tools told of with a question may take."""

_DECIMALS: Final = 6
"""Decimals of a score that count: sums of the same numbers in another order differ in the last."""


def is_search(spec: ToolSpec | None) -> bool:
    """Return True if this is the built-in tool that searches the others."""
    return spec is not None and spec.name == SEARCH and spec.plugin == BUILTIN


def is_reader(spec: ToolSpec | None) -> bool:
    """Return True if this is the built-in tool that reads on in cut outputs."""
    return spec is not None and spec.name == READER and spec.plugin == BUILTIN


def is_on_demand(spec: ToolSpec) -> bool:
    """Return True if the catalog leaves this tool out until it is of use.

    The search is of use if not all tools fit, the reader with an output that was cut.
    """
    return spec.plugin == BUILTIN and spec.name in (SEARCH, READER)


class Finder:
    """A ranking of some tools against requests; its index is built at first use."""

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self.tools = tuple(tools)
        self._scorer: Bm25 | None = None

    def matches(self, request: str) -> list[tuple[ToolSpec, float]]:
        """Return all tools with their scores, the best first; 0 without a common word."""
        if self._scorer is None:
            self._scorer = Bm25(list(map(tool_stems, self.tools)))
        scores = [round(score, _DECIMALS) for score in self._scorer.scores(set(stems(request)))]
        pairs = zip(self.tools, scores, strict=True)
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0].name))

    def shortlist(self, request: str, first: Sequence[str] = ()) -> list[ToolSpec]:
        """Return the tools that a shortlist is filled with, in its order.

        They are those named in ``first``, those that match, and if these are few, others up to
        `MIN_SHOWN_TOOLS`. More of what has no word in common with the request would cost time and
        mislead.
        """
        places = {name: place for place, name in enumerate(first)}
        matches = self.matches(request)
        wanted = sum(1 for tool, score in matches if score > 0 or tool.name in places)
        ranked = sorted(matches, key=lambda pair: places.get(pair[0].name, len(places)))
        return [tool for tool, _ in ranked[: max(wanted, MIN_SHOWN_TOOLS)]]

    def hits(self, request: str) -> list[ToolSpec]:
        """Return the tools that have a word in common with ``request``, the best first."""
        return [tool for tool, score in self.matches(request) if score > 0]

    def offer(
        self, request: str, known_names: Iterable[str], first: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the lines of the tools that a later question brings.

        They are the tools named in ``first`` and the new ones among its `OFFERED` best matches,
        within `OFFER_BUDGET`.
        """
        told = set(known_names)
        named = [tool for tool in self.tools if tool.name in first]
        best = [*named, *self.hits(request)[:OFFERED]]
        new = {tool.name: tool for tool in best if tool.name not in told}
        return build_catalog(list(new.values()), OFFER_BUDGET).lines


class KnownTools:
    """The tools that a model knows: a fold of header, questions and observations.

    ``permitted`` are the tools that policy may allow. If the header names no shortlist, the catalog
    holds them all, and the search, which would find nothing else, is not offered.
    """

    def __init__(self, header: Header, permitted: Mapping[str, ToolSpec]) -> None:
        self._permitted = permitted
        self._request = header.shortlist_request
        self._finder: Finder | None = None
        self._shown_names = header.shortlist
        self._names = set(header.shortlist)
        self._remaining: set[str] = set()  # those whose lines have left the prompt
        self._announced: dict[str, ToolSpec] | None = None
        if not self._shown_names:
            self._names = {name for name, spec in permitted.items() if not is_on_demand(spec)}

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The permitted tools that the model has been told of."""
        if self._announced is None:
            told = {name: spec for name, spec in self._permitted.items() if name in self._names}
            self._announced = told
        return self._announced

    def copy(self) -> KnownTools:
        """Return known tools that can be added to while these stay."""
        other = copy(self)
        other._names, other._remaining = {*self._names}, {*self._remaining}
        return other

    def offer(self, question: str, tool_choice: str) -> tuple[str, ...]:
        """Return the lines of the tools that a question brings.

        There are none if the catalog holds all tools, or was chosen by this question.
        """
        first = [tool_choice] if tool_choice in self._permitted else []
        if not self._shown_names or (question == self._request and self._names.issuperset(first)):
            return ()
        if self._finder is None:
            listed = (s for s in self._permitted.values() if not is_on_demand(s))
            self._finder = Finder(listed)
        return self._finder.offer(question, self._names - self._remaining, first)

    def ask(self, record: UserRecord, tool_choice: str) -> None:
        """Add a question, the tools that it brings, and the tool that must be called."""
        self._tell_of(*self._brought(record), tool_choice)

    def observe(self, record: ObservationRecord) -> bool:
        """Add an observation and the tools that it names. Return True for a search's.

        An observation that names its own artifact was cut, and so brings the reader.
        """
        if record.artifact and record.artifact in (record.content or ""):
            self._tell_of_reader()
        if not is_search(self._permitted.get(record.name)):
            return False
        self._tell_of(*self._brought(record))
        return True

    def compact(self, record: CompactedRecord, removed_records: Iterable[Record]) -> None:
        """Add a compaction, and where the removed texts can be read.

        ``removed_records`` is what the prompt is made of now: tools whose lines left may be brought
        again.
        """
        texts = (record.content, *record.observations.values())
        if any(key in text for key in record.artifacts for text in texts):
            self._tell_of_reader()
        if self._shown_names:
            self._remaining = self._names.difference(
                self._shown_names, *map(self._brought, removed_records)
            )

    def _tell_of(self, *names: str) -> None:
        self._names.update(names)
        self._remaining.difference_update(names)
        self._announced = None

    def _tell_of_reader(self) -> None:
        if is_reader(self._permitted.get(READER)):
            self._tell_of(READER)

    def _brought(self, record: Record) -> list[str]:
        """Return the tools whose lines a question brings, or a search has found."""
        if isinstance(record, UserRecord):
            return parse_tool_names("\n".join(record.tools)) if record.tools else []
        if isinstance(record, ObservationRecord) and is_search(self._permitted.get(record.name)):
            return parse_tool_names(record.content or "")
        return []


# --- the words that two texts share ---------------------------------------------------------------
#
# BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009). Words are compared
# by their stems, so that *areas* finds ``triangle_area``.

K1: Final = 1.2
B: Final = 0.75
"""BM25's usual constants: how soon a repeated word saturates, how much length counts."""

MAX_TEXT_CHARS: Final = 20_000
MAX_SCHEMA_NODES: Final = 400

NAME_WEIGHT: Final = 3
"""A word of a tool's name counts as if it stood so often in its description."""

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
"""Words that say nothing of what is asked for."""


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
    """Return True if a word says nothing of what is asked: *the*, *find*, *please*."""
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


def tool_stems(spec: ToolSpec) -> Counter[str]:
    """Return the stems in a tool's texts, counted; its name counts more."""
    counts = Counter(NAME_WEIGHT * stems(spec.name))
    counts.update(stems(spec.description))
    counts.update(stems(" ".join(schema_texts(spec.parameters))))
    return counts


def schema_texts(schema: Any) -> Iterable[str]:
    """Yield the names, descriptions and enum values of a schema, up to a limit."""
    waiting: list[Any] = [schema]
    nodes = 0
    while waiting and nodes < MAX_SCHEMA_NODES:
        node = waiting.pop()
        nodes += 1
        if isinstance(node, list):
            waiting += node
            continue
        if not isinstance(node, Mapping):
            continue
        for key, value in node.items():
            if key in ("description", "title") and isinstance(value, str):
                yield value
            elif key == "enum" and isinstance(value, list):
                yield from (item for item in value if isinstance(item, str))
            elif key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
                if key == "properties":
                    yield from value
                waiting += value.values()
            elif isinstance(value, Mapping | list) and key not in ("default", "examples"):
                waiting.append(value)


class Bm25:
    """Scores of texts, each passed as its counted stems. Pure."""

    def __init__(self, texts: Sequence[Mapping[str, int]]) -> None:
        self._texts = texts
        sizes = [sum(text.values()) for text in texts]
        mean = (sum(sizes) / len(sizes)) if sizes else 1.0
        self._norms = [K1 * (1 - B + B * size / (mean or 1.0)) for size in sizes]
        holding = Counter(stem for text in texts for stem in text)
        total = len(texts)
        self._idf = {
            stem: math.log(1 + (total - held + 0.5) / (held + 0.5))
            for stem, held in holding.items()
        }

    def scores(self, terms: AbstractSet[str]) -> list[float]:
        """Return each text's match with these stems: from 0 for none in common."""
        return [
            sum(
                self._idf[stem] * text[stem] * (K1 + 1) / (text[stem] + norm)
                for stem in terms
                if stem in text
            )
            for text, norm in zip(self._texts, self._norms, strict=True)
        ]
