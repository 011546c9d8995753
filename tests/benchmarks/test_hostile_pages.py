"""Hostile pages are read or given up within bounds, and what is told of that was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "hostile_pages.py"


@pytest.mark.slow
def test_no_page_takes_more_than_it_may(tmp_path: Path) -> None:
    out = tmp_path / "pages.json"
    command = [sys.executable, str(SCRIPT), "--pages", "1056", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    kept = json.loads(out.read_text())
    found = kept["found"]
    assert found["largest_mb"] <= kept["limits"]["memory_mb"]
    assert found["longest_text"] <= kept["limits"]["text"]
    endings = {ending for row in found["kinds"].values() for ending in row["endings"]}
    assert "read" in endings and endings <= {"read", "cut", "given up"}


def test_the_figures_that_are_told_are_those_that_were_measured() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import hostile_pages  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(SCRIPT.parent))
    kept = json.loads(SCRIPT.with_suffix(".json").read_text())
    page = " ".join((ROOT / "docs" / "web.md").read_text().split())
    given_up = sum(row["endings"].get("given up", 0) for row in kept["found"]["kinds"].values())
    assert kept["command"] in page
    assert f"of {kept['found']['pages']:,} pages {given_up} were given up" in page
    assert f"{kept['found']['largest_mb']} MB" in page
    assert kept["found"]["pages"] >= 1000
    assert kept["found"]["largest_mb"] <= kept["limits"]["memory_mb"]
    assert set(kept["found"]["kinds"]) == set(hostile_pages.KINDS)
