"""Runs the jobs that are due, each once, and keeps what came of it.

A run is written down before it starts and after it ended. Where a process ends in between, the next
runner finds that out: its lock is gone. What the run's session says then decides. A run that
changed nothing is made again; one that may have is *in doubt*: it is shown, and its job does not
run again until a person has gone on with the session, or removed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import anyio

from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, MlxToolsError, ScheduleError
from mlx_tools.messages import replace
from mlx_tools.store import Presence
from mlx_tools.toolbox.schedule.job_store import (
    Job,
    JobRun,
    JobStore,
    RunEnd,
    RunInspection,
    RunStatus,
    utc_now,
)

POLL: Final = 30.0
"""Seconds after which a runner that stays looks again: jobs come, and clocks are set."""

AGAIN: Final = 5.0
"""Seconds after which one looks again that could not use the store."""

Began = Callable[[str], None]
"""Is told the session of a run before anything happens in it."""

Start = Callable[[Job, Began], Awaitable[RunEnd]]
"""Runs a job. Raises an `MlxToolsError` where that cannot be done."""

Look = Callable[[str], RunInspection]
"""Says how a session stands that no runner is at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run that was made. ``end`` is None where it could not be begun, or was broken off;
    ``fault`` is what broke it off where that is no error that is known: a fault of this program,
    or of the system."""

    run: JobRun
    job: Job
    end: RunEnd | None = None
    fault: Exception | None = None
    exit_code: int = EXIT_OK


# --- running ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Runner:
    """Runs what is due in ``store``, one job after the other. Close it, or use it with ``with``."""

    store: JobStore
    start: Start
    look: Look
    now: Callable[[], datetime] = field(default=utc_now, kw_only=True)
    sleep: Callable[[float], Awaitable[None]] = field(default=anyio.sleep, kw_only=True)
    _present: Presence | None = field(default=None, init=False)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes back the sign that this runner is alive."""
        if self._present is not None:
            self._present.close()
            self._present = None

    async def run_due(
        self, tell: Callable[[FinishedRun], None] = lambda ended: None
    ) -> list[FinishedRun]:
        """Runs everything that is due now, each job at most once, and returns how that went.

        ``tell`` is called as each run ends.
        """
        settle(self.store, self.look)
        if self._present is None:
            self._present = self.store.tables.presence()
        now, ended = self.now(), []
        while (claimed := self.store.claim(now, self._present.token)) is not None:
            ended.append(await self._run(*claimed, tell))
        return ended

    async def run_forever(
        self,
        tell: Callable[[FinishedRun], None],
        trouble: Callable[[ScheduleError], None] = lambda error: None,
    ) -> None:
        """Runs what is due, waits for what is due next, and so on until it is cancelled.

        A store that cannot be used just now is tried again; ``trouble`` is told of it, once until
        it can be used. Raises `ScheduleError` where that will not pass.
        """
        told = ""
        while True:
            try:
                looked = self.now()
                await self.run_due(tell)
                due = self.store.next_try(looked)
                left = POLL if due is None else (due - self.now()).total_seconds()
                pause, told = min(max(left, 0.5), POLL), ""
            except ScheduleError as error:
                if not error.passing:
                    raise
                self.close()  # a run that could not be written down is found by its session
                if str(error) != told:
                    trouble(error)
                pause, told = AGAIN, str(error)
            await self.sleep(pause)

    async def _run(self, job: Job, run: JobRun, tell: Callable[[FinishedRun], None]) -> FinishedRun:
        """One run, from its claim on. How it ended is told also where it cannot be written down."""
        noted = run
        status: RunStatus

        def began(session: str) -> None:
            nonlocal noted
            self.store.began(run, session)
            noted = replace(run, session=session)

        end, fault, code = None, None, EXIT_STOPPED
        try:
            end = await self.start(job, began)
            status, reason, code = end.status, end.reason, end.exit_code
        except Exception as error:  # a fault of ours, too, ends this run and no other
            status = "in_doubt" if _inspect_run(self.look, noted).changed else "failed"
            if isinstance(error, MlxToolsError):
                reason, code = str(error), error.exit_code
            else:
                reason, fault = f"{type(error).__name__}: {error}", error
        except BaseException:  # cancelled: as where the process ends
            with contextlib.suppress(ScheduleError):  # the next runner will find it out
                _settle(self.store, self.look, noted)
            raise
        done = replace(noted, status=status, reason=reason[:500], ended=self.now())
        ended = FinishedRun(run=done, job=job, end=end, fault=fault, exit_code=code)
        try:
            self.store.settle(noted, status, reason)
            if status == "failed":
                self.store.try_again(noted)
        finally:
            tell(ended)
        return ended


def settle(store: JobStore, look: Look) -> None:
    """Brings runs up to date that are not over: what has become of their sessions."""
    for run in store.open_runs():
        if run.status != "running" or not store.tables.present(run.runner):
            _settle(store, look, run)


def _settle(store: JobStore, look: Look, run: JobRun) -> None:
    status, reason = _find_status(run, _inspect_run(look, run))
    if status is None or (status, reason) == (run.status, run.reason):
        return
    store.settle(run, status, reason)
    if status == "interrupted":
        store.try_again(run, delay=timedelta(0))


def _inspect_run(look: Look, run: JobRun) -> RunInspection:
    """How the run's session stands; before there is one, nothing can have happened."""
    return look(run.session) if run.session else RunInspection(state="empty", changed=False)


def _find_status(run: JobRun, inspection: RunInspection) -> tuple[RunStatus | None, str]:
    """How a run stands whose process is gone, or that waits for a person, by its session; None
    where that has not changed."""
    match inspection.state:
        case "answered":
            return "answered", ""
        case "stopped" if inspection.in_doubt:
            return "in_doubt", inspection.reason
        case "stopped" if inspection.changed or inspection.reason != "interrupted":
            return "stopped", inspection.reason
        case "paused":
            return "paused", ""
        case "running":  # somebody goes on with it just now
            return None, ""
        case "missing" if run.status != "running":
            return "abandoned", "its session was removed"
    if run.status == "in_doubt":
        return None, ""
    if run.status == "paused":
        return "in_doubt", "going on with it broke off, or its session is damaged"
    if inspection.changed:
        return "in_doubt", "it broke off, and may have changed things"
    return "interrupted", "it broke off, and changed nothing"
