"""The figures that pages tell are those that were measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "benchmarks" / "hostile_pages.py"


@pytest.mark.slow
def test_no_page_takes_more_than_it_may(tmp_path: Path) -> None:
    out = tmp_path / "pages.json"
    command = [sys.executable, str(PAGES), "--pages", "1056", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    kept = json.loads(out.read_text())
    found = kept["found"]
    assert found["largest_mb"] <= kept["limits"]["memory_mb"]
    assert found["longest_text"] <= kept["limits"]["text"]
    endings = {ending for row in found["kinds"].values() for ending in row["endings"]}
    assert "read" in endings and endings <= {"read", "cut", "given up"}


def test_the_figures_of_hostile_pages_are_those_that_were_measured() -> None:
    import hostile_pages

    kept = json.loads(PAGES.with_suffix(".json").read_text())
    page = " ".join((ROOT / "docs" / "web.md").read_text().split())
    given_up = sum(row["endings"].get("given up", 0) for row in kept["found"]["kinds"].values())
    assert kept["command"] in page
    assert f"of {kept['found']['pages']:,} pages {given_up} were given up" in page
    assert f"{kept['found']['largest_mb']} MB" in page
    assert kept["found"]["pages"] >= 1000
    assert kept["found"]["largest_mb"] <= kept["limits"]["memory_mb"]
    assert set(kept["found"]["kinds"]) == set(hostile_pages.KINDS)


# --- links swapped in by another process: the walk lets nothing out and nothing throu ---------

RACE = ROOT / "benchmarks" / "symlink_race.py"


@pytest.mark.slow
def test_nothing_is_read_written_or_deleted_outside(tmp_path: Path) -> None:
    out = tmp_path / "race.json"
    command = [sys.executable, str(RACE), "--reads", "20000", "--changes", "20000"]
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True, cwd=ROOT)
    found = json.loads(out.read_text())["found"]
    for kind in ("reads", "writes", "deletes"):
        count = found["walk"][kind]
        assert count["leaked"] == 0
        assert 0 < count["done"] < count["tried"]  # links were met, and so were files
    assert found["walk"]["litter"] == 0
    # The race is one: checking first loses it now and then.
    assert sum(found["check, then open"][kind]["leaked"] for kind in ("reads", "writes")) > 0


def test_the_figures_of_the_race_are_those_that_were_measured() -> None:
    """The page tells how often a path led outside, of how many tries."""
    kept = json.loads(RACE.with_suffix(".json").read_text())
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


# --- the page has the figures that the benchmark of the knowledge base measured ---------------

RECALL = ROOT / "benchmarks" / "kb_recall.py"
KEPT = json.loads(RECALL.with_suffix(".json").read_text())
PYTHON = KEPT["found"]["python"]
QUESTIONS = json.loads((ROOT / "benchmarks" / "kb_questions.json").read_text())


def test_the_figures_of_recall_are_those_that_were_measured() -> None:
    import kb_recall

    page = (ROOT / "docs" / "knowledge-base.md").read_text()
    found = KEPT["found"]
    assert kb_recall.table(found) in page
    assert KEPT["command"] in page
    assert f"{PYTHON['files']:,} files, {PYTHON['corpus_mb']} MB" in page
    assert f"the {found['git']['files']} pages of git's" in page
    assert f"{PYTHON['again']['nothing_changed']['seconds']} s" in page


def test_it_was_measured_on_many_files_and_questions_nobody_repeats() -> None:
    assert PYTHON["files"] >= 2_000
    asked = {question["question"] for question in QUESTIONS}
    assert len(asked) == len(QUESTIONS) >= 100
    assert all(question["files"] for question in QUESTIONS)
    for of, found in KEPT["found"].items():
        asked_of = [question for question in QUESTIONS if question["of"] == of]
        assert len(asked_of) >= 50
        for engine in found["engines"].values():
            assert len(engine["places"]) == len(asked_of)


def test_a_second_add_touched_what_changed_and_nothing_else() -> None:
    again = PYTHON["again"]
    assert again["nothing_changed"]["rows_as_before"] is True
    changes = again["five_changes"]
    assert (changes["changed"], changes["added"], changes["removed"]) == (3, 1, 1)
    assert changes["rows_as_before"] == again["files"] - 4
    assert changes["unchanged"] <= changes["rows_as_before"]  # of those, files that hold text
