"""A folder with a few files, and a knowledge base in which nothing is yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase
from tests.kb.shelf import TEXTS
from tests.tools.file_calls import write_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "docs", TEXTS)


@pytest.fixture
def base(tmp_path: Path) -> KnowledgeBase:
    return KnowledgeBase(tmp_path / "kb.sqlite3")
