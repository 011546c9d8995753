"""A cache of the calls that only read, for the same calls made again.

Nothing is kept across a call that can change things: whatever begins to change anything empties it,
and while that goes on nothing is kept or found. A call that changes things and did not end in time
may still be at it, so after it nothing is kept any more.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, get_args

from mlx_tools.tools.context import ToolContext
from mlx_tools.tools.executor import ToolResult, execute
from mlx_tools.tools.tool import Callee

CacheScope = Literal["off", "run", "session"]
SCOPES: Final[tuple[CacheScope, ...]] = get_args(CacheScope)

_sorted: Final = json.JSONEncoder(sort_keys=True).encode

MAX_ANSWERS: Final = 200
MAX_CHARS: Final = 5_000_000
"""Of all that is kept together."""


class Reads:
    """The answers of one session: kept for one question (``run``), for all (``session``), or
    not at all (``off``)."""

    def __init__(self, scope: CacheScope = "off") -> None:
        self._scope = scope
        self._kept: OrderedDict[str, ToolResult] = OrderedDict()
        self._chars = 0
        self._changing = 0  # calls that go on and may change something
        self._changes = 0  # how often something began to change

    def begin(self) -> None:
        """A new question begins."""
        if self._scope != "session":
            self._kept.clear()
            self._chars = 0

    async def call(
        self, tool: Callee, arguments: Mapping[str, Any], context: ToolContext, **rest: Any
    ) -> ToolResult:
        """Return what `mlx_tools.tools.execute` comes to: found here, or made and kept. A call that
        was approved on a state is made in any case."""
        spec, key, ask = tool.spec, "", context.asks
        mutates = spec.mutates(arguments)
        if self._scope != "off" and spec.cache and not mutates:
            # one text for the same call; 1 and 1.0 are two calls: a tool may tell them apart
            key = _sorted([spec.name, arguments])
            found = None
            if context.expected is None and not self._changing:
                found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return replace(found, duration_ms=0, cached=True)
        changing = over = False

        def change() -> None:
            nonlocal changing
            if not changing:
                changing = True
                self._changing += 1
                self._changes += 1
                self._kept.clear()
                self._chars = 0

        async def asked(inner: ToolContext, question: str, tools: Sequence[str] | None) -> str:
            change()  # the model's calls may change anything
            assert ask is not None
            return await ask(inner, question, tools)

        if mutates:
            change()
        began = self._changes
        try:
            context.asks = None if ask is None else asked
            result = await execute(tool, arguments, context, **rest)
            over = result.error is None or result.error.code != "timeout"
        finally:
            if changing and over:
                self._changing -= 1
        size = len(result.content or "")
        fits = result.content is not None and size <= MAX_CHARS // 4
        if key and fits and began == self._changes and not self._changing:
            old = self._kept.pop(key, None)
            self._kept[key] = result
            self._chars += size - len((old.content if old is not None else None) or "")
            while len(self._kept) > MAX_ANSWERS or self._chars > MAX_CHARS:
                _, dropped = self._kept.popitem(last=False)
                self._chars -= len(dropped.content or "")
        return result
