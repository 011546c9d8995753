"""Texts that a regular expression matches, drawn by a seeded generator."""

from __future__ import annotations

from random import Random
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

MORE = 40
"""How many times at most an endless repeat is drawn beyond its least."""
PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
CATEGORIES = {
    "CATEGORY_DIGIT": "0123456789",
    "CATEGORY_SPACE": " ",
    "CATEGORY_WORD": "".join(c for c in PRINTABLE if c.isalnum()) + "_",
}


def sample(pattern: str, random: Random) -> str:
    """A text that the pattern matches, but for what it looks ahead or behind to."""
    return _text(_parser.parse(pattern), random)


def _text(nodes: Any, random: Random) -> str:
    return "".join(_node(str(op), value, random) for op, value in nodes)


def _node(op: str, value: Any, random: Random) -> str:
    if op == "LITERAL":
        return chr(value)
    if op == "NOT_LITERAL":
        return random.choice(PRINTABLE.replace(chr(value), ""))
    if op == "ANY":
        return random.choice(PRINTABLE)
    if op == "IN":
        return random.choice(_characters(value))
    if op == "BRANCH":
        return _text(random.choice(value[1]), random)
    if op == "SUBPATTERN":
        return _text(value[3], random)
    if op in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        least, most, inner = value
        if most == _constants.MAXREPEAT:
            most = least + MORE
        return "".join(_text(inner, random) for _ in range(random.randint(least, most)))
    if op in {"AT", "ASSERT", "ASSERT_NOT"}:
        return ""
    raise ValueError(op)


def _characters(items: Any) -> str:
    found: set[str] = set()
    negated = False
    for op, value in items:
        if str(op) == "NEGATE":
            negated = True
        elif str(op) == "LITERAL":
            found.add(chr(value))
        elif str(op) == "RANGE":
            found |= {chr(code) for code in range(value[0], min(value[1], 0x7E) + 1)}
        elif str(op) == "CATEGORY":
            name = str(value)
            if "_NOT_" in name:
                found |= set(PRINTABLE) - set(CATEGORIES[name.replace("_NOT_", "_")])
            else:
                found |= set(CATEGORIES[name])
    return "".join(sorted(set(PRINTABLE) - found if negated else found))
