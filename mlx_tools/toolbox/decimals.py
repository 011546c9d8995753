"""How the calculator writes a number: short, and exact where it is whole or a short decimal."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from mlx_tools.toolbox.numbers import Number, shortest

DIGITS: Final = 10
"""Significant digits of a number that cannot be written exactly."""
MAX_PLACES: Final = 20
"""Significant digits up to which a decimal fraction is written exactly."""


def write(value: Number) -> str:
    """The number, short: exact where it is whole or a short decimal, else to ten digits."""
    if isinstance(value, int):
        return str(value)
    exact = shortest(value)
    size, sign = abs(exact), "-" if exact < 0 else ""
    if isinstance(value, Fraction) and (text := _terminating(size)) is not None:
        return sign + text
    if size >= 10**15 or 0 < size < Fraction(1, 10**6):
        return sign + _scientific(size)
    digits = len(str(math.floor(size)))
    if size < 1:
        places = DIGITS + (Fraction(1, 10) > size) * (
            len(str(math.floor(1 / size))) - 1 if size else 0
        )
    else:
        places = max(DIGITS - digits, 4)
    return sign + _decimal(size, places)


def _terminating(size: Fraction) -> str | None:
    """A decimal fraction written exactly; None where it does not end, or not soon."""
    for places in range(MAX_PLACES + 1):
        if 10**places % size.denominator == 0:
            text = _decimal(size, places)
            digits = len(text.replace(".", "").lstrip("0"))
            return text if digits <= MAX_PLACES else None
    return None


def _scientific(size: Fraction) -> str:
    exponent = len(str(math.floor(size))) - 1 if size >= 1 else -len(str(math.floor(1 / size)))
    digits = _decimal(size / Fraction(10) ** exponent, DIGITS - 1)
    if digits in ("10", "0.1"):  # rounded up, or an exact power of ten
        exponent, digits = exponent + (1 if digits == "10" else -1), "1"
    return f"{digits}e{exponent:+d}"


def _decimal(size: Fraction, places: int) -> str:
    """With at most so many decimal places, and no zeros at the end."""
    scaled = str(math.floor(size * 10**places + Fraction(1, 2))).rjust(places + 1, "0")
    if places == 0:
        return scaled
    return f"{scaled[:-places]}.{scaled[-places:]}".rstrip("0").rstrip(".")
