"""Runs of the gateway's own where sessions are in PostgreSQL: nothing of them is done here. Workers
take it from a queue, and go on with what breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import anyio

from mlx_tools.controller import Conversation
from mlx_tools.gateway.request import ApiError
from mlx_tools.gateway.run_body import RunAct
from mlx_tools.gateway.run_queue import QueueState, RunQueue
from mlx_tools.gateway.run_rows import RunRow
from mlx_tools.gateway.runs import PATIENCE, Runs, conflict, in_thread, is_taken
from mlx_tools.messages import replace
from mlx_tools.transcript import Record, rests

_SOON: Final = 0.1
"""Seconds between two looks at whether a worker has taken something up."""


class QueuedRuns(Runs):
    """The runs of one gateway, which workers do that take them from ``queue``."""

    def __init__(self, *arguments: Any, queue: RunQueue, **more: Any) -> None:
        super().__init__(*arguments, queue=queue, **more)
        self._queue = queue
        self._listening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Hear what workers tell, and go on telling what is owed."""
        self._listening = asyncio.create_task(self._queue.listen(self._tell))
        self._work.webhooks.wake(self._rows)

    async def aclose(self) -> None:
        """Hear no more of them."""
        await super().aclose()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def line(self) -> QueueState:
        """How many are at work, and wait for that."""
        return await in_thread(self._queue.state)

    async def _add(self, row: RunRow, conversation: Conversation, key: str | None) -> bool:
        conversation.close()  # a worker may be at it at once
        added = False
        try:
            added = await in_thread(self._rows.add, row, key)
        finally:
            if not added:
                self._forget(row.id)
        return added

    async def _go_on(self, row: RunRow, act: RunAct, records: Sequence[Record]) -> None:
        """As that of a gateway that does it; where no worker is free it is done later."""
        act = replace(act, records=len(records))
        if not await in_thread(self._rows.post, row.id, act):
            raise conflict("the run is at work")
        with anyio.move_on_after(PATIENCE):
            while (now := self.find(None, row.id)).act is not None:
                records = await self._work.read(row)
                if is_taken(records[act.records :]) and not rests(records):
                    break
                await anyio.sleep(_SOON)
        if now.act is None and now.refused:
            raise conflict(now.refused)

    async def _left(self, row: RunRow) -> RunRow:
        """Have the worker that is at a run leave it, and see to it that none takes it up."""
        if row.act is not None:
            await in_thread(self._rows.cancel, row.id)
        with anyio.move_on_after(PATIENCE):
            while (row := self.find(None, row.id)).act is not None:
                with suppress(ApiError):  # a worker is at it
                    await self._settle(row, await self._work.read(row), cancelled=True)
                await anyio.sleep(_SOON)
        return row

    def _is_at_rest(self, row: RunRow, records: Sequence[Record]) -> bool:
        return row.act is not None or rests(records)

    def _status(self, row: RunRow, records: Sequence[Record]) -> str:
        if row.act is None or row.cancelled:
            return super()._status(row, records)
        return "running" if self.sessions.in_use(row.id) else "queued"
