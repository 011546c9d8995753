"""What a person sees: steps on one stream, the answer on the other, and approvals that tell all."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.cli.output import amount, begin_line, shown
from mlx_tools.cli.view import LiveView, StatusLine, compacted, tell
from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.transcript import events
from mlx_tools.transcript.outcome import Answered, Context
from mlx_tools.transcript.sources import GivenSource


class Screen:
    """Two streams, and the view on them."""

    def __init__(self) -> None:
        self.steps, self.answer = io.StringIO(), io.StringIO()
        self.view = LiveView(steps=self.steps, answer=self.answer)

    def show(self, *happened: events.Event) -> Screen:
        for event in happened:
            self.view.show(event)
        return self


def started(turn: int = 1) -> events.Event:
    return events.TurnStarted(turn=turn, prompt_chars=10)


def ended(turn: int = 1) -> events.Event:
    usage = Usage(prompt_tokens=100, cached_tokens=40, completion_tokens=5)
    return events.TurnEnded(turn=turn, usage=usage, duration_ms=1200)


def piece(text: str) -> events.Event:
    return events.AnswerPiece(turn=1, text=text)


def finished(answer: str) -> events.Event:
    return events.Finished(outcome=Answered(session="s", answer=answer))


def test_a_streamed_answer_is_shown_once() -> None:
    screen = Screen().show(
        started(), piece("It is "), piece("391."), ended(), finished("It is 391.")
    )
    assert screen.answer.getvalue() == "It is 391.\n"


def test_cited_sources_are_told_at_a_terminal_with_nothing_it_would_obey(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    cited = (GivenSource(2, "Tea\x1b[2J", "docs/tea.md"),)
    for screen, told in ((Terminal(), "[2] Tea\\x1b[2J (docs/tea.md)"), (io.StringIO(), "")):
        monkeypatch.setattr("sys.stderr", screen)
        tell(Answered(session="s", answer="", sources=cited))
        assert screen.getvalue() == (f"mlx-tools: source: {told}\n" if told else "")


def test_an_answer_other_than_what_was_streamed_is_shown_after_it() -> None:
    screen = Screen().show(started(), piece("It"), ended(), started(2), ended(2), finished("No."))
    assert screen.answer.getvalue() == "It\nNo.\n"


def test_steps_tell_what_was_asked_what_ran_how_long_and_what_came_back() -> None:
    screen = Screen().show(
        started(),
        ended(),
        events.CallRead(call="c1", name="clock", arguments={"timezone": "UTC"}, repairs=("comma",)),
        events.CallDecided(call="c1", name="clock", decision="ask", rule="r", reason="it asks"),
        events.ToolEnded(
            call="c1",
            name="clock",
            error=None,
            preview="12:00\nnoon",
            duration_ms=3,
            output_size_chars=10,
        ),
        events.ToolEnded(
            call="c1",
            name="clock",
            error=None,
            preview="12:00",
            duration_ms=0,
            output_size_chars=5,
            cached=True,
        ),
        events.ToolEnded(
            call="c2",
            name="clock",
            error=ErrorInfo("timeout", "too slow"),
            preview="",
            duration_ms=2000,
            output_size_chars=None,
        ),
    )
    assert screen.steps.getvalue().splitlines() == [
        "· turn 1: 1.2 s, 100 prompt tokens (40 cached), 5 written",
        '→ clock {"timezone":"UTC"}  (repaired: comma)',
        "  ask: it asks",
        "← clock 3 ms: 12:00 noon",
        "← clock (as before): 12:00",
        "← clock 2.0 s: timeout: too slow",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_progress_is_shown_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    steps = Terminal()
    view = LiveView(steps=steps, answer=None)
    for message, fraction in (("reading\x1b[2J\n" + "x" * 99, 0.256), ("", None), ("done", 1.0)):
        view.show(events.ToolProgress(call="c1", name="count", message=message, fraction=fraction))
    view.end()
    first, second, third, last = steps.getvalue().split("\r\x1b[K")
    assert first.startswith("  count: reading\\x1b[2J xxx")
    assert first.endswith("…, 26 % …")
    assert len(first) < 80
    assert (second, third, last) == ("  count: goes on …", "  count: done, 100 % …", "")


class Watched:
    """A terminal, the view on it of one who wants no steps, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("NO_COLOR", "1")
        self.now, self.screen = 0.0, Terminal()
        self.view = LiveView(steps=self.screen, answer=self.screen, clock=lambda: self.now, **more)

    def show(self, *happened: events.Event | float) -> list[str]:
        """What is written after each event, or number of seconds; ``\\r`` clears the line."""
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


def called(call: str, name: str, **arguments: Any) -> events.Event:
    return events.CallRead(call=call, name=name, arguments=arguments)


def returned(call: str, name: str, preview: str, error: ErrorInfo | None = None) -> events.Event:
    return events.ToolEnded(
        call=call, name=name, error=error, preview=preview, duration_ms=3, output_size_chars=9
    )


def test_a_call_that_a_question_shows_is_not_told_before_it() -> None:
    asks = events.CallDecided(call="c1", name="put", decision="ask", rule="r", reason="it asks")
    screen = Screen().show(called("c1", "put", text="x"), asks)
    screen.view.asks()
    screen.show(returned("c1", "put", "done"))
    assert screen.steps.getvalue() == "← put 3 ms: done\n"


def test_without_steps_a_call_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, every_step=False)
    lines = watched.show(
        called("c1", "file_access", operation="read", path="a\x1b.txt", n=1),
        returned("c1", "file_access", "first line\nsecond " + "line " * 40),
        returned("c2", "clock", "", ErrorInfo("timeout", "too slow")),
        returned("c3", "clock", "12:00"),
    )
    assert lines[0] == ""
    assert lines[1].startswith("· file_access read, a\\x1b.txt, 1 → first line second line ")
    assert lines[1].endswith("… · 3 ms\n") and 70 < len(lines[1]) <= 80
    assert lines[2:] == ["· clock ✗ timeout: too slow · 3 ms\n", "· clock → 12:00 · 3 ms\n"]


def test_what_is_waited_for_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, every_step=False)
    runs = events.ToolStarted(call="c1", name="crawl")
    far = events.ToolProgress(call="c1", name="crawl", message="page 2", fraction=None)
    assert watched.show(started(), 0.5, 2.0, ended(), runs, 3.0, far, 0.1) == [
        "· the model …",
        "",
        "\r· the model … 2 s",
        "\r",
        "  crawl runs …",
        "\r  crawl runs … 3 s",
        "\r  crawl: page 2 … 3 s",
        "",
    ]
    assert watched.show(events.ToolStarted(call="c2", name="clock"))[0] == "\r  clock runs …"
    left = watched.show(returned("c2", "clock", "12:00"), 1.0)
    assert left == ["\r· clock → 12:00 · 3 ms\n", "  crawl: page 2 … 4 s"]


def thought(text: str) -> events.Event:
    return events.ThoughtPiece(turn=1, text=text)


def test_thoughts_are_folded_to_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, every_step=False)
    happened = (started(), 5.0, thought("Let me "), 2.0, thought("see."), piece("Yes "), ended())
    assert watched.show(*happened) == [
        "· the model …",
        "\r· the model … 5 s",
        "\r· the model thinks …",
        "\r· the model thinks … 2 s",
        "",
        "\r· thought: 11 characters, 2.0 s\nYes",
        "",
    ]
    whole = Watched(monkeypatch)
    text = "".join(whole.show(started(), thought("Let me\x1b "), thought("see."), ended()))
    assert "\rLet me\\x1b see.\n· thought: 12 characters, 0 ms\n" in text


def test_a_full_context_is_told_with_what_makes_room(capsys: Any) -> None:
    filling = events.ContextFilling(size=1000, used=810)
    LiveView(steps=None, answer=None, makes_room="/compact makes room").show(filling)
    assert "81 % of the model's context" in (told := capsys.readouterr().err)
    assert told.endswith("; /compact makes room\n")
    done = events.Compacted(
        reason="asked", turns=0, observations=0, summary=True, before=40, after=30
    )
    assert compacted(done) == "the prompt was compacted, from 40 to 30 tokens"


def test_the_status_line_says_what_is_known_and_nothing_else() -> None:
    now = [0.0]
    status = StatusLine("qwen\x1b", clock=lambda: now[0])
    assert StatusLine().text() == "" and status.text() == "qwen\\x1b"
    unreported = events.TurnEnded(turn=1, usage=Usage(), duration_ms=9000)
    for happened in (started(), piece("a"), 4.0, unreported, finished("a")):
        if isinstance(happened, float):
            now[0] += happened
        else:
            status.see(happened)
    assert status.text() == "qwen\\x1b"
    for happened in (started(), 3.0, piece("a"), 0.5, piece("b"), 2.0, ended()):
        if isinstance(happened, float):
            now[0] += happened
        else:
            status.see(happened)
    known = Answered(session="s", answer="a", context=Context(1000, 230), model="m")
    status.see(events.Finished(outcome=known))
    assert status.text() == "23 % of 1000 · 2 tokens/s · m"
    status.see(events.ContextFilling(size=1000, used=800))
    assert status.text() == "80 % of 1000 · 2 tokens/s · /compact makes room · m"


def test_an_answer_that_was_cut_off_is_said_to_be_truncated(capsys: Any) -> None:
    cut_off = Answered(session="s", answer="It", truncated=True)
    tell(cut_off, plain=False)
    assert capsys.readouterr().err.startswith("mlx-tools: truncated: the answer was cut off")


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
    screen = Screen().show(
        started(),
        piece(evil),
        events.CallRead(call="c1", name="clock", arguments={"a": evil}),
        events.ToolEnded(
            call="c1", name="clock", error=None, preview=evil, duration_ms=1, output_size_chars=9
        ),
        finished(evil),
    )
    both = screen.answer.getvalue() + screen.steps.getvalue()
    assert not set(both) & set("\x1b\x07\r\x9b\u202e\u2066")


@given(st.text())
def test_shown_text_is_harmless_and_plain_text_stays(text: str) -> None:
    out = shown(text)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in out)
    assert shown(out) == out
    out.encode()


# --- approvals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (18_521, "18.5 kB"),
        (539_607_181, "540 MB"),
        (2_500_000_000, "2.5 GB"),
    ],
)
def test_an_amount_is_said_in_units_of_a_thousand(size: int, said: str) -> None:
    assert amount(size) == said
