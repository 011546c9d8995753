"""What a task is asked over: real tools in a folder of its own, and a clock that stands.

Nothing of the user's is seen or changed: files, notes, documents, jobs and sessions all lie below
the one folder, and go with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlx_tools.controller.approver import ApprovalAnswer, ApprovalRequest
from mlx_tools.evaluate.task_file import Task, TaskSet
from mlx_tools.policy import Policy
from mlx_tools.store.session_store import TranscriptStore
from mlx_tools.tools import Registry

if TYPE_CHECKING:
    from mlx_tools.toolbox.schedule import Job, JobStore

READING_ON: Final = "read_artifact"
"""Reads on in an output that was too long: every preset has it, so every task does."""


class SaysYes:
    """Approves every call, a repaired one too: in a task's own folder nothing can be lost, and what
    came of it is judged."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """Yes, to each."""
        return [ApprovalAnswer(True) for _ in requests]


@dataclass(frozen=True, slots=True)
class Left:
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
        self._now = tasks.now.astimezone(tasks.timezone)
        self._zone = tasks.timezone.key
        self._notes = folder / "notes"
        self._documents = folder / "documents"
        self._knowledge = folder / "knowledge.sqlite"
        self._jobs = folder / "schedule.sqlite"
        self._sessions = folder / "sessions"

    def seed(self) -> None:
        """Lays out the task's files, notes and documents."""
        self.files.mkdir()
        _write(self.files, self._task.files)
        if self._task.notes:
            _write(self._notes, self._task.notes)
        for corpus, documents in self._task.corpora.items():
            from mlx_tools.toolbox.kb import KnowledgeBase

            place = self._documents / corpus
            _write(place, documents)
            KnowledgeBase(self._knowledge).add([place], corpus)

    def now(self) -> datetime:
        """The time at which the clock stands, in UTC."""
        return self._now.astimezone(UTC)

    def registry(self) -> Registry:
        """The built-in tools that need no network and start no program, all of them real."""
        from mlx_tools.store.roots import Root, RootName
        from mlx_tools.toolbox.calculator import calculator
        from mlx_tools.toolbox.clock import clock
        from mlx_tools.toolbox.file_access import create_file, file_access
        from mlx_tools.toolbox.format_xml import format_xml
        from mlx_tools.toolbox.knowledge import Knowledge
        from mlx_tools.toolbox.note_tools import notes_create, notes_search
        from mlx_tools.toolbox.notes import Notes
        from mlx_tools.toolbox.schedule_task import Jobs, schedule_task
        from mlx_tools.tools import read_artifact

        roots = [Root(RootName.parse(self.root))]
        notes = Notes(self._notes, lambda: self._now)
        jobs = Jobs(store=self._store(), zone=lambda: self._zone, now=self.now)
        tools = [calculator(), clock(lambda: self._now, local=self._now.tzinfo)]
        tools += [file_access(roots), create_file(roots), format_xml(), read_artifact()]
        if self._task.corpora:
            tools += Knowledge(self._knowledge).tools()
        tools += [notes_create(notes), notes_search(notes), schedule_task(jobs)]
        return Registry(tools)

    def policy(self, *, all_tools: bool = False) -> Policy:
        """What the task's person allows: its preset, its tools; with ``all_tools`` every tool."""
        if all_tools:
            return Policy(allow=("*",))
        return Policy(allow=(*self._task.tools, READING_ON), preset=self._task.preset)

    def sessions(self) -> TranscriptStore:
        """Where the run's transcript and its long outputs are kept."""
        return TranscriptStore(self._sessions)

    def left(self) -> Left:
        """What is there now."""
        from mlx_tools.toolbox.notes import Notes

        seeded = set(self._task.notes)
        notes = Notes(self._notes).read_all().notes
        jobs = [one for one in self._store().listing() if one.job is not None]
        return Left(
            _read(self.files),
            tuple(f"{n.title}\n{n.text}" for n in notes if n.path not in seeded),
            tuple((one.job, one.next_due) for one in jobs if one.job is not None),
        )

    def _store(self) -> JobStore:
        from mlx_tools.toolbox.schedule import JobStore

        return JobStore(self._jobs, lambda: self.sessions().secret, self.now)


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
