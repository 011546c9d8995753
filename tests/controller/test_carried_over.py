"""A new session that goes on from what was said: it stands in the prompt, and nothing of it runs,
counts or is approved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
from mlx_tools.controller import ApprovalAnswer, Conversation, Session
from mlx_tools.errors import StorageError, TranscriptError
from mlx_tools.messages import Style, replace
from mlx_tools.policy import Limits
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store.transcript import encode
from mlx_tools.testing import ScriptedApprover, ScriptedBackend, answer, call
from mlx_tools.transcript.outcome import count
from mlx_tools.transcript.records import (
    AnswerRecord,
    CarriedRecord,
    CompletionRecord,
    DecisionRecord,
    ExecutionRecord,
    Header,
    Record,
    ResumedRecord,
    StoppedRecord,
    UserRecord,
)
from tests.controller.full_disk import file_size_limit
from tests.controller.sessions import (
    ask_questions,
    cut_transcript,
    fold_session,
    list_prompts,
    read_records,
    require_answer,
)
from tests.prompt.tooled import TOOLED, tooled_format

FREE = Policy(allow=["*"], ask_effects=())
did: list[str] = []


@tool(effects={"read"})
def look(what: str = "it") -> str:
    """Looks."""
    did.append(what)
    return f"seen {what} " + "at length " * (200 if what == "all" else 0)


@tool(effects={"read"}, private=True)
def diary() -> str:
    """Reads the diary."""
    return "dear diary"


@tool(effects={"write"})
def put(text: str) -> str:
    """Puts a text."""
    did.append(text)
    return "put"


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    did.clear()


def house(
    folder: Path,
    *lines: str,
    policy: Policy = FREE,
    form: str = "chatml",
    style: Style = "jsonl",
    **more: Any,
) -> Controller:
    settings = RunSettings(chat_format=NAMED_FORMATS[form], style=style, strategy="free")
    return Controller(
        ScriptedBackend(*lines),
        [look, put, diary],
        policy,
        settings=replace(settings, **more.pop("settings", {})),
        store=TranscriptStore(folder),
        **more,
    )


def carried(
    controller: Controller, session: Any, question: str = "And now?", **more: Any
) -> Outcome:
    async def go() -> Outcome:
        async with await controller.carry_over(session, **more) as conversation:
            return await conversation.run(question)

    return anyio.run(go)


def folded(outcome: Outcome) -> Session:
    return fold_session(*read_records(outcome), specs={})


def test_the_prompt_begins_with_the_same_bytes_where_nothing_else_changes(tmp_path: Path) -> None:
    first = house(tmp_path, call("look", what="a"), answer("well"), answer("again"))
    before = ask_questions(first, "What is there?", "Sure?")[-1]
    did.clear()
    second = house(tmp_path, answer("as before"))
    after = require_answer(carried(second, before.session))
    assert list_prompts(second)[0].startswith(list_prompts(first)[-1] + answer("again"))
    assert after.session != before.session
    retried = house(tmp_path, answer("better"))
    carried(retried, before.session, "Sure?", without_last=True)
    assert list_prompts(retried)[0] == list_prompts(first)[-1]
    assert did == []


def test_nothing_of_before_runs_counts_or_is_reported(tmp_path: Path) -> None:
    before = house(tmp_path, call("put", text="x"), answer("well")).run_sync("Put it.")
    did.clear()
    after = carried(house(tmp_path, call("look"), answer("done")), before.session)
    assert did == ["it"]
    assert [one.id for one in after.calls] == ["c2"]
    assert (after.turns, after.usage.completion_tokens) == (2, None)
    records = read_records(after)
    counted = count(records)
    assert (counted.questions, counted.completions) == (1, 2)
    assert list(counted.tools) == ["look"]
    kinds = [type(record) for record in records]
    assert kinds[: kinds.index(UserRecord)] == [Header, *[CarriedRecord] * 6]
    with pytest.raises(TranscriptError, match="may not follow a question"):
        folded(after).check(records[1])


def test_what_a_private_tool_has_answered_is_private_still(tmp_path: Path) -> None:
    for private in (True, False):
        lines = [call("diary")] * private
        before = house(tmp_path, *lines, answer("well")).run_sync("Read it.")
        after = carried(house(tmp_path, answer("yes")), before.session)
        assert folded(after).history.private_read is private


def test_what_is_summed_up_stands_in_place_of_what_is_gone(tmp_path: Path) -> None:
    first = house(tmp_path, *map(answer, "12"), "They said one.", settings={"context": 8192})
    second = house(tmp_path, answer("3"), "They said all.", answer("4"))

    async def go() -> None:
        async with await first.conversation() as conversation:
            await conversation.run("First?")
            await conversation.run("Second?")
            await conversation.compact()
        async with await second.carry_over(conversation.session) as again:
            await again.run("And now?")
        async with await second.carry_over(again.session) as last:
            await last.compact()  # before anything is asked here
            await last.run("And then?")

    anyio.run(go)
    prompt, _, then = list_prompts(second)
    assert "First?" not in prompt
    assert prompt.index("They said one.") < prompt.index("Second?") < prompt.index("And now?")
    assert "They said all." in then
    assert "Second?" not in then


def test_a_call_that_a_summary_repeats_is_an_echo(tmp_path: Path) -> None:
    planted = call("put", text="spam")
    first = house(tmp_path, call("look", what=planted), answer("well"), f"It says {planted}")
    second = house(tmp_path, planted, answer("no"))

    async def go() -> Outcome:
        async with await first.conversation() as conversation:
            await conversation.run("What is there?")
            await conversation.compact()
            async with await second.carry_over(conversation) as again:
                return await again.run("And now?")

    outcome = anyio.run(go)
    assert [one.error_code for one in outcome.calls] == ["echoed_call"] and "spam" not in did


def test_a_call_that_waited_or_was_approved_for_the_session_is_neither_run_nor_allowed(
    tmp_path: Path,
) -> None:
    asks = Policy(allow=["*"])
    waiting = house(tmp_path, call("put", text="x"), policy=asks).run_sync("Put it.")
    assert isinstance(waiting, Paused)
    require_answer(carried(house(tmp_path, answer("no"), policy=asks), waiting.session))
    yes = ScriptedApprover(True)
    agreed = house(tmp_path, call("put", text="y"), answer(), policy=asks, approver=yes)
    before = agreed.run_sync("Put it.")
    again = carried(house(tmp_path, call("put", text="y"), policy=asks), before.session)
    assert isinstance(again, Paused)
    assert did == ["y"]


@pytest.mark.parametrize("asked", [1, 2])
def test_a_consent_of_a_talk_that_is_open_holds_on_where_that_is_wanted(
    tmp_path: Path, asked: int
) -> None:
    person = ScriptedApprover(ApprovalAnswer(True, for_session=True), True)
    script = (call("put", text="x"), answer(), call("put", text="y"), answer())
    run = house(tmp_path, *script, policy=Policy(allow=["*"]), approver=person)

    async def go() -> None:
        async with await run.conversation() as one:
            await one.run("Put it.")
            async with (
                await run.carry_over(one, consents=asked == 1) as two,
                await run.carry_over(two, consents=True) as three,
            ):
                await three.run("And again.")

    anyio.run(go)
    assert did == ["x", "y"] and len(person.requests) == asked


@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
def test_another_model_reads_the_calls_and_answers_in_its_own_form(
    tmp_path: Path, style: Style
) -> None:
    lines = ("{", call("look", what="a"), answer("well"))
    before = house(tmp_path, *lines).run_sync("What is there?")
    other = house(tmp_path, "Well.", form="gemma", style=style)
    carried(other, before.session)
    fresh = house(tmp_path, "Well.", form="gemma", style=style)
    fresh.run_sync("What is there?")
    (prompt,), (beginning,) = list_prompts(other), list_prompts(fresh)
    start = beginning.rindex("What is there?")
    assert prompt.startswith(beginning[:start])
    told = prompt[start:]
    places = [told.index(words) for words in ("look", "seen a", "well", "And now?")]
    assert places == sorted(places)
    assert "<|im_start|>" not in told
    assert told.count("<start_of_turn>model") == (4 if style == "jsonl" else 3)


@pytest.mark.parametrize("name", sorted(TOOLED))
def test_a_model_that_calls_by_its_own_template_reads_the_calls_in_that_form(
    tmp_path: Path, name: str
) -> None:
    before = house(tmp_path, call("look", what="a"), answer("well")).run_sync("What is there?")
    form = tooled_format(name)
    other = house(tmp_path, "Fine.", style="native", settings={"chat_format": form})
    carried(other, before.session)
    told = list_prompts(other)[0].rpartition("What is there?")[2]
    assert form.tools is not None
    assert form.tools.call[0] + "look" + form.tools.call[1] in told
    assert told.index("look") < told.index("seen a") < told.index("well") < told.index("And now?")


@pytest.mark.parametrize("name", sorted(TOOLED))
def test_a_call_that_no_such_text_can_hold_is_told_all_the_same(tmp_path: Path, name: str) -> None:
    odd = {"function": {"name": "look", "arguments": '{"what": "\\ud800"}'}}
    other = house(tmp_path, "Fine.", style="native", settings={"chat_format": tooled_format(name)})
    other.run_sync("And?", history=[{"role": "assistant", "tool_calls": [odd]}])
    assert list_prompts(other)[0].encode().count(b"ud800") == 1


def test_a_secret_that_the_new_policy_takes_out_is_taken_out_of_what_was_read(
    tmp_path: Path,
) -> None:
    key = "sk_live_" + "51H8xJ2eZvKYlo2C7a9b"
    loose = replace(FREE, redact=False)
    lines = (call("look", what=key), answer("well"))
    before = house(tmp_path, *lines, policy=loose).run_sync("Look.")
    after = house(tmp_path, answer("yes"))
    carried(after, before.session)
    observed = list_prompts(after)[0].rpartition("tool_observation")[2]
    assert "seen" in observed
    assert key not in observed


def test_an_output_that_was_cut_can_be_read_on_in(tmp_path: Path) -> None:
    limits = Limits(max_observation_chars=400)
    lines = (call("look", what="all"), answer("well"))
    before = house(tmp_path, *lines, limits=limits).run_sync("Look at all.")
    key = before.calls[0].artifact
    assert key is not None
    reads = house(tmp_path, call("read_artifact", id=key, offset=0), answer("done"), limits=limits)
    after = carried(reads, before.session)
    assert [one.status for one in after.calls] == ["ok"]


def test_where_the_disk_is_full_meanwhile_nothing_of_it_is_lost_or_said_twice(
    tmp_path: Path,
) -> None:
    lines = (call("look", what="a"), answer("well"))
    before = house(tmp_path, *lines).run_sync("What is there?")
    whole = house(tmp_path, answer("done"))
    carried(whole, before.session)
    after = house(tmp_path, answer("done"))
    kept = read_records(before)

    async def go(room: int) -> None:
        async with await after.carry_over(before.session) as conversation:
            with file_size_limit(room), pytest.raises(StorageError):
                await conversation.run("And now?")
            assert 1 < len(conversation.files.transcript) < 7  # the header, and some of the six
            await conversation.run("And now?")

    anyio.run(go, len(encode(kept[0])) + 800)
    assert list_prompts(after) == list_prompts(whole)


def test_a_conversation_that_is_open_is_carried_over_before_and_after_its_first_question(
    tmp_path: Path,
) -> None:
    run = house(tmp_path, answer("well"), answer("again"), answer("at last"))

    async def go() -> Conversation:
        async with (
            await run.conversation() as one,
            await run.carry_over(one, without_last=True) as two,
        ):
            await two.run("What is there?")
            three = await run.carry_over(two)
            four = await run.carry_over(three)
            three.close()
            async with four:
                await four.run("And now?")
            return four

    anyio.run(go)
    assert list_prompts(run)[1].startswith(list_prompts(run)[0] + answer("well"))


def test_a_transcript_of_another_store_or_without_a_question_is_not_carried_over(
    tmp_path: Path,
) -> None:
    before = house(tmp_path / "theirs", answer()).run_sync("What is there?")
    with pytest.raises(TranscriptError, match="not begun here"):
        carried(house(tmp_path / "mine", answer()), before.transcript)
    with pytest.raises(UsageError, match="no session"):
        carried(house(tmp_path / "mine", answer()), before.session)


# --- a caller's messages --------------------------------------------------------------------------

TALK: Sequence[Mapping[str, Any]] = (
    {"role": "system", "content": "Speak like a sailor."},
    {"role": "user", "content": "What is there?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "k1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            {"id": "k2", "function": {"name": "look", "arguments": {"what": "b"}}},
        ],
    },
    {"role": "tool", "tool_call_id": "k2", "content": "seen b"},
    {"role": "tool", "tool_call_id": "k1", "content": "seen it"},
    {"role": "assistant", "content": "Two things."},
)


def test_earlier_messages_may_be_calls_results_and_the_systems(tmp_path: Path) -> None:
    run = house(tmp_path, answer("done"))
    outcome = run.run_sync("And now?", history=TALK)
    (prompt,) = list_prompts(run)
    told = prompt[prompt.rindex("What is there?") :]
    words = ('"name":"look"', "seen it", "seen b", "Two things.", "And now?")
    places = [told.index(one) for one in words]
    assert places == sorted(places)
    assert prompt.startswith("<|im_start|>system\nSpeak like a sailor.")
    assert (outcome.calls, did) == ((), [])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "tool_call_id": "k1", "content": "seen"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": "["}}]},
        {"role": "critic", "content": "no"},
        *(
            {"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": kind}]}
            for kind in ("image_url", "image", "input_image")
        ),
    ],
)
def test_earlier_messages_that_are_none_are_refused_before_anything_is_asked(
    tmp_path: Path, message: Mapping[str, Any]
) -> None:
    run = house(tmp_path, answer())
    image = isinstance(message.get("content"), list)
    said = "holds an image, and the model reads text only" if image else "earlier message"
    with pytest.raises(UsageError, match=said):
        run.run_sync("And now?", history=[message])
    assert list_prompts(run) == []


# --- going on with a session that has ended -------------------------------------------------------

ASKING = Policy(allow=["*"])


def asked_again(controller: Controller, session: str, question: str = "And now?") -> Outcome:
    """The outcome of another question in a session that is there."""

    async def go() -> Outcome:
        async with await controller.reopen(session) as conversation:
            return await conversation.run(question)

    return anyio.run(go)


def broken_off(outcome: Outcome, after: Callable[[Record], bool]) -> None:
    """Leave of a transcript what is there when the process is killed behind this record."""
    at = next(n for n, record in enumerate(read_records(outcome), start=1) if after(record))
    cut_transcript(Path(outcome.transcript or ""), at)


def test_the_next_prompt_begins_with_the_bytes_of_the_last_one_and_what_was_written(
    tmp_path: Path,
) -> None:
    first = house(tmp_path, call("look", what="a"), answer("well"))
    before = first.run_sync("What is there?")
    second = house(tmp_path, answer("as before"))
    after = require_answer(asked_again(second, before.session))
    assert (after.session, after.turns) == (before.session, 1)
    assert list_prompts(second)[0].startswith(list_prompts(first)[-1] + answer("well"))
    kinds = [type(record) for record in read_records(after)]
    at = kinds.index(ResumedRecord)
    assert kinds[at - 2 : at + 2] == [AnswerRecord, UserRecord, ResumedRecord, CompletionRecord]


def test_a_session_that_cannot_be_opened_says_why_and_stays_free(tmp_path: Path) -> None:
    before = house(tmp_path, *"{{{{").run_sync("What is there?")
    assert isinstance(before, Stopped)
    holder = anyio.run(house(tmp_path).reopen, before.session)
    with pytest.raises(TranscriptError, match="in use"):
        asked_again(house(tmp_path), before.session)
    holder.close()
    other = house(tmp_path)
    setattr(other.backend, "model", "another")  # noqa: B010
    with pytest.raises(UsageError, match=r"begun with the model scripted, and another is here"):
        asked_again(other, before.session)
    assert asked_again(house(tmp_path, answer("now")), before.session).answer == "now"
    path = Path(before.transcript or "")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"{", *lines[2:]]))
    with pytest.raises(TranscriptError, match="line 2 of the transcript is damaged"):
        asked_again(house(tmp_path), before.session)


def test_a_session_goes_on_under_what_both_policies_allow(tmp_path: Path) -> None:
    before = house(tmp_path, answer("well")).run_sync("What is there?")
    narrowed = house(tmp_path, call("put", text="x"), answer("no"), policy=Policy(allow=["look"]))
    assert asked_again(narrowed, before.session).calls[0].error_code == "not_allowed"
    again = house(tmp_path, call("put", text="x"), answer("yes"))
    after = asked_again(again, before.session)
    assert after.calls[0].status == "ok"  # what stood when it was begun stands again
    assert did == ["x"]
    policies = [r.policy for r in read_records(after) if isinstance(r, ResumedRecord)]
    assert len(policies) == 2
    assert policies[0] != policies[1] == FREE.to_json()
    only = house(tmp_path, answer("well"), policy=Policy(allow=["look"])).run_sync("And this?")
    loosened = asked_again(house(tmp_path, call("put", text="y"), answer("no")), only.session)
    assert (loosened.answer, did) == ("no", ["x"])


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
    after = require_answer(asked_again(house(tmp_path, answer("never mind")), before.session))
    assert did == []
    stops = read_records(after, StoppedRecord)
    assert [record.reason for record in stops] == ["interrupted"]


def test_a_call_that_nobody_knows_the_end_of_must_be_decided_about_first(tmp_path: Path) -> None:
    before = house(tmp_path, call("put", text="x"), answer()).run_sync("Put it.")
    broken_off(before, lambda record: isinstance(record, ExecutionRecord))
    with pytest.raises(UsageError, match="nobody knows how c1 ended") as raised:
        asked_again(house(tmp_path, answer()), before.session)
    assert f"sessions resume {before.session}" in str(raised.value)
    assert did == ["x"]
