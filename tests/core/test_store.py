"""Sessions, artifacts and the approval key on disk."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.controller.outputs import shorten
from mlx_tools.errors import StorageError, TranscriptError
from mlx_tools.store.access_list import UsedFile
from mlx_tools.store.session_folder import TranscriptStore
from tests.core.full_disk import file_size_limit


def test_a_session_has_a_folder_of_its_own_that_only_its_owner_can_read(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path / "sessions")
    first, second = store.create(), store.create()
    assert first.session != second.session
    assert first.path is not None
    folder = Path(first.path).parent
    assert folder.name == first.session
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "sessions").stat().st_mode) == 0o700
    for files in (first, second):
        files.transcript.close()


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file stands here")
    with pytest.raises(TranscriptError, match="no session can be kept"):
        TranscriptStore(tmp_path / "sessions").create()


def test_the_approval_key_is_made_once_even_by_many_at_once(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path / "sessions")
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: TranscriptStore(store.folder).secret, range(32)))
    assert len(keys) == 1
    assert len(keys.pop()) == 32
    assert stat.S_IMODE((store.folder / "secret").stat().st_mode) == 0o600
    assert [p.name for p in store.folder.iterdir()] == ["secret"]


def test_an_approval_on_a_full_disk_is_not_used_up_and_then_is_once(tmp_path: Path) -> None:
    used, digest = UsedFile(tmp_path / "used"), "d" * 64
    assert used.take("other")
    with file_size_limit(20), pytest.raises(StorageError, match="nothing was run"):
        used.take(digest)
    assert (tmp_path / "used").read_text() == "other\n"
    assert [used.take(digest), used.take(digest)] == [True, False]


def test_an_approval_counts_behind_one_that_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / "used").write_text("ddd")
    used = UsedFile(tmp_path / "used")
    assert [used.take("e" * 64), used.take("e" * 64)] == [True, False]


def test_a_new_session_removes_what_expired_in_older_ones(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path)
    first = store.create()
    assert first.artifacts is not None
    key = first.artifacts.put("old")
    os.utime(first.artifacts.kept.folder / key, (0, 0))
    second = store.create()
    assert first.artifacts.get(key) is None
    for files in (first, second):
        files.transcript.close()


@given(st.text(min_size=30, max_size=300), st.integers(1, 100))
def test_a_shortened_text_keeps_its_head_and_tail_and_its_limit(text: str, limit: int) -> None:
    short = shorten(text, limit, lambda n, start: f"[{n} left out]")
    assert len(short) <= limit
    if len(text) <= limit:
        assert short == text
    elif "left out]" in short and "left out]" not in text:
        before, _, tail = short.partition(" left out]")
        head = before[: before.rindex("[")]  # the text may hold brackets of its own
        assert text.startswith(head)
        assert text.endswith(tail)
        assert f"[{len(text) - len(head) - len(tail)} left out]" in short
