"""Servers that begin the model's line anew instead of going on with the host's."""

from __future__ import annotations

import pytest

from mlx_tools import Answered, Controller, Policy, tool
from mlx_tools.controller import RunSettings
from mlx_tools.decoding.held_turn import begins_anew
from mlx_tools.messages import Strategy
from mlx_tools.protocol import Style, forcing_prefix, write_answer, write_call
from mlx_tools.testing import Script, ScriptedBackend


@tool(effects={"read"})
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
@pytest.mark.parametrize("choice", ["none", "required", "add"])
def test_a_whole_line_is_known_for_one_and_a_rest_is_not(style: Style, choice: str) -> None:
    prefix = forcing_prefix(style, choice)
    whole = (
        write_answer("3", style) if choice == "none" else write_call("add", {"a": 1}, None, style)
    )
    for size in range(1, len(whole) + 1):
        assert begins_anew(whole[:size], prefix) in (True, None)
    assert begins_anew(whole, prefix)
    assert whole.startswith(prefix) and begins_anew(whole[len(prefix) :], prefix) is False


def test_white_space_alone_does_not_tell_for_long() -> None:
    assert begins_anew("  \n", "{") is None
    assert begins_anew(" " * 100, "{") is False


@pytest.mark.parametrize("strategy", ["auto", "guided", "free"])
@pytest.mark.parametrize("pieces", [0, 1])
def test_a_server_that_pays_no_heed_to_the_prefix_is_read_all_the_same(
    strategy: Strategy, pieces: int
) -> None:
    backend = ScriptedBackend(
        Script(write_call("add", {"a": 1, "b": 2}), pieces=pieces),
        Script(write_answer("It is 3."), pieces=pieces),
    )
    settings = RunSettings(strategy=strategy, tool_choice="required")
    run = Controller(backend, [add], Policy(allow=["add"]), settings=settings)
    outcome = run.run_sync("Add 1 and 2.")
    assert isinstance(outcome, Answered) and outcome.answer == "It is 3."
    assert outcome.requests == 2 and [call.repairs for call in outcome.calls] == [()]
