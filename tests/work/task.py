"""The form of a task: what a person asks, what the model writes, what comes of it.

Plain values without pytest. `tests.work.model` plays the model, `tests.work.doors` asks the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Door = Literal["ask", "chat", "gateway"]

DOORS: tuple[Door, ...] = ("ask", "chat", "gateway")


@dataclass(frozen=True)
class Step:
    """One completion of the model.

    Attributes:
        text: the completion; ``<<name>>`` stands for the group of that name in ``sees``.
        sees: patterns that must fit what tools have returned since the question.
        knows: patterns that must fit the prompt, anywhere in it.
        guesses: the model may name what it was not shown, as models do.
        finish_reason: how the server ends it, ``stop`` or ``length``.
    """

    text: str
    sees: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()
    guesses: bool = False
    finish_reason: str = "stop"


@dataclass(frozen=True)
class Turn:
    """One question: what the model writes then, and a pattern that the answer fits."""

    question: str
    steps: tuple[Step, ...]
    answer: str = "."


@dataclass(frozen=True)
class Task:
    """A task. The first question stands in it, ``later`` has the ones that follow.

    Attributes:
        name: in words.
        question: what the person asks.
        steps: what the model writes, in order.
        files: what stands in the folder before.
        after: what must stand there afterwards: the whole text, None for a file that is gone.
        answer: a pattern that the answer fits.
        options: of the command line, besides the folder.
        root: ``rw``, ``ro`` or empty for no folder.
        status: how the run ends, as ``ask --json`` says it.
        truncated: the last answer is cut off.
        later: further questions of the same conversation.
        before: commands that the person runs first.
        leaves: commands that the person runs afterwards, each with a pattern that its output fits.
        pages: of the web, by their titles; a search engine finds them in this order.
        context: tokens that the server says its model takes.
        told: a pattern that standard error fits.
        reason: the person says no to the first call, and why.
        sandbox: a program is run in a sandbox.
        absent: doors through which the task does not go, each with the reason.
        heavy: doors through which it goes in the heavy tests alone.
    """

    name: str
    question: str
    steps: tuple[Step, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str | None] = field(default_factory=dict)
    answer: str = "."
    options: tuple[str, ...] = ()
    root: str = "rw"
    status: str = "answered"
    truncated: bool = False
    later: tuple[Turn, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    leaves: tuple[tuple[tuple[str, ...], str], ...] = ()
    pages: Mapping[str, str] = field(default_factory=dict)
    context: int | None = None
    told: str = ""
    reason: str = ""
    sandbox: bool = False
    absent: Mapping[Door, str] = field(default_factory=dict)
    heavy: tuple[Door, ...] = ()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All questions, in order."""
        return (Turn(self.question, self.steps, self.answer), *self.later)

    @property
    def doors(self) -> tuple[Door, ...]:
        """The doors through which it goes."""
        return tuple(door for door in DOORS if door not in self.absent)


def call(
    tool: str, *sees: str, knows: tuple[str, ...] = (), guesses: bool = False, **arguments: Any
) -> Step:
    """A step that calls one tool."""
    text = line({"type": "tool_call", "name": tool, "arguments": arguments})
    return Step(text, sees, knows, guesses)


def calls(
    *made: tuple[str, Mapping[str, Any]], sees: tuple[str, ...] = (), guesses: bool = False
) -> Step:
    """A step that calls several tools."""
    lines = ({"type": "tool_call", "name": tool, "arguments": dict(a)} for tool, a in made)
    return Step("\n".join(map(line, lines)), sees, guesses=guesses)


def says(content: str, *sees: str, knows: tuple[str, ...] = ()) -> Step:
    """A step that answers."""
    return Step(line({"type": "final_answer", "content": content}), sees, knows)


def line(message: Mapping[str, Any]) -> str:
    """A message of the protocol."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))
