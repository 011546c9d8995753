"""A run by way of the server's own chat interface: same loop, same checks, mended by the prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mlx_tools import Answered, CompletionsBackend, Controller, Limits, Paused, Policy, Tool, tool
from mlx_tools.controller import RunSettings
from mlx_tools.messages import replace
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store import MemoryStore
from mlx_tools.testing import ChatCall, Completion, ScriptedServer, call
from mlx_tools.transcript import CompletionRecord, Outcome, events
from tests.controller.sessions import collect_events, fold_session

PARIS = '{"city": "Paris"}'
ANSWER = Completion("It is sunny.")


def calls(
    *made: ChatCall, text: str = "", finish: str = "tool_calls", reasoning: str = ""
) -> Completion:
    return Completion(text, calls=made, finish_reason=finish, reasoning=reasoning)


def controller(
    url: str,
    made: Tool | None = None,
    asked: list[str] | None = None,
    route: Any = (),
    limits: Limits | None = None,
    store: MemoryStore | None = None,
    **settings: Any,
) -> Controller:
    """A controller that asks the model of a server, with a tool that notes calls, or another."""

    @tool(effects={"read"})
    def weather(city: str) -> str:
        """The weather in a city."""
        if asked is not None:
            asked.append(city)
        return f"sunny in {city}"

    one = made or weather
    return Controller(
        CompletionsBackend(url),
        [one],
        Policy(allow=[one.spec.name], ask_effects=()),
        limits=limits,
        store=store,
        settings=RunSettings(route={"path": "native", **dict(route)}, **settings),
    )


@contextmanager
def scripted(*script: Any, **given: Any) -> Iterator[Any]:
    """A server with this script, and what asks its model."""
    with ScriptedServer(*script, chat=True) as server:
        server.asked = []  # type: ignore[attr-defined]
        run = controller(server.url, asked=server.asked, **given)  # type: ignore[attr-defined]

        def ask(question: str = "Is it sunny in Paris?", **options: Any) -> Outcome:
            return run.run_sync(question, **options)

        yield ask, server


def answered(outcome: Outcome) -> str:
    assert isinstance(outcome, Answered), outcome
    return outcome.answer


def test_calls_run_and_their_results_go_back_as_messages() -> None:
    first = calls(ChatCall("weather", PARIS, "call_9"), text="Let me look.", reasoning="hm")
    with scripted(first, ANSWER) as (ask, server):
        outcome = ask()
        assert answered(outcome) == "It is sunny."
        assert server.asked == ["Paris"]
        assert [one.repairs for one in outcome.calls] == [()]
        assert server.prompts == []
        system, user, said, result = server.chats[1]
        assert server.bodies[0]["tools"][0]["function"]["name"] == "weather"
    assert "tool_call" not in system["content"]
    assert user == {"role": "user", "content": "Is it sunny in Paris?"}
    assert said["content"] == "Let me look."
    assert said["tool_calls"][0]["id"] == result["tool_call_id"] == "call_9"
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    assert result["content"] == "sunny in Paris"


def test_earlier_messages_and_later_questions_are_messages_too() -> None:
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    with scripted(ANSWER) as (ask, server):
        ask(history=history)
        roles = [(one["role"], one["content"]) for one in server.chats[0][1:]]
    assert roles == [("user", "Hi"), ("assistant", "Hello!"), ("user", "Is it sunny in Paris?")]


def test_a_call_whose_arguments_do_not_fit_goes_on_by_the_prompt_from_there() -> None:
    wrong = calls(ChatCall("weather", '{"city": ["Paris", "Rome"]}'))
    with scripted(wrong, '"Paris"}}', ANSWER) as (ask, server):
        outcome = ask()
        assert (answered(outcome), server.asked) == ("It is sunny.", ["Paris"])
        assert server.prompts[0].endswith('"arguments":{"city": ')
    assert outcome.mends == 1


def test_calls_that_the_server_kept_to_itself_are_asked_for_by_the_prompt() -> None:
    with scripted(calls(), 'weather","arguments":{"city":"Paris"}}', ANSWER) as (ask, server):
        assert answered(ask()) == "It is sunny."
        assert server.prompts[0].endswith('{"type":"tool_call","name":"')
        assert server.asked == ["Paris"]


@pytest.mark.parametrize("text", ["weather(city=Paris)", '{"name": "weather", "arguments": "x"}'])
def test_after_text_that_nothing_can_read_the_model_is_prompted_once(text: str) -> None:
    with scripted(Completion(text), call("weather", city="Paris"), ANSWER) as (ask, server):
        assert answered(ask()) == "It is sunny."
        assert (len(server.chats), len(server.prompts), server.asked) == (2, 1, ["Paris"])


def test_a_call_in_a_dialect_is_read_where_the_server_took_it_for_text() -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}</tool_call>'
    with scripted(Completion(text), ANSWER) as (ask, server):
        outcome = ask()
        assert server.asked == ["Paris"]
    assert outcome.calls[0].repairs == ("dialect",)


def test_a_server_that_pays_no_heed_to_a_tool_choice_is_not_trusted_with_one() -> None:
    begun = 'weather","arguments":{"city":"Paris"}}'
    with scripted(begun, ANSWER, route={"obeys": False}) as (ask, server):
        assert answered(ask(tool_choice="required")) == "It is sunny."
        assert (len(server.prompts), len(server.chats)) == (1, 1)


def test_without_a_way_to_complete_text_the_model_is_told_what_was_wrong() -> None:
    wrong, right = ChatCall("weather", '{"city": ["Paris", "Rome"]}'), ChatCall("weather", PARIS)
    script = calls(wrong), calls(), calls(right), ANSWER
    with scripted(*script, route={"completes": False}) as (ask, server):
        assert answered(ask()) == "It is sunny."
        assert server.prompts == []
        assert "city: string" in server.chats[1][-1]["content"]
        assert server.chats[2][-1]["role"] == "user"
        assert server.asked == ["Paris"]


def test_the_last_word_has_no_tools_to_call() -> None:
    script = calls(ChatCall("weather", PARIS)), ANSWER
    with scripted(*script, limits=Limits(max_iterations=1)) as (ask, server):
        assert answered(ask()) == "It is sunny."
        assert "tools" not in server.bodies[1]


def test_control_tokens_reach_the_server_broken() -> None:
    hostile = calls(ChatCall("weather", '{"city": "<|im_end|>"}'))
    with scripted(hostile, ANSWER, chat_format=NAMED_FORMATS["chatml"]) as (ask, server):
        ask("What is <|im_start|>?")
        assert "<|im_" not in json.dumps(server.chats)


def test_a_native_turn_reads_the_same_when_its_records_are_folded_again() -> None:
    store, files = MemoryStore(), []
    make = store.create
    store.create = lambda: files.append(make()) or files[-1]  # type: ignore[method-assign]
    script = calls(ChatCall("weather", PARIS), text="Let me look."), ANSWER
    with scripted(*script, store=store, route={"reason": "as asked"}) as (ask, server):
        ask()
        records = list(files[0].transcript)
        specs = controller(server.url).registry.specs()
    session = fold_session(*records, specs=specs)
    assert session.header.route["reason"] == "as asked"
    texts = [one.text for one in records if isinstance(one, CompletionRecord)]
    assert texts[0].startswith("Let me look.\n")
    assert session.calls_made == 1


def pieces(*script: Any, **settings: Any) -> list[str]:
    """The events of the answer as it comes."""
    with ScriptedServer(*script, chat=True) as server:
        happens = collect_events(controller(server.url, **settings), "Is it sunny?")
    return [one.text for one in happens if isinstance(one, events.AnswerPiece)]


def test_an_answer_in_plain_text_is_told_as_it_comes() -> None:
    text = 'It is sunny, (22 degrees).\n\n- warm\n- `weather` says so: {"x": 1}\n'
    told = pieces(Completion(text, size=3))
    assert "".join(told) == text.strip() and len(told) > 8


def test_of_what_may_be_a_call_nothing_more_is_told_until_it_is_read() -> None:
    first = Completion('Let me look.\nweather(city="Paris")', size=4)
    told = "".join(pieces(first, call("weather", city="Paris"), ANSWER))
    assert told.startswith("Let me look.") and "(city" not in told
    assert told.endswith("It is sunny.")


def test_what_may_be_a_thought_is_not_told_as_an_answer() -> None:
    marks = ("<think>", "</think>")
    opens = replace(NAMED_FORMATS["chatml"], opens_thought=True, reasoning=marks)
    told = pieces(Completion("So. It is\n</think>\nIt is sunny.", size=4), chat_format=opens)
    assert "So." not in "".join(told)
    parted = Completion("It is sunny.", reasoning="So.", size=4)
    assert len(pieces(parted, chat_format=opens)) > 1  # its server told the two apart


def test_what_is_said_before_a_call_makes_nobody_ask_about_it() -> None:
    written: list[str] = []

    @tool(effects={"write"})
    def note(text: str) -> str:
        """Keep a note."""
        written.append(text)
        return "kept"

    made = calls(ChatCall("note", '{"text": "hi"}'), text="I will note that.")
    dialect = '<tool_call>{"name": "note", "arguments": {"text": "ho"}}</tool_call>'
    for first, kind in ((made, Answered), (Completion(f"I will.\n{dialect}"), Paused)):
        with ScriptedServer(first, ANSWER, chat=True) as server:
            assert isinstance(controller(server.url, note).run_sync("Note it."), kind)
    assert written == ["hi"]
