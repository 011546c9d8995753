"""Baselines: what passes less often than it did."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.app.statistics import Share, fisher
from mlx_tools.errors import UsageError
from mlx_tools.golden import (
    Baseline,
    Column,
    Difference,
    GoldenCheck,
    Sample,
    read_results,
    write_results,
)

WRONG = Difference("outcome", "the calls", "", "a", "b")


def _check(name: str, hits: int, total: int, model: str = "m") -> GoldenCheck:
    samples = [Sample(differences=() if n < hits else (WRONG,)) for n in range(total)]
    cell = Column(model, "jsonl", "free")
    return GoldenCheck(name=name, path="", mode="live", cell=cell, samples=tuple(samples))


def test_what_is_not_drawn_at_random_must_not_fall_at_all() -> None:
    known = Baseline.of([_check("a", 1, 1), _check("b", 0, 1)], drawn=False)
    assert known.regressions([_check("a", 1, 1), _check("b", 1, 1)]) == []
    (fallen,) = known.regressions([_check("a", 0, 1), _check("b", 0, 1)])
    assert (fallen.name, fallen.before, fallen.after) == ("a", Share(1, 1), Share(0, 1))


def test_what_is_drawn_at_random_falls_where_that_is_no_chance() -> None:
    known = Baseline.of([_check("a", 9, 10)], drawn=True)
    assert known.regressions([_check("a", 7, 10)]) == []
    assert [f.name for f in known.regressions([_check("a", 2, 10)])] == ["", "a"]


def test_a_cell_falls_as_a_whole_where_no_transcript_alone_does() -> None:
    known = Baseline.of([_check(str(n), 5, 5) for n in range(8)], drawn=True)
    found = known.regressions([_check(str(n), 4, 5) for n in range(8)])
    assert [f.name for f in found] == [""]


@given(
    before=st.integers(0, 8),
    after=st.integers(0, 8),
    more=st.integers(0, 4),
    extra=st.integers(0, 4),
)
def test_the_exact_test_is_a_probability_and_falls_with_the_hits(
    before: int, after: int, more: int, extra: int
) -> None:
    first, second = Share(before, before + more), Share(after, after + extra)
    p = fisher(first, second)
    assert 0 < p <= 1 + 1e-12
    if after:
        assert fisher(first, Share(after - 1, after + extra)) <= p + 1e-12


def test_the_exact_test_is_that_of_the_textbook() -> None:
    # Fisher's tea: 4 of 4 against 0 of 4 is 1 in 70.
    assert fisher(Share(4, 4), Share(0, 4)) == pytest.approx(1 / 70)
    assert fisher(Share(3, 4), Share(1, 4)) == pytest.approx(17 / 70)


def test_baselines_and_results_are_read_back(tmp_path: Path) -> None:
    checks = [_check("a", 1, 2), GoldenCheck(name="é", path="p", samples=(Sample(error="no"),))]
    known = Baseline.of(checks, drawn=True)
    known.write(tmp_path / "b.json")
    assert Baseline.read(tmp_path / "b.json") == known
    write_results(checks, tmp_path / "r.jsonl")
    assert read_results(tmp_path / "r.jsonl") == checks


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"golden_baseline":1}', '{"golden_baseline":9}'])
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        Baseline.read(path)
    with pytest.raises(UsageError):
        read_results(path)
    with pytest.raises(UsageError, match="cannot be read"):
        Baseline.read(tmp_path / "none")
