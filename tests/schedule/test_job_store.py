"""Jobs in SQLite: private, sealed, each time claimed once, whatever the clock does."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_tools.errors import ScheduleError, TranscriptError, UsageError
from mlx_tools.plugins.schedule.job_store import MAX_JOBS, SCHEDULE, Job, JobRun, JobStore
from mlx_tools.plugins.schedule.when import Schedule
from mlx_tools.policy import Policy
from tests.examples import FEW
from tests.schedule.kept_jobs import find_job_file, open_job_store

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
HOURLY = Schedule("UTC", cron="0 * * * *")


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def passes(self, **time: float) -> datetime:
        self.now += timedelta(**time)
        return self.now


def a_job(**changes: Any) -> Job:
    given_: dict[str, Any] = {"task": "Count.", "schedule_text": "hourly", "when": HOURLY}
    return Job(**{**given_, "policy": Policy(allow=["clock"]).to_json(), **changes})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> JobStore:
    return open_job_store(tmp_path / "state" / "schedule.sqlite", b"secret", clock)


def take(store: JobStore, clock: Clock, status: Any = "answered", **time: float) -> JobRun:
    """The run that is due when so much time has passed, and how it ended."""
    claimed = store.claim(clock.passes(**time), "r")
    assert claimed is not None
    if claimed[1].status == "running":
        store.settle(claimed[1], status)
    return claimed[1]


def change(store: JobStore, statement: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(find_job_file(store))) as db, db:
        db.execute(statement, values)
    db.close()


# --- keeping ------------------------------------------------------------------------------------


def test_what_was_added_is_listed_as_it_was(store: JobStore, clock: Clock) -> None:
    job = store.add(
        a_job(
            roots=("/a:rw",), options={"model.name": "m"}, require_tools=("clock",), created_by="s"
        )
    )
    (listed,) = store.listing()
    assert listed.job == job and listed.state == "scheduled" and listed.runs == ()
    assert listed.next_due == NOON + timedelta(hours=1)
    assert Job.parse(job.definition()) == job
    assert json.loads(json.dumps(listed.to_json()))["next_due"] == "2026-03-04T13:00:00+00:00"


def test_the_file_is_its_owners_alone_and_is_made_with_the_first_job(store: JobStore) -> None:
    assert (
        store.listing() == [] and store.next_try(NOON) is None and not find_job_file(store).exists()
    )
    assert store.claim(NOON, "r") is None and not find_job_file(store).exists()
    before = os.umask(0)
    try:
        store.add(a_job())
    finally:
        os.umask(before)
    assert stat.S_IMODE(find_job_file(store).stat().st_mode) == 0o600
    assert stat.S_IMODE(find_job_file(store).parent.stat().st_mode) == 0o700
    find_job_file(store).chmod(0o644)
    store.listing()
    assert stat.S_IMODE(find_job_file(store).stat().st_mode) == 0o600


def test_a_job_is_found_by_the_beginning_of_its_id_and_removed_once(store: JobStore) -> None:
    job = store.add(a_job())
    assert store.find(job.id).job == store.find(job.id[:3]).job == job
    for wrong in ("", "x", f"{job.id}0", "%", "'; DROP TABLE jobs; --"):
        with pytest.raises(UsageError):
            store.find(wrong)
    store.remove(job.id)
    with pytest.raises(UsageError, match="no job"):
        store.remove(job.id)
    assert store.listing() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": " "},
        {"task": "x" * 10_001},
        {"task": "\ud800"},
        {"policy": {"allow": "all"}},
        {"policy": {"surprise": 1}},
    ],
)
def test_a_job_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        a_job(**wrong)


def test_a_time_that_is_past_is_refused_and_one_job_too_many(store: JobStore) -> None:
    with pytest.raises(UsageError, match="past"):
        store.add(a_job(when=Schedule("UTC", run_at=NOON)))
    store.add(a_job())
    change(
        store,
        "WITH RECURSIVE n(i) AS (SELECT 2 UNION SELECT i + 1 FROM n WHERE i < ?) INSERT INTO jobs "
        "SELECT 'copy' || i, definition, seal, next_due, try_at, attempt, planned_at FROM jobs, n",
        MAX_JOBS,
    )
    with pytest.raises(UsageError, match=f"{MAX_JOBS} jobs"):
        store.add(a_job())


def test_a_job_that_is_done_is_forgotten_after_a_month(store: JobStore, clock: Clock) -> None:
    once = store.add(a_job(when=Schedule("UTC", run_at=NOON + timedelta(minutes=1))))
    assert take(store, clock, minutes=1).job == once.id
    assert [one.state for one in store.listing()] == ["done"] and store.next_try(clock()) is None
    clock.passes(days=29)
    store.add(a_job())
    assert len(store.listing()) == 2
    clock.passes(days=2)
    store.add(a_job())
    assert once.id not in [one.id for one in store.listing()]


# --- seals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        lambda value: {**value, "policy": Policy(allow=["*"]).to_json()},
        lambda value: {**value, "task": "Delete everything."},
        lambda value: {**value, "roots": ["/:rw"]},
        lambda value: {**value, "options": {"backend.url": "http://192.0.2.1"}},
        lambda value: {**value, "when": {"zone": "UTC", "cron": "* * * * *", "at": None}},
        lambda value: {},
        lambda value: [],
    ],
)
def test_a_job_that_was_changed_in_the_file_never_runs(
    store: JobStore, clock: Clock, edit: Any
) -> None:
    job = store.add(a_job())
    text = json.dumps(edit(json.loads(job.definition())), sort_keys=True)
    change(store, "UPDATE jobs SET definition = ?", text)
    clock.passes(hours=2)
    assert store.claim(clock(), "r") is None
    (listed,) = store.listing()
    assert (listed.state, listed.job) == ("damaged", None)
    store.remove(job.id)


def test_a_key_that_cannot_be_read_makes_no_job_a_damaged_one(store: JobStore) -> None:
    store.add(a_job())

    def unread() -> bytes:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError:
            raise TranscriptError("the key cannot be read") from None

    with pytest.raises(ScheduleError, match="the key cannot be read") as caught:
        open_job_store(find_job_file(store), unread).listing()
    assert caught.value.passing


def test_a_job_is_the_one_that_was_sealed_by_this_key_under_this_id(
    store: JobStore, clock: Clock
) -> None:
    job = store.add(a_job())
    change(store, "UPDATE jobs SET id = 'ffffffff'")
    assert [one.state for one in store.listing()] == ["damaged"]
    change(store, "UPDATE jobs SET id = ?", job.id)
    assert [one.state for one in store.listing()] == ["scheduled"]
    other = open_job_store(find_job_file(store), b"other", clock)
    assert [one.state for one in other.listing()] == ["damaged"]


def sealed(store: JobStore, definition: dict[str, Any]) -> None:
    """Puts a definition in the place of all others, as whoever has the key would."""
    text = json.dumps(definition)
    seal = hmac.new(b"secret", b"job:" + text.encode(), hashlib.sha256).hexdigest()
    change(store, "UPDATE jobs SET definition = ?, seal = ?", text, seal)


@pytest.mark.parametrize("edit", [{"policy": {"preset": "gone"}}, {"power": 1}, {"when": None}])
def test_a_job_that_means_nothing_today_never_runs(
    store: JobStore, clock: Clock, edit: dict[str, Any]
) -> None:
    sealed(store, json.loads(store.add(a_job()).definition()))
    assert store.listing()[0].state == "scheduled"
    job = store.listing()[0].job
    assert job is not None
    sealed(store, {**json.loads(job.definition()), **edit})
    assert store.listing()[0].state == "damaged"
    assert store.claim(clock.passes(hours=2), "r") is None
    assert store.next_try(clock()) is None  # nobody waits for it


def foreign(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100] + b"x" * 9000)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hosts")


def later(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("trouble", [foreign, damaged, piped, linked, later])
def test_a_file_that_is_no_schedule_is_an_error_that_says_what_helps(
    store: JobStore, trouble: Callable[[Path], None]
) -> None:
    store.add(a_job())
    trouble(find_job_file(store))
    for use in (store.listing, lambda: store.next_try(NOON), lambda: store.add(a_job())):
        with pytest.raises(ScheduleError, match="cannot be used") as caught:
            use()
        assert caught.value.hint and not caught.value.passing


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE jobs SET next_due = 1000000000000000000, try_at = 0",
        "UPDATE jobs SET next_due = -99999999999, try_at = 0",
        "UPDATE jobs SET next_due = 'soon', try_at = 'soon'",
        "UPDATE jobs SET next_due = x'00ff', try_at = 0",
        "UPDATE jobs SET attempt = 'many', try_at = 0",
        *("DROP TABLE runs", "ALTER TABLE jobs DROP COLUMN planned_at"),
        *("ALTER TABLE jobs DROP COLUMN definition", "ALTER TABLE runs DROP COLUMN started"),
        *("ALTER TABLE jobs ADD COLUMN more", "UPDATE jobs SET id = x'00ff'"),
        *("UPDATE jobs SET id = 7", "UPDATE jobs SET seal = x'ff', try_at = 0"),
        "UPDATE jobs SET definition = CAST(x'ff' AS TEXT)",
        "UPDATE jobs SET definition = 7",
    ],
)
def test_values_that_cannot_be_are_a_clear_error(store: JobStore, clock: Clock, edit: str) -> None:
    store.add(a_job())
    change(store, edit)
    clock.passes(hours=2)
    uses = (store.listing, lambda: store.next_try(NOON), lambda: store.claim(clock(), "r"))
    for use in (*uses, store.open_runs, lambda: store.find("a"), lambda: store.remove("a")):
        try:
            use()
        except ScheduleError as error:
            assert "cannot be used" in str(error)
        except UsageError as error:
            assert "no job" in str(error)


# --- policy -------------------------------------------------------------------------------------


def test_a_job_runs_under_its_policy_narrowed_by_what_has_changed_since() -> None:
    own, then = Policy(allow=["clock", "notes_create"]), Policy(allow=["*"])
    job = a_job(policy=own.to_json(), configured_policy=then.to_json())
    assert job.policy_today(then) == own
    now = job.policy_today(Policy(allow=["*"], deny=["notes_create"], dry_run=True))
    assert [part.allow for part in now.parts] == [own.allow, ("*",)] and now.parts[1].dry_run
    assert a_job(policy=own.to_json()).policy_today(own) == own
    assert len(a_job(policy=own.to_json()).policy_today(then).parts) == 2


# --- claiming -----------------------------------------------------------------------------------


def test_two_runners_never_take_the_same_time(store: JobStore, clock: Clock) -> None:
    jobs = [store.add(a_job()) for _ in range(6)]
    clock.passes(hours=1)
    taken: list[str] = []
    start = threading.Barrier(4)

    def runner(name: str) -> None:
        start.wait()
        while (claimed := store.claim(clock(), name)) is not None:
            taken.append(claimed[1].job)

    threads = [threading.Thread(target=runner, args=(f"r{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(job.id for job in jobs)


EASY = settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EASY
@given(st.lists(st.integers(-90, 200), max_size=12))
def test_no_time_is_claimed_twice_however_the_clock_moves(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int]
) -> None:
    clock = Clock()
    store = open_job_store(tmp_path_factory.mktemp("s") / "schedule.sqlite", b"k", clock)
    store.add(a_job())
    dues = []
    for step in steps:
        now = clock.passes(minutes=step)
        for _ in range(3):
            claimed = store.claim(now, "r")
            if claimed is None:
                break
            assert claimed[1].scheduled_at <= now
            store.settle(claimed[1], "answered")
            dues.append(claimed[1].scheduled_at)
    assert len(dues) == len(set(dues))
    due = store.next_try(NOON - timedelta(days=2))
    assert due is not None and due <= max(clock(), NOON) + timedelta(days=2)


# --- trying again -------------------------------------------------------------------------------


def test_a_run_is_not_tried_again_where_its_job_runs_before_anyway(
    store: JobStore, clock: Clock
) -> None:
    store.add(a_job(when=Schedule("UTC", cron="* * * * *")))
    assert not store.try_again(take(store, clock, "failed", minutes=1))


def test_the_latest_runs_are_kept(
    store: JobStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_tools.plugins.schedule.job_store.MAX_RUNS", 5)
    store.add(a_job(when=Schedule("UTC", cron="* * * * *")))
    for _ in range(8):
        take(store, clock, minutes=1)
    (listed,) = store.listing()
    assert len(listed.runs) == 5
    assert listed.runs[0].started_at == clock()


@pytest.mark.parametrize(
    ("pragma", "said"),
    [
        ("application_id = 7", "of this version"),
        (f"user_version = {SCHEDULE.version + 1}", f"has the format {SCHEDULE.version + 1}"),
        ("user_version = 99", "has the format 99"),
    ],
)
def test_a_file_of_another_program_or_of_a_later_version_is_left_alone(
    tmp_path: Path, pragma: str, said: str
) -> None:
    path = tmp_path / "jobs.sqlite"
    open_job_store(path).add(a_job())
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA {pragma}")
    before = path.read_bytes()
    with pytest.raises(ScheduleError, match=said):
        open_job_store(path).listing()
    assert path.read_bytes() == before
