"""What calls that only read were answered, for the same calls made again.

Nothing is kept across a call that can change things: whatever begins to change anything empties it,
and while that goes on nothing is kept or found. A call that changes things and did not end in time
may still be at it, so after it nothing is kept any more.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

from mlx_tools.messages import ToolSpec

if TYPE_CHECKING:
    from mlx_tools.tools.context import Ask, ToolContext
    from mlx_tools.tools.executor import ToolResult
    from mlx_tools.tools.tool import Callee

CacheScope = Literal["off", "run", "session"]
SCOPES: Final[tuple[CacheScope, ...]] = get_args(CacheScope)

MAX_ANSWERS: Final = 200
MAX_CHARS: Final = 5_000_000
"""Of all that is kept together."""


class Reads:
    """What was answered in one session: kept for one question (``run``), for all (``session``), or
    not at all (``off``)."""

    def __init__(self, scope: CacheScope = "off") -> None:
        self._scope = scope
        self._kept: OrderedDict[str, ToolResult] = OrderedDict()
        self._chars = 0
        self._changing = 0
        self._changes = 0

    def begin(self) -> None:
        """A new question begins."""
        if self._scope != "session":
            self._clear()

    def find(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> ToolResult | None:
        """What the same call was answered, where it still holds."""
        if self._changing or not self._kept or not _repeatable(spec, arguments):
            return None
        key = _key(spec, arguments)
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return replace(found, duration_ms=0, cached=True)

    async def call(
        self,
        execute: Callable[..., Awaitable[ToolResult]],
        tool: Callee,
        arguments: Mapping[str, Any],
        *,
        expected: str | None = None,
        ask: Ask | None = None,
        **rest: Any,
    ) -> ToolResult:
        """What ``execute`` would come to, with these arguments of `mlx_tools.tools.execute`: found
        here, or made and kept. A call that was approved on a state is made in any case."""
        found = self.find(tool.spec, arguments) if expected is None else None
        if found is not None:
            return found
        with _Watch(self, tool.spec, arguments) as watch:
            own = None if ask is None else watch.over(ask)
            result = await execute(tool, arguments, expected=expected, ask=own, **rest)
            watch.ended(result)
        return result

    def begin_change(self) -> None:
        """Something may change from now on."""
        self._changing += 1
        self._changes += 1
        self._clear()

    def end_change(self) -> None:
        """What `begin_change` began is over."""
        self._changing -= 1

    @property
    def changes(self) -> int:
        """How often something began to change."""
        return self._changes

    def keep(self, spec: ToolSpec, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """Keeps what a call was answered, where it may be found again."""
        size = len(result.content or "")
        if (
            self._scope == "off"
            or self._changing
            or result.content is None
            or size > MAX_CHARS // 4
            or not _repeatable(spec, arguments)
        ):
            return
        key = _key(spec, arguments)
        self._drop(key)
        self._kept[key] = result
        self._chars += size
        while len(self._kept) > MAX_ANSWERS or self._chars > MAX_CHARS:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        old = self._kept.pop(key, None)
        self._chars -= len((old.content if old is not None else None) or "")

    def _clear(self) -> None:
        self._kept.clear()
        self._chars = 0


class _Watch:
    """One call that is made: what it changes is known, what it answers is kept. Inside ``with`` it
    goes on."""

    def __init__(self, reads: Reads, spec: ToolSpec, arguments: Mapping[str, Any]) -> None:
        self._reads, self._spec, self._arguments = reads, spec, arguments
        self._changing = self._over = self._asked = False

    def __enter__(self) -> Self:
        if self._spec.mutates(self._arguments):
            self._change()
        self._began = self._reads.changes
        return self

    def over(self, ask: Ask) -> Ask:
        """The same, but that it is known that the call asks the model, whose calls may change
        anything."""

        async def asked(context: ToolContext, question: str, tools: Sequence[str] | None) -> str:
            self._asked = True
            self._change()
            return await ask(context, question, tools)

        return asked

    def ended(self, result: ToolResult) -> None:
        """The call has ended, and this is how."""
        self._over = result.error is None or result.error.code != "timeout"
        if not self._asked and self._began == self._reads.changes:
            self._reads.keep(self._spec, self._arguments, result)

    def _change(self) -> None:
        if not self._changing:
            self._changing = True
            self._reads.begin_change()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._changing and self._over:
            self._reads.end_change()


def _key(spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """One text for the same call. Here 1 and 1.0 are two calls: a tool may tell them apart."""
    return json.dumps([spec.name, arguments], sort_keys=True)


def _repeatable(spec: ToolSpec, arguments: Mapping[str, Any]) -> bool:
    return spec.cache and not spec.mutates(arguments)
