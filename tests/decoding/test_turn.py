"""The calls of a turn, planned by the words of the request."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.decoding import guidance
from mlx_tools.decoding.clauses import MAX_CLAUSES, clauses
from mlx_tools.decoding.turn import TurnPlanner, plan_turn
from mlx_tools.messages import ToolCall
from mlx_tools.spec import ToolSpec

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def tool(name: str, description: str, **members: dict[str, Any]) -> ToolSpec:
    schema = {"type": "object", "properties": members, "required": [*members]}
    return ToolSpec(name, description, schema)


def city(description: str = "The name of the city.") -> dict[str, Any]:
    return TEXT | {"description": description}


WEATHER = tool("get_weather", "Gets the current weather of a city.", city=city())
POPULATION = tool("get_population", "Gets the population of a country.", country=city("A country."))
RESULTS = tool(
    "team_results",
    "Gets the results of a team in a season.",
    team=TEXT | {"description": "The name of the team."},
    season=NUMBER | {"description": "The year of the season."},
)
EXCHANGE = tool(
    "convert_currency",
    "Converts an amount of money.",
    amount=NUMBER | {"description": "The amount."},
    source=TEXT | {"description": "The currency to convert from."},
    target=TEXT | {"description": "The currency to convert to."},
)
TOOLS = (WEATHER, POPULATION, RESULTS)


def planned(request: str, *tools: ToolSpec, answered: tuple[ToolCall, ...] = ()) -> list[Any]:
    """Of each call the tool's name and the values of its arguments."""
    calls = plan_turn(guidance(request, answered, tools or TOOLS), tools or TOOLS)
    return [
        (call.spec.name, {name: one.candidate.value for name, one in call.plan.items()})
        for call in calls
    ]


def test_a_list_is_spread_over_calls() -> None:
    asked = "What is the weather in Paris, London and Tokyo?"
    cities = [arguments["city"] for _, arguments in planned(asked)]
    assert cities == ["Paris", "London", "Tokyo"]


def test_two_lists_are_taken_each_with_each() -> None:
    asked = "Find the team results of Lakers and Bulls in the seasons 2018 and 2020."
    made = [(arguments["team"], arguments["season"]) for _, arguments in planned(asked, RESULTS)]
    assert sorted(made) == [(t, y) for t in ("Bulls", "Lakers") for y in (2018, 2020)]


def test_two_lists_are_taken_one_with_one_where_the_request_says_so() -> None:
    asked = "Find the team results of Lakers and Bulls in the seasons 2018 and 2020 respectively."
    made = [(arguments["team"], arguments["season"]) for _, arguments in planned(asked, RESULTS)]
    assert sorted(made) == [("Bulls", 2020), ("Lakers", 2018)]


def test_each_clause_has_its_own_tool() -> None:
    asked = "Get the current weather in Oslo, and then get the population of Peru."
    assert planned(asked) == [
        ("get_weather", {"city": "Oslo"}),
        ("get_population", {"country": "Peru"}),
    ]


def test_a_plain_list_of_names_is_enough() -> None:
    made = planned("weather in Oslo and Bergen please")
    assert made == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]


def test_each_of_two_things_keeps_its_own() -> None:
    made = planned("Convert 50 EUR to USD and 70 GBP to JPY.", EXCHANGE)
    assert [tuple(arguments.values()) for _, arguments in made] == [
        (50, "EUR", "USD"),
        (70, "GBP", "JPY"),
    ]


def test_a_clause_without_a_word_of_any_tool_goes_on_with_the_one_before() -> None:
    made = planned("What is the population of France? And of Spain?", *TOOLS, EXCHANGE)
    countries = [("get_population", {"country": country}) for country in ("France", "Spain")]
    assert made == countries


def test_a_call_has_what_it_lacks_from_another_one() -> None:
    asked = "Find the team results of Lakers in the season 2018. Also the season 2020, please."
    made = [(arguments["team"], arguments["season"]) for _, arguments in planned(asked, RESULTS)]
    assert sorted(made) == [("Lakers", 2018), ("Lakers", 2020)]


def test_what_was_answered_is_not_planned_again() -> None:
    asked = "What is the weather in Paris, London and Tokyo?"
    answered = (ToolCall("get_weather", {"city": "Paris"}),)
    cities = [arguments["city"] for _, arguments in planned(asked, answered=answered)]
    assert cities == ["London", "Tokyo"]


@pytest.mark.parametrize(
    "asked",
    ["What is the weather in Oslo?", "Hello, how is the weather in New York, NY today?", "Hi."],
)
def test_one_thing_asked_is_one_call(asked: str) -> None:
    assert len(planned(asked)) == 1


WORDS = (
    "weather population results team city Paris London Tokyo Lakers Bulls 2018 2020 and then , . ?"
    " 'x' also respectively in of the 5 7.5 \n"
)
REQUESTS = st.lists(st.sampled_from(WORDS.split(" ")), max_size=40).map(" ".join)


@given(REQUESTS)
def test_clauses_are_the_request_in_order(request: str) -> None:
    evidence = guidance(request)
    found = clauses(request, evidence.mentions, evidence.lists)
    assert 1 <= len(found) <= MAX_CLAUSES
    assert found[0].start == 0 and found[-1].end == len(request)
    assert all(one.end <= other.start for one, other in pairwise(found))


@given(REQUESTS)
def test_a_plan_has_what_the_request_says_and_no_call_twice(request: str) -> None:
    calls = TurnPlanner(guidance(request, (), TOOLS), TOOLS).plan()
    assert len(calls) <= 8
    values = []
    for call in calls:
        assert 0 <= call.start <= call.end <= len(request)
        for one in call.plan.values():
            for mention in one.candidate.mentions:
                assert str(one.candidate.value) in request[mention.start : mention.end]
        values.append((call.spec.name, {n: p.candidate.value for n, p in call.plan.items()}))
    assert all(value not in values[:number] for number, value in enumerate(values))
