"""A folder of sessions: where each stands, what an id may be, what may be removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.messages import replace
from mlx_tools.store.session_folder import TranscriptStore
from mlx_tools.store.session_list import standing_of
from mlx_tools.store.transcript import TranscriptFile, encode
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
from tests.core.records import RECORDS
from tests.core.sessions import completion, header, open_session, ran, settle

ASKED = UserRecord(content="what?")


def write(folder: Path, session: str, *records: Record, tail: bytes = b"") -> Path:
    """A session as a process left it."""
    place = folder / session
    place.mkdir(parents=True)
    lines = "".join(encode(record) + "\n" for record in records)
    (place / "transcript.jsonl").write_bytes(lines.encode() + tail)
    return place


# --- where a session stands ---------------------------------------------------------------------


class Run:
    """A session, and the records that it has folded."""

    def __init__(self, **more: Any) -> None:
        self.session = open_session(**more)
        self.records: list[Record] = [header(**more)]

    def apply(self, *records: Record) -> Run:
        for record in records:
            self.session.apply(record)
            self.records.append(record)
        return self

    def say(self, *lines: str) -> Run:
        self.apply(completion(self.session.turn + 1, "\n".join(lines)))
        self.records += settle(self.session)
        return self


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (Run(), "empty"),
        (Run().apply(ASKED), "interrupted"),
        (Run().apply(ASKED, completion(1, call("look"))), "interrupted"),
        (Run().apply(ASKED).say(call("look", x=1)), "interrupted"),
        (Run().apply(ASKED).say('{"type":"tool_call"'), "interrupted"),
        (Run().apply(ASKED).say(answer()), "answered"),
        (Run().apply(ASKED, StoppedRecord(reason="total_timeout")), "stopped"),
    ],
)
def test_the_standing_follows_the_session(run: Run, expected: str) -> None:
    assert standing_of(run.records).state == expected


def test_a_call_that_was_started_and_can_change_things_is_in_doubt_until_it_is_decided() -> None:
    run = Run().apply(ASKED).say(call("write", x=1))
    records = run.apply(ExecutionRecord(call="c1", mutates=True)).records
    assert standing_of(records).in_doubt == ("c1",)
    stopped = standing_of([*records, StoppedRecord(reason="interrupted")])
    assert stopped.state == "stopped" and not stopped.ended
    again = ApprovalRecord(call="c1", approved=True, digest="d")
    assert standing_of([*records, again]).in_doubt == ()
    assert standing_of([*records, again, records[-1]]).in_doubt == ("c1",)
    seen = ObservationRecord(call="c1", name="write", content="")
    assert standing_of([*records, again, records[-1], seen]).in_doubt == ()


def test_a_call_without_a_model_stands_too() -> None:
    made = CallRecord(turn=0, call="c1", name="look", arguments={})
    asks = DecisionRecord(call="c1", decision="ask", rule="r", reason="")
    seen = ObservationRecord(call="c1", name="look", content="")
    head = header()
    assert standing_of([head, made]).state == "interrupted"
    assert standing_of([head, made, asks]).state == "stopped"
    ended = standing_of([head, made, replace(asks, decision="allow"), seen])
    assert (ended.state, ended.first_call) == ("answered", "look")


@given(st.lists(RECORDS, max_size=8))
def test_any_records_have_a_standing(records: list[Record]) -> None:
    known = standing_of([header(), *records])
    assert known.state != "damaged"
    assert not known.ended or not known.pending


def test_every_prefix_of_a_run_has_the_standing_of_a_crash_there() -> None:
    run = Run().apply(ASKED).say(call("look", x=1)).apply(*ran("c1", "look")).say(answer())
    states = [standing_of(run.records[:end]).state for end in range(len(run.records) + 1)]
    assert states[:2] == ["empty", "empty"] and states[-1] == "answered"
    assert set(states[2:-1]) == {"interrupted"}


# --- the folder ---------------------------------------------------------------------------------


def test_looking_at_a_session_leaves_it_to_others(tmp_path: Path) -> None:
    write(tmp_path, "s1", header(), ASKED)
    folder = TranscriptStore(tmp_path)
    with folder._file("s1"):
        folder.listed("s1")
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
    states = {i: folder.listed(i).standing for i in folder.ids()}
    assert (states["bad"].state, states["good"].state) == ("damaged", "answered")
    assert states["bad"].reason and not states["bad"].ended
    with pytest.raises(TranscriptError):
        folder.records("bad")


def test_what_stands_in_a_transcripts_place_is_damage_and_stops_nobody(tmp_path: Path) -> None:
    for name in ("pipe", "folder", "link", "none"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "transcript.jsonl")
    (tmp_path / "folder" / "transcript.jsonl").mkdir()
    (tmp_path / "link" / "transcript.jsonl").symlink_to("/etc/hostname")
    folder = TranscriptStore(tmp_path)
    assert {folder.listed(i).standing.state for i in folder.ids()} == {"damaged"}


def test_only_real_folders_with_an_ids_name_are_sessions(tmp_path: Path) -> None:
    write(tmp_path, "s1", header())
    write(tmp_path / "elsewhere", "s9", header())
    (tmp_path / "linked").symlink_to(tmp_path / "elsewhere" / "s9")
    for name in (".hidden", "a b", "ä", "x" * 101, ".removed-s2"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret").write_text("key")
    assert TranscriptStore(tmp_path).ids() == ["s1", "elsewhere"]
    assert TranscriptStore(tmp_path / "missing").ids() == []


@pytest.fixture
def three(tmp_path: Path) -> TranscriptStore:
    for name in ("20260101-000000-aa", "20260102-000000-ab", "20260102-000000-cd"):
        write(tmp_path, name, header())
    return TranscriptStore(tmp_path)


@pytest.mark.parametrize(
    ("given_id", "found"),
    [
        ("last", "20260102-000000-cd"),
        ("20260101", "20260101-000000-aa"),
        ("20260102-000000-a", "20260102-000000-ab"),
        ("20260102-000000-cd", "20260102-000000-cd"),
    ],
)
def test_an_id_may_be_its_beginning_or_last(
    three: TranscriptStore, given_id: str, found: str
) -> None:
    assert three.find(given_id) == found


@pytest.mark.parametrize(
    "given_id",
    ["", ".", "..", "../x", "/etc", "2026", "20260102", "x", "*", "\0", "last/..", "a" * 9999],
)
def test_an_id_that_means_none_or_several_is_refused(three: TranscriptStore, given_id: str) -> None:
    with pytest.raises(UsageError):
        three.find(given_id)


# --- removing -----------------------------------------------------------------------------------

ENDED: Sequence[Record] = (header(), ASKED, AnswerRecord(turn=1, content="a"))


def test_an_ended_session_is_removed_with_all_it_holds(tmp_path: Path) -> None:
    place = write(tmp_path, "s1", *ENDED)
    (place / "artifacts").mkdir()
    (place / "artifacts" / ("0" * 32)).write_text("long")
    folder = TranscriptStore(tmp_path)
    assert folder.listed("s1").size > 4
    assert folder.remove("s1") and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [lambda p: None, lambda p: (p / "transcript.jsonl").mkdir()])
def test_a_damaged_session_can_be_removed_where_that_is_said(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    (tmp_path / "s1").mkdir()
    make(tmp_path / "s1")
    folder = TranscriptStore(tmp_path)
    assert not folder.remove("s1") and folder.remove("s1", whatever=True)
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
