"""The queue of runs if sessions are in PostgreSQL: jobs of procrastinate.

A gateway does none of its runs itself: workers on any machine take them from the queue, and resume
runs that broke off. A job only names a run. The next action is in the run's row, and the transcript
shows whether it has begun. So a job that comes twice finds nothing to do, and all jobs can be made
again from the rows.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from mlx_tools.errors import MissingDependency, StorageError
from mlx_tools.gateway import JsonObject
from mlx_tools.paths import to_install
from mlx_tools.plugins.runs.followers import Followers
from mlx_tools.plugins.runs.rows import RunRow
from mlx_tools.store import FileFormat, SessionStore, Statements

if TYPE_CHECKING:
    from procrastinate import App

HEARTBEAT: Final = 2.0
"""Seconds between two signs of life of a worker."""

LEASE: Final = 10.0
"""Seconds without one after which another worker takes over its jobs."""

RUN: Final = "run"
"""The task that does the action of a run."""

_NAME: Final = "mlx_tools_queue"
_MAX_NOTIFICATION_CHARS: Final = 7_900
"""Characters of one notification, all of them ASCII: PostgreSQL takes less than 8,000 bytes."""

_WAITING: Final = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo' AND task_name = ?"
_WORKERS: Final = (
    "SELECT count(*) FROM procrastinate_workers WHERE last_heartbeat > now() - ? * interval '1 s'"
)


class RunQueue:
    """The queue of runs in a database, and the workers that take runs from it.

    For a gateway it is the `Workers` of its runs.
    """

    are_elsewhere = True

    def __init__(self, store: SessionStore) -> None:
        """Make its tables if they are missing. Raises `MissingDependency`, `StorageError`."""
        try:
            import procrastinate
        except ImportError:
            raise MissingDependency(
                "runs by workers need procrastinate", hint=to_install("postgres")
            ) from None
        logger = logging.getLogger("procrastinate")
        # faults that concern a user are reported by mlx-tools itself
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        form = _format(procrastinate)
        self._tables, self._address = store.tables(form), store.dsn or ""
        self._adding = self.app()
        self.followers = Followers()
        self._listening: asyncio.Task[None] | None = None
        with self._tables.transaction():
            pass

    def app(self) -> App:
        """Make procrastinate's application. Once it is open, only `add` adds jobs."""
        from procrastinate import App, PsycopgConnector

        return App(connector=PsycopgConnector(conninfo=self._address, min_size=1, timeout=10))

    def add(self, db: Statements, run: str, model: str) -> None:
        """Add a job for a worker that serves ``model``, once the transaction is committed."""
        (before,) = db.execute("SELECT current_setting('search_path')").fetchone()
        db.execute("SELECT set_config('search_path', ?, true)", (f"{_NAME}, {before}",))
        connection: Any = db.connection  # type: ignore[attr-defined]
        options: Any = {"lock": run, "queue": model, "connection": connection}
        self._adding.configure_task(RUN, allow_unknown=True, **options).defer(run=run)
        db.execute("SELECT set_config('search_path', ?, true)", (before,))

    def tell(self, run: str, upto: int, events: Sequence[JsonObject]) -> None:
        """Notify listeners of deltas after the first ``upto`` records of a run."""
        while events:
            count = len(events)
            while (
                count
                and len(said := _to_json_line(run, upto, events[:count])) > _MAX_NOTIFICATION_CHARS
            ):
                count //= 2
            if count:
                with self._tables.transaction() as db:
                    db.execute("SELECT pg_notify(?, ?)", (_NAME, said))
            events = events[count or 1 :]  # one that is too long is left out

    async def _listen(self) -> None:
        """Pass the messages of workers on to followers.

        Messages are lost while the database is away; followers get the records all the same.
        """
        import psycopg

        while True:
            with suppress(psycopg.Error):
                connection = await psycopg.AsyncConnection.connect(self._address, autocommit=True)
                async with connection:
                    await connection.execute(f"LISTEN {_NAME}")
                    async for one in connection.notifies():
                        value = json.loads(one.payload)
                        for event in value["events"]:
                            self.followers.tell(value["run"], value["upto"], event)
            await anyio.sleep(HEARTBEAT)

    def load_queued(self) -> set[str]:
        """Return the runs that a job names."""
        query = "SELECT args ->> 'run' FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        with self._tables.transaction() as db:
            return {run for (run,) in db.execute(query).fetchall()}

    # --- for a gateway ---

    async def open(self) -> None:
        """Begin to listen to workers."""
        self._listening = asyncio.create_task(self._listen())

    async def aclose(self) -> None:
        """Stop listening to workers."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    def load(self) -> dict[str, int]:
        """Return the counts of runs that wait and are active, and of live workers."""
        with self._tables.transaction() as db:
            (waiting,) = db.execute(_WAITING, (RUN,)).fetchone()
            (active,) = db.execute(_WAITING.replace("todo", "doing"), (RUN,)).fetchone()
            (workers,) = db.execute(_WORKERS, (LEASE,)).fetchone()
        return {"active": active, "waiting": waiting, "workers": workers}

    def check_room(self) -> None:
        """Take any number of runs: those without a free worker wait."""

    def start(self, row: RunRow, conversation: object) -> None:
        """Leave a run to the workers: its job was added with its row."""

    def live_run(self, run: str) -> None:
        """Return None: no run is at work in this process."""


def _to_json_line(run: str, upto: int, events: Sequence[JsonObject]) -> str:
    return json.dumps({"run": run, "upto": upto, "events": events}, separators=(",", ":"))


def _format(procrastinate: Any) -> FileFormat:
    """Return the format of procrastinate's tables, which replaces older ones."""
    from procrastinate.schema import SchemaManager

    made = SchemaManager.get_schema()
    major, minor, *_ = procrastinate.__version__.split(".")
    version = 1000 * int(major) + int(minor)
    anew = f"DROP SCHEMA {_NAME} CASCADE; CREATE SCHEMA {_NAME};\n{made}"
    since = dict.fromkeys(range(3000, version), anew)
    return FileFormat("queue of runs", StorageError, 0, version, made, "queue", since)
