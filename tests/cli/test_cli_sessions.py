"""`mlx-tools sessions`: listing, showing and removing what is kept."""

from __future__ import annotations

import os
import re
import time
import unicodedata
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.cli.sessions import conversation, format_time, row, title, waiting
from mlx_tools.messages import ErrorInfo
from mlx_tools.store import ListedSession, TranscriptStore, session_status
from mlx_tools.store.transcript import TranscriptFile, decode, encode
from mlx_tools.testing import ScriptedServer, answer, call
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    PauseRecord,
    Record,
    UserRecord,
)
from tests.controller.records import RECORDS

HEAD = Header(session="s", created="2026-01-01T00:00:00+00:00", model="m")
ASKED = UserRecord(content="what is it?")
ANSWERED = (HEAD, ASKED, AnswerRecord(turn=1, content="It is 42."))
MADE = CallRecord(turn=1, call="c1", name="calculator", arguments={"expression": "6*7"})
PAUSED = (
    HEAD,
    ASKED,
    MADE,
    PauseRecord(calls=("c1",), digests=("d" * 64,), expires_at="2026-01-08T00:00:00+00:00"),
)


@pytest.fixture
def keep(home: Path) -> Any:
    """Keeps a session with these records, last written to so many days ago."""

    def write(session: str, *records: Record, days: float = 0) -> Path:
        place = home / "state" / "sessions" / session
        place.mkdir(parents=True)
        path = place / "transcript.jsonl"
        text = "".join(encode(record) + "\n" for record in records)
        path.write_text(text, encoding="utf-8")
        then = time.time() - days * 86_400
        os.utime(path, (then, then))
        return path

    return write


def kept(home: Path) -> list[str]:
    return sorted(p.name for p in (home / "state" / "sessions").iterdir())


# --- list ---------------------------------------------------------------------------------------


def test_sessions_are_listed_the_one_first_that_was_written_to_last(run: Any, keep: Any) -> None:
    keep("20260101-000000-aa", *ANSWERED, days=2)
    keep("20260103-000000-cc", HEAD, ASKED, days=1)
    keep("20260102-000000-bb", *PAUSED)
    rows = run("sessions", "list", "--json").lines
    assert [row["session"][:8] for row in rows] == ["20260102", "20260103", "20260101"]
    assert [row["state"] for row in rows] == ["paused", "interrupted", "answered"]
    (pending,) = rows[0]["pending"]
    assert pending == {
        "call_id": "c1",
        "name": "calculator",
        "arguments": {"expression": "6*7"},
        "digest": "d" * 64,
        "expires_at": "2026-01-08T00:00:00+00:00",
    }
    assert {row["question"] for row in rows} == {"what is it?"} and rows[0]["model"] == "m"
    assert [row["ended"] for row in rows] == ["paused: 1 approval due", "interrupted", "answered"]
    assert all(datetime.fromisoformat(row["updated"]).tzinfo for row in rows)
    text = run("sessions", "list").out.splitlines()
    assert text[0].startswith("20260102-000000-bb        today ")
    assert text[0].endswith("paused: 1 approval due  what is it?")
    assert "yesterday" in text[1]


NOW = datetime(2026, 11, 23, 14, 2, tzinfo=timezone(timedelta(hours=1)))


def test_a_time_is_said_as_a_person_says_it() -> None:
    said = {0: "today 14:02", 14: "today 00:02", 15: "yesterday", 39: "21 Nov", 264: "12 Nov"}
    said |= {365 * 24: "23 Nov 2025", -24: "24 Nov"}
    assert {hours: format_time(NOW - timedelta(hours=hours), NOW) for hours in said} == said


def test_a_row_fits_a_line_of_a_terminal_and_is_folded_where_that_is_narrow() -> None:
    asked = UserRecord(content="how many words are there in all of the files that I have here")
    known = session_status([HEAD, asked, *PAUSED[2:]])
    made = {"path": Path("p"), "status": known, "updated": NOW.timestamp()}
    listed = ListedSession(session="20261123-130200-0123abcd", **made)
    (wide,) = row(listed, NOW, 80).split("\n")
    assert len(wide) == 80
    assert wide.endswith("  today 14:02  paused: 1 approval due  how many words a…")
    narrow = row(listed, NOW, 40).split("\n")
    assert narrow[0] == "20261123-130200-0123abcd  today 14:02"
    assert max(map(len, narrow)) <= 40
    assert "".join(narrow[1:]).split()[:4] == ["paused:", "1", "approval", "due"]
    assert row(listed, NOW).endswith("how many words are there in all of the files that I have he…")


def test_a_listing_has_a_limit_and_says_what_it_left_out(run: Any, keep: Any, home: Path) -> None:
    assert "there are no sessions" in run("sessions", "list").error
    assert run("sessions", "prune", "--yes").code == 0 and not (home / "state").exists()
    for number in range(4):
        keep(f"s{number}", *ANSWERED)
    result = run("sessions", "list", "--limit", "3", "--json")
    assert [row["session"] for row in result.lines] == ["s3", "s2", "s1"]
    assert "1 older" in result.error


def test_a_damaged_and_a_running_session_are_rows(run: Any, keep: Any) -> None:
    keep("s1", *ANSWERED).write_bytes(b"what?\n")
    with TranscriptFile(keep("s2", *ANSWERED)):
        rows = run("sessions", "list", "--json").lines
    assert [(row["session"], row["state"]) for row in rows] == [
        ("s2", "running"),
        ("s1", "damaged"),
    ]
    assert "line 1" in rows[1]["reason"]
    result = run("sessions", "show", "s1")
    assert result.code != 0 and "line 1 of the transcript is damaged" in result.error


def test_a_question_is_cut_to_a_line_and_spelled(run: Any, keep: Any) -> None:
    evil = "one\ntwo\r\x1b[2J\u202e" + "x" * 500
    keep("s1", HEAD, UserRecord(content=evil))
    (line,) = run("sessions", "list").out.splitlines()
    assert len(line) < 140 and "one two" in line and not set(line) & set("\r\x1b\u202e")
    assert run("sessions", "list", "--json").json["question"] == evil


# --- show ---------------------------------------------------------------------------------------


def test_a_run_is_shown_as_a_conversation(run: Any) -> None:
    with ScriptedServer(call("calculator", expression="6*7"), answer("It is 42.")) as server:
        run("ask", "--url", server.url, "six times seven?")
    text = run("sessions", "show", "last").out
    wanted = ["session ", "answered", "six times seven?", "Call c1 calculator", '"6*7"', "allow"]
    wanted += ["Result c1 calculator", "42", "Answer", "It is 42."]
    assert re.search(".*".join(map(re.escape, wanted)), text, re.DOTALL), text
    run("tools", "call", "calculator", '{"expression":"1"}')
    assert "a call of calculator, without a model" in run("sessions", "list").out


def test_the_records_are_printed_as_they_are_kept(run: Any, keep: Any) -> None:
    path = keep("s1", *PAUSED)
    result = run("sessions", "show", "s1", "--json")
    assert [decode(line) for line in result.out.splitlines()] == [*PAUSED]
    assert result.out.splitlines() == path.read_text().splitlines()


def test_what_waits_is_shown_with_digest_and_expiry(run: Any, keep: Any) -> None:
    keep("s1", *PAUSED)
    text = run("sessions", "show", "s").out
    for part in ("an approval is due for c1 calculator", "d" * 64, "2026-01-08T00:00:00", '"6*7"'):
        assert part in text
    keep("doubt", HEAD, ASKED, MADE, ExecutionRecord(call="c1", mutates=True))
    assert "c1 is in doubt" in run("sessions", "show", "doubt").out


def test_long_observations_are_cut_and_errors_are_told(run: Any, keep: Any) -> None:
    long = ObservationRecord(call="c1", name="calculator", content="line\n" * 4000)
    wrong = ObservationRecord(
        call="c1", name="calculator", error=ErrorInfo("tool_error", "it broke")
    )
    keep("s1", HEAD, ASKED, MADE, long, MADE, wrong)
    text = run("sessions", "show", "s1").out
    assert len(text) < 1500 and "20,000 characters" in text and "it broke" in text


@pytest.mark.parametrize("wrong", ["nope", "..", "../s1", "/etc/passwd", "s", ""])
def test_an_id_that_names_no_session_is_a_mistake(run: Any, keep: Any, wrong: str) -> None:
    keep("s1", *ANSWERED)
    keep("s2", *ANSWERED)
    result = run("sessions", "show", wrong)
    assert result.code == 2 and result.out == "" and result.error.startswith("mlx-tools: error:")


@given(st.lists(RECORDS, max_size=6))
def test_whatever_the_records_nothing_shown_is_obeyed(records: list[Record]) -> None:
    known = session_status([HEAD, *records])
    listed = ListedSession(session="s", path=Path("p"), status=known)
    lines = [row(listed, NOW)]
    for _, line in (*title(listed), *conversation([HEAD, *records]), *waiting(known)):
        lines.append(line)
    unseen = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert not {c for line in lines for c in line if unicodedata.category(c) in unseen}


# --- prune --------------------------------------------------------------------------------------


@pytest.fixture
def several(keep: Any) -> None:
    keep("s1-old", *ANSWERED, days=40)
    keep("s2-paused", *PAUSED, days=40)
    keep("s3-crashed", HEAD, ASKED, days=40)
    keep("s4-doubt", HEAD, ASKED, MADE, ExecutionRecord(call="c1", mutates=True), days=40)
    keep("s5-damaged", HEAD, days=40).write_text("{}\n")
    keep("s6-new", *ANSWERED)


OPEN = ["s2-paused", "s3-crashed", "s4-doubt", "s5-damaged"]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ((), OPEN),
        (("--older-than", "30"), [*OPEN, "s6-new"]),
        (("--older-than", "50"), ["s1-old", *OPEN, "s6-new"]),
        (("--keep", "1"), [*OPEN, "s6-new"]),
        (("--keep", "99"), ["s1-old", *OPEN, "s6-new"]),
        (("--older-than", "30", "--keep", "4"), [*OPEN, "s6-new"]),
    ],
)
@pytest.mark.usefixtures("several")
def test_only_what_may_go_goes(
    run: Any, home: Path, options: tuple[str, ...], left: list[str]
) -> None:
    os.utime(home / "state" / "sessions" / "s5-damaged" / "transcript.jsonl", (0, 0))
    result = run("sessions", "prune", "--yes", *options)
    assert result.code == 0 and kept(home) == left
    gone = {"s1-old", *OPEN, "s6-new"} - set(left)
    assert {line.split()[1] for line in result.out.splitlines()} == gone
    assert f"removed {len(gone)} session" in result.error


@pytest.mark.usefixtures("several")
def test_sessions_that_are_too_new_are_not_read(
    run: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = []
    describe = TranscriptStore.describe

    def note(store: TranscriptStore, session: str) -> ListedSession:
        described.append(session)
        return describe(store, session)

    monkeypatch.setattr(TranscriptStore, "describe", note)
    assert run("sessions", "prune", "--yes", "--older-than", "30").code == 0
    assert "s1-old" in described and "s6-new" not in described and kept(home)


@pytest.mark.usefixtures("several")
def test_without_a_yes_nobody_is_asked_elsewhere_and_nothing_goes(run: Any, home: Path) -> None:
    result = run("sessions", "prune", stdin="y\n")
    assert result.code == 2 and "s1-old" in result.err and "--yes removes them" in result.err
    assert len(kept(home)) == 6


def test_a_session_in_use_stays(run: Any, home: Path, keep: Any) -> None:
    path = keep("s1", *ANSWERED)
    with TranscriptFile(path):
        assert run("sessions", "prune", "--yes").code == 0
        told = run("sessions", "delete", "s1", "--paused", "--yes")
    assert (told.code, "in use by another process" in told.error) == (2, True)
    assert kept(home) == ["s1"]


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "left"), [("y\r", 5), ("n\r", 6), ("\r", 6), ("\x04", 6)])
@pytest.mark.usefixtures("several")
def test_at_a_terminal_it_asks(terminal: Any, home: Path, typed: str, left: int) -> None:
    screen = terminal("sessions", "prune", "--older-than", "30")
    assert "s1-old" in screen.until(r"Remove 1 session \(\d+ bytes\)\? \[y/N\] ")
    screen.type(typed)
    assert screen.end() == 0
    assert "\r\nmlx-tools: " in screen.text  # what is said begins a line
    assert len(kept(home)) == left


@pytest.mark.usefixtures("several")
def test_sessions_that_are_named_are_deleted_and_no_other(run: Any, home: Path) -> None:
    place = home / "state" / "sessions" / "s1-old"
    (place / "artifacts").mkdir()
    (place / "artifacts" / ("0" * 32)).write_text("long")
    result = run("sessions", "delete", "s1", "s6-new", "s1-old", "--yes")
    assert result.code == 0, result.err
    assert kept(home) == OPEN
    assert [line.split()[:2] for line in result.out.splitlines()] == [
        ["removed", "s1-old"],
        ["removed", "s6-new"],
    ]


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (("s1-old", "s2-paused", "--yes"), "s2-paused has not ended: paused: 1 approval due"),
        (("s1-old", "s4", "--yes"), "s4-doubt has not ended: interrupted, 1 call in doubt"),
        (("s1-old", "s9", "--yes"), "there is no session s9"),
        (("latest", "--yes"), "there is no session latest (did you mean last?)"),
        (("s1-old",), "--yes removes them"),
    ],
)
def test_what_may_not_be_deleted_is_named_and_nothing_goes(
    run: Any, home: Path, wrong: tuple[str, ...], why: str
) -> None:
    result = run("sessions", "delete", *wrong)
    assert (result.code, why in result.err, len(kept(home))) == (2, True, 6)


@pytest.mark.usefixtures("several")
def test_one_that_has_not_ended_is_deleted_by_a_word_of_its_own(run: Any, home: Path) -> None:
    result = run("sessions", "delete", "--paused", "--yes", "s2", "s5")
    assert (result.code, kept(home)) == (0, ["s1-old", "s3-crashed", "s4-doubt", "s6-new"])


# --- completion ---------------------------------------------------------------------------------
