"""Intervals and tests: properties, and values that are in print."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.app.statistics import Share, difference, mcnemar, weighted_mean, wilson

shares = st.integers(1, 5000).flatmap(
    lambda total: st.tuples(st.integers(0, total), st.just(total))
)


@given(shares)
def test_an_interval_holds_its_share_and_stays_within_0_and_1(share: tuple[int, int]) -> None:
    hits, total = share
    low, high = wilson(hits, total)
    assert 0 <= low <= hits / total <= high <= 1
    assert low < high


@given(shares)
def test_an_interval_is_that_of_the_misses_turned_round(share: tuple[int, int]) -> None:
    hits, total = share
    low, high = wilson(hits, total)
    other_low, other_high = wilson(total - hits, total)
    assert math.isclose(low, 1 - other_high, abs_tol=1e-12)
    assert math.isclose(high, 1 - other_low, abs_tol=1e-12)


@given(shares, st.integers(2, 20))
def test_more_items_of_the_same_share_make_an_interval_narrower(
    share: tuple[int, int], factor: int
) -> None:
    hits, total = share
    low, high = wilson(hits, total)
    narrow_low, narrow_high = wilson(hits * factor, total * factor)
    assert narrow_high - narrow_low < high - low


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_intervals_are_those_in_print(hits: int, total: int, low: float, high: float) -> None:
    assert wilson(hits, total) == pytest.approx((low, high), abs=5e-5)


def test_of_nothing_nothing_is_known() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert Share(0, 0).value is None
    with pytest.raises(ValueError, match="3 of 2"):
        Share(3, 2)


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_a_probability_and_does_not_care_which_is_first(a: int, b: int) -> None:
    p = mcnemar(a, b)
    assert 0 < p <= 1
    assert p == mcnemar(b, a)
    if a == b:
        assert p == 1


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_more_uneven_split_of_as_many_items_is_less_likely(a: int, b: int) -> None:
    if 0 < a <= b:
        assert mcnemar(a - 1, b + 1) < mcnemar(a, b) or mcnemar(a, b) == 1


def test_mcnemar_is_the_binomial_test() -> None:
    assert mcnemar(0, 5) == pytest.approx(2 * 0.5**5)
    assert mcnemar(1, 9) == pytest.approx(2 * 11 / 1024)
    assert mcnemar(0, 0) == 1
    with pytest.raises(ValueError, match="at least 0"):
        mcnemar(-1, 2)


@given(st.lists(st.tuples(st.floats(0.01, 10), shares), min_size=1, max_size=6))
def test_a_mean_lies_between_its_parts_and_in_its_interval(
    parts: list[tuple[float, tuple[int, int]]],
) -> None:
    found = weighted_mean([(weight, Share(*share)) for weight, share in parts])
    assert found is not None
    values = [hits / total for _, (hits, total) in parts]
    assert min(values) - 1e-9 <= found.value <= max(values) + 1e-9
    assert found.interval[0] <= found.value <= found.interval[1]


@given(shares)
def test_the_mean_of_one_share_is_that_share(share: tuple[int, int]) -> None:
    one = Share(*share)
    found = weighted_mean([(3.0, one)])
    assert found is not None
    assert found.value == pytest.approx(one.value)
    assert found.interval == pytest.approx(one.interval)


def test_equal_parts_make_a_narrower_mean_than_each() -> None:
    part = Share(50, 100)
    found = weighted_mean([(1, part)] * 4)
    assert found is not None
    width = part.interval[1] - part.interval[0]
    assert found.interval[1] - found.interval[0] == pytest.approx(width / 2)


def test_a_mean_with_an_empty_part_is_none_and_weights_must_be_weights() -> None:
    assert weighted_mean([(1, Share(1, 2)), (1, Share(0, 0))]) is None
    for weights in ((0, 0), (-1, 2), ()):
        with pytest.raises(ValueError, match="weights"):
            weighted_mean([(weight, Share(1, 2)) for weight in weights])


# --- of two shares on the same items ------------------------------------------------------------

COUNTS = st.tuples(*[st.integers(0, 60)] * 4).filter(any)


def test_a_difference_of_shares_is_as_published() -> None:
    value, (low, high) = difference(36, 12, 2, 0)  # Newcombe 1998, table II
    assert value == pytest.approx(0.2)
    assert (low, high) == (pytest.approx(0.0569, abs=5e-5), pytest.approx(0.3404, abs=5e-5))


@given(COUNTS)
def test_a_difference_lies_in_its_interval_and_turns_round_with_the_two(
    counts: tuple[int, int, int, int],
) -> None:
    both, one, other, neither = counts
    value, (low, high) = difference(both, one, other, neither)
    assert -1 - 1e-9 <= low <= value + 1e-9 and value - 1e-9 <= high <= 1 + 1e-9
    turned, (least, most) = difference(both, other, one, neither)
    assert turned == pytest.approx(-value)
    assert (least, most) == (pytest.approx(-high), pytest.approx(-low))
