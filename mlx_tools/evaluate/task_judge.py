"""Whether a run did what its task demands: what it answered, and what it left behind. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from mlx_tools.evaluate.task_file import After, JobDue, Task
from mlx_tools.evaluate.task_world import Left
from mlx_tools.protocol import canonical
from mlx_tools.transcript.outcome import Answered, CallReport, Outcome

if TYPE_CHECKING:
    from mlx_tools.toolbox.schedule import Job

_NUMBER: Final = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?", re.ASCII)
_WITH_COMMA: Final = re.compile(r"(-?\d+(?:\.\d{3})*),(\d{1,2})(?!\d)", re.ASCII)
_MINUS: Final = str.maketrans("\u2212\u00a0\u202f", "-  ")


def fault_of(task: Task, outcome: Outcome, left: Left) -> str:
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
    if fault := fault_of_world(task.after, task.files, left):
        return fault
    if not answers(task, outcome.answer):
        return "wrong answer"
    places = [source.location for source in outcome.sources]
    if lacking := [name for name in task.cites if not any(p.endswith(name) for p in places)]:
        return f"{lacking[0]} is not cited"
    return ""


# --- what stands afterwards -------------------------------------------------------------------


def fault_of_world(after: After, before: Mapping[str, str], left: Left) -> str:
    """What is not there that must be, or was changed though nobody asked for it."""
    for path, texts in after.files.items():
        if path not in left.files:
            return f"no file {path}"
        if not _holds(left.files[path], texts):
            return f"{path} does not hold what it must"
    for path in after.gone:
        if path in left.files:
            return f"{path} is still there"
    meant = {*after.files, *after.gone}
    for path in sorted({*before, *left.files} - meant):
        if before.get(path) != left.files.get(path):
            return f"{path} was {'changed' if path in before else 'made'}"
    return _fault_of_notes(after, left) or _fault_of_jobs(after.job, left)


def _fault_of_notes(after: After, left: Left) -> str:
    if not after.note:
        return "a note was made" if left.notes else ""
    if not left.notes:
        return "no note was made"
    if len(left.notes) > 1:
        return f"{len(left.notes)} notes were made"
    return "" if _holds(left.notes[0], after.note) else "the note does not hold what it must"


def _fault_of_jobs(wanted: JobDue | None, left: Left) -> str:
    if wanted is None:
        return "a job was made" if left.jobs else ""
    if not left.jobs:
        return "no job was made"
    if len(left.jobs) > 1:
        return f"{len(left.jobs)} jobs were made"
    job, due = left.jobs[0]
    if not _is_due(wanted, job, due):
        return f"the job is due at {due:%Y-%m-%d %H:%M:%S %Z}" if due else "the job is never due"
    return "" if _holds(job.task, wanted.holds) else "the job does not say what it must"


def _is_due(wanted: JobDue, job: Job, due: datetime | None) -> bool:
    """Whether a job is due at all these times, one after the other, and then again or no more."""
    if due != wanted.due[0]:
        return False
    if any(job.when.next_after(one) != after for one, after in pairwise(wanted.due)):
        return False
    return (job.when.next_after(wanted.due[-1]) is not None) is wanted.again


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


def repeated(calls: Sequence[CallReport]) -> int:
    """How many calls are the same as an earlier one."""
    seen = [canonical(call.name, call.arguments) for call in calls]
    return len(seen) - len(set(seen))
