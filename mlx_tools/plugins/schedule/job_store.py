"""Jobs and their runs, in tables next to the sessions.

Times are seconds since 1970. A run is claimed in one transaction that also plans the job's next
time. So two runners never take the same run, and no time is run twice. A job is sealed with a key
that is stored outside the tables. A job that was changed without the key is shown as damaged, and
never runs.
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
from mlx_tools.plugins.schedule.when import LAST_YEAR, Schedule
from mlx_tools.policy import Policy
from mlx_tools.store import FileFormat, Statements, Tables, is_transient
from mlx_tools.transcript import Answered, Outcome, Paused

RunStatus = (
    Literal["running", "answered", "stopped", "paused", "in_doubt"]
    | Literal["interrupted", "failed", "abandoned"]
)
"""The status of a run. ``in_doubt``: it was interrupted, and a call may have changed things.
``interrupted``: it was interrupted and changed nothing. ``failed``: it could not begin.
``abandoned``: its session waited, and was removed."""

UNFINISHED: Final = ("running", "paused", "in_doubt")
"""Statuses of unfinished runs. The job does not run again before they end."""

GRACE: Final = timedelta(minutes=15)
"""The delay after which a time counts as missed. A laptop that wakes up runs its jobs within
minutes."""

JobState = Literal["scheduled", "running", "paused", "in_doubt", "done", "damaged"]

MAX_TASK_CHARS: Final = 10_000
"""Characters of a task: several pages."""


class Job(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task, its schedule, and its rights."""

    task: str
    schedule_text: str = msgspec.field(name="said")
    """The schedule in the user's words."""
    when: Schedule
    policy: Mapping[str, Any] = {}
    """The policy of the session or command that made it."""
    configured_policy: Mapping[str, Any] = msgspec.field(name="standing", default={})
    """The policy configured for all sessions at that time. Empty if equal to ``policy``."""
    roots: tuple[str, ...] = ()
    """The folders of its run."""
    options: Mapping[str, str] = {}
    """The settings of its run, as texts by their keys."""
    tool_choice: str = "auto"
    require_tools: tuple[str, ...] = ()
    created_by: str = msgspec.field(name="by", default="user")
    """Its author: ``user``, or a session."""
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
        """Return the policy for a run today, which never allows more than its own.

        It is its own policy, narrowed by today's configured policy if that has changed since.
        """
        own_policy = Policy.from_json(self.policy)
        old_configured = (
            Policy.from_json(self.configured_policy) if self.configured_policy else own_policy
        )
        return (
            own_policy
            if old_configured.digest() == configured_policy.digest()
            else own_policy.intersect(configured_policy)
        )

    def definition(self) -> str:
        """Return the job as a text, which is the same for equal jobs."""
        return json.dumps(msgspec.to_builtins(self), sort_keys=True)

    @classmethod
    def parse(cls, definition: str) -> Job:
        """Parse the text of `definition`.

        Raises:
            DecodeError, UsageError: the text is no such definition.
        """
        return msgspec.json.decode(definition, type=cls)


_COLUMNS: Final = {"scheduled_at": "due", "started_at": "started", "ended_at": "ended"}
"""The columns of a run's times, which are also their keys in JSON."""


class JobRun(Struct, frozen=True, kw_only=True):
    """One run of a job. All times are in UTC."""

    id: int
    job: str
    scheduled_at: datetime
    """The time for which it was planned."""
    attempt: int
    """The number of the attempt for that time, from 1."""
    started_at: datetime
    ended_at: datetime | None = None
    status: RunStatus = "running"
    session: str = ""
    """The session. Empty before there is one."""
    reason: str = ""
    runner: str = ""

    @property
    def missed(self) -> bool:
        """True if no runner ran at its time.

        The run then counts for that time, and for all later times until its start.
        """
        return self.started_at - self.scheduled_at > GRACE

    def to_json(self) -> dict[str, Any]:
        """Return the run in the form of ``schedule list --json``."""
        names = (name for name in self.__struct_fields__ if name not in ("id", "runner"))
        value = {_COLUMNS.get(name, name): getattr(self, name) for name in names}
        return value | {key: _format_time(value[key]) for key in ("due", "started", "ended")}


class RunEnd(Struct, frozen=True, kw_only=True):
    """The end of a run, as reported by its caller."""

    status: Literal["answered", "stopped", "paused", "in_doubt"]
    reason: str = ""
    answer: str | None = None
    exit_code: int = 0

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> RunEnd:
        """Return the end of a run from its controller's outcome."""
        code = outcome.exit_code
        if isinstance(outcome, Answered):
            return cls(status="answered", answer=outcome.answer, exit_code=code)
        if isinstance(outcome, Paused):
            return cls(status="paused", exit_code=code)
        doubt = any(call.status == "in_doubt" for call in outcome.calls)
        reason = getattr(outcome, "reason", None) or ""
        return cls(status="in_doubt" if doubt else "stopped", reason=reason, exit_code=code)


class RunInspection(Struct, frozen=True, kw_only=True):
    """The state of the session of a run that waits, or that has lost its process."""

    state: str
    """One of `mlx_tools.store.session_store.SessionState`, or ``missing``."""
    reason: str = ""
    was_changed: bool = True
    """True if a call that can change things was started, or if that is unknown."""
    in_doubt: bool = False
    """True if the end of such a call is unknown."""


class JobListing(Struct, frozen=True, kw_only=True):
    """A job in a listing."""

    id: str
    job: Job | None
    """The job, None if it is damaged, because then no part of it can be trusted."""
    state: JobState
    next_due: datetime | None = None
    """The next time in UTC, None if there is none."""
    runs: tuple[JobRun, ...] = ()
    """Its runs, the latest first."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``schedule list --json`` prints."""
        value: dict[str, Any] = {"id": self.id, "state": self.state}
        if (job := self.job) is not None:
            value |= {
                "task": job.task,
                "when": job.schedule_text,
                "cron": job.when.cron,
                "at": _format_time(job.when.run_at),
                "timezone": job.when.zone,
                "by": job.created_by,
                "created": job.created,
                "policy": dict(job.policy),
                "roots": list(job.roots),
            }
        value["next_due"] = _format_time(self.next_due)
        return value | {"runs": [run.to_json() for run in self.runs]}


def _format_time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")


MAX_JOBS: Final = 1_000
"""Jobs of one store. The limit stops a model that makes jobs in a loop."""
MAX_RUNS: Final = 100
"""Runs of each job that are stored."""

KEEP_DONE: Final = timedelta(days=30)
"""The time that a finished job stays in the list."""

MAX_ATTEMPTS: Final = 3
RETRY_AFTER: Final = timedelta(minutes=5)
"""The number of attempts for a run that cannot begin, and the time between them. A server that
restarts takes minutes."""

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
_UNFINISHED_RUNS: Final = f"SELECT * FROM runs WHERE status IN {UNFINISHED}"  # noqa: S608 (constants)


def utc_now() -> datetime:
    """Return the time of the wall clock."""
    return datetime.now(UTC)


class JobStore:
    """The jobs in ``tables``, which have the format `SCHEDULE`. All times are in UTC.

    Methods raise `ScheduleError` if the tables cannot be used.

    Args:
        tables: the tables.
        secret: the key that seals jobs, or a function that returns it.
        now: returns the time.
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
        """Add a job, and return it with its id.

        Raises:
            UsageError: it is never due, or there are too many jobs.
        """
        now = self._now()
        due = job.when.next_after(now)
        if due is None:
            raise UsageError(f"{job.schedule_text[:100]!r} is past, or never comes")
        created = job.created or now.isoformat(timespec="seconds")
        new_job = replace(job, id=secrets.token_hex(4), created=created)
        with self.tables.transaction(write=True) as db:
            db.execute(
                "DELETE FROM jobs WHERE next_due IS NULL AND planned_at < ?"
                " AND id NOT IN (SELECT job FROM runs WHERE ended IS NULL)",
                (_to_seconds(now - KEEP_DONE),),
            )
            db.execute("DELETE FROM runs WHERE job NOT IN (SELECT id FROM jobs)")
            if db.execute("SELECT count(*) FROM jobs").fetchone()[0] >= MAX_JOBS:
                raise UsageError(f"there are {MAX_JOBS} jobs; remove some first")
            text, due_seconds = new_job.definition(), _to_seconds(due)
            db.execute(
                "INSERT INTO jobs (id, definition, seal, next_due, try_at, planned_at)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (new_job.id, text, self._seal(text), due_seconds, due_seconds, _to_seconds(now)),
            )
        return new_job

    def remove(self, job: str) -> None:
        """Remove a job and its runs; their sessions stay.

        Raises:
            UsageError: there is no such job.
        """
        with self.tables.transaction(write=True) as db:
            db.execute("DELETE FROM runs WHERE job = ?", (job,))
            if not db.execute("DELETE FROM jobs WHERE id = ?", (job,)).rowcount:
                raise UsageError(f"there is no job {job[:50]}", hint="mlx-tools schedule list")

    def find(self, job_id: str) -> JobListing:
        """Return the job with this id, or with an id that begins so.

        Raises:
            UsageError: no job or several jobs match.
        """
        listing = self.listing()
        matches = [entry for entry in listing if job_id and entry.id.startswith(job_id)]
        matches = [entry for entry in matches if entry.id == job_id] or matches
        if len(matches) != 1:
            message = f"{job_id[:50]} is the beginning of {len(matches)} jobs"
            raise UsageError(
                message if matches else f"there is no job {job_id[:50]}",
                hint="mlx-tools schedule list",
            )
        return matches[0]

    def listing(self) -> list[JobListing]:
        """Return all jobs: those due next first, finished ones last."""
        with self.tables.transaction() as db:
            query = "SELECT * FROM jobs ORDER BY next_due IS NULL, next_due, id"
            jobs = db.execute(query).fetchall()
            runs: dict[str, list[JobRun]] = {}
            for row in db.execute("SELECT * FROM runs ORDER BY id DESC").fetchall():
                runs.setdefault(row["job"], []).append(_make_run(row))
            return [self._make_listing(row, runs.get(row["id"], [])) for row in jobs]

    def next_try(self, not_before: datetime) -> datetime | None:
        """Return the first time after ``not_before`` at which a job is due, or None.

        Jobs that were due before and were not claimed, such as damaged ones, are ignored.
        """
        with self.tables.transaction() as db:
            query = "SELECT min(try_at) FROM jobs WHERE try_at > ?"
            return _to_time(db.execute(query, (_to_seconds(not_before),)).fetchone()[0])

    # --- runs ---

    def claim(self, now: datetime, runner: str) -> tuple[Job, JobRun] | None:
        """Claim the next due run for ``runner``, and return the job and the run.

        None if nothing is due.
        """
        with self.tables.transaction(write=self.tables.exists) as db:
            self._replan(db, now)
            query = "SELECT * FROM jobs WHERE try_at <= ? ORDER BY try_at, id"
            for row in db.execute(query, (_to_seconds(now),)).fetchall():
                job, due = self._load_job(row), _to_time(row["next_due"])
                if job is None or due is None:
                    continue
                self._plan_next(db, job, now)
                if db.execute(f"{_UNFINISHED_RUNS} AND job = ?", (job.id,)).fetchone():
                    continue  # its last run waits for a person or still runs: skip this time
                run = db.execute(
                    "INSERT INTO runs (job, due, attempt, started, status, runner)"
                    " VALUES (?, ?, ?, ?, 'running', ?) ON CONFLICT DO NOTHING RETURNING *",
                    (job.id, _to_seconds(due), int(row["attempt"]), _to_seconds(now), runner),
                ).fetchone()
                if run is None:
                    continue  # the clock was set back, and this time was run before
                db.execute(
                    "DELETE FROM runs WHERE job = ? AND ended IS NOT NULL AND id NOT IN"
                    " (SELECT id FROM runs WHERE job = ? ORDER BY id DESC LIMIT ?)",
                    (job.id, job.id, MAX_RUNS),
                )
                return job, _make_run(run)
        return None

    def set_session(self, run: JobRun, session: str) -> None:
        """Record the session of a run, before its first step."""
        with self.tables.transaction(write=True) as db:
            db.execute("UPDATE runs SET session = ? WHERE id = ?", (session, run.id))

    def settle(self, run: JobRun, status: RunStatus, reason: str = "") -> None:
        """Record the status of a run. With an unfinished one its job does not run again."""
        ended_at = None if status in UNFINISHED else _to_seconds(self._now())
        with self.tables.transaction(write=True) as db:
            query = "UPDATE runs SET status = ?, reason = ?, ended = ? WHERE id = ?"
            db.execute(query, (status, reason[:500], ended_at, run.id))

    def try_again(self, run: JobRun, *, delay: timedelta = RETRY_AFTER) -> bool:
        """Plan another attempt for a run that changed nothing, and return True.

        Return False after `MAX_ATTEMPTS` attempts for that time, or if the job runs sooner anyway.
        """
        if run.attempt >= MAX_ATTEMPTS:
            return False
        try_at = _to_seconds(self._now() + delay)
        with self.tables.transaction(write=True) as db:
            planned = db.execute(
                "UPDATE jobs SET next_due = ?, try_at = ?, attempt = ?"
                " WHERE id = ? AND (try_at IS NULL OR try_at > ?)",
                (_to_seconds(run.scheduled_at), try_at, run.attempt + 1, run.job, try_at),
            )
            return bool(planned.rowcount)

    def has_run_in(self, session: str) -> bool:
        """Return whether a job's run happened in this session."""
        with self.tables.transaction() as db:
            row = db.execute("SELECT 1 FROM runs WHERE session = ?", (session,)).fetchone()
        return row is not None

    def open_runs(self) -> list[JobRun]:
        """Return the unfinished runs, the oldest first."""
        with self.tables.transaction() as db:
            return [
                _make_run(row) for row in db.execute(f"{_UNFINISHED_RUNS} ORDER BY id").fetchall()
            ]

    # --- parts of transactions ---

    def _plan_next(self, db: Statements, job: Job, now: datetime) -> None:
        due = job.when.next_after(now)
        due_seconds = None if due is None else _to_seconds(due)
        db.execute(
            "UPDATE jobs SET next_due = ?, try_at = ?, attempt = 1, planned_at = ? WHERE id = ?",
            (due_seconds, due_seconds, _to_seconds(now), job.id),
        )

    def _replan(self, db: Statements, now: datetime) -> None:
        """Plan jobs again that were planned before the clock was set back.

        Times that were planned by a wrong clock may be years away.
        """
        query = "SELECT * FROM jobs WHERE next_due IS NOT NULL AND planned_at > ?"
        for row in db.execute(query, (_to_seconds(now),)).fetchall():
            job = self._load_job(row)
            if job is not None and job.when.run_at is None:
                self._plan_next(db, job, now)
            elif job is not None:  # it may wait for another attempt
                plan = "UPDATE jobs SET try_at = next_due, planned_at = ? WHERE id = ?"
                db.execute(plan, (_to_seconds(now), job.id))

    def _make_listing(self, row: Any, runs: list[JobRun]) -> JobListing:
        job = self._load_job(row)
        if job is None:
            return JobListing(id=str(row["id"]), job=None, state="damaged", runs=tuple(runs))
        due = _to_time(row["next_due"])
        state: JobState = "done" if due is None else "scheduled"
        state = next((run.status for run in runs if run.status in UNFINISHED), state)
        return JobListing(id=job.id, job=job, state=state, next_due=due, runs=tuple(runs))

    def _load_job(self, row: Any) -> Job | None:
        """Return the job of a row, None if its seal is wrong or it is not valid today."""
        text = str(row["definition"])
        if not hmac.compare_digest(self._seal(text).encode(), str(row["seal"]).encode()):
            return None
        try:
            job = Job.parse(text)
        except (MlxToolsError, msgspec.DecodeError, ValueError, RecursionError):
            return None
        return job if job.id == row["id"] else None

    def _seal(self, definition: str) -> str:
        """Return the seal of a job.

        Raises:
            ScheduleError: the key is not available. This does not mean that a job is damaged.
        """
        try:
            key = self._secret if isinstance(self._secret, bytes) else self._secret()
        except MlxToolsError as error:
            raised = ScheduleError(error.message, hint=error.hint)
            raised.passing = is_transient(error.__context__)
            raise raised from None
        return hmac.new(key, b"job:" + definition.encode(), hashlib.sha256).hexdigest()


def _to_seconds(time: datetime) -> int:
    """Return seconds since 1970, rounded down."""
    return math.floor(time.timestamp())


def _to_time(seconds: int | None) -> datetime | None:
    """Return the time in UTC.

    Raises:
        ValueError: it is no time, or too far away for time zones.
    """
    if seconds is None:
        return None
    time = datetime.fromtimestamp(seconds, UTC)
    if not 1970 <= time.year <= LAST_YEAR:
        raise ValueError(f"{seconds} is no time")
    return time


def _make_run(row: Any) -> JobRun:
    fields: dict[str, Any] = dict(row)
    fields |= {name: _to_time(fields.pop(column)) for name, column in _COLUMNS.items()}
    return JobRun(**fields)
