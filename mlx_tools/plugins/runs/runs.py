"""Runs of the gateway itself: its server executes their tools, under its policy.

A run is a session of the store that `ask` uses, and its state is read from its transcript. Its next
action is in its row (`rows`), and workers do it (`workers`). It goes on when its client leaves.
While it waits for a person or its client, nothing of it is in memory. In a gateway over files, a
run that broke off with its process is brought to rest when the next process starts, or when
somebody opens it. It is never resumed by itself.

Followers get the events of records, the same whenever they connect, and the deltas between them.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Container,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio
from msgspec import to_builtins

from mlx_tools.app import WAITING, Configuration
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest, Conversation
from mlx_tools.errors import MlxToolsError, StorageError, TranscriptError, UsageError
from mlx_tools.gateway import (
    Admission,
    ApiError,
    Gateway,
    JsonObject,
    Meters,
    Note,
    ServedModels,
    as_api_error,
    invalid,
)
from mlx_tools.messages import replace
from mlx_tools.plugins.runs.body import ResultBody, RunAct, RunRequest, own_tool_names
from mlx_tools.plugins.runs.events import Numbered, SessionEventReader, closed_count
from mlx_tools.plugins.runs.execution import (
    MakeRegistry,
    RunExecution,
    get_run_status,
    has_question,
    is_begun,
    list_requests,
)
from mlx_tools.plugins.runs.followers import join_deltas
from mlx_tools.plugins.runs.meters import RUN_METERS
from mlx_tools.plugins.runs.rows import RunRow
from mlx_tools.plugins.runs.webhooks import Webhooks
from mlx_tools.plugins.runs.workers import LiveRun, LocalWorkers, Workers
from mlx_tools.transcript import (
    PauseRecord,
    Record,
    Unfinished,
    find_last_state,
    is_at_rest,
    make_outcome,
    pending_calls,
)

WAIT_SECONDS: Final = 10.0
"""Seconds that a client waits for a run to come to rest before it is told that the run is at work.
"""

POLL_SECONDS: Final = 1.0
"""Seconds between two checks whether another process has resumed a run."""

_LOOKS_PER_SIGN: Final = 15
"""Checks without news after which followers are told that the gateway is alive: 15 s."""

_FIRST_POLL_SECONDS: Final = 0.1
"""Seconds between two checks whether a worker elsewhere has begun."""

END_STATUSES: Final = ("answered", "stopped", "cancelled")
"""The states of a run that neither time nor a decision changes."""

in_thread = anyio.to_thread.run_sync
"""Reads or writes rows in a thread."""


class Runs:
    """The runs of one gateway, with the actions of clients and persons."""

    def __init__(self, execution: RunExecution, workers: Workers, admission: Admission) -> None:
        """Give runs to ``workers``. ``admission`` is for sessions that are no runs."""
        self.execution, self.workers, self.admission = execution, workers, admission
        self.sessions, self.rows = execution.store, execution.rows
        self._creating, self._settling = anyio.Lock(), anyio.Lock()
        self._acts: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._is_ending = False

    def owner(self, key: str) -> str:
        """Return the name of a client in rows, made of the key that it sends."""
        secret = self.sessions.secret
        return hmac.new(secret, key.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    async def open(self) -> None:
        """Begin: bring runs to rest that broke off, and send the webhooks that are due."""
        await self.workers.open()
        if not self.workers.are_elsewhere:
            for row in await in_thread(self.rows.open_runs):
                with suppress(MlxToolsError):  # the fault is shown to anybody who opens the run
                    await self._records(row)
        self.execution.webhooks.wake(self.rows)

    def leave(self) -> None:
        """Tell all followers of runs that this process ends."""
        self._is_ending = True
        self.workers.followers.wake()

    async def aclose(self) -> None:
        """End: interrupt the runs at work in this process."""
        self.leave()
        await self.workers.aclose()
        await self.execution.webhooks.aclose()

    # --- what clients ask for ---

    async def create(
        self, owner: str, body: JsonObject, run_request: RunRequest, key: str | None
    ) -> tuple[RunRow, bool]:
        """Return a run that a client asks for by ``body``, and whether it is new.

        There is one run for each ``key``, however often it is asked for. Raises `ApiError`.
        """
        self.execution.webhooks.check(run_request.body.webhook)
        async with self._creating:
            if key is not None and (there := await in_thread(self.rows.find_by_key, owner, key)):
                return _same(there, body), False
            self.workers.check_room()
            conversation: Conversation | None
            try:
                conversation, model = await self.execution.begin(run_request)
            except MlxToolsError as error:
                raise as_api_error(error) from error
            act = RunAct("ask", {"question": run_request.question})
            row = RunRow(conversation.session, owner, body, act=act, model=model)
            if self.workers.are_elsewhere:  # a client may open it at once
                await shut(conversation)
                conversation = None
            is_new = False
            try:
                add = partial(self.rows.add, row, key, self._forget)
                is_new = await self._start(row, conversation, add)
            finally:
                if not is_new:
                    self._forget(row.id)
            if not is_new and (there := await in_thread(self.rows.find_by_key, owner, key or "")):
                return _same(there, body), False  # another gateway was quicker
        return row, True

    async def find(self, owner: str | None, run: str) -> RunRow:
        """Return a client's run; with None anybody's, for a person.

        Raises `ApiError` if there is none with this id.
        """
        return await in_thread(self.rows.get, owner, run)

    async def view(self, row: RunRow) -> JsonObject:
        """Return the run as clients see it."""
        status, records = await self.read_status(row)
        return _view(row, records, status)

    async def with_previews(self, row: RunRow) -> JsonObject:
        """Return the run as clients see it, with previews of the calls that wait."""
        value = await self.view(row)
        if value["status"] == "paused":
            requests: dict[str, ApprovalRequest] = {}
            with suppress(ApiError):  # the run is at work, or its model is not served
                requests = {one.call: one for one, fresh in await self.waiting(row) if fresh}
            if any("/" in call["call_id"] for call in value["pending"]):
                with suppress(ApiError, MlxToolsError):  # or one of its nested runs is gone
                    requests |= {one.call: one for one in await self.waiting_within(row)}
            for call in value["pending"]:
                request = requests.get(call["call_id"])
                if request is None or request.digest != call["digest"]:
                    continue
                if request.preview:
                    told = {"preview": request.preview, "preview_counts": request.counts}
                    told["preview_omitted"] = request.omitted
                    call |= {name: text for name, text in told.items() if text}
        return value

    async def read_status(self, row: RunRow) -> tuple[str, Sequence[Record]]:
        """Return the status of a run, and its records. Raises `ApiError`."""
        if (live := self.workers.live_run(row.id)) is not None:
            return live.status, live.records
        _, status, records = await self._read_elsewhere(row)
        return status, records

    async def _read_elsewhere(self, row: RunRow) -> tuple[RunRow, str, Sequence[Record]]:
        """Return the row, status and records of a run that this process does not work on."""
        used, records = await self._poll_row(row)
        row = await self.find(None, row.id)  # it may have been cancelled since
        if row.act is None and not is_at_rest(records):  # or brought to rest
            used, records = await self._poll_row(row)
        return row, self._status(row, records, used), records

    async def waiting(
        self, row: RunRow, edited: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[tuple[ApprovalRequest, bool]]:
        """Return the calls of a run that wait for a person, as they would run now.

        Args:
            row: The run.
            edited: Other arguments by call: only these calls are returned, with them.

        Returns:
            Each call, and whether it is still what was asked about.

        Raises:
            ApiError: the run cannot be looked at.
            UsageError: a call cannot have such arguments.
        """
        async with self._lock_run(row):
            return await self._requests(row, await self._wait_at_rest(row), edited)

    async def waiting_within(self, row: RunRow) -> list[ApprovalRequest]:
        """Return the calls that wait in runs within a run's calls, as they would run now.

        Raises `ApiError`, and `MlxToolsError` if one of the runs cannot be looked at.
        """
        async with self._lock_run(row):
            records = await self._wait_at_rest(row)
            async with self._open_session(row, records) as conversation:
                return await conversation.waiting_within()

    async def _requests(
        self, row: RunRow, records: Sequence[Record], edited: Mapping[str, Mapping[str, Any]] | None
    ) -> list[tuple[ApprovalRequest, bool]]:
        async with self._open_session(row, records) as conversation:
            return await list_requests(conversation, edited, own_tool_names(row.body))

    async def look_again(self, row: RunRow) -> None:
        """Ask again about waiting calls: an approval then binds to their present effect.

        Raises `ApiError`.
        """
        async with self._lock_run(row):
            await self._resume_run(row, RunAct("look"), await self._wait_at_rest(row))

    async def decide(
        self, row: RunRow, call: str, answer: ApprovalAnswer, *, by_person: bool = False
    ) -> None:
        """Take a decision about a call, a client's or a person's.

        Raises `ApiError`: 403 if only a person may decide, 409 if the decision does not hold.
        """
        if not by_person and self.execution.configuration.settings.gateway.approvals != "client":
            problem = (
                "what asked for a run does not decide about its calls: a person does, at the "
                f"gateway's page or with mlx-tools sessions resume {row.id} (or set "
                "gateway.approvals to client)"
            )
            raise ApiError(403, "approval_needs_a_person", problem)
        async with self._lock_run(row):
            name, records = await self._waiting(row, call)
            if answer.approved and name in own_tool_names(row.body):
                raise conflict(f"{name} is a tool of the client's own: send its result", "call_id")
            if answer.arguments is not None:
                try:
                    await self._requests(row, records, {call: answer.arguments})
                except UsageError as error:
                    raise invalid("arguments", str(error)) from None
            await self._resume_run(
                row, RunAct("decide", {"call": call, **to_builtins(answer)}), records
            )

    async def give(self, row: RunRow, result: ResultBody) -> None:
        """Take the result of a call of a client's own tool. Raises `ApiError`."""
        result.result()
        async with self._lock_run(row):
            name, records = await self._waiting(row, result.call_id)
            if name not in own_tool_names(row.body):
                raise conflict(f"{name} is a tool of the server: it makes its calls", "call_id")
            await self._resume_run(
                row, RunAct("give", result.model_dump(exclude_unset=True)), records
            )

    async def ask(self, row: RunRow, question: str) -> None:
        """Put another question to a run that has ended. Raises `ApiError`."""
        async with self._lock_run(row):
            records = await self._wait_at_rest(row)
            if get_run_status(row, records) == "paused":
                raise conflict("the run waits: decide about its calls first, or cancel it")
            await self._resume_run(row, RunAct("ask", {"question": question}), records)

    async def cancel(self, row: RunRow) -> None:
        """Stop a run for good. One that has ended stays as it is. Raises `ApiError`."""
        if (live := self.workers.live_run(row.id)) is not None:
            await live.stop()
        async with self._lock_run(row):
            row = await self._recall(row)
            used, records = await self._poll_row(row)
            status = self._status(row, records, used)
            if status in ("queued", "running"):
                raise conflict("another process is at the run")
            if not has_question(records):
                await in_thread(self.rows.cancel, row.id)
            if status == "paused":
                async with self._open_session(row, records) as conversation:
                    conversation.cancel()
                    await conversation.settle()
                    records = [*conversation.files.transcript]
            if status == "paused" or live is not None:
                await self.execution.put_to_rest(replace(row, cancelled=True), records)
        self.workers.followers.tell(row.id, len(records))

    async def follow(
        self,
        row: RunRow,
        last_number: int,
        ends: Container[str] = END_STATUSES,
        *,
        with_formed: bool = False,
    ) -> AsyncGenerator[Numbered | None]:
        """Yield the events of a run after a record, and the deltas between them.

        Args:
            row: The run.
            last_number: The number of the record.
            ends: The statuses that end it.
            with_formed: The deltas since the last record come first, marked as ``whole``.

        Yields:
            An event with the number of its record, or None now and then if nothing happens.
        """
        reader, size, quiet = SessionEventReader(last_number), -2, 0
        with self.workers.followers.follow(row.id) as follower:
            live = self.workers.live_run(row.id)
            if with_formed and live is not None:
                for delta in join_deltas(live.deltas):
                    follower.tell(live.record_count, delta | {"whole": True})
            while not self._is_ending:
                ended, live = False, self.workers.live_run(row.id)
                if live is not None:
                    records, size = live.records, -2
                    upto = closed_count(records, at_rest=False)
                elif size != (size := await in_thread(self.sessions.size, row.id)):
                    try:
                        row, status, records = await self._read_elsewhere(row)
                    except ApiError:  # its session was removed
                        return
                    if self.workers.live_run(row.id) is not None:  # meanwhile
                        continue
                    rest, ended = is_at_rest(records), status in ends
                    upto = closed_count(records, at_rest=rest)
                    if rest and row.act is not None:
                        upto, ended, size = len(records) - 1, False, -2  # its worker will say so
                for event in reader.read(records, upto):
                    yield event
                if ended and self.workers.live_run(row.id) is None:
                    return
                for record_count, formed in follower.take():
                    upto = min(record_count, closed_count(records, at_rest=False))
                    for event in reader.read(records, upto):
                        yield event
                    if formed is not None:
                        yield None, formed
                quiet = 0 if await follower.wait(POLL_SECONDS) else quiet + 1
                if quiet and quiet % _LOOKS_PER_SIGN == 0:
                    yield None

    # --- at work ---

    def _lock_run(self, row: RunRow) -> anyio.Lock:
        """Return the lock of a run, under which one request at a time changes it."""
        return self._acts.setdefault(row.id, anyio.Lock())

    async def _start(
        self, row: RunRow, conversation: Conversation | None, keep: Callable[[], bool]
    ) -> bool:
        """Store the next action of a run by ``keep``, and have it done.

        The open session is passed on. Return False if the action was not stored.
        """
        is_kept = False
        try:
            is_kept = await in_thread(keep)
        finally:
            if not is_kept and conversation is not None:
                await shut(conversation)
        if is_kept:
            self.workers.start(row, conversation)
        return is_kept

    async def _resume_run(self, row: RunRow, act: RunAct, records: Sequence[Record]) -> None:
        """Resume a run at rest, until that is recorded.

        Raises `ApiError` if it is refused. If no worker is free it is done later.
        """
        self.workers.check_room()
        act = replace(act, records=len(records))
        row = replace(row, act=act, cancelled=False)
        conversation = None if self.workers.are_elsewhere else await self._reopen(row, records)
        if not await self._start(row, conversation, partial(self.rows.post, row.id, act)):
            raise conflict("the run is at work")
        with self.workers.followers.follow(row.id) as follower:
            now = row
            with anyio.move_on_after(WAIT_SECONDS):
                while True:
                    live = self.workers.live_run(row.id)
                    now = await self.find(None, row.id)
                    if now.act is None or await self._is_begun(now, live, len(records)):
                        break
                    await follower.wait(_FIRST_POLL_SECONDS)
                    follower.take()
        if now.act is None and now.refusal:
            raise conflict(now.refusal)

    async def _is_begun(self, row: RunRow, live: LiveRun | None, record_count: int) -> bool:
        """Return whether the action on a run is recorded, or never will be."""
        if live is None and not self.workers.are_elsewhere:
            return True  # it has ended
        new = await self.execution.read(row) if live is None else live.records
        return is_begun(new[record_count:]) and not is_at_rest(new)

    async def _recall(self, row: RunRow) -> RunRow:
        """Take a run back from a worker elsewhere, so that no worker does its action."""
        if not self.workers.are_elsewhere:
            return row
        if row.act is not None:
            await in_thread(self.rows.cancel, row.id)
        with anyio.move_on_after(WAIT_SECONDS):
            while (row := await self.find(None, row.id)).act is not None:
                with suppress(ApiError):  # a worker has begun
                    await self._settle(row, await self.execution.read(row), cancelled=True)
                await anyio.sleep(_FIRST_POLL_SECONDS)
        return row

    async def _waiting(self, row: RunRow, call: str) -> tuple[str, Sequence[Record]]:
        """Return the tool of a call that waits, and the run's records.

        Raises `ApiError` if the call does not wait.
        """
        records = await self._wait_at_rest(row)
        last = find_last_state(records) if is_at_rest(records) else None
        pending = pending_calls(records, last) if isinstance(last, PauseRecord) else ()
        for one in pending:
            if one.call_id == call:
                return one.name, records
        waits = ", ".join(one.call_id for one in pending) or "none"
        raise conflict(f"{call[:100]} is not a call that waits (waiting: {waits})", "call_id")

    async def _wait_at_rest(self, row: RunRow) -> Sequence[Record]:
        """Wait a little for a run to rest, and return its records. Raises `ApiError`."""
        if (live := self.workers.live_run(row.id)) is not None:
            with anyio.move_on_after(WAIT_SECONDS):
                await live.has_ended.wait()
        records = await self._records(row)
        begun = has_question(records) or (await self.find(row.owner, row.id)).act is not None
        is_live = self.workers.live_run(row.id) is not None
        if is_live or (begun and not is_at_rest(records)):
            raise conflict("the run is at work, or waits for that")
        return records

    async def _reopen(self, row: RunRow, records: Sequence[Record]) -> Conversation:
        try:
            return await self.execution.open(row, records)
        except MlxToolsError as error:
            if isinstance(error, TranscriptError) and not isinstance(error, StorageError):
                raise conflict(str(error)) from error  # another process has it open
            raise as_api_error(error) from error

    @asynccontextmanager
    async def _open_session(
        self, row: RunRow, records: Sequence[Record]
    ) -> AsyncIterator[Conversation]:
        """Open the session of a run at rest, until the block ends. Raises `ApiError`."""
        conversation = await self._reopen(row, records)
        try:
            yield conversation
        finally:
            await shut(conversation)

    # --- what is kept ---

    async def _records(self, row: RunRow) -> Sequence[Record]:
        """Return the records of a run elsewhere, brought to rest if its process died."""
        records = await self.execution.read(row)
        if self._is_at_rest(row, records):
            return records
        async with self._settling:
            now = await in_thread(self.rows.find, row.id)
            records = await self.execution.read(row)
            is_live = self.workers.live_run(row.id) is not None
            if is_live or now is None or self._is_at_rest(now, records):
                return records
            with suppress(ApiError):  # another process has it open, or its model is not served
                records = await self._settle(now, records)
        return records

    def _is_at_rest(self, row: RunRow, records: Sequence[Record]) -> bool:
        """Return whether nothing has to be done about a run here.

        Workers elsewhere do its actions; in this gateway the process of the run may be gone.
        """
        return is_at_rest(records) if row.act is None else self.workers.are_elsewhere

    async def _settle(
        self, row: RunRow, records: Sequence[Record], *, cancelled: bool = False
    ) -> Sequence[Record]:
        """Bring a run to rest that broke off, or is ``cancelled``.

        Raises `ApiError` if another process has it open.
        """
        if not has_question(records):
            with suppress(TranscriptError), self.sessions.hold(row.id):
                await self.execution.put_to_rest(row, records)
            return records
        async with self._open_session(row, records) as conversation:
            if cancelled:
                conversation.cancel()
            records = [*conversation.files.transcript]
            if not cancelled and self._is_at_rest(await self.find(None, row.id), records):
                return records  # meanwhile it was given to a worker
            await conversation.settle()
            records = [*conversation.files.transcript]
            if row.act is not None:
                await self.execution.put_to_rest(row, records)
        return records

    async def _poll_row(self, row: RunRow) -> tuple[bool, Sequence[Record]]:
        """Return whether another process had a run open, and its records after that.

        If no process had, these records are final.
        """
        used = await in_thread(self.sessions.in_use, row.id)
        return used, await self._records(row)

    def _status(self, row: RunRow, records: Sequence[Record], was_used: bool) -> str:
        """Return the status of a run by its records, and by whether it was in use."""
        if row.act is not None and not row.cancelled and self.workers.are_elsewhere:
            return "running" if was_used else "queued"
        if row.cancelled or is_at_rest(records):
            return get_run_status(row, records)
        if not was_used:
            return "stopped"  # it broke off, before it was begun or its model is not served
        return "running" if has_question(records) else "queued"

    def _forget(self, run: str) -> bool:
        """Remove the session of a run; return whether it is gone: one at work stays."""
        if self.workers.live_run(run) is not None:
            return False
        if self.sessions.size(run) < 0:
            return True
        with suppress(TranscriptError):
            return self.sessions.remove(run)
        return False


async def shut(conversation: Conversation) -> None:
    """Close a session that is not resumed, and what its tools keep open."""
    conversation.close()
    await conversation.registry.aclose()


def _same(row: RunRow, body: JsonObject) -> RunRow:
    if row.body == body:
        return row
    problem = "this Idempotency-Key came with another body before"
    raise ApiError(422, "idempotency_key_reused", problem, param="Idempotency-Key")


def conflict(problem: str, param: str | None = None) -> ApiError:
    """Return the error for what cannot be done with a run in its present status."""
    return ApiError(409, "conflict", problem, param=param)


def _view(row: RunRow, records: Sequence[Record], status: str) -> JsonObject:
    asked = has_question(records)
    outcome = make_outcome(records, unfinished=True) if asked else Unfinished(session=row.id)
    value = outcome.to_json()
    if status in END_STATUSES and not is_at_rest(records):
        value["reason"] = "cancelled" if status == "cancelled" else "interrupted"
    return {"id": row.id} | value | {"status": status}


def open_runs(
    configuration: Configuration,
    models: ServedModels,
    note: Note,
    admission: Admission,
    meters: Meters,
    make_registry: MakeRegistry | None = None,
) -> Runs:
    """Open the runs of a gateway, over the sessions of the settings.

    Args:
        configuration: The server's settings.
        models: The models that runs can be asked of.
        note: Is told what went wrong that no client hears of.
        admission: How many runs are at work in this process at once.
        meters: Count what happens in this process.
        make_registry: Makes the tools that exist; None for those of the settings.
    """
    meters.declare(RUN_METERS)
    execution = RunExecution(
        configuration, models, note, Webhooks.from_settings(configuration), make_registry
    )
    workers: Workers = execution.queue or LocalWorkers(execution, admission, meters)
    return Runs(execution, workers, admission)


def get_runs(gateway: Gateway) -> Runs:
    """Return the runs of a gateway, over the sessions of its settings."""
    runs: Runs | None = gateway.shared.get("runs")
    if runs is None:
        slots = gateway.configuration.settings.gateway.concurrency
        places = Admission(slots, slots + WAITING, time.monotonic)
        shared = gateway.configuration, gateway.models, gateway.note
        gateway.shared["runs"] = runs = open_runs(*shared, places, gateway.meters)
    return runs
