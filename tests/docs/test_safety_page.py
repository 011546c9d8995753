"""The page on safety names tests and scripts that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "safety.md").read_text(encoding="utf-8")


def test_every_row_names_what_shows_it_and_that_exists() -> None:
    rows = [row for row in PAGE.split("\n") if row.startswith("| ")][2:]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`((?:tests|benchmarks)/[^`]+)`", row.rsplit("|", 2)[1])
        assert named, row
        for name in named:
            assert (ROOT / name).is_file(), name
