"""How a session's strategy comes to its completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_tools import Answered, Controller, Policy, Stopped, tool
from mlx_tools.errors import UsageError
from mlx_tools.records import CompletionRecord
from mlx_tools.run_settings import RunSettings
from mlx_tools.testing import ScriptedBackend

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


def test_free_is_never_guided() -> None:
    backend = ScriptedBackend(BROKEN, BROKEN)
    outcome = controller(backend, "free").run_sync("Add 1 and 2.")
    assert isinstance(outcome, Stopped) and outcome.reason == "format_errors"
    assert [request.top_logprobs for request in backend.requests] == [0, 0]


def test_auto_asks_a_broken_turn_again_from_the_same_prompt() -> None:
    # The model says no likelihoods; then it writes what the holes are asked for.
    guided = ("", "tool_call", "7,", "9}}")
    backend = ScriptedBackend(BROKEN, *guided, ANSWER)
    outcome = controller(backend, "auto").run_sync("Please add the numbers 7 and 9 for me.")
    assert isinstance(outcome, Answered)
    assert [call.arguments for call in outcome.calls] == [{"a": 7, "b": 9}]
    first = backend.prompts[0]
    assert all(prompt.startswith(first) for prompt in backend.prompts)
    assert not any(BROKEN in prompt[len(first) :] for prompt in backend.prompts)


def test_a_model_that_breaks_format_twice_stays_guided() -> None:
    async def main() -> list[str]:
        guided = ("", "final", 'Hello."}')
        backend = ScriptedBackend(BROKEN, *guided, BROKEN, *guided, *guided)
        async with await controller(backend, "auto").conversation() as conversation:
            for question in ("Hi.", "Hello?", "Hello again."):
                assert isinstance(await conversation.run(question), Answered)
            records = conversation._driver.files.transcript
            return [r.strategy for r in records if isinstance(r, CompletionRecord)]

    import anyio

    assert anyio.run(main) == ["free", "guided", "free", "guided", "guided"]


def test_a_strategy_that_is_unknown_is_refused() -> None:
    with pytest.raises(UsageError, match="strategy"):
        RunSettings(strategy="luck")
