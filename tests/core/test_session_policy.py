"""What a session has done decides about its next calls: rates, private reads, consents, secrets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlx_tools.controller import Session
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import Policy, SecretFinder
from mlx_tools.store import load_words
from mlx_tools.store.transcript import decode, encode
from mlx_tools.testing import answer, call
from mlx_tools.transcript.records import (
    ApprovalRecord,
    DecisionRecord,
    ObservationRecord,
    Record,
    UserRecord,
)
from tests.core.sessions import SPECS, completion, header, ran, settle, spec

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
        self.records: list[Record] = []
        self.session = Session([], specs=MORE, words=load_words(), finder=finder)
        self.add(header(policy), UserRecord(content="go"))

    def add(self, *records: Record) -> None:
        for record in records:
            self.session.apply(record)
            self.records.append(record)

    def say(self, time: str, *lines: str) -> list[str]:
        """What became of the calls, each its decision and rule, at a completion of this time.
        Those that may run do."""
        said = replace(completion(self.session.turn + 1, "\n".join(lines)), at=time)
        self.add(said)
        written = settle(self.session)
        self.records += written
        for state in [*self.session.current.open_calls.values()]:
            if state.may_run:
                self.run(state.record.call, state.record.name)
        return [f"{r.decision} {r.rule}" for r in written if isinstance(r, DecisionRecord)]

    def run(self, key: str, name: str, content: str = "seen") -> None:
        started, _ = ran(key, "look")
        self.add(started, ObservationRecord(call=key, name=name, content=content))

    def ask(self) -> None:
        """Ends the answer, and asks the next question."""
        self.say(at(0), answer())
        self.add(UserRecord(content="again"))

    def again(self) -> list[Record]:
        """The decisions that folding the records again comes to, from a transcript's lines."""
        session = Session([], specs=MORE, words=load_words(), finder=self.finder)
        found: list[Record] = []
        for line in map(encode, self.records):
            record = decode(line)
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


def test_a_consent_for_the_session_answers_later_questions() -> None:
    talk = Talk(Policy(allow=["*"], ask=["write"]))
    spec = talk.session.specs["write"]
    yes = ApprovalRecord(
        call="c0", approved=True, digest="", tool=spec.digest(), effects=("write",)
    )
    talk.session.history.consents["write"] = yes
    assert talk.say(at(0), numbered("write", 1)) == ["allow session_consent"]
    assert talk.say(at(1), numbered("careful", 1)) == ["ask needs_approval"]
