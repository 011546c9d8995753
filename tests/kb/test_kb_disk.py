"""A knowledge base on a disk that is full, or may not be written to, can be searched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlx_tools.errors import KnowledgeBaseError
from mlx_tools.toolbox import KnowledgeBase
from tests.core.full_disk import file_size_limit
from tests.kb.shelf import paths


def test_a_full_disk_can_be_searched(base: KnowledgeBase, folder: Path) -> None:
    base.add([folder])
    for _ in range(2):  # the first leaves behind what it could not finish
        with file_size_limit(20_000):
            assert paths(base, "Where are the cups?") == ["page.html"]
            assert [one.files for one in base.corpora()] == [5]
            with pytest.raises(KnowledgeBaseError, match="full"):
                base.remove("default")
    assert base.remove("default") == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_disk_that_is_read_only_can_be_searched(base: KnowledgeBase, folder: Path) -> None:
    base.add([folder])
    base.path.chmod(0o400)
    base.path.parent.chmod(0o500)
    try:
        assert paths(base, "Where are the cups?") == ["page.html"]
        assert [one.files for one in base.corpora()] == [5]
        with pytest.raises(KnowledgeBaseError, match="may not be written"):
            base.remove("default")
    finally:
        base.path.parent.chmod(0o700)
        base.path.chmod(0o600)
