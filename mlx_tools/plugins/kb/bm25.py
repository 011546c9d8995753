"""BM25 over texts in memory.

See Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

K1: Final = 1.2
B: Final = 0.75
"""BM25's usual constants: the saturation of repeated words, and the influence of the length."""


class Bm25:
    """The scores of texts, each of which is passed as its counted stems."""

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
        """Return each text's score for these stems, 0 without a common stem."""
        return [
            sum(
                self._idf[stem] * text[stem] * (K1 + 1) / (text[stem] + norm)
                for stem in terms
                if stem in text
            )
            for text, norm in zip(self._texts, self._norms, strict=True)
        ]
