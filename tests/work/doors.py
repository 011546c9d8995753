"""The front ends that can run a task: ``ask``, ``chat``, and a client of the gateway.

Each takes a task and the address of its `ScriptedModel`, in an empty working directory
and home (`tests.command_line.isolated`), and returns an `Outcome`::

    with isolated(folder), ScriptedModel(task.context) as model, set_up_task(task):
        model.begin([task])
        outcome = run_in_ask(task, model.url)
        check_disk(task)
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cli.terminal import Terminal
from tests.command_line import Result, run_command
from tests.tools.searxng import search_engine
from tests.work.model import iter_calls
from tests.work.task import Task, Turn

FOLDER: Final = "folder"
"""The folder of the files of a task that has a root."""


WRITERS: Final = {"create_file", "edit_file", "run_command", "notes_create", "schedule_task"}
CHANGES: Final = {"write", "delete"}
"""Tools and operations that are asked about."""


@dataclass(frozen=True)
class Outcome:
    """The result of a task.

    Attributes:
        answers: what each question was answered.
        status: how the last run ended.
        truncated: whether the last answer was cut off.
        told: what stood on standard error.
    """

    answers: tuple[str, ...]
    status: str
    truncated: bool = False
    told: str = ""


@contextmanager
def set_up_task(task: Task) -> Iterator[None]:
    """Provide the files and web pages of a task, and run its first commands."""
    folder = Path(FOLDER)
    folder.mkdir()
    for name, text in task.files.items():
        path = (folder if task.root else Path()) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    with search_engine(task.pages):
        for command in task.before:
            done = run_command(*expand_words(command))
            assert done.code == 0, done
        yield


def expand_words(command: Sequence[str]) -> list[str]:
    """Return a command's words; ``python`` is this interpreter, ``HERE`` this folder."""
    here = str(Path.cwd())
    return [sys.executable if word == "python" else word.replace("HERE", here) for word in command]


def list_options(task: Task) -> list[str]:
    """Return the command line options of a task."""
    root = ["--root", f"{FOLDER}:{task.root}"] if task.root else []
    return [*root, *expand_words(task.options)]


def run_in_ask(task: Task, url: str) -> Outcome:
    """Ask with ``mlx-tools ask``; approve calls, or refuse them with a reason."""
    approval = [] if task.reason else ["--approve", "always"]
    common = ["--url", url, *approval, "--json"]
    answers: list[str] = []
    told: list[str] = []
    for turn in task.turns:
        given = ["--continue"] if answers else list_options(task)
        result = run_command("ask", *given, *common, turn.question)
        if task.reason:
            assert result.json["status"] == "paused", result
            told.append(result.err)
            result = refuse_call(result, task.reason)
        outcome = result.json
        answers.append(outcome["answer"] or "")
        told.append(result.err)
    return Outcome(tuple(answers), outcome["status"], outcome["truncated"], "".join(told))


def refuse_call(result: Result, reason: str) -> Result:
    """Refuse the pending call."""
    (pending,) = result.json["pending"]
    session = result.json["session"]
    deny = ["--deny", pending["call_id"], "--reason", reason, "--json"]
    return run_command("sessions", "resume", session, *deny)


def run_in_chat(task: Task, url: str) -> Outcome:
    """Ask with ``mlx-tools chat``, line by line through a pipe."""
    lines = "".join(f"{turn.question}\n" for turn in task.turns)
    given = [*list_options(task), "--url", url, "--approve", "always"]
    result = run_command("chat", *given, stdin=lines)
    status = {0: "answered", 4: "paused"}.get(result.code, "stopped")
    return Outcome((result.out,) * len(task.turns), status, "cut off" in result.err, result.err)


def run_in_terminal(task: Task, url: str, terminal: Callable[..., Terminal]) -> Outcome:
    """Ask at a terminal; approve each call, or refuse it with the reason."""
    screen = terminal("chat", *list_options(task), "--url", url)
    screen.see("^>$")
    for turn in task.turns:
        screen.type(f"{turn.question}\r")
        for _ in range(count_approvals(turn)):
            screen.until("p pause ")
            if task.reason:
                screen.type("n")
                screen.until("Why not")
                screen.type(f"{task.reason}\r")
            else:
                screen.type("y")
        screen.see(rf"{turn.answer}[^>]*^>$")
    screen.type("\x04")
    status = "answered" if screen.end() == 0 else "stopped"
    return Outcome((screen.paper,) * len(task.turns), status)


def count_approvals(turn: Turn) -> int:
    """Return the number of calls of a turn that need an approval."""
    made = [made for step in turn.steps for made in iter_calls(step.text)]
    return sum(tool in WRITERS or given.get("operation") in CHANGES for tool, given in made)


def check_disk(task: Task) -> None:
    """Check the output of the task's last commands, and the files in its folder."""
    for command, pattern in task.leaves:
        done = run_command(*command)
        assert done.code == 0 and re.search(pattern, done.out), f"{shlex.join(command)}: {done}"
    for name, text in task.after.items():
        path = Path(FOLDER, name)
        found = path.read_bytes().decode() if path.exists() else None
        assert found == text, f"{name}: {(found or '')[:500]!r}"
