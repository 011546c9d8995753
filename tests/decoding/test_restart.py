"""Servers that begin the model's line anew instead of going on with the host's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Answered, Controller, Policy, tool
from mlx_tools.controller.run_settings import RunSettings
from mlx_tools.decoding.held_turn import RestartWatch, begins_anew
from mlx_tools.messages import Strategy
from mlx_tools.protocol import Style, forcing_prefix, write_answer, write_call
from mlx_tools.testing import Script, ScriptedBackend

STYLES = st.sampled_from(["jsonl", "markdown-json", "xml"])


@tool(effects={"read"})
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def opened(prefix: str, text: str, size: int) -> tuple[str, bool]:
    opening = RestartWatch(prefix)
    read = "".join(opening.feed(text[at : at + size]) for at in range(0, len(text), size))
    return read + opening.flush(), opening.anew


@given(STYLES, st.sampled_from(["none", "required", "add"]), st.integers(1, 9))
def test_a_whole_line_is_known_for_one_and_a_rest_is_not(
    style: Style, choice: str, size: int
) -> None:
    prefix = forcing_prefix(style, choice)
    whole = (
        write_answer("3", style) if choice == "none" else write_call("add", {"a": 1}, None, style)
    )
    assert opened(prefix, whole, size) == (whole, True)
    rest = whole[len(prefix) :]
    assert whole.startswith(prefix) and opened(prefix, rest, size) == (rest, False)


@given(st.text(max_size=200), st.integers(1, 9))
def test_nothing_is_lost_and_pieces_make_no_difference(text: str, size: int) -> None:
    prefix = forcing_prefix("jsonl", "none")
    assert opened(prefix, text, size) == opened(prefix, text, 1000)
    assert opened(prefix, text, size)[0] == text
    assert opened("", text, size) == (text, False)


def test_white_space_alone_does_not_tell_for_long() -> None:
    assert begins_anew("  \n") is None
    assert begins_anew(" " * 100) is False


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
