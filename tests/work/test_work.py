"""Ordinary work at the defaults, by a model that knows what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.testing import Completion, ScriptedServer
from tests.work.tasks import TASKS, Step, Task

CHARS_OF_TOKEN = 3
"""Characters that stand for a token, by which completions are cut and prompts counted."""

PIECE = 400
"""Characters of a piece in which the server sends: a long file in some hundred of them."""


def served(task: Task, server: list[ScriptedServer]) -> list[Callable[[str], Completion]]:
    """The completions of a task, cut at the tokens that were asked for."""

    def completion(step: Step, prompt: str) -> Completion:
        missing = [sight for sight in step.sees if not re.search(sight, prompt)]
        assert not missing, f"the model cannot see {missing}: {prompt[-1_500:]}"
        most = server[0].bodies[-1]["max_tokens"] * CHARS_OF_TOKEN
        cut = len(step.text) > most
        reason = "length" if cut else "stop"
        return Completion(step.text[:most], reason, size=PIECE)

    return [lambda prompt, step=step: completion(step, prompt) for step in task.steps]


def answers(task: Task, run: Any, url: str) -> Any:
    """Ask as a person would who approves what is asked."""
    folder = Path("folder")
    folder.mkdir()
    for name, text in task.files.items():
        path = (folder if task.root else Path()) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    root = ("--root", f"folder:{task.root}") if task.root else ()
    options = (*root, *task.options, "--approve", "always", "--json")
    return run("ask", "--url", url, *options, task.question)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name.replace(" ", "-"))
def test_a_task_is_done_at_the_defaults(task: Task, run: Any) -> None:
    holder: list[ScriptedServer] = []
    with ScriptedServer(*served(task, holder)) as server:
        holder.append(server)
        result = answers(task, run, server.url)
    outcome = result.json
    assert outcome["status"] == task.status, result
    assert re.search(task.answer, outcome["answer"]), outcome["answer"][:500]
    for name, text in task.after.items():
        path = Path("folder", name)
        assert (path.read_bytes().decode() if path.exists() else None) == text, name
    assert len(server.bodies) == len(task.steps)
    tokens = sum(len(prompt) for prompt in server.prompts) // CHARS_OF_TOKEN
    assert tokens <= task.tokens, tokens
