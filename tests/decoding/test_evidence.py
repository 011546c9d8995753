"""What the words of a request decide with no model at all, and what they never do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends.base import Chunk, CompletionRequest, TokenScore
from mlx_tools.decoding import Asker, AskerLimits, Guide, Task, Unfilled, guidance
from mlx_tools.decoding.outline import beside, outline
from mlx_tools.messages import ToolCall
from mlx_tools.protocol import ReadingRules, read
from mlx_tools.spec import ToolSpec


class Mute:
    """Finds every token equally likely, and writes nothing."""

    model = None

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        if request.top_logprobs:
            yield Chunk("\0", "length", scores=((TokenScore("\0", -3.0), TokenScore("\1", -3.0)),))
        else:
            yield Chunk("", "stop")


def tool(name: str, description: str, *needed: str, **properties: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(needed)}
    return ToolSpec(name, description, schema)


def text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


def whole(description: str) -> dict[str, str]:
    return {"type": "integer", "description": description}


AREA = tool(
    "triangle_area",
    "Calculates the area of a triangle.",
    "base",
    "height",
    base=whole("The base of the triangle."),
    height=whole("The height of the triangle."),
    unit=text("The unit of measure. Default is 'cm'."),
)
ROUTE = tool(
    "get_route",
    "Finds the route between two cities.",
    "start",
    "end",
    start=text("The city to start from."),
    end=text("The city to arrive at."),
)
CATALOG = {spec.name: spec for spec in (AREA, ROUTE)}


def calls(request: str, choice: str = "required", most: int = 8) -> list[tuple[str, Any]]:
    asker = Asker(Mute(), "", AskerLimits(max_tokens=500, timeout=5, idle_timeout=5))
    task = Task(style="jsonl", tools=CATALOG, tool_choice=choice, max_calls=most)
    guide = Guide(asker, task, guidance(request, (), tuple(CATALOG.values())))
    reading = read(anyio.run(guide.write), "stop", ReadingRules(max_calls=most))
    assert reading.error is None
    return [(m.name, m.arguments) for m in reading.messages if isinstance(m, ToolCall)]


def test_the_words_around_a_number_say_which_argument_it_is() -> None:
    asked = "What is the area of a triangle with a height of 5 and a base of 12?"
    assert calls(asked) == [("triangle_area", {"base": 12, "height": 5})]


def test_from_and_to_say_which_end_a_name_is() -> None:
    asked = "Get me the route to Rome from Milan."
    assert calls(asked) == [("get_route", {"start": "Milan", "end": "Rome"})]


def test_a_turn_has_as_many_calls_as_the_request_asks_for() -> None:
    asked = (
        "Find the route from Oslo to Bergen, and also calculate the area of a triangle with a base"
        " of 4 and a height of 9."
    )
    assert sorted(calls(asked)) == [
        ("get_route", {"start": "Oslo", "end": "Bergen"}),
        ("triangle_area", {"base": 4, "height": 9}),
    ]
    assert len(calls(asked, most=1)) == 1


def test_no_call_is_made_twice_in_a_turn() -> None:
    asked = "Find the route from Oslo to Bergen, then again the route from Oslo to Bergen."
    made = calls(asked)
    assert len(made) == len({json.dumps(call) for call in made})


PIECES = "find route from to Oslo Rome and then triangle area base height 5 7 12 of a 'x' , . 3%"
REQUESTS = st.lists(st.sampled_from(PIECES.split(" ")), max_size=25).map(" ".join)


@given(REQUESTS, st.integers(1, 8))
def test_what_a_mute_model_calls_with_stands_in_the_request(request: str, most: int) -> None:
    try:
        made = calls(request, most=most)
    except Unfilled:
        return
    assert len(made) <= most
    for _, arguments in made:
        for value in arguments.values():
            if isinstance(value, str):
                assert value in request
            else:
                assert str(value) in request


@given(REQUESTS)
def test_a_plan_gives_nothing_to_two_arguments(request: str) -> None:
    evidence = guidance(request, (), tuple(CATALOG.values()))
    for spec in CATALOG.values():
        plan = evidence.plan(outline(spec), beside(spec))
        spans = [(m.start, m.end) for p in plan.values() for m in p.candidate.mentions]
        assert all(a[1] <= b[0] for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False))


def test_a_request_without_words_leaves_all_to_the_model() -> None:
    evidence = guidance("")
    assert evidence.bias(9.0) == 0.0
