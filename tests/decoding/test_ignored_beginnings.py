"""Beginnings that the model ignores: the first text is read without them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_tools import Answered, Controller, Policy
from mlx_tools.controller import RunSettings
from mlx_tools.decoding import ConstrainedTurn
from mlx_tools.messages import Strategy, Style, ToolCall, ToolSpec
from mlx_tools.protocol import DIALECTS, ReadingRules, forcing_prefix, opening, write_call
from mlx_tools.testing import Script, ScriptedBackend
from tests.protocol.test_damage import ARGUMENTS, CATALOG, FORMS, NAME
from tests.protocol.test_dialects import written
from tests.tables import table

SPECS = {
    NAME: ToolSpec(NAME, parameters=CATALOG[NAME], effects=frozenset({"read"})),
    "clock": ToolSpec("clock", parameters={"type": "object"}, effects=frozenset({"read"})),
}
THOUGHT = f"<think>\n{'I wonder what is in there. ' * 60}\n</think>\n\n"
PROSE = "I will look at it for you now, so that you know what is in there. " * 6 + "\n\n"
BARE = ("functionary", "an object", "an array", "other keys", "a name first", "elements", "Python")
"""Forms that are no calls beside prose."""

TEXTS = {
    **FORMS,
    **{f"{name} after a long thought": THOUGHT + text for name, text in FORMS.items()},
    **{
        f"{name} after prose": PROSE + text
        for name, text in FORMS.items()
        if name not in BARE and not text.startswith("{")
    },
}
STYLES: tuple[Style, ...] = ("jsonl", "markdown-json", "xml")


def first_text(
    text: str, *, strategy: Strategy, style: Style, choice: str, size: int
) -> ConstrainedTurn:
    """The turn after the model's first text; it may want another."""
    guided = strategy == "guided" and choice == "auto"
    rules = ReadingRules(
        style=style,
        prefix=opening(style) if guided else forcing_prefix(style, choice),
        tool_choice=choice,
        catalog={name: spec.parameters for name, spec in SPECS.items()},
        max_calls=1 if choice == NAME else 9,
    )
    turn = ConstrainedTurn(rules, SPECS, strategy)
    asked = turn.pending_request
    for begin in range(0, len(text), size):
        turn.feed(text[begin : begin + size])
        if turn.pending_request is not asked or turn.should_close:
            break
    if turn.pending_request is asked:
        if turn.should_close:
            turn.end_turn(None)
        else:
            turn.end_sample("stop")
    return turn


ASKED: tuple[tuple[Strategy, str], ...] = (
    ("auto", "required"),
    ("auto", NAME),
    ("guided", "auto"),
    ("guided", "required"),
    ("free", "required"),
    ("free", NAME),
)
ROWS = [
    (*asked, name)
    for number, name in enumerate(TEXTS)
    for asked in (ASKED if name in FORMS else (ASKED[number % 6],))
]


@table(("strategy", "choice", "name"), ROWS)
def test_a_whole_call_in_the_first_text_is_taken(
    strategy: Strategy, choice: str, name: str
) -> None:
    text = TEXTS[name]
    style = STYLES[len(text) % 3]
    turn = first_text(text, strategy=strategy, style=style, choice=choice, size=40)
    assert turn.pending_request is None and not turn.mends
    assert [(call.name, call.arguments) for call in turn.reading.messages] == [(NAME, ARGUMENTS)]  # type: ignore[union-attr]


def test_a_beginning_that_is_gone_on_from_is_left_alone() -> None:
    rest = json.dumps(ARGUMENTS)
    for choice, said in (("required", f'{NAME}","arguments":{rest}}}'), (NAME, f"{rest[1:]}}}")):
        turn = first_text(said, strategy="free", style="jsonl", choice=choice, size=3)
        assert turn.prefix == forcing_prefix("jsonl", choice)
        assert [call.repairs for call in turn.reading.messages] == [()]


def test_a_call_that_does_not_fit_is_read_without_the_beginning_too() -> None:
    wrong = f'<tool_call>{{"name":"{NAME}","arguments":{{"lines":3}}}}</tool_call>'
    turn = first_text(wrong, strategy="free", style="jsonl", choice="required", size=9)
    assert [message.name for message in turn.reading.messages] == [NAME]  # type: ignore[union-attr]


# --- the JSON value of an output schema -----------------------------------------------------------

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
VALUE = {"city": "Bonn", "degrees": 21}
TEXT = json.dumps(VALUE)
VALUES = {
    "a value": TEXT,
    "over several lines": json.dumps(VALUE, indent=2),
    "in a fence": f"```json\n{TEXT}\n```",
    "in a fence after prose": f"Here is what you asked for:\n\n```json\n{TEXT}\n```",
    "in a fence amid prose": f"Here it is:\n\n```\n{TEXT}\n```\nThat is all.",
    "after prose": f"Here is what you asked for:\n{TEXT}",
    "after a thought": f"{THOUGHT}{TEXT}",
    "in an answer": json.dumps({"type": "final_answer", "content": TEXT}),
    "in an answer's tags": f"<answer>{TEXT}</answer>",
    "a call": write_call("final_result", VALUE),
    **{one.name: written(one, [("final_result", VALUE)]) for one in DIALECTS[::9]},
}


@table("said", VALUES.values(), VALUES.keys())
@pytest.mark.parametrize("strategy", ["auto", "guided", "free"])
def test_a_fitting_value_in_the_first_text_is_the_answer(strategy: Strategy, said: str) -> None:
    for pieces in (1, 20):
        backend = ScriptedBackend(Script(said, pieces=pieces))
        settings = RunSettings(strategy=strategy, output_schema=CITY)
        outcome = Controller(backend, [], Policy(), settings=settings).run_sync("How is Bonn?")
        assert isinstance(outcome, Answered) and json.loads(outcome.answer) == VALUE
        assert len(backend.requests) == 1


def test_a_value_that_does_not_fit_is_no_answer() -> None:
    for said in ('{"city": "Bonn"}', "Bonn has 21 degrees.", f"{TEXT} or so"):
        backend = ScriptedBackend(said, f"{TEXT[1:]}}}")
        settings = RunSettings(strategy="free", output_schema=CITY)
        outcome = Controller(backend, [], Policy(), settings=settings).run_sync("How is Bonn?")
        assert len(backend.requests) == 2 and isinstance(outcome, Answered)


def test_a_call_of_another_tool_than_the_wanted_one_is_not_taken() -> None:
    other = write_call("clock", {})
    turn = first_text(f"So: {other}", strategy="auto", style="jsonl", choice=NAME, size=50)
    assert not any(isinstance(one, ToolCall) for one in turn.reading.messages)
