"""Jobs and their runs, in tables beside the sessions. Times are kept as seconds since 1970.

A run is claimed in one transaction that also plans the job's next time, so that two runners never
take the same, and no time is run twice. A job is sealed with a key that is kept outside the tables:
one that somebody else wrote or widened is shown as damaged and never runs.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from mlx_tools.errors import MlxToolsError, ScheduleError, UsageError
from mlx_tools.messages import replace
from mlx_tools.policy import Policy
from mlx_tools.store import FileFormat, Statements, Tables, passes
from mlx_tools.toolbox.schedule.when import LAST_YEAR, Schedule
from mlx_tools.transcript import Answered, Outcome, Paused

RunStatus = (
    Literal["running", "answered", "stopped", "paused", "in_doubt"]
    | Literal["interrupted", "failed", "abandoned"]
)
"""How a run of a job stands. ``in_doubt``: it broke off, and a call may have changed things;
``interrupted``: it broke off and changed nothing; ``failed``: it could not be begun;
``abandoned``: its session waited, and was removed."""

OPEN: Final = ("running", "paused", "in_doubt")
"""Runs that are not over: until then, their job does not run again."""

GRACE: Final = timedelta(minutes=15)
"""A time is missed where it is found to be due so much later."""

JobState = Literal["scheduled", "running", "paused", "in_doubt", "done", "damaged"]

MAX_TASK_CHARS: Final = 10_000


class Job(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task, when it is due, and everything that it may do.

    ``policy`` is the one it was made under, ``configured_policy`` what was configured for all
    sessions at that time, empty where that is ``policy`` itself. ``options`` are the settings that
    its run has, as text by their keys, ``roots`` its folders; ``by`` is who made it: ``user``, or a
    session. ``said`` is when it runs in the words it was made with.
    """

    task: str
    said: str
    when: Schedule
    policy: Mapping[str, Any] = {}
    configured_policy: Mapping[str, Any] = msgspec.field(name="standing", default={})
    roots: tuple[str, ...] = ()
    options: Mapping[str, str] = {}
    tool_choice: str = "auto"
    require_tools: tuple[str, ...] = ()
    by: str = "user"
    created: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task.strip():
            raise UsageError("the task is empty", hint="say what is to be done")
        if len(self.task) > MAX_TASK_CHARS:
            raise UsageError(f"the task is longer than {MAX_TASK_CHARS} characters")
        try:
            self.task.encode()
        except UnicodeEncodeError:
            raise UsageError("the task holds half a character (a lone surrogate)") from None
        Policy.from_json(self.policy)
        Policy.from_json(self.configured_policy or self.policy)

    def policy_today(self, configured_policy: Policy) -> Policy:
        """The policy under which it runs: its own, narrowed by what stands today where that is not
        what stood when it was made. Never more than it was made with."""
        own = Policy.from_json(self.policy)
        stood = Policy.from_json(self.configured_policy) if self.configured_policy else own
        return (
            own
            if stood.digest() == configured_policy.digest()
            else own.narrowed_by(configured_policy)
        )

    def definition(self) -> str:
        """The job as one text that is always the same."""
        return json.dumps(msgspec.to_builtins(self), sort_keys=True)

    @classmethod
    def parse(cls, definition: str) -> Job:
        """The job of such a text. Raises msgspec's DecodeError or UsageError for anything else."""
        return msgspec.json.decode(definition, type=cls)


class JobRun(Struct, frozen=True, kw_only=True):
    """One run of a job. ``scheduled_at`` is the time it was for, ``attempt`` its number for that
    time, from 1; all times are in UTC. ``session`` is empty until there is one."""

    id: int
    job: str
    scheduled_at: datetime
    attempt: int
    started: datetime
    ended: datetime | None = None
    status: RunStatus = "running"
    session: str = ""
    reason: str = ""
    runner: str = ""

    @property
    def missed(self) -> bool:
        """Whether nobody looked for due jobs when its time came: it makes up for that time, and for
        all others until it started."""
        return self.started - self.scheduled_at > GRACE

    def to_json(self) -> dict[str, Any]:
        """The run as ``schedule list --json`` has it."""
        names = (name for name in self.__struct_fields__ if name not in ("id", "runner"))
        value = {"due" if n == "scheduled_at" else n: getattr(self, n) for n in names}
        return value | {key: _iso(value[key]) for key in ("due", "started", "ended")}


class RunEnd(Struct, frozen=True, kw_only=True):
    """How a run ended, as whoever ran it says."""

    status: Literal["answered", "stopped", "paused", "in_doubt"]
    reason: str = ""
    answer: str | None = None
    exit_code: int = 0

    @classmethod
    def of(cls, outcome: Outcome) -> RunEnd:
        """What a controller's outcome means for a job."""
        code = outcome.exit_code
        if isinstance(outcome, Answered):
            return cls(status="answered", answer=outcome.answer, exit_code=code)
        if isinstance(outcome, Paused):
            return cls(status="paused", exit_code=code)
        doubt = any(call.status == "in_doubt" for call in outcome.calls)
        reason = getattr(outcome, "reason", None) or ""
        return cls(status="in_doubt" if doubt else "stopped", reason=reason, exit_code=code)


class RunInspection(Struct, frozen=True, kw_only=True):
    """What a session's transcript says of a run whose process is gone, or that waits.

    ``state`` is one of `mlx_tools.store.session_store.SessionState`, or ``missing``; ``changed``
    says whether a call was started that can change things, or that cannot be known; ``in_doubt``
    whether nobody knows how such a call ended.
    """

    state: str
    reason: str = ""
    changed: bool = True
    in_doubt: bool = False


class JobListing(Struct, frozen=True, kw_only=True):
    """A job as a listing shows it. ``job`` is None for one that is damaged, of which nothing can be
    believed; ``next_due`` is in UTC, None where nothing is due any more; ``runs`` are the latest
    first."""

    id: str
    job: Job | None
    state: JobState
    next_due: datetime | None = None
    runs: tuple[JobRun, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object that ``schedule list --json`` prints."""
        own: dict[str, Any] = {"id": self.id, "state": self.state}
        if (job := self.job) is not None:
            own |= {
                "task": job.task,
                "when": job.said,
                "cron": job.when.cron,
                "at": _iso(job.when.at),
                "timezone": job.when.zone,
                "by": job.by,
                "created": job.created,
                "policy": dict(job.policy),
                "roots": list(job.roots),
            }
        own["next_due"] = _iso(self.next_due)
        return own | {"runs": [run.to_json() for run in self.runs]}


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")


MAX_JOBS: Final = 1_000
KEPT_RUNS: Final = 100
"""Runs that are kept of each job."""

KEEP_DONE: Final = timedelta(days=30)
"""How long a job is listed for which nothing is due any more."""

MAX_ATTEMPTS: Final = 3
RETRY_AFTER: Final = timedelta(minutes=5)
"""How often, and how long after, a run is tried again that could not be begun."""

_SCHEMA: Final = """
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, definition TEXT NOT NULL, seal TEXT NOT NULL, next_due INTEGER,
  try_at INTEGER, attempt INTEGER NOT NULL DEFAULT 1, planned_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE runs (
  id INTEGER PRIMARY KEY, job TEXT NOT NULL, due INTEGER NOT NULL, attempt INTEGER NOT NULL,
  started INTEGER NOT NULL, ended INTEGER, status TEXT NOT NULL,
  session TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '',
  runner TEXT NOT NULL DEFAULT '', UNIQUE (job, due, attempt)
);
"""
SCHEDULE: Final = FileFormat("schedule", ScheduleError, 0x6D6C786A, 1, _SCHEMA, "schedule.sqlite")
_OPEN_RUNS: Final = f"SELECT * FROM runs WHERE status IN {OPEN}"  # noqa: S608 (constants)


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class JobStore:
    """The jobs in ``tables``, which are of the format `SCHEDULE`.

    ``secret`` is the key that jobs are sealed with, or what gives it. Methods raise `ScheduleError`
    where the tables cannot be used. All times are in UTC.
    """

    def __init__(
        self,
        tables: Tables,
        secret: bytes | Callable[[], bytes],
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.tables = tables
        self._secret = secret
        self._now = now

    # --- jobs ---

    def add(self, job: Job) -> Job:
        """Keeps a job; returns it with its id. Raises `UsageError` where it is never due, and where
        there are too many."""
        now = self._now()
        due = job.when.next_after(now)
        if due is None:
            raise UsageError(f"{job.said[:100]!r} is past, or never comes")
        created = job.created or now.isoformat(timespec="seconds")
        made = replace(job, id=secrets.token_hex(4), created=created)
        with self.tables.transaction(write=True) as db:
            db.execute(
                "DELETE FROM jobs WHERE next_due IS NULL AND planned_at < ?"
                " AND id NOT IN (SELECT job FROM runs WHERE ended IS NULL)",
                (_seconds(now - KEEP_DONE),),
            )
            db.execute("DELETE FROM runs WHERE job NOT IN (SELECT id FROM jobs)")
            if db.execute("SELECT count(*) FROM jobs").fetchone()[0] >= MAX_JOBS:
                raise UsageError(f"there are {MAX_JOBS} jobs; remove some first")
            text, at = made.definition(), _seconds(due)
            db.execute(
                "INSERT INTO jobs (id, definition, seal, next_due, try_at, planned_at)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (made.id, text, self._seal(text), at, at, _seconds(now)),
            )
        return made

    def remove(self, job: str) -> None:
        """Forgets a job and its runs; their sessions stay. Raises `UsageError` where there is
        none."""
        with self.tables.transaction(write=True) as db:
            db.execute("DELETE FROM runs WHERE job = ?", (job,))
            if not db.execute("DELETE FROM jobs WHERE id = ?", (job,)).rowcount:
                raise UsageError(f"there is no job {job[:50]}", hint="mlx-tools schedule list")

    def find(self, job_id: str) -> JobListing:
        """The job that is meant by an id or the beginning of one. Raises `UsageError` where none or
        several are."""
        listing = self.listing()
        found = [one for one in listing if job_id and one.id.startswith(job_id)]
        found = [one for one in found if one.id == job_id] or found
        if len(found) != 1:
            said = f"{job_id[:50]} is the beginning of {len(found)} jobs"
            raise UsageError(
                said if found else f"there is no job {job_id[:50]}", hint="mlx-tools schedule list"
            )
        return found[0]

    def listing(self) -> list[JobListing]:
        """All jobs: those that are due next first, those that are done last."""
        with self.tables.transaction() as db:
            query = "SELECT * FROM jobs ORDER BY next_due IS NULL, next_due, id"
            jobs = db.execute(query).fetchall()
            runs: dict[str, list[JobRun]] = {}
            for row in db.execute("SELECT * FROM runs ORDER BY id DESC").fetchall():
                runs.setdefault(row["job"], []).append(_run(row))
            return [self._make_listing(row, runs.get(row["id"], [])) for row in jobs]

    def next_try(self, not_before: datetime) -> datetime | None:
        """When there is something to run that is not due at ``not_before`` yet, None where there is
        nothing. What was due then and was not taken, as a damaged job, is not waited for."""
        with self.tables.transaction() as db:
            query = "SELECT min(try_at) FROM jobs WHERE try_at > ?"
            return _time(db.execute(query, (_seconds(not_before),)).fetchone()[0])

    # --- runs ---

    def claim(self, now: datetime, runner: str) -> tuple[Job, JobRun] | None:
        """Takes the next run that is due for ``runner``.

        Returns the job and its run; None where nothing is due.
        """
        with self.tables.transaction(write=self.tables.made) as db:
            self._replan(db, now)
            query = "SELECT * FROM jobs WHERE try_at <= ? ORDER BY try_at, id"
            for row in db.execute(query, (_seconds(now),)).fetchall():
                job, due = self._believed(row), _time(row["next_due"])
                if job is None or due is None:
                    continue
                self._plan_next(db, job, now)
                if db.execute(f"{_OPEN_RUNS} AND job = ?", (job.id,)).fetchone():
                    continue  # it waits for a person, or is at work: this time is left out
                run = db.execute(
                    "INSERT INTO runs (job, due, attempt, started, status, runner)"
                    " VALUES (?, ?, ?, ?, 'running', ?) ON CONFLICT DO NOTHING RETURNING *",
                    (job.id, _seconds(due), int(row["attempt"]), _seconds(now), runner),
                ).fetchone()
                if run is None:
                    continue  # the clock was set back: this time was run before
                db.execute(
                    "DELETE FROM runs WHERE job = ? AND ended IS NOT NULL AND id NOT IN"
                    " (SELECT id FROM runs WHERE job = ? ORDER BY id DESC LIMIT ?)",
                    (job.id, job.id, KEPT_RUNS),
                )
                return job, _run(run)
        return None

    def began(self, run: JobRun, session: str) -> None:
        """Writes down in which session a run takes place, before anything happens in it."""
        with self.tables.transaction(write=True) as db:
            db.execute("UPDATE runs SET session = ? WHERE id = ?", (session, run.id))

    def settle(self, run: JobRun, status: RunStatus, reason: str = "") -> None:
        """Writes down how a run stands. One that is not over keeps its job from running again."""
        ended = None if status in OPEN else _seconds(self._now())
        with self.tables.transaction(write=True) as db:
            query = "UPDATE runs SET status = ?, reason = ?, ended = ? WHERE id = ?"
            db.execute(query, (status, reason[:500], ended, run.id))

    def try_again(self, run: JobRun, *, delay: timedelta = RETRY_AFTER) -> bool:
        """Lets a run that changed nothing be made once more, where its job has been tried less than
        `MAX_ATTEMPTS` times for that time and does not run before anyway."""
        if run.attempt >= MAX_ATTEMPTS:
            return False
        at = _seconds(self._now() + delay)
        with self.tables.transaction(write=True) as db:
            planned = db.execute(
                "UPDATE jobs SET next_due = ?, try_at = ?, attempt = ?"
                " WHERE id = ? AND (try_at IS NULL OR try_at > ?)",
                (_seconds(run.scheduled_at), at, run.attempt + 1, run.job, at),
            )
            return bool(planned.rowcount)

    def is_of_a_run(self, session: str) -> bool:
        """Return whether a job's run happened in this session."""
        with self.tables.transaction() as db:
            found = db.execute("SELECT 1 FROM runs WHERE session = ?", (session,)).fetchone()
        return found is not None

    def open_runs(self) -> list[JobRun]:
        """The runs that are not over, the oldest first."""
        with self.tables.transaction() as db:
            return [_run(row) for row in db.execute(f"{_OPEN_RUNS} ORDER BY id").fetchall()]

    # --- within ---

    def _plan_next(self, db: Statements, job: Job, now: datetime) -> None:
        due = job.when.next_after(now)
        at = None if due is None else _seconds(due)
        db.execute(
            "UPDATE jobs SET next_due = ?, try_at = ?, attempt = 1, planned_at = ? WHERE id = ?",
            (at, at, _seconds(now), job.id),
        )

    def _replan(self, db: Statements, now: datetime) -> None:
        """Plans jobs anew that were planned at a time that is yet to come: the clock was set back,
        and what was planned by the wrong one may be years away."""
        query = "SELECT * FROM jobs WHERE next_due IS NOT NULL AND planned_at > ?"
        for row in db.execute(query, (_seconds(now),)).fetchall():
            job = self._believed(row)
            if job is not None and job.when.at is None:
                self._plan_next(db, job, now)
            elif job is not None:  # it may wait for another attempt
                plan = "UPDATE jobs SET try_at = next_due, planned_at = ? WHERE id = ?"
                db.execute(plan, (_seconds(now), job.id))

    def _make_listing(self, row: Any, runs: list[JobRun]) -> JobListing:
        job = self._believed(row)
        if job is None:
            return JobListing(id=str(row["id"]), job=None, state="damaged", runs=tuple(runs))
        due = _time(row["next_due"])
        state: JobState = "done" if due is None else "scheduled"
        state = next((run.status for run in runs if run.status in OPEN), state)
        return JobListing(id=job.id, job=job, state=state, next_due=due, runs=tuple(runs))

    def _believed(self, row: Any) -> Job | None:
        """The job of a row, None where it is not as it was sealed, or means nothing today."""
        text = str(row["definition"])
        if not hmac.compare_digest(self._seal(text).encode(), str(row["seal"]).encode()):
            return None
        try:
            job = Job.parse(text)
        except (MlxToolsError, msgspec.DecodeError, ValueError, RecursionError):
            return None
        return job if job.id == row["id"] else None

    def _seal(self, definition: str) -> str:
        """Raises `ScheduleError` where the key cannot be had: that says nothing against a job."""
        try:
            key = self._secret if isinstance(self._secret, bytes) else self._secret()
        except MlxToolsError as error:
            raised = ScheduleError(error.message, hint=error.hint)
            raised.passing = passes(error.__context__)
            raise raised from None
        return hmac.new(key, b"job:" + definition.encode(), hashlib.sha256).hexdigest()


def _seconds(time: datetime) -> int:
    """Seconds since 1970; a part of one counts as gone: nothing is early."""
    return math.floor(time.timestamp())


def _time(seconds: int | None) -> datetime | None:
    """The time in UTC. Raises ValueError for what is none, or so far off that no zone has it."""
    if seconds is None:
        return None
    found = datetime.fromtimestamp(seconds, UTC)
    if not 1970 <= found.year <= LAST_YEAR:
        raise ValueError(f"{seconds} is no time")
    return found


def _run(row: Any) -> JobRun:
    known: dict[str, Any] = dict(row)
    known["scheduled_at"] = known.pop("due")
    times = ("scheduled_at", "started", "ended")
    return JobRun(**known | {name: _time(known[name]) for name in times})
