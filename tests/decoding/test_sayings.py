"""What a request says in whole phrases: sums, times to come, what is to be kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.decoding import guidance
from mlx_tools.decoding.mentions import Mention
from mlx_tools.decoding.outline import beside, outline
from mlx_tools.decoding.sayings import clauses_to_keep, is_moment, moments, sums
from mlx_tools.decoding.turn import plan_turn
from mlx_tools.errors import UsageError
from mlx_tools.schedule import parse_when
from mlx_tools.tools import Registry
from mlx_tools.tools.builtin.calculator import calculator

NOW = datetime(2027, 8, 19, 10, 0, tzinfo=UTC)


def said(found: list[Mention]) -> list[str]:
    return [mention.text for mention in found]


@pytest.mark.parametrize(
    ("request_", "formula"),
    [
        ("How much is 15% of 260?", "15% of 260"),
        ("what's 7.5 percent of 1,280", "7.5% of 1280"),
        ("Divide 918.40 by 7.", "918.40 / 7"),
        ("91 divided by 7", "91 / 7"),
        ("multiply 12 with 9", "12 * 9"),
        ("How much is 12 times 9?", "12 * 9"),
        ("Add 1,250 and 75", "1250 + 75"),
        ("subtract 5 from 12", "12 - 5"),
        ("the square root of 7921", "sqrt(7921)"),
        ("What is 14 squared?", "14 ** 2"),
        ("2 to the power of 10", "2 ** 10"),
        ("the sum of 3, 4 and 5", "3 + 4 + 5"),
        ("the average of 1,200, 3 and 4.5", "mean(1200, 3, 4.5)"),
        ("the product of 6 and 7", "6 * 7"),
    ],
)
def test_a_sum_in_words_becomes_one_that_the_calculator_reads(request_: str, formula: str) -> None:
    assert said(list(sums(request_))) == [formula]
    assert anyio.run(calculator().call, {"expression": formula})


@pytest.mark.parametrize(
    "request_",
    ["I have 15 of 260 stamps", "the sum of 3", "times 9", "divide the cake by 7", "2 to the 10"],
)
def test_what_is_no_sum_gives_none(request_: str) -> None:
    assert list(sums(request_)) == []


@pytest.mark.parametrize(
    ("request_", "when"),
    [
        ("Remind me tomorrow at 8:15 to call.", "tomorrow 8:15"),
        ("Remind me at 9am tomorrow.", "tomorrow 9am"),
        ("In 3 hours, remind me.", "in 3 hours"),
        ("in an hour", "in an hour"),
        ("on 2027-12-03 at 14:00", "2027-12-03 14:00"),
        ("every weekday at 7:30: say hello", "every weekday 7:30"),
        ("Every Monday and Friday at 6 pm", "every monday and friday 6 pm"),
        ("on Monday at 18:00", "monday 18:00"),
        ("every 15 minutes", "every 15 minutes"),
        ("daily at noon", "daily noon"),
        ("Wake me at 17:30!", "17:30"),
        ("Remind me tomorrow at 9 to call Ada.", "tomorrow at 9"),
        ("At 9 on Friday, remind me.", "friday at 9"),
        ("every weekday at 7", "every weekday at 7"),
        ("Wake me at 18.", "at 18"),
        ("every other Friday at 8:30", "every other friday 8:30"),
        ("every 2 days at 9", "every 2 days at 9"),
        ("Remind me tonight at 8 to call.", "tonight at 8"),
        ("Tomorrow morning at 9, remind me.", "tomorrow morning at 9"),
        ("wake me at 7 in the morning", "at 7 in the morning"),
        ("at 7 in the evening tomorrow", "tomorrow at 7 in the evening"),
        ("every morning at 8", "every morning at 8"),
        ("every weekday morning at 7:30", "every weekday morning 7:30"),
        ("tomorrow at 8 o'clock", "tomorrow 8 o'clock"),
        ("on the 3rd at 5pm", "the 3rd 5pm"),
        ("at 5pm on December 3rd", "december 3rd 5pm"),
        ("on the first of every month at 9", "the first of every month at 9"),
        ("the day after tomorrow at noon", "the day after tomorrow noon"),
        ("in half an hour", "in half an hour"),
        ("in an hour and a half", "in an hour and a half"),
        ("In two hours, remind me.", "in two hours"),
        ("every half hour", "every half hour"),
    ],
)
def test_a_time_to_come_is_one_that_the_scheduler_reads(request_: str, when: str) -> None:
    assert said(moments(request_)) == [when]
    assert is_moment(when) or when[0].isdigit()
    assert parse_when(when, "Europe/Berlin", NOW)


@pytest.mark.parametrize(
    ("request_", "when"),
    [
        ("Remind me each Monday at 9 to run.", "each monday at 9"),
        ("On Mondays at 9, remind me.", "mondays at 9"),
        ("remind me Mondays and Fridays at 9", "mondays and fridays at 9"),
        ("monthly on the 15th at 9", "monthly on the 15th at 9"),
        ("every 2 days at 9 from Monday to water it", "every 2 days at 9 from monday"),
        ("in 3 days at 9 call Ann", "in 3 days at 9"),
        ("day after tomorrow at 9", "day after tomorrow at 9"),
        ("on December 3, 2027 at 9", "december 3, 2027 at 9"),
        ("on 3 Dec at 9", "3 dec at 9"),
    ],
)
def test_what_belongs_to_a_time_is_read_with_it(request_: str, when: str) -> None:
    assert said(moments(request_)) == [when]
    assert parse_when(when, "Europe/Berlin", NOW)


@pytest.mark.parametrize(
    "request_",
    [
        *("Remind me next Friday at 9 to run.", "every third Monday at 9", "every month at 9"),
        *("at 9 on the first Monday of every month", "at 9 every week", "by 5pm tomorrow"),
        *("a week from Monday at 9", "every day except Sunday at 9", "every day at 9 until Friday"),
        *("Monday and Tuesday at 9", "Monday next week at 9", "on 12/03 at 9", "weekly at 9"),
        *("every hour on weekdays", "every 2 hours from 9 to 17", "every 2 months at 9"),
        *("tomorrow at 9 and 17:00", "every 15 minutes between 9 and 17", "this weekend at 10"),
    ],
)
def test_a_part_of_a_time_is_not_taken_for_another_time(request_: str) -> None:
    found = said(moments(request_))
    assert len(found) == 1
    with pytest.raises(UsageError):
        parse_when(found[0], "Europe/Berlin", NOW)


@pytest.mark.parametrize(
    "request_",
    [
        "in 3 rooms",
        "at home",
        "on Monday",
        "ratio 8:15:2",
        "10",
        "tonight",
        "in the morning",
        "at 10.5 degrees",
        "today at 5%",
    ],
)
def test_what_is_no_time_to_come_gives_none(request_: str) -> None:
    assert moments(request_) == []


@pytest.mark.parametrize(
    ("request_", "kept"),
    [
        ("Make a note: the gas meter reads 48213.", ["the gas meter reads 48213."]),
        (
            "Please note that the plumber comes on Friday at 10:00. Thanks!",
            ["the plumber comes on Friday at 10:00"],
        ),
        ("Remind me tomorrow at 8:15 to water the tomatoes.", ["water the tomatoes"]),
        ("I want to be reminded on Monday at 18:00 that the bins go out.", ["the bins go out"]),
        ("remind me to call Ann at 5pm", ["call Ann"]),
        ("Remind me about the rent.", ["the rent"]),
        ("Meet at 8:15", []),
        ("What is that?", []),
    ],
)
def test_what_is_to_be_kept_is_found_in_a_request(request_: str, kept: list[str]) -> None:
    assert said(list(clauses_to_keep(request_)))[:1] == kept


@given(st.text(max_size=300))
def test_any_request_can_be_looked_through(request_: str) -> None:
    for mention in (*sums(request_), *moments(request_), *clauses_to_keep(request_)):
        assert 0 <= mention.start < mention.end <= len(request_) and mention.text.strip()


def test_each_is_offered_only_to_arguments_that_ask_for_it() -> None:
    request = "Remind me tomorrow at 8:15 to say how much 15% of 260 is."
    evidence = guidance(request, (), tuple(SPECS.values()))
    offered = {
        (spec.name, one.about.name): {c.mentions[0].kind for _, c in found if c.mentions}
        for spec in SPECS.values()
        for one in outline(spec)
        if (found := evidence.scored(one, beside(spec)))
    }
    for kind, places in {
        "sum": {("calculator", "expression")},
        "moment": {("schedule_task", "when")},
        "clause": {("schedule_task", "task"), ("notes_create", "content")},
    }.items():
        assert {place for place, kinds in offered.items() if kind in kinds} >= places
        assert not any(
            kind in kinds for (name, _), kinds in offered.items() if name == "notes_search"
        )
    assert {p for p, kinds in offered.items() if "moment" in kinds} == {("schedule_task", "when")}


@pytest.mark.parametrize(
    ("request_", "tool", "arguments"),
    [
        ("How much is 12% of 850?", "calculator", {"expression": "12% of 850"}),
        (
            "Remind me on Friday at 9:30 to renew the passport.",
            "schedule_task",
            {"task": "renew the passport", "when": "friday 9:30"},
        ),
    ],
)
def test_such_a_request_is_planned_by_its_words_alone(
    request_: str, tool: str, arguments: dict[str, str]
) -> None:
    (planned,) = plan_turn(guidance(request_, (), (SPECS[tool],)), (SPECS[tool],))
    assert {name: p.candidate.value for name, p in planned.plan.items()} == arguments


def test_a_formula_is_no_path() -> None:
    planned = plan_turn(guidance("What is 58 * 19?", (), (FILES,)), (FILES,))
    assert not any("58 * 19" in json.dumps(c.plan, default=str) for c in planned)


SPECS = {
    name: spec
    for name, spec in Registry.builtin().all_specs().items()
    if name in ("calculator", "schedule_task", "notes_create", "notes_search")
}
FILES = Registry.builtin().all_specs()["file_access"]
