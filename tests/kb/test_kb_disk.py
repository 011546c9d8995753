"""A knowledge base on a disk that is full, or may not be written to, can be searched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlx_tools.errors import KnowledgeBaseError
from mlx_tools.toolbox.kb import KnowledgeBase
from tests.core.full_disk import file_size_limit
from tests.kb.shelf import paths, written


def test_a_full_disk_can_be_searched(base: KnowledgeBase, folder: Path) -> None:
    base.add([folder])
    for _ in range(2):  # the first leaves behind what it could not finish
        with file_size_limit(20_000):
            assert paths(base, "Where are the cups?") == ["page.html"]
            assert [one.files for one in base.corpora()] == [5]
            with pytest.raises(KnowledgeBaseError, match="full"):
                base.remove("default")
    assert base.remove("default") == 5


def test_where_there_is_no_room_to_make_the_file_smaller_the_corpus_is_removed_all_the_same(
    base: KnowledgeBase, folder: Path, tmp_path: Path
) -> None:
    words = " ".join(f"word{n}" for n in range(25_000))
    base.add([written(tmp_path / "big", {f"{n}.txt": f"{n} {words}" for n in range(2)})], "big")
    base.add([folder], "small")
    message = "small was removed, but the room that it took was not given back.*full"
    with file_size_limit(400_000), pytest.raises(KnowledgeBaseError, match=message):
        base.remove("small")
    assert [one.name for one in base.corpora()] == ["big"]
    assert base.add([folder], "small").added == 5


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
