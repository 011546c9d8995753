"""The words that two texts share: how well a request matches a tool, without a model.

The tools are ranked by BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009)
over their names, descriptions and parameters. Words are compared by their stems, so that *areas*
finds ``triangle_area``.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from mlx_tools.messages import ToolSpec

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
_SAYING_NOTHING: Final = (
    "a about all also am an and any are as at be been being between both but by can could did do"
    " does each find for from get give given had has have he her here him his how i if in into is"
    " it its let like make many may me might more most much must my need no not of on one only or"
    " other our out please provide s set shall she should show so some such t tell than that the"
    " their them then there these they this those to two up us use used user using value want was"
    " we were what when where whether which who whom why will with would you your"
)
_COMMON: Final = frozenset(_SAYING_NOTHING.split(" "))
"""Words that say nothing of what is asked for."""


def stems(text: str) -> list[str]:
    """The words of ``text`` that carry meaning, each cut down to its stem, in order.

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
    """True where a word says nothing of what is asked for: *the*, *find*, *please*."""
    return word.casefold() in _COMMON


@functools.lru_cache(maxsize=16_384)
def stem(word: str) -> str:
    """A word in small letters without the commonest English endings: enough to make two forms of
    it meet."""
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


_ENDINGS: Final = (
    ("ization", "ize"),
    ("ations", "ate"),
    ("ation", "ate"),
    ("ators", "ate"),
    ("ator", "ate"),
    ("ments", ""),
    ("ment", ""),
    ("ingly", ""),
    ("ings", ""),
    ("ing", ""),
    ("ions", ""),
    ("ion", ""),
    ("ies", "y"),
    ("ied", "y"),
    ("sses", "ss"),
    ("ers", ""),
    ("ed", ""),
    ("er", ""),
    ("es", "e"),
    ("ss", "ss"),
    ("us", "us"),
    ("is", "is"),
    ("s", ""),
)


def tool_stems(spec: ToolSpec) -> Counter[str]:
    """The stems in what a tool says of itself, counted; its name counts more."""
    counts = Counter(NAME_WEIGHT * stems(spec.name))
    counts.update(stems(spec.description))
    counts.update(stems(" ".join(schema_texts(spec.parameters))))
    return counts


def schema_texts(schema: Any) -> Iterable[str]:
    """The names, descriptions and allowed words of a schema, up to a bound."""
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
    """Scores texts, each given as its stems, counted. Pure."""

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

    def scores(self, asked: AbstractSet[str]) -> list[float]:
        """The match of each text with these stems: 0 for none in common, unbounded above."""
        return [
            sum(
                self._idf[stem] * text[stem] * (K1 + 1) / (text[stem] + norm)
                for stem in asked
                if stem in text
            )
            for text, norm in zip(self._texts, self._norms, strict=True)
        ]
