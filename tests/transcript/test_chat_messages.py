"""The messages of a run go out in OpenAI's form, and come in again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import (
    Answered,
    ApprovalAnswer,
    ApprovalRequest,
    Controller,
    Outcome,
    Paused,
    Policy,
    Stopped,
    UsageError,
    tool,
)
from mlx_tools.controller import prior_from_messages
from mlx_tools.controller.approver import DecideFunction
from mlx_tools.store.transcript import load
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.transcript import CallRecord
from mlx_tools.transcript.chat_messages import chat_messages
from tests.tables import table

ROOT = Path(__file__).resolve().parents[2]


@tool(effects={"read"})
def look(what: str) -> str:
    """Looks at something."""
    if what == "nothing":
        raise LookupError("there is nothing")
    return f"seen {what}"


@tool(effects={"write"})
def send(text: str) -> str:
    """Sends a text."""
    return f"sent {text}"


def controller(*script: str, approver: DecideFunction | None = None) -> Controller:
    policy = Policy(allow=["look", "send"])
    return Controller(ScriptedBackend(*script), [look, send], policy, approver=approver)


def prompts(one: Controller) -> list[str]:
    assert isinstance(one.backend, ScriptedBackend)
    return one.backend.prompts


def called(message: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Return the id, name and arguments of each call of a message."""
    return [
        (one["id"], one["function"]["name"], json.loads(one["function"]["arguments"]))
        for one in message["tool_calls"]
    ]


def test_a_run_gives_the_messages_of_user_assistant_and_tools() -> None:
    both = f"{call('look', what='a')}\n{call('look', what='b')}"
    outcome = controller(both, call("look", what="é"), answer("Done.")).run_sync("What is there?")
    question, first, *results, second, third, last = outcome.messages()
    assert question == {"role": "user", "content": "What is there?"}
    assert (first["role"], first["content"]) == ("assistant", None)
    assert called(first) == [("c1", "look", {"what": "a"}), ("c2", "look", {"what": "b"})]
    assert results == [
        {"role": "tool", "tool_call_id": "c1", "content": "seen a"},
        {"role": "tool", "tool_call_id": "c2", "content": "seen b"},
    ]
    assert called(second) == [("c3", "look", {"what": "é"})]
    assert (third["tool_call_id"], third["content"]) == ("c3", "seen é")
    assert last == {"role": "assistant", "content": "Done."}
    assert [one.id for one in outcome.calls] == ["c1", "c2", "c3"]


def test_a_turn_that_could_not_be_read_is_left_out_and_a_failed_call_says_why() -> None:
    outcome = controller('{"type": "tool_call"', call("look", what="nothing"), answer()).run_sync(
        "What is there?"
    )
    roles = [message["role"] for message in outcome.messages()]
    assert roles == ["user", "assistant", "tool", "assistant"]
    error = json.loads(outcome.messages()[2]["content"])["error"]
    assert error["code"] == "tool_error" and "there is nothing" in error["message"]


def test_a_call_that_waits_has_no_result_until_the_run_goes_on() -> None:
    one = controller(call("send", text="hello"), answer("It is sent."))
    paused = one.run_sync("Say hello.")
    assert isinstance(paused, Paused)
    assert [message["role"] for message in paused.messages()] == ["user", "assistant"]
    resumed = anyio.run(lambda: one.resume(paused.session, approvals=True))
    assert [message["role"] for message in resumed.messages()] == [
        *("user", "assistant", "tool", "assistant")
    ]


def test_a_run_that_stopped_gives_the_messages_so_far() -> None:
    outcome = controller(*[call("look", what="a")] * 4).run_sync("What is there?")
    assert isinstance(outcome, Stopped)
    messages = outcome.messages()
    assert messages[0] == {"role": "user", "content": "What is there?"}
    assert messages[-1]["tool_calls"] and messages[-2]["role"] == "tool"  # nothing came of it
    assert isinstance(controller(answer()).run_sync("And?", history=messages), Answered)


def test_messages_of_a_run_are_the_history_of_the_next() -> None:
    first = controller(call("look", what="a"), answer("An a.")).run_sync("What is there?")
    second = controller(call("look", what="b"), answer("A b."))
    outcome = second.run_sync("And now?", history=first.messages())
    assert isinstance(outcome, Answered)
    prompt = prompts(second)[0]
    texts = ("What is there?", '"name":"look"', "seen a", "An a.", "And now?")
    places = [prompt.rindex(text) for text in texts]
    assert places == sorted(places)
    third = controller(answer("Both."))
    history = [*first.messages(), *outcome.messages()]
    assert isinstance(third.run_sync("Which?", history=history), Answered)
    assert all(text in prompts(third)[0] for text in ("seen a", "seen b", "An a.", "A b."))


def test_messages_of_every_golden_transcript_are_a_history() -> None:
    transcripts = sorted((ROOT / "golden_transcripts").rglob("*.jsonl"))
    assert len(transcripts) > 100
    for path in transcripts:
        messages = chat_messages(load(path))
        calls = {one["id"] for message in messages for one in message.get("tool_calls", ())}
        results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert len(results) == len(set(results)) and calls.issuperset(results), path
        said = prior_from_messages(messages).records
        assert sum(isinstance(one, CallRecord) for one in said) == len(calls), path


def test_a_message_may_be_in_parts_and_a_developers_is_the_systems() -> None:
    one = controller(answer())
    history = [
        {"role": "developer", "content": "Speak like a sailor."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Ahoy!"}, {"type": "text", "text": "Land?"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Aye."}]},
    ]
    one.run_sync("And now?", history=history)
    (prompt,) = prompts(one)
    assert prompt.startswith("Speak like a sailor.")
    assert "Ahoy!\nLand?" in prompt and "Aye." in prompt


@pytest.mark.parametrize(
    "content",
    [[{"type": "text"}], [{"type": "input_audio", "text": "a"}], ["text"], [None], 3, {"a": 1}],
)
def test_content_that_is_no_text_is_an_error_that_says_what_messages_are(content: Any) -> None:
    one = controller(answer())
    with pytest.raises(UsageError, match="earlier message") as caught:
        one.run_sync("And now?", history=[{"role": "user", "content": content}])
    assert "parts" in caught.value.hint
    with pytest.raises(UsageError, match="earlier message"):
        one.run_sync("And now?", history=[{"role": ["user"], "content": "Hi."}])


ASKED = {"role": "user", "content": "Hi."}
CALLED = {"role": "assistant", "tool_calls": [{"function": {"name": "send", "arguments": "["}}]}


@table(
    "bad",
    [{"role": "king", "content": "x"}, {"role": "tool", "content": "x"}, CALLED, {"role": "user"}],
)
def test_a_message_that_is_not_usable_is_named_by_its_place(bad: Any) -> None:
    with pytest.raises(UsageError, match=r"^history\[1\]: an earlier message") as caught:
        controller(answer()).run_sync("And now?", history=[ASKED, bad, ASKED])
    assert "tool_call_id" in caught.value.hint


# --- a function as the approver ---


def sent(approver: Any) -> Outcome:
    one = controller(call("send", text="hello"), answer("done"), approver=approver)
    return one.run_sync("Say hello.")


def test_a_function_may_be_the_approver() -> None:
    asked: list[ApprovalRequest] = []

    def decide(request: ApprovalRequest) -> bool:
        asked.append(request)
        return request.arguments["text"] == "hello"

    assert sent(decide).calls[0].status == "ok"
    assert [request.name for request in asked] == ["send"]

    async def refuse(request: ApprovalRequest) -> ApprovalAnswer:
        return ApprovalAnswer(False, "not before noon")

    assert sent(refuse).calls[0].status == "denied"
    assert isinstance(sent(lambda request: None), Paused)


def test_a_function_that_gives_no_decision_is_an_error_and_nothing_runs() -> None:
    def fail(request: ApprovalRequest) -> bool:
        raise LookupError("no such user")

    with pytest.raises(UsageError, match="the approver <lambda> answered 'yes'") as caught:
        sent(lambda request: "yes")
    assert caught.value.hint == "return True, False, None to pause, or an ApprovalAnswer"
    with pytest.raises(UsageError, match="the approver fail failed: LookupError: no such user"):
        sent(fail)
