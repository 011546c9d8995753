"""Work that is done for several things at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

T = TypeVar("T")


async def at_once(work: Callable[[T], Awaitable[None]], items: Sequence[T]) -> None:
    """Does the work for all items at once. The first exception ends the others and is raised."""
    failures: list[Exception] = []

    async def guarded(item: T) -> None:
        try:
            await work(item)
        except Exception as error:
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for item in items:
            group.start_soon(guarded, item)
    if failures:
        raise failures[0]
