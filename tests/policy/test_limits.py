"""Limits: defaults, bounds, and the way through JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import UsageError
from mlx_tools.policy import Limits

NAMES = [field.name for field in fields(Limits)]


def test_the_defaults_are_within_their_bounds_and_survive_json() -> None:
    limits = Limits()
    assert limits.max_iterations == 4
    assert limits.parallel == 4
    assert Limits.from_json(limits.to_json()) == limits
    assert Limits.from_json({"max_tokens": 7}) == Limits(max_tokens=7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "wrong",
    [
        *(0, -1, 10**12, "4", None, True, float("nan"), float("inf"), [], 1e-9),
        pytest.param(10**5000, id="too long to be written"),
    ],
)
def test_a_value_out_of_bounds_or_of_the_wrong_type_names_the_limit(name: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=rf"^limits\.{name}: ") as caught:
        Limits(**{name: wrong})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("_timeout")])
def test_a_count_is_a_whole_number(name: str) -> None:
    with pytest.raises(UsageError, match="whole number"):
        Limits(**{name: 2.5})


@given(st.fixed_dictionaries({}, optional={n: st.floats(0.01, 1000) for n in NAMES if "time" in n}))
def test_any_sound_times_survive_json(times: dict[str, float]) -> None:
    limits = Limits(**times)
    assert Limits.from_json(limits.to_json()) == limits


@pytest.mark.parametrize("wrong", [{"max_iteration": 3}, [], None, "x"])
def test_what_is_no_set_of_limits_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        Limits.from_json(wrong)
