"""The table of whole runs in the documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.tasks_table import PAGE, SETS, Set, page, results, table

TASKS = SETS[0].tasks


@pytest.mark.parametrize("one", SETS, ids=lambda one: one.name)
def test_the_page_shows_what_is_kept(one: Set) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, results([one.kept]), one) == text
    assert f"table of {one.name}:" in text


def test_no_task_stands_in_both_sets() -> None:
    tasks = [task for one in SETS for task in one.tasks]
    assert len({task.id for task in tasks}) == len({task.question for task in tasks}) == len(tasks)


def test_every_task_has_its_row_and_the_last_result_counts(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    row = {"category": "clock", "id": "year", "strategy": "guided", "correct": False, "fault": "x"}
    file.write_text(json.dumps(row) + "\n" + json.dumps(row | {"correct": True, "fault": ""}))
    made = table(results([file]), TASKS)
    assert "| `year` | Which year do we have? | **yes** |" in made
    assert "| **clock** | | 1 of 1 |" in made and "| guided |" in made and "free" not in made
    assert sum(line.startswith("| `") for line in made.splitlines()) == len(TASKS)
