"""Numbers for the calculator: exact where they can be, bounded always.

Whole numbers and fractions are exact, so 0.1 + 0.2 is 0.3; roots, logarithms and the like are
floating point. Every result has a bound, so that no expression costs much time or memory.
"""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

Number = int | Fraction | float
Exact = int | Fraction

MAX_BITS: Final = 10_000
"""Size of an exact number: about 3,000 digits."""

_POWERS: Final = decimal.Context(prec=50, Emax=10_000, Emin=-10_000)


class CalculationError(Exception):
    """The reason why an expression has no value, in words."""


TOO_LARGE: Final = "the result is too large"


def bounded(value: Number) -> Number:
    """The value in its plainest form. Raises CalculationError where it is too large, or so small
    that floating point would make it zero."""
    if isinstance(value, Fraction):
        if value.denominator == 1:
            value = value.numerator
        elif max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            return _nonzero(approximate(value))
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise CalculationError(f"{TOO_LARGE} (more than 3000 digits)")
    return value


def approximate(value: Number) -> float:
    """The value in floating point. Raises CalculationError where it is too large."""
    return computed(lambda: float(value))


def _nonzero(value: float) -> float:
    """A number that is not zero. Raises CalculationError where it became zero."""
    if value == 0:
        raise CalculationError("the result is too close to zero")
    return value


def computed(do: Callable[[], float]) -> float:
    """The value of a function in floating point. Raises CalculationError where it has no value."""
    try:
        value = do()
    except OverflowError:
        raise CalculationError(TOO_LARGE) from None
    except (ValueError, ZeroDivisionError):
        raise CalculationError("the function has no real value here") from None
    if not math.isfinite(value):
        raise CalculationError(TOO_LARGE)
    return value


# --- operators ---


def _operator(do: Callable[[Any, Any], Any]) -> Callable[[Number, Number], Number]:
    """An operator of Python's: exact on exact numbers, else in floating point."""

    def of(a: Number, b: Number) -> Number:
        if isinstance(a, float) or isinstance(b, float):
            return computed(lambda: do(approximate(a), approximate(b)))
        return bounded(do(a, b))

    return of


add, subtract, multiply = map(_operator, (operator.add, operator.sub, operator.mul))
_remainder = _operator(operator.mod)
_quotient = _operator(lambda a, b: (a if isinstance(a, float) else Fraction(a)) / b)


def divide(a: Number, b: Number) -> Number:
    if b == 0:
        raise CalculationError("division by zero")
    return _quotient(a, b)


def floor_divide(a: Number, b: Number) -> Number:
    """Division rounded down, as in Python."""
    return floor(divide(a, b))


def floor(a: Number) -> Number:
    return bounded(math.floor(a))


def modulo(a: Number, b: Number) -> Number:
    """The remainder of a division; it has the sign of the divisor, as in Python."""
    if b == 0:
        raise CalculationError("division by zero")
    return _remainder(a, b)


def power(a: Number, b: Number) -> Number:
    """``a`` to the power of ``b``; refused quickly where the result would be huge."""
    if a == 0 and b < 0:
        raise CalculationError("division by zero")
    if isinstance(b, int) and not isinstance(a, float):
        return _whole_power(a, b)
    if a < 0 and b != math.floor(b):
        raise CalculationError("a negative number has no real power with a fraction as exponent")
    return computed(lambda: math.pow(approximate(a), approximate(b)))


def _whole_power(a: Exact, b: int) -> Number:
    if a in (0, 1, -1):
        return 1 if b % 2 == 0 and (a != 0 or b == 0) else int(a)
    top, bottom = a.numerator, a.denominator
    size = max(top.bit_length(), bottom.bit_length()) - 1
    if max(size, 1) * abs(b) <= MAX_BITS:
        return bounded(Fraction(a) ** b)
    if bottom == 1 and b > 0:
        raise CalculationError(f"{TOO_LARGE} (more than 3000 digits)")
    try:
        base = _POWERS.divide(decimal.Decimal(top), decimal.Decimal(bottom))
        value = float(_POWERS.power(base, decimal.Decimal(b)))
    except decimal.DecimalException:
        raise CalculationError(TOO_LARGE) from None
    return _nonzero(computed(lambda: value))


def whole(a: Number) -> int:
    """The number as an integer. Raises CalculationError where it has a fraction."""
    if a != math.floor(a):
        raise CalculationError("a whole number is needed here")
    return math.floor(a)


def shortest(value: Number) -> Fraction:
    """An exact number as it is; one in floating point as the shortest decimal that means it."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


# --- how a number is written --------------------------------------------------------------------

DIGITS: Final = 10
"""Significant digits of a number that cannot be written exactly."""
MAX_PLACES: Final = 20
"""Significant digits up to which a decimal fraction is written exactly."""


def write(value: Number) -> str:
    """The number, short: exact where it is whole or a short decimal, else to ten digits."""
    if isinstance(value, int):
        return str(value)
    exact = shortest(value)
    with decimal.localcontext(decimal.Context(50, decimal.ROUND_HALF_UP)) as context:
        number = decimal.Decimal(exact.numerator) / decimal.Decimal(exact.denominator)
        shown = number.normalize().as_tuple()
        ends = isinstance(value, Fraction) and not context.flags[decimal.Inexact]
        if ends and max(len(shown.digits), -int(shown.exponent)) <= MAX_PLACES:
            return f"{number.normalize():f}"
        digits = number.adjusted() + 1  # before the point; below 0.1 the zeros behind it, negative
        if number and not -6 < digits < 16:
            text, _, exponent = f"{number:.{DIGITS - 1}e}".partition("e")
            return f"{text.rstrip('0').rstrip('.')}e{int(exponent):+d}"
        places = max(DIGITS - digits, 4)
        return f"{number:.{places}f}".rstrip("0").rstrip(".")
