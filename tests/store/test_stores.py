"""Requirements of every store of sessions: files in a folder, and PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mlx_tools.errors import StorageError, TranscriptError, UsageError
from mlx_tools.messages import ToolSpec
from mlx_tools.plugins.postgres.postgres import check_address, get_database
from mlx_tools.plugins.postgres.session_rows import PostgresStore
from mlx_tools.plugins.schedule.job_store import SCHEDULE
from mlx_tools.store import MemoryStore, SessionStore, TranscriptStore
from mlx_tools.store.access_list import ConsumedApprovalsFile
from mlx_tools.store.artifacts import Change
from mlx_tools.store.session_store import MAX_MEMORY_SESSIONS
from mlx_tools.store.tables import SqliteTables
from mlx_tools.transcript.records import (
    AnswerRecord,
    ExecutionRecord,
    PauseRecord,
    Record,
    StoppedRecord,
    UserRecord,
)
from tests.controller.sessions import header
from tests.gateway.postgres import Cluster

ENDED: Sequence[Record] = (header(), UserRecord(content="what?"), AnswerRecord(turn=1, content="a"))
HOSTILE = "a\0b\ud800\r\n\u2028\N{GRINNING FACE}'; DROP TABLE records; --"

Make = Callable[..., SessionStore]


@pytest.fixture(params=["files", pytest.param("postgres", marks=pytest.mark.heavy)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Opens the same store again each time, as another process would."""
    if request.param == "files":
        return lambda **more: TranscriptStore(tmp_path / "sessions", **more)
    address = request.getfixturevalue("cluster").new()
    return lambda **more: PostgresStore(address, **more)


def written(store: SessionStore, *records: Record) -> str:
    files = store.create()
    for record in records:
        files.transcript.append(record)
    files.transcript.close()
    return files.session


def test_a_session_is_held_by_one_and_gone_on_with_by_the_next(make: Make) -> None:
    store, other = make(), make()
    first = store.create()
    first.transcript.append(header())
    first.transcript.append(UserRecord(content=HOSTILE))
    assert other.describe(first.session).status.state == "running"
    with pytest.raises(TranscriptError, match="in use"):
        other.open(first.session)
    with pytest.raises(TranscriptError, match="in use"), other.hold(first.session):
        pass
    assert not other.remove(first.session, force=True)
    first.transcript.close()
    listed = other.describe(first.session)
    assert listed.status.state == "interrupted" and listed.path == first.transcript.path
    second = other.open(first.session)
    second.transcript.append(AnswerRecord(turn=1, content=HOSTILE))
    second.transcript.close()
    assert list(store.read(first.session).transcript) == store.records(first.session)
    assert store.records(first.session)[1:] == [
        UserRecord(content=HOSTILE),
        AnswerRecord(turn=1, content=HOSTILE),
    ]
    assert store.remove(first.session) and store.ids() == [] and store.size(first.session) == -1


def test_sessions_are_found_and_one_that_is_not_there_is_said(make: Make) -> None:
    store = make()
    assert store.ids() == []
    older, newer = sorted((written(store, *ENDED), written(store, *ENDED)))
    store.open(older).transcript.close()
    assert store.ids() == [newer, older] and set(store.by_last_update()) == {older, newer}
    assert store.find(older) == older and store.updated(older) > 0 and store.size(older) > 0
    for session in ("20990101-000000-aaaaaaaa", "../x", "a\0b"):
        with pytest.raises(UsageError):
            store.read(session)
    with pytest.raises(TranscriptError):
        store.records("20990101-000000-aaaaaaaa")


@pytest.mark.parametrize(
    "since",
    [
        (),
        (PauseRecord(calls=(), digests=(), expires_at=""),),
        (ExecutionRecord(call="c1", mutates=True), StoppedRecord(reason="interrupted")),
        (ENDED[-1], UserRecord(content="and?")),
    ],
)
def test_what_has_not_ended_is_removed_only_where_that_is_said(
    make: Make, since: Sequence[Record]
) -> None:
    store = make()
    session = written(store, *ENDED[:2], *since)
    assert not store.remove(session) and store.ids() == [session]
    assert store.remove(session, force=True) and store.ids() == []
    assert not store.remove(session, force=True)


@pytest.mark.parametrize(
    "head",
    [
        *(b"", b"{", b"7", b"[" * 100_000, b'{"root": "/r"}', b"\xff\xfe", b"null"),
        b'{"root":"/r","inode":1,"names":"a","old_state":"a","new_state":"b","mode":0}',
        b'{"root":"/r","inode":"1","names":["a"],"old_state":"a","new_state":"b","mode":0}',
    ],
)
def test_a_damaged_copy_of_a_change_is_left_out_and_costs_no_other(make: Make, head: bytes) -> None:
    files = make().create()
    assert files.undo is not None
    change = Change(root="/r", inode=1, names=("a",), old_state="absent", new_state="b", mode=0)
    kept = files.undo.keep_old(change, b"old")
    files.undo.blobs.write("f" * 32, head + b"\nold", durable=False)
    assert [one.key for one in files.undo.changes()] == [kept]
    files.transcript.close()


def test_what_is_kept_comes_back_whole_makes_room_and_expires(make: Make) -> None:
    files = make(max_bytes=100).create()
    assert files.artifacts is not None and files.undo is not None
    hostile, key = files.artifacts.add(HOSTILE) or "", "f" * 32
    assert files.artifacts.get(hostile) == HOSTILE and len(HOSTILE.encode("utf-8", "replace")) < 60
    files.artifacts.add("x" * 90, key)
    assert files.artifacts.get(hostile) is None and files.artifacts.add("x" * 101) is None
    change = Change(root="/r", inode=1, names=("a",), old_state="absent", new_state="b", mode=0)
    kept = files.undo.keep_old(change, HOSTILE.encode(errors="surrogatepass"))
    again = make().undo(files.session, keep=60)
    assert again.changes()[0].names == ("a",) and not again.is_empty
    assert again.read_old_content(kept) == HOSTILE.encode(errors="surrogatepass")
    assert make(keep=-1).read(files.session).artifacts.get(key) is None
    again.forget(kept)
    assert again.is_empty
    files.transcript.close()


def test_an_access_list_that_another_takes_away_stops_calls(make: Make) -> None:
    spec = ToolSpec("look")
    files = make().create()
    files.access.begin("s", "p", [spec])
    assert files.access.check(spec) is None
    other = make().read(files.session).access
    other.begin("s", "p2", [spec])
    denied = files.access.check(spec)
    assert denied is not None and "not the one" in denied.reason
    other.end()
    gone = files.access.check(spec)
    assert gone is not None and "is gone" in gone.reason
    files.transcript.close()


def test_an_approval_is_used_once_and_all_have_one_key(make: Make) -> None:
    first, second = make().create(), make().create()
    assert [one.consumed_approvals.take("d") for one in (first, second, first)] == [
        True,
        False,
        False,
    ]
    assert make().secret == make().secret and len(make().secret) == 32
    for files in (first, second):
        files.transcript.close()


def test_an_approval_behind_a_line_that_was_cut_off_is_used_once(tmp_path: Path) -> None:
    used = ConsumedApprovalsFile(tmp_path / "used")
    used.path.write_text("whole\nhal")
    assert [used.take("d"), used.take("d"), used.take("whole")] == [True, False, False]
    assert used.all() == ["whole", "hal", "d"]


def test_tables_keep_all_of_a_transaction_or_nothing(make: Make) -> None:
    tables, again = make().tables(SCHEDULE), make().tables(SCHEDULE)
    insert = "INSERT INTO jobs (id, definition, seal, planned_at) VALUES (?, ?, '', 4000000000)"
    with tables.transaction(write=True) as db:
        db.execute(insert, ("a", "{}"))
    with pytest.raises(KeyboardInterrupt), tables.transaction(write=True) as db:
        db.execute(insert, ("b", "{}"))
        raise KeyboardInterrupt
    with again.transaction() as db:
        (row,) = db.execute("SELECT id, planned_at FROM jobs").fetchall()
    assert dict(row) == {"id": "a", "planned_at": 4_000_000_000} and row[0] == "a"
    present = tables.presence()
    token = present.token
    assert again.is_alive(token) and not again.is_alive("0" * 32)
    present.close()
    assert not again.is_alive(token)


# --- what is PostgreSQL's alone -------------------------------------------------------------------


def test_a_writer_that_lost_its_database_writes_no_more_and_another_goes_on(
    cluster: Cluster,
) -> None:
    store = PostgresStore(cluster.new())
    files = store.create()
    files.transcript.append(header())
    cluster.kill()
    with pytest.raises(StorageError, match="cannot be written") as lost:
        files.transcript.append(UserRecord(content="x"))
    assert "is running" in lost.value.cure
    with pytest.raises(StorageError, match="cannot be reached"):
        store.ids()
    cluster.start()
    again = store.open(files.session)
    assert len(again.transcript) == 1
    with pytest.raises(TranscriptError, match="closed"):
        files.transcript.append(UserRecord(content="x"))
    again.transcript.close()


def test_a_writer_whose_session_is_anothers_is_fenced_off(cluster: Cluster) -> None:
    address = cluster.new()
    store = PostgresStore(address)
    files = store.create()
    with get_database(address).connection() as db:
        db.execute("UPDATE sessions SET writer = writer + 1")
    with pytest.raises(StorageError, match="another process has opened it"):
        files.transcript.append(header())
    assert store.records(files.session) == []


@pytest.mark.parametrize(
    "address",
    ["/tmp/x", "postgresql://u:s3c@ret@h/n", "postgresql://u:s3c/ret@h/n", "postgresql://u:s#c@h"],
)
def test_what_is_no_address_is_refused_and_not_quoted(address: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_address(address)
    assert "s3c" not in str(refused.value) and "ret" not in str(refused.value)


def test_a_password_is_in_no_error(tmp_path: Path) -> None:
    store = PostgresStore(f"postgresql://me:s3cret@/n?host={tmp_path}&password=s3cret")
    with pytest.raises(StorageError, match="cannot be reached") as unreachable:
        store.ids()
    assert "s3cret" not in str(unreachable.value) + store.place


def test_whoever_else_opens_the_tables_takes_no_lock_away_from_a_process_that_writes(
    tmp_path: Path,
) -> None:
    store = TranscriptStore(tmp_path / "sessions")
    tables = store.tables(SCHEDULE)
    assert isinstance(tables, SqliteTables)
    begin = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    )
    with tables.transaction(write=True):
        with store.tables(SCHEDULE).transaction():
            pass
        other = subprocess.run([sys.executable, "-c", begin, tables.path], capture_output=True)
    assert b"database is locked" in other.stderr


def test_in_memory_the_oldest_session_makes_room_for_a_new_one() -> None:
    store = MemoryStore()
    sessions = [store.create().session for _ in range(MAX_MEMORY_SESSIONS + 1)]
    with pytest.raises(UsageError, match="there is no session"):
        store.read(sessions[0])
    assert all(store.read(session).session == session for session in sessions[1:])
