"""Answers that are held to a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strong_model import RandomTokens, Serving, StrongModel, Wish

from mlx_tools import Answered, Controller, Limits, Policy, RunSettings, Stopped, tool
from mlx_tools.controller import Complete
from mlx_tools.errors import UsageError
from mlx_tools.messages import ToolCall
from mlx_tools.protocol import forcing_prefix, write_call
from mlx_tools.schema import fits
from mlx_tools.store import MemoryStore
from mlx_tools.testing import Script, ScriptedBackend, answer, call
from mlx_tools.transcript import events
from mlx_tools.transcript.records import AnswerRecord, CallRecord, CompletionRecord, UserRecord
from tests.controller.sessions import collect_events, fold_session, open_session, say
from tests.controller.test_native import DIALECTS
from tests.controller.test_native import controller as native_controller
from tests.decoding.schemas import typed
from tests.prompt.tooled import tooled_format

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
BONN = {"city": "Bonn", "degrees": 21}
TEXT = '{"city":"Bonn","degrees":21}'
REST = f'final_result","arguments":{TEXT}}}'
"""The text after the prefix of a call."""


@tool(effects={"read"})
def look(x: int) -> str:
    """Looks."""
    return "seen"


def controller(
    backend: Any, *, tools: Any = (look,), limits: Any = None, **more: Any
) -> Controller:
    settings = RunSettings(**{"output_schema": CITY, **more})
    policy = Policy(allow=[one.spec.name for one in tools])
    return Controller(backend, tools, policy, settings=settings, limits=limits)


def told(happens: list[Any]) -> str:
    """The answer's text as it was told while it was written, in the last turn."""
    pieces = [one for one in happens if isinstance(one, events.AnswerPiece)]
    return "".join(one.text for one in pieces if one.turn == pieces[-1].turn)


def valid(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return True if any value fits, an object or none."""
    within = {"type": "object", "properties": {"it": {**schema, "$defs": {}}}}
    return fits({"it": value}, within | {"$defs": schema.get("$defs", {})})


# --- any schema, any model ----------------------------------------------------------------------


@given(made=typed(), style=st.sampled_from(["jsonl", "markdown-json", "xml"]), data=st.data())
def test_a_right_answer_is_left_alone_and_told_as_it_is_written(
    made: tuple[dict[str, Any], Any], style: Any, data: Any
) -> None:
    schema, values = made
    value = data.draw(values)
    # Where bounds leave but one number, it is held to be written without a fraction.
    assume(".0" not in json.dumps(value))
    arguments = value if schema.get("type") == "object" else {"value": value}
    prefix = forcing_prefix(style, "final_result")
    line = write_call("final_result", arguments, style=style)
    assert line.startswith(prefix)
    rest = line[len(prefix) :]
    backend = ScriptedBackend(Script(rest, pieces=data.draw(st.integers(1, 9))))
    of = controller(backend, tools=(), output_schema=schema, style=style)
    happens = collect_events(of)
    outcome = happens[-1].outcome
    expected = json.dumps(json.loads(json.dumps(value)), ensure_ascii=False, separators=(",", ":"))
    assert outcome.answer == expected == told(happens)
    assert len(backend.requests) == 1 and not outcome.repairs and not outcome.mends
    assert not [one for one in happens if isinstance(one, events.CallOpened | events.CallRead)]


# These find an answer.
@example(made=({"enum": [1]}, 1), seed=38, scores=True, strategy="guided")
@example(
    made=({"type": "array", "items": {"type": "integer"}, "maxItems": 1}, [1]),
    seed=33,
    scores=True,
    strategy="auto",
)
@given(
    made=typed(),
    seed=st.integers(0, 2**32),
    scores=st.booleans(),
    strategy=st.sampled_from(["auto", "guided", "free"]),
)
def test_whatever_is_written_an_answer_fits(
    made: tuple[dict[str, Any], Any], seed: int, scores: bool, strategy: Any
) -> None:
    model = RandomTokens(seed, serving=Serving(likelihoods=scores))
    happens = collect_events(controller(model, output_schema=made[0], strategy=strategy))
    outcome = happens[-1].outcome
    assert isinstance(outcome, Answered | Stopped)
    if isinstance(outcome, Answered):
        assert valid(json.loads(outcome.answer), made[0])
        assert told(happens) == outcome.answer


@pytest.mark.parametrize("name", ["qwen2.5-tools", "granite3.3-tools", "glm4.6-tools"])
def test_the_models_own_form_of_a_call_is_read_too(name: str) -> None:
    model = StrongModel(
        Wish((ToolCall("final_result", BONN),), ""),
        dialect=DIALECTS[name],
        assistant=tooled_format(name).assistant[0],
    )
    happens = collect_events(native_controller(name, model, output_schema=CITY))
    assert happens[-1].outcome.answer == TEXT == told(happens)
    assert len(model.asked) == 1 and not happens[-1].outcome.mends


def test_a_model_that_would_call_nothing_in_its_own_form_is_not_told_to_use_words() -> None:
    backend = ScriptedBackend("It is warm.", TEXT)
    settings = {"output_schema": CITY, "tool_choice": "none"}
    outcome = native_controller("mistral-small-tools", backend, **settings).run_sync("How warm?")
    assert isinstance(outcome, Answered) and outcome.answer == TEXT
    assert "without calling a tool" not in backend.prompts[0]
    assert backend.prompts[0].endswith("[TOOL_CALLS]final_result[ARGS]")


# --- what counts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        call("final_result", **BONN),
        call("Final-Result", **BONN),
        call("final_result", city="Bonn", degrees="21"),
        answer(TEXT),
        json.dumps(BONN),
        f"```json\n{json.dumps(BONN, indent=1)}\n```",
        call("final_result", **BONN) + "\n" + call("look", x=1),
        '<tool_call>{"name": "final_result", "arguments": ' + TEXT + "}</tool_call>",
    ],
)
def test_what_says_the_answer_counts(said: str) -> None:
    backend = ScriptedBackend(said)
    happens = collect_events(controller(backend, strategy="free"))
    assert happens[-1].outcome.answer == TEXT == told(happens)
    assert happens[-1].outcome.to_json()["calls"] == []


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        (call("final_result", city="Bonn"), "invalid_arguments", "degrees: required"),
        (answer('{"city":"Bonn"}'), "invalid_arguments", "degrees: required"),
        (answer("[1]"), "invalid_json", "must be a call of final_result"),
        (answer("It is warm."), "invalid_json", "must be a call of final_result"),
    ],
)
def test_what_does_not_fit_is_told_to_the_model(said: str, code: str, words: str) -> None:
    backend = ScriptedBackend(said, REST)
    happens = collect_events(controller(backend, strategy="free"))
    (broken,) = (one for one in happens if isinstance(one, events.FormatBroken))
    assert broken.error.code == code and words in broken.error.message
    assert words in backend.prompts[1]
    assert happens[-1].outcome.answer == TEXT == told(happens)


def test_prose_again_and_again_ends_the_run() -> None:
    outcome = controller(ScriptedBackend("No.", "No."), strategy="free").run_sync("How warm?")
    assert isinstance(outcome, Stopped) and outcome.reason == "format_errors"


def test_an_answer_behind_calls_waits_for_what_they_give() -> None:
    early = call("look", x=1) + "\n" + call("final_result", city="Ulm", degrees=1)
    backend = ScriptedBackend(early.removeprefix('{"type": "tool_call", "name": "'), REST)
    happens = collect_events(controller(backend))
    assert happens[-1].outcome.answer == TEXT == told(happens)
    assert [c["name"] for c in happens[-1].outcome.to_json()["calls"]] == ["look"]
    assert "Ulm" not in backend.prompts[1]


def test_a_value_of_another_type_is_mended_as_it_is_written() -> None:
    begun = 'final_result","arguments":{"city":"Bonn","degrees":'
    backend = ScriptedBackend(Script(begun + '"21"}}', pieces=4), "21}}")
    happens = collect_events(controller(backend))
    assert happens[-1].outcome.answer == TEXT == told(happens)
    assert happens[-1].outcome.mends == 1


# --- tools, and when they must be called --------------------------------------------------------


def test_a_tool_that_must_be_called_comes_first() -> None:
    begun = 'look","arguments":{"x":1}}'
    backend = ScriptedBackend(REST, begun, REST)
    happens = collect_events(controller(backend, tool_choice="required", strategy="free"))
    (broken,) = (one for one in happens if isinstance(one, events.FormatBroken))
    assert broken.error.code == "not_allowed"
    assert happens[-1].outcome.answer == TEXT
    assert [c["name"] for c in happens[-1].outcome.to_json()["calls"]] == ["look"]


@pytest.mark.parametrize(("choice", "ends"), [("none", '"arguments":{'), ("auto", '"name":"')])
def test_without_a_choice_of_tools_the_model_begins_in_the_answer(choice: str, ends: str) -> None:
    rest = TEXT[1:] + "}" if choice == "none" else REST
    backend = ScriptedBackend(rest)
    assert controller(backend, tool_choice=choice).run_sync("How warm?").answer == TEXT  # type: ignore[union-attr]
    assert backend.prompts[0].endswith(ends)


def test_at_the_limit_of_turns_the_answer_is_forced() -> None:
    backend = ScriptedBackend('look","arguments":{"x":1}}', TEXT[1:] + "}")
    of = controller(backend, limits=Limits(max_iterations=1))
    outcome = of.run_sync("How warm is it?")
    assert isinstance(outcome, Answered) and outcome.answer == TEXT
    assert "No more tool calls but final_result" in backend.prompts[1]


def test_a_tool_of_the_same_name_stays_a_tool() -> None:
    @tool(effects={"read"})
    def final_result(x: int) -> str:
        """Somebody's own."""
        return "theirs"

    backend = ScriptedBackend(
        'final_result","arguments":{"x":1}}', f'final_result_","arguments":{TEXT}}}'
    )
    outcome = controller(backend, tools=(final_result,)).run_sync("How warm is it?")
    assert isinstance(outcome, Answered) and outcome.answer == TEXT
    assert [c["name"] for c in outcome.to_json()["calls"]] == ["final_result"]


# --- records ------------------------------------------------------------------------------------


def test_the_transcript_says_the_same_from_every_record_on() -> None:
    store = MemoryStore()
    backend = ScriptedBackend('look","arguments":{"x":1}}', "No.", REST)
    settings = RunSettings(output_schema=CITY, strategy="free")
    of = Controller(backend, [look], Policy(allow=["look"]), settings=settings, store=store)
    with_files: list[Any] = []
    create = store.create
    store.create = lambda: with_files.append(create()) or with_files[-1]  # type: ignore[method-assign, func-returns-value]
    of.run_sync("How warm is it?")
    records = [*with_files[0].transcript]
    assert isinstance(records[-1], AnswerRecord) and records[-1].content == TEXT
    assert [r.name for r in records if isinstance(r, CallRecord)] == ["look"]
    for at, record in enumerate(records):
        if isinstance(record, CompletionRecord):
            session = fold_session(*records[: at + 1], specs={"look": look.spec})
            written = session.current.unwritten
            assert list(written) == records[at + 1 : at + 1 + len(written)]


# --- schemas ------------------------------------------------------------------------------------

TREE = {
    "type": "array",
    "items": {"type": "object", "properties": {"below": {"$ref": "#"}}, "required": ["below"]},
}


def test_a_schema_that_refers_to_itself_may_be_of_no_object() -> None:
    value = [{"below": [{"below": []}]}]
    rest = json.dumps(value) + "}}"
    backend = ScriptedBackend('"value":' + rest, "x", "x")
    happens = collect_events(controller(backend, tools=(), output_schema=TREE))
    assert json.loads(happens[-1].outcome.answer) == value and len(backend.requests) == 1
    wrong = ScriptedBackend('"value":[{"below":[{}]}]}}', "x")
    outcome = controller(wrong, tools=(), output_schema=TREE, strategy="free").run_sync("Well?")
    assert isinstance(outcome, Stopped)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/none"}}},
        {"$ref": "https://example.org/schema"},
        {"type": "object", "properties": 5},
        {"anyOf": [{"$ref": "#"}]},
        {"type": "string", "pattern": "(a+)+\\1"},
        {"enum": [float("nan")]},
        {"description": "x" * 300_000},
        "object",
        True,
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_before_anything_is_asked(schema: Any) -> None:
    with pytest.raises(UsageError, match="output_schema"):
        RunSettings(output_schema=schema)


def test_a_server_that_tells_its_model_of_tools_is_given_the_answer_as_one() -> None:
    route = {"path": "native", "reason": "said", "completes": False}
    session = open_session(output_schema=CITY, route=route)
    session.apply(UserRecord(content="How warm is it?"))
    due = session.next_step()
    assert isinstance(due, Complete) and due.messages is not None
    assert "call final_result with your answer" in due.messages[0]["content"]
    assert "final_result" in due.tools and due.rules.tool_choice == "required"
    written = say(session, call("final_result", **BONN))
    assert [r.content for r in written if isinstance(r, AnswerRecord)] == [TEXT]
