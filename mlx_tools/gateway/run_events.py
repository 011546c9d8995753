"""The events of a run for whoever follows it: made of its records, so that whoever comes back is
told the same, with what forms at the moment in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

import anyio

from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    Finished,
    PauseRecord,
    Record,
    RepairRecord,
    ResumedRecord,
    StoppedRecord,
    events,
    outcome_of,
)

_MOST: Final = 2_000
"""Deltas that are held for somebody who is slow; of more the oldest are left out."""

_OPEN: Final = (CallRecord, RepairRecord, PauseRecord)
"""Records whose event depends on what comes next, where that is not there yet."""

Numbered = tuple[int | None, dict[str, Any]]
"""An event as JSON, and the number of its record, from 1; None for a delta."""


def closed(records: Sequence[Record], *, rest: bool) -> int:
    """How many of the records have events that nothing can change any more. With ``rest`` no
    process adds to them."""
    count = len(records)
    while not rest and count and isinstance(records[count - 1], _OPEN):
        count -= 1
    return count


def told_of(records: Sequence[Record], told: int, upto: int) -> Iterator[Numbered]:
    """The events of the records after the first ``told``, to the number ``upto``."""
    for number in range(told + 1, upto + 1):
        if _ends(records, number):
            yield number, Finished(outcome=outcome_of(records[:number])).to_json()
            continue
        after = takewhile(lambda r: not isinstance(r, CompletionRecord), records[number:])
        event = events.event_of(records[number - 1], records[:number], tuple(after))
        if event is not None:
            yield number, event.to_json()


def _ends(records: Sequence[Record], number: int) -> bool:
    """Return whether the run came to rest with this record; a pause that somebody ended in place
    is none."""
    record, after = records[number - 1], records[number : number + 1]
    if isinstance(record, PauseRecord):
        return not after or isinstance(after[0], ResumedRecord | StoppedRecord)
    return isinstance(record, AnswerRecord | StoppedRecord)


class Follower:
    """What somebody who follows a run in this process is still to be told: deltas, and between
    them up to which record."""

    def __init__(self) -> None:
        self._waiting: deque[int | dict[str, Any]] = deque()
        self._news = anyio.Event()

    def tell(self, upto: int, delta: dict[str, Any] | None = None) -> None:
        """There are so many records now; a delta comes after them."""
        waiting = self._waiting
        if waiting and isinstance(waiting[-1], int):
            waiting[-1] = upto
        else:
            waiting.append(upto)
        if delta is not None:
            waiting.append(delta)
        while len(waiting) > _MOST:
            waiting.popleft()
        self._news.set()

    def take(self) -> Iterator[int | dict[str, Any]]:
        """What is to be told now, in order."""
        while self._waiting:
            yield self._waiting.popleft()
        self._news = anyio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait for news, so long at most; return whether there are some."""
        with anyio.move_on_after(seconds):
            await self._news.wait()
        return bool(self._waiting) or self._news.is_set()
