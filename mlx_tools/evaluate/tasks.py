"""Whole runs with real tools, judged by their outcome: `mlx-tools eval tasks`."""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final, get_type_hints

from mlx_tools.backends.base import Backend
from mlx_tools.controller import Controller
from mlx_tools.errors import BackendError, ConfigError
from mlx_tools.evaluate.results import Key, Results
from mlx_tools.evaluate.runner import Ask, run_all
from mlx_tools.events import Finished, FormatBroken
from mlx_tools.outcome import Answered, CallReport, Outcome, Stopped
from mlx_tools.policy import Limits, Policy
from mlx_tools.protocol import canonical
from mlx_tools.run_settings import RunSettings
from mlx_tools.tools import Registry

FILE: Final = Path(__file__).with_name("tasks.toml")
TOOLS: Final = ("calculator", "clock", "file_access")

_NUMBER: Final = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?", re.ASCII)
_WITH_COMMA: Final = re.compile(r"(-?\d+(?:\.\d{3})*),(\d{1,2})(?!\d)", re.ASCII)
_MINUS: Final = str.maketrans("\u2212\u00a0\u202f", "-  ")
_NO_CALL: Final = frozenset(("unknown_tool", "invalid_arguments", "invalid_json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question, the files it is asked over, and what a right run does and answers.

    What each field demands says the head of ``tasks.toml``.
    """

    id: str
    category: str
    question: str
    files: Mapping[str, str] = field(default_factory=dict)
    contains: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    number: float | None = None
    tolerance: float = 0.0
    matches: str | None = None
    ran: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Tasks, and the time at which their clock stands."""

    tasks: tuple[Task, ...]
    now: datetime


def load_tasks(path: Path = FILE) -> TaskSet:
    """The tasks of a file. Raises `ConfigError` for a file that is not one of tasks."""
    known = get_type_hints(Task)
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        tasks = []
        for table in read["tasks"]:
            if unknown := sorted(set(table) - set(known)):
                raise ConfigError(f"{path}: {table.get('id')}: unknown key {unknown[0]}")
            lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
            tasks.append(Task(**{**table, **lists}))
        return TaskSet(tuple(tasks), datetime.fromisoformat(read["now"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no file of tasks: {error}") from None


async def run_tasks(
    tasks: TaskSet,
    backend: Backend,
    strategies: Mapping[str, RunSettings],
    results: Results,
    *,
    limits: Limits | None = None,
    step: Callable[[], None] = lambda: None,
) -> list[Mapping[str, Any]]:
    """The results of all tasks by all strategies, each with its settings."""

    def asking(task: Task, settings: RunSettings) -> Ask:
        async def ask() -> Mapping[str, Any]:
            return await ask_task(task, tasks.now, backend, settings, limits)

        return ask

    todo = [
        (Key(task.category, task.id, strategy), asking(task, settings))
        for strategy, settings in strategies.items()
        for task in tasks.tasks
    ]
    return await run_all(todo, results, step)


async def ask_task(
    task: Task,
    now: datetime,
    backend: Backend,
    settings: RunSettings,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """One task's result: a whole run in a folder of its own.

    ``correct`` says that it ended as the task demands; ``valid`` that nothing the model wrote was
    broken or repaired; ``repeated`` counts calls that were made before in the run.
    """
    with tempfile.TemporaryDirectory(prefix="mlx-tools-task-") as name:
        root = Path(name).resolve()
        for path, text in task.files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        controller = Controller(
            backend,
            tools_at(now, root),
            Policy(allow=TOOLS),
            limits=limits,
            settings=replace(settings, roots=(str(root),)),
        )
        began = monotonic()
        broken, outcome = await _run(controller, task.question)
        seconds = monotonic() - began
    _raise_if_unasked(outcome)
    fault = fault_of(task, outcome)
    repairs = sum(outcome.repairs.values())
    refused = any(call.error_code in _NO_CALL for call in outcome.calls)
    return {
        "correct": not fault,
        "valid": isinstance(outcome, Answered) and not (broken or repairs or refused),
        "fault": fault,
        "answered": isinstance(outcome, Answered),
        "answer": outcome.answer if isinstance(outcome, Answered) else None,
        "error": outcome.reason if isinstance(outcome, Stopped) else None,
        "used": outcome.strategy,
        "calls": [
            {"name": call.name, "arguments": dict(call.arguments), "status": call.status}
            for call in outcome.calls
        ],
        "repeated": repeated(outcome.calls),
        "turns": outcome.turns,
        "broken": broken,
        "repairs": repairs,
        "requests": outcome.requests,
        "prompt_tokens": outcome.usage.prompt_tokens,
        "cached_tokens": outcome.usage.cached_tokens,
        "completion_tokens": outcome.usage.completion_tokens,
        "seconds": round(seconds, 3),
    }


def tools_at(now: datetime, root: Path) -> Registry:
    """The built-in tools, real ones, the clock standing at ``now``, files below ``root``."""
    from mlx_tools.tools.builtin.calculator import calculator
    from mlx_tools.tools.builtin.clock import clock
    from mlx_tools.tools.builtin.file_access import file_access
    from mlx_tools.tools.builtin.rooted import Root, RootName

    files = file_access([Root(RootName(str(root)))])
    return Registry([calculator(), clock(now=lambda: now), files])


async def _run(controller: Controller, question: str) -> tuple[int, Outcome]:
    """How often the format broke, and the outcome."""
    broken, outcome = 0, None
    async with aclosing(controller.stream(question)) as happens:
        async for event in happens:
            broken += isinstance(event, FormatBroken)
            if isinstance(event, Finished):
                outcome = event.outcome
    if outcome is None:
        raise BackendError("the run ended without an outcome")
    return broken, outcome


def _raise_if_unasked(outcome: Outcome) -> None:
    """Raise what the backend did to a run that it ended: that is no result of the model's."""
    if isinstance(outcome, Stopped) and outcome.reason == "backend_error":
        raise BackendError(outcome.message)


# --- judging ----------------------------------------------------------------------------------


def fault_of(task: Task, outcome: Outcome) -> str:
    """What is wrong with a run, in a word or two; empty where nothing is."""
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
    return "" if answers(task, outcome.answer) else "wrong answer"


def answers(task: Task, answer: str) -> bool:
    """Whether the answer's text is what the task demands."""
    text = answer.casefold()
    if any(part.casefold() not in text for part in task.contains):
        return False
    if task.any_of and not any(part.casefold() in text for part in task.any_of):
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
