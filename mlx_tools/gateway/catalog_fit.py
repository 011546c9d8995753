"""Shorter descriptions of a client's tools for a model of a small context.

How much of them is left depends on parts that stay the same through a conversation: its tools, its
instructions and its first question. So the prompt of each turn begins with that of the turn before.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from mlx_tools.gateway.exchange import in_thread_if_large
from mlx_tools.gateway.request import ClientMessage, TurnRequest
from mlx_tools.messages import replace
from mlx_tools.prompt import ShorterTools, shorten_descriptions

_MAX_CACHED: Final = 256
"""Conversations whose shortening is remembered: more than are active at one time."""

_TRIES: Final = 4
"""Attempts to meet the room: a text's tokens are nearly in proportion to its characters."""

CountTokens = Callable[[TurnRequest], Awaitable[int]]
"""Counts the tokens of the prompt of a request."""


@dataclass
class CatalogFit:
    """Fits the tools of requests into a context of so many tokens."""

    context: int
    count: CountTokens
    _max_chars: OrderedDict[str, int | None] = field(default_factory=OrderedDict, init=False)

    async def fit(self, request: TurnRequest) -> TurnRequest:
        """Return the request, its tools' descriptions shortened if need be.

        Three quarters of the context are for the first prompt of a conversation. If the rest of
        that prompt needs most of them, the descriptions get a quarter, as far as there is room.
        """
        first = _first_messages(request.messages)
        if not request.tools or first is None:
            return request
        key = await in_thread_if_large(request.size, partial(_key, request, first))
        if key in self._max_chars:
            max_chars = self._max_chars[key]
        else:
            max_chars = await self._room(replace(request, messages=first))
            self._max_chars[key] = max_chars
            while len(self._max_chars) > _MAX_CACHED:
                self._max_chars.popitem(last=False)
        return request if max_chars is None else await _shorten(request, max_chars)

    async def _room(self, first: TurnRequest) -> int | None:
        """Return the most characters of descriptions, or None if all of them fit."""
        whole, most = await self.count(first), self.context * 3 // 4
        if whole <= most:
            return None
        base = await self.count(await _shorten(first, 0))
        most = max(most, min(base + self.context // 4, self.context * 15 // 16))
        shortest = partial(shorten_descriptions, first.tools, 0)
        size = (await in_thread_if_large(first.size, shortest)).original_chars
        max_chars = max(0, size * (most - base) // max(1, whole - base))
        for _ in range(_TRIES):
            if not max_chars or await self.count(await _shorten(first, max_chars)) <= most:
                break
            max_chars = max_chars * 9 // 10
        return max_chars


def _first_messages(messages: Sequence[ClientMessage]) -> tuple[ClientMessage, ...] | None:
    """Return the messages before the model's first one, or None if there are none."""
    first: list[ClientMessage] = []
    for message in messages:
        if message.role not in ("user", "system"):
            break
        first.append(message)
    return tuple(first) or None


def _key(request: TurnRequest, first: Sequence[ClientMessage]) -> str:
    tools = [spec.to_json() for spec in request.tools]
    parts = [tools, [[one.role, one.content] for one in first], request.schema]
    text = json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


async def _shorten(request: TurnRequest, max_chars: int) -> TurnRequest:
    work = partial(shorten_descriptions, request.tools, max_chars)
    shorter: ShorterTools = await in_thread_if_large(request.size, work)
    note = f"{shorter.size_chars} of {shorter.original_chars} characters of descriptions"
    return replace(request, tools=shorter.tools, catalog_note=note)
