"""Intervals and tests: properties, and values that are in print."""

from __future__ import annotations

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


def test_a_mean_with_an_empty_part_is_none_and_weights_must_be_weights() -> None:
    assert weighted_mean([(1, Share(1, 2)), (1, Share(0, 0))]) is None
    for weights in ((0, 0), (-1, 2), ()):
        with pytest.raises(ValueError, match="weights"):
            weighted_mean([(weight, Share(1, 2)) for weight in weights])


# --- of two shares on the same items ------------------------------------------------------------


def test_a_difference_of_shares_is_as_published() -> None:
    value, (low, high) = difference(36, 12, 2, 0)  # Newcombe 1998, table II
    assert value == pytest.approx(0.2)
    assert (low, high) == (pytest.approx(0.0569, abs=5e-5), pytest.approx(0.3404, abs=5e-5))
