"""Tasks as a file describes them. The head of ``tasks.toml`` says what each key means."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final
from zoneinfo import ZoneInfo

from pydantic import AwareDatetime, ConfigDict, TypeAdapter, ValidationError

from mlx_tools.errors import ConfigError, MlxToolsError
from mlx_tools.policy import PRESETS
from mlx_tools.toolbox import zone_of

FILE: Final = Path(__file__).with_name("tasks.toml")

TOOLS: Final = (
    "calculator",
    "clock",
    "file_access",
    "create_file",
    "format_xml",
    "read_artifact",
    "query_knowledge_base",
    "list_corpora",
    "notes_create",
    "notes_search",
    "schedule_task",
)
"""The tools that a task may use: those built in that need no network and start no program."""

_STRICT: Final = ConfigDict(extra="forbid")
Texts = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDue:
    """A job that must be there: when it is due, and what its task must say."""

    __pydantic_config__: ClassVar = _STRICT
    due: tuple[AwareDatetime, ...]
    again: bool = False
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What must stand when the run has ended, beside what stood before."""

    __pydantic_config__: ClassVar = _STRICT
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    note: tuple[str, ...] = ()
    job: JobDue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question, what it is asked over, and what a right run answers and leaves behind."""

    __pydantic_config__: ClassVar = _STRICT
    id: str
    category: str
    question: str
    preset: str | None = None
    tools: tuple[str, ...] = ()
    writable: bool = False
    files: Texts = field(default_factory=dict)
    notes: Texts = field(default_factory=dict)
    corpora: Mapping[str, Texts] = field(default_factory=dict)
    contains: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    number: float | None = None
    tolerance: float = 0.0
    matches: str | None = None
    cites: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    quiet: bool = False
    after: After = field(default_factory=After)


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks, the time at which their clock stands, and the time zone of their person."""

    tasks: tuple[Task, ...]
    now: datetime
    timezone: ZoneInfo

    def only(self, categories: Iterable[str] = (), ids: Iterable[str] = ()) -> TaskSet:
        """The tasks of these categories and those of these ids; all where none is named. Raises
        `ConfigError` for one that there is not."""
        categories, ids = tuple(categories), tuple(ids)
        if not categories and not ids:
            return self
        _known("category", categories, [task.category for task in self.tasks])
        _known("task", ids, [task.id for task in self.tasks])
        kept = tuple(t for t in self.tasks if t.category in categories or t.id in ids)
        return TaskSet(kept, self.now, self.timezone)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file of tasks as it stands."""

    __pydantic_config__: ClassVar = _STRICT
    now: AwareDatetime
    tasks: tuple[Task, ...]
    timezone: str = "UTC"


def load_tasks(path: Path = FILE) -> TaskSet:
    """The tasks of a file. Raises `ConfigError` for a file that is not one of tasks."""
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        found = TypeAdapter(_File).validate_python(read)
        for task in found.tasks:
            _check(task)
        if twice := [i for i, n in Counter(task.id for task in found.tasks).items() if n > 1]:
            raise ConfigError(f"two tasks have the id {twice[0]}")
        return TaskSet(found.tasks, found.now, zone_of(found.timezone))
    except ValidationError as error:
        raise ConfigError(f"{path} is no file of tasks: {_told(error)}") from None
    except MlxToolsError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no file of tasks: {error}") from None


def _told(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}"[:300]


def _check(task: Task) -> None:
    """Raises `ConfigError` for a task that could not be asked or judged, or that would reach out of
    its folder."""
    told = f"task {task.id}: "
    if not task.id or not task.category or not task.question.strip():
        raise ConfigError(f"{told}id, category and question must say something")
    if task.preset is not None and task.preset not in PRESETS:
        raise ConfigError(f"{told}no preset {task.preset}", hint=f"one of {', '.join(PRESETS)}")
    for name in (*task.tools, *task.ran, *task.tried):
        if name not in TOOLS:
            raise ConfigError(f"{told}no tool {name} here", hint=f"one of {', '.join(TOOLS)}")
    documents = (name for texts in task.corpora.values() for name in texts)
    for name in (*task.files, *task.notes, *documents, *task.corpora):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ConfigError(f"{told}{name!r} is no name of a file in the task's own folder")
    if task.after.job is not None and not task.after.job.due:
        raise ConfigError(f"{told}after.job.due names no time")
    if task.matches is not None:
        try:
            re.compile(task.matches)
        except re.error as error:
            raise ConfigError(f"{told}matches is no regular expression: {error}") from None


def _known(what: str, wanted: Iterable[str], there: Iterable[str]) -> None:
    known = tuple(dict.fromkeys(there))
    for name in wanted:
        if name not in known:
            raise ConfigError(f"there is no {what} {name!r}", hint=f"one of {', '.join(known)}")
