"""Ordinary work at the defaults, by a model that knows what to do, through every door."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.command_line import isolated
from tests.forked import forks
from tests.tables import table
from tests.tools.sandboxed import WHY_NOT
from tests.work.doors import (
    Outcome,
    check_disk,
    run_in_ask,
    run_in_chat,
    run_in_terminal,
    set_up_task,
)
from tests.work.gateway_client import run_in_gateway
from tests.work.model import ScriptedModel
from tests.work.task import Door, Task, call, says
from tests.work.tasks import TASKS

MEASURED = Path(__file__).parents[2] / "benchmarks" / "ordinary_work.json"

EVERY_DAY = {
    "write a program of 350 lines",
    "a dry run",
    "change one line of a file of 600 lines",
    "three questions about a document of 100 pages",
    "twenty steps",
    "search the web, read three pages and save a summary",
    "ask an MCP server's tool",
    "a function of one's own",
    "thirty questions in a context of 8,192 tokens",
    "a model that loops in an answer",
    "a model that stops in the middle of a call",
    "more steps than a question may take",
}
"""Tasks of every kind, which go through all doors in the default tests. The others go through
``ask`` there, and through the other doors in the heavy tests."""

LARGE = {
    "write a program of 600 lines": True,
    "answer in two thousand words": False,
    "change one line of a file of 600 lines": False,
    "change a name in five files": False,
    "three questions about a document of 100 pages": True,
    "sixteen calls of one turn": True,
    "a model that loops in a call": False,
}
"""Tasks that go through every interface of the gateway; True: in the default tests too."""

WATCHED = {
    "change a file of three pages": True,
    "change a name in five files": False,
    "a change that the person refuses for a reason": True,
    "change what was just written": False,
}
"""Tasks that a person follows at a terminal; True: in the default tests too."""


FIGURES = {row["task"]: row for row in json.loads(MEASURED.read_text(encoding="utf-8"))}
TOLERANCE = 0.1
"""The part by which prompts may be shorter or longer than was measured: they hold paths and ports,
and another word in a prompt shall not need another measurement."""

CLIENT_TOLERANCE = 1.5
"""A client's tools are described whole to the model, ours by their first paragraph."""

MEASURE = "measure again: python benchmarks/ordinary_work.py"


def name_of(task: Task) -> str:
    """The name of a task in a test's."""
    return task.name.replace(" ", "-")


def rows(door: Door) -> list[object]:
    """The tasks of a door, as parameters of a test."""
    found: list[object] = []
    for task in TASKS:
        if door in task.doors and not (door == "chat" and task.reason):
            often = door not in task.heavy and (door == "ask" or task.name in EVERY_DAY)
            marks = () if often else pytest.mark.heavy
            found.append(pytest.param(task, id=name_of(task), marks=marks))
    return found


def check_size(task: Task, model: ScriptedModel, more: float) -> None:
    """Hold a task's requests and the characters of their prompts to what was measured. Prompts may
    be longer by the part ``more``."""
    row, chars = FIGURES[task.name], sum(map(len, model.prompts))
    assert len(model.prompts) == row["requests"], task.name
    assert (1 - TOLERANCE) < chars / row["prompt_chars"] < 1 + more, (
        f"{chars} characters of prompts, {row['prompt_chars']} were measured: {MEASURE}"
    )


def marked(names: Mapping[str, bool]) -> list[object]:
    """The tasks of these names, as parameters of a test, the others of them heavy."""
    return [
        pytest.param(task, id=name_of(task), marks=() if names[task.name] else pytest.mark.heavy)
        for task in TASKS
        if task.name in names
    ]


@contextmanager
def doing(task: Task, model: ScriptedModel) -> Iterator[list[Outcome]]:
    """Let the model do a task inside, and compare the result with what the task says."""
    if task.sandbox and WHY_NOT:
        pytest.skip(WHY_NOT)
    model.begin([task])
    outcomes: list[Outcome] = []
    with set_up_task(task):
        yield outcomes
        assert not model.faults, model.faults[0]
        (outcome,) = outcomes
        assert outcome.status == task.status, outcome
        assert outcome.truncated == task.truncated, outcome
        for turn, answer in zip(task.turns, outcome.answers, strict=True):
            assert re.search(turn.answer, answer), f"{turn.question}: {answer[:500]}"
        check_disk(task)
    assert model.left == 0, f"{model.left} completions were not asked for: {outcome}"


@dataclass(frozen=True)
class Gateway:
    """A gateway that is a process, before a scripted model."""

    url: str
    model: ScriptedModel


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """``mlx-tools serve`` at the defaults."""
    with ScriptedModel() as model:
        with isolated(tmp_path_factory.mktemp("gateway")):
            process = forks().start("serve", "--port", "0", "--url", model.url)
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        try:
            said = b""
            while (match := re.search(rb"served at (http://\S+)\n", said)) is None:
                row = process.stderr.readline()
                assert row, said
                said += row
            # A full pipe would hold up a gateway that has much to complain of.
            reader.start()
            yield Gateway(match[1].decode(), model)
        finally:
            process.kill()
            if reader.is_alive():
                reader.join()
            process.communicate()


@pytest.mark.parametrize("task", rows("ask"))
def test_a_task_is_done_through_ask(task: Task, home: Path) -> None:
    with ScriptedModel(task.context) as model, doing(task, model) as outcomes:
        outcomes.append(run_in_ask(task, model.url))
    check_size(task, model, TOLERANCE)


@pytest.mark.parametrize("task", rows("chat"))
def test_a_task_is_done_through_chat(task: Task, home: Path) -> None:
    with ScriptedModel(task.context) as model, doing(task, model) as outcomes:
        outcomes.append(run_in_chat(task, model.url))
    check_size(task, model, TOLERANCE)


@pytest.mark.parametrize("task", marked(WATCHED))
@pytest.mark.heavy
def test_a_person_at_a_terminal_approves_what_a_task_changes(
    task: Task, home: Path, terminal: Callable[..., Terminal]
) -> None:
    with ScriptedModel(task.context) as model, doing(task, model) as outcomes:
        outcomes.append(run_in_terminal(task, model.url, terminal))


@pytest.mark.parametrize("task", rows("gateway"))
def test_a_task_is_done_through_the_gateway(task: Task, home: Path, gateway: Gateway) -> None:
    with doing(task, gateway.model) as outcomes:
        outcomes.append(run_in_gateway(task, gateway.url))
    check_size(task, gateway.model, CLIENT_TOLERANCE)


@pytest.mark.parametrize("interface", ["responses", "messages"])
@pytest.mark.parametrize("task", marked(LARGE))
def test_a_task_is_done_through_the_other_interfaces(
    task: Task, interface: str, home: Path, gateway: Gateway
) -> None:
    with doing(task, gateway.model) as outcomes:
        outcomes.append(run_in_gateway(task, gateway.url, interface))


def test_the_measured_tasks_are_those_that_there_are() -> None:
    doors = {row["task"]: tuple(row["doors"]) for row in FIGURES.values()}
    assert doors == {task.name: task.doors for task in TASKS}, MEASURE


@table(("key", "made"), [("y", 26), ("n", 24)])
@pytest.mark.heavy
def test_a_person_at_a_terminal_says_at_the_step_limit_whether_to_go_on(
    tmp_path: Path, key: str, made: int
) -> None:
    steps = (call("calculator", expression=f"{number}+1") for number in range(made))
    task = Task("", "Count on.", (*steps, says(f"At {made}.", str(made))), root="", answer="At")
    with (
        isolated(tmp_path / key),
        ScriptedModel() as model,
        doing(task, model) as outcomes,
        closing(Terminal("chat", "--url", model.url)) as screen,
    ):
        screen.see("^>$")
        screen.type(f"{task.question}\r")
        screen.see("24 steps were taken")
        screen.see("y go on n answer now$")
        screen.type(key)
        screen.see(rf"At {made}\.[^>]*^>$")
        outcomes.append(Outcome((screen.paper,), "answered"))
