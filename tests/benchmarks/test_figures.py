"""The figures that pages tell are those that were measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import quality_page as page

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
    assert f"Of {kept['found']['pages']:,} pages {given_up} were given up" in page
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
    page = " ".join((ROOT / "docs" / "built-in.md").read_text().split())
    kinds = ("reads", "writes", "deletes")
    walk, check = (kept["found"][way] for way in ("walk", "check, then open"))
    tried, leaked = (sum(walk[kind][what] for kind in kinds) for what in ("tried", "leaked"))
    assert f"outside the root in {leaked} of {tried:,} tries" in page
    assert f"then opening it, in {sum(check[kind]['leaked'] for kind in kinds)}" in page
    assert kept["command"] in page
    assert walk["reads"]["tried"] >= 100_000
    assert walk["writes"]["tried"] + walk["deletes"]["tried"] >= 100_000
    assert leaked == 0


# --- the page has the figures that the benchmark of the knowledge base measured ---------------

RECALL = ROOT / "benchmarks" / "kb_recall.py"
KEPT = json.loads(RECALL.with_suffix(".json").read_text())
PYTHON = KEPT["found"]["python"]


def test_the_figures_of_recall_are_those_that_were_measured() -> None:
    import kb_recall

    page = (ROOT / "docs" / "knowledge-base.md").read_text()
    found = KEPT["found"]
    assert kb_recall.table(found) in page
    assert KEPT["command"] in page
    words = " ".join(page.split())
    assert f" {PYTHON['files']:,} files" in words and f" {PYTHON['corpus_mb']} MB" in words
    assert f" {found['git']['files']} pages" in words
    assert f" {PYTHON['again']['nothing_changed']['seconds']} s" in words


# --- the page on call quality is what the kept runs say, and keeps what was measured -------------


def result(
    number: int, strategy: str, *, correct: bool, category: str = "multiple"
) -> dict[str, Any]:
    call = {"name": "play", "arguments": {"songs": [f"{number}"]}, "repairs": []}
    of = {"type": "item", "category": category, "strategy": strategy, "id": f"{category}_{number}"}
    told = {"correct": correct, "valid": True, "calls": [call], "requests": 2, "seconds": None}
    return of | told | {"completion": "left out"}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in [{"type": "settings"}, *rows]))
    return path


def test_the_committed_page_is_up_to_date() -> None:
    assert page.main(["--check"]) == 0


def test_what_is_kept_is_each_questions_last_result_with_its_calls(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(page.PAGE.read_text())
    old = write(
        tmp_path / "old", [result(1, "free", correct=False), result(2, "free", correct=True)]
    )
    new = write(tmp_path / "new", [result(1, "free", correct=True)])
    where = ["--folder", str(tmp_path), "--page", str(copy)]
    for file in (old, new):
        assert page.main(["--keep", "embedded", *where, str(file)]) == 0
    kept = [json.loads(line) for line in (tmp_path / "embedded.jsonl").read_text().splitlines()]
    assert [(one["id"], one["correct"]) for one in kept] == [
        ("multiple_1", True),
        ("multiple_2", True),
    ]
    assert kept[0]["calls"] == result(1, "free", correct=True)["calls"]
    assert "completion" not in kept[0]
    assert "| `multiple` | 2 of 2, 100 % (34–100) |" in copy.read_text()
    assert page.main(["--check", *where]) == 0
    copy.write_text(copy.read_text().replace("2 of 2", "1 of 2"))
    assert page.main(["--check", *where]) == 1


def test_a_page_without_a_place_for_a_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no place for the table of a strong model"):
        page.written("# Nothing", tmp_path)
