"""A small reader of GBNF: says whether a text matches a grammar, and makes texts that do."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r'\s*(?:("(?:[^"\\]|\\.)*")|(\[(?:[^\]\\]|\\.)*\])|([A-Za-z][A-Za-z0-9-]*)|(\{\d+(?:,\d*)?\})'
    r"|([()|*+?]))"
)
ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
RULE_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")


@dataclass
class Literal:
    text: str


@dataclass
class Class:
    ranges: list[tuple[str, str]]
    negated: bool

    def holds(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated


@dataclass
class Reference:
    name: str


@dataclass
class Sequence:
    parts: list[Node] = field(default_factory=list)


@dataclass
class Choice:
    options: list[Node]


@dataclass
class Repeat:
    part: Node
    least: int
    most: int | None


Node = Literal | Class | Reference | Sequence | Choice | Repeat


class Grammar:
    """A grammar in GBNF. Raises ValueError for a text that is none."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, Node] = {}
        for line in text.splitlines():
            name, arrow, body = line.partition(" ::= ")
            if not arrow or not RULE_NAME.fullmatch(name) or name in self.rules:
                raise ValueError(f"not a rule: {line!r}")
            self.rules[name] = _Parser(body).whole()
        for node in list(self.rules.values()):
            self._check(node)
        if "root" not in self.rules:
            raise ValueError("no root")

    def _check(self, node: Node) -> None:
        match node:
            case Reference(name) if name not in self.rules:
                raise ValueError(f"no rule {name}")
            case Sequence(parts) | Choice(parts):
                for part in parts:
                    self._check(part)
            case Repeat(part, least, most):
                if most is not None and (most < least or most >= 2000):
                    raise ValueError(f"repetition {least} to {most}")
                self._check(part)

    def matches(self, text: str) -> bool:
        """Whether the whole text matches the rule ``root``."""
        self._text = text
        self._known: dict[tuple[str, int], frozenset[int]] = {}
        return len(text) in self._ends(Reference("root"), 0)

    def _ends(self, node: Node, at: int) -> frozenset[int]:
        match node:
            case Literal(text):
                return frozenset((at + len(text),) if self._text.startswith(text, at) else ())
            case Class():
                found = at < len(self._text) and node.holds(self._text[at])
                return frozenset((at + 1,) if found else ())
            case Reference(name):
                if (name, at) not in self._known:
                    self._known[name, at] = self._ends(self.rules[name], at)
                return self._known[name, at]
            case Choice(options):
                return frozenset().union(*(self._ends(option, at) for option in options))
            case Sequence(parts):
                ends = frozenset((at,))
                for part in parts:
                    ends = frozenset().union(*(self._ends(part, end) for end in ends))
                return ends
            case Repeat(part, least, most):
                return self._repeated(part, least, most, at)

    def _repeated(self, part: Node, least: int, most: int | None, at: int) -> frozenset[int]:
        found: set[int] = set()
        ends, count = frozenset((at,)), 0
        while ends:
            if count >= least:
                found |= ends
            if most is not None and count >= most:
                break
            following = frozenset().union(*(self._ends(part, end) for end in ends))
            ends, count = (following - found if count >= least else following), count + 1
        return frozenset(found)

    def sample(self, chance: random.Random) -> str:
        """A text that matches, of bounded size."""
        return self._make(Reference("root"), chance, 0)

    def _make(self, node: Node, chance: random.Random, depth: int) -> str:
        match node:
            case Literal(text):
                return text
            case Class():
                return _some_character(node, chance)
            case Reference(name):
                return self._make(self.rules[name], chance, depth + 1)
            case Choice(options):
                if depth > 40:  # the shortest way out
                    options = sorted(options, key=self._weight)[:1]
                return self._make(chance.choice(options), chance, depth)
            case Sequence(parts):
                return "".join(self._make(part, chance, depth) for part in parts)
            case Repeat(part, least, most):
                extra = 0 if depth > 30 else chance.choice((0, 0, 1, 2, 3))
                count = least + extra if most is None else min(least + extra, most)
                return "".join(self._make(part, chance, depth) for _ in range(count))

    def _weight(self, node: Node) -> int:
        match node:
            case Reference("array" | "object" | "value"):
                return 100
            case Reference(name):
                return len(str(self.rules[name]))
        return len(str(node))


def _some_character(node: Class, chance: random.Random) -> str:
    if not node.negated:
        low, high = chance.choice(node.ranges)
        return chr(chance.randint(ord(low), ord(high)))
    while True:
        character = chance.choice('ab1 {}[]:,"\\\n<|é😀\u2028')
        if node.holds(character):
            return character


class _Parser:
    def __init__(self, body: str) -> None:
        self._tokens: list[str] = []
        at = 0
        while at < len(body.rstrip()):
            match = TOKEN.match(body, at)
            if match is None:
                raise ValueError(f"unexpected {body[at:]!r}")
            self._tokens.append(match[0].strip())
            at = match.end()

    def whole(self) -> Node:
        node = self._choice()
        if self._tokens:
            raise ValueError(f"unexpected {self._tokens[0]}")
        return node

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._tokens and self._tokens[0] == "|":
            self._tokens.pop(0)
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._tokens and self._tokens[0] not in "|)":
            parts.append(self._repeated(self._single()))
        if not parts:
            raise ValueError("an empty alternative")
        return Sequence(parts)

    def _repeated(self, node: Node) -> Node:
        while self._tokens and (self._tokens[0] in ("*", "+", "?") or self._tokens[0][0] == "{"):
            token = self._tokens.pop(0)
            if token[0] == "{":
                least, comma, most = token[1:-1].partition(",")
                end = (int(most) if most else None) if comma else int(least)
                node = Repeat(node, int(least), end)
            else:
                node = Repeat(node, int(token == "+"), 1 if token == "?" else None)
        return node

    def _single(self) -> Node:
        token = self._tokens.pop(0)
        if token == "(":
            node = self._choice()
            if not self._tokens or self._tokens.pop(0) != ")":
                raise ValueError("a parenthesis is not closed")
            return node
        if token[0] == '"':
            return Literal(ESCAPE.sub(_character, token[1:-1]))
        if token[0] == "[":
            return _class(token[1:-1])
        return Reference(token)


def _character(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    return chr(int(digits, 16)) if digits else PLAIN.get(match[4], match[4])


def _class(body: str) -> Class:
    negated = body.startswith("^")
    pieces = re.findall(ESCAPE.pattern + r"|(.)", body[negated:], re.DOTALL)
    marks: list[str] = []
    for eight, sixteen, wide, escaped, plain in pieces:
        digits = eight or sixteen or wide
        marks.append(chr(int(digits, 16)) if digits else PLAIN.get(escaped, escaped) or plain)
    ranges = []
    at = 0
    while at < len(marks):
        if at + 2 < len(marks) and marks[at + 1] == "-":
            ranges.append((marks[at], marks[at + 2]))
            at += 3
        else:
            ranges.append((marks[at], marks[at]))
            at += 1
    return Class(ranges, negated)
