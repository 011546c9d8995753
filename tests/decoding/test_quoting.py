"""What a weak model answers once its tools have answered."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Answered, Controller, Policy, RunSettings, Tool
from mlx_tools.data import load_words
from mlx_tools.decoding.quoting import MAX_CHARS, WEAK_FROM, WHOLE_CHARS, quoted
from mlx_tools.due import Observed
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.sources import Source, Sources, lay_out
from mlx_tools.testing import Script, ScriptedBackend
from mlx_tools.tools import tool

CITE = "\nCite what you use by its number, like [1]."


def said(question: str, *texts: str) -> str:
    return quoted(question, [Observed(text) for text in texts])


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        ([], ""),
        (["17802"], "17802"),
        (["oats\nlemons\ncandles\n"], "oats\nlemons\ncandles"),
        (["1102", "126"], "1102\n126"),
        (["126", "126"], "126"),
        (["[plan.txt was made, with 21 bytes.]"], "plan.txt was made, with 21 bytes."),
        (["[1] is first\n[2] is second"], "[1] is first\n[2] is second"),
        ([" "], ""),
        (["half \ud800"], "half ?"),
    ],
)
def test_short_outputs_are_quoted_whole_each_once(texts: list[str], answer: str) -> None:
    assert said("What is it?", *texts) == answer


def test_of_a_long_output_the_line_that_answers_is_quoted() -> None:
    lines = [f"{hour:02}:00 the lamp in room {hour} was checked" for hour in range(24)]
    lines.insert(9, "08:30 the pump failed")
    assert said("When did the pump fail?", "\n".join(lines)) == "08:30 the pump failed"
    first = said("Anything about whales?", "\n".join(lines))
    assert first.startswith("00:00") and len(first) <= WHOLE_CHARS and "\n" in first


def test_what_was_left_out_of_a_long_output_is_never_quoted() -> None:
    cut = "[... 900 characters left out. To read on, call read_artifact with id f and offset 9 ...]"
    text = "\n".join(["a line about lamps"] * 30 + ["", cut, ""] + ["one about doors"] * 30)
    assert said("What was left out of the characters to read on?", text).startswith("a line")


def test_of_a_summary_its_words_are_quoted_and_not_the_hosts_around_them() -> None:
    words = load_words()
    told = words.summary_notice([(30, "The pump of room 7 failed."), (900, "Lamps were lit.")])
    cut = words.cut_notice(900)
    text = "\n".join(["a line about lamps"] * 30) + cut + told + "one about doors\n" * 30
    assert said("Which pump failed?", text) == "The pump of room 7 failed."
    assert said("What of a model's own words was left out?", text).startswith("a line")


def test_of_sources_the_sentence_that_answers_is_quoted_with_its_number() -> None:
    home = Source("Contract", "/docs/rent.md", "# Notice\n\nThe rent is 860. Notice is 3 months.")
    car = Source("Car", "/docs/car.md", "The tyres were changed in May.")
    text = lay_out(Sources((home, car)), first=4).text + CITE
    assert said("What is the notice period?", text) == "Notice is 3 months. [4]"
    assert said("When were the tyres changed?", text) == "The tyres were changed in May. [5]"
    assert said("Whales?", text) == "The rent is 860. [4]"


def test_where_every_call_failed_the_last_reason_is_told_else_none_of_them() -> None:
    failed = Observed("there is no recipe.txt", failed=True)
    assert quoted("?", [Observed("no such folder", failed=True), failed]) == failed.text
    assert quoted("?", [Observed("oats"), failed]) == "oats"


@given(st.text(max_size=300), st.lists(st.text(max_size=900), max_size=4))
def test_whatever_tools_say_it_stays_within_bounds(question: str, texts: list[str]) -> None:
    assert len(said(question, *texts)) <= MAX_CHARS


# --- in a run -----------------------------------------------------------------------------------


@tool(effects={"read"})
def pantry() -> str:
    """What is in the pantry."""
    return 'oats, "lemons"\nand <candles>'


OWN = '{"type":"final_answer","content":"Ciders."}'


def ask(weight: float, style: Any, *scripts: str) -> Any:
    backend = ScriptedBackend(*[Script(text, "length") for text in scripts] * 30)
    settings = RunSettings(
        chat_format=NAMED_FORMATS["chatml"],
        strategy="guided",
        style=style,
        request_weight=weight,
        tool_choice="pantry",
    )
    controller = Controller(backend, [pantry], Policy(allow=["pantry"]), settings=settings)
    return anyio.run(controller.run, "What is in the pantry?")


@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
def test_a_weak_model_answers_with_what_was_observed(style: Any) -> None:
    outcome = ask(WEAK_FROM, style, 'Ciders."')
    assert isinstance(outcome, Answered), outcome
    assert outcome.answer == 'oats, "lemons"\nand <candles>'


def test_a_stronger_one_in_its_own_words() -> None:
    outcome = ask(WEAK_FROM - 0.5, "jsonl", 'Ciders."')
    assert isinstance(outcome, Answered), outcome
    assert outcome.answer == "Ciders."
    assert json.loads(OWN)["content"] == outcome.answer and isinstance(pantry, Tool)
