"""The numbers of a request, as digits or words, with their units. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from typing import Final

from mlx_tools.decoding.mentions import MAX_MENTIONS, MAX_REQUEST_CHARS, Mention

_NUMBER: Final = re.compile(
    r"(?<![\w.^])(?:(?<![\w)\]])[-+\u2212])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,18}|(?=\.[0-9]))"
    r"(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,3})?(?![0-9])"
)
_SCALE: Final = re.compile(
    r"\s*-?(hundred|thousand|million|billion|trillion|dozen|[kK](?![a-zA-Z]))\b"
)
_SCALES: Final = {
    "hundred": Decimal(100),
    "thousand": Decimal(1000),
    "k": Decimal(1000),
    "million": Decimal(10**6),
    "billion": Decimal(10**9),
    "trillion": Decimal(10**12),
    "dozen": Decimal(12),
}
_UNITS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen twenty"
)
_TENS: Final = "thirty forty fifty sixty seventy eighty ninety"
_WORDS: Final = (
    {word: Decimal(number) for number, word in enumerate(_UNITS.split(" "))}
    | {word: Decimal(10 * number) for number, word in enumerate(_TENS.split(" "), start=3)}
    | {"dozen": Decimal(12), "half": Decimal("0.5"), "quarter": Decimal("0.25")}
    | {"twice": Decimal(2), "thrice": Decimal(3), "hundred": Decimal(100)}
)
_TIMES_A_YEAR: Final = {
    "monthly": 12,
    "quarterly": 4,
    "weekly": 52,
    "daily": 365,
    "semiannually": 2,
    "semi-annually": 2,
    "annually": 1,
    "yearly": 1,
}
_NUMBER_WORD: Final = re.compile(rf"(?<![\w-])(?:{'|'.join(_WORDS)})(?![\w])", re.IGNORECASE)
_OFTEN: Final = re.compile(rf"(?<![\w-])(?:{'|'.join(_TIMES_A_YEAR)})(?!\w)", re.IGNORECASE)
_UNIT: Final = re.compile(r"[\s-]?(°?[^\W\d_]+)")
_PERCENT: Final = re.compile(r"\s*(?:%|per\s?cent\b)")

MONEY: Final = "money"
PER_YEAR: Final = "a year"


def numbers(request: str) -> list[Mention]:
    """The numbers of a request, in order; one with a sign of percent also as a fraction, and the
    adverbs of time as so many times a year."""
    request = request[:MAX_REQUEST_CHARS]
    found: list[Mention] = []
    for match in _NUMBER.finditer(request):
        if match[0]:
            found += _number(request, match)
    taken = {mention.start for mention in found}
    for match in _NUMBER_WORD.finditer(request):
        if match.start() in taken:
            continue
        value, end = _WORDS[match[0].lower()], match.end()
        scale = _SCALE.match(request, end)
        if scale is not None:
            value, end = value * _SCALES[scale[1].lower()], scale.end()
        found.append(Mention(_plain(value), "numeral", match.start(), end, _unit(request, end)))
    for match in _OFTEN.finditer(request):
        times = str(_TIMES_A_YEAR[match[0].lower()])
        found.append(Mention(times, "numeral", *match.span(), PER_YEAR))
    found.sort(key=lambda mention: mention.start)
    return found[:MAX_MENTIONS]


def _number(request: str, match: re.Match[str]) -> list[Mention]:
    start, end = match.span()
    literal = match[0].replace(",", "").replace("\u2212", "-").lstrip("+")
    if literal.lstrip("-").startswith("."):
        literal = literal.replace(".", "0.", 1)
    money = request[max(0, start - 1) : start] in ("$", "€", "£", "¥", "₹")
    made = []
    scale = _SCALE.match(request, end)
    if scale is not None and scale[1] == "K" and not money:
        scale = None  # kelvin
    if scale is not None and not re.search("[eE]", literal):
        scaled = _plain(Decimal(literal) * _SCALES[scale[1].lower()])
        unit = MONEY if money else _unit(request, scale.end())
        made.append(Mention(scaled, "scaled", start, scale.end(), unit))
    percent = _PERCENT.match(request, end)
    unit = MONEY if money else _unit(request, end)
    if percent is not None:
        fraction = _plain(Decimal(literal) / 100)
        made.append(Mention(_trimmed(literal), "percent", start, end, "percent"))
        made.append(Mention(fraction, "fraction", start, end, "percent"))
    else:
        made.append(Mention(_trimmed(literal), "number", start, end, unit))
    return made


def _unit(request: str, end: int) -> str:
    found = _UNIT.match(request, end)
    return found[1].lower() if found is not None else ""


def _trimmed(literal: str) -> str:
    """Without zeros in front, which JSON does not take."""
    sign, digits = ("-", literal[1:]) if literal.startswith("-") else ("", literal)
    head = re.match(r"[0-9]+", digits)
    assert head is not None
    return sign + (head[0].lstrip("0") or "0") + digits[head.end() :]


def _plain(value: Decimal) -> str:
    """A decimal number in digits, exactly."""
    return format(value.normalize(), "f")


# --- units ------------------------------------------------------------------------------------

_TIME: Final = {
    "second": Decimal(1),
    "minute": Decimal(60),
    "hour": Decimal(3600),
    "day": Decimal(86_400),
    "week": Decimal(604_800),
    "month": Decimal(2_592_000),
    "year": Decimal(31_536_000),
}
_LENGTH: Final = {
    "mm": Decimal("0.001"),
    "millimeter": Decimal("0.001"),
    "cm": Decimal("0.01"),
    "centimeter": Decimal("0.01"),
    "meter": Decimal(1),
    "metre": Decimal(1),
    "m": Decimal(1),
    "km": Decimal(1000),
    "kilometer": Decimal(1000),
    "kilometre": Decimal(1000),
}
_MASS: Final = {
    "g": Decimal(1),
    "gram": Decimal(1),
    "kg": Decimal(1000),
    "kilogram": Decimal(1000),
}
_SHORTER: Final = {"min": "minute", "sec": "second", "s": "second", "h": "hour", "hr": "hour"}
_SCALABLE: Final = (_TIME, _LENGTH, _MASS)
_LENGTHS: Final = (
    "mile foot feet ft inch yard distance height width length radius depth diameter altitude"
    " elevation wavelength side"
)
_MONEYS: Final = (
    "money dollar usd euro eur pound gbp yen jpy buck price cost amount principal payment"
    " investment salary budget deposit loan income fee balance revenue expense cash fund capital"
    " profit value"
)
_MASSES: Final = "mass weight pound lb lbs ounce ton"
_TIMES: Final = "duration period age tenure term time"
_PERCENTS: Final = "percent percentage rate ratio yield probability fraction"
_TEMPERATURES: Final = "celsius fahrenheit kelvin temperature degree"
_ELECTRIC: Final = "coulomb volt ampere amp charge voltage current ohm farad"
_DIMENSIONS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("time", frozenset((*_TIME, *_TIMES.split(" ")))),
    ("length", frozenset((*_LENGTH, *_LENGTHS.split(" ")))),
    ("mass", frozenset((*_MASS, *_MASSES.split(" ")))),
    (MONEY, frozenset(_MONEYS.split(" "))),
    ("percent", frozenset(_PERCENTS.split(" "))),
    ("temperature", frozenset(_TEMPERATURES.split(" "))),
    ("electric", frozenset(_ELECTRIC.split(" "))),
)


def singular(word: str) -> str:
    """A unit's name without its plural; shortened ones in full."""
    word = word.lower()
    word = _SHORTER.get(word, word)
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    return _SHORTER.get(word, word)


def dimensions(words: frozenset[str] | set[str]) -> frozenset[str]:
    """What the words, in the singular, measure: time, length, mass, money…"""
    return frozenset(name for name, members in _DIMENSIONS if not members.isdisjoint(words))


def converted(mention: Mention, wanted: frozenset[str] | set[str]) -> Mention | None:
    """A number in another unit: of those that ``wanted`` names, in the singular; None where that
    cannot be, or is the same."""
    unit = singular(mention.unit)
    for scale in _SCALABLE:
        targets = [scale[word] for word in wanted if word in scale]
        if unit not in scale or len(set(targets)) != 1 or scale[unit] == targets[0]:
            continue
        if unit in ("month", "year") and targets[0] < scale["day"]:
            continue
        if unit == "year" and targets[0] == scale["month"]:
            value = Decimal(mention.text) * 12
        else:
            value = Decimal(mention.text) * scale[unit] / targets[0]
        if value == round(value, 6):
            return replace(mention, text=_plain(value), kind="converted")
    return None
