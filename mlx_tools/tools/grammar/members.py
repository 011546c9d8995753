"""The grammar of an object's members: in one order, some of them optional, some of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mlx_tools.tools.grammar.nodes import NOTHING, Node, Ref, Rules, Text, alt, maybe, repeat, seq

MAX_STATES: Final = 600
"""How many states may be spent on counting members; beyond, the count is left to validation."""

_COMMA: Final = Text(",")


class Members:
    """The members of one object: ``pairs``, each with whether it must be there, then any number of
    ``extra``. There are ``least`` to ``most`` of them; ``counted`` says whether that is held to.
    """

    def __init__(
        self,
        rules: Rules,
        name: str,
        pairs: Sequence[tuple[Node, bool]],
        extra: Node,
        least: int,
        most: int | None,
    ) -> None:
        self._rules = rules
        self._name = name
        self._pairs = pairs
        self._extra = extra
        needed = sum(required for _, required in pairs)
        if least <= needed:
            least = 0
        if most is not None and extra == NOTHING and most >= len(pairs):
            most = None
        cap = max(least, 1 if most is None else most + 1)
        self.counted = cap * len(pairs) <= MAX_STATES
        self._least, self._most = (least, most) if self.counted else (0, None)
        self._cap = cap if self.counted else 1
        self._made: dict[tuple[int, int], Node] = {}

    def node(self) -> Node:
        """What stands between the braces."""
        for number in reversed(range(len(self._pairs) + 1)):
            for count in range(min(number, self._cap) + 1):
                self._made[number, count] = self._shared(number, count, self._new(number, count))
        return self._made[0, 0]

    def _new(self, number: int, count: int) -> Node:
        """The members from one on, where so many have been written."""
        if self._most is not None and count > self._most:
            return NOTHING
        if number == len(self._pairs):
            return self._extras(count)
        pair, required = self._pairs[number]
        after = self._made[number + 1, min(count + 1, self._cap)]
        without = self._made[number + 1, count]
        one = seq(_COMMA, pair) if count else pair
        if required:
            return seq(one, after)
        if after == without:
            return seq(maybe(one), after)
        return alt([seq(one, after), without])

    def _extras(self, count: int) -> Node:
        least = max(self._least - count, 0)
        most = None if self._most is None else self._most - count
        more = seq(_COMMA, self._extra)
        if count or most == 0:
            return repeat(more, least, most)
        first = seq(
            self._extra, repeat(more, max(least - 1, 0), None if most is None else most - 1)
        )
        return first if least else maybe(first)

    def _shared(self, number: int, count: int, node: Node) -> Node:
        """A rule for what several places go on to."""
        several = number > 1 and count > 0 and not any(needed for _, needed in self._pairs[:number])
        if node == NOTHING or isinstance(node, Ref | Text) or not (several or self._cap > 1):
            return node
        return self._rules.add(self._name, node)
