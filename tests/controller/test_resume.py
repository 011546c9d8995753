"""Pause and resume: an approval lets through exactly what was shown, once, and nothing is lost."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import (
    Answered,
    ApprovalAnswer,
    ApprovalRequest,
    Controller,
    Paused,
    Policy,
    Tool,
    ToolSpec,
    TranscriptStore,
    UsageError,
    tool,
)
from mlx_tools.errors import TranscriptError
from mlx_tools.messages import replace
from mlx_tools.policy import Limits
from mlx_tools.store.transcript import load, to_json
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.tools import Preview, ToolError, current_context
from mlx_tools.transcript.records import (
    ApprovalRecord,
    EditRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    PauseRecord,
)
from tests.controller.sessions import (
    add_record,
    cut_transcript,
    read_records,
    require_answer,
    resume_session,
    rewrite_records,
)

ALL = Policy(allow=["*"])


class House:
    """A store, tools that note what they did, and controllers as separate processes have them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.did: list[Any] = []
        self.present = "old"
        did = self.did

        @tool(needs_approval=True, effects={"write"})
        def send(text: str) -> str:
            """Sends a text."""
            did.append(text)
            return f"sent {text}"

        @tool(effects={"write"})
        def save(text: str) -> str:
            """Saves."""
            did.append(text)
            return "saved"

        @tool(effects={"read"})
        def look(x: int = 0) -> str:
            """Looks."""
            did.append(("look", x))
            return "seen"

        spec = ToolSpec(
            "put",
            "Puts a text.",
            {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            frozenset({"write"}),
            needs_approval=True,
        )

        def put(arguments: Mapping[str, Any]) -> str:
            expected = current_context().expected
            if expected is not None and expected != self.state():
                raise ToolError("has changed", code="not_allowed")
            self.present = arguments["text"]
            did.append(("put", arguments["text"]))
            return "put"

        def preview(arguments: Mapping[str, Any]) -> Preview:
            return Preview(f"-{self.present}\n+{arguments['text']}\n", self.state())

        self.tools = [send, save, look, Tool(spec, put, preview=preview)]

    def state(self) -> str:
        return hashlib.sha256(self.present.encode()).hexdigest()

    def controller(self, *lines: str, **more: Any) -> Controller:
        return Controller(
            ScriptedBackend(*lines),
            more.pop("tools", self.tools),
            more.pop("policy", ALL),
            store=TranscriptStore(self.folder),
            **more,
        )

    def paused(self, *lines: str, **more: Any) -> Paused:
        outcome = self.controller(*lines, **more).run_sync("Do it.")
        assert isinstance(outcome, Paused)
        return outcome


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "sessions")


def test_an_approved_call_runs_once_and_the_run_goes_on_to_its_answer(house: House) -> None:
    paused = house.paused(call("send", text="hi"))
    assert house.did == []
    outcome = require_answer(
        resume_session(house.controller(answer()), paused.session, {"c1": True})
    )
    assert house.did == ["hi"]
    assert outcome.calls[0].status == "ok"
    with pytest.raises(UsageError, match="already decided"):
        resume_session(house.controller(answer()), paused.session, {"c1": True})
    assert house.did == ["hi"]


def test_a_session_resumes_by_the_path_of_its_transcript_and_in_memory(house: House) -> None:
    paused = house.paused(call("send", text="hi"))
    assert paused.transcript is not None
    require_answer(resume_session(house.controller(answer()), paused.transcript, True))
    inside = Controller(
        ScriptedBackend(call("send", text="again"), answer("well")), house.tools, ALL
    )
    waiting = inside.run_sync("Do it.")
    require_answer(resume_session(inside, waiting.session, True))
    assert house.did == ["hi", "again"]


def test_a_session_that_has_ended_is_not_resumed(house: House) -> None:
    def asks() -> ScriptedBackend:
        made = house.controller(answer())
        for approvals in (None, True, False):
            with pytest.raises(UsageError, match=said):
                resume_session(made, session, approvals)
        assert isinstance(made.backend, ScriptedBackend)
        return made.backend

    session, said = house.controller(answer()).run_sync("Hi").session, "has its answer"
    assert asks().requests == []
    said = "has stopped"
    session = (
        house.controller(call("look", x=1), limits=Limits(max_iterations=1)).run_sync("Hi").session
    )
    assert asks().requests == []


def test_a_refused_call_comes_back_to_the_model_with_the_reason(house: House) -> None:
    paused = house.paused(call("send", text="hi"))
    controller = house.controller(answer())
    no = ApprovalAnswer(False, "not on a Sunday")
    outcome = require_answer(resume_session(controller, paused.session, {"c1": no}))
    assert house.did == []
    assert outcome.calls[0].error_code == "denied"
    backend = controller.backend
    assert isinstance(backend, ScriptedBackend)
    assert "not on a Sunday" in backend.requests[0].prompt


def test_an_edited_call_is_validated_decided_and_approved_as_it_is_then(house: House) -> None:
    paused = house.paused(call("send", text="hi"))
    edit = ApprovalAnswer(True, arguments={"text": "hello"})
    controller = house.controller(answer())
    outcome = resume_session(controller, paused.session, {"c1": edit})
    assert house.did == ["hello"]
    assert outcome.calls[0].arguments == {"text": "hello"}
    backend = controller.backend
    assert isinstance(backend, ScriptedBackend)
    assert "The user changed the arguments" in backend.requests[0].prompt
    kinds = [record.type for record in read_records(paused)]
    at = kinds.index("edited")
    assert kinds[at : at + 3] == ["edited", "decision", "approval"]


@pytest.mark.parametrize(
    ("arguments", "says"), [({"text": 5, "x": 1}, "do not fit"), ({}, "do not fit")]
)
def test_an_edit_that_does_not_fit_is_refused_and_the_call_still_waits(
    house: House, arguments: Mapping[str, Any], says: str
) -> None:
    paused = house.paused(call("send", text="hi"))
    edit = ApprovalAnswer(True, arguments=arguments)
    with pytest.raises(UsageError, match=says):
        resume_session(house.controller(answer()), paused.session, {"c1": edit})
    assert house.did == []
    require_answer(resume_session(house.controller(answer()), paused.session, {"c1": True}))
    assert house.did == ["hi"]


def test_calls_that_need_no_approval_run_at_once_and_the_others_wait(house: House) -> None:
    paused = house.paused(call("look", x=1) + "\n" + call("send", text="a"))
    assert house.did == [("look", 1)]
    assert [c.status for c in paused.calls] == ["ok", "pending"]
    again = resume_session(house.controller(), paused.session)
    assert isinstance(again, Paused)
    assert isinstance(resume_session(house.controller(answer()), paused.session, True), Answered)
    assert house.did == [("look", 1), "a"]


def test_some_of_a_batch_can_be_decided_and_the_rest_waits_on(house: House) -> None:
    paused = house.paused(call("send", text="a") + "\n" + call("send", text="b"))
    half = resume_session(house.controller(), paused.session, {"c2": True})
    assert house.did == ["b"]
    assert [c.call_id for c in half.pending] == ["c1"]
    assert isinstance(
        resume_session(house.controller(answer()), paused.session, {"c1": False}), Answered
    )
    assert house.did == ["b"]


def test_a_tool_allowed_for_the_session_is_not_asked_about_again(house: House) -> None:
    lines = (call("send", text="a") + "\n" + call("send", text="b"),)
    paused = house.paused(*lines)
    yes = ApprovalAnswer(True, for_session=True)
    after = (call("send", text="c"), answer())
    require_answer(resume_session(house.controller(*after), paused.session, {"c1": yes}))
    assert sorted(house.did) == ["a", "b", "c"]
    other = house.paused(call("send", text="d"))
    assert other.session != paused.session
    assert len(house.did) == 3


def programs(house: House, **declared: Any) -> list[Tool]:
    """A tool that runs programs, whose consents are bound to the program."""

    @tool(effects={"execute"}, consent_argument="program", **declared)
    def start(program: str, words: str = "") -> str:
        """Starts a program."""
        house.did.append((program, words))
        return "ran"

    return [start]


def start(program: str, words: str) -> str:
    return call("start", program=program, words=words)


def test_a_consent_for_the_session_covers_the_argument_that_it_is_bound_to(house: House) -> None:
    lines = (start("make", "a") + "\n" + start("make", "b") + "\n" + start("rm", "a"),)
    paused = house.paused(*lines, tools=programs(house))
    yes = {"c1": ApprovalAnswer(True, for_session=True)}
    after = house.controller(start("make", "c"), answer(), tools=programs(house))
    waits = resume_session(after, paused.session, yes)
    assert [waiting.call_id for waiting in waits.pending] == ["c3"]
    more = (start("make", "c"), start("python3", "d"))
    waits = resume_session(
        house.controller(*more, tools=programs(house)), paused.session, {"c3": False}
    )
    assert [waiting.arguments["program"] for waiting in waits.pending] == ["python3"]
    assert house.did == [("make", "a"), ("make", "b"), ("make", "c")]
    reasons = [r.reason for r in read_records(waits) if getattr(r, "rule", "") == "session_consent"]
    said = "start with this program was allowed to run programs for the rest of the session"
    assert set(reasons) == {said}


def test_an_approval_that_is_bound_to_no_argument_is_written_and_sealed_as_before() -> None:
    record = ApprovalRecord(call="c1", approved=True, digest="d", scope="session")
    assert to_json(record) == {
        "type": "approval",
        "call": "c1",
        "approved": True,
        "digest": "d",
        "scope": "session",
    }


def test_a_consent_is_bound_to_the_call_as_it_was_edited(house: House) -> None:
    paused = house.paused(start("make", "a"), tools=programs(house))
    edit = ApprovalAnswer(True, arguments={"program": "ls"}, for_session=True)
    more = (start("ls", "b"), start("make", "c"))
    waits = resume_session(
        house.controller(*more, tools=programs(house)), paused.session, {"c1": edit}
    )
    assert [waiting.arguments["program"] for waiting in waits.pending] == ["make"]
    assert house.did == [("ls", ""), ("ls", "b")]


@pytest.mark.parametrize("bound_to", [{}, {"program": "rm"}])
def test_a_consent_that_was_widened_in_the_transcript_covers_nothing(
    house: House, bound_to: dict[str, Any]
) -> None:
    paused = house.paused(start("make", "a"), tools=programs(house))
    yes = {"c1": ApprovalAnswer(True, for_session=True)}
    waits = resume_session(
        house.controller(start("rm", "b"), tools=programs(house)), paused.session, yes
    )
    assert isinstance(waits, Paused)
    rewrite_records(
        Path(paused.transcript or ""),
        lambda r: replace(r, bound_to=bound_to) if isinstance(r, ApprovalRecord) else r,
    )
    again = resume_session(house.controller(tools=programs(house)), paused.session)
    assert isinstance(again, Paused)
    assert house.did == [("make", "a")]


def test_a_call_without_the_argument_of_consents_is_asked_about_each_time(house: House) -> None:
    @tool(effects={"execute"}, consent_argument="program")
    def again(program: str = "", words: str = "") -> str:
        """Runs something."""
        house.did.append(program)
        return "ran"

    paused = house.paused(call("again"), tools=[again])
    yes = {"c1": ApprovalAnswer(True, for_session=True)}
    after = house.controller(call("again", words="b"), tools=[again])
    assert isinstance(resume_session(after, paused.session, yes), Paused)
    assert house.did == [""]


def test_what_the_call_acts_on_must_be_what_was_shown(house: House) -> None:
    paused = house.paused(call("put", text="new"))
    house.present = "changed by somebody"
    with pytest.raises(UsageError, match="changed since it was shown"):
        resume_session(house.controller(answer()), paused.session, {"c1": True})
    assert house.present == "changed by somebody"
    outcome = resume_session(house.controller(answer()), paused.session, {"c1": True})
    assert isinstance(outcome, Answered)  # it was asked anew, and this is what was shown then
    assert house.present == "new"


class Approves:
    """Approves, and does something between being shown and answering."""

    def __init__(self, meanwhile: Any, times: int = 1) -> None:
        self.seen: list[ApprovalRequest] = []
        self.meanwhile = meanwhile
        self.times = times

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        self.seen += requests
        if self.times > 0:
            self.times -= 1
            self.meanwhile()
        return [ApprovalAnswer(True) for _ in requests]


def test_a_target_that_changes_between_showing_and_running_is_shown_again(house: House) -> None:
    approver = Approves(lambda: setattr(house, "present", "moved"))
    require_answer(
        house.controller(call("put", text="new"), answer(), approver=approver).run_sync("Do.")
    )
    assert [request.preview for request in approver.seen] == ["-old\n+new\n", "-moved\n+new\n"]
    assert [did for did in house.did if did[0] == "put"] == [("put", "new")]


def other_tools(house: House) -> list[Tool]:
    @tool(needs_approval=True, effects={"write", "network"})
    def send(text: str) -> str:
        """Sends a text, and more."""
        house.did.append(("other", text))
        return "sent"

    return [send]


@pytest.mark.parametrize(
    "changed",
    [
        {"policy": Policy(allow=["*"], deny=["look"])},
        {"tools": None},
    ],
)
def test_an_approval_does_not_hold_under_another_policy_or_for_another_tool(
    house: House, changed: dict[str, Any]
) -> None:
    paused = house.paused(call("send", text="hi"))
    if "tools" in changed:
        changed = {"tools": other_tools(house)}
    with pytest.raises(UsageError, match="has changed since it was shown"):
        resume_session(house.controller(answer(), **changed), paused.session, {"c1": True})
    assert house.did == []


def test_today_s_policy_narrows_the_recorded_one(house: House) -> None:
    paused = house.paused(call("send", text="hi"))
    strict = Policy(allow=["*"], deny=["send"])
    with pytest.raises(UsageError, match="denied by the policy"):
        resume_session(house.controller(answer(), policy=strict), paused.session, {"c1": True})
    outcome = require_answer(
        resume_session(house.controller(answer(), policy=strict), paused.session)
    )
    assert outcome.calls[0].error_code == "not_allowed"
    assert house.did == []


def test_the_digest_that_was_shown_must_be_the_one_that_is_approved(house: House) -> None:
    paused = house.paused(call("send", text="hi"))
    wrong = ApprovalAnswer(True, digest="0" * 64)
    with pytest.raises(UsageError, match="not the digest"):
        resume_session(house.controller(answer()), paused.session, {"c1": wrong})
    right = ApprovalAnswer(True, digest=paused.pending[0].digest)
    assert isinstance(
        resume_session(house.controller(answer()), paused.session, {"c1": right}), Answered
    )


@pytest.mark.parametrize("approvals", [{"c9": True}, {"c1": "yes"}, {1: True}, "c1"])
def test_an_approval_that_is_none_is_an_error_and_changes_nothing(
    house: House, approvals: Any
) -> None:
    paused = house.paused(call("send", text="hi"))
    before = Path(paused.transcript or "").read_bytes()
    with pytest.raises(UsageError):
        resume_session(house.controller(answer()), paused.session, approvals)
    assert Path(paused.transcript or "").read_bytes() == before


# --- a transcript that somebody else wrote ---------------------------------------------------


def test_a_header_that_was_changed_is_not_believed(house: House) -> None:
    paused = house.paused(call("send", text="hi"), policy=Policy(allow=["send"]))
    loose = Policy(allow=["*"]).to_json()
    rewrite_records(
        Path(paused.transcript or ""),
        lambda r: replace(r, policy=loose) if isinstance(r, Header) else r,
    )
    with pytest.raises(TranscriptError, match="header was changed"):
        resume_session(house.controller(answer()), paused.session, True)


def test_a_yes_for_the_session_to_a_call_not_written_cleanly_is_for_that_call(house: House) -> None:
    paused = house.paused("Well. " + call("send", text="hi"))
    yes = {"c1": ApprovalAnswer(True, for_session=True)}
    again = resume_session(house.controller(call("send", text="ho")), paused.session, yes)
    assert isinstance(again, Paused)
    assert house.did == ["hi"]


DAYS = timedelta(days=1)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        ({"expires_at": 300_000}, "changed since it was shown"),
        ({"recorded_at": -30, "expires_at": -23}, "too long ago"),
        ({"recorded_at": 300}, "clock"),  # it was set back since
    ],
)
def test_what_was_shown_in_its_time_cannot_be_made_to_last(
    house: House, days: Mapping[str, int], said: str
) -> None:
    paused = house.paused(call("send", text="hi"))
    put = {name: (datetime.now(UTC) + n * DAYS).isoformat() for name, n in days.items()}
    path = Path(paused.transcript or "")
    rewrite_records(path, lambda r: replace(r, **put) if isinstance(r, PauseRecord) else r)
    with pytest.raises(UsageError, match=said):
        resume_session(house.controller(answer()), paused.session, True)
    assert house.did == []


def given_in_a_copy(house: House, paused: Paused, *, approved: bool) -> ApprovalRecord:
    """A person's decision about the call that waits, taken in a copy of the house."""
    copy = House(house.folder.parent / "copy")
    copy.folder.mkdir(parents=True)
    (copy.folder / "secret").write_bytes((house.folder / "secret").read_bytes())
    (copy.folder / paused.session).mkdir()
    other = copy.folder / paused.session / "transcript.jsonl"
    other.write_bytes(Path(paused.transcript or "").read_bytes())
    resume_session(copy.controller(answer()), paused.session, {"c1": approved})
    return next(r for r in load(other) if isinstance(r, ApprovalRecord))


@pytest.mark.parametrize(("days", "did"), [(0, ["hi"]), (8, [])])
def test_an_approval_whose_call_did_not_start_holds_until_it_expires(
    house: House, days: int, did: list[str]
) -> None:
    paused = house.paused(call("send", text="hi"))
    add_record(Path(paused.transcript or ""), given_in_a_copy(house, paused, approved=True))
    later = datetime.now(UTC) + days * DAYS
    outcome = resume_session(house.controller(answer(), now=lambda: later), paused.session)
    assert (house.did, isinstance(outcome, Paused)) == (did, not did)


@pytest.mark.parametrize("flip", ["forged", "flipped"])
def test_an_approval_that_nobody_gave_lets_nothing_run(house: House, flip: str) -> None:
    paused = house.paused(call("send", text="hi"))
    path = Path(paused.transcript or "")
    pause = next(r for r in load(path) if isinstance(r, PauseRecord))
    seal = "0" * 64
    if flip == "flipped":  # a denial, which has a seal of its own, is made an approval
        seal = given_in_a_copy(house, paused, approved=False).seal
    forged = ApprovalRecord(
        call="c1",
        approved=True,
        digest=pause.digests[0],
        recorded_at=datetime.now(UTC).isoformat(),
        expires_at=pause.expires_at,
        seal=seal,
    )
    add_record(path, forged)
    outcome = resume_session(house.controller(answer()), paused.session)
    assert isinstance(outcome, Paused)
    assert house.did == []


def test_a_transcript_that_was_rolled_back_does_not_use_a_yes_twice(house: House) -> None:
    paused = house.paused(call("send", text="hi"))
    resume_session(house.controller(answer()), paused.session, True)
    path = Path(paused.transcript or "")
    said = next(i for i, r in enumerate(load(path)) if isinstance(r, ApprovalRecord))
    cut_transcript(path, said + 1)
    assert isinstance(resume_session(house.controller(answer()), paused.session), Paused)
    cut_transcript(path, said)
    with pytest.raises(UsageError):
        resume_session(house.controller(answer()), paused.session, {"c7": True})
    assert house.did == ["hi"]


@pytest.mark.parametrize(
    ("line", "forged"),
    [
        (
            f"Sure: {call('save', text='a')}\nok",
            EditRecord(call="c1", arguments={"text": "evil"}),
        ),
        (
            call("send", text="hi"),
            ApprovalRecord(
                call="c1", approved=True, digest="0" * 64, scope="session", seal="0" * 64
            ),
        ),
    ],
)
def test_an_edit_or_a_consent_that_nobody_made_lets_nothing_run(
    house: House, line: str, forged: EditRecord | ApprovalRecord
) -> None:
    paused = house.paused(line)
    add_record(Path(paused.transcript or ""), forged)
    for _ in range(3):
        assert isinstance(resume_session(house.controller(answer()), paused.session), Paused)
    assert house.did == []


def test_a_call_that_waited_does_not_count_itself_for_its_rate(house: House) -> None:
    policy = Policy(allow=["*"], rate_limits={"send": "1/day"})
    paused = house.paused(call("send", text="hi"), policy=policy)
    again = house.controller(call("send", text="again"), answer(), policy=policy)
    outcome = require_answer(resume_session(again, paused.session, {"c1": True}))
    assert house.did == ["hi"]
    assert [one.error_code for one in outcome.calls] == [None, "rate_limited"]


def test_arguments_that_a_person_changes_may_be_no_longer_than_the_models(house: House) -> None:
    limits = Limits(max_argument_bytes=40)
    paused = house.paused(call("send", text="hi"), limits=limits)
    for text in ("x" * 30, "é" * 15):  # with {"text":""} 11 bytes more
        edit = ApprovalAnswer(True, arguments={"text": text})
        with pytest.raises(UsageError, match="too long"):
            resume_session(house.controller(answer(), limits=limits), paused.session, {"c1": edit})
    assert house.did == []
    edit = ApprovalAnswer(True, arguments={"text": "x" * 29})
    require_answer(
        resume_session(house.controller(answer(), limits=limits), paused.session, {"c1": edit})
    )
    assert house.did == ["x" * 29]


def test_a_consent_that_was_not_given_here_covers_nothing(house: House) -> None:
    """An approval of one call, which somebody made one for the session in the transcript."""
    paused = house.paused(call("send", text="a"))
    waits = resume_session(house.controller(call("send", text="b")), paused.session, {"c1": True})
    assert isinstance(waits, Paused)
    rewrite_records(
        Path(paused.transcript or ""),
        lambda r: replace(r, scope="session") if isinstance(r, ApprovalRecord) else r,
    )
    again = resume_session(house.controller(answer()), paused.session)
    assert isinstance(again, Paused)
    assert house.did == ["a"]


def consented(house: House) -> str:
    """Let a person allow ``send`` for the session, in which a call of ``put`` waits then."""
    paused = house.paused(call("send", text="a"))
    yes = ApprovalAnswer(True, for_session=True)
    done = resume_session(house.controller(call("put", text="b")), paused.session, {"c1": yes})
    assert isinstance(done, Paused)
    return done.session


def test_a_consent_does_not_cover_a_tool_that_has_come_to_do_more(house: House) -> None:
    session = consented(house)
    after = house.controller(call("send", text="c"), tools=other_tools(house))
    again = resume_session(after, session, {"c2": False})
    assert isinstance(again, Paused)
    assert house.did == ["a"]


def test_a_consent_does_not_cover_a_tool_of_another_schema(house: House) -> None:
    session = consented(house)

    @tool(needs_approval=True, effects={"write"})
    def send(text: str, to: str = "") -> str:
        """Sends a text."""
        house.did.append((text, to))
        return "sent"

    tools = [send, *house.tools[1:]]
    after = house.controller(call("send", text="c"), tools=tools)
    again = resume_session(after, session, {"c2": False})
    assert isinstance(again, Paused)
    assert house.did == ["a"]


def test_a_call_beside_other_text_can_be_edited_where_its_tool_is_allowed(house: House) -> None:
    paused = house.paused("Sure: " + call("save", text="a") + "\nok")
    edit = ApprovalAnswer(True, arguments={"text": "b"})
    assert isinstance(
        resume_session(house.controller(answer()), paused.session, {"c1": edit}), Answered
    )
    assert house.did == ["b"]
    kinds = [record.type for record in read_records(paused)]
    assert kinds.count("approval") == 1


# --- crashes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
def test_a_mutating_call_that_was_cut_off_is_in_doubt_and_never_run_again_unasked(
    house: House, again: bool
) -> None:
    paused = house.paused(call("send", text="hi"))
    resume_session(house.controller(answer()), paused.session, True)
    path = Path(paused.transcript or "")
    started = next(i for i, r in enumerate(load(path)) if isinstance(r, ExecutionRecord))
    cut_transcript(path, started + 1)
    house.did.clear()
    outcome = resume_session(house.controller(answer()), paused.session)
    assert isinstance(outcome, Paused)
    assert outcome.calls[0].status == "in_doubt"
    outcome = resume_session(house.controller(answer()), paused.session, True)  # True names no call
    assert isinstance(outcome, Paused)
    assert house.did == []
    with pytest.raises(UsageError, match="other arguments"):
        edit = ApprovalAnswer(True, arguments={"text": "x"})
        resume_session(house.controller(answer()), paused.session, {"c1": edit})
    outcome = require_answer(
        resume_session(house.controller(answer()), paused.session, {"c1": again})
    )
    assert outcome.calls[0].error_code == (None if again else "in_doubt")
    assert house.did == ["hi"] * again


class Failing:
    """A person whose terminal fails when they are asked."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> list[ApprovalAnswer]:
        raise RuntimeError("no terminal")


def test_a_call_in_doubt_stays_in_doubt_if_asking_about_it_fails(house: House) -> None:
    """To write it down as failed would say that it was not done."""
    paused = house.paused(call("send", text="hi"))
    resume_session(house.controller(answer()), paused.session, True)
    path = Path(paused.transcript or "")
    started = next(i for i, r in enumerate(load(path)) if isinstance(r, ExecutionRecord))
    cut_transcript(path, started + 1)
    house.did.clear()
    with pytest.raises(UsageError, match="no terminal"):
        resume_session(house.controller(answer(), approver=Failing()), paused.session)
    assert not any(isinstance(r, ObservationRecord) for r in load(path))
    assert TranscriptStore(house.folder).describe(paused.session).status.in_doubt == ("c1",)
    assert house.did == []


def test_a_run_cut_off_at_any_record_goes_on_to_its_answer(house: House) -> None:
    lines = (call("look", x=1), call("send", text="hi"), answer("well"))
    paused = house.paused(*lines[:2])
    resume_session(house.controller(lines[2]), paused.session, True)
    path = Path(paused.transcript or "")
    whole = path.read_bytes()
    records = load(path)
    for number in range(2, len(records)):
        path.write_bytes(whole)
        cut_transcript(path, number)
        house.did.clear()
        made = sum(r.type == "completion" for r in records[:number])
        sent_before = any(isinstance(r, ExecutionRecord) and r.mutates for r in records[:number])
        outcome = resume_session(house.controller(*lines[made:]), paused.session)
        while isinstance(outcome, Paused):
            (waiting,) = outcome.pending
            doubtful = any(c.status == "in_doubt" for c in outcome.calls)
            made = sum(r.type == "completion" for r in load(path))
            outcome = resume_session(
                house.controller(*lines[made:]), paused.session, {waiting.call_id: not doubtful}
            )
        assert isinstance(outcome, Answered), number
        assert house.did.count("hi") == (0 if sent_before else 1), number
