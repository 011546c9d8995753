"""The calculator's functions and constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from mlx_tools.toolbox.numbers import (
    CalculationError,
    Number,
    add,
    approximate,
    bounded,
    computed,
    divide,
    floor,
    modulo,
    power,
    shortest,
    whole,
)


def sqrt(a: Number) -> Number:
    if a < 0:
        raise CalculationError("a negative number has no real square root")
    if not isinstance(a, float):
        root = Fraction(math.isqrt(a.numerator), math.isqrt(a.denominator))
        if root * root == a:
            return bounded(root)
    return computed(lambda: math.sqrt(approximate(a)))


def cbrt(a: Number) -> Number:
    return computed(lambda: math.cbrt(approximate(a)))


def ceil(a: Number) -> Number:
    return bounded(math.ceil(a))


def truncate(a: Number) -> Number:
    return bounded(math.trunc(a))


def round_to(a: Number, digits: Number = 0) -> Number:
    """Rounded to so many decimal places; halves go away from zero, as taught in school."""
    places = whole(digits)
    if abs(places) > 300:
        raise CalculationError("at most 300 decimal places")
    scale = Fraction(10) ** places
    size = Fraction(math.floor(abs(shortest(a)) * scale + Fraction(1, 2))) / scale
    return bounded(size if a >= 0 else -size)


def factorial(a: Number) -> Number:
    n = whole(a)
    if not 0 <= n <= 1000:
        raise CalculationError("a factorial is of a whole number from 0 to 1000")
    return bounded(math.factorial(n))


def log(a: Number, base: Number | None = None) -> Number:
    """The natural logarithm, or that to a base."""
    if base is None:
        return _logarithm(a, math.log)
    if base <= 0 or base == 1:
        raise CalculationError("the base of a logarithm is positive and not 1")
    if base == 2:
        return _logarithm(a, math.log2)
    if base == 10:
        return _logarithm(a, math.log10)
    return divide(_logarithm(a, math.log), _logarithm(base, math.log))


def _logarithm(a: Number, function: Callable[[float], float]) -> float:
    if a <= 0:
        raise CalculationError("a logarithm is of a positive number")
    if isinstance(a, Fraction):
        size = a.numerator.bit_length() - a.denominator.bit_length()
        if abs(size) > 1000:  # beyond floating point, but not beyond its logarithm
            top, bottom = a.numerator, a.denominator
            return computed(lambda: function(top) - function(bottom))
        return computed(lambda: function(float(a)))
    return computed(lambda: function(a))


def circular(function: Callable[[float], float]) -> Callable[[Number], Number]:
    """Sine, cosine and tangent, with the zeros and the poles that pi in floating point misses."""

    def of(a: Number) -> Number:
        angle = approximate(a)
        value = computed(lambda: function(angle))
        if abs(value) > 1e15:
            raise CalculationError("the function has no real value here")
        return 0 if abs(value) < 1e-15 and abs(angle) > 1e-6 else value

    return of


def floating(function: Callable[..., float]) -> Callable[..., Number]:
    """A function of ``math``, in floating point."""

    def of(*values: Number) -> Number:
        return computed(lambda: function(*(approximate(value) for value in values)))

    return of


def of_whole(function: Callable[..., int]) -> Callable[..., Number]:
    """A function of ``math``, on whole numbers."""
    return lambda *values: bounded(function(*(whole(value) for value in values)))


def largest(*values: Number) -> Number:
    return max(values)


def smallest(*values: Number) -> Number:
    return min(values)


def total(*values: Number) -> Number:
    result: Number = 0
    for value in values:
        result = add(result, value)
    return result


def mean(*values: Number) -> Number:
    return divide(total(*values), len(values))


CONSTANTS: Final[Mapping[str, Number]] = {"pi": math.pi, "π": math.pi, "e": math.e, "tau": math.tau}

ANY: Final = 100
"""How many arguments a function takes that takes any number."""

FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Number], int, int]]] = {
    "abs": (abs, 1, 1),
    "acos": (floating(math.acos), 1, 1),
    "asin": (floating(math.asin), 1, 1),
    "atan": (floating(math.atan), 1, 1),
    "atan2": (floating(math.atan2), 2, 2),
    "average": (mean, 1, ANY),
    "avg": (mean, 1, ANY),
    "cbrt": (cbrt, 1, 1),
    "ceil": (ceil, 1, 1),
    "cos": (circular(math.cos), 1, 1),
    "cosh": (floating(math.cosh), 1, 1),
    "degrees": (floating(math.degrees), 1, 1),
    "exp": (floating(math.exp), 1, 1),
    "factorial": (factorial, 1, 1),
    "floor": (floor, 1, 1),
    "gcd": (of_whole(math.gcd), 1, ANY),
    "hypot": (floating(math.hypot), 1, ANY),
    "int": (truncate, 1, 1),
    "lcm": (of_whole(math.lcm), 1, ANY),
    "ln": (log, 1, 1),
    "log": (log, 1, 2),
    "log10": (lambda a: log(a, 10), 1, 1),
    "log2": (lambda a: log(a, 2), 1, 1),
    "max": (largest, 1, ANY),
    "mean": (mean, 1, ANY),
    "min": (smallest, 1, ANY),
    "mod": (modulo, 2, 2),
    "pow": (power, 2, 2),
    "radians": (floating(math.radians), 1, 1),
    "round": (round_to, 1, 2),
    "sin": (circular(math.sin), 1, 1),
    "sinh": (floating(math.sinh), 1, 1),
    "sqrt": (sqrt, 1, 1),
    "sum": (total, 1, ANY),
    "tan": (circular(math.tan), 1, 1),
    "tanh": (floating(math.tanh), 1, 1),
    "trunc": (truncate, 1, 1),
}
