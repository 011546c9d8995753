"""A grammar as text: GBNF for llama.cpp's server and vLLM, Lark as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from mlx_tools.tools.grammar.nodes import (
    Alt,
    Chars,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    alt,
    references,
    repeat,
    seq,
)

MAX_REPEAT: Final = 900
"""llama.cpp refuses repetitions of 2000 and more, and counts some twice. It also refuses those of
something that is long itself, unless that is a rule of its own."""

ROOT: Final = "root"

_IN_CLASS: Final = frozenset("\\]^-[")
_IN_REGEX: Final = frozenset(".^$*+?()[]{}|\\/-&~#")
_PLAIN: Final = frozenset(map(chr, range(0x20, 0x7F)))


def to_gbnf(rules: Rules) -> str:
    """The grammar from the rule ``root`` on. Repetitions of more than `MAX_REPEAT` are nested."""
    short = _with_short_repeats(rules)
    lines = [f"{name} ::= {_gbnf(short.bodies[name])}\n" for name in _used(short)]
    return "".join(lines)


def to_lark(rules: Rules) -> str:
    """The same for llguidance: each terminal one regular expression."""
    lines = ["%llguidance {}\n"]
    for name in _used(rules, into_terminals=False):
        body = rules.bodies[name]
        if name in rules.terminals:
            lines.append(f"{_lark_name(name, rules)}: /{_regex(body, rules)}/\n")
        else:
            lines.append(f"{_lark_name(name, rules)}: {_lark(body, rules)}\n")
    return "".join(lines)


def _used(rules: Rules, *, into_terminals: bool = True) -> list[str]:
    """The rules that ``root`` leads to, each once, in the order in which they come up."""
    found = {ROOT: None}
    pending = [ROOT]
    while pending:
        name = pending.pop()
        found[name] = None
        if into_terminals or name not in rules.terminals:
            below = references(rules.bodies[name])
            pending.extend(other for other in reversed(below) if other not in found)
    return list(found)


# --- GBNF -------------------------------------------------------------------------------------


def _with_short_repeats(rules: Rules) -> Rules:
    """The same rules, as `MAX_REPEAT` has it."""
    result = Rules()
    result.bodies, result.terminals = dict(rules.bodies), set(rules.terminals)
    blocks: dict[Node, Ref] = {}
    pieces: dict[Node, Ref] = {}

    def single(part: Node) -> Node:
        if isinstance(part, Ref | Text | Chars):
            return part
        pieces[part] = pieces.get(part) or result.add("part", part)
        return pieces[part]

    def many(part: Node, least: int, most: int | None) -> Node:
        def exactly(count: int) -> Node:
            whole, rest = divmod(count, MAX_REPEAT)
            return seq(repeat(block, whole, whole), repeat(part, rest, rest))

        block = blocks.get(part) or result.add("block", Repeat(part, MAX_REPEAT, MAX_REPEAT))
        blocks[part] = block
        if most is None:
            return seq(exactly(least), Repeat(part, 0, None))
        whole, rest = divmod(most - least, MAX_REPEAT)
        last = seq(repeat(block, whole, whole), repeat(part, 0, rest))
        if whole == 0:
            return seq(exactly(least), last)
        fewer = seq(repeat(block, 0, whole - 1), repeat(part, 0, MAX_REPEAT - 1))
        return seq(exactly(least), alt([fewer, last]))

    def short(node: Node) -> Node:
        match node:
            case Seq(parts):
                return seq(*map(short, parts))
            case Alt(options):
                return alt(map(short, options))
            case Repeat(part, least, most):
                inner = short(part)
                if max(least, most or 0) > 1:
                    inner = single(inner)
                if max(least, most or 0) > MAX_REPEAT:
                    return many(inner, least, most)
                return Repeat(inner, least, most)
        return node

    for name, body in rules.bodies.items():
        result.bodies[name] = short(body)
    return result


def _gbnf(node: Node) -> str:
    match node:
        case Text(text):
            return '"' + "".join(map(_gbnf_character, text)) + '"'
        case Chars(ranges, negated):
            pairs = (
                _range(low, high, lambda c: _gbnf_character(c, "\\]^-")) for low, high in ranges
            )
            return f"[{'^' if negated else ''}{''.join(pairs)}]"
        case Ref(name):
            return name
        case Seq(parts):
            return " ".join(_grouped(part, _gbnf) for part in parts) or '""'
        case Alt(options):
            return " | ".join(map(_gbnf, options))
        case Repeat(part, least, most):
            return _grouped(part, _gbnf, whole=True) + _times(least, most)


def _gbnf_character(character: str, escaped: str = '"\\') -> str:
    if character in escaped:
        return "\\" + character
    if " " <= character < "\x7f" or character > "\x9f":
        return character  # as it is: readers differ in what they take \\x and \\u for
    return f"\\x{ord(character):02X}"


def _gbnf_class_character(character: str) -> str:
    if character in "^-":  # llama.cpp knows no escape of these by themselves
        return f"\\x{ord(character):02X}"
    return _gbnf_character(character, "[]\\")


# --- Lark -------------------------------------------------------------------------------------


def _lark_name(name: str, rules: Rules) -> str:
    if name == ROOT:
        return "start"
    plain = name.replace("-", "_")
    return plain.upper() if name in rules.terminals else plain


def _lark(node: Node, rules: Rules) -> str:
    def below(part: Node) -> str:
        return _lark(part, rules)

    match node:
        case Text(text):
            return json.dumps(text)
        case Ref(name):
            return _lark_name(name, rules)
        case Seq(parts):
            return " ".join(_grouped(part, below) for part in parts) or '""'
        case Alt(options):
            return " | ".join(map(below, options))
        case Repeat(part, least, most):
            return _grouped(part, below, whole=True) + _times(least, most)
        case Chars():
            raise ValueError("a class of characters outside of a terminal")


def _regex(node: Node, rules: Rules) -> str:
    match node:
        case Text(text):
            return "".join(map(_regex_character, text))
        case Chars(ranges, negated):
            pairs = "".join(_range(low, high, _class_character) for low, high in ranges)
            return f"[{'^' if negated else ''}{pairs}]"
        case Ref(name):
            return _regex_group(rules.bodies[name], rules)
        case Seq(parts):
            return "".join(_regex_group(part, rules, Alt) for part in parts)
        case Alt(options):
            return "|".join(_regex(option, rules) for option in options)
        case Repeat(part, least, most):
            return _regex_group(part, rules) + _times(least, most)


def _regex_group(node: Node, rules: Rules, *kinds: type) -> str:
    """A node as part of a larger expression; ``kinds`` are those that need brackets there."""
    while isinstance(node, Ref):
        node = rules.bodies[node.name]
    single = isinstance(node, Chars) or (isinstance(node, Text) and len(node.text) == 1)
    bare = not isinstance(node, kinds) if kinds else single
    return _regex(node, rules) if bare else f"({_regex(node, rules)})"


def _regex_character(character: str) -> str:
    if character in _IN_REGEX:
        return "\\" + character
    return character if character in _PLAIN else f"\\x{{{ord(character):X}}}"


def _class_character(character: str) -> str:
    if character in _IN_CLASS or character in "/&~":
        return "\\" + character
    return character if character in _PLAIN else f"\\x{{{ord(character):X}}}"


# --- both -------------------------------------------------------------------------------------


def _range(low: str, high: str, written: Callable[[str], str]) -> str:
    return written(low) if low == high else f"{written(low)}-{written(high)}"


def _times(least: int, most: int | None) -> str:
    match least, most:
        case 0, 1:
            return "?"
        case 0, None:
            return "*"
        case 1, None:
            return "+"
    if most is None:
        return f"{{{least},}}"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def _grouped(node: Node, written: Callable[[Node], str], *, whole: bool = False) -> str:
    """A part of a sequence, or (``whole``) what is repeated, in brackets where it needs them."""
    open_ = isinstance(node, Alt) or (whole and isinstance(node, Seq | Repeat))
    return f"({written(node)})" if open_ else written(node)
