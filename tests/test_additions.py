"""Frequent additions are made in few places, and work there."""

from __future__ import annotations

import pytest

from scripts.additions import ADDITIONS, run_addition

MOST = {"setting of a run": 2, "stop reason": 2, "kind of record": 3, "backend": 2}
"""The existing files that an addition may touch at most."""


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.heavy] * (k != "backend")) for k in MOST]
)
def test_an_addition_works_with_what_it_touches(kind: str) -> None:
    done = run_addition(ADDITIONS[kind])
    assert done.returncode == 0, done.stderr
    assert len(ADDITIONS[kind].edits) <= MOST[kind]
