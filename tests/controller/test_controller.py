"""The controller: whole runs with a scripted model, through the public interface."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from cProfile import Profile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import (
    Answered,
    Chunk,
    CompletionRequest,
    CompletionsBackend,
    Controller,
    Limits,
    Outcome,
    Policy,
    RunSettings,
    Stopped,
    Tool,
    TranscriptStore,
    UsageError,
    tool,
)
from mlx_tools.errors import BackendBroken, BackendTimeout, BackendUnreachable
from mlx_tools.store.transcript import load
from mlx_tools.testing import Script, ScriptedApprover, ScriptedBackend, answer, call, run, skip
from mlx_tools.transcript import events
from mlx_tools.transcript.records import StoppedRecord
from tests.backends.loopback import Connection, says, serving
from tests.controller.sessions import collect_events, require_answer
from tests.tables import table
from tests.waiting import EXPIRES, until

ALL = Policy(allow=["*"], ask_effects=())


@tool(effects={"read"})
def area(width: float, height: float) -> float:
    """Area of a rectangle in square metres."""
    return width * height


def recorded(calls: list[str], name: str, **options: Any) -> Tool:
    """A tool that notes that it ran."""

    def body(x: str = "") -> str:
        calls.append(x)
        return f"did {x}"

    return tool(body, name=name, **options)


def test_arguments_of_too_many_bytes_reach_no_tool() -> None:
    noted: list[str] = []
    limits = Limits(max_argument_bytes=40)
    backend = ScriptedBackend(call("note", x="\u00e4" * 17), call("note", x="a" * 16), answer())
    outcome = Controller(backend, [recorded(noted, "note")], ALL, limits=limits).run_sync("Note!")
    assert [one.error_code for one in outcome.calls] == ["payload_too_large", None]
    assert noted == ["a" * 16]


def test_each_record_that_has_a_time_gets_that_of_its_writing() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    backend = ScriptedBackend(call("area", width=3.5, height=4), answer("14"))
    outcome = Controller(backend, [area], ALL, now=lambda: moment).run_sync("How large?")
    times = [getattr(record, "recorded_at", None) for record in outcome.records]
    assert [time for time in times if time is not None] == ["2026-01-02T03:04:05.678+00:00"] * 4


def test_a_question_is_answered_through_a_tool() -> None:
    backend = ScriptedBackend(call("area", width=3.5, height=4), answer("14 square metres"))
    outcome = Controller(backend, [area], ALL).run_sync("How large?")
    assert outcome.answer == "14 square metres"
    (made,) = outcome.calls
    assert (made.name, made.status, made.output) == ("area", "ok", "14.0")
    assert '"content":"14.0"' in backend.prompts[1]
    assert backend.prompts[1].startswith(backend.prompts[0])


def test_a_person_approves_one_call_and_refuses_another() -> None:
    calls: list[str] = []
    note = recorded(calls, "note", needs_approval=True)
    backend = ScriptedBackend(call("note", x="1") + "\n" + call("note", x="2"), answer())
    approver = ScriptedApprover(True, False)
    outcome = Controller(backend, [note], ALL, approver=approver).run_sync("Hi")
    assert calls == ["1"]
    assert [c.status for c in outcome.calls] == ["ok", "denied"]
    assert "as scripted" in backend.prompts[1]


def test_time_spent_waiting_for_a_person_does_not_count() -> None:
    class Slow(ScriptedApprover):
        async def decide(self, requests: Any) -> Any:
            await skip(61)
            return await super().decide(requests)

    note = recorded([], "note", needs_approval=True)
    controller = Controller(
        ScriptedBackend(call("note"), answer()),
        [note],
        ALL,
        limits=Limits(total_timeout=60),
        approver=Slow(True),
    )
    assert isinstance(run(controller.run, "Hi"), Answered)


def test_calls_of_one_turn_run_four_at_a_time_and_report_in_order() -> None:
    running, most = set[int](), 0

    @tool(effects={"read"})
    async def meet(x: int) -> str:
        """Is busy until all that may run do."""
        nonlocal most
        running.add(x)
        most = max(most, len(running))
        await until(lambda: most >= 4)
        running.remove(x)
        return f"met {x}"

    backend = ScriptedBackend("\n".join(call("meet", x=x) for x in range(8)), answer())
    outcome = Controller(backend, [meet], ALL).run_sync("Hi")
    met = [f"met {x}" for x in range(8)]
    assert [c.output for c in outcome.calls] == met and most == 4
    places = [backend.prompts[1].index(one) for one in met]
    assert places == sorted(places)


def test_a_run_that_takes_too_long_stops_and_says_so() -> None:
    @tool(effects={"read"})
    async def hang() -> None:
        """Hangs."""
        await skip(61)
        await anyio.sleep_forever()

    limits = Limits(total_timeout=60, tool_timeout=600)
    controller = Controller(ScriptedBackend(call("hang")), [hang], ALL, limits=limits)
    outcome = run(controller.run, "Hi")
    assert outcome.reason == "total_timeout"
    assert outcome.exit_code == 1
    assert outcome.calls[0].error_code == "timeout"


def test_the_stream_is_closed_when_the_message_is_complete() -> None:
    text = answer() + "\n" + call("area", width=1, height=1) + " and on and on" * 100
    backend = ScriptedBackend(Script(text, pieces=7))
    outcome = require_answer(Controller(backend, [area], ALL).run_sync("Hi"))
    assert outcome.calls == ()


def test_a_server_that_stays_silent_after_the_message_holds_nothing_up() -> None:
    class Silent(ScriptedBackend):
        async def complete(self, request: Any) -> Any:
            async for chunk in super().complete(request):
                yield chunk
            await anyio.sleep_forever()

    limits = Limits(total_timeout=120)
    silent = Silent(Script(answer(), None))
    require_answer(Controller(silent, [area], ALL, limits=limits).run_sync("Hi"))


def test_a_backend_that_is_not_there_raises_and_leaves_a_transcript(tmp_path: Path) -> None:
    backend = ScriptedBackend(BackendUnreachable("nobody answers"))
    controller = Controller(backend, store=TranscriptStore(tmp_path))
    with pytest.raises(BackendUnreachable):
        controller.run_sync("Hi")
    (path,) = tmp_path.glob("*/transcript.jsonl")
    last = load(path)[-1]
    assert isinstance(last, StoppedRecord)
    assert last.reason == "backend_error"


def test_a_backend_that_breaks_later_stops_the_run_and_nothing_half_read_runs() -> None:
    calls: list[str] = []

    class Breaking(ScriptedBackend):
        async def complete(self, request: Any) -> Any:
            async for chunk in super().complete(request):
                yield chunk
            raise BackendBroken("the stream broke off")

    half = call("note", x="2")[:-5]
    backend = Breaking(Script(call("note", x="1"), None), Script(half, None))
    controller = Controller(backend, [recorded(calls, "note")], ALL)
    outcome = controller.run_sync("Hi")
    assert (outcome.reason, outcome.exit_code) == ("backend_error", 3)
    assert calls == []


def test_a_flood_of_text_is_closed() -> None:
    sent = []

    class Flood(ScriptedBackend):
        async def complete(self, request: Any) -> Any:
            self.requests.append(request)
            for number in range(10**6):
                sent.append(number)
                yield Chunk("x" * 1000)

    Controller(Flood(), limits=Limits(max_tokens=100)).run_sync("Hi")
    assert len(sent) < 100


def test_a_thought_is_told_as_it_forms_and_kept_apart_from_the_answer() -> None:
    text = f"<think>\nWhy \ud800not?\n</think>\n{answer('two')}"
    seen = collect_events(Controller(ScriptedBackend(Script(text, pieces=9)), [area], ALL))
    thoughts = [e.text for e in seen if isinstance(e, events.ThoughtPiece)]
    assert len(thoughts) > 1 and "".join(thoughts) == "\nWhy \ufffdnot?\n"
    assert "".join(e.text for e in seen if isinstance(e, events.AnswerPiece)) == "two"


PLAIN = {
    "one line": "It rains in Oslo today, as it did yesterday.",
    "paragraphs": "It rains.\n\n- in Oslo\n- in Bergen\n\nTake a coat.",
    "code": "Write this:\n\n```python\nprint(1)\n```\n\nThen run it.",
    "an example of a call": 'An API gets `{"name": "read", "arguments": {}}`. That is all.',
}


@table("text", PLAIN.values())
def test_an_answer_in_plain_text_is_told_as_it_forms(text: str) -> None:
    seen = collect_events(Controller(ScriptedBackend(Script(text, pieces=5)), [area], ALL))
    pieces = [e.text for e in seen if isinstance(e, events.AnswerPiece)]
    assert len(pieces) > 1 and "".join(pieces) == text
    assert isinstance(seen[-1], events.Finished) and seen[-1].outcome.answer == text


def test_text_before_a_call_is_told_as_text_of_its_turn() -> None:
    text = f"I look it up.\n{call('area', width=1, height=2)}"
    backend = ScriptedBackend(Script(text, pieces=5), Script("It is two.", pieces=5))
    seen = collect_events(Controller(backend, [area], ALL))
    pieces = [(e.turn, e.text) for e in seen if isinstance(e, events.AnswerPiece)]
    assert "".join(text for turn, text in pieces if turn == 1) == "I look it up."
    assert "".join(text for turn, text in pieces if turn == 2) == "It is two."
    assert isinstance(seen[-1], events.Finished) and seen[-1].outcome.answer == "It is two."


def test_events_tell_the_whole_story_in_order() -> None:
    backend = ScriptedBackend(
        Script(call("area", width=1, height=2), pieces=5), Script(answer("two"), pieces=3)
    )
    seen = collect_events(Controller(backend, [area], ALL))
    kinds = [type(e).__name__ for e in seen]
    order = ["TurnStarted", "CallOpened", "ArgumentsPiece", "TurnEnded", "CallRead", "CallDecided"]
    order += ["ToolStarted", "ToolEnded", "TurnStarted", "AnswerPiece", "TurnEnded", "Finished"]
    assert list(dict.fromkeys(kinds[: kinds.index("ToolEnded") + 1])) == order[:8]
    pieces = [e.text for e in seen if isinstance(e, events.AnswerPiece)]
    assert "".join(pieces) == "two"
    assert isinstance(seen[-1], events.Finished)
    for event in seen:
        assert json.loads(json.dumps(event.to_json()))["type"]


def test_a_transcript_that_is_read_again_tells_the_same_events(tmp_path: Path) -> None:
    repaired = call("area", width=1, height=2)[:-2] + ",}}"
    two = call("nobody") + "\n" + call("area", width=2, height=2)
    script = ('{"type": "tool_call", "name": ', repaired, two, answer())
    free = RunSettings(strategy="free")
    store = TranscriptStore(tmp_path)
    controller = Controller(ScriptedBackend(*script), [area], ALL, settings=free, store=store)
    live = collect_events(controller)
    (path,) = tmp_path.glob("*/transcript.jsonl")
    records = load(path)
    told = [events.make_event(r, records[: n + 1], records[n + 1 :]) for n, r in enumerate(records)]
    again = [event for event in told if event is not None]
    assert {"turn_ended", "format_broken", "call_read", "call_decided", "tool_started"} <= {
        event.type for event in again
    }
    assert again == [event for event in live if event.type in {one.type for one in again}]


def test_a_stream_that_is_closed_stops_the_run(tmp_path: Path) -> None:
    @tool(effects={"read"})
    async def hang() -> None:
        """Hangs."""
        await anyio.sleep_forever()

    controller = Controller(
        ScriptedBackend(call("hang")), [hang], ALL, store=TranscriptStore(tmp_path)
    )

    async def leave() -> None:
        async with aclosing(controller.stream("Hi")) as stream:
            async for event in stream:
                if isinstance(event, events.ToolStarted):
                    break

    anyio.run(leave)
    (path,) = tmp_path.glob("*/transcript.jsonl")
    last = load(path)[-1]
    assert isinstance(last, StoppedRecord)
    assert last.reason == "interrupted"


def test_a_conversation_goes_on_after_a_turn_that_was_interrupted() -> None:
    backend = ScriptedBackend(call("hang"), answer("still here"))
    interrupted = list[anyio.CancelScope]()

    @tool(effects={"read"})
    async def hang() -> None:
        """Hangs, and is interrupted."""
        interrupted[0].cancel()
        await anyio.sleep_forever()

    async def main() -> tuple[Any, Any]:
        async with await Controller(backend, [hang], ALL).conversation() as conversation:
            with anyio.CancelScope() as scope:
                interrupted.append(scope)
                await conversation.run("one")
            return await conversation.run("two"), conversation

    outcome, _ = anyio.run(main)
    assert outcome.answer == "still here"
    assert backend.prompts[1].startswith(backend.prompts[0])


def test_a_second_question_is_refused_while_the_first_is_answered() -> None:
    refused = list[str]()

    async def main() -> Any:
        @tool(effects={"read"})
        async def ask_again() -> None:
            """Asks the conversation that it is called from."""
            for again in (conversation.run("two"), conversation.decide()):
                with pytest.raises(UsageError, match="is answering a question") as caught:
                    await again
                refused.append(str(caught.value))

        controller = Controller(ScriptedBackend(call("ask_again"), answer("one")), [ask_again], ALL)
        async with await controller.conversation() as conversation:
            outcome = await conversation.run("one")
            assert [made.status for made in outcome.calls] == ["ok"]
            return outcome

    assert anyio.run(main).answer == "one" and len(refused) == 2


def test_a_question_can_be_asked_after_a_stream_that_was_left() -> None:
    """Nobody closes the stream: the event loop does."""
    hanging = [True]

    class Hangs(ScriptedBackend):
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
            if hanging.pop():
                await anyio.sleep_forever()
            async for chunk in super().complete(request):
                yield chunk

    async def main() -> Any:
        async with await Controller(Hangs(answer("two")), [], ALL).conversation() as conversation:
            async for event in conversation.stream("one"):
                assert isinstance(event, events.TurnStarted)
                break
            hanging.append(False)
            return await conversation.run("two")

    assert anyio.run(main).answer == "two"


def test_a_scripted_call_may_have_an_argument_that_is_called_name() -> None:
    assert json.loads(call("look", name="x"))["arguments"] == {"name": "x"}


def test_an_empty_question_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        Controller(ScriptedBackend()).run_sync("  \n")


# --- all of a run's time --------------------------------------------------------------------------


def hang(connection: Connection) -> None:
    connection.wait(60)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BackendTimeout("nothing came for 60 s"), "completion_timeout"),
        (BackendUnreachable("nobody answers"), "backend_error"),
    ],
)
def test_a_server_that_fails_later_ends_the_run_and_silence_is_told_from_the_rest(
    error: Exception, reason: str
) -> None:
    backend = ScriptedBackend(call("note", x="1"), error)
    outcome = Controller(backend, [recorded([], "note")], ALL).run_sync("Hi")
    assert isinstance(outcome, Stopped)
    assert (outcome.reason, outcome.message) == (reason, str(error))


@pytest.mark.parametrize("page", ["health", "models"])
def test_a_server_that_does_not_say_what_it_serves_takes_no_more_than_the_total_time(
    page: str,
) -> None:
    with serving(says("Hi."), **{page: hang}) as server:  # type: ignore[arg-type]
        controller = Controller(
            CompletionsBackend(server.url), limits=Limits(total_timeout=EXPIRES)
        )
        with pytest.raises(BackendTimeout, match=rf"in the {EXPIRES} s that there were"):
            controller.run_sync("Hi?")
    assert server.bodies == []


def test_loading_a_model_takes_none_of_the_total_time() -> None:
    class Loaded(ScriptedBackend):
        async def start(self) -> None:
            await skip(1500)

        async def complete(self, request):  # type: ignore[no-untyped-def]
            await skip(1100)
            async for chunk in super().complete(request):
                yield chunk

    async def main(seconds: float) -> Outcome:
        limits = Limits(total_timeout=seconds)
        return await Controller(Loaded(answer("3")), limits=limits).run("One?")

    assert run(main, 1200).status == "answered"
    stopped = run(main, 1000)
    assert isinstance(stopped, Stopped) and stopped.reason == "total_timeout"
    assert stopped.exit_code == 1


def test_a_model_that_cannot_be_loaded_fails_the_run_as_its_backend() -> None:
    class Broken(ScriptedBackend):
        async def start(self) -> None:
            raise OSError("no weights")

    with pytest.raises(BackendBroken, match="no weights"):
        Controller(Broken()).run_sync("One?")


@pytest.mark.parametrize("effects", [{"read"}, {"write"}])
def test_a_call_over_the_limit_of_a_turn_runs_in_the_next(effects: set[Any]) -> None:
    taken: list[int] = []

    @tool(effects=effects)
    def take(number: int) -> str:
        """Takes a number."""
        taken.append(number)
        return "taken"

    most = Limits().max_calls_per_turn
    first = "\n".join(call("take", number=number) for number in range(most + 1))
    backend = ScriptedBackend(first, call("take", number=most), answer("All taken."))
    outcome = Controller(backend, [take], ALL).run_sync("Take them.")
    assert isinstance(outcome, Answered) and sorted(taken) == [*range(most + 1)]
    assert f"first {most} calls" in backend.prompts[1]


def test_a_call_over_a_rate_limit_is_refused_as_a_repeated_one_when_it_comes_again() -> None:
    @tool(effects={"read"})
    def look() -> str:
        """Looks."""
        return "seen"

    backend = ScriptedBackend(*[call("look")] * 2, *[call("look")] * 3)
    policy = Policy(allow=["*"], rate_limits={"look": "1/hour"})
    outcome = Controller(backend, [look], policy).run_sync("Look.")
    assert isinstance(outcome, Stopped) and outcome.reason == "repeated_call"


def test_a_question_does_as_much_work_after_a_hundred_as_after_three() -> None:
    """A look at each earlier record would be a thousand calls more."""
    script = [step for n in range(104) for step in (call("note", x=f"{n}"), answer("Done [1]."))]
    controller = Controller(ScriptedBackend(*script), [recorded([], "note")], ALL)

    async def calls_made(conversation: Any) -> int:
        profile = Profile()
        profile.enable()
        await conversation.run("Note!", emit=lambda event: None)
        profile.disable()
        return sum(entry.callcount for entry in profile.getstats())

    async def ask_on() -> tuple[int, int]:
        async with await controller.conversation() as conversation:
            early = [await calls_made(conversation) for _ in range(4)]
            for _ in range(96):
                await conversation.run("Note!")
            return min(early), min([await calls_made(conversation) for _ in range(4)])

    early, late = anyio.run(ask_on)
    assert late <= early + 50
