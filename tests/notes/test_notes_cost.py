"""A search in notes ends, whatever was asked and whatever stands in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mlx_tools.toolbox.note_tools import notes_search, ranked
from mlx_tools.toolbox.notes import FoundNotes, Note, Notes
from mlx_tools.tools.context import CONTEXT, ToolContext

NOTES = [Note(f"{number}.md", f"Note {number}", "bread and flour") for number in range(50)]


def test_a_search_that_nobody_waits_for_ends_before_the_next_note() -> None:
    looked: list[int] = []

    def given_up() -> bool:
        looked.append(1)
        return len(looked) > 5

    assert ranked(NOTES, "bread", given_up) == []
    assert len(looked) == 6


def test_of_a_query_without_end_the_first_words_count() -> None:
    many = " ".join(f"{chr(97 + n % 26) * 3}{chr(97 + n // 26) * 3}" for n in range(400))
    late = Note("late.md", "Late", many.split()[-1])
    early = Note("early.md", "Early", many.split()[0])
    assert [note for note, _ in ranked([late, early], many)] == [early]


class Cancelled(Notes):
    """Notes whose reader is given up as soon as all are read."""

    def __init__(self, folder: Path, context: ToolContext) -> None:
        super().__init__(folder)
        self._context = context

    def read_all(self, given_up: Callable[[], bool] = lambda: False) -> FoundNotes:
        found = super().read_all(given_up)
        assert found.notes and not given_up()
        self._context.cancel()
        return found


def test_the_tool_looks_through_no_note_once_it_was_given_up(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("bread")
    context = ToolContext()
    token = CONTEXT.set(context)
    try:
        found = notes_search(Cancelled(tmp_path, context)).blocking({"query": "bread"})
    finally:
        CONTEXT.reset(token)
    assert "a.md" not in str(found)
