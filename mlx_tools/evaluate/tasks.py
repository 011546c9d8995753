"""Whole runs with real tools, judged by their outcome: `mlx-tools eval tasks`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

from mlx_tools.backends import Backend
from mlx_tools.controller.controller import Controller
from mlx_tools.controller.run_settings import RunSettings
from mlx_tools.errors import BackendError, UsageError
from mlx_tools.evaluate.asking import Ask, run_all
from mlx_tools.evaluate.results_file import Key, Results
from mlx_tools.evaluate.task_file import Task, TaskSet
from mlx_tools.evaluate.task_judge import fault_of, repeated
from mlx_tools.evaluate.task_world import SaysYes, World
from mlx_tools.policy import Limits
from mlx_tools.transcript.events import Finished, FormatBroken
from mlx_tools.transcript.outcome import Answered, Outcome, Stopped

_NO_CALL: Final = frozenset(("unknown_tool", "invalid_arguments", "invalid_json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How tasks are asked. ``all_tools`` offers every tool in every task, not those that the task
    names; ``transcripts`` is a folder in which the run of each is kept, None for none."""

    limits: Limits | None = None
    all_tools: bool = False
    transcripts: Path | None = None


async def run_tasks(
    tasks: TaskSet,
    backend: Backend,
    strategies: Mapping[str, RunSettings],
    results: Results,
    how: How = How(),
    *,
    step: Callable[[], None] = lambda: None,
) -> list[Mapping[str, Any]]:
    """The results of all tasks by all strategies, each with its settings."""

    def asking(task: Task, strategy: str, settings: RunSettings) -> Ask:
        async def ask() -> Mapping[str, Any]:
            return await ask_task(task, tasks, backend, settings, how, f"{task.id}-{strategy}")

        return ask

    todo = [
        (Key(task.category, task.id, strategy), asking(task, strategy, settings))
        for strategy, settings in strategies.items()
        for task in tasks.tasks
    ]
    return await run_all(todo, results, step)


async def ask_task(
    task: Task,
    tasks: TaskSet,
    backend: Backend,
    settings: RunSettings,
    how: How = How(),
    name: str = "",
) -> dict[str, Any]:
    """One task's result: a whole run in a folder of its own. ``tasks`` says what time it is there,
    ``name`` what its transcript is kept as.

    ``correct`` says that it ended as the task demands; ``valid`` that nothing the model wrote was
    broken or repaired; ``repeated`` counts calls that were made before in the run.
    """
    with tempfile.TemporaryDirectory(prefix="mlx-tools-task-") as folder:
        world = World(Path(folder).resolve(), task, tasks)
        world.seed()
        controller = Controller(
            backend,
            world.registry(),
            world.policy(all_tools=how.all_tools),
            limits=how.limits,
            settings=replace(settings, roots=(world.root,)),
            store=world.sessions(),
            approver=SaysYes(),
            now=world.now,
        )
        began = monotonic()
        broken, outcome = await _run(controller, task.question)
        seconds = monotonic() - began
        _raise_if_unasked(outcome)
        fault = fault_of(task, outcome, world.left())
        if how.transcripts is not None:
            _keep(outcome, how.transcripts / f"{name or task.id}.jsonl")
    return _result(outcome, fault, broken) | {"seconds": round(seconds, 3)}


def _result(outcome: Outcome, fault: str, broken: int) -> dict[str, Any]:
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
    }


def _keep(outcome: Outcome, path: Path) -> None:
    """Copies a run's transcript out of the folder that goes. Raises `UsageError`."""
    if outcome.transcript is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(outcome.transcript, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


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
