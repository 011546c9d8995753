"""A folder of sessions: where each stands, what an id may be, what may be removed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.controller.outputs import shorten
from mlx_tools.errors import StorageError, TranscriptError, UsageError
from mlx_tools.messages import replace
from mlx_tools.store.access_list import ConsumedApprovalsFile
from mlx_tools.store.session_folder import TranscriptStore
from mlx_tools.store.session_store import session_status
from mlx_tools.store.transcript import MAX_TRANSCRIPT, TranscriptFile, encode
from mlx_tools.testing import answer, call
from mlx_tools.transcript.records import (
    AnswerRecord,
    ApprovalRecord,
    CallRecord,
    DecisionRecord,
    ExecutionRecord,
    ObservationRecord,
    Record,
    StoppedRecord,
    UserRecord,
)
from tests.controller.full_disk import file_size_limit
from tests.controller.records import RECORDS
from tests.controller.sessions import completion, header, make_ran_records, open_session, settle
from tests.tables import table

ASKED = UserRecord(content="what?")
YES = ApprovalRecord(call="c1", approved=True, digest="d")


def write(folder: Path, session: str, *records: Record, tail: bytes = b"") -> Path:
    """A session as a process left it."""
    place = folder / session
    place.mkdir(parents=True)
    lines = "".join(encode(record) + "\n" for record in records)
    (place / "transcript.jsonl").write_bytes(lines.encode() + tail)
    return place


def test_a_transcript_larger_than_any_is_read_by_nobody_and_can_be_removed(
    tmp_path: Path,
) -> None:
    place = write(tmp_path, "large", header(), ASKED)
    os.truncate(place / "transcript.jsonl", MAX_TRANSCRIPT + 1)
    store = TranscriptStore(tmp_path)
    assert store.describe("large").status.state == "damaged"
    for read in (store.records, lambda session: [*store.parts(session)]):
        with pytest.raises(TranscriptError, match="larger than"):
            read("large")
    assert store.remove("large", force=True) and store.ids() == []


# --- where a session stands ---------------------------------------------------------------------


class Run:
    """A session, and the records that it has folded."""

    def __init__(self) -> None:
        self.session = open_session()
        self.records: list[Record] = [header()]

    def apply(self, *records: Record) -> Run:
        for record in records:
            self.session.apply(record)
            self.records.append(record)
        return self

    def say(self, *lines: str) -> Run:
        self.apply(completion(self.session.turn + 1, "\n".join(lines)))
        self.records += settle(self.session)
        return self


MADE = CallRecord(turn=0, call="c1", name="look", arguments={})
ALLOWED = DecisionRecord(call="c1", decision="allow", rule="r", reason="")
SEEN = ObservationRecord(call="c1", name="look", content="")
STARTED = ExecutionRecord(call="c1", mutates=True)


@table(
    ("records", "state", "in_doubt"),
    [
        (Run().records, "empty", ()),
        (Run().apply(ASKED).records, "interrupted", ()),
        (Run().apply(ASKED, completion(1, call("look"))).records, "interrupted", ()),
        (Run().apply(ASKED).say(call("look", x=1)).records, "interrupted", ()),
        (Run().apply(ASKED).say('{"type":"tool_call"').records, "interrupted", ()),
        (Run().apply(ASKED).say(answer()).records, "answered", ()),
        (Run().apply(ASKED, StoppedRecord(reason="total_timeout")).records, "stopped", ()),
        # calls without a model
        ([header(), MADE], "interrupted", ()),
        ([header(), MADE, replace(ALLOWED, decision="ask")], "stopped", ()),
        ([header(), MADE, ALLOWED, SEEN], "answered", ()),
        # one that was started and can change things is in doubt until it is decided
        ([*Run().apply(ASKED).say(call("write", x=1)).records, STARTED], "interrupted", ("c1",)),
        ([header(), ASKED, STARTED, StoppedRecord(reason="interrupted")], "stopped", ("c1",)),
        ([header(), ASKED, STARTED, YES], "interrupted", ("c1",)),  # it may have done its work
        ([header(), ASKED, STARTED, YES, STARTED], "interrupted", ("c1",)),
        ([header(), ASKED, STARTED, YES, STARTED, SEEN], "interrupted", ()),
    ],
)
def test_the_standing_follows_the_session(
    records: list[Record], state: str, in_doubt: tuple[str, ...]
) -> None:
    found = session_status(records)
    assert (found.state, found.in_doubt) == (state, in_doubt)
    assert found.is_finished == (state in ("answered", "stopped", "empty") and not in_doubt)
    assert found.first_call == ("look" if MADE in records else found.first_call)


@given(st.lists(RECORDS, max_size=8))
def test_any_records_have_a_standing(records: list[Record]) -> None:
    known = session_status([header(), *records])
    assert known.state != "damaged"
    assert not known.is_finished or not known.pending


def test_every_prefix_of_a_run_has_the_standing_of_a_crash_there() -> None:
    run = (
        Run()
        .apply(ASKED)
        .say(call("look", x=1))
        .apply(*make_ran_records("c1", "look"))
        .say(answer())
    )
    states = [session_status(run.records[:end]).state for end in range(len(run.records) + 1)]
    assert states[:2] == ["empty", "empty"] and states[-1] == "answered"
    assert set(states[2:-1]) == {"interrupted"}


# --- the folder ---------------------------------------------------------------------------------


def test_looking_at_a_session_leaves_it_to_others(tmp_path: Path) -> None:
    write(tmp_path, "s1", header(), ASKED)
    folder = TranscriptStore(tmp_path)
    with folder.path("s1").open("rb"):
        folder.describe("s1")
        with TranscriptFile(folder.path("s1")) as transcript:  # it can be locked
            assert [record.type for record in transcript] == ["header", "user"]


@pytest.mark.parametrize(
    "data",
    [
        *(b"what?\n", b"[]\n", b'{"type":[]}\n', b'{"type":{}}\n', b'{"type":"header"}\n'),
        b'{"type":"header","session":"s","created":"","version":99}\n',
        *(b'{"type":"user","content":"x"}\n', b"\xff\n", b"[" * 100_000 + b"\n"),
    ],
)
def test_a_damaged_transcript_is_a_row(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, "bad", tail=data)
    write(tmp_path, "good", header(), ASKED, AnswerRecord(turn=1, content="a"))
    folder = TranscriptStore(tmp_path)
    states = {i: folder.describe(i).status for i in folder.ids()}
    assert (states["bad"].state, states["good"].state) == ("damaged", "answered")
    assert states["bad"].reason and not states["bad"].is_finished
    with pytest.raises(TranscriptError):
        folder.records("bad")


def test_what_stands_in_a_transcripts_place_is_damage_and_stops_nobody(tmp_path: Path) -> None:
    for name in ("pipe", "folder", "link", "none"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "transcript.jsonl")
    (tmp_path / "folder" / "transcript.jsonl").mkdir()
    (tmp_path / "link" / "transcript.jsonl").symlink_to("/etc/hostname")
    folder = TranscriptStore(tmp_path)
    assert {folder.describe(i).status.state for i in folder.ids()} == {"damaged"}


def test_only_real_folders_with_an_ids_name_are_sessions(tmp_path: Path) -> None:
    write(tmp_path, "s1", header())
    write(tmp_path / "elsewhere", "s9", header())
    (tmp_path / "linked").symlink_to(tmp_path / "elsewhere" / "s9")
    for name in (".hidden", "a b", "ä", "x" * 101, ".removed-s2"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret").write_text("key")
    assert TranscriptStore(tmp_path).ids() == ["s1", "elsewhere"]
    assert TranscriptStore(tmp_path / "missing").ids() == []


@table("left", [b"", b"x", b"x" * 31])
def test_a_key_of_approvals_that_was_cut_off_is_used_for_nothing(
    tmp_path: Path, left: bytes
) -> None:
    store = TranscriptStore(tmp_path)
    key = store.secret
    path = tmp_path / "secret"
    path.write_bytes(left)
    for use in (lambda: store.secret, store.keys):
        with pytest.raises(StorageError, match=r"is damaged: it has \d+ of 32 bytes"):
            use()
    assert path.read_bytes() == left
    path.unlink()
    assert len(store.secret) == 32 and store.secret != key


@pytest.mark.parametrize(
    ("given_id", "found"),
    [
        ("last", "20260102-000000-cd"),
        ("20260101", "20260101-000000-aa"),
        ("20260102-000000-a", "20260102-000000-ab"),
        ("20260102-000000-cd", "20260102-000000-cd"),
        *((one, None) for one in ("", ".", "..", "../x", "/etc", "2026", "20260102", "x", "*")),
        *((one, None) for one in ("\0", "last/..", "a" * 9999)),
        *((one, None) for one in ("aa", "0101", "-000000-aa", "000000")),  # not a beginning
    ],
)
def test_an_id_may_be_its_beginning_or_last_and_means_one_session(
    tmp_path: Path, given_id: str, found: str | None
) -> None:
    for name in ("20260101-000000-aa", "20260102-000000-ab", "20260102-000000-cd"):
        write(tmp_path, name, header())
    if found is not None:
        assert TranscriptStore(tmp_path).find(given_id) == found
        return
    with pytest.raises(UsageError):
        TranscriptStore(tmp_path).find(given_id)


# --- removing -----------------------------------------------------------------------------------

ENDED: Sequence[Record] = (header(), ASKED, AnswerRecord(turn=1, content="a"))


def test_an_ended_session_is_removed_with_all_it_holds(tmp_path: Path) -> None:
    place = write(tmp_path, "s1", *ENDED)
    (place / "artifacts").mkdir()
    (place / "artifacts" / ("0" * 32)).write_text("long")
    folder = TranscriptStore(tmp_path)
    assert folder.describe("s1").size > 4
    assert folder.remove("s1") and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [lambda p: None, lambda p: (p / "transcript.jsonl").mkdir()])
def test_a_damaged_session_can_be_removed_where_that_is_said(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    (tmp_path / "s1").mkdir()
    make(tmp_path / "s1")
    folder = TranscriptStore(tmp_path)
    assert not folder.remove("s1") and folder.remove("s1", force=True)
    assert folder.ids() == []


def test_a_link_in_a_session_is_removed_and_not_followed(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").write_text("mine")
    place = write(tmp_path / "sessions", "s1", *ENDED)
    (place / "artifacts").symlink_to(keep)
    assert TranscriptStore(tmp_path / "sessions").remove("s1")
    assert (keep / "file").read_text() == "mine"


def test_what_a_removal_left_behind_is_swept(tmp_path: Path) -> None:
    write(tmp_path, ".removed-s1", *ENDED)
    folder = TranscriptStore(tmp_path)
    assert folder.ids() == []
    folder.sweep()
    assert list(tmp_path.iterdir()) == []


# --- what is written beside -----------------------------------------------------------------------


def test_a_session_has_a_folder_of_its_own_that_only_its_owner_can_read(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path / "sessions")
    first, second = store.create(), store.create()
    assert first.session != second.session
    assert first.path is not None
    folder = Path(first.path).parent
    assert folder.name == first.session
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "sessions").stat().st_mode) == 0o700
    assert first.artifacts is not None
    key = first.artifacts.add("old")
    os.utime(first.artifacts.blobs.folder / key, (0, 0))  # type: ignore[attr-defined]
    third = store.create()  # which removes what expired in older ones
    assert first.artifacts.get(key) is None
    for files in (first, second, third):
        files.transcript.close()


def test_a_relative_folder_or_path_means_the_one_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = TranscriptStore("sessions")
    with store.create().transcript as made:
        made.append(header())
    for session in (Path(str(made.path)), str(made.path)):
        files = store.open(session)
        assert files.artifacts is not None and files.undo is not None
        files.artifacts.add("kept")
        files.access.begin("s", "p", [])
        files.transcript.close()
    held = sorted(path.name for path in (tmp_path / str(made.path)).parent.iterdir())
    assert held == ["access.json", "artifacts", "transcript.jsonl"]
    assert [path.name for path in tmp_path.iterdir()] == ["sessions"]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file stands here")
    with pytest.raises(TranscriptError, match="no session can be kept"):
        TranscriptStore(tmp_path / "sessions").create()


def test_a_state_folder_that_cannot_be_made_is_told_with_what_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file stands here")
    monkeypatch.setenv("MLX_TOOLS_STATE_DIR", str(tmp_path / "state"))
    with pytest.raises(TranscriptError, match="MLX_TOOLS_STATE_DIR"):
        TranscriptStore(tmp_path / "state" / "sessions").create()


def test_the_approval_key_is_made_once_even_by_many_at_once(tmp_path: Path) -> None:
    store = TranscriptStore(tmp_path / "sessions")
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: TranscriptStore(store.folder).secret, range(32)))
    assert len(keys) == 1
    assert len(keys.pop()) == 32
    assert stat.S_IMODE((store.folder / "secret").stat().st_mode) == 0o600
    assert [p.name for p in store.folder.iterdir()] == ["secret"]


def test_an_approval_on_a_full_disk_or_behind_one_cut_off_is_used_up_once(tmp_path: Path) -> None:
    used, digest = ConsumedApprovalsFile(tmp_path / "used"), "d" * 64
    assert used.take("other")
    with file_size_limit(20), pytest.raises(StorageError, match="nothing was run"):
        used.take(digest)
    assert (tmp_path / "used").read_text() == "other\n"
    assert [used.take(digest), used.take(digest)] == [True, False]
    (tmp_path / "used").write_text("ddd")
    assert [used.take("e" * 64), used.take("e" * 64)] == [True, False]


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
