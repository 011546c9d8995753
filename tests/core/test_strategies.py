"""How a session's strategy comes to its completions."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from mlx_tools import Answered, Controller, Policy, Stopped, tool
from mlx_tools.controller import RunSettings
from mlx_tools.testing import Script, ScriptedBackend
from mlx_tools.transcript import events

BROKEN = '{"type":"tool_call","nonsense":'
CALL = json.dumps({"type": "tool_call", "name": "add", "arguments": {"a": 1, "b": 2}})
ANSWER = '{"type":"final_answer","content":"3"}'


@tool(effects={"read"})
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def controller(backend: Any, strategy: str) -> Controller:
    settings = RunSettings(strategy=strategy)
    return Controller(backend, [add], Policy(allow=["add"]), settings=settings)


def test_a_grammar_of_call_and_answer_goes_with_every_request() -> None:
    backend = ScriptedBackend(CALL, ANSWER)
    outcome = controller(backend, "grammar").run_sync("Add 1 and 2.")
    assert isinstance(outcome, Answered) and outcome.strategy == "grammar"
    for request in backend.requests:
        assert request.grammar is not None
        assert "add" in request.grammar.gbnf and "final_answer" in request.grammar.lark


def test_free_is_never_mended() -> None:
    backend = ScriptedBackend(BROKEN, BROKEN)
    outcome = controller(backend, "free").run_sync("Add 1 and 2.")
    assert isinstance(outcome, Stopped) and outcome.reason == "format_errors"
    assert [request.top_logprobs for request in backend.requests] == [0, 0]


def test_auto_goes_on_from_where_a_message_leaves_its_form() -> None:
    rest = 'add","arguments":{"a":1,"b":2}}'
    backend = ScriptedBackend("Let me see.\n" + BROKEN, rest, ANSWER)
    outcome = controller(backend, "auto").run_sync("Add 1 and 2.")
    assert isinstance(outcome, Answered) and outcome.mends == 1
    assert [(call.arguments, call.repairs) for call in outcome.calls] == [({"a": 1, "b": 2}, ())]
    first, second, _ = backend.prompts
    wanted = 'Let me see.\n{"type":"tool_call","name":"'
    assert second == first + wanted


def test_guided_begins_the_message_for_the_model() -> None:
    backend = ScriptedBackend(CALL.removeprefix('{"type": "'), ANSWER.removeprefix('{"type":"'))
    outcome = controller(backend, "guided").run_sync("Add 1 and 2.")
    assert isinstance(outcome, Answered) and (outcome.requests, outcome.mends) == (2, 0)
    assert all(prompt.endswith('{"type":"') for prompt in backend.prompts)


def test_each_mend_is_told() -> None:
    rest = 'add","arguments":{"a":1,"b":2}}'
    backend = ScriptedBackend("Let me see.\n" + BROKEN, rest, ANSWER)

    async def run() -> list[events.Event]:
        stream = controller(backend, "auto").stream("Add 1 and 2.")
        return [event async for event in stream]

    happened = anyio.run(run)
    (told,) = (event for event in happened if isinstance(event, events.Mended))
    assert (told.turn, told.kind) == (1, "envelope")
    assert (told.dropped, told.put) == (',"nonsense":', ',"name":"')


@pytest.mark.parametrize("said", ['{"type":"final_answer","content":"no"}', CALL])
def test_a_model_that_begins_its_line_anew_each_time_comes_to_an_end(said: str) -> None:
    backend = ScriptedBackend(*[said.replace("add", "sub")] * 99)
    settings = RunSettings(tool_choice="required")
    outcome = Controller(backend, [add], Policy(allow=["add"]), settings=settings).run_sync("Add.")
    assert outcome.turns and outcome.requests <= 12 * outcome.turns


def test_where_no_tool_may_be_called_another_form_is_no_call() -> None:
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    settings = RunSettings(tool_choice="none")
    backend = ScriptedBackend(*[said] * 20)
    outcome = Controller(backend, [add], Policy(allow=["add"]), settings=settings).run_sync("Add.")
    assert all(call.status != "ok" for call in outcome.calls)
    assert not isinstance(outcome, Stopped) or outcome.reason != "internal_error"


def test_a_turn_that_is_given_up_ends_with_what_was_written_first() -> None:
    bad = '{"type":"tool_call","name":"add","arguments":{"a":1,"b":"x"}}'
    backend = ScriptedBackend(*(bad, '"x"}}', '"x"}}'), ANSWER)
    outcome = controller(backend, "auto").run_sync("Add 1 and 2.")
    assert isinstance(outcome, Answered) and outcome.mends == 0  # none of them led anywhere
    (call,) = outcome.calls
    assert (call.arguments, call.error_code) == ({"a": 1, "b": "x"}, "invalid_arguments")


def test_a_likely_token_that_ends_the_text_and_goes_on_takes_its_place() -> None:
    begun = CALL.replace(" ", "").removesuffix("}}")
    assert begun.endswith("2")
    backend = ScriptedBackend(
        Script(begun.removesuffix("2"), pieces=1),
        Script("", scores=[(":5", -0.1), ("9", -1.0), (":7", -2.0)]),
        "}}",
        ANSWER,
    )
    outcome = controller(backend, "auto").run_sync("Add 1 and 2.")
    assert [call.arguments for call in outcome.calls] == [{"a": 1, "b": 5}]
    assert not backend.prompts[1].endswith(":")
