"""A worker: it does runs, on any machine that reaches their database.

While it lives, its jobs are its own. If it dies, another worker takes them, and resumes the run by
its transcript: a person is asked about a call that may have happened. Two workers never do one run,
because a session has one writer, who holds its lock.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import anyio

from mlx_tools.app import RunOptions, session_store
from mlx_tools.controller import Conversation
from mlx_tools.errors import MlxToolsError, StorageError, UsageError
from mlx_tools.gateway import DEFAULT, ApiError, JsonObject, ServedModels
from mlx_tools.messages import replace
from mlx_tools.plugins.runs.execution import RunExecution, has_question
from mlx_tools.plugins.runs.queue import HEARTBEAT, LEASE, RUN, RunQueue
from mlx_tools.plugins.runs.rows import RunRow
from mlx_tools.plugins.runs.webhooks import Webhooks
from mlx_tools.transcript import Event, events, is_at_rest

if TYPE_CHECKING:
    from procrastinate import BaseRetryStrategy

GRACE: Final = 30.0
"""Seconds that runs have to end once the worker is asked to end; then others get them."""

POLL_SECONDS: Final = 1.0
"""Seconds between two checks whether a run was cancelled."""

_TICK: Final = 0.1
"""Seconds between two messages with deltas."""

RETRY_SECONDS: Final = 2.0
"""Seconds before another attempt at an action that was not possible."""

_DUE: Final = "due"
_EVERY_MINUTE: Final = "* * * * *"

Note = Callable[[str], None]


class RunUnavailable(Exception):
    """The run cannot be done now by this worker."""


class RunWorker:
    """Takes runs from a queue, and does them in this process."""

    def __init__(
        self,
        execution: RunExecution,
        queue: RunQueue,
        slots: int,
        models: tuple[str, ...],
        run_due: Callable[[], Awaitable[None]],
        note: Note,
    ) -> None:
        """Take runs of these models, so many at once.

        ``run_due`` runs the jobs of the schedule that are due; ``note`` is called with faults that
        no client hears of.
        """
        self._execution, self._queue, self._note = execution, queue, note
        self._app = app = queue.app()
        self._last_sent = ""
        self._stopping = anyio.Event()
        app.task(name=RUN, retry=_retry_strategy())(self.do)

        async def due(timestamp: int) -> None:
            await run_due()

        task = app.task(name=_DUE, queue=_DUE, queueing_lock=_DUE)(due)
        app.periodic(cron=_EVERY_MINUTE)(task)
        self._options: dict[str, Any] = {
            "queues": [*models, _DUE],
            "concurrency": slots,
            "delete_jobs": "always",
            "install_signal_handlers": False,
            "shutdown_graceful_timeout": GRACE,
            "update_heartbeat_interval": HEARTBEAT,
            "stalled_worker_timeout": LEASE,
        }

    async def serve(self) -> None:
        """Work until `stop`. While the database is away, try again."""
        while not self._stopping.is_set():
            try:
                async with self._app.open_async(), anyio.create_task_group() as tasks:
                    tasks.start_soon(self._rescue)
                    working = asyncio.create_task(self._app.run_worker_async(**self._options))
                    tasks.start_soon(self._end, working)
                    await working
                    tasks.cancel_scope.cancel()
                self._last_sent = ""
            except* _database_errors() as errors:
                self._tell(f"the queue cannot be used: {errors.exceptions[0]}")
            except* asyncio.CancelledError:
                if not self._stopping.is_set():
                    raise
            with anyio.move_on_after(RETRY_SECONDS):
                await self._stopping.wait()

    def stop(self) -> None:
        """Take no more runs; end when those at work have ended or were given away."""
        self._stopping.set()

    async def do(self, run: str) -> None:
        """Do the action of a run, until it rests. Raises `RunUnavailable`."""
        row = await anyio.to_thread.run_sync(self._execution.rows.find, run)
        if row is None or row.act is None:
            return
        try:
            records = await self._execution.read(row)
            conversation = await self._execution.open(row, records)
        except ApiError as error:
            if error.status in (404, 500) and self._execution.store.size(run) < 0:
                await self._execution.put_to_rest(row, (), error.message)  # the session is gone
                return
            raise RunUnavailable(error.message) from error
        except MlxToolsError as error:  # another process has it open, or the database is away
            raise RunUnavailable(str(error)) from error
        try:
            await self._run_watched(row, conversation)
        except StorageError as error:
            raise RunUnavailable(str(error)) from error
        finally:
            conversation.close()

    async def _run_watched(self, row: RunRow, conversation: Conversation) -> None:
        """Do the action of a row, unless it is cancelled, and record that it is done."""
        records, forming = conversation.files.transcript, list[tuple[int, JsonObject]]()

        def on_event(event: Event) -> None:
            if not isinstance(event, events.RECORD_EVENTS):  # which followers read
                forming.append((len(records), event.to_json()))

        telling = asyncio.create_task(self._tell_forming(row.id, forming))
        running = asyncio.create_task(self._execution.run(row, conversation, on_event))
        try:
            is_cancelled = row.cancelled
            while not is_cancelled and not (await asyncio.wait([running], timeout=POLL_SECONDS))[0]:
                now = await anyio.to_thread.run_sync(self._execution.rows.find, row.id)
                is_cancelled = now is not None and now.cancelled
            if is_cancelled:
                await self._end_cancelled(replace(row, cancelled=True), conversation, running)
            else:
                running.result()
        except BaseException:
            conversation.close()  # another worker resumes what this one does not finish
            raise
        finally:
            running.cancel()
            telling.cancel()
            await asyncio.wait([running, telling])

    async def _end_cancelled(
        self, row: RunRow, conversation: Conversation, running: asyncio.Task[None]
    ) -> None:
        conversation.cancel()
        running.cancel()
        await asyncio.wait([running])
        records = conversation.files.transcript
        if has_question(records):
            await conversation.settle()
        if is_at_rest(records) or not has_question(records):
            await self._execution.put_to_rest(row, [*records])

    async def _tell_forming(self, run: str, forming: list[tuple[int, JsonObject]]) -> None:
        """Send deltas to the followers of a run, some at a time; nothing waits for them."""
        while True:
            await anyio.sleep(_TICK)
            waiting = [*forming]
            forming.clear()
            with suppress(StorageError):
                for upto, some in groupby(waiting, itemgetter(0)):
                    said = [event for _, event in some]
                    await anyio.to_thread.run_sync(self._queue.tell, run, upto, said)

    async def _end(self, working: asyncio.Task[None]) -> None:
        await self._stopping.wait()
        working.cancel()  # it takes no more runs, and waits for those that it has

    async def _rescue(self) -> None:
        """Free the jobs of dead workers and make those that are missing, again and again."""
        manager = self._app.job_manager
        while True:
            try:
                for job in await manager.get_stalled_jobs(seconds_since_heartbeat=LEASE):
                    with suppress(*_database_errors()):  # another worker was quicker
                        await manager.retry_job(job)
                await anyio.to_thread.run_sync(
                    self._execution.rows.queue_again, self._queue.load_queued
                )
            except _database_errors() as error:
                self._tell(f"the queue cannot be used: {error}")
            await anyio.sleep(LEASE / 2)

    def _tell(self, problem: str) -> None:
        if problem != self._last_sent:
            self._note(problem)
        self._last_sent = problem


def _database_errors() -> tuple[type[Exception], ...]:
    from procrastinate.exceptions import ProcrastinateException
    from psycopg import Error

    return ProcrastinateException, Error, StorageError


def _retry_strategy() -> BaseRetryStrategy:
    from procrastinate import BaseRetryStrategy, RetryDecision

    class RetryAlways(BaseRetryStrategy):
        """Retries a job that was not done, on any free worker."""

        def get_retry_decision(self, *, exception: BaseException, job: Any) -> RetryDecision:
            return RetryDecision(retry_in={"seconds": int(RETRY_SECONDS)})

    return RetryAlways()


async def work(options: RunOptions, note: Note, run_due: Callable[[], Awaitable[None]]) -> None:
    """Do what is asked of runs until SIGTERM or SIGINT.

    Raises `UsageError` if the sessions of the settings are in no database.
    """
    configuration = options.configuration
    own = configuration.settings.gateway
    store = session_store(configuration)
    if store.dsn is None:
        raise UsageError(
            f"workers need sessions in PostgreSQL; these are in files ({store.place})",
            hint='name a database: sessions = "postgresql://…", or MLX_TOOLS_SESSIONS',
        )
    webhooks = Webhooks.from_settings(configuration)
    models = ServedModels(options, note)
    try:
        await models.open()
        execution = RunExecution(configuration, models, note, webhooks)
        assert execution.queue is not None
        names = tuple(row["id"] for row in models.rows())
        slots, queues = own.concurrency, (*names, DEFAULT)
        worker = RunWorker(execution, execution.queue, slots, queues, run_due, note)
        webhooks.wake(execution.rows)
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            # Only now: a reader of it may end this at once.
            note(f"runs of {', '.join(names)} are done here, {own.concurrency} at once")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_stop_at_signals, worker, signals, note)
                await worker.serve()
                tasks.cancel_scope.cancel()
    finally:
        await webhooks.aclose()
        await models.aclose()


async def _stop_at_signals(
    worker: RunWorker, signals: AsyncIterator[signal.Signals], note: Note
) -> None:
    async for _ in signals:
        note("ends when its runs have ended, or gives them to another worker")
        worker.stop()
