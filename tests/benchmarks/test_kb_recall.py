"""The page has the figures that the benchmark of the knowledge base measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "kb_recall.py"
KEPT = json.loads(SCRIPT.with_suffix(".json").read_text())
PYTHON = KEPT["found"]["python"]
QUESTIONS = json.loads((ROOT / "benchmarks" / "kb_questions.json").read_text())


def test_the_figures_that_are_told_are_those_that_were_measured() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import kb_recall  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(SCRIPT.parent))
    page = (ROOT / "docs" / "knowledge-base.md").read_text()
    found = KEPT["found"]
    assert kb_recall.quality(found) in page
    assert kb_recall.costs(found["python"]) in page
    assert KEPT["command"] in page
    assert f"{PYTHON['files']:,} files, {PYTHON['corpus_mb']} MB" in page
    assert f"the {found['git']['files']} pages of git's" in page
    changes = PYTHON["again"]["five_changes"]
    assert f"took {changes['seconds']} s and left {changes['rows_as_before']:,} of" in page


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
