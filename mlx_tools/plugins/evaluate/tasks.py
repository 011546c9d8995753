"""Whole runs with real tools, checked by their results: `mlx-tools eval tasks`.

Each task has a folder of its own, and a clock with a fixed time. Its files, notes, documents, jobs
and sessions are all in that folder, which is deleted afterwards. So no task sees or changes data of
the user.
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

from mlx_tools.app import Key, Result, Results, collect, plugins, run_all
from mlx_tools.backends import Backend
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest, Controller, RunSettings
from mlx_tools.errors import BackendError, ConfigError, UsageError
from mlx_tools.messages import replace
from mlx_tools.paths import package_file
from mlx_tools.plugins.evaluate.other_plugins import (
    BasicsNames,
    FilesNames,
    KbNames,
    ScheduleNames,
    StoredJobs,
)
from mlx_tools.policy import Limits, Policy
from mlx_tools.protocol import canonical
from mlx_tools.store import Root, RootName, TranscriptStore
from mlx_tools.tools import Registry
from mlx_tools.transcript import Answered, Finished, FormatBroken, Outcome, Stopped

FILE: Final = package_file("plugins/evaluate/tasks.toml")
"""The file with the tasks. Its head describes each field of a `Task`."""

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
"""The tools that a task may use: built-in ones that need no network and start no program."""

Texts = Mapping[str, str]
"""The contents of files by their paths."""


class ExpectedJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job that must exist at the end."""

    due: tuple[datetime, ...]
    """The times at which it is due."""
    repeats: bool = field(name="again", default=False)
    """True if it is due again after these times."""
    holds: tuple[str, ...] = ()
    """Texts that its task must contain."""


class ExpectedWorld(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes that a run must have made."""

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Texts that each of these files must contain, by path."""
    removed: tuple[str, ...] = ()
    """Paths of files that must be gone."""
    note: tuple[str, ...] = ()
    """Texts that the only new note must contain."""
    job: ExpectedJob | None = None


class Task(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question, its files and data, and the expected answer and changes."""

    id: str
    category: str
    question: str
    preset: str | None = None
    """The preset of allowed tools."""
    tools: tuple[str, ...] = ()
    """More allowed tools."""
    writable: bool = False
    """True if tools may write to the folder of files."""
    files: Texts = field(default_factory=dict)
    notes: Texts = field(default_factory=dict)
    corpora: Mapping[str, Texts] = field(default_factory=dict)
    """The documents of the knowledge base, by corpus."""
    contains: tuple[str, ...] = ()
    """Texts that must all be in the answer."""
    any_of: tuple[str, ...] = ()
    """Texts of which one must be in the answer."""
    lacks: tuple[str, ...] = ()
    """Texts that must not be in the answer."""
    number: float | None = None
    """A number that must be in the answer."""
    tolerance: float = 0.0
    """The allowed difference from ``number``."""
    matches: str | None = None
    """A regular expression that must match in the answer."""
    cites: tuple[str, ...] = ()
    """Files that must be sources of the answer."""
    ran: tuple[str, ...] = ()
    """Tools that must have returned an output."""
    required_calls: tuple[str, ...] = field(name="tried", default=())
    """Tools that must have been called, with or without an output."""
    forbids_calls: bool = field(name="quiet", default=False)
    """True if no tool may be called."""
    expected: ExpectedWorld = field(name="after", default_factory=ExpectedWorld)


class TaskSet(Struct, frozen=True, forbid_unknown_fields=True):
    """The tasks of a file."""

    tasks: tuple[Task, ...]
    now: datetime
    """The time of the clock in all tasks."""
    timezone: str
    """The time zone of the user."""

    def select(self, categories: Iterable[str] = (), ids: Iterable[str] = ()) -> TaskSet:
        """Return the tasks in these categories or with these ids; all tasks without both.

        Raises:
            ConfigError: a category or id does not exist.
        """
        categories, ids = tuple(categories), tuple(ids)
        if not categories and not ids:
            return self
        for noun, names, existing in (
            ("category", categories, dict.fromkeys(task.category for task in self.tasks)),
            ("task", ids, dict.fromkeys(task.id for task in self.tasks)),
        ):
            if unknown := [name for name in names if name not in existing]:
                raise ConfigError(
                    f"there is no {noun} {unknown[0]!r}", hint=f"one of {', '.join(existing)}"
                )
        selected = tuple(t for t in self.tasks if t.category in categories or t.id in ids)
        return TaskSet(selected, self.now, self.timezone)


def load_tasks() -> TaskSet:
    """Load the tasks of the package."""
    return msgspec.convert(tomllib.loads(FILE.read_text(encoding="utf-8")), TaskSet)


_INVALID_CALL: Final = frozenset(("unknown_tool", "invalid_arguments", "invalid_json"))
"""Errors of calls that the model wrote wrongly."""


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
    """Run all tasks with each strategy, and return the results.

    Args:
        tasks: the tasks.
        backend: the backend of the model.
        strategies: the settings for each strategy, by its name.
        results: earlier results; new ones are added.
        limits: the limits of each run.
        transcripts: a folder for the transcripts of the runs, None to delete them.
        step: called after each task.
    """

    def find_transcript(name: str) -> Path | None:
        return None if transcripts is None else transcripts / f"{name}.jsonl"

    ask = partial(ask_task, tasks=tasks, backend=backend, limits=limits)
    pending = [
        (
            Key(task.category, task.id, strategy),
            partial(
                ask,
                task,
                settings=settings,
                transcript_file=find_transcript(f"{task.id}-{strategy}"),
            ),
        )
        for strategy, settings in strategies.items()
        for task in tasks.tasks
    ]
    return await run_all(pending, results, step)


async def ask_task(
    task: Task,
    tasks: TaskSet,
    backend: Backend,
    settings: RunSettings,
    *,
    limits: Limits | None = None,
    transcript_file: Path | None = None,
) -> dict[str, Any]:
    """Run one task in a temporary folder, and return its result.

    In the result, ``correct`` is True if the answer and the changes are as expected. ``valid`` is
    True if every turn and call could be read without a repair. ``repeated`` is the number of calls
    that the run had made before.

    Args:
        task: the task.
        tasks: the task set, for its clock and time zone.
        backend: the backend of the model.
        settings: the settings of the run.
        limits: the limits of the run.
        transcript_file: the path for a copy of the transcript.

    Raises:
        BackendError: the server failed, so there is no result.
        UsageError: the transcript cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="mlx-tools-task-") as folder:
        world = World(Path(folder).resolve(), task, tasks)
        world.write_files()
        controller = Controller(
            backend,
            world.build_registry(),
            world.build_policy(),
            limits=limits,
            settings=replace(settings, roots=(world.root,)),
            store=world.sessions,
            approver=ApproveAll(),
            observers=collect("observers"),
            now=world.read_clock,
        )
        started_at, broken_count, outcome = monotonic(), 0, None
        async with aclosing(controller.stream(task.question)) as events:
            async for event in events:
                broken_count += isinstance(event, FormatBroken)
                outcome = event.outcome if isinstance(event, Finished) else outcome
        seconds = monotonic() - started_at
        if outcome is None:
            raise BackendError("the run ended without an outcome")
        if isinstance(outcome, Stopped) and outcome.reason == "backend_error":
            raise BackendError(outcome.message)  # a failure of the server says nothing of the model
        fault = find_fault(task, outcome, world.read_final_world())
        if transcript_file is not None and outcome.transcript is not None:
            try:
                transcript_file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(outcome.transcript, transcript_file)
            except OSError as error:
                raise UsageError(f"{transcript_file} cannot be written: {error.strerror}") from None
    return _make_result(outcome, fault, broken_count) | {"seconds": round(seconds, 3)}


def _make_result(outcome: Outcome, fault: str, broken_count: int) -> dict[str, Any]:
    """Return the result of a run.

    Args:
        outcome: the outcome of the run.
        fault: the reason why it is wrong, empty if it is right.
        broken_count: the number of turns that could not be read.
    """
    repairs = sum(outcome.repairs.values())
    is_refused = any(call.error_code in _INVALID_CALL for call in outcome.calls)
    calls = [canonical(call.name, call.arguments) for call in outcome.calls]
    return {
        "correct": not fault,
        "valid": isinstance(outcome, Answered) and not (broken_count or repairs or is_refused),
        "fault": fault,
        "answered": isinstance(outcome, Answered),
        "answer": outcome.answer if isinstance(outcome, Answered) else None,
        "error": outcome.reason if isinstance(outcome, Stopped) else None,
        "used": outcome.strategy,
        "calls": [
            {"name": call.name, "arguments": dict(call.arguments), "status": call.status}
            for call in outcome.calls
        ],
        "repeated": len(calls) - len(set(calls)),
        "turns": outcome.turns,
        "broken": broken_count,
        "repairs": repairs,
        "requests": outcome.requests,
        "prompt_tokens": outcome.usage.prompt_tokens,
        "cached_tokens": outcome.usage.cached_tokens,
        "completion_tokens": outcome.usage.completion_tokens,
    }


# --- the files, data and tools of a task ------------------------------------------------------

ARTIFACT_READER: Final = "read_artifact"
"""The tool that reads the rest of a long output. Every task has it, as every preset does."""


class ApproveAll:
    """Approves every call, also a repaired one: the folder of a task is temporary."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [ApprovalAnswer(True) for _ in requests]


class FinalWorld(Struct, frozen=True):
    """The files, new notes and jobs after a run."""

    files: Texts
    notes: tuple[str, ...]
    """The texts of new notes."""
    jobs: tuple[tuple[Any, datetime | None], ...]
    """The jobs, each with the time of its first run."""


class World:
    """The files, data and tools of one task, in an empty folder.

    Args:
        folder: the empty folder.
        task: the task.
        tasks: the task set, for its clock and time zone.
    """

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

    def write_files(self) -> None:
        """Write the task's files, notes and documents."""
        self.files.mkdir()
        _write_files(self.files, self._task.files)
        if self._task.notes:
            _write_files(self._notes, self._task.notes)
        for corpus, documents in self._task.corpora.items():
            place = self._documents / corpus
            _write_files(place, documents)
            plugins().exports("kb", KbNames).KnowledgeBase(self._knowledge).add([place], corpus)

    def read_clock(self) -> datetime:
        """Return the fixed time of the task in UTC."""
        return self._now.astimezone(UTC)

    def build_registry(self) -> Registry:
        """Return the built-in tools that need no network and no program (`TOOLS`)."""
        from mlx_tools.tools import read_artifact

        roots = [Root(RootName.parse(self.root))]
        exports = plugins().exports
        basics, files = exports("basics", BasicsNames), exports("files", FilesNames)
        kb, schedule = exports("kb", KbNames), exports("schedule", ScheduleNames)
        notes = kb.Notes(self._notes, lambda: self._now)
        jobs = schedule.Jobs(store=self._store(), zone=lambda: self._zone, now=self.read_clock)
        tools = [basics.calculator(), basics.clock(lambda: self._now, local=self._now.tzinfo)]
        tools += [files.file_access(roots), files.create_file(roots), files.search_files(roots)]
        tools += [basics.format_xml(), read_artifact()]
        if self._task.corpora:
            tools += kb.Knowledge(self._knowledge).tools()
        tools += [kb.notes_create(notes), kb.notes_search(notes), schedule.schedule_task(jobs)]
        return Registry(tools)

    def build_policy(self) -> Policy:
        """Return a policy with the task's preset and tools."""
        return Policy(allow=(*self._task.tools, ARTIFACT_READER), preset=self._task.preset)

    def read_final_world(self) -> FinalWorld:
        """Return the files, new notes and jobs as they are now."""
        old_notes = set(self._task.notes)
        notes = plugins().exports("kb", KbNames).Notes(self._notes).read_all().notes
        jobs = [listing for listing in self._store().listing() if listing.job is not None]
        return FinalWorld(
            _read_files(self.files),
            tuple(f"{n.title}\n{n.text}" for n in notes if n.path not in old_notes),
            tuple((listing.job, listing.next_due) for listing in jobs if listing.job is not None),
        )

    def _store(self) -> StoredJobs:
        schedule = plugins().exports("schedule", ScheduleNames)
        tables = self.sessions.tables(schedule.SCHEDULE)
        return schedule.JobStore(tables, lambda: self.sessions.secret, self.read_clock)


def _write_files(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _read_files(folder: Path) -> dict[str, str]:
    """Return the contents of all files below a folder, by path.

    Bytes that are not UTF-8 become U+FFFD.
    """
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# --- checking a run ---------------------------------------------------------------------------

_NUMBER: Final = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?", re.ASCII)
_WITH_COMMA: Final = re.compile(r"(-?\d+(?:\.\d{3})*),(\d{1,2})(?!\d)", re.ASCII)
_MINUS: Final = str.maketrans("\u2212\u00a0\u202f", "-  ")


def find_fault(task: Task, outcome: Outcome, final: FinalWorld) -> str:
    """Return what is wrong with a run in a few words, empty if it is right.

    Args:
        task: the task of the run.
        outcome: the outcome of the run.
        final: the files, notes and jobs after the run.
    """
    if not isinstance(outcome, Answered):
        return outcome.status
    ran = {call.name for call in outcome.calls if call.status == "ok"}
    called = {call.name for call in outcome.calls}
    if task.forbids_calls and called:
        return f"called {min(called)}"
    if missing := [name for name in task.ran if name not in ran]:
        return f"{missing[0]} did not run"
    if missing := [name for name in task.required_calls if name not in called]:
        return f"{missing[0]} was not called"
    if fault := find_world_fault(task.expected, task.files, final):
        return fault
    if not is_right_answer(task, outcome.answer):
        return "wrong answer"
    places = [source.location for source in outcome.sources]
    if missing := [name for name in task.cites if not any(p.endswith(name) for p in places)]:
        return f"{missing[0]} is not cited"
    return ""


# --- checking changes -------------------------------------------------------------------------


def find_world_fault(
    expected: ExpectedWorld, initial_files: Mapping[str, str], final: FinalWorld
) -> str:
    """Return what is missing or was changed wrongly, in a few words; empty if nothing."""
    for path, texts in expected.files.items():
        if path not in final.files:
            return f"no file {path}"
        if not _contains_all(final.files[path], texts):
            return f"{path} does not hold what it must"
    for path in expected.removed:
        if path in final.files:
            return f"{path} is still there"
    expected_paths = {*expected.files, *expected.removed}
    for path in sorted({*initial_files, *final.files} - expected_paths):
        if initial_files.get(path) != final.files.get(path):
            return f"{path} was {'changed' if path in initial_files else 'made'}"
    for noun, items, expectation in (
        ("note", final.notes, expected.note),
        ("job", final.jobs, expected.job),
    ):
        if items and not expectation:
            return f"a {noun} was made"
        if expectation and len(items) != 1:
            return f"{len(items)} {noun}s were made" if items else f"no {noun} was made"
    if expected.note and not _contains_all(final.notes[0], expected.note):
        return "the note does not hold what it must"
    return "" if expected.job is None else _find_job_fault(expected.job, *final.jobs[0])


def _find_job_fault(expected: ExpectedJob, job: Any, due: datetime | None) -> str:
    """Return what is wrong with the only job, empty if nothing.

    It must be due at the expected times, in a row and without others in between. After them it must
    be due again, or never, as expected.
    """
    has_due_times = all(
        job.when.next_after(due_at) == after for due_at, after in pairwise(expected.due)
    )
    is_repeated = job.when.next_after(expected.due[-1]) is not None
    if due != expected.due[0] or not has_due_times or is_repeated is not expected.repeats:
        return f"the job is due at {due:%Y-%m-%d %H:%M:%S %Z}" if due else "the job is never due"
    return "" if _contains_all(job.task, expected.holds) else "the job does not say what it must"


def _contains_all(text: str, parts: Iterable[str]) -> bool:
    return all(part.casefold() in text.casefold() for part in parts)


# --- the answer -------------------------------------------------------------------------------


def is_right_answer(task: Task, answer: str) -> bool:
    """Return whether the text of an answer is as the task expects."""
    text = answer.casefold()
    if not _contains_all(text, task.contains):
        return False
    if task.any_of and not any(part.casefold() in text for part in task.any_of):
        return False
    if any(part.casefold() in text for part in task.lacks):
        return False
    if task.matches is not None and not re.search(task.matches, answer):
        return False
    return task.number is None or any(
        abs(number - task.number) <= task.tolerance + 1e-9 for number in read_numbers(answer)
    )


def read_numbers(text: str) -> list[float]:
    """Return the numbers in a text.

    A point is a decimal point and a comma groups digits. A number such as ``1.234,5`` is read the
    other way round too.
    """
    text = text.translate(_MINUS)
    numbers = [number.replace(",", "") for number in _NUMBER.findall(text)]
    numbers += [f"{whole.replace('.', '')}.{part}" for whole, part in _WITH_COMMA.findall(text)]
    return [float(number) for number in numbers if len(number) < 300]
