"""Going on with a session that has ended: the same bytes, the policy that both allow, one at a
time, and nothing that is open is passed over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from mlx_tools import (
    Answered,
    Controller,
    Outcome,
    Paused,
    Policy,
    RunSettings,
    Stopped,
    TranscriptStore,
    UsageError,
    tool,
)
from mlx_tools.errors import TranscriptError
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store.transcript import load
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.transcript.records import (
    AnswerRecord,
    CompletionRecord,
    DecisionRecord,
    ExecutionRecord,
    Record,
    ResumedRecord,
    StoppedRecord,
    UserRecord,
)
from tests.core.sessions import cut_after

did: list[str] = []


@tool(effects={"read"})
def look(what: str = "it") -> str:
    """Looks."""
    return f"seen {what}"


@tool(effects={"write"})
def put(text: str) -> str:
    """Puts a text."""
    did.append(text)
    return "put"


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    did.clear()


FREE = Policy(allow=["*"], ask_effects=())
ASKING = Policy(allow=["*"])


def house(folder: Path, *lines: str, policy: Policy = FREE) -> Controller:
    """A controller as a process of its own has it."""
    settings = RunSettings(chat_format=NAMED_FORMATS["chatml"])
    store, backend = TranscriptStore(folder), ScriptedBackend(*lines)
    return Controller(backend, [look, put], policy, settings=settings, store=store)


def prompts(controller: Controller) -> list[str]:
    backend = controller.backend
    assert isinstance(backend, ScriptedBackend)
    return backend.prompts


def asked_again(controller: Controller, session: str, question: str = "And now?") -> Outcome:
    """What comes of another question in a session that is there."""

    async def go() -> Outcome:
        async with await controller.reopen(session) as conversation:
            return await conversation.run(question)

    return anyio.run(go)


def records(outcome: Outcome) -> list[Record]:
    return load(Path(outcome.transcript or ""))


def broken_off(outcome: Outcome, after: Callable[[Record], bool]) -> None:
    """Leave of a transcript what is there when the process is killed behind this record."""
    at = next(n for n, record in enumerate(records(outcome), start=1) if after(record))
    cut_after(Path(outcome.transcript or ""), at)


def test_the_next_prompt_begins_with_the_bytes_of_the_last_one_and_what_was_written(
    tmp_path: Path,
) -> None:
    first = house(tmp_path, call("look", what="a"), answer("well"))
    before = first.run_sync("What is there?")
    second = house(tmp_path, answer("as before"))
    after = asked_again(second, before.session)
    assert isinstance(after, Answered)
    assert (after.session, after.turns) == (before.session, 1)
    assert prompts(second)[0].startswith(prompts(first)[-1] + answer("well"))
    kinds = [type(record) for record in records(after)]
    at = kinds.index(ResumedRecord)
    assert kinds[at - 2 : at + 2] == [AnswerRecord, UserRecord, ResumedRecord, CompletionRecord]


def test_a_session_that_stopped_is_gone_on_with(tmp_path: Path) -> None:
    before = house(tmp_path, "{", "{", "{", "{").run_sync("What is there?")
    assert isinstance(before, Stopped)
    after = asked_again(house(tmp_path, answer("now")), before.session)
    assert isinstance(after, Answered)
    assert after.answer == "now"


def test_a_session_goes_on_under_what_both_policies_allow(tmp_path: Path) -> None:
    before = house(tmp_path, answer("well")).run_sync("What is there?")
    narrowed = house(tmp_path, call("put", text="x"), answer("no"), policy=Policy(allow=["look"]))
    assert asked_again(narrowed, before.session).calls[0].error_code == "not_allowed"
    wider = Policy(allow=["*"], ask_effects=())
    again = house(tmp_path, call("put", text="x"), answer("yes"), policy=wider)
    after = asked_again(again, before.session)
    assert after.calls[0].status == "ok"  # what stood when it was begun stands again
    assert did == ["x"]
    policies = [r.policy for r in records(after) if isinstance(r, ResumedRecord)]
    assert len(policies) == 2
    assert policies[0] != policies[1] == FREE.to_json()


def test_a_policy_that_was_loosened_since_loosens_no_session_that_was_begun(tmp_path: Path) -> None:
    only = Policy(allow=["look"])
    before = house(tmp_path, answer("well"), policy=only).run_sync("What is there?")
    after = asked_again(house(tmp_path, call("put", text="x"), answer("no")), before.session)
    assert isinstance(after, Answered)
    assert (after.answer, did) == ("no", [])


def test_a_session_that_another_process_is_at_is_not_opened(tmp_path: Path) -> None:
    before = house(tmp_path, answer()).run_sync("What is there?")
    holder = anyio.run(house(tmp_path).reopen, before.session)
    with pytest.raises(TranscriptError, match="in use"):
        asked_again(house(tmp_path, answer()), before.session)
    holder.close()
    assert isinstance(asked_again(house(tmp_path, answer()), before.session), Answered)


def test_a_session_of_another_model_is_told_with_both_and_stays_free(tmp_path: Path) -> None:
    before = house(tmp_path, answer()).run_sync("What is there?")
    other = house(tmp_path, answer())
    setattr(other.backend, "model", "another")  # noqa: B010
    with pytest.raises(UsageError, match=r"begun with the model scripted, and another is here"):
        asked_again(other, before.session)
    assert isinstance(asked_again(house(tmp_path, answer()), before.session), Answered)


def test_a_session_that_waits_for_an_approval_says_so_and_takes_no_question(
    tmp_path: Path,
) -> None:
    before = house(tmp_path, call("put", text="x"), policy=ASKING).run_sync("Put it.")
    assert isinstance(before, Paused)
    written = Path(before.transcript or "").read_bytes()
    with pytest.raises(UsageError, match="waits for an approval") as raised:
        asked_again(house(tmp_path, answer(), policy=ASKING), before.session)
    assert f"sessions resume {before.session}" in str(raised.value)
    assert Path(before.transcript or "").read_bytes() == written
    asking = partial(house, tmp_path, answer(), policy=ASKING)
    anyio.run(partial(asking().resume, before.session, approvals=True))
    assert isinstance(asked_again(asking(), before.session), Answered)
    assert did == ["x"]


@pytest.mark.parametrize("last", [UserRecord, CompletionRecord, DecisionRecord])
def test_an_answer_that_a_kill_broke_off_is_left_and_the_next_question_taken(
    tmp_path: Path, last: type[Record]
) -> None:
    before = house(tmp_path, call("put", text="x"), answer()).run_sync("Put it.")
    broken_off(before, lambda record: isinstance(record, last))
    did.clear()
    after = asked_again(house(tmp_path, answer("never mind")), before.session)
    assert isinstance(after, Answered)
    assert did == []
    stops = [record for record in records(after) if isinstance(record, StoppedRecord)]
    assert [record.reason for record in stops] == ["interrupted"]


def test_a_call_that_nobody_knows_the_end_of_must_be_decided_about_first(tmp_path: Path) -> None:
    before = house(tmp_path, call("put", text="x"), answer()).run_sync("Put it.")
    broken_off(before, lambda record: isinstance(record, ExecutionRecord))
    with pytest.raises(UsageError, match="nobody knows how c1 ended") as raised:
        asked_again(house(tmp_path, answer()), before.session)
    assert f"sessions resume {before.session}" in str(raised.value)
    assert did == ["x"]


def test_a_session_whose_transcript_is_damaged_says_which_line(tmp_path: Path) -> None:
    before = house(tmp_path, answer()).run_sync("What is there?")
    path = Path(before.transcript or "")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"{", *lines[2:]]))
    with pytest.raises(TranscriptError, match="line 2 of the transcript is damaged"):
        asked_again(house(tmp_path, answer()), before.session)
