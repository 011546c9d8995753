"""A job, and what came of its runs: plain, frozen values."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from mlx_tools.errors import UsageError
from mlx_tools.policy import Policy
from mlx_tools.toolbox.schedule.when import When
from mlx_tools.transcript import Answered, Outcome, Paused

if TYPE_CHECKING:
    from pydantic import TypeAdapter

RunStatus = (
    Literal["running", "answered", "stopped", "paused", "in_doubt"]
    | Literal["interrupted", "failed", "abandoned"]
)
"""How a run of a job stands. ``in_doubt``: its process ended in the middle, and it may have changed
things; ``interrupted``: it ended so and changed nothing; ``failed``: it could not be begun;
``abandoned``: its session waited, and was removed."""

OPEN: Final = ("running", "paused", "in_doubt")
"""Runs that are not over: until then, their job does not run again."""

GRACE: Final = timedelta(minutes=15)
"""A time is missed where it is found to be due so much later."""

JobState = Literal["scheduled", "running", "paused", "in_doubt", "done", "damaged"]

MAX_TASK_CHARS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A task, when it is due, and everything that it may do.

    ``policy`` is the one it was made under, ``standing`` what was configured for all sessions at
    that time, empty where that is ``policy`` itself. ``options`` are the settings that its run has,
    as text by their keys, ``roots`` its folders; ``by`` is who made it: ``user``, or a session.
    ``said`` is when it runs in the words it was made with.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    task: str
    said: str
    when: When
    policy: Mapping[str, Any] = field(default_factory=dict)
    standing: Mapping[str, Any] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
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
        Policy.from_json(self.standing or self.policy)

    def policy_today(self, standing: Policy) -> Policy:
        """The policy under which it runs: its own, narrowed by what stands today where that is not
        what stood when it was made. Never more than it was made with."""
        own = Policy.from_json(self.policy)
        stood = Policy.from_json(self.standing) if self.standing else own
        return own if stood.digest() == standing.digest() else own.narrowed_by(standing)

    def definition(self) -> str:
        """The job as one text that is always the same."""
        return json.dumps(_adapter().dump_python(self, mode="json"), sort_keys=True)

    @classmethod
    def parse(cls, definition: str) -> Job:
        """The job of such a text. Raises ValueError or UsageError for anything else."""
        return _adapter().validate_json(definition)


@functools.cache
def _adapter() -> TypeAdapter[Job]:
    from pydantic import TypeAdapter  # which takes long to load

    return TypeAdapter(Job)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run of a job. ``due`` is the time it was for, ``attempt`` its number for that time, from
    1; all times are in UTC. ``session`` is empty until there is one."""

    id: int
    job: str
    due: datetime
    attempt: int
    started: datetime
    ended: datetime | None = None
    status: RunStatus = "running"
    session: str = ""
    reason: str = ""
    runner: str = field(default="", repr=False)

    @property
    def missed(self) -> bool:
        """Whether nobody looked for due jobs when its time came: it makes up for that time, and for
        all others until it started."""
        return self.started - self.due > GRACE

    def to_json(self) -> dict[str, Any]:
        """The run as ``schedule list --json`` has it."""
        value = {key: item for key, item in asdict(self).items() if key not in ("id", "runner")}
        return value | {key: _iso(value[key]) for key in ("due", "started", "ended")}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended, as whoever ran it says."""

    status: Literal["answered", "stopped", "paused"]
    reason: str = ""
    answer: str | None = None
    exit_code: int = 0

    @classmethod
    def of(cls, outcome: Outcome) -> RunEnd:
        """What a controller's outcome means for a job."""
        if isinstance(outcome, Answered):
            return cls(status="answered", answer=outcome.answer, exit_code=outcome.exit_code)
        status: Literal["paused", "stopped"] = (
            "paused" if isinstance(outcome, Paused) else "stopped"
        )
        reason = getattr(outcome, "reason", None) or ""
        return cls(status=status, reason=reason, exit_code=outcome.exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a session's transcript says of a run whose process is gone, or that waits.

    ``state`` is one of `mlx_tools.store.session_list.SessionState`, or ``missing``; ``changed``
    says whether a call was started that can change things, or that cannot be known.
    """

    state: str
    reason: str = ""
    changed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
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
