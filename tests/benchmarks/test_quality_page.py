"""The page on call quality is what the kept runs say, and keeps what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import quality_page as page


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
