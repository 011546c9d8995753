"""Runs the jobs that are due, each once, and keeps what came of it.

A run is written down before it starts and after it ended. Where a process ends in between, the next
runner finds that out: its lock is gone. What the run's session says then decides. A run that
changed nothing is made again; one that may have is *in doubt*: it is shown, and its job does not
run again until a person has gone on with the session, or removed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import anyio

from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, MlxToolsError, ScheduleError
from mlx_tools.toolbox.schedule.job import Job, JobRun, RunEnd, RunStatus, Seen
from mlx_tools.toolbox.schedule.job_store import JobStore, utc_now
from mlx_tools.toolbox.schedule.owner import Owner, is_alive

POLL: Final = 30.0
"""Seconds after which a runner that stays looks again: jobs come, and clocks are set."""

AGAIN: Final = 5.0
"""Seconds after which one looks again that could not use the store."""

Began = Callable[[str], None]
"""Is told the session of a run before anything happens in it."""

Start = Callable[[Job, Began], Awaitable[RunEnd]]
"""Runs a job. Raises an `MlxToolsError` where that cannot be done."""

Look = Callable[[str], Seen]
"""Says how a session stands that no runner is at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that was made, or left out. ``end`` is None where the run was skipped, could not be
    begun, or was broken off; ``fault`` is what broke it off where that is no error that is known:
    a fault of this program, or of the system."""

    run: JobRun
    job: Job
    end: RunEnd | None = None
    fault: Exception | None = None
    exit_code: int = EXIT_OK


class Runner:
    """Runs what is due in ``store``, one job after the other. Close it, or use it with ``with``."""

    def __init__(
        self,
        store: JobStore,
        start: Start,
        look: Look,
        *,
        now: Callable[[], datetime] = utc_now,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._store = store
        self._start = start
        self._look = look
        self._now = now
        self._sleep = sleep
        self._owner: Owner | None = None
        self._looked = now()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the lock that says that this runner is alive."""
        if self._owner is not None:
            self._owner.close()
            self._owner = None

    async def run_due(self, tell: Callable[[Ended], None] = lambda ended: None) -> list[Ended]:
        """Runs everything that is due now, each job at most once, and returns how that went.

        ``tell`` is called as each run ends.
        """
        settle(self._store, self._look)
        self._looked, ended = self._now(), []
        while (claimed := self._store.claim(self._looked, self._token())) is not None:
            job, run = claimed
            skipped = run.status == "skipped"
            if skipped:
                tell(one := Ended(run=run, job=job))
            else:
                one = await self._run(job, run, tell)
            ended.append(one)
        return ended

    async def run_forever(
        self,
        tell: Callable[[Ended], None],
        trouble: Callable[[ScheduleError], None] = lambda error: None,
    ) -> None:
        """Runs what is due, waits for what is due next, and so on until it is cancelled.

        A store that cannot be used just now is tried again; ``trouble`` is told of it, once until
        it can be used. Raises `ScheduleError` where that will not pass.
        """
        told = ""
        while True:
            try:
                await self.run_due(tell)
                pause, told = self._pause(), ""
            except ScheduleError as error:
                if not error.passing:
                    raise
                self.close()  # a run that could not be written down is found by its session
                if str(error) != told:
                    trouble(error)
                pause, told = AGAIN, str(error)
            await self._sleep(pause)

    async def _run(self, job: Job, run: JobRun, tell: Callable[[Ended], None]) -> Ended:
        """One run, from its claim on. How it ended is told also where it cannot be written down."""
        noted = run

        def began(session: str) -> None:
            nonlocal noted
            self._store.began(run, session)
            noted = replace(run, session=session)

        try:
            end = await self._start(job, began)
        except Exception as error:  # a fault of ours, too, ends this run and no other
            return self._failed(job, noted, error, tell)
        except BaseException:  # cancelled: as where the process ends
            with contextlib.suppress(ScheduleError):  # the next runner will find it out
                _settle(self._store, self._look, noted)
            raise
        done = replace(noted, status=end.status, reason=end.reason, ended=self._now())
        ended = Ended(run=done, job=job, end=end, exit_code=end.exit_code)
        try:
            self._store.settle(noted, end.status, end.reason)
        finally:
            tell(ended)
        return ended

    def _failed(
        self, job: Job, run: JobRun, error: Exception, tell: Callable[[Ended], None]
    ) -> Ended:
        known = isinstance(error, MlxToolsError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        status: RunStatus = "in_doubt" if _seen(self._look, run).changed else "failed"
        done = replace(run, status=status, reason=reason[:500], ended=self._now())
        code = getattr(error, "exit_code", EXIT_STOPPED) if known else EXIT_STOPPED
        ended = Ended(run=done, job=job, exit_code=code, fault=None if known else error)
        try:
            self._store.settle(run, status, reason)
            if status == "failed":
                self._store.try_again(run)
        finally:
            tell(ended)
        return ended

    def _token(self) -> str:
        if self._owner is None:
            self._owner = Owner(self._store.owners)
        return self._owner.token

    def _pause(self) -> float:
        """Seconds until there may be something to do."""
        due = self._store.next_try(self._looked)
        left = POLL if due is None else (due - self._now()).total_seconds()
        return min(max(left, 0.5), POLL)


def settle(store: JobStore, look: Look) -> None:
    """Brings runs up to date that are not over: what has become of their sessions."""
    for run in store.open_runs():
        if run.status != "running" or not is_alive(store.owners, run.runner):
            _settle(store, look, run)


def _settle(store: JobStore, look: Look, run: JobRun) -> None:
    status, reason = _standing(run, _seen(look, run))
    if status is None or (status, reason) == (run.status, run.reason):
        return
    store.settle(run, status, reason)
    if status == "interrupted":
        store.try_again(run, after=timedelta(0))


def _seen(look: Look, run: JobRun) -> Seen:
    """How the run's session stands; before there is one, nothing can have happened."""
    return look(run.session) if run.session else Seen(state="empty", changed=False)


def _standing(run: JobRun, seen: Seen) -> tuple[RunStatus | None, str]:
    """How a run stands whose process is gone, or that waits for a person, by its session; None
    where that has not changed."""
    match seen.state:
        case "answered":
            return "answered", ""
        case "stopped" if seen.changed or seen.reason != "interrupted":
            return "stopped", seen.reason
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
    if seen.changed:
        return "in_doubt", "it broke off, and may have changed things"
    return "interrupted", "it broke off, and changed nothing"
