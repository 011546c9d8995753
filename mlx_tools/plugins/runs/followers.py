"""Followers of runs, who are woken by events and get the deltas between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final

import anyio

from mlx_tools.gateway import JsonObject

_MAX_WAITING: Final = 2_000
"""Deltas that are held for a slow follower: about those of a long answer; the oldest are dropped.
"""


class Follower:
    """Deltas that wait for a follower, each with the count of records before it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, JsonObject | None]] = deque(maxlen=_MAX_WAITING)
        self._news = anyio.Event()

    def tell(self, record_count: int, delta: JsonObject | None = None) -> None:
        """Add the number of records, and a delta after them."""
        self._waiting.append((record_count, delta))
        self._news.set()

    def take(self) -> Sequence[tuple[int, JsonObject | None]]:
        """Return what was added since the last time, in order."""
        waiting = [*self._waiting]
        self._waiting.clear()
        self._news = anyio.Event()
        return waiting

    async def wait(self, seconds: float) -> bool:
        """Wait for news, for so long at most; return whether there are some."""
        with anyio.move_on_after(seconds):
            await self._news.wait()
        return self._news.is_set()


class Followers:
    """The followers of all runs in this process; its length counts followed runs."""

    def __init__(self) -> None:
        self._by_run: dict[str, set[Follower]] = {}

    def __len__(self) -> int:
        return len(self._by_run)

    @contextmanager
    def follow(self, run: str) -> Iterator[Follower]:
        """Add a follower to a run until the block ends."""
        follower = Follower()
        self._by_run.setdefault(run, set()).add(follower)
        try:
            yield follower
        finally:
            followers = self._by_run[run]
            followers.discard(follower)
            if not followers:
                del self._by_run[run]

    def tell(self, run: str, record_count: int, delta: JsonObject | None = None) -> None:
        """Send a run's followers its number of records, and a delta after them."""
        for follower in self._by_run.get(run, ()):
            follower.tell(record_count, delta)

    def wake(self) -> None:
        """Wake all followers."""
        for run in self._by_run:
            self.tell(run, 0)


def join_deltas(deltas: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield the deltas, with those of one text joined."""
    for _, group in groupby(deltas, lambda delta: {**delta, "text": ""}):
        pieces = [*group]
        text = "".join(str(piece["text"]) for piece in pieces if "text" in piece)
        yield pieces[0] | ({"text": text} if "text" in pieces[0] else {})
