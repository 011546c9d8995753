"""The notation: terminals, repetitions, and how a grammar is written out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

MAX_REPEAT: Final = 900
"""llama.cpp refuses repetitions of 2000 and more, and counts some twice. A longer one is left open,
its bound to validation."""

TERMINALS: Final[Mapping[str, str]] = {
    "array": '"[" (value ("," value)*)? "]"',
    "boolean": '"true" | "false"',
    "char": r'[^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" (plain | high "\\u" low))',
    "date": (
        '[0-9] [0-9] [0-9] [0-9] "-" ("0" [1-9] | "1" [0-2]) "-" '
        '("0" [1-9] | [12] [0-9] | "3" [01])'
    ),
    "hex": "[0-9a-fA-F]",
    "high": "[dD] [89abAB] hex hex",
    "hour": '[01] [0-9] | "2" [0-3]',
    "integer": '"-"? natural',
    "low": "[dD] [c-fC-F] hex hex",
    "natural": '"0" | [1-9] [0-9]{0,15}',
    "null": '"null"',
    "number": '"-"? positive',
    "object": '"{" (string ":" value ("," string ":" value)*)? "}"',
    "plain": "[0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex",
    "positive": 'natural ("." [0-9]{1,16})? ([eE] [+-]? [0-9]{1,2})?',
    "string": r'"\"" char* "\""',
    "time": 'hour ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? '
    '("Z" | [+-] hour ":" [0-5] [0-9])',
    "value": "object | array | string | number | boolean | null",
}
"""Rules that every grammar may use. An escaped character is never half a surrogate pair."""

_APART = re.compile(r'("(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\])')
_NAME = re.compile(r"[a-z][a-z0-9-]*")


def literal(text: str) -> str:
    """The text as a terminal; what is not plain ASCII by its number."""
    out = []
    for character in text:
        code = ord(character)
        if character in '"\\':
            out.append("\\" + character)
        elif 0x20 <= code < 0x7F:
            out.append(character)
        elif code <= 0xFFFF:
            out.append(f"\\x{code:02X}" if code <= 0xFF else f"\\u{code:04X}")
        else:
            out.append(f"\\U{code:08X}")
    return '"' + "".join(out) + '"'


def compact(value: Any) -> str:
    """A JSON value as the protocol writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def repeat(rule: str, least: int, most: int | None) -> str:
    """The rule so many times, ``""`` for none."""
    least = min(least, MAX_REPEAT)
    if most == 0:
        return ""
    if most is None or most > MAX_REPEAT:
        return f"{rule}*" if least == 0 else f"{rule}{{{least},}}"
    return f"{rule}{{{least},{most}}}" if least != most else f"{rule}{{{least}}}"


def written(rules: Mapping[str, str]) -> str:
    """The grammar as text: the rules that ``root`` leads to, without those that only name another,
    then the terminals that they use."""
    every = {**TERMINALS, **_without_aliases(rules)}
    used, pending = {"root"}, ["root"]
    while pending:
        more = {name for name in _names(every[pending.pop()]) if name not in used}
        used |= more
        pending += more
    order = [
        *(name for name in rules if name in used),
        *(name for name in TERMINALS if name in used),
    ]
    return "".join(f"{name} ::= {every[name]}\n" for name in order)


def _without_aliases(rules: Mapping[str, str]) -> dict[str, str]:
    aliases = {name: body for name, body in rules.items() if _NAME.fullmatch(body)}

    def target(match: re.Match[str]) -> str:
        name = match[0]
        for _ in aliases:  # a chain is no longer than there are aliases
            name = aliases.get(name, name)
        return name

    kept = {}
    for name, body in rules.items():
        if name not in aliases or name == "root":
            pieces = _APART.split(body)
            pieces[::2] = [_NAME.sub(target, piece) for piece in pieces[::2]]
            kept[name] = "".join(pieces)
    return kept


def _names(body: str) -> list[str]:
    """The rules that a rule refers to."""
    return [name for piece in _APART.split(body)[::2] for name in _NAME.findall(piece)]
