"""Intervals of measured shares, and tests whether two on the same items differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Z95: Final = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: two-sided 95 %."""


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many."""

    hits: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.total:
            raise ValueError(f"{self.hits} of {self.total} is no share")

    @property
    def value(self) -> float | None:
        """Between 0 and 1; None of nothing."""
        return self.hits / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `wilson`."""
        return wilson(self.hits, self.total)


def wilson(hits: int, total: int, z: float = Z95) -> tuple[float, float]:
    """The score interval of a share (Wilson 1927): where the true one lies, at confidence ``z``.

    Unlike the usual plus-or-minus it stays within 0 and 1 and says something at 0 and at all hits.
    Of nothing it is (0, 1).
    """
    if total == 0:
        return 0.0, 1.0
    share = hits / total
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    centre, scale = share + z * z / (2 * total), 1 + z * z / total
    low = 0.0 if hits == 0 else (centre - spread) / scale
    high = 1.0 if hits == total else (centre + spread) / scale
    return max(0.0, low), min(1.0, high)


@dataclass(frozen=True, slots=True)
class Mean:
    """A weighted mean of shares, and its 95 % interval."""

    value: float
    interval: tuple[float, float]


def weighted_mean(parts: Sequence[tuple[float, Share]]) -> Mean | None:
    """The mean of independent shares, each with its weight; None where one is of nothing.

    The interval is made of the parts' own by the method of variance estimates recovery (Zou and
    Donner 2008), so it is not symmetric where they are not. Weights are at least 0, and not all 0.
    """
    whole = sum(weight for weight, _ in parts)
    if whole <= 0 or any(weight < 0 for weight, _ in parts):
        raise ValueError("weights are at least 0, and one is more")
    value = below = above = 0.0
    for weight, share in parts:
        if share.value is None:
            return None
        low, high = share.interval
        value += weight / whole * share.value
        below += (weight / whole * (share.value - low)) ** 2
        above += (weight / whole * (high - share.value)) ** 2
    low, high = value - math.sqrt(below), value + math.sqrt(above)
    return Mean(min(1.0, value), (max(0.0, low), min(1.0, high)))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return whether two ways differ on the same items: the exact two-sided p (McNemar 1947).

    What comes in: on how many items only the first was right, and on how many only the second.
    Items on which they agree say nothing.
    """
    if only_first < 0 or only_second < 0:
        raise ValueError("a number of items is at least 0")
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, k) for k in range(fewer + 1))
    p: float = 2 * tail / 2**total
    return min(1.0, p)


def difference(
    both: int, only_first: int, only_second: int, neither: int
) -> tuple[float, tuple[float, float]]:
    """Return by how much the first of two shares is larger, and the 95 % interval of that
    (Newcombe 1998, method 10). Counted are the items on which both are right, one alone, neither;
    there must be one."""
    total = both + only_first + only_second + neither
    first, second = Share(both + only_first, total), Share(both + only_second, total)
    one, other = first.hits / total, second.hits / total
    (low_one, high_one), (low_other, high_other) = first.interval, second.interval
    spread = first.hits * (total - first.hits) * second.hits * (total - second.hits)
    cross: float = both * neither - only_first * only_second
    if cross > 0:
        cross = max(cross - total / 2, 0)
    phi = cross / math.sqrt(spread) if spread else 0.0

    def reach(down: float, up: float) -> float:
        return math.sqrt(max(0.0, down**2 - 2 * phi * down * up + up**2))

    value = one - other
    low = value - reach(one - low_one, high_other - other)
    return value, (low, value + reach(other - low_other, high_one - one))


def fisher(before: Share, after: Share) -> float:
    """Return how likely so few hits ``after``, or fewer, are where nothing has
    changed (Fisher's exact test, 1922, one-sided)."""
    hits, total = before.hits + after.hits, before.total + after.total
    ways = math.comb(total, after.total)
    least = max(0, hits - before.total)
    worse = sum(
        math.comb(hits, k) * math.comb(total - hits, after.total - k)
        for k in range(least, after.hits + 1)
    )
    return worse / ways if ways else 1.0
