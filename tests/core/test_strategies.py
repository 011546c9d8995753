"""How a session's strategy comes to its completions."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from mlx_tools import Answered, Controller, Policy, Stopped, tool
from mlx_tools.controller import RunSettings
from mlx_tools.testing import ScriptedBackend
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
