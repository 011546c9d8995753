from __future__ import annotations

import itertools
import json
import os
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_tools.backends.base import Chunk, TokenScore
from mlx_tools.decoding import Asker, AskerLimits, CutOff, Guide, Task, Unfilled, guidance
from mlx_tools.decoding.answers import HELD_FROM, LEAST_CHARS
from mlx_tools.decoding.asker import MAX_REQUESTS
from mlx_tools.messages import FinalAnswer, ToolCall
from mlx_tools.protocol import (
    ReadingRules,
    Style,
    read,
    validate_arguments,
    write_answer,
    write_call,
)
from mlx_tools.spec import ToolSpec

from .schemas import Oracle, Rubbish, tools

PROMPT = "Prompt.\n"
STYLES = st.sampled_from(["jsonl", "markdown-json", "xml"])
WELL = settings(max_examples=150)


def guided(
    backend: Any, catalog: dict[str, ToolSpec], style: Style, choice: str, question: str = ""
) -> tuple[str, Asker]:
    """What is written; Unfilled is raised."""
    asker = Asker(backend, PROMPT, AskerLimits(max_tokens=2000, timeout=10, idle_timeout=10))
    task = Task(style=style, tools=catalog, tool_choice=choice)
    said: list[str] = []
    guide = Guide(asker, task, guidance(question), said.append)
    text = anyio.run(guide.write)
    assert "".join(said) == text
    return text, asker


def calls(text: str, style: Style) -> tuple[ToolCall, ...]:
    reading = read(text, "stop", ReadingRules(style=style))
    assert reading.error is None and reading.clean, text
    found = tuple(m for m in reading.messages if isinstance(m, ToolCall))
    assert not any(call.repairs for call in found)
    return found


@pytest.mark.slow
@WELL
@given(tools(), STYLES, st.booleans(), st.integers(0, 999))
def test_a_model_that_writes_a_valid_call_gets_exactly_that_call(
    tool: tuple[ToolSpec, dict[str, Any]], style: Style, scores: bool, seed: int
) -> None:
    spec, arguments = tool
    target = write_call(spec.name, arguments, style=style)
    backend = Oracle(PROMPT, target, scores=scores, seed=seed)
    text, _ = guided(backend, {spec.name: spec}, style, "required")
    (call,) = calls(text, style)
    assert (call.name, call.arguments) == (spec.name, arguments)


@WELL
@given(st.lists(tools(), min_size=1, max_size=4), STYLES, st.booleans(), st.integers(0, 999))
def test_a_model_that_writes_rubbish_gets_a_valid_call_or_none(
    made: list[tuple[ToolSpec, dict[str, Any]]], style: Style, scores: bool, seed: int
) -> None:
    catalog = {spec.name: spec for spec, _ in made}
    backend = Rubbish(seed, scores=scores)
    try:
        text, _ = guided(backend, catalog, style, "required")
    except Unfilled:
        return
    finally:
        assert backend.requests <= MAX_REQUESTS
    (call,) = calls(text, style)
    arguments, coercions, error = validate_arguments(catalog[call.name], call.arguments)
    assert error is None and not coercions and arguments == call.arguments


@WELL
@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=LEAST_CHARS // 6 - 1),
    STYLES,
    st.integers(0, 99),
)
def test_an_answer_is_what_the_model_writes(answer: str, style: Style, seed: int) -> None:
    target = write_answer(answer, style)
    if style == "xml" and not target.startswith("<"):
        return  # its tags could not give it back
    text, _ = guided(Oracle(PROMPT, target, scores=False, seed=seed), {}, style, "auto")
    reading = read(text, "stop", ReadingRules(style=style))
    assert reading.messages == (FinalAnswer(answer),)


WEATHER = ToolSpec(
    "weather",
    "Forecast for a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "days"],
    },
)


class Says:
    """Answers every request with the text that a table has for what was written before it."""

    model = None

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)

    async def complete(self, request: Any) -> Any:
        yield Chunk(self._texts.pop(0) if self._texts else "")
        yield Chunk("", "stop")


class Endless:
    """Says its pieces one after another, the last one until it is stopped."""

    model = None

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces

    async def complete(self, request: Any) -> Any:
        said = itertools.chain(self._pieces, itertools.repeat(self._pieces[-1]))
        for piece in itertools.islice(said, request.max_tokens):
            yield Chunk(piece)
        yield Chunk("", "length")


@pytest.mark.parametrize(
    ("texts", "arguments"),
    [
        (('Lisbon","days"', "3}}"), {"city": "Lisbon", "days": 3}),
        (('Lisbon","days"', "30}", "30}", "7}}"), {"city": "Lisbon", "days": 7}),
        (('São\nPaulo"', "3}}"), {"city": "São\nPaulo", "days": 3}),
        (("Lisbon", "3}}"), {"city": "Lisbon", "days": 3}),
    ],
)
def test_holes_take_what_the_model_writes(texts: tuple[str, ...], arguments: Any) -> None:
    text, _ = guided(Says(*texts), {"weather": WEATHER}, "jsonl", "weather")
    assert json.loads(text)["arguments"] == arguments


def test_a_number_that_never_comes_leaves_the_call_unfilled() -> None:
    with pytest.raises(Unfilled, match="no number"):
        guided(Says('Lisbon"', "some", "a few", "many"), {"weather": WEATHER}, "jsonl", "weather")


@pytest.mark.parametrize(
    "piece", ["\\n", "-", "The tide is in. ", "Say " + "it, no, " * 12 + "late. "]
)
@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
def test_an_answer_that_goes_round_in_circles_is_ended_by_the_host(
    piece: str, style: Style
) -> None:
    ends = Endless("High water: four. ", piece)
    text, asker = guided(ends, {}, style, "none")
    (answer,) = read(text, "stop", ReadingRules(style=style)).messages
    assert isinstance(answer, FinalAnswer)
    said = piece if style == "xml" else json.loads(f'"{piece}"')
    first = ("High water: four. " + said).rstrip()
    assert answer.content.startswith(first)
    assert len(answer.content) < len(first) + HELD_FROM
    assert asker.pieces < 180


def test_an_answer_that_says_new_things_is_cut_off_by_its_tokens_alone() -> None:
    with pytest.raises(CutOff):
        guided(Endless(*(f"{number} " for number in range(10_000))), {}, "jsonl", "none")


def test_an_optional_argument_that_the_request_names_is_given() -> None:
    # Two of its silences are those of a backend that is asked for likelihoods.
    backend = Says("", 'Lisbon"}', "3}", '"fahrenheit"')
    text, _ = guided(
        backend, {"weather": WEATHER}, "jsonl", "weather", "Lisbon, 3 days, unit fahrenheit"
    )
    assert json.loads(text)["arguments"]["unit"] == "fahrenheit"


def test_a_list_that_the_model_never_ends_is_ended() -> None:
    spec = ToolSpec(
        "add",
        "",
        {
            "type": "object",
            "properties": {"all": {"type": "array", "items": {"type": "integer"}}},
            "required": ["all"],
        },
    )
    text, asker = guided(Says(*["1,"] * 300), {"add": spec}, "jsonl", "add")
    assert json.loads(text)["arguments"]["all"] == [1]
    assert asker.requests <= MAX_REQUESTS


def test_a_schema_that_refers_to_itself_is_filled() -> None:
    node: dict[str, Any] = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
        "required": ["value"],
    }
    spec = ToolSpec("grow", "", {**node, "$defs": {"node": node}})
    arguments = {"value": 1, "next": {"value": 2, "next": {"value": 3}}}
    target = write_call("grow", arguments)
    text, _ = guided(
        Oracle(PROMPT, target, scores=True, seed=1), {"grow": spec}, "jsonl", "required"
    )
    assert json.loads(text)["arguments"] == arguments


def test_a_call_or_an_answer_is_chosen_by_words_where_the_model_says_nothing() -> None:
    question = "What is the weather forecast for the city of Lisbon?"
    silence = ("", "")  # neither likelihoods nor a word
    backend = Says(*silence, 'Lisbon"', "3}")
    asked, _ = guided(backend, {"weather": WEATHER}, "jsonl", "auto", question)
    assert json.loads(asked)["type"] == "tool_call"
    backend = Says(*silence, 'Hi."}')
    greeted, _ = guided(backend, {"weather": WEATHER}, "jsonl", "auto", "Hello there!")
    assert json.loads(greeted) == {"type": "final_answer", "content": "Hi."}


@pytest.mark.slow
@pytest.mark.skipif("MLX_TOOLS_SUITES" not in os.environ, reason="MLX_TOOLS_SUITES is not set")
@settings(max_examples=1000)
@given(st.lists(tools(), min_size=1, max_size=6), STYLES, st.booleans(), st.integers())
def test_a_thousand_catalogs_and_no_call_that_does_not_fit(
    made: list[tuple[ToolSpec, dict[str, Any]]], style: Style, scores: bool, seed: int
) -> None:
    test_a_model_that_writes_rubbish_gets_a_valid_call_or_none.hypothesis.inner_test(  # type: ignore[attr-defined]
        made, style, scores, seed
    )


class Fond:
    """Likes one tool best whatever is asked, and another one more than usual when it is asked."""

    model = None

    async def complete(self, request: Any) -> Any:
        if not request.top_logprobs:
            yield Chunk('\u6771\u4eac"}}\n', "stop")
            return
        likes = {"alpha": -0.1, "beta": -4.0 if NEUTRAL in request.prompt else -2.0, "{": -9.0}
        yield Chunk("alpha", "length", scores=(tuple(TokenScore(*pair) for pair in likes.items()),))


NEUTRAL = "Nothing is asked.\n"


@pytest.mark.parametrize(("neutral", "called"), [(NEUTRAL, "beta"), ("", "alpha")])
def test_a_tool_that_a_model_always_likes_is_not_called_for_that(neutral: str, called: str) -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    catalog = {name: ToolSpec(name, "", schema) for name in ("alpha", "beta")}
    limits = AskerLimits(max_tokens=99, timeout=10, idle_timeout=10)
    asker = Asker(Fond(), PROMPT, limits, neutral)
    task = Task(style="jsonl", tools=catalog, tool_choice="required")
    guide = Guide(asker, task, guidance("\u6771\u4eac", (), tuple(catalog.values())))
    (call,) = calls(anyio.run(guide.write), "jsonl")
    assert call.name == called
