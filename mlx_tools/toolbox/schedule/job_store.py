"""Jobs and their runs in SQLite: one file, readable by its owner alone.

A run is claimed in one transaction that also plans the job's next time, so that two runners never
take the same, and no time is run twice. A job is sealed with a key that is kept outside the file:
one that somebody else wrote or widened is shown as damaged and never runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import sqlite3
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import MlxToolsError, ScheduleError, UsageError
from mlx_tools.paths import private_dir
from mlx_tools.toolbox.schedule import tables
from mlx_tools.toolbox.schedule.job import GRACE, OPEN, Job, JobRun, JobState, Listed, RunStatus
from mlx_tools.toolbox.schedule.owner import passes

MAX_JOBS: Final = 1_000
KEPT_RUNS: Final = 100
"""Runs that are kept of each job."""

KEEP_DONE: Final = timedelta(days=30)
"""How long a job is listed for which nothing is due any more."""

MAX_ATTEMPTS: Final = 3
RETRY_AFTER: Final = timedelta(minutes=5)
"""How often, and how long after, a run is tried again that could not be begun."""

WAIT: Final = 10.0
"""Seconds for which one process waits for another that writes."""

_PASSING: Final = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR")
"""Errors of SQLite that pass."""


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class JobStore:
    """The jobs in the file ``path``, which is made with the first.

    ``secret`` is the key that jobs are sealed with, or what gives it; ``wait`` is how many seconds
    another process that writes is waited for. Methods raise `ScheduleError`
    where the file cannot be used. All times are in UTC.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        secret: bytes | Callable[[], bytes],
        now: Callable[[], datetime] = utc_now,
        wait: float = WAIT,
    ) -> None:
        self.path = Path(path)
        self._wait = wait
        self._secret = secret
        self._now = now

    @property
    def owners(self) -> Path:
        """The folder of the runners' locks."""
        return self.path.with_name(f"{self.path.name}.runners")

    # --- jobs ---

    def add(self, job: Job) -> Job:
        """Keeps a job; returns it with its id. Raises `UsageError` where it is never due, and where
        there are too many."""
        now = self._now()
        due = job.when.next_after(now)
        if due is None:
            raise UsageError(f"{job.said[:100]!r} is past, or never comes")
        created = job.created or now.isoformat(timespec="seconds")
        with self._writing() as db:
            old = tables.seconds(now - KEEP_DONE)
            db.execute(tables.FORGET, (old,))
            db.execute(tables.ORPHANS)
            if db.execute("SELECT count(*) FROM jobs").fetchone()[0] >= MAX_JOBS:
                raise UsageError(f"there are {MAX_JOBS} jobs; remove some first")
            while True:
                made = replace(job, id=secrets.token_hex(4), created=created)
                text = made.canonical()
                row = (made.id, text, self._seal(text), *_plan(due), tables.seconds(now))
                if db.execute(tables.ADD, row).rowcount:
                    return made

    def remove(self, job: str) -> None:
        """Forgets a job and its runs; their sessions stay. Raises `UsageError` where there is
        none."""
        with self._writing() as db:
            db.execute("DELETE FROM runs WHERE job = ?", (job,))
            if not db.execute("DELETE FROM jobs WHERE id = ?", (job,)).rowcount:
                raise UsageError(f"there is no job {job[:50]}", hint="mlx-tools schedule list")

    def find(self, given: str) -> str:
        """The id that is meant by an id or the beginning of one. Raises `UsageError` where none or
        several are."""
        ids = [listed.id for listed in self.listing()]
        found = [given] if given in ids else [i for i in ids if given and i.startswith(given)]
        if len(found) != 1:
            said = f"{given[:50]} is the beginning of {len(found)} jobs"
            raise UsageError(
                said if found else f"there is no job {given[:50]}", hint="mlx-tools schedule list"
            )
        return found[0]

    def listing(self) -> list[Listed]:
        """All jobs: those that are due next first, those that are done last."""
        if not os.path.lexists(self.path):
            return []
        with self._reading() as db:
            jobs = db.execute(tables.JOBS).fetchall()
            runs: dict[str, list[JobRun]] = {}
            for row in db.execute("SELECT * FROM runs ORDER BY id DESC"):
                runs.setdefault(row["job"], []).append(_run(row))
            return [self._listed(row, runs.get(row["id"], [])) for row in jobs]

    def get(self, job: str) -> Listed:
        """One job by its id. Raises `UsageError` where there is none."""
        for listed in self.listing():
            if listed.id == job:
                return listed
        raise UsageError(f"there is no job {job[:50]}", hint="mlx-tools schedule list")

    def next_try(self, after: datetime) -> datetime | None:
        """When there is something to run that is not due at ``after`` yet, None where there is
        nothing. What was due then and was not taken, as a damaged job, is not waited for."""
        if not os.path.lexists(self.path):
            return None
        with self._reading() as db:
            found = db.execute(tables.NEXT, (tables.seconds(after),)).fetchone()[0]
            return None if found is None else tables.time(found)

    # --- runs ---

    def claim(self, now: datetime, runner: str) -> tuple[Job, JobRun] | None:
        """Takes the next run that is due for ``runner``, or records one that was missed.

        Returns the job and its run, which is not to be made where its status is ``skipped``; None
        where nothing is due.
        """
        if not os.path.lexists(self.path):
            return None
        with self._writing() as db:
            self._replan(db, now)
            for row in db.execute(tables.DUE, (tables.seconds(now),)).fetchall():
                job = self._believed(row)
                if job is None:
                    continue
                due, attempt = tables.time(row["next_due"]), int(row["attempt"])
                self._plan_next(db, job, now)
                if db.execute(tables.HAS_OPEN, (job.id,)).fetchone():
                    continue  # it waits for a person, or is at work: this time is left out
                late = job.missed == "skip" and attempt == 1 and now - due > GRACE
                status = "skipped" if late else "running"
                run = (job.id, tables.seconds(due), attempt, tables.seconds(now))
                ended = tables.seconds(now) if late else None
                taken = db.execute(tables.START, (*run, ended, status, "" if late else runner))
                if not taken.rowcount:
                    continue  # the clock was set back: this time was run before
                db.execute(tables.PRUNE, (job.id, job.id, KEPT_RUNS))
                number = taken.lastrowid
                new = db.execute("SELECT * FROM runs WHERE id = ?", (number,)).fetchone()
                return job, _run(new)
        return None

    def began(self, run: JobRun, session: str) -> None:
        """Writes down in which session a run takes place, before anything happens in it."""
        with self._writing() as db:
            db.execute("UPDATE runs SET session = ? WHERE id = ?", (session, run.id))

    def settle(self, run: JobRun, status: RunStatus, reason: str = "") -> None:
        """Writes down how a run stands. One that is not over keeps its job from running again."""
        ended = None if status in OPEN else tables.seconds(self._now())
        with self._writing() as db:
            db.execute(tables.SETTLE, (status, reason[:500], ended, run.id))

    def try_again(self, run: JobRun, *, after: timedelta = RETRY_AFTER) -> bool:
        """Lets a run that changed nothing be made once more, where its job has been tried less than
        `MAX_ATTEMPTS` times for that time and does not run before anyway."""
        at = self._now() + after
        if run.attempt >= MAX_ATTEMPTS:
            return False
        plan = (tables.seconds(run.due), tables.seconds(at), run.attempt + 1, run.job)
        with self._writing() as db:
            return bool(db.execute(tables.AGAIN, (*plan, tables.seconds(at))).rowcount)

    def open_runs(self) -> list[JobRun]:
        """The runs that are not over, the oldest first."""
        if not os.path.lexists(self.path):
            return []
        with self._reading() as db:
            return [_run(row) for row in db.execute(tables.OPEN_RUNS)]

    # --- within ---

    def _plan_next(self, db: sqlite3.Connection, job: Job, now: datetime) -> None:
        plan = _plan(job.when.next_after(now))
        db.execute(tables.PLAN, (*plan, tables.seconds(now), job.id))

    def _replan(self, db: sqlite3.Connection, now: datetime) -> None:
        """Plans jobs anew that were planned at a time that is yet to come: the clock was set back,
        and what was planned by the wrong one may be years away."""
        for row in db.execute(tables.AHEAD, (tables.seconds(now),)).fetchall():
            job = self._believed(row)
            if job is not None and job.when.at is None:
                self._plan_next(db, job, now)
            elif job is not None:  # it may wait for another attempt
                db.execute(tables.AT_ONCE, (tables.seconds(now), job.id))

    def _listed(self, row: sqlite3.Row, runs: list[JobRun]) -> Listed:
        job = self._believed(row)
        if job is None:
            return Listed(id=str(row["id"]), job=None, state="damaged", runs=tuple(runs))
        due = None if row["next_due"] is None else tables.time(row["next_due"])
        waiting = next((run.status for run in runs if run.status in OPEN), None)
        state: JobState = "scheduled" if due is not None else "done"
        if waiting is not None:
            state = waiting  # type: ignore[assignment]
        return Listed(id=job.id, job=job, state=state, next_due=due, runs=tuple(runs))

    def _believed(self, row: sqlite3.Row) -> Job | None:
        """The job of a row, None where it is not as it was sealed, or means nothing today."""
        self._key()  # one that cannot be read says nothing against the job
        try:
            text = str(row["definition"])
            if not hmac.compare_digest(self._seal(text), str(row["seal"])):
                return None
            job = Job.from_json(json.loads(text))
        except (MlxToolsError, TypeError, ValueError, RecursionError):
            return None
        return job if job.id == row["id"] else None

    def _key(self) -> bytes:
        """The key that jobs are sealed with. Raises `ScheduleError` where it cannot be had."""
        if isinstance(self._secret, bytes):
            return self._secret
        try:
            return self._secret()
        except MlxToolsError as error:
            raised = ScheduleError(error.message, hint=error.hint)
            raised.passing = isinstance(error.__context__, OSError) and passes(error.__context__)
            raise raised from None

    def _seal(self, definition: str) -> str:
        return hmac.new(self._key(), b"job:" + definition.encode(), hashlib.sha256).hexdigest()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._opened("BEGIN") as db:
            yield db

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._opened("BEGIN IMMEDIATE") as db:
            yield db

    @contextlib.contextmanager
    def _opened(self, begin: str) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction, which is taken back where the block raises."""
        try:
            self._make()
            with contextlib.closing(
                sqlite3.connect(self.path, timeout=self._wait, isolation_level=None)
            ) as db:
                tables.prepare(db)
                db.execute(begin)
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                    raise
        except (sqlite3.Error, OSError, ValueError, TypeError, LookupError, OverflowError) as error:
            raised = ScheduleError(
                f"the schedule {self.path} cannot be used: {error}", hint=_remedy(error)
            )
            raised.passing = _passes(error)
            raise raised from None

    def _make(self) -> None:
        """Makes the file where there is none, and sees to it that it is its owner's alone."""
        private_dir(self.path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(self.path, flags, 0o600)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is no file")
            if status.st_mode & 0o077:
                os.fchmod(fd, 0o600)
        finally:
            os.close(fd)


def _remedy(error: Exception) -> str:
    """What helps against an error of the store."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another process is writing to it; try again"
    if isinstance(error, tables.OtherVersion):
        return "update mlx-tools: a later version made it"
    known = isinstance(error, OSError | sqlite3.Error)
    if not known or name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return "move it away, and make the jobs anew"
    return "check its permissions and free space"


def _passes(error: Exception) -> bool:
    """Whether an error of the store may be over when it is tried again."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return name.startswith(_PASSING) or passes(error)


def _plan(due: datetime | None) -> tuple[int | None, int | None]:
    """When a job is due, and when it is tried: the same at first."""
    at = None if due is None else tables.seconds(due)
    return at, at


def _run(row: sqlite3.Row) -> JobRun:
    known: dict[str, Any] = dict(row)
    times = {name: tables.time(known[name]) for name in ("due", "started")}
    ended = None if known["ended"] is None else tables.time(known["ended"])
    return JobRun(**{**known, **times, "ended": ended})
