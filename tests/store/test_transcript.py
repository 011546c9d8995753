"""Records survive the way to disk and back, and a crash at any byte."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import StorageError, TranscriptError
from mlx_tools.store import transcript as t
from mlx_tools.transcript.records import (
    ApprovalRecord,
    CallRecord,
    CompletionRecord,
    DecisionRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    PauseRecord,
    RecordedSettings,
    UserRecord,
)
from tests.controller.full_disk import file_size_limit
from tests.controller.records import RECORDS
from tests.forked import forks
from tests.tables import table

HEADER = Header(session="s", created="2026-01-01T00:00:00+00:00")


def test_a_header_has_every_setting_that_is_recorded() -> None:
    assert {*RecordedSettings.__struct_fields__} <= {*Header.__struct_fields__}


@given(RECORDS)
def test_a_record_reads_back_as_it_was_written(record: Any) -> None:
    line = t.encode(record)
    assert "\n" not in line
    assert t.decode(line) == record
    assert line.encode()


PIECES = (
    *(
        '"type":"user",',
        '"type":"final_answer"',
        '"content":"x",',
        "null",
        "1",
        "1.0",
        "-0",
        "1e400",
    ),
    *('"\\ud800"', "{}", "[]", ",", '"', "{", "}", "NaN", '"x":1,', "9" * 30, "\\u0000", " ", "é"),
)


@given(RECORDS, st.integers(0), st.integers(0, 2), st.sampled_from(PIECES))
def test_the_quick_reader_of_a_line_reads_nothing_that_the_other_does_not(
    record: Any, at: int, length: int, piece: str
) -> None:
    line = t.encode(record)
    at %= len(line) + 1
    line = line[:at] + piece + line[at + length :]
    try:
        quick = t.decode_quickly(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    assert repr(quick) == repr(t.from_json(json.loads(line)))


@given(st.lists(RECORDS, max_size=4), st.data())
def test_a_file_cut_at_any_byte_keeps_every_whole_line(rest: list[Any], data: Any) -> None:
    whole = [HEADER, *rest]
    lines = [(t.encode(r) + "\n").encode() for r in whole]
    content = b"".join(lines)
    cut = data.draw(st.integers(0, len(content)))
    kept, size = t.parse(content[:cut])
    assert kept == whole[: len(kept)]
    assert size == sum(map(len, lines[: len(kept)])) <= cut
    assert len(kept) == len(whole) or size + len(lines[len(kept)]) > cut


def test_what_a_power_cut_must_not_take_back_is_synced_before_the_next_step(
    tmp_path: Path,
) -> None:
    path = tmp_path / "transcript.jsonl"
    synced: list[Any] = []

    def written(call: str, *, mutates: bool) -> list[Any]:
        return [
            CallRecord(turn=1, call=call, name="t", arguments={}),
            DecisionRecord(call=call, decision="allow", rule="", reason=""),
            ExecutionRecord(call=call, mutates=mutates),
        ]

    first: list[Any] = [HEADER, *written("c1", mutates=False), *written("c2", mutates=True)]
    with t.TranscriptFile(path, sync=lambda file: synced.append(t.load(path)[-1])) as transcript:
        for record in first:
            transcript.append(record)
    started = ExecutionRecord(call="c2", mutates=True)
    assert synced == [started]
    ended = [ObservationRecord(call=call, name="t", content="") for call in ("c1", "c2")]
    asked = PauseRecord(calls=("c3",), digests=("d",), expires_at="")
    decided = ApprovalRecord(call="c3", approved=True, digest="d")
    rest: list[Any] = [*ended, asked, decided, UserRecord(content="and?")]
    with t.TranscriptFile(path, sync=lambda file: synced.append(t.load(path)[-1])) as transcript:
        for record in rest:
            transcript.append(record)
    assert synced == [started, ended[1], asked, decided]


def test_a_reopened_file_is_its_owners_alone_drops_a_line_that_was_cut_off_and_goes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s" / "transcript.jsonl"
    with t.TranscriptFile(path) as transcript:
        transcript.append(HEADER)
        transcript.append(UserRecord(content="one"))
        with pytest.raises(TranscriptError, match="in use"):
            t.TranscriptFile(path)
    with path.open("ab") as file:
        file.write(b'{"type":"user","content":"tw')
    with t.TranscriptFile(path) as transcript:
        assert len(transcript) == 2
        transcript.append(UserRecord(content="three"))
    assert [getattr(r, "content", None) for r in t.load(path)] == [None, "one", "three"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_damage_within_a_file_is_named_and_not_guessed_at_and_no_link_is_followed(
    tmp_path: Path,
) -> None:
    path, link = tmp_path / "transcript.jsonl", tmp_path / "link.jsonl"
    path.write_text(
        t.encode(HEADER) + '\n{"type":"user"\n' + t.encode(UserRecord(content="x")) + "\n"
    )
    for opened in (t.load, t.TranscriptFile):
        with pytest.raises(TranscriptError, match="line 2"):
            opened(path)
    path.write_text("precious")
    link.symlink_to(path)
    with pytest.raises(TranscriptError, match="cannot be opened"):
        t.TranscriptFile(link)
    assert path.read_text() == "precious"


@table(
    ("line", "fault"),
    [
        *((line, "no record") for line in ("[]", "{}", '{"type":"nothing"}')),
        ("[" * 100_000, "not JSON"),
        ('{"type":"user","content":"x","later":1}', "unknown field `later`"),
        ('{"type":"user","content":5}', "Expected `str`, got `int` - at `$.content`"),
        ('{"type":"user"}', "required field `content`"),
        ('{"type":"completion","turn":true,"text":""}', "Expected `int`, got `bool` - at `$.turn`"),
        ('{"type":"completion","turn":1,"text":"","usage":{"tokens":1}}', "unknown field `tokens`"),
        ('{"type":"paused","calls":["c1",2],"digests":[],"expires_at":""}', "at `$.calls[1]`"),
        ('{"type":"stopped","reason":"interrupted","waiting_for":"Godot"}', "at `$.waiting_for`"),
        ('{"type":["user"],"content":""}', "no record"),
    ],
)
def test_what_is_no_record_is_refused_and_what_is_wrong_named(line: str, fault: str) -> None:
    with pytest.raises(TranscriptError, match=re.escape(fault)):
        t.decode(line)


def test_a_file_of_format_version_1_is_read_and_a_later_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(
        '{"type":"header","session":"s","created":""}\n{"type":"user","content":"Hello?"}\n'
        '{"type":"completion","turn":1,"text":"Hello!"}\n'
    )
    header, _, completion = t.load(path)
    assert isinstance(header, Header) and header.version == 1
    assert isinstance(completion, CompletionRecord) and completion.prompt is None
    path.write_text('{"type":"header","session":"s","created":"","version":99}\n')
    with pytest.raises(TranscriptError, match="version 99"):
        t.load(path)


def test_a_transcript_begins_with_its_header() -> None:
    with pytest.raises(TranscriptError, match="does not begin with its header"):
        t.parse(b'{"type":"user","content":"Hello?"}\n')


def test_a_record_that_would_make_the_file_unreadable_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    with t.TranscriptFile(path, max_bytes=400) as file:
        file.append(HEADER)
        with pytest.raises(StorageError, match="is full") as refused:
            file.append(UserRecord(content="x" * 400))
        assert "new session" in (refused.value.hint or "") and not refused.value.cure
        file.append(UserRecord(content="x"))
    with t.TranscriptFile(path, max_bytes=400) as file:
        assert [*file] == [HEADER, UserRecord(content="x")]


def test_a_full_disk_is_an_error_and_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    with t.TranscriptFile(path) as transcript:
        transcript.append(HEADER)
        size = path.stat().st_size
        with file_size_limit(size + 20), pytest.raises(TranscriptError, match="cannot be written"):
            transcript.append(UserRecord(content="x" * 100))
        assert path.stat().st_size == size
        assert len(transcript) == 1
        transcript.append(UserRecord(content="short"))
    assert len(t.load(path)) == 2


WRITES_FOR_EVER = """
import sys
from pathlib import Path
from mlx_tools.store.transcript import TranscriptFile
from mlx_tools.transcript.records import ExecutionRecord

transcript = TranscriptFile(Path(sys.argv[1]))
for number in range(10**9):
    transcript.append(ExecutionRecord(call=f"c{number}", mutates=False))
    if number == int(sys.argv[2]):
        print("so many", flush=True)
"""


@pytest.mark.parametrize("number", [0, 100])
def test_a_killed_writer_leaves_a_transcript_that_reads(tmp_path: Path, number: int) -> None:
    path = tmp_path / "killed.jsonl"
    with t.TranscriptFile(path) as transcript:
        transcript.append(HEADER)
    writer = forks().start(str(path), str(number), code=WRITES_FOR_EVER)
    assert writer.stdout.readline()
    writer.kill()
    writer.communicate()
    with t.TranscriptFile(path) as transcript:
        calls = [r.call for r in transcript if isinstance(r, ExecutionRecord)]
    assert len(calls) > number and calls == [f"c{n}" for n in range(len(calls))]


def test_nothing_follows_on_half_a_line_that_could_not_be_taken_back(tmp_path: Path) -> None:
    """The disk fails at a write, and at cutting off what it wrote of it."""
    path = tmp_path / "transcript.jsonl"

    def failing(file: int) -> None:
        reads, writes = os.pipe()
        os.dup2(writes, file)  # which cannot be cut off
        os.close(reads)
        os.close(writes)
        raise OSError(5, "Input/output error")

    transcript = t.TranscriptFile(path, sync=failing)
    with pytest.raises(StorageError, match="Input/output error"):
        transcript.append(ExecutionRecord(call="c1", mutates=True))
    with pytest.raises(TranscriptError, match="is closed"):
        transcript.append(ExecutionRecord(call="c1", mutates=True))
    assert len(transcript) == 0
