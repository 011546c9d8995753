"""The steps of a session in turns: question, answer, and a line for each call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlx_tools.app import ReportStep, as_json

_MINOR_STEPS = ("Waits", "Resumed", "Mended")
"""Steps that say how a call or an answer was made, which a person rarely looks for."""


@dataclass(slots=True)
class Act:
    """A call with all steps that are about it, or one other step.

    Attributes:
        step: the call, or the other step.
        steps: all that is folded below its line.
        result: how the call ended, None if it has not.
        person: what a person decided last, None if nobody was asked.
    """

    step: ReportStep
    steps: list[ReportStep] = field(default_factory=list)
    result: ReportStep | None = None
    person: ReportStep | None = None

    @property
    def bad(self) -> bool:
        """True if it went wrong."""
        return (self.result or self.step).bad

    @property
    def arguments(self) -> str:
        """The values of the call's arguments, on one line."""
        text = self.step.blocks[0].text if self.step.blocks else ""
        try:
            values = json.loads(text).values()
        # an argument that was cut off, or is no JSON
        except (ValueError, AttributeError, RecursionError):
            return " ".join(text.split())
        words = (value if isinstance(value, str) else as_json(value) for value in values)
        return ", ".join(" ".join(word.split()) for word in words)

    @property
    def outcome(self) -> str:
        """The first line of the result, else what a person decided; empty without both."""
        if self.result is not None:
            text = self.result.words or (self.result.blocks[0].text if self.result.blocks else "")
            return text.strip().partition("\n")[0] or "done"
        return self.person.title if self.person is not None else ""


@dataclass(slots=True)
class TurnView:
    """A question and what came of it.

    Attributes:
        question: None for what stands before the first one.
        answer: the answer, or why it stopped; None if it is not there yet.
        acts: the calls, and what else happened, in order.
        writing: the steps in which the answer was written.
    """

    question: ReportStep | None = None
    answer: ReportStep | None = None
    acts: list[Act] = field(default_factory=list)
    writing: list[ReportStep] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """The number of its calls."""
        return sum(act.step.kind == "call" for act in self.acts)


def group_turns(steps: Sequence[ReportStep]) -> list[TurnView]:
    """Return the turns of a session's steps, or of a part of them, without its setup."""
    turns = [TurnView()]
    acts: dict[str, Act] = {}
    for step in steps:
        turn = turns[-1]
        if step.kind == "setup":
            continue
        if step.kind == "user":
            turns.append(TurnView(question=step))
            acts = {}
        elif step.kind in ("answer", "end"):
            if turn.answer is not None:  # it had stopped before, and was resumed with
                turn.acts.append(Act(turn.answer))
            turn.answer = step
        elif (step.kind == "model" and step.call not in acts) or step.label in _MINOR_STEPS:
            turn.writing.append(step)
        elif step.kind == "call" and step.title and step.call not in acts:
            acts[step.call] = Act(step, [*turn.writing, step])
            turn.acts.append(acts[step.call])
            turn.writing = []
        elif (act := acts.get(step.call)) is not None:
            act.steps.append(step)
            if step.kind == "tool":
                act.result = step
            elif step.kind == "person":
                act.person = step
        else:
            turn.acts.append(Act(step))
    return [turn for turn in turns if turn != TurnView()]
