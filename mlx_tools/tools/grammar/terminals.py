"""JSON's own pieces, as the strict reader takes them, without white space between them.

Every piece has an end: strings a number of characters, numbers a number of digits, small enough
that no number overflows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mlx_tools.tools.grammar.nodes import (
    Chars,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    alt,
    chars,
    maybe,
    repeat,
    seq,
)

MAX_CHARS: Final = 16_384
"""How long a string is at most where its schema does not say."""
LONGEST: Final = 100_000
"""How long a string or a list may be at most, whatever its schema says."""
MAX_KEY: Final = 128
"""How long a key is at most that no schema names."""
MAX_DIGITS: Final = 20
"""Digits of a whole number: enough for 64 bits."""
MAX_FRACTION: Final = 17
"""Digits after the point: enough for any double."""

MAX_STRAY: Final = 16
"""How many beginnings of a closing tag may follow one another: ``<<<`` is three."""

QUOTE: Final = Text('"')
DIGIT: Final = chars("0-9")
_NOT_NAME: Final = re.compile("[^a-z0-9]+")
_HEX: Final = chars("0-9a-fA-F")
_PLAIN: Final = Chars((('"', '"'), ("\\", "\\"), ("\0", "\x1f")), negated=True)

NATURAL: Final = alt([Text("0"), seq(chars("1-9"), repeat(DIGIT, 0, MAX_DIGITS - 1))])
_EXPONENT: Final = seq(
    chars("eE"),
    alt(
        [
            seq(maybe(Text("+")), alt([repeat(DIGIT, 1, 2), seq(Text("1"), repeat(DIGIT, 2, 2))])),
            seq(maybe(Text("+")), Text("2"), chars("0-7"), DIGIT),
            seq(Text("-"), repeat(DIGIT, 1, 3)),
        ]
    ),
)
_MAGNITUDE: Final = seq(
    NATURAL, maybe(seq(Text("."), repeat(DIGIT, 1, MAX_FRACTION))), maybe(_EXPONENT)
)
_SCALARS: Final[Mapping[str, Node]] = {
    "integer": seq(maybe(Text("-")), NATURAL),
    "number": seq(maybe(Text("-")), _MAGNITUDE),
    "positive": _MAGNITUDE,
    "negative": seq(Text("-"), _MAGNITUDE),
    "boolean": alt([Text("true"), Text("false")]),
    "null": Text("null"),
}


def scalar(rules: Rules, name: str) -> Ref:
    """``integer``, ``number``, ``boolean`` or ``null``; ``positive`` and ``negative`` are numbers
    of that sign, or zero."""
    return rules.named(name, _SCALARS[name], terminal=True)


def character(rules: Rules) -> Ref:
    """One character of a string, as it is or escaped; never half a surrogate pair."""
    high = seq(chars("dD"), chars("89abAB"), _HEX, _HEX)
    low = seq(chars("dD"), chars("c-fC-F"), _HEX, _HEX)
    single = alt(
        [
            seq(chars("0-9a-cA-CefEF"), repeat(_HEX, 3, 3)),
            seq(chars("dD"), chars("0-7"), _HEX, _HEX),
        ]
    )
    by_number = seq(Text("u"), alt([single, seq(high, Text("\\u"), low)]))
    escaped = seq(Text("\\"), alt([chars('"\\/bfnrt'), by_number]))
    return rules.named("char", alt([_PLAIN, escaped]), terminal=True)


def string(rules: Rules, least: int, most: int) -> Ref:
    """A string of so many characters."""
    body = seq(QUOTE, repeat(character(rules), least, most), QUOTE)
    name = f"string-{least}-{most}" if least else f"string-{most}"
    return rules.named(name, body, terminal=True)


def other_key(rules: Rules, keys: Iterable[str]) -> Ref:
    """A key that is none of these. It holds no escapes, so it has one spelling alone."""
    tree: dict[str, Any] = {}
    for key in keys:
        node = tree
        for one in key:
            node = node.setdefault(one, {})
        node["end"] = {}
    return rules.add("other-key", seq(QUOTE, _other(tree)), terminal=True)


def _other(tree: Mapping[str, Any]) -> Node:
    """The rest of a key, closing quote included, that leaves the tree somewhere."""
    below = {one: node for one, node in tree.items() if one != "end"}
    barred = tuple((one, one) for one in below if _PLAIN.holds(one))
    elsewhere = Chars((*_PLAIN.ranges, *barred), negated=True)
    options: list[Node] = [seq(elsewhere, Repeat(_PLAIN, 0, MAX_KEY), QUOTE)]
    options += (seq(Text(one), _other(node)) for one, node in below.items() if _PLAIN.holds(one))
    if "end" not in tree:
        options.append(QUOTE)
    return alt(options)


def text_until(end: str, most: int) -> Node:
    """Text of about ``most`` characters at most, up to the first ``end`` and with it.

    The first character of ``end`` comes in it once.
    """
    opening = (end[0], end[0])
    stray = alt(Text(end[:size]) for size in range(1, len(end)))
    broken = alt(
        seq(Text(end[:size]), Chars((opening, (end[size], end[size])), negated=True))
        for size in range(1, len(end))
    )
    strays = Repeat(stray, 0, MAX_STRAY)
    piece = alt([Chars((opening,), negated=True), seq(strays, broken)])
    return seq(repeat(piece, 0, most), strays, Text(end))


def any_value(rules: Rules, max_chars: int) -> Ref:
    """Any JSON value, its strings of ``max_chars`` at most."""
    if "value" in rules.bodies:
        return Ref("value")
    value, array, obj = rules.add("value", Seq(())), Ref("array"), Ref("object")
    pair = seq(string(rules, 0, MAX_KEY), Text(":"), value)
    rules.add("array", several(Text("["), value, Text("]"), 0, None))
    rules.add("object", several(Text("{"), pair, Text("}"), 0, None))
    scalars = [scalar(rules, name) for name in ("number", "boolean", "null")]
    rules.bodies[value.name] = alt([obj, array, string(rules, 0, max_chars), *scalars])
    return value


def several(start: Node, item: Node, end: Node, least: int, most: int | None) -> Node:
    """So many items with commas between them, ``most`` at least 1 where it is given."""
    more = seq(Text(","), item)
    items = seq(item, repeat(more, max(least - 1, 0), None if most is None else most - 1))
    return seq(start, items if least else maybe(items), end)


def rule_name(text: str) -> str:
    """A rule's name that tells of ``text``."""
    return _NOT_NAME.sub("-", text.lower()).strip("-")


# --- formats ----------------------------------------------------------------------------------

_MONTH: Final = alt([seq(Text("0"), chars("1-9")), seq(Text("1"), chars("0-2"))])
_DAY: Final = alt(
    [seq(Text("0"), chars("1-9")), seq(chars("12"), DIGIT), seq(Text("3"), chars("01"))]
)
_HOUR: Final = alt([seq(chars("01"), DIGIT), seq(Text("2"), chars("0-3"))])
_SIXTY: Final = seq(chars("0-5"), DIGIT)
_ZONE: Final = alt([Text("Z"), seq(chars("+-"), _HOUR, Text(":"), _SIXTY)])
_DATE: Final = seq(repeat(DIGIT, 4, 4), Text("-"), _MONTH, Text("-"), _DAY)
_SECONDS: Final = seq(_SIXTY, maybe(seq(Text("."), repeat(DIGIT, 1, 6))))
_TIME: Final = seq(_HOUR, Text(":"), _SIXTY, Text(":"), _SECONDS, _ZONE)
_FOUR: Final = seq(Text("-"), repeat(_HEX, 4, 4))
FORMATS: Final[Mapping[str, Node]] = {
    "date": seq(QUOTE, _DATE, QUOTE),
    "date-time": seq(QUOTE, _DATE, Text("T"), _TIME, QUOTE),
    "time": seq(QUOTE, _TIME, QUOTE),
    "uuid": seq(
        QUOTE, repeat(_HEX, 8, 8), _FOUR, _FOUR, _FOUR, Text("-"), repeat(_HEX, 12, 12), QUOTE
    ),
}
"""The formats of strings that a grammar holds to."""
