"""The times that the page on tasks for later shows."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from mlx_tools.plugins.schedule.when import parse_when
from tests.tables import table

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scheduler.md").read_text()
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def shown_times() -> list[str]:
    """The examples in the table of times."""
    table = PAGE.split("## When")[1].split("`TIME` is")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:] for line in table.splitlines() if line[:3] == "| `"]
    rows += [row.split("|")[1:] for row in re.findall(r"^\| [a-z].*$", table, re.MULTILINE)]
    cells = [row[1].strip() or row[0] for row in rows]
    return [time for cell in cells for time in re.findall("`([^`]+)`", cell)]


@table("text", shown_times())
def test_a_time_that_is_shown_is_understood(text: str) -> None:
    assert parse_when(text, "Europe/Berlin", NOW).next_after(NOW) is not None


def test_many_times_are_shown() -> None:
    shown = set(shown_times())
    assert {"2030-01-31 17:00", "in an hour", "fri 9am", "@weekly"} <= shown
    assert len(shown) > 25
