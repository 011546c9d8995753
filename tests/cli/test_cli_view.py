"""The view of a person: steps on one stream, the answer on the other, lists in columns."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.cli.output import amount, begin_line, escape_for_terminal, join_columns, wrap_line
from mlx_tools.cli.view import LiveView, StatusLine, describe_compaction, tell
from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.transcript import events
from mlx_tools.transcript.outcome import Answered, Context
from mlx_tools.transcript.sources import NumberedSource

SLOW = ErrorInfo("timeout", "too slow")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")


def started(turn: int = 1) -> events.Event:
    return events.TurnStarted(turn=turn, prompt_chars=10)


def ended(turn: int = 1) -> events.Event:
    usage = Usage(prompt_tokens=100, cached_tokens=40, completion_tokens=5)
    return events.TurnEnded(turn=turn, usage=usage, duration_ms=1200)


def piece(text: str) -> events.Event:
    return events.AnswerPiece(turn=1, text=text)


def thought(text: str) -> events.Event:
    return events.ThoughtPiece(turn=1, text=text)


def called(call: str, name: str, **arguments: Any) -> events.Event:
    return events.CallRead(call=call, name=name, arguments=arguments)


def returned(name: str, preview: str, call: str = "c1", **more: Any) -> events.Event:
    fields = {"error": None, "duration_ms": 3, "output_size_chars": 9, **more}
    return events.ToolEnded(call=call, name=name, preview=preview, **fields)


def progress(message: str, fraction: float | None = None, name: str = "crawl") -> events.Event:
    return events.ToolProgress(call="c1", name=name, message=message, fraction=fraction)


def finished(answer: str, **more: Any) -> events.Event:
    return events.Finished(outcome=Answered(session="s", answer=answer, **more))


ASKS = events.CallDecided(call="c1", name="clock", decision="ask", rule="r", reason="it asks")


def seen(*happened: events.Event) -> tuple[str, str]:
    """The steps, and the answer, elsewhere than at a terminal."""
    steps, answer = io.StringIO(), io.StringIO()
    view = LiveView(steps=steps, answer=answer)
    for event in happened:
        view.show(event)
    return steps.getvalue(), answer.getvalue()


class Watched:
    """A terminal, the view on it, and a clock."""

    def __init__(self, **more: Any) -> None:
        self.now, self.screen = 0.0, Terminal()
        self.view = LiveView(steps=self.screen, answer=self.screen, clock=lambda: self.now, **more)

    def show(self, *happened: events.Event | float) -> list[str]:
        """The output after each event, or number of seconds; ``\\r`` clears the line."""
        written = []
        for one in happened:
            if isinstance(one, events.Event):
                self.view.show(one)
            else:
                self.now += one
                self.view.tick()
            written.append(self.screen.getvalue().replace("\r\x1b[K", "\r"))
            self.screen.seek(0)
            self.screen.truncate()
        return written


# --- the answer, and how a run ended --------------------------------------------------------------


def test_a_streamed_answer_is_shown_once_and_another_one_after_it() -> None:
    streamed = (started(), piece("It is "), piece("391."), ended())
    assert seen(*streamed, finished("It is 391."))[1] == "It is 391.\n"
    assert seen(*streamed, started(2), ended(2), finished("No."))[1] == "It is 391.\nNo.\n"


def test_cited_sources_are_told_and_of_an_answer_that_it_was_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cited = (NumberedSource(2, "Tea\x1b[2J", "docs/tea.md"),)
    cut_off = (
        "mlx-tools: truncated: the answer was cut off at the token limit "
        "(raise it with --max-tokens, or /set max_tokens in chat)\n"
    )
    told = "mlx-tools: source: [2] Tea\\x1b[2J (docs/tea.md)\n"
    for screen in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", screen)
        tell(Answered(session="s", answer="", sources=cited, truncated=True))
        assert screen.getvalue() == told + cut_off


# --- steps ----------------------------------------------------------------------------------------


def test_steps_tell_what_was_asked_what_ran_how_long_and_what_came_back() -> None:
    read = events.CallRead(call="c1", name="clock", arguments={"zone": "UTC"}, repairs=("comma",))
    steps, _ = seen(
        *(started(), ended(), read, ASKS, returned("clock", "12:00\nnoon")),
        returned("clock", "12:00", duration_ms=0, cached=True),
        returned("clock", "", error=SLOW, duration_ms=2000, output_size_chars=None),
    )
    assert steps.splitlines() == [
        "· turn 1: 1.2 s, 100 prompt tokens (40 cached), 5 written",
        '→ clock {"zone":"UTC"}  (repaired: comma)',
        "  ask: it asks",
        "← clock 3 ms: 12:00 noon",
        "← clock (as before): 12:00",
        "← clock 2.0 s: timeout: too slow",
    ]


def test_a_call_that_a_person_edited_is_shown_as_it_ran() -> None:
    edit = events.CallEdited(call="c1", name="clock", arguments={"zone": "Oslo"})
    happened = (called("c1", "clock", zone="UTC"), ASKS, edit, returned("clock", "12:00"))
    assert '→ clock {"zone":"Oslo"}  (edited)\n' in seen(*happened)[0]
    shown = "".join(Watched(every_step=False).show(*happened))
    assert "Oslo" in shown and "UTC" not in shown


def test_a_call_that_a_question_shows_is_not_told_before_it() -> None:
    watched = Watched()
    watched.show(called("c1", "clock", text="x"), ASKS)
    watched.view.prepare_question()
    assert watched.show(returned("clock", "done")) == ["← clock 3 ms: done\n"]


def test_without_steps_a_call_is_one_line() -> None:
    lines = Watched(every_step=False).show(
        called("c1", "file_access", operation="read", path="a\x1b.txt", n=1),
        returned("file_access", "first line\nsecond " + "line " * 40),
        returned("clock", "", error=SLOW),
        returned("clock", "12:00"),
    )
    assert lines[0] == ""
    assert lines[1].startswith("· file_access read, a\\x1b.txt, 1 → first line second line ")
    assert lines[1].endswith("… · 3 ms\n") and 70 < len(lines[1]) <= 80
    assert lines[2:] == ["· clock ✗ timeout: too slow · 3 ms\n", "· clock → 12:00 · 3 ms\n"]


LONG_REASON = "the beds are not measured yet, " * 12 + "and nobody knows why"


@pytest.mark.parametrize("every_step", [True, False])
def test_the_reason_of_a_refusal_is_not_cut(every_step: bool) -> None:
    refused = ErrorInfo("denied", f"The user refused this call of clock. {LONG_REASON}.")
    denied = events.CallDecided(
        call="c1", name="clock", decision="deny", rule="default", reason=LONG_REASON
    )
    not_allowed = ErrorInfo("not_allowed", "clock is not allowed here.")
    for shown, error in (((ASKS,), refused), ((denied,), not_allowed)):
        lines = Watched(every_step=every_step).show(
            called("c1", "clock", zone="UTC"), *shown, returned("clock", "", error=error)
        )
        text = "".join(lines)
        assert LONG_REASON in " ".join(text.split())
    assert "/allow clock" in text


def test_the_arguments_of_a_call_share_its_row_and_a_path_keeps_its_end() -> None:
    path = "mlx_tools/backends/completions.py"
    call = called("c1", "file_access", operation="read", path=path, from_line=201, lines=200)
    shown = io.StringIO()
    view = LiveView(steps=shown, answer=None, every_step=False)
    for event in (call, returned("file_access", "x" * 90)):
        view.show(event)
    row, end = shown.getvalue().split("\n")
    assert row.startswith("· file_access read, …kends/completions.py, 201, 200 → xxx")
    assert len(row) <= 79 and not end
    command = called("c1", "run_command", program="make", arguments=["-s", "all tests", "x" * 90])
    for event in (command, returned("run_command", "fine")):
        view.show(event)
    assert "· run_command make, -s 'all tests' xxxxxx" in shown.getvalue()


def test_a_call_that_is_written_for_long_says_how_much_and_for_how_long() -> None:
    watched = Watched()
    opened = events.CallOpened(turn=1, index=0, name="create_file")
    parts = [events.ArgumentsPiece(turn=1, index=0, text="x" * 70)] * 2
    watched.show(started(), opened)
    watched.now += 3  # no tick: pieces come too fast for one
    assert watched.show(*parts) == [
        "\r· the model calls create_file … 3 s",
        "\r· the model calls create_file, 100 characters … 3 s",
    ]


def test_the_reason_of_an_error_is_not_cut_to_a_row() -> None:
    missing = ErrorInfo("tool_error", "there is no many/beds/one.txt; the folder has plan.md")
    lines = Watched(every_step=False).show(
        called("c1", "file_access", operation="write", path="many/beds/one.txt", content="kale"),
        returned("file_access", "", error=missing),
    )
    assert missing.message in " ".join("".join(lines).split())


def test_what_is_waited_for_says_for_how_long_and_goes_away() -> None:
    watched = Watched(every_step=False)
    runs = events.ToolStarted(call="c1", name="crawl")
    far = progress("reading\x1b[2J\n" + "x" * 99, 0.256)
    happened = (started(), 0.5, 2.0, ended(), runs, 3.0, progress("page 2"), 0.1, progress(""), far)
    *lines, last = watched.show(*happened)
    assert lines == [
        *("· the model …", "", "\r· the model … 2 s", "\r", "  crawl runs …"),
        *("\r  crawl runs … 3 s", "\r  crawl: page 2 … 3 s", "", "\r  crawl: goes on … 3 s"),
    ]
    assert last.startswith("\r  crawl: reading\\x1b[2J xxx") and last.endswith("…, 26 % … 3 s")
    assert len(last) < 80
    assert watched.show(events.ToolStarted(call="c2", name="clock"))[0] == "\r  clock runs …"
    left = watched.show(progress("page 3"), returned("clock", "12:00", "c2"), 1.0)
    assert left[1:] == ["\r· clock → 12:00 · 3 ms\n", "  crawl: page 3 … 4 s"]


def test_a_server_that_takes_long_to_start_is_waited_for_in_words() -> None:
    watched = Watched(every_step=False)
    watched.view.start()
    assert watched.view.moves
    assert watched.show(0.2, 9.0, started()) == [
        *("· the model gets ready …", "\r· the model gets ready … 9 s", "\r· the model …")
    ]
    quick = Watched(every_step=False)
    quick.view.start()
    assert quick.show(started(), 2.0) == ["· the model …", "\r· the model … 2 s"]


def test_thoughts_are_folded_to_a_line() -> None:
    happened = (started(), 5.0, thought("Let me "), 2.0, thought("see."), piece("Yes "), ended())
    assert Watched(every_step=False).show(*happened) == [
        *("· the model …", "\r· the model … 5 s", "\r· the model thinks …"),
        *("\r· the model thinks … 2 s", "", "\r· thought: 11 characters, 2.0 s\nYes", ""),
    ]
    text = "".join(Watched().show(started(), thought("Let me\x1b "), thought("see."), ended()))
    assert "\rLet me\\x1b see.\n· thought: 12 characters, 0 ms\n" in text


def test_a_full_context_is_told_with_what_makes_room(capsys: Any) -> None:
    filling = events.ContextFilling(size=1000, used_tokens=810)
    LiveView(steps=None, answer=None, makes_room="/compact makes room").show(filling)
    assert "81 % of the model's context" in (told := capsys.readouterr().err)
    assert told.endswith("; /compact makes room\n")
    none = {"turns": 0, "observations": 0}
    done = events.Compacted(
        reason="asked", **none, summary=True, tokens_before=4000, tokens_after=30
    )
    assert describe_compaction(done) == "the prompt was compacted, from 4,000 to about 30 tokens"


def test_the_status_line_says_what_is_known_and_nothing_else() -> None:
    now = [0.0]
    status = StatusLine("qwen\x1b", clock=lambda: now[0])

    def after(*happened: events.Event | float) -> str:
        for one in happened:
            if isinstance(one, events.Event):
                status.update(one)
            else:
                now[0] += one
        return status.text()

    assert StatusLine().text() == "" and after() == "qwen\\x1b"
    unreported = events.TurnEnded(turn=1, usage=Usage(), duration_ms=9000)
    assert after(started(), piece("a"), 4.0, unreported, finished("a")) == "qwen\\x1b"
    known = finished("a", context=Context(1000, 230), model="m")
    wrote = (started(), 3.0, piece("a"), 0.5, piece("b"), 2.0, ended(), known)
    assert after(*wrote) == "context 23 % of 1,000 · 2 tokens/s · m"
    compacted = {"turns": 2, "observations": 0, "summary": True, "tokens_before": 230}
    less = after(events.Compacted(reason="asked", **compacted, tokens_after=100))
    assert less == "context about 10 % of 1,000 · 2 tokens/s · m"
    assert after(known) == "context 23 % of 1,000 · 2 tokens/s · m"
    full = after(events.ContextFilling(size=1000, used_tokens=800))
    assert full == "context 80 % of 1,000 · 2 tokens/s · /compact makes room · m"


# --- what a terminal is given ---------------------------------------------------------------------


def test_what_a_terminal_shows_of_ctrl_c_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen, term, written in (
        (Terminal(), "xterm", "\r\x1b[K"),
        (Terminal(), "dumb", ""),
        (io.StringIO(), "xterm", ""),
    ):
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr("sys.stderr", screen)
        begin_line()
        assert screen.getvalue() == written


def test_nothing_a_terminal_would_obey_is_shown() -> None:
    evil = "\x1b]0;title\x07\x1b[2J\u202e\u2066\r\x9b31m"
    happened = (started(), piece(evil), called("c1", "clock", a=evil), returned("clock", evil))
    assert not set("".join(seen(*happened, finished(evil)))) & set("\x1b\x07\r\x9b\u202e\u2066")


@given(st.text())
def test_shown_text_is_harmless_and_plain_text_stays(text: str) -> None:
    out = escape_for_terminal(text)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in out)
    assert escape_for_terminal(out) == out
    out.encode()


def test_an_amount_is_said_in_units_of_a_thousand() -> None:
    said = {0: "0 bytes", 1: "1 byte", 999: "999 bytes", 1000: "1.0 kB", 18_521: "18.5 kB"}
    said |= {539_607_181: "540 MB", 2_500_000_000: "2.5 GB"}
    assert {size: amount(size) for size in said} == said


def test_what_is_before_a_text_stays_before_it() -> None:
    code = "   | def f(x): return x"
    assert wrap_line(code, 18, "   : ") == "   | def f(x):\n   : return x"
    words = "some words that go on and on"
    for head, text, columns, row in (
        ("name  read", "two words", 16, "name  read\n    two words"),
        ("name", words, 35, f"name {words}"),
        ("name", f"{words}, all day", 35, f"name {words},\n     all day"),
        ("name", f"/{'x' * 30}", 35, f"name\n    /{'x' * 30}"),  # a path to copy stays whole
    ):
        assert join_columns(head, text, columns) == row


@pytest.mark.slow
def test_a_terminal_gets_rows_that_fit(terminal: Any, run: Any) -> None:
    def screen(columns: int, *arguments: str) -> list[str]:
        opened = terminal(*arguments, columns=columns)
        opened.end()
        shown: list[str] = opened.text.split("\r\n")
        return shown

    for columns in (60, 100):
        rows = screen(columns, "tools", "list")
        assert max(map(len, rows)) <= columns
        assert " ".join(" ".join(rows).split()) == " ".join(run("tools", "list").out.split())
        rows = screen(columns, "tools", "show", "nothing")
        assert len(rows) > 2 and max(map(len, rows)) <= columns
        assert all(row.startswith("  ") for row in rows[1:-1])


def test_elsewhere_a_row_is_a_line(home: Path, run: Any, environ: Any) -> None:
    folder = home / "two\nlines"
    (folder / "tools" / "broken").mkdir(parents=True)
    environ(DATA_DIR=str(folder))
    listed = run("tools", "list").out.splitlines()
    assert len(listed) == len(run("tools", "list", "--json").lines)
    assert max(map(len, listed)) > 100
