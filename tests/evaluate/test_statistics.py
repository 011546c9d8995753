"""Intervals and tests: properties, and values that are in print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.app.statistics import mcnemar, wilson

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
