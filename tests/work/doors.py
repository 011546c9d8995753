"""The doors through which a task goes: ``ask``, ``chat``, and a client of the gateway.

Each takes a task and the address of a `ScriptedModel` that does it, in an empty working directory
and home (`tests.command_line.isolated`), and gives an `Outcome`::

    with isolated(folder), ScriptedModel(task.context) as model, surroundings(task):
        model.begin([task])
        outcome = through_ask(task, model.url)
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
from tests.work.model import calls_in
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
def surroundings(task: Task) -> Iterator[None]:
    """Provide what a task finds: its files, its pages of the web, what the person did before."""
    folder = Path(FOLDER)
    folder.mkdir()
    for name, text in task.files.items():
        path = (folder if task.root else Path()) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    with search_engine(task.pages):
        for command in task.before:
            done = run_command(*words(command))
            assert done.code == 0, done
        yield


def words(command: Sequence[str]) -> list[str]:
    """A command's words; ``python`` is this interpreter, ``HERE`` the working directory."""
    here = str(Path.cwd())
    return [sys.executable if word == "python" else word.replace("HERE", here) for word in command]


def options_of(task: Task) -> list[str]:
    """The options of the command line that a task names."""
    root = ["--root", f"{FOLDER}:{task.root}"] if task.root else []
    return [*root, *words(task.options)]


def through_ask(task: Task, url: str) -> Outcome:
    """Ask as a person would who approves what is asked, or refuses it for a reason."""
    approval = [] if task.reason else ["--approve", "always"]
    common = ["--url", url, *approval, "--json"]
    answers: list[str] = []
    told: list[str] = []
    for turn in task.turns:
        given = ["--continue"] if answers else options_of(task)
        result = run_command("ask", *given, *common, turn.question)
        if task.reason:
            assert result.json["status"] == "paused", result
            told.append(result.err)
            result = refused(result, task.reason)
        outcome = result.json
        answers.append(outcome["answer"] or "")
        told.append(result.err)
    return Outcome(tuple(answers), outcome["status"], outcome["truncated"], "".join(told))


def refused(result: Result, reason: str) -> Result:
    """Say no to the call that waits."""
    (pending,) = result.json["pending"]
    session = result.json["session"]
    deny = ["--deny", pending["call_id"], "--reason", reason, "--json"]
    return run_command("sessions", "resume", session, *deny)


def through_chat(task: Task, url: str) -> Outcome:
    """Ask line by line, as a program would that writes into a pipe."""
    lines = "".join(f"{turn.question}\n" for turn in task.turns)
    given = [*options_of(task), "--url", url, "--approve", "always"]
    result = run_command("chat", *given, stdin=lines)
    status = {0: "answered", 4: "paused"}.get(result.code, "stopped")
    return Outcome((result.out,) * len(task.turns), status, "cut off" in result.err, result.err)


def through_terminal(task: Task, url: str, terminal: Callable[..., Terminal]) -> Outcome:
    """Ask at a terminal, and say yes to each call that is asked about, or no with the reason."""
    screen = terminal("chat", *options_of(task), "--url", url)
    screen.see("^>$")
    for turn in task.turns:
        screen.type(f"{turn.question}\r")
        for _ in range(approvals_in(turn)):
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


def approvals_in(turn: Turn) -> int:
    """The number of calls of a turn that change something, and are asked about."""
    made = [made for step in turn.steps for made in calls_in(step.text)]
    return sum(tool in WRITERS or given.get("operation") in CHANGES for tool, given in made)


def check_disk(task: Task) -> None:
    """The commands' output once the task is done, and the content of the folder then."""
    for command, pattern in task.leaves:
        done = run_command(*command)
        assert done.code == 0 and re.search(pattern, done.out), f"{shlex.join(command)}: {done}"
    for name, text in task.after.items():
        path = Path(FOLDER, name)
        found = path.read_bytes().decode() if path.exists() else None
        assert found == text, f"{name}: {(found or '')[:500]!r}"
