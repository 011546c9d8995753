"""Corrections: the model is told what it wrote, what was wrong, and how the call is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_tools import Answered, Controller, Policy, RunSettings, tool
from mlx_tools.messages import ErrorInfo, Style
from mlx_tools.protocol import read
from mlx_tools.store import MemoryStore
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.transcript.records import CorrectionRecord, ObservationRecord
from tests.tables import table


@tool(effects={"read"})
def sums(expression: str, digits: int = 0) -> str:
    """Calculates."""
    return "391"


ASKED = '{"type":"tool_call","name":"sums","arguments":{"expression":"17 * 23"}}'
OPEN = '{"type":"tool_call","name":"sums","arguments":{"expression":…}}'


def told(*said: str, style: Style = "jsonl", **settings: Any) -> tuple[ErrorInfo, str, Any]:
    """The error that the model is told first, the prompt that follows, and how the run ends."""
    backend = ScriptedBackend(*said, answer("It is 391."))
    chosen = RunSettings(strategy="free", style=style, **settings)
    store = MemoryStore()
    run = Controller(backend, [sums], Policy(allow=["*"]), settings=chosen, store=store)
    outcome = run.run_sync("What is 17 * 23?")
    records = [
        record
        for record in store.read(outcome.session).transcript
        if isinstance(record, CorrectionRecord)
        or (isinstance(record, ObservationRecord) and record.error is not None)
    ]
    assert records[0].error is not None
    return records[0].error, backend.prompts[1].rpartition("What is 17 * 23?")[2], outcome


@table(
    ("said", "words", "form"),
    [
        (
            '{"function": "sums", "params": {"expression": "17 * 23"}}',
            'You wrote {"function": …, "params": …}: ',
            ASKED,
        ),
        ('I will call this.\n{"name": "sums", "parameters": {"expression": "17 * 23"}}', "", ASKED),
        ("Now:\n```json\n" + ASKED.replace("tool_call", "call") + "\n```", "in a fence", ASKED),
        ("<tool_use>sums: 17 * 23</tool_use>", "its marks are not those of a call", OPEN),
        (ASKED[:-12], "cut off", OPEN),
        (ASKED.replace('"17', "17"), "is due at character", OPEN),
        ("sums(expression=x)", "You wrote sums(expression=x): ", OPEN),
        (call("sums", expression=["a"]), "expression: string", OPEN),
        (call("sums"), "expression: required", OPEN),
        (
            call("sums", expression="17 * 23", digits="x"),
            "digits: ",
            ASKED.replace("}}", ',"digits":…}}'),
        ),
        (call("sum", expression="17 * 23"), "did you mean sums?", ASKED),
    ],
)
def test_each_fault_is_named_and_the_asked_form_of_the_call_is_shown(
    said: str, words: str, form: str
) -> None:
    error, prompt, outcome = told(said)
    assert words in error.message
    assert error.form == form
    assert f"\n{form}\n" in prompt or prompt.rstrip().endswith(form) or f"\n{form}<" in prompt
    assert isinstance(outcome, Answered)


@pytest.mark.parametrize(
    ("style", "form"),
    [
        ("markdown-json", f"```json\n{ASKED}\n```"),
        ("xml", '<tool_call>{"name":"sums","arguments":{"expression":"17 * 23"}}</tool_call>'),
    ],
)
def test_the_form_is_that_of_the_style(style: Style, form: str) -> None:
    error, prompt, _ = told(
        '{"function": "sums", "params": {"expression": "17 * 23"}}', style=style
    )
    assert error.form == form and form in prompt


def test_the_shown_form_is_a_call_if_it_is_copied_and_none_if_it_has_gaps() -> None:
    assert [message.name for message in read(ASKED).messages] == ["sums"]  # type: ignore[union-attr]
    assert read(OPEN).error is not None


def test_a_call_copied_from_a_correction_runs() -> None:
    wrong = '{"function": "sums", "params": {"expression": "17 * 23"}}'
    _, _, outcome = told(wrong, ASKED)
    assert [(one.name, one.status) for one in outcome.calls] == [("sums", "ok")]


def test_a_fault_that_comes_again_is_told_once_more_with_what_would_fit() -> None:
    wrong = call("sums", expression=["a"])
    backend = ScriptedBackend(wrong, wrong, answer("I cannot."))
    settings = RunSettings(strategy="free")
    run = Controller(backend, [sums], Policy(allow=["*"]), settings=settings)
    outcome = run.run_sync("What is 17 * 23?")
    assert isinstance(outcome, Answered)
    again = backend.prompts[2][len(backend.prompts[1]) :]
    assert "expression: string" in again and OPEN in again and "It takes sums(" in again
    assert "result is above" not in again


def test_long_values_are_left_out_of_the_form() -> None:
    error, _, _ = told(f'{{"function": "sums", "params": {{"expression": "{"1 + " * 99}1"}}}}')
    assert error.form == OPEN
