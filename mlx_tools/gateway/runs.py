"""Runs of the gateway's own: its server executes their tools, under its policy.

A run is a session of the store that `ask` uses, and where it stands is read from its transcript. It
goes on when its client leaves; while it waits for a person, or for its client, nothing of it is
held here. One that broke off with its process is brought to rest when the next one starts, or when
somebody looks at it, and is never gone on with by itself. Where sessions are in PostgreSQL workers
do them (`run_queue`).

Whoever follows a run is told the events of its records, the same whenever they come back, with what
forms at the moment in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Container,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio
from msgspec import to_builtins

from mlx_tools.controller import ApprovalAnswer, ApprovalRequest, Conversation
from mlx_tools.errors import MlxToolsError, StorageError, TranscriptError, UsageError
from mlx_tools.gateway.admission import Admission
from mlx_tools.gateway.meters import CLIENTS, Meters
from mlx_tools.gateway.request import ApiError, JsonObject, as_api_error, invalid
from mlx_tools.gateway.run_body import ResultBody, RunAct, RunRequest, own_tool_names
from mlx_tools.gateway.run_events import Numbered, SessionEventReader, closed_count
from mlx_tools.gateway.run_rows import RunRow
from mlx_tools.gateway.run_work import RunExecution, requests_of, standing_of_run, was_asked
from mlx_tools.gateway.served_models import DEFAULT
from mlx_tools.messages import replace
from mlx_tools.transcript import (
    DecisionRecord,
    Event,
    PauseRecord,
    Record,
    ResumedRecord,
    Stopped,
    Unfinished,
    at_rest,
    events,
    is_at_rest,
    outcome_of,
    pending_calls,
)

PATIENCE: Final = 10.0
"""Seconds that a client waits for a run to come to rest before it hears that it runs."""

LOOK: Final = 1.0
"""Seconds between two looks at whether another process has gone on with a run."""

_QUIET: Final = 15
"""So many looks without news, and whoever follows a run is told that the gateway lives."""

ENDED: Final = ("answered", "stopped", "cancelled")
"""How a run stands of which nothing more comes by itself, nor by a decision."""

in_thread = anyio.to_thread.run_sync
"""Has what is read or written of the rows wait in a thread."""


@dataclass(eq=False)
class _LiveRun:
    """A run at work in this process. ``began`` is how many records there were before, ``tools`` are
    the labels of its tools, ``taken`` is set once what it was begun with is written down,
    ``refused`` why it was not."""

    conversation: Conversation
    began: int
    tools: Mapping[str, str]
    status: str = "queued"
    refused: str = ""
    taken: anyio.Event = field(default_factory=anyio.Event)
    rested: anyio.Event = field(default_factory=anyio.Event)
    task: asyncio.Task[None] | None = None
    forming: list[JsonObject] = field(default_factory=list)
    """The deltas since the last record."""
    formed_at: int = 0
    """How many records there were before them."""

    def take_note(self, forms: JsonObject | None) -> None:
        """Keep a delta until there is a record of what it is a part of."""
        if self.formed_at != (count := len(self.records)):
            self.forming.clear()
            self.formed_at = count
        if forms is not None:
            self.forming.append(forms)

    @property
    def records(self) -> Sequence[Record]:
        return self.conversation.files.transcript

    @property
    def model(self) -> str:
        return self.conversation.session_state.header.model or DEFAULT


class Runs:
    """The runs of one gateway, which does them itself, by ``work``; ``admission`` says how many are
    at it at once, and how many may wait. ``meters`` count what happens."""

    def __init__(self, work: RunExecution, admission: Admission, meters: Meters) -> None:
        self.work, self.admission, self._meters = work, admission, meters
        self.sessions, self.rows = work.store, work.rows
        self.rows.forget = self._forget
        self._live: dict[str, _LiveRun] = {}
        self._followers: dict[str, set[_Follower]] = {}
        self._creating, self._settling = anyio.Lock(), anyio.Lock()
        self._acts: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._ending = False

    def owner(self, key: str) -> str:
        """By what the runs of whoever bears this key are known."""
        secret = self.sessions.secret
        return hmac.new(secret, key.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    async def open(self) -> None:
        """Bring to rest what broke off with the process before, and go on telling what is owed."""
        for row in await in_thread(self.rows.open_runs):
            with suppress(MlxToolsError):  # it is told to whoever looks at the run
                await self._records(row)
        self.work.webhooks.wake(self.rows)

    # --- what clients ask for ---

    async def create(
        self, owner: str, body: JsonObject, run_request: RunRequest, key: str | None
    ) -> tuple[RunRow, bool]:
        """Return a run that a client asks for by ``body``, and whether it is new.

        Under the same ``key`` there is one, however often it is asked for. Raises `ApiError`.
        """
        self.work.webhooks.check(run_request.given.webhook)
        async with self._creating:
            if key is not None and (there := await in_thread(self.rows.under, owner, key)):
                return _same(there, body), False
            self._check_room()
            try:
                conversation, model = await self.work.begin(run_request)
            except MlxToolsError as error:
                raise as_api_error(error) from error
            act = RunAct("ask", {"question": run_request.question})
            row = RunRow(conversation.session, owner, body, act=act, model=model)
            added = await self._add(row, conversation, key)
            if not added and (there := await in_thread(self.rows.under, owner, key or "")):
                return _same(there, body), False  # another gateway was quicker
        return row, True

    async def _add(self, row: RunRow, conversation: Conversation, key: str | None) -> bool:
        """Keep a run and begin with it; return False where there is one under this key."""
        added = False
        try:
            added = await in_thread(self.rows.add, row, key)
        finally:
            if not added:
                await shut(conversation)
                self._forget(row.id)
        if added:
            self._begin(row, conversation)
        return added

    async def find(self, owner: str | None, run: str) -> RunRow:
        """A client's run; with None anybody's, for a person. Raises `ApiError` where there is none
        with this id."""
        return await in_thread(self.rows.get, owner, run)

    async def view(self, row: RunRow) -> JsonObject:
        """The run as clients see it."""
        status, records = await self.stands(row)
        return _view(row, records, status)

    async def with_previews(self, row: RunRow) -> JsonObject:
        """The run as clients see it, the calls that wait with what they would change."""
        value = await self.view(row)
        if value["status"] == "paused":
            requests: dict[str, ApprovalRequest] = {}
            with suppress(ApiError):  # it goes on, or its model is not served
                requests = {one.call: one for one, fresh in await self.waiting(row) if fresh}
            if any("/" in call["call_id"] for call in value["pending"]):
                with suppress(ApiError, MlxToolsError):  # or one of its runs is gone
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

    async def stands(self, row: RunRow) -> tuple[str, Sequence[Record]]:
        """How a run stands, and its records. Raises `ApiError`."""
        if (live := self._live.get(row.id)) is not None:
            return live.status, live.records
        _, status, records = await self._stands_elsewhere(row)
        return status, records

    async def _stands_elsewhere(self, row: RunRow) -> tuple[RunRow, str, Sequence[Record]]:
        """A run that is not at work here as it is now, how it stands, and its records."""
        used, records = await self._looked_at(row)
        row = await self.find(None, row.id)  # it may have been cancelled since
        if row.act is None and not is_at_rest(records):  # or brought to rest
            used, records = await self._looked_at(row)
        return row, self._status(row, records, used), records

    async def waiting(
        self, row: RunRow, edited: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[tuple[ApprovalRequest, bool]]:
        """The calls of a run that wait for a person, as they would run now, and whether each is
        still what was asked about; of those that are ``edited`` only these, with the arguments
        there. Raises `ApiError`, and `UsageError` where a call cannot have them."""
        async with self._acting(row):
            return await self._requests(row, await self._wait_at_rest(row), edited)

    async def waiting_within(self, row: RunRow) -> list[ApprovalRequest]:
        """The calls that wait in runs within a run's calls, as they would run now. Raises
        `ApiError`, and `MlxToolsError` if one of the runs cannot be looked at."""
        async with self._acting(row):
            records = await self._wait_at_rest(row)
            async with self._open_session(row, records) as conversation:
                return await conversation.waiting_within()

    async def _requests(
        self, row: RunRow, records: Sequence[Record], edited: Mapping[str, Mapping[str, Any]] | None
    ) -> list[tuple[ApprovalRequest, bool]]:
        async with self._open_session(row, records) as conversation:
            return await requests_of(conversation, edited, own_tool_names(row.body))

    async def look_again(self, row: RunRow) -> None:
        """Ask anew about the calls that wait: an approval is then of what they would do now. Raises
        `ApiError`."""
        async with self._acting(row):
            await self._go_on(row, RunAct("look"), await self._wait_at_rest(row))

    async def decide(
        self, row: RunRow, call: str, answer: ApprovalAnswer, *, by_person: bool = False
    ) -> None:
        """Take a decision about a call, a client's or a person's. Raises `ApiError`: 403 where that
        is a person's, 409 where it does not hold."""
        if not by_person and self.work.configuration.settings.gateway.approvals != "client":
            problem = (
                "what asked for a run does not decide about its calls: a person does, at the "
                f"gateway's page or with mlx-tools sessions resume {row.id} (or set "
                "gateway.approvals to client)"
            )
            raise ApiError(403, "approval_needs_a_person", problem)
        async with self._acting(row):
            name, records = await self._waiting(row, call)
            if answer.approved and name in own_tool_names(row.body):
                raise conflict(f"{name} is a tool of the client's own: send its result", "call_id")
            if answer.arguments is not None:
                try:
                    await self._requests(row, records, {call: answer.arguments})
                except UsageError as error:
                    raise invalid("arguments", str(error)) from None
            await self._go_on(row, RunAct("decide", {"call": call, **to_builtins(answer)}), records)

    async def give(self, row: RunRow, result: ResultBody) -> None:
        """Take the result of a call of a client's own tool. Raises `ApiError`."""
        result.result()
        async with self._acting(row):
            name, records = await self._waiting(row, result.call_id)
            if name not in own_tool_names(row.body):
                raise conflict(f"{name} is a tool of the server: it makes its calls", "call_id")
            await self._go_on(row, RunAct("give", result.model_dump(exclude_unset=True)), records)

    async def ask(self, row: RunRow, question: str) -> None:
        """Put another question to a run that has ended. Raises `ApiError`."""
        async with self._acting(row):
            records = await self._wait_at_rest(row)
            if standing_of_run(row, records) == "paused":
                raise conflict("the run waits: decide about its calls first, or cancel it")
            await self._go_on(row, RunAct("ask", {"question": question}), records)

    async def cancel(self, row: RunRow) -> None:
        """Stop a run, and see to it that no more comes of it. One that has ended stays as it is.
        Raises `ApiError`."""
        if (live := self._live.get(row.id)) is not None:
            live.conversation.cancel()
            if live.task is not None:
                live.task.cancel()
            await live.rested.wait()
        async with self._acting(row):
            row = await self._leave_worker(row)
            used, records = await self._looked_at(row)
            status = self._status(row, records, used)
            if status in ("queued", "running"):
                raise conflict("another process is at the run")
            if not was_asked(records):
                await in_thread(self.rows.cancel, row.id)
            if status == "paused":
                async with self._open_session(row, records) as conversation:
                    conversation.cancel()
                    await conversation.settle()
                    records = [*conversation.files.transcript]
            if status == "paused" or live is not None:
                await self.work.put_to_rest(replace(row, cancelled=True), records)
        self._tell(row.id, len(records))

    async def follow(
        self,
        row: RunRow,
        last_number: int,
        ends: Container[str] = ENDED,
        *,
        with_formed: bool = False,
    ) -> AsyncGenerator[Numbered | None]:
        """The events of a run behind the record ``last_number``, and what forms meanwhile, until it
        stands as one of ``ends``; None now and then, where nothing happens. ``with_formed``: what
        has formed since the last record comes first, in events that are marked as ``whole``."""
        follower, reader, size, quiet = _Follower(), SessionEventReader(last_number), -2, 0
        self._followers.setdefault(row.id, set()).add(follower)
        if with_formed and (at_work := self._live.get(row.id)) is not None:
            for delta in _join_deltas(at_work.forming):
                follower.tell(at_work.formed_at, delta | {"whole": True})
        try:
            while not self._ending:
                ended, live = False, self._live.get(row.id)
                if live is not None:
                    records, size = live.records, -2
                    upto = closed_count(records, at_rest=False)
                elif size != (size := await in_thread(self.sessions.size, row.id)):
                    try:
                        row, status, records = await self._stands_elsewhere(row)
                    except ApiError:  # its session was removed
                        return
                    if row.id in self._live:  # meanwhile
                        continue
                    rest, ended = is_at_rest(records), status in ends
                    upto = closed_count(records, at_rest=rest)
                    if rest and row.act is not None:
                        upto, ended, size = len(records) - 1, False, -2  # its worker will say so
                for one in reader.read(records, upto):
                    yield one
                if ended and row.id not in self._live:
                    return
                for most, forms in follower.take():
                    upto = min(most, closed_count(records, at_rest=False))
                    for one in reader.read(records, upto):
                        yield one
                    if forms is not None:
                        yield None, forms
                quiet = 0 if await follower.wait(LOOK) else quiet + 1
                if quiet and quiet % _QUIET == 0:
                    yield None
        finally:
            followers = self._followers[row.id]
            followers.discard(follower)
            if not followers:
                del self._followers[row.id]

    def _tell(self, run: str, upto: int, forms: JsonObject | None = None) -> None:
        """Have whoever follows a run hear that it has so many records, and what forms behind
        them."""
        for follower in self._followers.get(run, ()):
            follower.tell(upto, forms)

    def leave(self) -> None:
        """Tell everybody who follows a run that this process ends."""
        self._ending = True
        for run in self._followers:
            self._tell(run, len(self._live[run].records) if run in self._live else 0)

    async def aclose(self) -> None:
        """Break off what is at work: it is found as interrupted."""
        self.leave()
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.work.webhooks.aclose()

    # --- at work ---

    def _acting(self, row: RunRow) -> anyio.Lock:
        """Of what is posted of one run one thing is done at a time."""
        return self._acts.setdefault(row.id, anyio.Lock())

    def _check_room(self) -> None:
        if len(self._live) >= self.admission.line:
            message = f"{len(self._live)} runs are at work or wait for that: try again later"
            raise ApiError(429, "rate_limit_exceeded", message, retry_after=10)

    async def load(self) -> dict[str, int]:
        """How many are at work, and wait for that."""
        return {"active": self.admission.active, "waiting": self.admission.waiting}

    def _begin(self, row: RunRow, conversation: Conversation) -> _LiveRun:
        assert row.act is not None
        tools = {name: name for name in conversation.specs}
        tools |= dict.fromkeys(own_tool_names(row.body), CLIENTS)
        live = _LiveRun(conversation, len(conversation.files.transcript), tools)
        self._live[row.id] = live
        live.task = asyncio.create_task(self._do(row, live, row.act))
        live.task.add_done_callback(
            lambda _: self._put_to_rest(row, live)
        )  # also of one never begun
        return live

    async def _do(self, row: RunRow, live: _LiveRun, act: RunAct) -> None:
        """Have a run go on until it comes to rest, whoever looks on."""
        async with self.admission.slot(row.owner):
            live.status = "running"
            with suppress(StorageError):  # what broke off there is found so by whoever looks
                emit = partial(self._happens, row, live)
                live.refused = await self.work.do(live.conversation, act, emit)
                if live.refused or is_at_rest(live.records):
                    await self.work.put_to_rest(row, live.records, live.refused)

    def _put_to_rest(self, row: RunRow, live: _LiveRun) -> None:
        del self._live[row.id]
        live.conversation.close()
        live.taken.set()
        live.rested.set()
        self._tell(row.id, len(live.records))
        if len(live.records) > live.began:
            self._meters.count("runs_total", model=live.model, end=_end_of(live.records))

    def _happens(self, row: RunRow, live: _LiveRun, event: Event) -> None:
        if not live.taken.is_set() and is_taken(live.records[live.began :]):
            live.taken.set()
        self._meters.happened(event, live.model, live.tools)
        forms = None if isinstance(event, events.OF_RECORDS) else event.to_json()
        live.take_note(forms)
        self._tell(row.id, len(live.records), forms)

    async def _go_on(self, row: RunRow, act: RunAct, records: Sequence[Record]) -> None:
        """Have a run that rests go on, and wait until what it goes on with is written down. Raises
        `ApiError` where that is refused."""
        self._check_room()
        act = replace(act, records=len(records))
        conversation = await self._reopen(row, records)
        posted = False
        try:
            posted = await in_thread(self.rows.post, row.id, act)
        finally:
            if not posted:
                await shut(conversation)
        if not posted:
            raise conflict("the run is at work")
        live = self._begin(replace(row, act=act, cancelled=False), conversation)
        with anyio.move_on_after(PATIENCE):
            await live.taken.wait()
        if live.refused:
            raise conflict(live.refused)

    async def _leave_worker(self, row: RunRow) -> RunRow:
        """The run, once nobody elsewhere is at it or takes it up."""
        return row

    async def _waiting(self, row: RunRow, call: str) -> tuple[str, Sequence[Record]]:
        """The tool of a call that waits, and the run's records. Raises `ApiError` where none
        does."""
        records = await self._wait_at_rest(row)
        last = at_rest(records) if is_at_rest(records) else None
        pending = pending_calls(records, last) if isinstance(last, PauseRecord) else ()
        for one in pending:
            if one.call_id == call:
                return one.name, records
        waits = ", ".join(one.call_id for one in pending) or "none"
        raise conflict(f"{call[:100]} is not a call that waits (waiting: {waits})", "call_id")

    async def _wait_at_rest(self, row: RunRow) -> Sequence[Record]:
        """The records of a run that rests, for which a client waits a little. Raises `ApiError`."""
        if (live := self._live.get(row.id)) is not None:
            with anyio.move_on_after(PATIENCE):
                await live.rested.wait()
        records = await self._records(row)
        begun = was_asked(records) or (await self.find(row.owner, row.id)).act is not None
        if row.id in self._live or (begun and not is_at_rest(records)):
            raise conflict("the run is at work, or waits for that")
        return records

    async def _reopen(self, row: RunRow, records: Sequence[Record]) -> Conversation:
        try:
            return await self.work.open(row, records)
        except MlxToolsError as error:
            if isinstance(error, TranscriptError) and not isinstance(error, StorageError):
                raise conflict(str(error)) from error  # another process is at it
            raise as_api_error(error) from error

    @asynccontextmanager
    async def _open_session(
        self, row: RunRow, records: Sequence[Record]
    ) -> AsyncIterator[Conversation]:
        """The session of a run that rests, to look at, or to bring to rest. Raises `ApiError`."""
        conversation = await self._reopen(row, records)
        try:
            yield conversation
        finally:
            await shut(conversation)

    # --- what is kept ---

    async def _records(self, row: RunRow) -> Sequence[Record]:
        """The records of a run that is not at work here; one that broke off is brought to rest."""
        records = await self.work.read(row)
        if self._is_at_rest(row, records):
            return records
        async with self._settling:
            now = await in_thread(self.rows.named, row.id)
            records = await self.work.read(row)
            if row.id in self._live or now is None or self._is_at_rest(now, records):
                return records
            with suppress(ApiError):  # another process is at it, or its model is not served
                records = await self._settle(now, records)
        return records

    def _is_at_rest(self, row: RunRow, records: Sequence[Record]) -> bool:
        """Whether there is nothing to be done about it here."""
        return row.act is None and is_at_rest(records)

    async def _settle(
        self, row: RunRow, records: Sequence[Record], *, cancelled: bool = False
    ) -> Sequence[Record]:
        """Bring a run to rest that broke off, or is ``cancelled``. Raises `ApiError` where another
        process is at it."""
        if not was_asked(records):
            with suppress(TranscriptError), self.sessions.hold(row.id):
                await self.work.put_to_rest(row, records)
            return records
        async with self._open_session(row, records) as conversation:
            if cancelled:
                conversation.cancel()
            records = [*conversation.files.transcript]
            if not cancelled and self._is_at_rest(await self.find(None, row.id), records):
                return records  # it was left to a worker meanwhile
            await conversation.settle()
            records = [*conversation.files.transcript]
            if row.act is not None:
                await self.work.put_to_rest(row, records)
        return records

    async def _looked_at(self, row: RunRow) -> tuple[bool, Sequence[Record]]:
        """Whether somebody was at a run that is not at work here, and its records after that: what
        nobody was at is all there."""
        used = await in_thread(self.sessions.in_use, row.id)
        return used, await self._records(row)

    def _status(self, row: RunRow, records: Sequence[Record], was_used: bool) -> str:
        """How a run stands that was so looked at."""
        if row.cancelled or is_at_rest(records):
            return standing_of_run(row, records)
        if not was_used:
            return "stopped"  # it broke off, before it was begun or its model is not served
        return "running" if was_asked(records) else "queued"

    def _forget(self, run: str) -> bool:
        if run in self._live:
            return False
        if self.sessions.size(run) < 0:
            return True
        with suppress(TranscriptError):
            return self.sessions.remove(run)
        return False


async def shut(conversation: Conversation) -> None:
    """Close a session that is not gone on with, and what its tools keep open."""
    conversation.close()
    await conversation.registry.aclose()


def is_taken(new: Sequence[Record]) -> bool:
    """Whether what a run was gone on with is written down."""
    return any(not isinstance(one, ResumedRecord | DecisionRecord) for one in new)


def _same(row: RunRow, body: JsonObject) -> RunRow:
    if row.body == body:
        return row
    problem = "this Idempotency-Key came with another body before"
    raise ApiError(422, "idempotency_key_reused", problem, param="Idempotency-Key")


def conflict(problem: str, param: str | None = None) -> ApiError:
    """The error for what cannot be done of a run as it stands."""
    return ApiError(409, "conflict", problem, param=param)


def _end_of(records: Sequence[Record]) -> str:
    """In a word how a run came to rest: why, where it stopped."""
    if not is_at_rest(records):
        return "unfinished"
    outcome = outcome_of(records)
    return outcome.reason if isinstance(outcome, Stopped) else outcome.status


def _view(row: RunRow, records: Sequence[Record], status: str) -> JsonObject:
    asked = was_asked(records)
    outcome = outcome_of(records, unfinished=True) if asked else Unfinished(session=row.id)
    value = outcome.to_json()
    if status in ENDED and not is_at_rest(records):
        value["reason"] = "cancelled" if status == "cancelled" else "interrupted"
    return {"id": row.id} | value | {"status": status}


# --- events ---------------------------------------------------------------------------------------

_MOST: Final = 2_000
"""Deltas that are held for somebody who is slow; of more the oldest are left out."""


def _join_deltas(deltas: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Deltas, with those of one text as one."""
    for _, run in groupby(deltas, lambda one: {**one, "text": ""}):
        pieces = [*run]
        text = "".join(str(one["text"]) for one in pieces if "text" in one)
        yield pieces[0] | ({"text": text} if "text" in pieces[0] else {})


class _Follower:
    """What somebody who follows a run in this process is still to be told: deltas, each with how
    many records there were before it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, JsonObject | None]] = deque(maxlen=_MOST)
        self._news = anyio.Event()

    def tell(self, upto: int, forms: JsonObject | None = None) -> None:
        """There are so many records now; what ``forms`` comes after them."""
        self._waiting.append((upto, forms))
        self._news.set()

    def take(self) -> Sequence[tuple[int, JsonObject | None]]:
        """What is to be told now, in order."""
        waiting = [*self._waiting]
        self._waiting.clear()
        self._news = anyio.Event()
        return waiting

    async def wait(self, seconds: float) -> bool:
        """Wait for news, so long at most; return whether there are some."""
        with anyio.move_on_after(seconds):
            await self._news.wait()
        return self._news.is_set()
