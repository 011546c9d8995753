"""A folder for notes, and what lies beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_tools.toolbox.notes import Notes
from tests.notes.at_noon import notes_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where notes go; a folder that none may touch lies beside it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("the secret word is xyzzy")
    return tmp_path / "notes"


@pytest.fixture
def notes(folder: Path) -> Notes:
    """The notes in ``folder``, which is made with the first of them."""
    return notes_in(folder)
