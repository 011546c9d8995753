"""The session: what is due, for every path, without a model."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.controller import Complete, Session, Write
from mlx_tools.controller.session import Ask, Execute, Idle, fills
from mlx_tools.errors import TranscriptError
from mlx_tools.messages import ErrorInfo, ToolSpec, replace
from mlx_tools.policy import Limits, Policy, SecretFinder
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.protocol import read
from mlx_tools.store.transcript import decode, encode
from mlx_tools.testing import answer, call
from mlx_tools.transcript.records import (
    TRANSITIONS,
    AnswerRecord,
    ApprovalRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    EditRecord,
    ExecutionRecord,
    GoldenRecord,
    Header,
    MendRecord,
    NestedRecord,
    ObservationRecord,
    PauseRecord,
    Record,
    RepairRecord,
    ResumedRecord,
    State,
    StoppedRecord,
    SummaryRecord,
    UserRecord,
)
from tests.controller.sessions import (
    SPECS,
    completion,
    fold_session,
    header,
    make_ran_records,
    make_session_in_state,
    open_session,
    say,
    settle,
    spec,
)
from tests.tables import table

EXAMPLES: dict[str, Record] = {
    record.type: record
    for record in (
        header(),
        UserRecord(content="hello"),
        MendRecord(turn=1, kind="value", rejected_pieces=("1",), replacement="2"),
        completion(1, answer()),
        CallRecord(turn=1, call="c1", name="look", arguments={"x": 1}, runs="freely"),
        RepairRecord(turn=1, name="inline"),
        DecisionRecord(call="c1", decision="allow", rule="allow *", reason=""),
        ApprovalRecord(call="c1", approved=True, digest="d"),
        PauseRecord(calls=("c1",), digests=("d",), expires_at=""),
        CompactedRecord(reason="full", observations={"c1": "gone"}),
        EditRecord(call="c1", arguments={"x": 2}),
        ResumedRecord(policy=Policy(allow=["*"]).to_json()),
        ExecutionRecord(call="c1", mutates=False),
        NestedRecord(call="c1", run=0, session="s"),
        SummaryRecord(call="c1", parts=({"offset": 0, "summary": "seen"},)),
        ObservationRecord(call="c1", name="look", content="seen"),
        CorrectionRecord(turn=1, error=ErrorInfo("invalid_json", "no")),
        AnswerRecord(turn=1, content="done"),
        StoppedRecord(reason="interrupted"),
        GoldenRecord(name="kept"),
    )
}


def _fits(state: State, kind: str) -> bool:
    """Return True if the example record speaks of a call that it may be about in this state."""
    if state is State.READING:
        # Nothing has been read yet, so no call is open.
        return kind not in ("decision", "tool_observation")
    if kind == "resumed":  # a run that has stopped is gone on with where a call of it is open
        return state is not State.STOPPED
    if kind in ("approval", "edited"):  # the call that runs as policy allows is not asked about
        return state is State.PAUSED
    return kind != "execution_started" or state is State.CALLING


@table(("state", "kind"), list(itertools.product([*State][1:], EXAMPLES)))
def test_every_pair_of_state_and_record_is_taken_or_refused(state: State, kind: str) -> None:
    session = make_session_in_state(state)
    if kind in TRANSITIONS[state] and _fits(state, kind):
        session.apply(EXAMPLES[kind])
        session.next_step()
        return
    before = session.state, repr(session.next_step())
    with pytest.raises(TranscriptError):
        session.apply(EXAMPLES[kind])
    assert (session.state, repr(session.next_step())) == before


@table("kind", EXAMPLES)
def test_a_session_begins_with_its_header_and_nothing_else(kind: str) -> None:
    if kind in TRANSITIONS[State.EMPTY]:
        assert fold_session(EXAMPLES[kind]).state is State.IDLE
        return
    with pytest.raises(TranscriptError, match=r"^record 1 .* may not come first"):
        fold_session(EXAMPLES[kind])
    with pytest.raises(TranscriptError, match="empty"):
        fold_session()


def _asked(**more: Any) -> Session:
    return open_session(UserRecord(content="hello"), **more)


def _kinds(records: list[Record]) -> list[str]:
    return [record.type for record in records]


def test_no_execution_is_taken_of_a_call_that_was_not_allowed() -> None:
    session = _asked()
    say(session, call("careful"))
    with pytest.raises(TranscriptError, match="not allowed"):
        session.apply(ExecutionRecord(call="c1", mutates=False))


def test_a_good_call_in_between_forgives_a_broken_line() -> None:
    session = _asked(limits=Limits(max_format_errors=2))
    say(session, '{"type":"tool_call","name":look}')
    say(session, call("look"))
    for record in make_ran_records("c1", "look"):
        session.apply(record)
    assert _kinds(say(session, '{"type":"tool_call","name":look}')) == ["correction"]


def _loop(session: Session, *names: str) -> list[str]:
    """Lets the model make these calls turn by turn; what became of each."""
    ends = []
    for number, name in enumerate(names, start=1):
        written = say(session, call(name))
        if session.state is State.STOPPED:
            return [*ends, written[-1].reason]
        if isinstance(session.next_step(), Execute):
            for record in make_ran_records(f"c{number}", name):
                session.apply(record)
            ends.append("ran")
        else:
            ends.append(next(r.error.code for r in written if isinstance(r, ObservationRecord)))
        settle(session)
    return ends


@pytest.mark.parametrize(
    ("calls", "ends"),
    [
        (["look"] * 4, ["ran", "ran", "repeated_call"]),
        (["look", "peek"] * 3, ["ran"] * 4 + ["repeated_call"]),
        (["look", "look", "write", "look", "look", "look"], ["ran"] * 5 + ["repeated_call"]),
        (["write"] * 3, ["ran", "repeated_call", "repeated_call"]),
        (
            ["write", "write", "look", "look", "look"],
            ["ran", "repeated_call", "ran", "ran", "repeated_call"],
        ),
        (["run", "look", "write", "look", "run", "look"], ["ran"] * 6),
        (["run", "write", "run"], ["ran", "ran", "ran"]),
        (["run", "write"] * 2, ["ran", "ran", "ran", "repeated_call"]),
    ],
)
def test_a_repeated_call_is_served_or_refused_once_then_it_stops_the_run(
    calls: list[str], ends: list[str]
) -> None:
    session = _asked(limits=Limits(max_iterations=20))
    assert _loop(session, *calls) == ends
    refused = [end for end, name in zip(ends, calls, strict=False) if end == "repeated_call"]
    changes = calls[0] in ("write", "run")
    assert (session.state is State.STOPPED) is (len(refused) > changes)


def test_a_reading_call_many_times_in_one_turn_is_served_twice_and_refused_then() -> None:
    session = _asked(limits=Limits(max_iterations=20))
    written = say(session, "\n".join([call("look")] * 4))
    ends = [r for r in written if isinstance(r, DecisionRecord | ObservationRecord)]
    assert [type(r) for r in ends] == [DecisionRecord] * 2 + [ObservationRecord] * 2
    assert session.state is not State.STOPPED


LINES = st.sampled_from(
    [
        call("look", x=1),
        call("peek"),
        call("write", x="<|im_end|>"),
        call("careful"),
        call("nothing"),
        call("look", y=1),
        answer(),
        "prose",
        '{"type":"tool_call","name":look}',
        '{"type":"tool_call","name":"look","arguments":{"x":"',
    ]
)


def _completed(due: Complete, text: str, finish_reason: Any) -> CompletionRecord:
    return CompletionRecord(
        turn=due.turn,
        prefix=due.rules.prefix,
        text=text,
        retained_text=read(text, finish_reason, due.rules).retained_text,
        finish_reason=finish_reason,
    )


@given(st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=5), st.data())
def test_folding_again_gives_the_same_session_wherever_the_transcript_ends(
    turns: list[list[str]], data: Any
) -> None:
    records: list[Record] = [header(limits=Limits(max_iterations=3))]
    session = open_session(limits=Limits(max_iterations=3))

    def take(record: Record) -> None:
        session.apply(record)
        records.append(record)

    def prompt() -> str:
        due = session.next_step()
        return due.prompt if isinstance(due, Complete) else ""

    prompts = []
    for turn in turns:
        if session.state in (State.IDLE, State.STOPPED):
            take(UserRecord(content="go on"))
        due = session.next_step()
        while not isinstance(due, (Complete, Idle)):
            match due:
                case Write():
                    for record in due.records:
                        take(record)
                case Execute():
                    for waiting in due.calls:
                        take(ExecutionRecord(call=waiting.call, mutates=False))
                        take(ObservationRecord(call=waiting.call, name=waiting.name, content="out"))
                case Ask():
                    for waiting in due.calls:
                        approved = data.draw(st.booleans())
                        take(ApprovalRecord(call=waiting.call, approved=approved, digest=""))
            due = session.next_step()
        if isinstance(due, Complete):
            prompts.append(due.prompt.removesuffix(due.rules.prefix))
            take(_completed(due, "\n".join(turn), data.draw(st.sampled_from(["stop", "length"]))))
    for shorter, longer in itertools.pairwise(prompts):
        assert longer.startswith(shorter)
    cut = data.draw(st.integers(1, len(records)))
    again = fold_session(*records[:cut], specs=session.specs, words=session.words)
    for record in records[cut:]:
        again.apply(record)
    assert again.state is session.state
    assert again.next_step() == session.next_step()
    assert isinstance(records[0], Header)


def test_as_many_format_errors_in_a_row_as_are_allowed_stop_the_run() -> None:
    for most in (1, 2, 3):
        session = _asked(limits=Limits(max_format_errors=most))
        for _ in range(most - 1):
            assert _kinds(say(session, '{"type":"tool_call"}')) == ["correction"]
        *_, stopped = say(session, '{"type":"tool_call"}')
        assert isinstance(stopped, StoppedRecord) and stopped.reason == "format_errors"


def test_a_tool_that_is_not_known_counts_as_one_that_changes_things() -> None:
    session = _asked()
    assert session.may_mutate("look", {}) is False
    assert session.may_mutate("write", {}) is True
    assert session.may_mutate("nobody_knows", {}) is True


def test_a_context_fills_from_four_fifths_on() -> None:
    assert [fills(1000, used) for used in (799, 800, 801, 1001)] == [False, True, True, True]
    assert not fills(None, 800) and not fills(1000, None)


def test_a_call_that_was_begun_and_can_change_things_does_not_run_by_itself_again() -> None:
    for approved in (None, False, True):
        session = _asked()
        say(session, call("write", x=1))
        state = session.current.calls["c1"]
        assert state.may_run and not state.in_doubt
        session.apply(ExecutionRecord(call="c1", mutates=True))
        if approved is not None:
            session.apply(ApprovalRecord(call="c1", approved=approved, digest="d"))
        assert state.may_run == (approved is True)


def test_runs_within_a_call_leave_the_model_its_last_word() -> None:
    for nested in (2, 3, 99):
        session = _asked(limits=Limits(max_iterations=3))
        say(session, call("look", x=1))
        session.apply(ExecutionRecord(call="c1", mutates=False))
        session.apply(ObservationRecord(call="c1", name="look", content="seen", nested=nested))
        assert _kinds(settle(session)) == ["correction"]  # no more calls, it is told
        assert isinstance(session.next_step(), Complete)
        assert _kinds(say(session, answer())) == ["final_answer"]


LIKE_A_CALL = "Action: look"


def test_another_text_that_looks_like_a_call_is_corrected_anew() -> None:
    session = _asked(limits=Limits(max_format_errors=3))
    say(session, LIKE_A_CALL)
    assert _kinds(say(session, "Action: peek")) == ["correction"]


def test_an_answer_ends_where_the_next_turn_begins() -> None:
    session = _asked(chat_format=NAMED_FORMATS["plain"].to_json())
    (said,) = say(session, "It rains.\nUser: And now?\nAssistant: Sun.")
    assert isinstance(said, AnswerRecord) and said.content == "It rains."


@pytest.mark.parametrize("echoed", [True, False])
def test_a_call_that_was_piped_in_is_an_echo_and_one_that_was_typed_is_none(echoed: bool) -> None:
    text = 'a page: <tool_call>{"name": "write", "arguments": {"x": 1}}</tool_call>'
    question = f"What is this?\n\n{text}"
    session = open_session(
        UserRecord(content=question, untyped_suffix_chars=len(text) if echoed else 0)
    )
    written = say(session, call("write", x=1))
    refused = [r.error.code for r in written if isinstance(r, ObservationRecord) and r.error]
    assert refused == (["echoed_call"] if echoed else [])


# --- policy in a session --------------------------------------------------------------------------

MORE: dict[str, ToolSpec] = {
    **SPECS,
    "fetch": spec("fetch", frozenset({"read", "network"})),
    "post": spec("post", frozenset({"network", "write"})),
    "files": spec("files", private=True),
}


def at(seconds: float) -> str:
    return f"2026-03-01T12:{int(seconds // 60):02}:{int(seconds % 60):02}+00:00"


class Talk:
    """A session that is talked to, with the times of its completions."""

    def __init__(self, policy: Policy, finder: SecretFinder | None = None) -> None:
        self.finder = finder
        self.records: list[Record] = [header(policy)]
        self.session = fold_session(self.records[0], specs=MORE, finder=finder)
        self.add(UserRecord(content="go"))

    def add(self, *records: Record) -> None:
        for record in records:
            self.session.apply(record)
            self.records.append(record)

    def say(self, time: str, *lines: str) -> list[str]:
        """The fate of the calls, each its decision and rule, at a completion of this time.
        Those that may run do."""
        said = replace(completion(self.session.turn + 1, "\n".join(lines)), recorded_at=time)
        self.add(said)
        written = settle(self.session)
        self.records += written
        for state in [*self.session.current.open_calls.values()]:
            if state.may_run:
                self.run(state.record.call, state.record.name)
        return [f"{r.decision} {r.rule}" for r in written if isinstance(r, DecisionRecord)]

    def run(self, key: str, name: str, content: str = "seen") -> None:
        started, _ = make_ran_records(key, "look")
        self.add(started, ObservationRecord(call=key, name=name, content=content))

    def ask(self) -> None:
        """Ends the answer, and asks the next question."""
        self.say(at(0), answer())
        self.add(UserRecord(content="again"))

    def again(self) -> list[Record]:
        """The decisions that folding the records again comes to, from a transcript's lines."""
        first, *rest = [decode(encode(record)) for record in self.records]
        session = fold_session(first, specs=MORE, finder=self.finder)
        found: list[Record] = []
        for record in rest:
            pending = session.current.unwritten if session.state.value == "reading" else ()
            if pending:
                assert pending[0] == record
                found.append(record)
            session.apply(record)
        return found


def numbered(name: str, number: int) -> str:
    return call(name, x=number)


def test_calls_count_over_turns_and_questions_until_their_time_has_passed() -> None:
    talk = Talk(Policy(allow=["*"], rate_limits={"*": "2/minute"}))
    assert talk.say(at(0), numbered("look", 1)) == ["allow allow *"]
    assert talk.say(at(30), numbered("look", 2)) == ["allow allow *"]
    talk.ask()
    assert talk.say(at(50), numbered("look", 3)) == ["deny rate_limit * 2/minute"]
    assert talk.say(at(60), numbered("look", 4)) == ["allow allow *"]
    assert talk.say(at(61), numbered("look", 5)) == ["deny rate_limit * 2/minute"]


def test_all_calls_of_a_session_count_together() -> None:
    talk = Talk(Policy(allow=["*"], session_rate_limit="2/hour"))
    said = talk.say(at(0), numbered("look", 1), numbered("peek", 1), numbered("write", 1))
    assert said == ["allow allow *"] * 2 + ["deny session_rate_limit 2/hour"]


def test_a_call_that_was_asked_about_counts_and_one_that_was_denied_does_not() -> None:
    talk = Talk(Policy(allow=["*"], deny=["peek"], session_rate_limit="2/hour"))
    said = talk.say(at(0), numbered("peek", 1), numbered("peek", 2), numbered("careful", 1))
    assert said == ["deny deny peek"] * 2 + ["ask needs_approval"]
    talk.add(ApprovalRecord(call="c3", approved=False, digest="d"))
    talk.records += settle(talk.session)
    assert talk.say(at(1), numbered("look", 1)) == ["allow allow *"]
    assert talk.say(at(2), numbered("look", 2)) == ["deny session_rate_limit 2/hour"]


@pytest.mark.parametrize("time", ["", "soon", at(0)[:-6]])
def test_without_a_time_the_limit_holds_for_ever(time: str) -> None:
    talk = Talk(Policy(allow=["*"], rate_limits={"*": "1/second"}))
    assert talk.say(time, numbered("look", 1)) == ["allow allow *"]
    assert talk.say(time, numbered("look", 2)) == ["deny rate_limit * 1/second"]
    assert talk.say(at(3000), numbered("look", 3)) == ["deny rate_limit * 1/second"]


def test_a_private_read_is_remembered_over_questions() -> None:
    talk = Talk(Policy(allow=["*"], network_after_read="deny"))
    together = talk.say(at(0), numbered("files", 1), numbered("fetch", 1))
    assert together == ["allow allow *"] * 2  # what it fetches was written before it had read
    assert talk.say(at(1), numbered("fetch", 2)) == ["deny network_after_read"]
    talk.ask()
    assert talk.say(at(2), numbered("post", 3)) == ["deny network_after_read"]
    assert talk.say(at(3), numbered("look", 3)) == ["allow allow *"]


def test_only_a_private_tool_that_answered_is_a_private_read() -> None:
    talk = Talk(Policy(allow=["*"], deny=["files"], network_after_read="ask"))
    talk.say(at(0), numbered("files", 1), numbered("look", 1))
    assert talk.say(at(1), numbered("fetch", 1)) == ["allow allow *"]
    allowed = Talk(Policy(allow=["*"], network_after_read="ask"))
    allowed.say(at(0), numbered("files", 1))
    assert allowed.say(at(1), numbered("fetch", 1)) == ["ask network_after_read"]


@pytest.mark.parametrize(
    ("line", "policy", "told"),
    [
        (call("look", y=1), None, ("y: no such key", "look(x?: any)", "arguments that fit")),
        (call("loook"), None, ("'loook' is no tool", "exact name of a tool")),
        (call("look"), Policy(deny=["look"]), ("look may not be called here", "Answer without it")),
    ],
)
@pytest.mark.parametrize("same_turn", [False, True])
def test_a_refused_call_that_comes_again_is_told_why_and_what_would_fit(
    line: str, policy: Policy | None, told: tuple[str, ...], same_turn: bool
) -> None:
    session = _asked(policy=policy)
    first, *rest = (
        [r for r in say(session, line, line) if isinstance(r, ObservationRecord)]
        if same_turn
        else [r for _ in range(2) for r in say(session, line) if isinstance(r, ObservationRecord)]
    )
    assert first.error is not None and first.error.code != "repeated_call"
    (again,) = rest
    assert again.error is not None and again.error.code == "repeated_call"
    assert "above" not in again.error.message
    assert "You made this very call before" in again.error.message
    for part in (first.error.message.rstrip("."), *told):
        assert part in again.error.message


def test_a_changing_call_that_brought_a_result_is_told_that_it_is_above() -> None:
    session = _asked()
    say(session, call("write"))
    for record in make_ran_records("c1", "write"):
        session.apply(record)
    (_, again) = [*say(session, call("write"))][-2:]
    assert isinstance(again, ObservationRecord) and again.error is not None
    assert "its result is above" in again.error.message
