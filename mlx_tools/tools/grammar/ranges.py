"""Numbers between two bounds, as a grammar of their digits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import Final

from mlx_tools.tools.grammar.nodes import (
    NOTHING,
    Chars,
    Node,
    Text,
    alt,
    maybe,
    repeat,
    seq,
)
from mlx_tools.tools.grammar.terminals import DIGIT, MAX_DIGITS, MAX_FRACTION

LIMIT: Final = 10**MAX_DIGITS - 1
"""The largest whole number that can be written. Bounds beyond it are left to validation."""

SURE_DIGITS: Final = 15
"""Two different decimals of so many digits are two different doubles."""

_MINUS: Final = Text("-")
_ZERO: Final = Text("0")
_NOT_ZERO: Final = Chars((("1", "9"),))


@dataclass(frozen=True, slots=True)
class Bounds:
    """From ``least`` to ``most``, None for no bound; ``above`` and ``below`` say that the bound
    itself is not among them."""

    least: Decimal | None = None
    most: Decimal | None = None
    above: bool = False
    below: bool = False

    def holds(self, number: Decimal | int | float) -> bool:
        """Whether the number lies within."""
        value = exact(number)
        if self.least is not None and (value < self.least or (self.above and value == self.least)):
            return False
        return self.most is None or (value < self.most or (not self.below and value == self.most))

    @property
    def reachable(self) -> bool:
        """Whether there are whole numbers within that have few enough digits to be written."""
        least, most = self.whole()
        return (least is None or least <= LIMIT) and (most is None or most >= -LIMIT)

    def whole(self) -> tuple[int | None, int | None]:
        """The smallest and the largest whole number within, None where there is no bound."""
        least = None if self.least is None else math.ceil(self.least)
        most = None if self.most is None else math.floor(self.most)
        if least is not None and self.above and least == self.least:
            least += 1
        if most is not None and self.below and most == self.most:
            most -= 1
        return least, most

    @property
    def fraction(self) -> int:
        """How many digits a number may have after its point, so that none that is written comes to
        lie on a bound that is not among them when it is read; below 1: the bounds cannot be held.
        """
        barred = [self.least] if self.above else []
        barred += [self.most] if self.below else []
        whole = max((len(str(abs(int(bound)))) for bound in barred if bound), default=0)
        digits = SURE_DIGITS - whole if barred else MAX_FRACTION
        for bound in (self.least, self.most):
            if bound is not None and (abs(bound) > LIMIT or _places(bound) > digits):
                return 0
        return digits


def exact(number: Decimal | int | float) -> Decimal:
    """The number as it is written, not as a float comes near it."""
    return number if isinstance(number, Decimal) else Decimal(str(number))


def _places(number: Decimal) -> int:
    exponent = number.normalize().as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


# --- whole numbers ----------------------------------------------------------------------------


def integers(least: int | None, most: int | None) -> Node:
    """The integers from ``least`` to ``most``, None for no bound."""
    low = -LIMIT if least is None else max(least, -LIMIT)
    high = LIMIT if most is None else min(most, LIMIT)
    parts = []
    if high < low:
        return NOTHING
    if low < 0:
        parts.append(seq(_MINUS, _naturals(max(1, -high), -low)))
    if high >= 0:
        parts.append(_naturals(max(low, 0), high))
    return alt(parts)


def _naturals(low: int, high: int) -> Node:
    """The numbers from ``low`` to ``high``, both of 0 or more."""
    parts: list[Node] = []
    while low <= high:
        digits, longest = len(str(low)), len(str(high + 1)) - 1
        if low == 10 ** (digits - 1) and 1 < digits <= longest:  # every number of these lengths
            parts.append(seq(_NOT_ZERO, repeat(DIGIT, digits - 1, longest - 1)))
            low = 10**longest
        else:
            end = min(high, 10**digits - 1)
            parts.append(_same_length(str(low), str(end)))
            low = end + 1
    return alt(parts)


def _same_length(low: str, high: str) -> Node:
    """The digits of the numbers between two of the same length."""
    rest = len(low) - 1
    if rest == 0:
        return _digit(low, high)
    if low[0] == high[0]:
        return seq(_digit(low[0], low[0]), _same_length(low[1:], high[1:]))
    first, last = int(low[0]), int(high[0])
    parts: list[Node] = []
    top: list[Node] = []
    if low[1:] != "0" * rest:
        parts.append(seq(_digit(low[0], low[0]), _same_length(low[1:], "9" * rest)))
        first += 1
    if high[1:] != "9" * rest:
        top.append(seq(_digit(high[0], high[0]), _same_length("0" * rest, high[1:])))
        last -= 1
    if first <= last:
        parts.append(seq(_digit(str(first), str(last)), repeat(DIGIT, rest, rest)))
    return alt(parts + top)


def _digit(low: str, high: str) -> Node:
    return Text(low) if low == high else Chars(((low, high),))


# --- decimals ---------------------------------------------------------------------------------


def decimals(bounds: Bounds) -> Node:
    """The numbers within bounds that can be written, without exponents; ``-0`` is not among them.

    The bounds' `Bounds.fraction` is 1 or more.
    """
    parts: list[Node] = []
    least, most = bounds.least, bounds.most
    if least is None or least < 0:
        upper = None if least is None else -least
        inner, barred = (Decimal(0), True) if most is None or most >= 0 else (-most, bounds.below)
        below_zero = _Magnitudes(Bounds(inner, upper, barred, bounds.above), bounds.fraction)
        parts.append(seq(_MINUS, below_zero.node()))
    if most is None or most >= 0:
        inner, barred = (Decimal(0), False)
        if least is not None and least >= 0:
            inner, barred = least, bounds.above
        from_zero = _Magnitudes(Bounds(inner, most, barred, bounds.below), bounds.fraction)
        parts.append(from_zero.node())
    return alt(part for part in parts if part != NOTHING)


class _Magnitudes:
    """Numbers from 0 on, of so many digits after the point at most."""

    def __init__(self, bounds: Bounds, places: int) -> None:
        self._bounds = bounds
        self._any_digits = repeat(DIGIT, 1, places)
        self._zeros = repeat(_ZERO, 1, places)
        self._not_zeros = seq(repeat(_ZERO, 0, places - 1), _NOT_ZERO, repeat(DIGIT, 0, places - 1))

    def node(self) -> Node:
        """What they are written as."""
        bounds = self._bounds
        first, low = _split(bounds.least or Decimal(0))
        last, high = (LIMIT, None) if bounds.most is None else _split(bounds.most)
        if first == last:
            return self._with_fraction(first, low, high)
        parts: list[Node] = []
        if first < last and (low or bounds.above):
            parts.append(self._with_fraction(first, low, None))
            first += 1
        if first <= last and high is not None:
            parts.append(self._with_fraction(last, None, high))
            last -= 1
        if first <= last:
            point = seq(Text("."), self._any_digits)
            parts.append(seq(_naturals(first, last), maybe(point)))
        return alt(parts)

    def _with_fraction(self, whole: int, low: str | None, high: str | None) -> Node:
        """One whole part, and the fractions from ``low`` to ``high``, None for no bound there."""
        point = seq(Text("."), self._digits(low, high))
        ends = self._may_end(low, high)
        return seq(Text(str(whole)), maybe(point) if ends else point)

    def _may_end(self, low: str | None, high: str | None) -> bool:
        """Whether the digits may end here, with this left of the bounds."""
        if low is not None and (low or self._bounds.above):
            return False
        return high != "" or not self._bounds.below

    def _digits(self, low: str | None, high: str | None) -> Node:
        """One or more further digits, with this left of the bounds."""
        if low == "" and not self._bounds.above:
            low = None  # whatever follows is as large
        if high == "":
            return self._zeros if low is None and not self._bounds.below else NOTHING
        if high is None and not low:
            return self._any_digits if low is None else self._not_zeros
        options = []
        for (next_low, next_high), steps in groupby(_steps(low, high), key=lambda step: step[1]):
            digits = [digit for digit, _ in steps]
            rest = self._digits(next_low, next_high)
            if self._may_end(next_low, next_high):
                rest = maybe(rest)
            options.append(seq(_digit(digits[0], digits[-1]), rest))
        return alt(option for option in options if option != NOTHING)


def _split(number: Decimal) -> tuple[int, str]:
    """The whole part, and the digits after the point without zeros at the end."""
    whole, _, fraction = format(number, "f").partition(".")
    return int(whole), fraction.rstrip("0")


def _steps(
    low: str | None, high: str | None
) -> Iterator[tuple[str, tuple[str | None, str | None]]]:
    """Each digit that may come next, with what is left of the bounds after it."""
    smallest = "0" if low is None else low[:1] or "0"
    largest = "9" if high is None else high[:1] or "0"
    for digit in "0123456789":
        if smallest <= digit <= largest:
            next_low = low[1:] if low is not None and digit == smallest else None
            next_high = high[1:] if high is not None and digit == largest else None
            yield digit, (next_low, next_high)
