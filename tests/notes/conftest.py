"""A folder for notes, and what lies beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mlx_tools.plugins.kb.notes import Notes

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of notes; a folder that none may touch lies beside it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("the secret word is xyzzy")
    return tmp_path / "notes"


@pytest.fixture
def notes(folder: Path) -> Notes:
    """The notes in ``folder``, which is made with the first of them; it is always noon."""
    return Notes(folder, lambda: NOON)
