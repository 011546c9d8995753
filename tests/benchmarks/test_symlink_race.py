"""Links swapped in by another process: the walk lets nothing out and nothing through."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "symlink_race.py"


@pytest.mark.slow
def test_nothing_is_read_written_or_deleted_outside(tmp_path: Path) -> None:
    out = tmp_path / "race.json"
    command = [sys.executable, str(SCRIPT), "--reads", "20000", "--changes", "20000"]
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True, cwd=ROOT)
    found = json.loads(out.read_text())["found"]
    for kind in ("reads", "writes", "deletes"):
        count = found["walk"][kind]
        assert count["leaked"] == 0
        assert 0 < count["done"] < count["tried"]  # links were met, and so were files
    assert found["walk"]["litter"] == 0
    # The race is one: checking first loses it now and then.
    assert sum(found["check, then open"][kind]["leaked"] for kind in ("reads", "writes")) > 0


def test_the_figures_that_are_told_are_those_that_were_measured() -> None:
    """The page tells how often a path led outside, of how many tries."""
    kept = json.loads(SCRIPT.with_suffix(".json").read_text())
    page = " ".join((ROOT / "docs" / "tools.md").read_text().split())
    kinds = ("reads", "writes", "deletes")
    walk, check = (kept["found"][way] for way in ("walk", "check, then open"))
    tried, leaked = (sum(walk[kind][what] for kind in kinds) for what in ("tried", "leaked"))
    assert f"by the walk {leaked} of {tried:,} tries" in page
    assert f"then opening it {sum(check[kind]['leaked'] for kind in kinds)}" in page
    assert kept["command"] in page
    assert walk["reads"]["tried"] >= 100_000
    assert walk["writes"]["tried"] + walk["deletes"]["tried"] >= 100_000
    assert leaked == 0
