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
    """The page has the table that the command makes of the figures beside it."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import symlink_race  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(SCRIPT.parent))
    kept = json.loads(SCRIPT.with_suffix(".json").read_text())
    page = (ROOT / "docs" / "tools.md").read_text()
    assert symlink_race.table(kept["found"]) in page
    assert kept["command"] in page
    walk = kept["found"]["walk"]
    assert walk["reads"]["tried"] >= 100_000
    assert walk["writes"]["tried"] + walk["deletes"]["tried"] >= 100_000
    assert sum(walk[kind]["leaked"] for kind in ("reads", "writes", "deletes")) == 0
