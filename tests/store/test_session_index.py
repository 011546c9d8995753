"""The index of sessions: it says what the folders say, whatever happens to it."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from mlx_tools.errors import TranscriptError
from mlx_tools.store.session_folder import TranscriptStore
from mlx_tools.store.session_store import SessionSummary, summarize
from mlx_tools.store.transcript import Transcript, TranscriptFile, encode
from mlx_tools.transcript.records import AnswerRecord, UserRecord
from tests.controller.full_disk import file_size_limit
from tests.controller.sessions import header
from tests.tables import table
from tests.waiting import set_time_back

ASKED, ANSWERED = UserRecord(content="what?"), AnswerRecord(turn=1, content="that")


def make(store: TranscriptStore) -> str:
    files = store.create()
    with files.transcript as transcript:
        for record in (header(), ASKED, ANSWERED):
            transcript.append(record)
    return files.session


def go_on(store: TranscriptStore, session: str) -> None:
    with store.open(session).transcript as transcript:
        transcript.append(ASKED)


def end_like_a_killed_process(transcript: Transcript) -> None:
    """Close a transcript's file as the system does: nothing of this process is told."""
    assert isinstance(transcript, TranscriptFile)
    status = transcript.path.stat()
    for name in map(os.path.basename, Path("/dev/fd").iterdir()):
        with suppress(OSError):  # that of the listing is closed
            if os.path.samestat(os.fstat(int(name)), status):
                os.close(int(name))


def facts(store: TranscriptStore) -> list[object]:
    """The answers of the store, which may come from its index."""
    ids = store.by_last_update()
    summaries = sorted((name, one) for name, one in store.summaries())
    listed = [store.describe(session).status for session in ids]
    prefixes = [store.matching_ids(session[:-3]) for session in ids]
    return [ids, store.by_last_update(2), store.count(), prefixes, listed, str(summaries)]


def truth(store: TranscriptStore) -> list[object]:
    """The same by the folders alone."""
    ids = sorted(store.ids(), key=lambda one: (store.updated(one), one), reverse=True)
    summaries: list[tuple[str, SessionSummary | TranscriptError]] = []
    for session in sorted(ids):
        try:
            summaries.append((session, summarize(store.records(session))))
        except TranscriptError as error:
            summaries.append((session, error))
    prefixes = [[one for one in store.ids() if one.startswith(s[:-3])] for s in ids]
    listed = [super(TranscriptStore, store).summary(s).status for s in ids]
    return [ids, ids[:2], len(ids), prefixes, listed, str(summaries)]


class Machine:
    """A store, and what may happen to it. ``copy`` is an older state of its index."""

    def __init__(self, folder: Path) -> None:
        self.store = TranscriptStore(folder / "sessions")
        self.index = self.store.index.path
        self.copy = folder / "copy"
        self.random = Random(7)
        self.store.folder.mkdir(parents=True)
        (self.store.folder / ".swept").touch()  # no sweep in the background is due
        self.sessions = [make(self.store)]

    def pick(self) -> str:
        return self.random.choice(self.sessions)

    def make(self) -> None:
        self.sessions.append(make(TranscriptStore(self.store.folder)))

    def go_on(self) -> None:
        go_on(TranscriptStore(self.store.folder), self.pick())

    def be_killed(self) -> None:
        files = TranscriptStore(self.store.folder).open(self.pick())
        files.transcript.append(ASKED)
        end_like_a_killed_process(files.transcript)

    def be_killed_in_a_new_one(self) -> None:
        files = self.store.create()
        files.transcript.append(header())
        end_like_a_killed_process(files.transcript)
        self.sessions.append(files.session)

    def remove(self) -> None:
        if len(self.sessions) > 2:
            session = self.pick()
            assert self.store.remove(session, force=True)
            self.sessions.remove(session)

    def copy_a_folder_in(self) -> None:
        source, name = self.pick(), f"20260101-000000-{self.random.randrange(1 << 32):08x}"
        shutil.copytree(self.store.folder / source, self.store.folder / name)
        self.sessions.append(name)

    def remove_the_index(self) -> None:
        self.index.unlink(missing_ok=True)

    def damage_the_index(self) -> None:
        data = bytearray(self.index.read_bytes() if self.index.exists() else bytes(9000))
        begin = self.random.randrange(max(len(data) // 4096, 1)) * 4096
        data[begin : begin + 4096] = self.random.randbytes(4096)
        self.index.write_bytes(data)

    def cut_the_index(self) -> None:
        data = self.index.read_bytes() if self.index.exists() else b"x" * 9000
        self.index.write_bytes(data[: len(data) // 2])

    def empty_the_index(self) -> None:
        self.index.write_bytes(b"")

    def save_the_index(self) -> None:
        if self.index.exists():
            shutil.copy(self.index, self.copy)

    def put_an_older_index_back(self) -> None:
        if self.copy.exists():
            shutil.copy(self.copy, self.index)


EVENTS = [name for name, value in vars(Machine).items() if callable(value) and name[0] != "_"]
EVENTS.remove("pick")


@table("seed", range(16))
def test_the_index_says_what_the_folders_say(tmp_path: Path, seed: int) -> None:
    machine = Machine(tmp_path / str(seed))
    machine.random.seed(seed)
    for _ in range(12):
        event = machine.random.choice(EVENTS)
        getattr(machine, event)()
        if machine.random.random() < 0.6:
            assert facts(machine.store) == truth(machine.store), event
    assert facts(machine.store) == truth(machine.store)


def test_a_session_that_is_being_written_to_is_looked_at_each_time(tmp_path: Path) -> None:
    store, reader = TranscriptStore(tmp_path / "s"), TranscriptStore(tmp_path / "s")
    older, newer = make(store), make(store)
    reader.by_last_update()
    with store.open(older).transcript as transcript:
        for now in (2e9, 3e9):
            transcript.append(ASKED)
            os.utime(str(transcript.path), (now, now))
            assert reader.by_last_update() == [older, newer]
            os.utime(str(transcript.path), (1, 1))
            assert reader.by_last_update() == [newer, older]


def test_an_index_that_is_up_to_date_spares_a_look_into_each_folder(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path / "s")
    sessions = [make(store) for _ in range(3)]
    store.by_last_update()
    for _ in range(2):  # a change that nobody makes: it shows whether the folder was looked at
        go_on(store, sessions[0])
        sessions.append(make(store))
        os.utime(store.path(sessions[1]), (9e9, 9e9))
        assert store.by_last_update(1) == [sessions[-1]]
        os.utime(store.path(sessions[1]), (1, 1))
    store.index.compare()
    assert store.by_last_update()[-1] == sessions[1]


def test_a_store_that_is_never_searched_has_no_index(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path / "s")
    go_on(store, make(store))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert store.by_last_update() and store.index.path.exists()


def test_a_store_that_cannot_be_written_to_is_searched(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path / "s")
    session = make(store)
    store.index.path.mkdir()  # nothing can be kept in its place, not by root either
    assert store.by_last_update() == [session] and store.count() == 1
    assert store.find(session[:-2]) == session
    assert store.describe(make(store)).status.state == "answered"
    assert len([*store.summaries()]) == 2


def test_a_full_disk_costs_the_index_and_nothing_else(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path / "s")
    sessions = [make(store) for _ in range(40)]
    store.by_last_update()
    with file_size_limit(store.index.path.stat().st_size):
        sessions += [make(store) for _ in range(40)]
        assert {*store.by_last_update()} == {*sessions}
    assert {*store.by_last_update()} == {*sessions}


def test_several_at_once_leave_an_index_that_is_right(tmp_path: Path) -> None:
    def work() -> None:
        store = TranscriptStore(tmp_path / "s")
        for _ in range(6):
            go_on(store, make(store))
            store.by_last_update(3)

    make(TranscriptStore(tmp_path / "s"))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = TranscriptStore(tmp_path / "s")
    assert store.count() == 25 and facts(store) == truth(store)


def test_a_transcript_that_was_changed_by_hand_is_read_again(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path / "s")
    session = make(store)
    assert store.describe(session).status.state == "answered"
    assert facts(store) == truth(store)
    path = store.path(session)
    before = path.stat()
    path.write_text(path.read_text().replace("final_answer", "final_amswer"))
    set_time_back(path, before)
    assert isinstance(dict(store.summaries())[session], TranscriptError)
    assert store.describe(session).status.state == "damaged"


@pytest.mark.parametrize("question", ["x" * 30_000, "half a character \ud800"])
def test_what_the_index_does_not_take_is_read_each_time(tmp_path: Path, question: str) -> None:
    store = TranscriptStore(tmp_path / "s")
    session = make(store)
    lines = [encode(one) for one in (header(), UserRecord(content=question), ANSWERED)]
    store.path(session).write_text("".join(f"{line}\n" for line in lines))
    for _ in range(2):
        assert store.describe(session).status.question == question
