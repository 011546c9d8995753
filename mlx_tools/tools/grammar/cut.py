"""What may follow a beginning: a grammar with a text cut from its front.

By derivatives (Brzozowski): what is left of a node after one character is a node again, made only
where the text leads. No rule here comes to itself before it has taken a character, so it ends.
"""

from __future__ import annotations

from mlx_tools.tools.grammar.nodes import (
    EMPTY,
    NOTHING,
    Alt,
    Chars,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    alt,
    repeat,
    seq,
)


def cut(rules: Rules, node: Node, text: str) -> Node:
    """What may follow ``text`` where ``node`` was due; `NOTHING` where it cannot begin so.

    What is left of a terminal is added to ``rules`` as a terminal of its own.
    """
    cutter = _Cutter(rules)
    for character in text:
        node = cutter.after(node, character)
    return node


class _Cutter:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._optional: dict[str, bool] = {}

    def after(self, node: Node, character: str) -> Node:
        """What is left of a node after one character."""
        match node:
            case Text(text):
                if not text.startswith(character):
                    return NOTHING
                return Text(text[1:]) if len(text) > 1 else EMPTY
            case Chars():
                return EMPTY if node.holds(character) else NOTHING
            case Ref(name):
                return self._after_rule(name, character)
            case Alt(options):
                return alt(self.after(option, character) for option in options)
            case Repeat(part, least, most):
                again = repeat(part, max(least - 1, 0), None if most is None else most - 1)
                return seq(self.after(part, character), again)
            case Seq(parts):
                return self._after_parts(parts, character)

    def _after_parts(self, parts: tuple[Node, ...], character: str) -> Node:
        found: list[Node] = []
        for number, part in enumerate(parts):
            found.append(seq(self.after(part, character), *parts[number + 1 :]))
            if not self._is_optional(part):
                break
        return alt(found)

    def _after_rule(self, name: str, character: str) -> Node:
        left = self.after(self._rules.bodies[name], character)
        if name not in self._rules.terminals or isinstance(left, Text):
            return left
        if left in (NOTHING, EMPTY):
            return left
        return self._rules.add("rest", left, terminal=True)

    def _is_optional(self, node: Node) -> bool:
        """Whether nothing at all will do for a node."""
        match node:
            case Text() | Chars():
                return False
            case Ref(name):
                if name not in self._optional:
                    self._optional[name] = self._is_optional(self._rules.bodies[name])
                return self._optional[name]
            case Seq(parts):
                return all(map(self._is_optional, parts))
            case Alt(options):
                return any(map(self._is_optional, options))
            case Repeat(_, least):
                return least == 0
