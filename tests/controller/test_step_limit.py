"""At the limit of steps a person may let a run go on; else the model is told to finish."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mlx_tools import Answered, Controller, Limits, Outcome, Policy, TranscriptStore, tool
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest
from mlx_tools.errors import TranscriptError
from mlx_tools.store.transcript import load
from mlx_tools.testing import ScriptedApprover, ScriptedBackend, answer, call
from mlx_tools.transcript.records import (
    CorrectionRecord,
    ExtendedRecord,
    ObservationRecord,
    UserRecord,
)
from tests.controller.sessions import open_session


@tool(effects={"read"})
def look(number: int) -> str:
    """Look at a number."""
    return f"it is {number}"


class Person(ScriptedApprover):
    """An approver who is also asked for steps."""

    def __init__(self, *steps: int) -> None:
        super().__init__(True)
        self.steps = [*steps]
        self.asked_at: list[int] = []

    async def more_steps(self, made: int) -> int:
        self.asked_at.append(made)
        return self.steps.pop(0)


def run(person: object, looks: int, *rest: str, store: TranscriptStore | None = None) -> Outcome:
    script = [call("look", number=number) for number in range(looks)]
    backend = ScriptedBackend(*script, *(rest or (answer("Done."),)))
    controller = Controller(
        backend,
        [look],
        Policy(allow=["look"]),
        limits=Limits(max_iterations=3),
        approver=person,  # type: ignore[arg-type]
        store=store,
    )
    return controller.run_sync("Look at all of them")


def told_to_finish(outcome: Outcome) -> bool:
    corrections = [r for r in outcome.records if isinstance(r, CorrectionRecord)]
    return any(record.error.code == "iteration_limit" for record in corrections)


def test_a_person_lets_a_run_take_more_steps_as_often_as_it_is_asked() -> None:
    person = Person(2, 3)
    outcome = run(person, 7)
    assert isinstance(outcome, Answered) and len(outcome.calls) == 7
    assert person.asked_at == [3, 5]
    extended = [r.iterations for r in outcome.records if isinstance(r, ExtendedRecord)]
    assert extended == [2, 3] and not told_to_finish(outcome)


def test_a_person_who_wants_an_answer_gets_it_from_what_is_known() -> None:
    person = Person(0)
    outcome = run(person, 3)
    assert isinstance(outcome, Answered) and outcome.answer == "Done."
    assert person.asked_at == [3] and told_to_finish(outcome)


def test_nobody_is_asked_who_cannot_be() -> None:
    outcome = run(ScriptedApprover(True), 3)
    assert isinstance(outcome, Answered) and told_to_finish(outcome)


def test_more_steps_hold_for_one_question_and_after_a_restart(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path)
    outcome = run(Person(5), 6, store=store)
    records = load(Path(outcome.transcript or ""))
    cut = next(i for i, r in enumerate(records) if isinstance(r, ExtendedRecord)) + 1
    session = open_session(limits=Limits(max_iterations=3))
    for record in records[1:cut]:
        session.apply(record)
    assert session.max_iterations == 8 and not session.at_step_limit
    for record in records[cut:]:
        session.apply(record)
    session.apply(UserRecord(content="And now?"))
    assert session.max_iterations == 3


def test_a_record_of_more_steps_stands_only_at_the_limit() -> None:
    session = open_session(UserRecord(content="Hi"))
    with pytest.raises(TranscriptError, match="has not used its steps"):
        session.apply(ExtendedRecord(iterations=5))


def test_a_call_too_many_in_a_turn_is_told_so() -> None:
    script = "\n".join(call("look", number=number) for number in range(20))
    backend = ScriptedBackend(script, answer("Done."))
    controller = Controller(backend, [look], Policy(allow=["look"]))
    outcome = controller.run_sync("Look at all of them")
    assert isinstance(outcome, Answered)
    seen = [r for r in outcome.records if isinstance(r, ObservationRecord)]
    (refused,) = (r for r in seen if r.error is not None)
    assert len(seen) == 17 and refused.call == "c17"
    error = refused.error
    assert error is not None and error.code == "rate_limited"
    assert "first 16 calls" in error.message and "again" in error.message
    assert error.message in backend.prompts[1]


class Silent:
    """An approver without the ability to be asked for steps."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [ApprovalAnswer(True) for _ in requests]


def test_an_approver_needs_no_more_than_one_method() -> None:
    assert told_to_finish(run(Silent(), 3))
