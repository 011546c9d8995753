"""Artifacts: bounded in size, gone after their time, whatever the clock does."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.store.artifacts import (
    CLOCK_SETTLES,
    KEEP_SECONDS,
    SWEEP_EVERY,
    ArtifactStore,
    BlobFiles,
    Sweeper,
)
from mlx_tools.store.session_folder import TranscriptStore
from tests.waiting import wait_until

DAY = 86_400.0


def aged(store: ArtifactStore, text: str, seconds: float, now: float | None = None) -> str:
    """An artifact that was written so long before ``now``."""
    key = store.add(text)
    assert key is not None
    when = (time.time() if now is None else now) - seconds
    os.utime(store.blobs.folder / key, (when, when))
    return key


# --- size ---


def test_the_oldest_make_room_for_a_new_one_unless_it_is_larger_than_all_that_may_be_kept(
    tmp_path: Path,
) -> None:
    store = ArtifactStore(BlobFiles(tmp_path, max_bytes=100))
    keys = [aged(store, str(n) * 40, 100 - n) for n in range(3)]
    assert store.add("é" * 51) is None
    assert [store.get(key) for key in keys] == [None, "1" * 40, "2" * 40]


def test_the_newest_stays_though_it_seems_to_be_the_oldest(tmp_path: Path) -> None:
    """The clock was set back since the others were written."""
    store = ArtifactStore(BlobFiles(tmp_path, max_bytes=100))
    for letter in "ab":
        aged(store, letter * 40, -DAY)
    newest = store.add("c" * 60)
    assert newest is not None and store.get(newest) == "c" * 60
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 100


@given(st.lists(st.text(max_size=60), max_size=12), st.integers(0, 150))
def test_all_together_never_take_more_than_they_may(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], bound: int
) -> None:
    store = ArtifactStore(BlobFiles(tmp_path_factory.mktemp("a"), max_bytes=bound))
    for text in texts:
        key = store.add(text)
        assert (key is None) == (len(text.encode(errors="surrogatepass")) > bound)
        assert key is None or store.get(key) == text
        assert sum(path.stat().st_size for path in store.blobs.folder.iterdir()) <= bound


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x" * 1000)
    store = ArtifactStore(BlobFiles(tmp_path, max_bytes=10, keep=0.0))
    store.add("y")
    store.blobs.expire(time.time() + 10 * DAY)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# --- reading ---


def test_an_artifact_is_its_owners_and_comes_back_whole_by_its_id_alone(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    store, text = ArtifactStore(BlobFiles(tmp_path / "a")), "line\n\r\n\ud800 \U0001f600" * 1000
    own = store.add(text)
    assert own is not None and len(own) == 32 and store.get(own) == text
    assert stat.S_IMODE((tmp_path / "a" / own).stat().st_mode) == 0o600
    for key in ("", "..", "../secret", "a" * 32 + "/", "A" * 32, "\n" * 32, "é" * 32, "0" * 32):
        assert store.get(key) is None


@pytest.mark.parametrize(
    "put",
    [
        lambda path: path.symlink_to(__file__),
        os.mkfifo,
        Path.mkdir,
        lambda path: (path.write_text("old"), os.utime(path, (0, 0))),
        lambda path: path.write_bytes(b"\xff\xfe"),
    ],
    ids=["link", "fifo", "folder", "expired", "damaged"],
)
def test_what_cannot_be_read_is_not_there(tmp_path: Path, put: Any) -> None:
    store, key = ArtifactStore(BlobFiles(tmp_path)), "0" * 32
    put(tmp_path / key)
    assert store.get(key) is None


def test_what_was_not_written_to_its_end_is_not_there(tmp_path: Path) -> None:
    store, unfinished = ArtifactStore(BlobFiles(tmp_path)), f"{'0' * 32}.{'0' * 16}"
    (tmp_path / unfinished).write_text("half")
    assert store.get(unfinished) is None


def test_what_cannot_be_kept_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(TranscriptError, match="could not be kept"):
        ArtifactStore(BlobFiles(tmp_path / "a")).add("text")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(UsageError, match="max_bytes"):
        TranscriptStore(tmp_path, max_bytes=-1)


def test_what_is_to_last_is_on_the_disk_whole_before_it_has_its_name_and_then_its_name_is(
    tmp_path: Path,
) -> None:
    synced: list[tuple[int, bool]] = []

    def sync(file: int) -> None:
        found = os.fstat(file)
        assert stat.S_ISDIR(found.st_mode) or found.st_size == len(b"old")
        synced.append((found.st_ino, (tmp_path / "key").exists()))

    kept = BlobFiles(tmp_path, sync=sync)
    kept.write("other", b"text")
    assert synced == []
    kept.write("key", b"old", durable=True)
    assert synced == [((tmp_path / "key").stat().st_ino, False), (tmp_path.stat().st_ino, True)]


# --- time ---


def test_an_artifact_from_the_future_counts_as_written_now(tmp_path: Path) -> None:
    store, now = ArtifactStore(BlobFiles(tmp_path)), time.time()
    key = aged(store, "x", -1000 * DAY)
    assert store.blobs.expire(now) == 0
    assert store.blobs.expire(now + KEEP_SECONDS - 1) == 0
    assert store.blobs.expire(now + KEEP_SECONDS + 1) == 1
    assert store.get(key) is None


class Machine:
    """A folder of sessions on a machine whose clock is set by hand."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_800_000_000.0
        self.ticks = 0.0
        self.sweeps: list[object] = []
        self.folder = folder
        self.store = ArtifactStore(BlobFiles(folder / "session" / "artifacts"))
        self.sweeper = self.program()

    def program(self) -> Sweeper:
        """A program that starts now."""
        return Sweeper(
            self.folder,
            clock=lambda: self.now,
            ticks=lambda: self.ticks,
            start=lambda work: self.sweeps.append(work()),
        )

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.ticks += seconds

    def put(self) -> Path:
        return self.store.blobs.folder / aged(self.store, "x", 0, self.now)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_program_that_runs_on_sweeps_now_and_then(machine: Machine) -> None:
    machine.sweeper.sweep()
    kept = machine.put()
    os.utime(kept, (0, 0))
    machine.pass_time(SWEEP_EVERY - 1)
    machine.sweeper.sweep_if_due()
    assert kept.exists()
    machine.pass_time(1)
    machine.sweeper.sweep_if_due()
    assert not kept.exists()


def test_programs_sweep_once_an_hour_all_together(machine: Machine) -> None:
    for _ in range(9):
        machine.program().sweep_if_due()
    assert len(machine.sweeps) == 1
    machine.pass_time(SWEEP_EVERY)
    for _ in range(9):
        machine.program().sweep_if_due()
    assert len(machine.sweeps) == 2


def test_of_two_programs_that_find_a_sweep_due_at_once_one_sweeps(machine: Machine) -> None:
    machine.program().sweep_if_due()
    machine.pass_time(SWEEP_EVERY)
    with (machine.folder / ".swept").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        machine.program().sweep_if_due()
    assert len(machine.sweeps) == 1


def test_a_sweep_in_the_background_removes_what_has_expired(tmp_path: Path) -> None:
    store = ArtifactStore(BlobFiles(tmp_path / "session" / "artifacts"))
    kept = store.blobs.folder / aged(store, "x", 4 * DAY, time.time())
    Sweeper(tmp_path).sweep_if_due()
    wait_until(lambda: not kept.exists())


@pytest.mark.parametrize("jump", [10_000 * DAY, -10_000 * DAY])
def test_a_clock_that_is_wrong_for_a_while_removes_nothing(machine: Machine, jump: float) -> None:
    machine.sweeper.sweep()
    kept = machine.put()
    machine.now += jump
    for _ in range(5):
        machine.now += CLOCK_SETTLES / 10
        assert machine.program().sweep() == 0
    machine.now -= jump
    assert machine.program().sweep() == 0
    assert kept.exists()
    machine.now += KEEP_SECONDS - CLOCK_SETTLES
    machine.program().sweep()
    machine.now += CLOCK_SETTLES
    assert machine.program().sweep() == 1


def test_after_a_long_pause_what_is_old_goes_once_the_clock_has_gone_on(machine: Machine) -> None:
    machine.sweeper.sweep()
    kept = machine.put()
    machine.now += 30 * DAY
    assert machine.program().sweep() == 0
    machine.now += CLOCK_SETTLES
    assert machine.program().sweep() == 1
    assert not kept.exists()


def test_a_clock_that_was_ahead_for_good_and_is_set_right_is_believed_in_the_end(
    machine: Machine,
) -> None:
    machine.now += 1000 * DAY
    machine.sweeper.sweep()
    kept = machine.put()
    machine.now -= 1000 * DAY
    machine.program().sweep()
    for _ in range(5 * 24):
        machine.now += CLOCK_SETTLES
        machine.program().sweep()
    assert not kept.exists()
