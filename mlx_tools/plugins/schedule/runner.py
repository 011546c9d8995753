"""Runs the jobs that are due, each once, and records the results.

A run is recorded before it starts and after it ended. If the process ends in between, the next
runner finds its lock released, and decides by the session of the run. A run that changed nothing is
tried again. A run that may have changed something is *in doubt*. It is shown, and its job does not
run again until a person has resumed or removed the session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import anyio

from mlx_tools.errors import (
    EXIT_OK,
    EXIT_STOPPED,
    MlxToolsError,
    ScheduleError,
    StorageError,
)
from mlx_tools.messages import replace
from mlx_tools.plugins.schedule.job_store import (
    Job,
    JobRun,
    JobStore,
    RunEnd,
    RunInspection,
    RunStatus,
    utc_now,
)
from mlx_tools.store import Presence

POLL_SECONDS: Final = 30.0
"""Seconds after which a runner checks again, because jobs may be added and clocks be set."""

RETRY_SECONDS: Final = 5.0
"""Seconds until the next try if the store could not be used."""

OnBegin = Callable[[str], None]
"""Called with the session of a run before its first step."""

StartRun = Callable[[Job, OnBegin], Awaitable[RunEnd]]
"""Runs a job. Raises an `MlxToolsError` if that is not possible."""

InspectSession = Callable[[str], RunInspection]
"""Returns the state of a session that no runner uses.

Raises a `StorageError` if the sessions cannot be read at the moment.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run that has ended."""

    run: JobRun
    job: Job
    end: RunEnd | None = None
    """Its end, None if it could not begin or was interrupted."""
    fault: Exception | None = None
    """An unexpected exception that interrupted it: a fault of this program or of the system."""
    exit_code: int = EXIT_OK


# --- running ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Runner:
    """Runs the due jobs of ``store``, one after the other.

    Close it, or use it with ``with``.
    """

    store: JobStore
    start: StartRun
    look: InspectSession
    now: Callable[[], datetime] = field(default=utc_now, kw_only=True)
    sleep: Callable[[float], Awaitable[None]] = field(default=anyio.sleep, kw_only=True)
    _present: Presence | None = field(default=None, init=False)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock that shows that this runner is alive."""
        if self._present is not None:
            self._present.close()
            self._present = None

    async def run_due(
        self, tell: Callable[[FinishedRun], None] = lambda finished_runs: None
    ) -> list[FinishedRun]:
        """Run the jobs that are due now, each at most once, and return the runs.

        ``tell`` is called at the end of each run.
        """
        settle(self.store, self.look)
        if self._present is None:
            self._present = self.store.tables.presence()
        now, finished_runs = self.now(), []
        while (claimed := self.store.claim(now, self._present.token)) is not None:
            finished_runs.append(await self._run(*claimed, tell))
        return finished_runs

    async def run_forever(
        self,
        tell: Callable[[FinishedRun], None],
        trouble: Callable[[ScheduleError], None] = lambda error: None,
    ) -> None:
        """Run the due jobs, wait for the next ones, and repeat until cancelled.

        If the store cannot be used at the moment, it is tried again, and ``trouble`` is called
        once.

        Raises:
            ScheduleError: the store can never be used.
        """
        last_error = ""
        while True:
            try:
                looked_at = self.now()
                await self.run_due(tell)
                due = self.store.next_try(looked_at)
                seconds_left = POLL_SECONDS if due is None else (due - self.now()).total_seconds()
                pause, last_error = min(max(seconds_left, 0.5), POLL_SECONDS), ""
            except ScheduleError as error:
                if not error.passing:
                    raise
                self.close()  # a run that could not be recorded is found by its session later
                if str(error) != last_error:
                    trouble(error)
                pause, last_error = RETRY_SECONDS, str(error)
            await self.sleep(pause)

    async def _run(self, job: Job, run: JobRun, tell: Callable[[FinishedRun], None]) -> FinishedRun:
        """Run a claimed job. Its end is reported even if it cannot be recorded."""
        recorded_run = run
        status: RunStatus

        def on_begin(session: str) -> None:
            nonlocal recorded_run
            self.store.set_session(run, session)
            recorded_run = replace(run, session=session)

        end, fault, code = None, None, EXIT_STOPPED
        unread: ScheduleError | None = None
        try:
            end = await self.start(job, on_begin)
            status, reason, code = end.status, end.reason, end.exit_code
        except Exception as error:  # even a fault of ours must end only this run
            try:
                was_changed = _inspect_run(self.look, recorded_run).was_changed
            except ScheduleError as away:
                was_changed, unread = True, away
            status = "in_doubt" if was_changed else "failed"
            if isinstance(error, MlxToolsError):
                reason, code = str(error), error.exit_code
            else:
                reason, fault = f"{type(error).__name__}: {error}", error
        except BaseException:  # if cancelled, do the same as after the end of a process
            with contextlib.suppress(ScheduleError):  # the next runner will do it
                _settle(self.store, self.look, recorded_run)
            raise
        final_run = replace(recorded_run, status=status, reason=reason[:500], ended_at=self.now())
        finished_run = FinishedRun(run=final_run, job=job, end=end, fault=fault, exit_code=code)
        try:
            if unread is not None:
                raise unread  # not recorded: the next runner finds it by its session
            # Recorded first, so that the run is not repeated if the process ends here.
            self.store.settle(recorded_run, status, reason)
            if status == "failed":
                self.store.try_again(recorded_run)
        finally:
            tell(finished_run)
        return finished_run


def settle(store: JobStore, look: InspectSession) -> None:
    """Update the unfinished runs from their sessions."""
    for run in store.open_runs():
        if run.status != "running" or not store.tables.is_alive(run.runner):
            _settle(store, look, run)


def _settle(store: JobStore, look: InspectSession, run: JobRun) -> None:
    status, reason = _find_status(run, _inspect_run(look, run))
    if status is None or (status, reason) == (run.status, run.reason):
        return
    store.settle(run, status, reason)
    if status == "interrupted":
        store.try_again(run, delay=timedelta(0))


def _inspect_run(look: InspectSession, run: JobRun) -> RunInspection:
    """Return the state of the run's session. Without a session nothing was changed.

    Raises:
        ScheduleError: the sessions cannot be read at the moment.
    """
    if not run.session:
        return RunInspection(state="empty", was_changed=False)
    try:
        return look(run.session)
    except StorageError as error:
        raised = ScheduleError(error.message, hint=error.hint)
        raised.passing = True
        raise raised from None


def _find_status(run: JobRun, inspection: RunInspection) -> tuple[RunStatus | None, str]:
    """Return the status of a run that waits or has lost its process, by its session.

    None if it has not changed.
    """
    match inspection.state:
        case "answered":
            return "answered", ""
        case "stopped" if inspection.in_doubt:
            return "in_doubt", inspection.reason
        case "stopped" if inspection.was_changed or inspection.reason != "interrupted":
            return "stopped", inspection.reason
        case "paused":
            return "paused", ""
        case "running":  # it is being resumed
            return None, ""
        case "missing" if run.status != "running":
            return "abandoned", "its session was removed"
    if run.status == "in_doubt":
        return None, ""
    if run.status == "paused":
        return "in_doubt", "going on with it broke off, or its session is damaged"
    if inspection.was_changed:
        return "in_doubt", "it broke off, and may have changed things"
    return "interrupted", "it broke off, and changed nothing"
