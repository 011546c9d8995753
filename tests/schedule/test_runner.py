"""Order of jobs, and what is known of a run that a crash broke off."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools.errors import (
    BackendUnreachable,
    MlxToolsError,
    ScheduleError,
    StorageError,
    UsageError,
)
from mlx_tools.plugins.schedule.job_store import Job, JobListing, RunEnd, RunInspection
from mlx_tools.plugins.schedule.runner import FinishedRun, Runner, settle
from mlx_tools.plugins.schedule.when import Schedule
from mlx_tools.policy import Policy
from mlx_tools.store.tables import is_present
from tests.schedule.kept_jobs import find_job_file, open_job_store

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
ANSWERED = RunEnd(status="answered", answer="Done.")
ONCE = Schedule("UTC", run_at=NOON + timedelta(hours=1))


class World:
    """A clock, the sessions that there are, and a model that does what it is told."""

    def __init__(self, path: Path) -> None:
        self.now = NOON
        self.store = open_job_store(path, b"secret", lambda: self.now)
        self.sessions: dict[str, RunInspection] = {}
        self.ran: list[str] = []
        self.does()

    def does(
        self,
        end: RunEnd | BaseException = ANSWERED,
        seen: RunInspection | None = None,
        session: str | None = "s-1",
    ) -> None:
        """From now on a run begins this session, of which the transcript says what is ``seen``,
        and ends so."""

        def acts(job: Job, began: Callable[[str], None]) -> RunEnd:
            if session is not None:
                began(session)
            if seen is not None:
                self.sessions["s-1"] = seen
            if isinstance(end, BaseException):
                raise end
            return end

        self.acts = acts

    async def start(self, job: Job, began: Callable[[str], None]) -> RunEnd:
        self.ran.append(job.task)
        return self.acts(job, began)

    def look(self, session: str) -> RunInspection:
        return self.sessions.get(session, RunInspection(state="missing"))

    def add(self, **changes: Any) -> Job:
        made: dict[str, Any] = {"task": "Count.", "schedule_text": "hourly"}
        made |= {"when": Schedule("UTC", cron="0 * * * *"), "policy": Policy().to_json()}
        return self.store.add(Job(**{**made, **changes}))

    def later(self, **passed: float) -> list[FinishedRun]:
        """The runs of a runner when so much time has passed."""
        self.now += timedelta(**passed)
        with Runner(self.store, self.start, self.look, now=lambda: self.now) as runner:
            return anyio.run(runner.run_due)

    def one(self) -> JobListing:
        settle(self.store, self.look)
        (listed,) = self.store.listing()
        return listed


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "schedule.sqlite")


def test_what_is_due_runs_once_and_what_is_not_does_not(world: World) -> None:
    world.add(task="hourly")
    world.add(task="daily", when=Schedule("UTC", cron="0 0 * * *"))
    world.add(task="once", when=Schedule("UTC", run_at=NOON + timedelta(minutes=30)))
    assert world.later(minutes=29) == [] and world.ran == []
    assert [ended.run.status for ended in world.later(minutes=1)] == ["answered"]
    world.later(minutes=30)
    assert world.ran == ["once", "hourly"] and world.later() == []
    world.later(hours=12)
    assert sorted(world.ran[2:]) == ["daily", "hourly"]


def test_a_paused_run_holds_its_job_until_a_person_has_gone_on(world: World) -> None:
    world.add()
    world.does(RunEnd(status="paused", exit_code=4), RunInspection(state="paused"))
    (ended,) = world.later(hours=1)
    assert ended.exit_code == 4 and world.one().state == "paused"
    assert world.later(hours=5) == [] and world.one().state == "paused"
    world.sessions["s-1"] = RunInspection(state="running")
    assert world.one().state == "paused"
    world.sessions["s-1"] = RunInspection(state="answered")
    assert world.one().state == "scheduled"
    world.does()
    assert len(world.later(hours=1)) == 1


def test_a_session_that_waited_and_was_removed_lets_its_job_go_on(world: World) -> None:
    world.add()
    world.does(RunEnd(status="paused"), session="gone")
    world.later(hours=1)
    assert world.one().state == "scheduled" and world.one().runs[0].status == "abandoned"


@pytest.mark.parametrize("error", [BackendUnreachable("no server"), UsageError("no folder")])
def test_a_run_that_cannot_be_begun_is_tried_again(world: World, error: MlxToolsError) -> None:
    world.add(when=ONCE)
    world.does(error, session=None)
    (ended,) = world.later(hours=1)
    assert ended.run.status == "failed" and ended.exit_code == error.exit_code
    assert world.later() == []
    world.does()
    (ended,) = world.later(minutes=5)
    assert ended.run.status == "answered" and ended.run.attempt == 2
    assert world.one().state == "done"


@pytest.mark.parametrize("error", [BackendUnreachable("gone"), ValueError("a fault of ours")])
def test_a_run_that_failed_after_it_may_have_changed_something_is_in_doubt(
    world: World, error: Exception
) -> None:
    world.add()
    world.does(error, RunInspection(state="interrupted", was_changed=True))
    (ended,) = world.later(hours=1)
    assert ended.run.status == "in_doubt"
    assert world.later(hours=9) == [] and len(world.ran) == 1
    world.sessions["s-1"] = RunInspection(state="stopped", reason="denied")
    assert world.one().state == "scheduled" and world.one().runs[0].status == "stopped"


def test_a_fault_in_one_job_ends_its_run_and_no_other(world: World) -> None:
    world.add(task="bad")
    world.add(task="good")

    def breaks(job: Job, began: Callable[[str], None]) -> RunEnd:
        if job.task == "bad":
            raise RuntimeError("a fault of ours")
        return ANSWERED

    world.acts = breaks
    ended = {one.job.task: one for one in world.later(hours=1)}
    assert ended["good"].run.status == "answered" and ended["good"].fault is None
    assert ended["bad"].run.status == "failed" and isinstance(ended["bad"].fault, RuntimeError)
    assert (
        ended["bad"].run.reason == "RuntimeError: a fault of ours" and ended["bad"].exit_code == 1
    )
    world.does()
    assert [one.run.attempt for one in world.later(minutes=5)] == [2]


@pytest.mark.parametrize("when", [Schedule("UTC", cron="0 * * * *"), ONCE], ids=["cron", "once"])
def test_another_attempt_does_not_wait_for_a_year_that_a_wrong_clock_showed(
    world: World, when: Schedule
) -> None:
    world.add(when=when)
    world.does(BackendUnreachable("no server"), session=None)
    assert len(world.later(days=1000)) == 1
    world.does()
    world.now = NOON + timedelta(minutes=1)
    assert world.later() == []
    assert len(world.later(hours=1)) + len(world.later(hours=1)) == 1


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    ("seen", "status", "again"),
    [
        (None, "interrupted", True),  # before there was a session
        (RunInspection(state="empty", was_changed=False), "interrupted", True),
        (RunInspection(state="interrupted", was_changed=False), "interrupted", True),
        (RunInspection(state="interrupted", was_changed=True), "in_doubt", False),
        (RunInspection(state="damaged"), "in_doubt", False),
        (RunInspection(state="missing"), "in_doubt", False),
        (RunInspection(state="answered"), "answered", False),
        (RunInspection(state="stopped", reason="iteration_limit"), "stopped", False),
        (RunInspection(state="stopped", reason="interrupted", was_changed=True), "stopped", False),
        (
            RunInspection(state="stopped", reason="interrupted", was_changed=False),
            "interrupted",
            True,
        ),
        (RunInspection(state="stopped", reason="interrupted", in_doubt=True), "in_doubt", False),
        (RunInspection(state="paused"), "paused", False),
    ],
)
def test_what_broke_off_is_run_again_only_where_it_changed_nothing(
    world: World, seen: RunInspection | None, status: str, again: bool
) -> None:
    world.add(when=ONCE)
    world.does(Killed(), seen, None if seen is None else "s-1")
    with pytest.raises(Killed):
        world.later(hours=1)
    (listed,) = world.store.listing()
    assert listed.runs[0].status == status
    world.does()
    assert len(world.later()) == int(again) and len(world.ran) == 1 + int(again)


def test_what_keeps_breaking_off_is_given_up(world: World) -> None:
    world.add(when=ONCE)
    world.does(Killed(), session=None)
    for passed in (1, 0, 0):
        with pytest.raises(Killed):
            world.later(hours=passed)
    assert world.later(hours=1) == [] and len(world.ran) == 3


def test_times_that_were_missed_are_made_up_for_once_and_the_run_says_so(world: World) -> None:
    world.add()
    (ended,) = world.later(days=4)
    assert ended.run.missed and ended.run.scheduled_at == NOON + timedelta(hours=1)
    assert world.later() == []
    (ended,) = world.later(hours=1)
    assert not ended.run.missed and len(world.ran) == 2


def ends_after(most: int) -> Callable[[int], None]:
    def naps(count: int) -> None:
        if count == most:
            raise Killed

    return naps


def stays(
    world: World, naps: Callable[[int], None], told: list[FinishedRun], step: float | None = None
) -> tuple[list[float], list[str]]:
    """The sleeps of a runner that stays, and what it tells of the store, until ``naps`` raises:
    it is given the number of times that the runner has slept. ``step`` is how much time passes
    then, None for as long as it sleeps."""
    troubles: list[str] = []
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.now += timedelta(seconds=seconds if step is None else step)
        naps(len(slept))

    async def main() -> None:
        runner = Runner(world.store, world.start, world.look, now=lambda: world.now, sleep=sleep)
        with runner:
            await runner.run_forever(told.append, lambda error: troubles.append(str(error)))

    with pytest.raises(Killed):
        anyio.run(main)
    return slept, troubles


def test_a_runner_that_stays_runs_each_time_as_it_comes(world: World) -> None:
    told: list[FinishedRun] = []

    def naps(count: int) -> None:
        if count == 3:
            world.add(when=Schedule("UTC", cron="* * * * *"))
        if len(told) == 3:
            raise Killed

    slept, _ = stays(world, naps, told)
    dues = [ended.run.scheduled_at for ended in told]
    assert dues == [NOON + timedelta(minutes=n) for n in (2, 3, 4)]
    assert all(0.5 <= seconds <= 30 for seconds in slept)


def test_a_runner_that_stays_does_not_spin_on_a_job_that_never_runs(world: World) -> None:
    world.add()
    with closing(sqlite3.connect(find_job_file(world.store))) as db, db:
        db.execute("UPDATE jobs SET seal = 'x'")
    db.close()
    assert stays(world, ends_after(4), [], 3600)[0] == [30.0] * 4 and world.ran == []


def test_a_runner_that_stays_outlives_a_store_that_is_locked(world: World) -> None:
    world.store = open_job_store(find_job_file(world.store), b"secret", lambda: world.now, wait=0)
    world.add(when=Schedule("UTC", run_at=NOON + timedelta(seconds=1)))
    other = sqlite3.connect(find_job_file(world.store), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    told: list[FinishedRun] = []

    def naps(count: int) -> None:
        if count == 3:
            assert told == []
            other.close()
        if count == 5:
            raise Killed

    _, (trouble,) = stays(world, naps, told)  # once, however often it is tried
    assert "another process writes" in trouble
    assert [ended.run.status for ended in told] == ["answered"]


def test_a_run_whose_end_could_not_be_written_down_is_found_by_its_session(world: World) -> None:
    world.store = open_job_store(find_job_file(world.store), b"secret", lambda: world.now, wait=0)
    world.add(when=Schedule("UTC", cron="* * * * *"))
    world.now += timedelta(minutes=1)
    others: list[sqlite3.Connection] = []

    def acts(job: Job, began: Callable[[str], None]) -> RunEnd:
        began(f"s{len(world.ran)}")
        world.sessions[f"s{len(world.ran)}"] = RunInspection(state="answered")
        if len(world.ran) == 1:
            others.append(sqlite3.connect(find_job_file(world.store), isolation_level=None))
            others[0].execute("BEGIN EXCLUSIVE")
        return ANSWERED

    def naps(count: int) -> None:
        if count == 2:
            others[0].close()
        if len(world.ran) == 3:
            raise Killed

    world.acts = acts
    told: list[FinishedRun] = []
    assert len(stays(world, naps, told)[1]) == 1
    assert [ended.end for ended in told] == [ANSWERED] * 3  # the first one, too, was told
    assert [run.status for run in world.store.listing()[0].runs] == ["answered"] * 3


def test_a_runner_that_stays_outlives_sessions_that_cannot_be_read(world: World) -> None:
    world.add(when=Schedule("UTC", cron="* * * * *"))
    world.now += timedelta(minutes=1)
    world.does(
        BackendUnreachable("gone"), RunInspection(state="interrupted", was_changed=False), "s-1"
    )
    look, away = world.look, True

    def looks(session: str) -> RunInspection:
        if away:
            raise StorageError("the database cannot be reached")
        return look(session)

    def naps(count: int) -> None:
        nonlocal away
        if count == 3:
            assert [ended.run.status for ended in told] == ["in_doubt"]
            away = False
            world.does()
        if len(told) == 2:
            raise Killed

    world.look = looks  # type: ignore[method-assign]
    told: list[FinishedRun] = []
    _, (trouble,) = stays(world, naps, told)
    assert "cannot be reached" in trouble and world.ran == ["Count."] * 2


def test_a_runner_that_is_ended_while_the_store_is_locked_ends(world: World) -> None:
    world.store = open_job_store(find_job_file(world.store), b"secret", lambda: world.now, wait=0)
    world.add()
    world.now += timedelta(hours=1)

    def acts(job: Job, began: Callable[[str], None]) -> RunEnd:
        began("s-1")
        other.execute("BEGIN EXCLUSIVE")
        raise Killed

    other = sqlite3.connect(find_job_file(world.store), isolation_level=None)
    world.acts = acts
    assert stays(world, lambda count: None, []) == ([], [])
    other.close()


def test_a_runner_that_cannot_be_looked_at_is_not_taken_for_dead(tmp_path: Path) -> None:
    assert not is_present(tmp_path, "0" * 32)
    (tmp_path / ("0" * 32)).symlink_to("elsewhere")
    assert is_present(tmp_path, "0" * 32)


def test_a_store_that_no_waiting_mends_ends_a_runner_that_stays(world: World) -> None:
    world.add()
    find_job_file(world.store).write_bytes(b"no database at all" * 100)

    async def main() -> None:
        with Runner(world.store, world.start, world.look, now=lambda: world.now) as runner:
            await runner.run_forever(lambda ended: None)

    with pytest.raises(ScheduleError, match="move it away"):
        anyio.run(main)
