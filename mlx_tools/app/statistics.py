"""Intervals of measured shares, and a test for a difference on the same items."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

Z95: Final = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: two-sided 95 %."""


class Share(Struct, frozen=True):
    """``hits`` of ``total``."""

    hits: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.total:
            raise ValueError(f"{self.hits} of {self.total} is no share")

    @property
    def value(self) -> float | None:
        """The share between 0 and 1; None if ``total`` is 0."""
        return self.hits / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `wilson`."""
        return wilson(self.hits, self.total)


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927), with 95 % confidence.

    Unlike the usual plus-or-minus interval it stays between 0 and 1, and it is useful even if no
    item or every item is a hit. For a ``total`` of 0 it is (0, 1).
    """
    if total == 0:
        return 0.0, 1.0
    share, z = hits / total, Z95
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    centre, scale = share + z * z / (2 * total), 1 + z * z / total
    low = 0.0 if hits == 0 else (centre - spread) / scale
    high = 1.0 if hits == total else (centre + spread) / scale
    return max(0.0, low), min(1.0, high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p that two methods differ on the same items.

    This is the test of McNemar (1947). Items on which both agree do not count.

    Args:
        only_first: the number of items on which only the first was right.
        only_second: the number of items on which only the second was right.
    """
    if only_first < 0 or only_second < 0:
        raise ValueError("a number of items is at least 0")
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, k) for k in range(fewer + 1))
    p: float = 2 * tail / 2**total
    return min(1.0, p)
