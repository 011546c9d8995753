"""`mlx-tools store copy`: files into PostgreSQL, back, and on after a kill -9."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.errors import StorageError, UsageError
from mlx_tools.plugins.postgres import postgres
from mlx_tools.plugins.postgres.session_rows import PostgresStore
from mlx_tools.plugins.runs import RUNS, RunRow, RunRows
from mlx_tools.plugins.runs.body import RunAct
from mlx_tools.plugins.runs.queue import RunQueue
from mlx_tools.plugins.runs.rows import Hook
from mlx_tools.plugins.schedule.job_store import SCHEDULE, Job, JobStore
from mlx_tools.plugins.schedule.when import parse_when
from mlx_tools.store import SessionStore, TranscriptStore, copy_store
from mlx_tools.store.artifacts import Change
from mlx_tools.transcript.records import AnswerRecord, UserRecord
from tests.command_line import Run
from tests.controller.sessions import header
from tests.forked import forks
from tests.gateway.postgres import Cluster

HOSTILE = "a\0b\ud800\r\n\u2028\N{GRINNING FACE}'; DROP TABLE records; --"
FORMS = (SCHEDULE, RUNS)
NOW = datetime(2030, 1, 1, tzinfo=UTC)

DIES = """
import os, signal, sys
from mlx_tools.plugins.runs import RUNS
from mlx_tools.plugins.postgres.session_rows import PostgresStore
from mlx_tools.plugins.schedule.job_store import SCHEDULE
from mlx_tools.store import TranscriptStore, copy_store

class Mortal:
    left = int(sys.argv[3])

    def parts(self, session):
        for part in super().parts(session):
            Mortal.left -= 1
            if Mortal.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            yield part

def opened(given, *bases):
    kind = PostgresStore if "://" in given else TranscriptStore
    return type("Opened", (*bases, kind), {})(given)

copy_store(opened(sys.argv[1], Mortal), opened(sys.argv[2]), (SCHEDULE, RUNS))
"""


def filled(store: SessionStore, sessions: int = 3) -> list[str]:
    """Fill a store with some of everything; return the ids of its sessions."""
    made = []
    for number in range(sessions):
        files = store.create()
        made.append(files.session)
        files.transcript.append(header())
        files.transcript.append(UserRecord(content=HOSTILE + str(number)))
        assert files.artifacts is not None and files.undo is not None
        files.artifacts.add(HOSTILE)
        files.artifacts.add("x" * 100_000)
        change = Change(root="/r", inode=1, names=("a",), old_state="absent", new_state="b", mode=0)
        files.undo.keep_old(change, b"\0\xff old")
        files.consumed_approvals.take(f"{number:064x}")
        files.transcript.close()
    jobs = JobStore(store.tables(SCHEDULE), store.secret, lambda: NOW)
    jobs.add(Job(task="t", schedule_text="daily", when=parse_when("0 7 * * *", "UTC", NOW)))
    jobs.claim(NOW.replace(day=2, hour=7), "runner")
    rows = RunRows(store)
    rows.add(RunRow(made[0], "me", {"question": "é"}, act=RunAct("ask", {}, 0)), "key")
    rows.add(other := RunRow(made[1], "me", {"question": "b"}), None)
    rows.mark_done(other, Hook("m", "https://x", "run.done", {"a": 1}), now=1.25)
    return sorted(made)


def held(store: SessionStore) -> Any:
    """All that a store holds."""
    sessions = {
        one: {(part.name, round(part.written_at, 5)): part.data for part in store.parts(one)}
        for one in store.ids()
    }
    tables: dict[str, Any] = {}
    for form in FORMS:
        with store.tables(form).transaction() as db:
            for table in form.tables:
                query = f"SELECT * FROM {table} ORDER BY 1"
                tables[f"{form.file} {table}"] = [tuple(r) for r in db.execute(query).fetchall()]
    return store.keys(), sessions, tables


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".sqlite" not in path.name and path.name not in (".swept",)
    }


@pytest.fixture
def database(cluster: Cluster) -> Callable[[], str]:
    return cluster.new


def test_files_go_into_postgresql_and_back_byte_for_byte(
    run: Run, home: Path, database: Callable[[], str]
) -> None:
    first, address = TranscriptStore(home / "a" / "sessions"), database()
    made = filled(first)
    there = run("store", "copy", str(home / "a"), address)
    assert there.code == 0 and there.err == ""
    assert "3 used approvals, 3 rows of runs, 2 rows of schedule to postgresql:" in there.out
    assert "postgres@" not in there.out  # who is let in is nobody else's to read
    back = run("store", "copy", address, str(home / "b"))
    assert back.code == 0 and "copied 3 sessions" in back.out and "3 used approvals" in back.out
    second = TranscriptStore(home / "b" / "sessions")
    assert held(first) == held(PostgresStore(address)) == held(second)
    assert files_of(home / "a") == files_of(home / "b")
    for path in (home / "b").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    for session in made:
        assert second.describe(session).status == first.describe(session).status
    again = run("store", "copy", str(home / "a"), address)
    assert again.code == 0 and "copied 0 sessions (0 bytes), 3 more were there" in again.out


def test_a_copy_goes_on_in_the_database_as_the_one_that_was_copied(
    home: Path, run: Run, database: Callable[[], str]
) -> None:
    first, address = TranscriptStore(home / "a" / "sessions"), database()
    made = filled(first)
    assert run("store", "copy", str(home / "a"), address).code == 0
    second = PostgresStore(address)
    files = second.open(made[0])
    files.transcript.append(AnswerRecord(turn=1, content="b"))
    assert not files.consumed_approvals.take(f"{0:064x}")  # what was used up there is so here
    files.transcript.close()
    rows = RunRows(second)
    assert rows.add(RunRow("new", "me", {}), None)  # numbers go on behind those that came along
    assert rows.page("me", 9, None)[0].id == "new"
    assert JobStore(second.tables(SCHEDULE), second.secret).listing()[0].job is not None


def test_what_is_still_to_be_done_about_a_run_is_for_the_workers_of_the_database(
    home: Path, database: Callable[[], str]
) -> None:
    first, second = TranscriptStore(home / "a" / "sessions"), PostgresStore(database())
    filled(first)
    copy_store(first, second, FORMS)
    queue = RunQueue(second)
    rows = RunRows(second, queue.add)
    (due,) = rows.open_runs()
    rows.queue_again(queue.load_queued)
    assert queue.load_queued() == {due.id} and due.act == RunAct("ask", {}, 0)
    third = TranscriptStore(home / "b" / "sessions")
    copy_store(second, third, FORMS)
    assert [one.id for one in RunRows(third).open_runs()] == [due.id]


@pytest.mark.parametrize("way", ["into", "back"])
def test_a_copy_that_was_killed_goes_on_and_what_is_there_is_whole(
    way: str, home: Path, database: Callable[[], str]
) -> None:
    source: SessionStore = TranscriptStore(home / "a" / "sessions")
    filled(source)
    given, target = str(home / "a" / "sessions"), database()
    if way == "back":
        copy_store(source, PostgresStore(target), FORMS)
        given, target = target, str(home / "b" / "sessions")
    opened: SessionStore = PostgresStore(target) if way == "into" else TranscriptStore(target)
    for parts in (0, 3, 4, 7, 11):
        process = forks().start(given, target, str(parts), code=DIES)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        for session in opened.ids():
            assert [*opened.parts(session)] != [] and len(opened.records(session)) == 2
    copied = copy_store(source, opened, FORMS)
    assert (
        copied.present_sessions
        and copied.sessions
        and copied.present_sessions + copied.sessions == 3
    )
    assert held(source) == held(opened)
    assert not [*(home / "b").rglob(".taken-in-*")]


@pytest.mark.parametrize("change", ["session", "more", "secret", "used", "schedule", "artifact"])
def test_what_is_there_and_differs_is_refused_and_left_as_it_is(
    change: str, home: Path, run: Run, database: Callable[[], str]
) -> None:
    first, address = TranscriptStore(home / "a" / "sessions"), database()
    made = filled(first)
    second = PostgresStore(address)
    if change == "secret":
        assert second.secret != first.secret
    else:
        copy_store(first, second, FORMS)
    if change in ("session", "artifact"):
        files = second.open(made[0])
        if change == "session":
            files.transcript.append(AnswerRecord(turn=1, content="b"))
        elif files.artifacts is not None:
            files.artifacts.add("more")
        files.transcript.close()
    elif change == "more":
        second.create().transcript.close()
    elif change == "used":
        with postgres.get_database(address).connection() as db:
            db.execute("INSERT INTO used VALUES ('other')")
    elif change == "schedule":
        with second.tables(SCHEDULE).transaction(write=True) as db:
            db.execute("UPDATE jobs SET attempt = 3")
    before = held(second)
    refused = run("store", "copy", str(home / "a"), address)
    assert refused.code == 2 and "nothing was copied: give an empty folder" in refused.error
    assert held(second) == before


def test_a_session_in_use_stops_the_copy_after_all_others_and_it_goes_on(
    home: Path, run: Run, database: Callable[[], str]
) -> None:
    first, address = TranscriptStore(home / "a" / "sessions"), database()
    made = filled(first)
    used = first.open(made[1])
    (first.folder / "20300101-000000-aaaaaaaa").mkdir()
    stopped = run("store", "copy", str(home / "a"), address)
    assert stopped.code == 2 and "1 of 4 sessions could not be copied" in stopped.error
    assert "in use" in stopped.error
    assert len(PostgresStore(address).ids()) == 2
    used.transcript.close()
    done = run("store", "copy", str(home / "a"), address)
    assert done.code == 0 and "copied 1 session (" in done.out
    assert "left out, as they hold no transcript: 20300101-000000-aaaaaaaa" in done.err


def test_two_copies_into_one_place_are_one_after_the_other(
    home: Path, database: Callable[[], str]
) -> None:
    first = TranscriptStore(home / "a" / "sessions")
    filled(first)
    for target in (PostgresStore(database()), TranscriptStore(home / "b" / "sessions")):
        with target.lock_for_import(), pytest.raises(StorageError, match="another copy into"):
            copy_store(first, target, FORMS)


def test_a_database_that_others_wrote_to_leads_out_of_no_folder(
    home: Path, database: Callable[[], str]
) -> None:
    for rows in (
        "INSERT INTO sessions (id) VALUES ('../../out')",
        "INSERT INTO sessions (id) VALUES ('s'); INSERT INTO kept (session, kind, key, data)"
        " VALUES ('s', '../..', '" + "0" * 32 + "', 'x')",
    ):
        address = database()
        store = PostgresStore(address)
        with postgres.get_database(address).connection() as db:
            db.execute(rows)
        with pytest.raises(StorageError, match="which no session has"):
            copy_store(store, TranscriptStore(home / "b" / "sessions"), FORMS)
    assert [path.name for path in (home / "b").rglob("*")] == ["sessions"]


def test_a_line_that_a_crash_cut_off_stays_behind_and_damage_comes_along(
    home: Path, database: Callable[[], str]
) -> None:
    first, second = TranscriptStore(home / "a" / "sessions"), PostgresStore(database())
    session = filled(first)[0]
    with first.path(session).open("ab") as file:
        file.write(b'no\0json\xff\n{"type":"us')
    copy_store(first, second, FORMS)
    copy_store(first, second, FORMS)
    assert second.describe(session).status.state == "damaged"
    copy_store(second, TranscriptStore(home / "b" / "sessions"), FORMS)
    copied = (home / "b" / "sessions" / session / "transcript.jsonl").read_bytes()
    assert copied == first.path(session).read_bytes().removesuffix(b'{"type":"us')


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("nowhere", "b"), "has no sessions"),
        (("a", "a"), "are the same"),
        (("a/sessions", "b"), "give the one that it is in"),
        (("a", "postgresql://u:s3cret/b@h/n"), "no address"),
        (("a", "mysql://h/n"), "no address"),
        (("a", "file"), "copied from or into"),
    ],
)
def test_a_place_that_cannot_be_is_told_in_one_line(
    given: tuple[str, str], said: str, home: Path, run: Run
) -> None:
    filled(TranscriptStore(home / "here" / "a" / "sessions"))
    Path("file").touch()
    refused = run("store", "copy", *given)
    assert refused.code in (1, 2) and said in refused.error and "s3cret" not in refused.error
    assert not os.path.lexists("b") and not os.path.lexists("nowhere")


def test_a_full_disk_ends_a_copy_in_one_line_and_it_goes_on(home: Path) -> None:
    first = TranscriptStore(home / "a" / "sessions")
    filled(first)

    class Full(TranscriptStore):
        left = 5

        def import_session(self, session: str, parts: Any) -> int:
            def some() -> Any:
                for part in parts:
                    Full.left -= 1
                    if Full.left == 0:
                        raise OSError(28, "No space left on device")
                    yield part

            return super().import_session(session, some())

    target = Full(home / "b" / "sessions")
    with pytest.raises(StorageError, match="No space left") as full:
        copy_store(first, target, FORMS)
    assert not isinstance(full.value, UsageError | OSError)
    assert [*(home / "b").rglob(".taken-in-*")] == []
    copy_store(first, target, FORMS)
    assert held(first) == held(target)
