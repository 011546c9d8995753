"""Doubt belongs to the call, not to the run: a call that can change things and has no known end is
decided about before anything else, whatever ended its run, and no standing consent repeats it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import (
    Answered,
    ApprovalAnswer,
    Controller,
    Limits,
    Paused,
    Policy,
    RunSettings,
    Stopped,
    Tool,
    TranscriptStore,
    UsageError,
    tool,
)
from mlx_tools.controller import ApproveAlways, Conversation
from mlx_tools.policy import ApprovalTemplate, CallContext, compute_pin
from mlx_tools.store.transcript import load
from mlx_tools.testing import ScriptedApprover, ScriptedBackend, answer, call, run, skip
from mlx_tools.tools import ToolContext
from mlx_tools.transcript import make_outcome
from mlx_tools.transcript.records import ApprovalRecord, ExecutionRecord
from tests.controller.sessions import (
    add_record,
    cut_transcript,
    list_prompts,
    read_records,
    require_answer,
    resume_session,
)

ALL = Policy(allow=["*"])
UNASKED = Policy(allow=["*"], ask_effects=())
SEND = call("send", text="hi")


class Desk:
    """A store and a tool that writes a line, and the first time does not come to an end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: list[str] = []
        self.begun = anyio.Event()
        self.hangs: Callable[[], Any] | None = anyio.sleep_forever

        @tool(effects={"write"})
        async def send(text: str) -> str:
            """Sends a text."""
            self.sent.append(text)
            self.begun.set()
            hangs, self.hangs = self.hangs, None
            if hangs is not None:
                await hangs()
            return "sent"

        @tool(effects={"read"})
        async def research(question: str, context: ToolContext) -> str:
            """Finds something out."""
            return "found: " + await context.ask(question)

        self.tools: list[Tool] = [send, research]

    def controller(self, *lines: str, policy: Policy = ALL, **more: Any) -> Controller:
        return Controller(
            ScriptedBackend(*lines),
            more.pop("tools", self.tools),
            policy,
            store=TranscriptStore(self.folder),
            **more,
        )

    def broken_off(self, *lines: str, how: str = "interrupted", **more: Any) -> str:
        """The id of a session whose run was ended in the middle of the call."""
        ended: list[Conversation] = []
        if how == "total_timeout":
            self.hangs = _long
            more["limits"] = Limits(total_timeout=60, tool_timeout=3600)
        controller = self.controller(*(lines or (SEND,)), **more)

        async def go() -> None:
            async with await controller.conversation() as conversation:
                ended.append(conversation)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(conversation.run, "Send it.")
                    if how in ("interrupted", "cancelled"):
                        await self.begun.wait()
                        conversation.cancelled = how == "cancelled"
                        tasks.cancel_scope.cancel()

        run(go)
        session = ended[0].session
        self.hangs = None
        return session

    def killed(self, *lines: str, **more: Any) -> str:
        """The id of a session whose process ended in the middle of the call."""
        session = self.broken_off(*lines, **more)
        kinds = [record.type for record in load(self.transcript(session))]
        cut_transcript(self.transcript(session), kinds.index("execution_started") + 1)
        return session

    def transcript(self, session: str) -> Path:
        return self.folder / session / "transcript.jsonl"

    def asked(self, session: str, controller: Controller, question: str = "Go on.") -> Any:
        """The outcome of another question in a session."""

        async def go() -> Any:
            async with await controller.reopen(session) as conversation:
                return await conversation.run(question)

        return anyio.run(go)


async def _long() -> None:
    await skip(120)
    await anyio.sleep_forever()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "sessions")


ENDS = ("interrupted", "cancelled", "total_timeout")


def give_up(desk: Desk, session: str, *lines: str, **more: Any) -> Controller:
    """A person gives the call up, and the model answers."""
    controller = desk.controller(answer("Well."), *lines, **more)
    require_answer(
        resume_session(controller, session, {"c1": ApprovalAnswer(False, "I look myself")})
    )
    return controller


@pytest.mark.parametrize("how", [*ENDS, "killed"])
def test_whatever_ended_the_run_the_call_is_decided_about_first(desk: Desk, how: str) -> None:
    always = {"approver": ApproveAlways()}
    session = desk.killed(**always) if how == "killed" else desk.broken_off(how=how, **always)
    assert desk.sent == ["hi"]
    asking = desk.controller(SEND, answer(), **always)
    with pytest.raises(UsageError, match="nobody knows how c1 ended") as refused:
        desk.asked(session, asking)
    assert "sessions resume" in (refused.value.hint or "")
    assert (list_prompts(asking), desk.sent) == ([], ["hi"])
    paused = resume_session(desk.controller(answer()), session)
    assert isinstance(paused, Paused)
    assert [(one.call_id, one.in_doubt) for one in paused.pending] == [("c1", True)]
    assert isinstance(resume_session(desk.controller(answer(), **always), session, True), Paused)
    assert desk.sent == ["hi"]


@pytest.mark.parametrize("how", ENDS)
def test_a_run_that_stopped_tells_that_the_call_is_in_doubt(desk: Desk, how: str) -> None:
    session = desk.broken_off(how=how, policy=UNASKED)
    outcome = make_outcome(load(desk.transcript(session)))
    assert isinstance(outcome, Stopped)
    assert [one.status for one in outcome.calls] == ["in_doubt"]


@pytest.mark.parametrize("again", [False, True])
def test_once_it_is_decided_the_model_is_told_and_goes_on(desk: Desk, again: bool) -> None:
    session = desk.broken_off(policy=UNASKED)
    resume_session(desk.controller(answer()), session)  # it is shown
    controller = desk.controller(answer("Well."))
    outcome = require_answer(resume_session(controller, session, {"c1": again}))
    assert outcome.calls[0].error_code == (None if again else "in_doubt")
    assert desk.sent == ["hi"] * (1 + again)
    (prompt,) = list_prompts(controller)
    assert ('"content":"sent"' if again else "Nobody knows whether send finished") in prompt
    next_one = desk.controller(answer("Here."))
    assert isinstance(desk.asked(session, next_one), Answered)


def yes_for_all(call_now: CallContext) -> ApprovalTemplate:
    now = datetime.now(UTC)
    return ApprovalTemplate(
        id="t1",
        tool=call_now.spec.name,
        pin=compute_pin(call_now.spec, call_now.pinned),
        arguments={"text": "*"},
        made_at=now.isoformat(),
        expires_at=(now + timedelta(days=1)).isoformat(),
    )


class Covering:
    def find(self, call: CallContext) -> ApprovalTemplate | None:
        return yes_for_all(call)


@pytest.mark.parametrize(
    "more",
    [
        {"approver": ApproveAlways()},
        {"templates": Covering()},
        {"policy": UNASKED},
    ],
    ids=["always", "template", "policy"],
)
def test_nothing_that_stands_lets_a_repetition_through(desk: Desk, more: dict[str, Any]) -> None:
    session = desk.broken_off(**more)
    give_up(desk, session, **more)
    repeats = desk.controller(SEND, answer(), **more)
    paused = desk.asked(session, repeats)
    assert isinstance(paused, Paused)
    assert [(one.call_id, one.in_doubt) for one in paused.pending] == [("c2", True)]
    assert paused.calls[0].status == "pending"
    assert isinstance(resume_session(desk.controller(answer(), **more), session, True), Paused)
    assert desk.sent == ["hi"]
    require_answer(resume_session(desk.controller(answer(), **more), session, {"c2": True}))
    assert desk.sent == ["hi", "hi"]


def test_a_consent_for_the_session_covers_other_calls_and_no_repetition(desk: Desk) -> None:
    consent = ApprovalAnswer(True, for_session=True)
    person = ScriptedApprover(consent, False, ApprovalAnswer(True))
    session = desk.broken_off(approver=person)
    give_up(desk, session, approver=person)
    other = call("send", text="other")
    controller = desk.controller(other, SEND, answer(), approver=person)
    require_answer(desk.asked(session, controller))
    assert desk.sent == ["hi", "other"]
    asked = [(one.arguments["text"], one.in_doubt) for one in person.requests]
    assert asked == [("hi", False), ("hi", True)]


def test_once_a_repetition_has_ended_nothing_is_in_doubt_any_more(desk: Desk) -> None:
    session = desk.broken_off(policy=UNASKED)
    give_up(desk, session, policy=UNASKED)
    person = ScriptedApprover(True)
    unasked: dict[str, Any] = {"policy": UNASKED, "approver": person}
    require_answer(desk.asked(session, desk.controller(SEND, answer(), **unasked)))
    require_answer(desk.asked(session, desk.controller(SEND, answer(), policy=UNASKED)))
    assert (desk.sent, len(person.requests)) == (["hi"] * 3, 1)


def test_a_doubt_that_a_new_session_takes_over_stays_one(desk: Desk) -> None:
    """Another model, other folders, or the question asked once more."""
    session = desk.broken_off(policy=UNASKED)

    async def go(without_last: bool) -> tuple[Any, str]:
        controller = desk.controller(SEND, answer(), policy=UNASKED)
        async with await controller.carry_over(session, without_last=without_last) as talk:
            outcome = await talk.run("Send it.")
        return outcome, list_prompts(controller)[0]

    for without_last in (False, True):
        outcome, prompt = anyio.run(go, without_last)
        assert isinstance(outcome, Paused), without_last
        assert outcome.pending[0].in_doubt
        assert "Nobody knows whether send finished" in prompt
    assert desk.sent == ["hi"]


def carried_over(desk: Desk, session: str, *lines: str, compacts: bool = False) -> Any:
    """The outcome of a question in a new session that goes on from this one."""
    controller = desk.controller(
        *(["They talked."] * compacts), *lines, policy=UNASKED, settings=RunSettings(context=8192)
    )

    async def go() -> Any:
        async with await controller.carry_over(session) as talk:
            if compacts:
                await talk.compact()
            return await talk.run("Once more.")

    outcome = anyio.run(go)
    assert not (compacts and "Nobody knows" in list_prompts(controller)[-1])
    return outcome


def test_a_doubt_that_was_summed_up_is_one_in_each_session_that_goes_on_from_it(
    desk: Desk,
) -> None:
    sized: dict[str, Any] = {"policy": UNASKED, "settings": RunSettings(context=8192)}
    session = desk.broken_off(**sized)
    give_up(desk, session, **sized)
    controller = desk.controller(answer("Here."), "They talked.", **sized)

    async def compacted() -> None:
        async with await controller.reopen(session) as talk:
            await talk.run("Anything else?")
            assert await talk.compact() is not None

    anyio.run(compacted)
    for compacts in (False, True, True):
        require_answer(carried := carried_over(desk, session, answer("Well."), compacts=compacts))
        session = carried.session
        paused = carried_over(desk, session, SEND)
        assert isinstance(paused, Paused)
        assert paused.pending[0].in_doubt
    assert desk.sent == ["hi"]


def test_a_repetition_that_was_refused_leaves_the_doubt_in_a_new_session(desk: Desk) -> None:
    session = desk.broken_off(policy=UNASKED)
    give_up(desk, session, policy=UNASKED)
    person = ScriptedApprover(False)
    refusing = desk.controller(SEND, answer(), policy=UNASKED, approver=person)
    require_answer(desk.asked(session, refusing))
    paused = carried_over(desk, session, SEND)
    assert isinstance(paused, Paused)
    assert paused.pending[0].in_doubt
    assert desk.sent == ["hi"]


def test_a_doubt_that_has_ended_is_none_in_a_new_session(desk: Desk) -> None:
    session = desk.broken_off(policy=UNASKED)
    give_up(desk, session, policy=UNASKED)
    again = desk.controller(SEND, answer(), policy=UNASKED, approver=ScriptedApprover(True))
    require_answer(desk.asked(session, again))
    require_answer(carried_over(desk, session, SEND, answer()))
    assert desk.sent == ["hi"] * 3


def test_a_call_that_was_approved_again_and_not_started_is_in_doubt_still(desk: Desk) -> None:
    session = desk.broken_off(policy=UNASKED)
    paused = resume_session(desk.controller(answer()), session)
    add_yes(desk, session, paused.pending[0].digest)
    asked = resume_session(desk.controller(answer(), approver=ApproveAlways()), session)
    assert isinstance(asked, Paused)
    assert asked.pending[0].in_doubt
    assert desk.sent == ["hi"]


def add_yes(desk: Desk, session: str, digest: str) -> None:
    """An approval that does not hold, as one that expired meanwhile."""
    add_record(
        desk.transcript(session), ApprovalRecord(call="c1", approved=True, digest=digest, seal="0")
    )


def test_a_policy_that_denies_the_tool_now_lets_it_run_no_second_time(desk: Desk) -> None:
    session = desk.broken_off(policy=UNASKED)
    person = ScriptedApprover(True)
    after = desk.controller(answer(), policy=Policy(deny=["send"]), approver=person)
    outcome = require_answer(resume_session(after, session))
    assert (desk.sent, person.requests) == (["hi"], [])
    assert outcome.calls[0].error_code == "in_doubt"


def test_deciding_asks_no_model_and_leaves_the_question(desk: Desk) -> None:
    session = desk.broken_off(policy=UNASKED)

    async def go(person: ScriptedApprover) -> tuple[Any, Any, list[str]]:
        controller = desk.controller(answer("Here."), approver=person)
        async with await controller.reopen(session) as talk:
            first = await talk.decide()
            if talk.undecided:
                return first, None, list_prompts(controller)
            return first, await talk.run("And now?"), list_prompts(controller)

    paused, _, asked = anyio.run(go, ScriptedApprover(None))
    assert isinstance(paused, Paused) and asked == []
    decided, then, asked = anyio.run(go, ScriptedApprover(False))
    assert isinstance(decided, Stopped) and isinstance(then, Answered)
    assert len(asked) == 1 and asked[0].index("Nobody knows") < asked[0].index("And now?")
    assert desk.sent == ["hi"]


# --- calls within calls -----------------------------------------------------------------------

WITHIN = (call("research", question="Send hi"), SEND)


@pytest.mark.parametrize("how", ["interrupted", "total_timeout", "killed"])
def test_a_call_within_a_call_that_reads_is_decided_about_first(desk: Desk, how: str) -> None:
    session = desk.broken_off(
        *WITHIN, how="interrupted" if how == "killed" else how, policy=UNASKED
    )
    if how == "killed":
        for path in desk.folder.glob("*/transcript.jsonl"):
            cut_transcript(path, len(load(path)) - 1)
    with pytest.raises(UsageError, match="nobody knows how c1 ended"):
        desk.asked(session, desk.controller(*WITHIN, answer(), answer(), policy=UNASKED))
    paused = resume_session(desk.controller(answer(), answer(), policy=UNASKED), session)
    assert [(one.call_id, one.in_doubt) for one in paused.pending] == [("c1/c1", True)]
    lines = answer("no"), answer("Well.")
    require_answer(
        resume_session(desk.controller(*lines, policy=UNASKED), session, {"c1/c1": False})
    )
    assert desk.sent == ["hi"]


def test_a_doubt_within_a_call_holds_for_later_calls_of_the_same_process(desk: Desk) -> None:
    session = desk.broken_off(*WITHIN, policy=UNASKED)
    person = ScriptedApprover(False)
    controller = desk.controller(
        *(answer("no"), answer("Well.")), *(*WITHIN, answer("no"), answer("End.")),
        policy=UNASKED, approver=person,
    )  # fmt: skip

    async def go() -> None:
        async with await controller.reopen(session) as talk:
            await talk.resume()
            await talk.run("Once more.")

    anyio.run(go)
    assert [one.in_doubt for one in person.requests] == [True, True]
    assert desk.sent == ["hi"]


@pytest.mark.parametrize("carried", [False, True])
def test_a_doubt_within_a_call_holds_in_other_processes(desk: Desk, carried: bool) -> None:
    session = desk.broken_off(*WITHIN, policy=UNASKED)
    resume_session(desk.controller(answer(), answer(), policy=UNASKED), session)  # it is shown
    lines = answer("no"), answer("Well.")
    require_answer(
        resume_session(desk.controller(*lines, policy=UNASKED), session, {"c1/c1": False})
    )
    if carried:
        paused = carried_over(desk, session, SEND)
    else:
        paused = desk.asked(session, desk.controller(*WITHIN, policy=UNASKED))
    assert isinstance(paused, Paused)
    assert [one.in_doubt for one in paused.pending] == [True]
    assert desk.sent == ["hi"]


def test_a_doubt_within_a_call_that_has_ended_is_none_in_other_processes(desk: Desk) -> None:
    session = desk.broken_off(*WITHIN, policy=UNASKED)
    resume_session(desk.controller(answer(), answer(), policy=UNASKED), session)
    lines = answer("yes"), answer("Well.")
    require_answer(
        resume_session(desk.controller(*lines, policy=UNASKED), session, {"c1/c1": True})
    )
    again = desk.controller(SEND, answer(), policy=UNASKED)
    require_answer(desk.asked(session, again))
    assert desk.sent == ["hi"] * 3


# --- calls that were approved and did not start -------------------------------------------------


def approved_and_killed(desk: Desk) -> str:
    """A session whose process ended between a person's yes and the call."""
    desk.hangs = None
    controller = desk.controller(SEND, answer(), approver=ScriptedApprover(True))
    outcome = controller.run_sync("Send it.")
    path = desk.transcript(outcome.session)
    started = next(n for n, one in enumerate(load(path)) if isinstance(one, ExecutionRecord))
    cut_transcript(path, started)
    desk.sent.clear()
    return outcome.session


def test_a_call_that_was_approved_and_not_started_waits_when_its_run_is_brought_to_rest(
    desk: Desk,
) -> None:
    session = approved_and_killed(desk)

    async def settled() -> Any:
        async with await desk.controller().reopen(session) as talk:
            return await talk.settle()

    paused = anyio.run(settled)
    assert isinstance(paused, Paused)
    assert [(one.call_id, one.in_doubt) for one in paused.pending] == [("c1", False)]
    require_answer(resume_session(desk.controller(answer()), session, {"c1": True}))
    assert desk.sent == ["hi"]


def test_a_call_that_was_approved_and_not_started_is_not_told_as_failed(desk: Desk) -> None:
    session = approved_and_killed(desk)
    controller = desk.controller(answer("Well."))
    outcome = require_answer(desk.asked(session, controller))
    assert "send was not started" in list_prompts(controller)[0]
    assert (desk.sent, read_records(outcome, ExecutionRecord)) == ([], [])
