"""Runs where sessions are in PostgreSQL: a gateway does nothing of them itself, workers on any
machine take it from a queue, of jobs of procrastinate, and go on with what breaks off.

A job only names a run. What is to be done stands in the run's row, and where that begins in its
transcript: a job that comes twice finds nothing to do, and all jobs can be made anew of the rows.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from mlx_tools.controller import Conversation
from mlx_tools.errors import MissingDependency, StorageError
from mlx_tools.gateway.admission import Admission
from mlx_tools.gateway.meters import Meters
from mlx_tools.gateway.request import ApiError, JsonObject
from mlx_tools.gateway.run_body import RunAct
from mlx_tools.gateway.run_rows import RunRow
from mlx_tools.gateway.run_work import RunExecution
from mlx_tools.gateway.runs import PATIENCE, Runs, conflict, in_thread, is_taken, shut
from mlx_tools.messages import replace
from mlx_tools.paths import to_install
from mlx_tools.store import FileFormat, SessionStore, Statements
from mlx_tools.transcript import Record, is_at_rest

if TYPE_CHECKING:
    from procrastinate import App

HEARTBEAT: Final = 2.0
"""Seconds between two signs of life of a worker."""

LEASE: Final = 10.0
"""Seconds without one after which another worker takes what it had."""

RUN: Final = "run"
"""The task that does what is asked of a run."""

_NAME: Final = "mlx_tools_queue"
_MOST_SAID: Final = 7_900
"""Characters of one notification, all of them ASCII: PostgreSQL takes less than 8,000 bytes."""

_WAITING: Final = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo' AND task_name = ?"
_WORKERS: Final = (
    "SELECT count(*) FROM procrastinate_workers WHERE last_heartbeat > now() - ? * interval '1 s'"
)


class RunQueue:
    """The queue beside the sessions of ``store``, which are in PostgreSQL. Its tables are made
    where they are missing. Raises `MissingDependency`, and `StorageError`."""

    def __init__(self, store: SessionStore) -> None:
        try:
            import procrastinate
        except ImportError:
            raise MissingDependency(
                "runs by workers need procrastinate", hint=to_install("postgres")
            ) from None
        logger = logging.getLogger("procrastinate")
        logger.addHandler(logging.NullHandler())  # what concerns a user is told by us
        logger.propagate = False
        form = _format(procrastinate)
        self._tables, self._address = store.tables(form), store.dsn or ""
        self._adding = self.app()
        with self._tables.transaction():
            pass

    def app(self) -> App:
        """What works the queue off. Once it is opened nothing is added by it (`add`)."""
        from procrastinate import App, PsycopgConnector

        return App(connector=PsycopgConnector(conninfo=self._address, min_size=1, timeout=10))

    def add(self, db: Statements, run: str, model: str) -> None:
        """Have a worker that serves ``model`` take a run up, once the transaction is kept."""
        (before,) = db.execute("SELECT current_setting('search_path')").fetchone()
        db.execute("SELECT set_config('search_path', ?, true)", (f"{_NAME}, {before}",))
        connection: Any = db.connection  # type: ignore[attr-defined]
        options: Any = {"lock": run, "queue": model, "connection": connection}
        self._adding.configure_task(RUN, allow_unknown=True, **options).defer(run=run)
        db.execute("SELECT set_config('search_path', ?, true)", (before,))

    def tell(self, run: str, upto: int, events: Sequence[JsonObject]) -> None:
        """Say what forms in a run behind its first ``upto`` records, to whoever listens now."""
        while events:
            count = len(events)
            while count and len(said := _to_json_line(run, upto, events[:count])) > _MOST_SAID:
                count //= 2
            if count:
                with self._tables.transaction() as db:
                    db.execute("SELECT pg_notify(?, ?)", (_NAME, said))
            events = events[count or 1 :]  # one that is too long is left out

    async def listen(self, hear: Callable[[str, int, JsonObject], None]) -> None:
        """Hear what workers tell. What they say while the database is away is lost: of records
        whoever follows a run hears all the same."""
        import psycopg

        while True:
            with suppress(psycopg.Error):
                connection = await psycopg.AsyncConnection.connect(self._address, autocommit=True)
                async with connection:
                    await connection.execute(f"LISTEN {_NAME}")
                    async for one in connection.notifies():
                        value = json.loads(one.payload)
                        for event in value["events"]:
                            hear(value["run"], value["upto"], event)
            await anyio.sleep(HEARTBEAT)

    def named(self) -> set[str]:
        """The runs that a job names."""
        query = "SELECT args ->> 'run' FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        with self._tables.transaction() as db:
            return {run for (run,) in db.execute(query).fetchall()}

    def load(self) -> dict[str, int]:
        """How many runs are ``waiting`` for a worker, how many are ``active``, and how many
        ``workers`` live."""
        with self._tables.transaction() as db:
            (waiting,) = db.execute(_WAITING, (RUN,)).fetchone()
            (active,) = db.execute(_WAITING.replace("todo", "doing"), (RUN,)).fetchone()
            (workers,) = db.execute(_WORKERS, (LEASE,)).fetchone()
        return {"active": active, "waiting": waiting, "workers": workers}


def _to_json_line(run: str, upto: int, events: Sequence[JsonObject]) -> str:
    return json.dumps({"run": run, "upto": upto, "events": events}, separators=(",", ":"))


def _format(procrastinate: Any) -> FileFormat:
    """Its tables are of the version that is installed: those of an older one are made anew."""
    from procrastinate.schema import SchemaManager

    made = SchemaManager.get_schema()
    major, minor, *_ = procrastinate.__version__.split(".")
    version = 1000 * int(major) + int(minor)
    anew = f"DROP SCHEMA {_NAME} CASCADE; CREATE SCHEMA {_NAME};\n{made}"
    since = dict.fromkeys(range(3000, version), anew)
    return FileFormat("queue of runs", StorageError, 0, version, made, "queue", since)


# --- the runs of a gateway ------------------------------------------------------------------------

_SOON: Final = 0.1
"""Seconds between two looks at whether a worker has taken something up."""


class QueuedRuns(Runs):
    """The runs of one gateway, which workers do that take them from ``queue``."""

    def __init__(
        self, work: RunExecution, admission: Admission, meters: Meters, queue: RunQueue
    ) -> None:
        super().__init__(work, admission, meters)
        self._queue = queue
        self._listening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Hear what workers tell, and go on telling what is owed."""
        self._listening = asyncio.create_task(self._queue.listen(self._tell))
        self.work.webhooks.wake(self.rows)

    async def aclose(self) -> None:
        """Hear no more of them."""
        await super().aclose()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def load(self) -> dict[str, int]:
        return await in_thread(self._queue.load)

    async def _add(self, row: RunRow, conversation: Conversation, key: str | None) -> bool:
        await shut(conversation)  # a worker may be at it at once
        added = False
        try:
            added = await in_thread(self.rows.add, row, key)
        finally:
            if not added:
                self._forget(row.id)
        return added

    async def _go_on(self, row: RunRow, act: RunAct, records: Sequence[Record]) -> None:
        """As that of a gateway that does it; where no worker is free it is done later."""
        act = replace(act, records=len(records))
        if not await in_thread(self.rows.post, row.id, act):
            raise conflict("the run is at work")
        with anyio.move_on_after(PATIENCE):
            while (now := await self.find(None, row.id)).act is not None:
                records = await self.work.read(row)
                if is_taken(records[act.records :]) and not is_at_rest(records):
                    break
                await anyio.sleep(_SOON)
        if now.act is None and now.refused:
            raise conflict(now.refused)

    async def _leave_worker(self, row: RunRow) -> RunRow:
        """Have the worker that is at a run leave it, and see to it that none takes it up."""
        if row.act is not None:
            await in_thread(self.rows.cancel, row.id)
        with anyio.move_on_after(PATIENCE):
            while (row := await self.find(None, row.id)).act is not None:
                with suppress(ApiError):  # a worker is at it
                    await self._settle(row, await self.work.read(row), cancelled=True)
                await anyio.sleep(_SOON)
        return row

    def _is_at_rest(self, row: RunRow, records: Sequence[Record]) -> bool:
        return row.act is not None or is_at_rest(records)

    def _status(self, row: RunRow, records: Sequence[Record], was_used: bool) -> str:
        if row.act is None or row.cancelled:
            return super()._status(row, records, was_used)
        return "running" if was_used else "queued"
