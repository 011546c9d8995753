"""Limits: defaults, bounds, and the way through JSON."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import UsageError
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import Limits, Policy, Rate, RateCounts, find_exceeded_rate
from mlx_tools.policy.rules import UNITS
from tests.tables import table

NAMES = [field.name for field in fields(Limits)]


@table("name", NAMES)
@table(
    "wrong",
    [
        *(0, -1, 10**12, "4", True, float("nan"), float("inf"), [], 1e-9),
        pytest.param(10**5000, id="too long to be written"),
    ],
)
def test_a_value_out_of_bounds_or_of_the_wrong_type_names_the_limit(name: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=rf"^limits\.{name}: ") as caught:
        Limits(**{name: wrong})
    assert len(str(caught.value)) < 200
    if not name.endswith("_timeout"):
        with pytest.raises(UsageError, match="whole number"):
            Limits(**{name: 2.5})


@given(st.fixed_dictionaries({}, optional={n: st.floats(0.01, 1000) for n in NAMES if "time" in n}))
def test_any_sound_times_survive_json(times: dict[str, float]) -> None:
    limits = Limits(**times)
    assert Limits.from_json(limits.to_json()) == limits
    assert (limits.max_iterations, limits.parallel) == (24, 4)
    assert Limits.from_json({"max_tokens": 7}) == Limits(max_tokens=7)


@pytest.mark.parametrize(
    ("context", "weak", "tokens", "chars"),
    [
        (None, False, 8_192, 8_000),
        (None, True, 512, 8_000),
        (2_048, False, 2_048, 4_000),
        (8_192, False, 8_192, 4_000),
        (8_192, True, 512, 4_000),
        (32_768, False, 16_384, 12_288),
        (131_072, False, 16_384, 32_000),
        (1, True, 1, 4_000),
    ],
)
def test_limits_that_are_not_set_follow_the_model(
    context: int | None, weak: bool, tokens: int, chars: int
) -> None:
    fitted = Limits().for_model(context, weak=weak)
    assert (fitted.max_tokens, fitted.max_observation_chars) == (tokens, chars)
    assert fitted.for_model(77) == fitted
    chosen = Limits(max_tokens=100, max_observation_chars=200)
    assert chosen.for_model(context, weak=weak) == chosen


def test_of_two_limits_the_lower_one_holds_and_one_that_follows_the_model_is_the_higher() -> None:
    follows, chosen = Limits(), Limits(max_tokens=9, max_iterations=30)
    assert follows.lower(chosen) == chosen.lower(follows) == Limits(max_tokens=9)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"max_tokens", "max_observation_chars"}))
def test_a_limit_that_does_not_follow_the_model_cannot_be_none(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^limits\.{name}: "):
        Limits(**{name: None})


@pytest.mark.parametrize("wrong", [{"max_iteration": 3}, [], None, "x"])
def test_what_is_no_set_of_limits_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        Limits.from_json(wrong)


# --- rates ----------------------------------------------------------------------------------------

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOOK = ToolSpec("look", effects=frozenset({"read"}))
PEEK = ToolSpec("peek", effects=frozenset({"read"}), plugin="eyes")


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def tally(*made: tuple[str, float | None]) -> RateCounts:
    return {
        f"c{number}": (name, "" if seconds is None else at(seconds))
        for number, (name, seconds) in enumerate(made)
    }


def rule(policy: Policy, made: RateCounts, now: str, spec: ToolSpec = LOOK) -> str | None:
    over = find_exceeded_rate(policy, spec, made, now)
    return over.rule if over is not None else None


def test_a_call_over_the_limit_is_told_with_its_rule_and_when_one_may_be_made_again() -> None:
    policy = Policy(rate_limits={"look": "2/minute"})
    made = tally(("look", 0), ("look", 10.25))
    over = find_exceeded_rate(policy, LOOK, made, at(30))
    assert over.rule == "rate_limit look 2/minute"
    assert over.reason.endswith("it may be called again at 2026-03-01T12:01:00Z")
    assert rule(policy, made, at(59.999)) is not None
    assert rule(policy, made, at(60)) is None
    assert rule(policy, tally(("look", 0)), at(1)) is None


def test_each_tool_that_a_pattern_means_has_a_count_of_its_own() -> None:
    policy = Policy(rate_limits={"*": "1/hour"})
    made = tally(("look", 0))
    assert rule(policy, made, at(1)) == "rate_limit * 1/hour"
    assert rule(policy, made, at(1), PEEK) is None
    assert rule(Policy(rate_limits={"plugin:eyes": "1/hour"}), tally(("peek", 0)), at(1)) is None
    assert rule(Policy(rate_limits={"plugin:eyes": "1/hour"}), tally(("peek", 0)), at(1), PEEK)


def test_of_several_rates_each_holds_and_the_longest_is_told() -> None:
    policy = Policy(rate_limits={"look": "1/minute", "l*": "1/hour", "peek": "1/day"})
    assert rule(policy, tally(("look", 0)), at(1)) == "rate_limit l* 1/hour"
    both = policy.intersect(Policy(allow=["*"], session_rate_limit="1/day"))
    assert rule(both, tally(("look", 0)), at(7200)) == "session_rate_limit 1/day"


@pytest.mark.parametrize(
    "unknown", ["", "yesterday", "2026-03-01T12:00:00", "9999-12-31T23:59:59Z"]
)
def test_a_time_that_is_not_known_counts_against_the_call(unknown: str) -> None:
    policy = Policy(rate_limits={"look": "2/second"})
    earlier = tally(("look", 0), ("look", 0))
    over = find_exceeded_rate(policy, LOOK, earlier, unknown)  # of the call itself
    assert over is not None and "not known" in over.reason
    made = {"c1": ("look", unknown), "c2": ("look", unknown)}  # of earlier ones
    over = find_exceeded_rate(policy, LOOK, made, at(1e6))
    assert over is not None and "not known" in over.reason


def test_a_clock_that_was_set_back_counts_against_the_call() -> None:
    policy = Policy(rate_limits={"look": "1/minute"})
    assert rule(policy, tally(("look", 0)), at(-86_400 * 365)) is not None
    assert rule(policy, tally(("look", 0)), at(60)) is None


@table(
    "wrong",
    [
        *("", "10", "10/min", "10/Minute", "0/minute", "-1/minute", "01/minute", "1.5/hour"),
        *("10 /hour", "1000000/day", "١/hour", "10/minute\n", None, 10, ["1/hour"]),
        pytest.param("9" * 5000 + "/hour", id="too long to be written"),
    ],
)
def test_what_is_no_rate_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Rate.parse(wrong, "policy.session_rate_limit")
    assert len(str(caught.value)) < 300
    with pytest.raises(UsageError, match=r"^policy\.rate_limits"):
        Policy(rate_limits={"look": wrong})


@pytest.mark.parametrize("wrong", [{"a b": "1/hour"}, {1: "1/hour"}, {"": "1/hour"}, [], "x", None])
def test_what_is_no_table_of_rates_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"^policy\.rate_limits"):
        Policy(rate_limits=wrong)


RATES = st.builds(Rate, st.integers(1, 5), st.sampled_from([1, 2, 3, 7]))
TIMES = st.lists(st.integers(0, 30), max_size=25).map(sorted)


@given(RATES, TIMES)
def test_no_window_ever_holds_more_calls_than_the_rate_allows(
    rate: Rate, wanted: list[int]
) -> None:
    let: list[int] = []
    for second in wanted:
        made = [at(one) for one in let]
        over = rate.find_full(made, at(second))
        if over is None:
            let.append(second)
            continue
        assert over.available_at is not None and over.available_at > START + timedelta(
            seconds=second
        )
        assert (
            rate.find_full(made, over.available_at.isoformat()) is None
        )  # what was promised holds
        just_before = over.available_at - timedelta(milliseconds=1)
        assert rate.find_full(made, just_before.isoformat()) is not None  # and not any sooner
    for first in let:
        assert sum(first <= second < first + rate.seconds for second in let) <= rate.calls


MADE = st.lists(st.none() | st.integers(0, 30), max_size=8)


@given(RATES, RATES, MADE, st.none() | st.integers(0, 30))
def test_a_rate_within_another_leaves_no_room_where_that_one_leaves_none(
    one: Rate, other: Rate, made: list[int | None], now: int | None
) -> None:
    times = ["" if second is None else at(second) for second in made]
    written = "" if now is None else at(now)
    if one.is_as_strict_as(other) and other.find_full(times, written) is not None:
        assert one.find_full(times, written) is not None


def test_within_is_no_more_calls_in_a_window_that_is_no_shorter() -> None:
    def within(one: str, other: str) -> bool:
        return Rate.parse(one).is_as_strict_as(Rate.parse(other))

    assert within("5/minute", "10/minute") and within("10/hour", "10/minute")
    assert not within("100/hour", "10/minute") and not within("11/minute", "10/minute")
    assert not within("1/minute", "60/hour")  # 60 made within the hour: that one has no room left
    assert all(within(f"3/{unit}", f"3/{unit}") for unit in UNITS)
