"""Whole numbers between two bounds, as a grammar of their digits."""

from __future__ import annotations

from typing import Final

MAX_DIGITS: Final = 16
"""Digits of a number without a bound. Bounds with more digits are left to validation."""


def integers(least: int | None, most: int | None) -> str | None:
    """The grammar of the integers from ``least`` to ``most``. None stands for no bound; as the
    result, for no such number."""
    if least is not None and most is not None and most < least:
        return None
    limit = 10**MAX_DIGITS - 1
    low = -limit if least is None else least
    high = limit if most is None else most
    if max(abs(low), abs(high)) > limit:
        return '"-"? natural'
    parts = []
    if low < 0:
        parts.append(f'"-" ({_naturals(max(1, -high), -low)})')
    if high >= 0:
        parts.append(_naturals(max(low, 0), high))
    return " | ".join(parts)


def _naturals(low: int, high: int) -> str:
    """The digits of the numbers from ``low`` to ``high``, both of 0 or more."""
    parts = []
    while low <= high:
        digits, longest = len(str(low)), len(str(high + 1)) - 1
        if low == 10 ** (digits - 1) and 1 < digits <= longest:  # every number of these lengths
            parts.append(f"[1-9] [0-9]{{{digits - 1},{longest - 1}}}")
            low = 10**longest
        else:
            end = min(high, 10**digits - 1)
            parts.append(_same_length(str(low), str(end)))
            low = end + 1
    return " | ".join(parts)


def _same_length(low: str, high: str) -> str:
    """The digits of the numbers between two of the same length."""
    rest = len(low) - 1
    if rest == 0:
        return _digit(low, high)
    if low[0] == high[0]:
        return f"{_digit(low[0], low[0])} ({_same_length(low[1:], high[1:])})"
    first, last = int(low[0]), int(high[0])
    bottom = top = ""
    if low[1:] != "0" * rest:
        bottom = f"{_digit(low[0], low[0])} ({_same_length(low[1:], '9' * rest)})"
        first += 1
    if high[1:] != "9" * rest:
        top = f"{_digit(high[0], high[0])} ({_same_length('0' * rest, high[1:])})"
        last -= 1
    middle = f"{_digit(str(first), str(last))} [0-9]{{{rest}}}" if first <= last else ""
    return " | ".join(part for part in (bottom, middle, top) if part)


def _digit(low: str, high: str) -> str:
    return f'"{low}"' if low == high else f"[{low}-{high}]"
