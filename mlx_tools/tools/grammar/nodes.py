"""A grammar as a value: what its rules are made of, and the rules themselves.

A *terminal* is a rule that is regular: it refers to other terminals alone, and to none in a circle.
Only terminals hold `Chars`, so a writer may turn each into one regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Text:
    """This text. One of JSON's tokens, or a part of one: llguidance's lexer takes the longest text
    that it is offered, so what one rule writes in one piece no other may write in two."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character within these ranges (inclusive), or, where ``negated``, outside of them."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def holds(self, character: str) -> bool:
        """Whether it is one of these."""
        return any(low <= character <= high for low, high in self.ranges) != self.negated


@dataclass(frozen=True, slots=True)
class Ref:
    """What another rule says."""

    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other; nothing at all where there are no parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The part so many times; ``most`` is None where there is no end. The part is never empty."""

    part: Node
    least: int
    most: int | None


Node = Text | Chars | Ref | Seq | Alt | Repeat

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^"{}\[\],:]+', re.DOTALL)

EMPTY: Final = Seq(())
"""No character at all."""
NOTHING: Final = Alt(())
"""What no text fits."""


def seq(*parts: Node) -> Node:
    """The parts one after the other."""
    flat: list[Node] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        flat.extend(part.parts if isinstance(part, Seq) else (part,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def tokens(text: str) -> Node:
    """A text that begins and ends where JSON's tokens do, token by token."""
    return seq(*map(Text, _TOKEN.findall(text)))


def alt(options: Iterable[Node]) -> Node:
    """One of the options; an equal one counts once."""
    flat: dict[Node, None] = {}
    for option in options:
        flat |= dict.fromkeys(option.options if isinstance(option, Alt) else (option,))
    found = tuple(option for option in flat if option != EMPTY)
    if EMPTY in flat:
        return maybe(alt(found))
    return found[0] if len(found) == 1 else Alt(found)


def factored(options: Iterable[Node]) -> Node:
    """One of the options; what several of them begin with stands once, before what they go on
    with: a reader then follows one option, not all of them."""
    rests: dict[Node, list[Node]] = {}
    for option in dict.fromkeys(options):
        first, *more = option.parts if isinstance(option, Seq) and option.parts else (option,)
        rests.setdefault(first, []).append(seq(*more))
    return alt(
        seq(first, factored(after) if len(after) > 1 else after[0])
        for first, after in rests.items()
    )


def repeat(part: Node, least: int, most: int | None) -> Node:
    """The part so many times."""
    if most is not None and most < least:
        return NOTHING
    if most == 0 or part == EMPTY:
        return EMPTY
    if part == NOTHING:
        return NOTHING if least else EMPTY
    return part if least == most == 1 else Repeat(part, least, most)


def maybe(part: Node) -> Node:
    """The part or nothing at all."""
    if isinstance(part, Repeat) and part.least <= 1:
        return Repeat(part.part, 0, part.most)
    return repeat(part, 0, 1)


def chars(ranges: str) -> Chars:
    """Characters as a class writes them: ``a-z_``, ``^`` first for all others.

    A ``-`` that stands for itself comes last.
    """
    negated = ranges.startswith("^")
    found: list[tuple[str, str]] = []
    at = int(negated)
    while at < len(ranges):
        wide = ranges[at + 1 : at + 2] == "-" and at + 2 < len(ranges)
        found.append((ranges[at], ranges[at + 2 if wide else at]))
        at += 3 if wide else 1
    return Chars(tuple(found), negated)


class Rules:
    """Named rules, among them the terminals."""

    def __init__(self) -> None:
        self.bodies: dict[str, Node] = {}
        self.terminals: set[str] = set()

    def add(self, name: str, body: Node, *, terminal: bool = False) -> Ref:
        """Add a rule under this name, or one like it that is free."""
        stem, number = name, 1
        while name in self.bodies:
            number += 1
            name = f"{stem}-{number}"
        self.bodies[name] = body
        if terminal:
            self.terminals.add(name)
        return Ref(name)

    def named(self, name: str, body: Node, *, terminal: bool = False) -> Ref:
        """The rule of this name; added where it is not there yet."""
        return Ref(name) if name in self.bodies else self.add(name, body, terminal=terminal)


def references(node: Node) -> list[str]:
    """The names a node refers to, in the order in which they stand."""
    found: list[str] = []
    pending: list[Node] = [node]
    while pending:
        match pending.pop():
            case Ref(name):
                found.append(name)
            case Seq(parts) | Alt(parts):
                pending.extend(reversed(parts))
            case Repeat(part):
                pending.append(part)
    return found


def without_dead_ends(rules: Rules) -> None:
    """Take out what no text fits: a rule that cannot end, and all that needs it.

    The body of a rule that fits nothing becomes `NOTHING`.
    """
    alive: set[str] = set()
    before = -1
    while len(alive) != before:
        before = len(alive)
        alive |= {name for name, body in rules.bodies.items() if _ends(body, alive)}

    def kept(node: Node) -> Node:
        match node:
            case Ref(name):
                return node if name in alive else NOTHING
            case Seq(parts):
                return seq(*map(kept, parts))
            case Alt(options):
                return alt(map(kept, options))
            case Repeat(part, least, most):
                return repeat(kept(part), least, most)
        return node

    if len(alive) < len(rules.bodies):
        for name, body in rules.bodies.items():
            rules.bodies[name] = kept(body)


def _ends(node: Node, alive: set[str]) -> bool:
    """Whether some text fits a node, where the rules in ``alive`` are known to have one."""
    match node:
        case Ref(name):
            return name in alive
        case Seq(parts):
            return all(_ends(part, alive) for part in parts)
        case Alt(options):
            return any(_ends(option, alive) for option in options)
        case Repeat(part, least):
            return least == 0 or _ends(part, alive)
    return True
