"""Workers: they do the actions of runs.

A gateway over files is its own worker (`LocalWorkers`). If sessions are in PostgreSQL, workers are
processes that take runs from a queue (`RunQueue`, `RunWorker`). Both read the next action from the
run's row, and do it by `RunExecution.run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import anyio

from mlx_tools.controller import Conversation
from mlx_tools.errors import StorageError
from mlx_tools.gateway import DEFAULT, Admission, ApiError, JsonObject, Meters
from mlx_tools.plugins.runs.body import own_tool_names
from mlx_tools.plugins.runs.execution import RunExecution
from mlx_tools.plugins.runs.followers import Followers
from mlx_tools.plugins.runs.meters import CLIENTS, count_event
from mlx_tools.plugins.runs.rows import RunRow
from mlx_tools.transcript import Event, Record, Stopped, events, is_at_rest, make_outcome


class Workers(Protocol):
    """Do what the rows of runs ask for.

    Attributes:
        followers: Who is told in this process what happens in runs.
        are_elsewhere: They are other processes: each opens the session of a run itself, and takes
            up what another one broke off. Without it a run that broke off stays so.
    """

    followers: Followers
    are_elsewhere: bool

    async def open(self) -> None:
        """Begin to send followers events."""

    async def aclose(self) -> None:
        """Interrupt the runs at work in this process."""

    def load(self) -> dict[str, int]:
        """Return the gauges of runs, ``active`` and ``waiting`` among them."""

    def check_room(self) -> None:
        """Raise `ApiError` if too many runs are at work or wait for that."""

    def start(self, row: RunRow, conversation: Conversation | None) -> None:
        """Do the action of a stored row; the open session is passed on."""

    def live_run(self, run: str) -> LiveRun | None:
        """Return the run if it is at work in this process."""


@dataclass(eq=False)
class LiveRun:
    """A run at work in this process."""

    conversation: Conversation
    tool_labels: Mapping[str, str]
    """The labels of its tools in metrics."""
    status: str = "queued"
    has_ended: anyio.Event = field(default_factory=anyio.Event)
    task: asyncio.Task[None] | None = None
    deltas: list[JsonObject] = field(default_factory=list)
    """The deltas since the last record."""
    record_count: int = 0
    """The number of records before them."""

    def take_note(self, delta: JsonObject | None) -> None:
        """Hold a delta until the record that contains it is there."""
        if self.record_count != (count := len(self.records)):
            self.deltas.clear()
            self.record_count = count
        if delta is not None:
            self.deltas.append(delta)

    async def stop(self) -> None:
        """Interrupt it, and wait until it has ended."""
        self.conversation.cancel()
        if self.task is not None:
            self.task.cancel()
        await self.has_ended.wait()

    @property
    def records(self) -> Sequence[Record]:
        return self.conversation.files.transcript

    @property
    def model(self) -> str:
        return self.conversation.session_state.header.model or DEFAULT


class LocalWorkers:
    """Does runs in this process.

    Attributes:
        runs: The runs at work, and those that wait for that, by id.
    """

    are_elsewhere = False

    def __init__(self, execution: RunExecution, admission: Admission, meters: Meters) -> None:
        """``admission`` limits how many are at work at once, and how many may wait."""
        self._execution, self._admission, self._meters = execution, admission, meters
        self.followers = Followers()
        self.runs: dict[str, LiveRun] = {}

    async def open(self) -> None:
        """Open nothing."""

    async def aclose(self) -> None:
        """Interrupt the runs at work: they count as interrupted."""
        tasks = [live.task for live in self.runs.values() if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def load(self) -> dict[str, int]:
        """Return how many are at work, and wait for that."""
        return {"active": self._admission.active, "waiting": self._admission.waiting}

    def check_room(self) -> None:
        """Raise `ApiError` if too many runs are at work or wait for that."""
        if len(self.runs) >= self._admission.line:
            message = f"{len(self.runs)} runs are at work or wait for that: try again later"
            raise ApiError(429, "rate_limit_exceeded", message, retry_after=10)

    def live_run(self, run: str) -> LiveRun | None:
        """Return the run if it is at work."""
        return self.runs.get(run)

    def start(self, row: RunRow, conversation: Conversation | None) -> None:
        """Do the action of the row in a task of its own, with or without followers."""
        assert conversation is not None  # it was opened in this process
        labels = {name: name for name in conversation.specs}
        labels |= dict.fromkeys(own_tool_names(row.body), CLIENTS)
        self.runs[row.id] = live = LiveRun(conversation, labels)
        record_count = len(live.records)
        live.task = asyncio.create_task(self._do(row, live))
        # A callback also runs if the task is cancelled before it began.
        live.task.add_done_callback(lambda task: self._end(row, live, record_count))

    async def _do(self, row: RunRow, live: LiveRun) -> None:
        async with self._admission.slot(row.owner):
            live.status = "running"
            with suppress(StorageError):  # anybody who opens the run finds that it broke off
                emit = partial(self._on_event, row, live)
                await self._execution.run(row, live.conversation, emit)

    def _end(self, row: RunRow, live: LiveRun, record_count: int) -> None:
        del self.runs[row.id]
        live.conversation.close()
        live.has_ended.set()
        self.followers.tell(row.id, len(live.records))
        if len(live.records) > record_count:
            self._meters.count("runs_total", model=live.model, end=_end_label(live.records))

    def _on_event(self, row: RunRow, live: LiveRun, event: Event) -> None:
        count_event(self._meters, event, live.model, live.tool_labels)
        delta = None if isinstance(event, events.RECORD_EVENTS) else event.to_json()
        live.take_note(delta)
        self.followers.tell(row.id, len(live.records), delta)


def _end_label(records: Sequence[Record]) -> str:
    """Return the word for how a run came to rest; the reason if it stopped."""
    if not is_at_rest(records):
        return "unfinished"
    outcome = make_outcome(records)
    return outcome.reason if isinstance(outcome, Stopped) else outcome.status
