"""Whole runs with real tools, judged by their outcome: `mlx-tools eval tasks`.

Each task has a folder of its own, and a clock that stands. Nothing of the user's is seen or
changed: files, notes, documents, jobs and sessions all lie below that folder, and go with it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct, field

from mlx_tools.backends import Backend
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest, Controller, RunSettings
from mlx_tools.errors import BackendError, ConfigError, UsageError
from mlx_tools.evaluate.results import Key, Result, Results, run_all
from mlx_tools.messages import replace
from mlx_tools.paths import package_file
from mlx_tools.policy import Limits, Policy
from mlx_tools.protocol import canonical
from mlx_tools.store import Root, RootName, TranscriptStore
from mlx_tools.toolbox import (
    SCHEDULE,
    Job,
    Jobs,
    JobStore,
    Knowledge,
    KnowledgeBase,
    Notes,
    create_file,
    notes_create,
    notes_search,
)
from mlx_tools.tools import Registry
from mlx_tools.transcript import Answered, Finished, FormatBroken, Outcome, Stopped

FILE: Final = package_file("evaluate/tasks.toml")

TOOLS: Final = (
    "calculator",
    "clock",
    "file_access",
    "create_file",
    "search_files",
    "format_xml",
    "read_artifact",
    "query_knowledge_base",
    "list_corpora",
    "notes_create",
    "notes_search",
    "schedule_task",
)
"""The tools that a task may use: those built in that need no network and start no program."""

Texts = Mapping[str, str]


class JobDue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job that must be there: when it is due, and what its task must say."""

    due: tuple[datetime, ...]
    again: bool = False
    holds: tuple[str, ...] = ()


class ExpectedWorld(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must stand when the run has ended, beside what stood before."""

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    note: tuple[str, ...] = ()
    job: JobDue | None = None


class Task(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question, what it is asked over, and what a right run answers and leaves behind."""

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
    after: ExpectedWorld = field(default_factory=ExpectedWorld)


class TaskSet(Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks, the time at which their clock stands, and the time zone of their person."""

    tasks: tuple[Task, ...]
    now: datetime
    timezone: str

    def only(self, categories: Iterable[str] = (), ids: Iterable[str] = ()) -> TaskSet:
        """The tasks of these categories and those of these ids; all where none is named. Raises
        `ConfigError` for one that there is not."""
        categories, ids = tuple(categories), tuple(ids)
        if not categories and not ids:
            return self
        for what, wanted, there in (
            ("category", categories, dict.fromkeys(task.category for task in self.tasks)),
            ("task", ids, dict.fromkeys(task.id for task in self.tasks)),
        ):
            if unknown := [name for name in wanted if name not in there]:
                raise ConfigError(
                    f"there is no {what} {unknown[0]!r}", hint=f"one of {', '.join(there)}"
                )
        kept = tuple(t for t in self.tasks if t.category in categories or t.id in ids)
        return TaskSet(kept, self.now, self.timezone)


def load_tasks() -> TaskSet:
    """The tasks that come along."""
    return msgspec.convert(tomllib.loads(FILE.read_text(encoding="utf-8")), TaskSet)


_NO_CALL: Final = frozenset(("unknown_tool", "invalid_arguments", "invalid_json"))


async def run_tasks(
    tasks: TaskSet,
    backend: Backend,
    strategies: Mapping[str, RunSettings],
    results: Results,
    *,
    limits: Limits | None = None,
    transcripts: Path | None = None,
    step: Callable[[], None] = lambda: None,
) -> list[Result]:
    """The results of all tasks by all strategies, each with its settings; ``transcripts`` is a
    folder in which the run of each is kept."""

    def kept(name: str) -> Path | None:
        return None if transcripts is None else transcripts / f"{name}.jsonl"

    ask = partial(ask_task, tasks=tasks, backend=backend, limits=limits)
    todo = [
        (
            Key(task.category, task.id, strategy),
            partial(ask, task, settings=settings, transcript_file=kept(f"{task.id}-{strategy}")),
        )
        for strategy, settings in strategies.items()
        for task in tasks.tasks
    ]
    return await run_all(todo, results, step)


async def ask_task(
    task: Task,
    tasks: TaskSet,
    backend: Backend,
    settings: RunSettings,
    *,
    limits: Limits | None = None,
    transcript_file: Path | None = None,
) -> dict[str, Any]:
    """One task's result: a whole run in a folder of its own. ``tasks`` says what time it is there,
    ``transcript_file`` where its transcript is kept.

    ``correct`` says that it ended as the task demands; ``valid`` that nothing the model wrote was
    broken or repaired; ``repeated`` counts calls that were made before in the run.
    """
    with tempfile.TemporaryDirectory(prefix="mlx-tools-task-") as folder:
        world = World(Path(folder).resolve(), task, tasks)
        world.seed()
        controller = Controller(
            backend,
            world.registry(),
            world.policy(),
            limits=limits,
            settings=replace(settings, roots=(world.root,)),
            store=world.sessions,
            approver=ApproveAll(),
            now=world.now,
        )
        began, broken, outcome = monotonic(), 0, None
        async with aclosing(controller.stream(task.question)) as happens:
            async for event in happens:
                broken += isinstance(event, FormatBroken)
                outcome = event.outcome if isinstance(event, Finished) else outcome
        seconds = monotonic() - began
        if outcome is None:
            raise BackendError("the run ended without an outcome")
        if isinstance(outcome, Stopped) and outcome.reason == "backend_error":
            raise BackendError(outcome.message)  # that is no result of the model's
        fault = fault_of(task, outcome, world.left())
        if transcript_file is not None and outcome.transcript is not None:
            try:
                transcript_file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(outcome.transcript, transcript_file)
            except OSError as error:
                raise UsageError(f"{transcript_file} cannot be written: {error.strerror}") from None
    return _result(outcome, fault, broken) | {"seconds": round(seconds, 3)}


def _result(outcome: Outcome, fault: str, failed_index: int) -> dict[str, Any]:
    repairs = sum(outcome.repairs.values())
    refused = any(call.error_code in _NO_CALL for call in outcome.calls)
    made = [canonical(call.name, call.arguments) for call in outcome.calls]
    return {
        "correct": not fault,
        "valid": isinstance(outcome, Answered) and not (failed_index or repairs or refused),
        "fault": fault,
        "answered": isinstance(outcome, Answered),
        "answer": outcome.answer if isinstance(outcome, Answered) else None,
        "error": outcome.reason if isinstance(outcome, Stopped) else None,
        "used": outcome.strategy,
        "calls": [
            {"name": call.name, "arguments": dict(call.arguments), "status": call.status}
            for call in outcome.calls
        ],
        "repeated": len(made) - len(set(made)),
        "turns": outcome.turns,
        "broken": failed_index,
        "repairs": repairs,
        "requests": outcome.requests,
        "prompt_tokens": outcome.usage.prompt_tokens,
        "cached_tokens": outcome.usage.cached_tokens,
        "completion_tokens": outcome.usage.completion_tokens,
    }


# --- what a task is asked over ----------------------------------------------------------------

READING_ON: Final = "read_artifact"
"""Reads on in an output that was too long: every preset has it, so every task does."""


class ApproveAll:
    """Approves every call, a repaired one too: in a task's own folder nothing can be lost, and what
    came of it is judged."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [ApprovalAnswer(True) for _ in requests]


class FinalWorld(Struct, frozen=True):
    """What a run left behind: the files by their paths, the texts of new notes, the jobs with when
    each is due first."""

    files: Mapping[str, str]
    notes: tuple[str, ...]
    jobs: tuple[tuple[Job, datetime | None], ...]


class World:
    """The place of one task below ``folder``, which must be empty. ``seed`` lays out what the task
    has; `left` says what is there afterwards."""

    def __init__(self, folder: Path, task: Task, tasks: TaskSet) -> None:
        self.files = folder / "files"
        self.root = f"{self.files}:rw" if task.writable else str(self.files)
        self._task = task
        self._zone = tasks.timezone
        self._now = tasks.now.astimezone(ZoneInfo(tasks.timezone))
        self._notes = folder / "notes"
        self._documents = folder / "documents"
        self._knowledge = folder / "knowledge.sqlite"
        self.sessions = TranscriptStore(folder / "sessions")

    def seed(self) -> None:
        """Lays out the task's files, notes and documents."""
        self.files.mkdir()
        _write(self.files, self._task.files)
        if self._task.notes:
            _write(self._notes, self._task.notes)
        for corpus, documents in self._task.corpora.items():
            place = self._documents / corpus
            _write(place, documents)
            KnowledgeBase(self._knowledge).add([place], corpus)

    def now(self) -> datetime:
        """The time at which the clock stands, in UTC."""
        return self._now.astimezone(UTC)

    def registry(self) -> Registry:
        """The built-in tools that need no network and start no program, all of them real."""
        from mlx_tools.toolbox.calculator import calculator
        from mlx_tools.toolbox.clock import clock
        from mlx_tools.toolbox.file_access import file_access
        from mlx_tools.toolbox.format_xml import format_xml
        from mlx_tools.toolbox.schedule_task import schedule_task
        from mlx_tools.toolbox.search_files import search_files
        from mlx_tools.tools import read_artifact

        roots = [Root(RootName.parse(self.root))]
        notes = Notes(self._notes, lambda: self._now)
        jobs = Jobs(store=self._store(), zone=lambda: self._zone, now=self.now)
        tools = [calculator(), clock(lambda: self._now, local=self._now.tzinfo)]
        tools += [file_access(roots), create_file(roots), search_files(roots)]
        tools += [format_xml(), read_artifact()]
        if self._task.corpora:
            tools += Knowledge(self._knowledge).tools()
        tools += [notes_create(notes), notes_search(notes), schedule_task(jobs)]
        return Registry(tools)

    def policy(self) -> Policy:
        """What the task's person allows: its preset, its tools."""
        return Policy(allow=(*self._task.tools, READING_ON), preset=self._task.preset)

    def left(self) -> FinalWorld:
        """What is there now."""
        seeded = set(self._task.notes)
        notes = Notes(self._notes).read_all().notes
        jobs = [one for one in self._store().listing() if one.job is not None]
        return FinalWorld(
            _read(self.files),
            tuple(f"{n.title}\n{n.text}" for n in notes if n.path not in seeded),
            tuple((one.job, one.next_due) for one in jobs if one.job is not None),
        )

    def _store(self) -> JobStore:
        return JobStore(self.sessions.tables(SCHEDULE), lambda: self.sessions.secret, self.now)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _read(folder: Path) -> dict[str, str]:
    """The files below a folder by their paths. What is no text is there all the same."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# --- whether a run did what its task demands --------------------------------------------------

_NUMBER: Final = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?", re.ASCII)
_WITH_COMMA: Final = re.compile(r"(-?\d+(?:\.\d{3})*),(\d{1,2})(?!\d)", re.ASCII)
_MINUS: Final = str.maketrans("\u2212\u00a0\u202f", "-  ")


def fault_of(task: Task, outcome: Outcome, final: FinalWorld) -> str:
    """What is wrong with a run, in a few words; empty where nothing is."""
    if not isinstance(outcome, Answered):
        return outcome.status
    ran = {call.name for call in outcome.calls if call.status == "ok"}
    tried = {call.name for call in outcome.calls}
    if task.quiet and tried:
        return f"called {min(tried)}"
    if lacking := [name for name in task.ran if name not in ran]:
        return f"{lacking[0]} did not run"
    if lacking := [name for name in task.tried if name not in tried]:
        return f"{lacking[0]} was not called"
    if fault := fault_of_world(task.after, task.files, final):
        return fault
    if not answers(task, outcome.answer):
        return "wrong answer"
    places = [source.location for source in outcome.sources]
    if lacking := [name for name in task.cites if not any(p.endswith(name) for p in places)]:
        return f"{lacking[0]} is not cited"
    return ""


# --- what stands afterwards -------------------------------------------------------------------


def fault_of_world(
    expected: ExpectedWorld, initial_files: Mapping[str, str], final: FinalWorld
) -> str:
    """What is not there that must be, or was changed though nobody asked for it."""
    for path, texts in expected.files.items():
        if path not in final.files:
            return f"no file {path}"
        if not _holds(final.files[path], texts):
            return f"{path} does not hold what it must"
    for path in expected.removed:
        if path in final.files:
            return f"{path} is still there"
    meant = {*expected.files, *expected.removed}
    for path in sorted({*initial_files, *final.files} - meant):
        if initial_files.get(path) != final.files.get(path):
            return f"{path} was {'changed' if path in initial_files else 'made'}"
    for what, found, wanted in (
        ("note", final.notes, expected.note),
        ("job", final.jobs, expected.job),
    ):
        if found and not wanted:
            return f"a {what} was made"
        if wanted and len(found) != 1:
            return f"{len(found)} {what}s were made" if found else f"no {what} was made"
    if expected.note and not _holds(final.notes[0], expected.note):
        return "the note does not hold what it must"
    return "" if expected.job is None else _fault_of_job(expected.job, *final.jobs[0])


def _fault_of_job(expected: JobDue, job: Job, due: datetime | None) -> str:
    """What is wrong with the one job: it must be due at all the times that are wanted, one after
    the other, and then again or no more."""
    follows = all(job.when.next_after(one) == after for one, after in pairwise(expected.due))
    again = job.when.next_after(expected.due[-1]) is not None
    if due != expected.due[0] or not follows or again is not expected.again:
        return f"the job is due at {due:%Y-%m-%d %H:%M:%S %Z}" if due else "the job is never due"
    return "" if _holds(job.task, expected.holds) else "the job does not say what it must"


def _holds(text: str, parts: Iterable[str]) -> bool:
    return all(part.casefold() in text.casefold() for part in parts)


# --- the answer -------------------------------------------------------------------------------


def answers(task: Task, answer: str) -> bool:
    """Whether the answer's text is what the task demands."""
    text = answer.casefold()
    if not _holds(text, task.contains):
        return False
    if task.any_of and not any(part.casefold() in text for part in task.any_of):
        return False
    if any(part.casefold() in text for part in task.lacks):
        return False
    if task.matches is not None and not re.search(task.matches, answer):
        return False
    return task.number is None or any(
        abs(number - task.number) <= task.tolerance + 1e-9 for number in numbers_in(answer)
    )


def numbers_in(text: str) -> list[float]:
    """The numbers in a text: with a point before the fraction and commas between thousands, or the
    other way round where that is what it must be."""
    text = text.translate(_MINUS)
    found = [number.replace(",", "") for number in _NUMBER.findall(text)]
    found += [f"{whole.replace('.', '')}.{part}" for whole, part in _WITH_COMMA.findall(text)]
    return [float(number) for number in found if len(number) < 300]
