"""The question about a call, at a real pseudo-terminal: every key, every trick, every size."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import pty
import re
import select
import signal
import termios
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.cli.approve import _ask_about_the_rest, ask_user, asker
from mlx_tools.cli.call_text import (
    ShownLine,
    cells,
    exact,
    foot,
    on_one_line,
    whole,
    wrapped,
)
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest
from tests.cli.terminal import Terminal, resize
from tests.examples import FEW

ASKED = r"Run it (?:once|AGAIN)[^?]*\? \[[yneadsp/?]+\] "
DIGEST = "0123456789abcdef" * 4


def request(arguments: dict[str, Any] | None = None, **more: Any) -> ApprovalRequest:
    fields: dict[str, Any] = {
        "call": "c1",
        "name": "create_file",
        "arguments": {"path": "a.txt"} if arguments is None else arguments,
        "reason": "it always needs approval",
        "suspect": False,
        "digest": DIGEST,
    }
    return ApprovalRequest(**fields | more)


def describe(asked: ApprovalRequest) -> str:
    """All that is shown of a call."""
    lines = whole(asked, asked.arguments)
    lines += foot(asked, asked.arguments, columns=100, heads=False)
    return "\n".join(line.text for line in wrapped(lines, None))


class Desk:
    """A terminal in this process, and a thread that types what a test says, when it says."""

    def __init__(self, columns: int = 100, rows: int = 40) -> None:
        self.master, slave = pty.openpty()
        resize(slave, columns, rows)
        self.keyboard = os.fdopen(slave, "r")
        self.screen = os.fdopen(os.dup(slave), "w", encoding="utf-8")
        self.text = ""
        self.fault = ""

    def asks(
        self,
        *requests: ApprovalRequest,
        typed: Sequence[tuple[str, str | Callable[[], None]]],
        ask: Callable[..., Sequence[ApprovalAnswer]] = ask_user,
    ) -> list[ApprovalAnswer]:
        """The answers, where this is typed: each text once its pattern has been shown anew."""
        before = termios.tcgetattr(self.keyboard)
        typist = threading.Thread(target=self._type, args=(typed,), daemon=True)
        typist.start()
        try:
            answers = ask(requests, keyboard=self.keyboard, screen=self.screen)
        finally:
            assert termios.tcgetattr(self.keyboard) == before
            self.screen.write("\0")  # so that the typist sees the end
            self.screen.flush()
            typist.join()
        assert not self.fault
        return list(answers)

    def close(self) -> None:
        for file in (self.keyboard, self.screen):
            with contextlib.suppress(OSError):  # it may have hung up
                file.close()
        if self.master >= 0:
            os.close(self.master)

    def _type(self, typed: Sequence[tuple[str, str | Callable[[], None]]]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        seen, left, end = "", list(typed), time.monotonic() + 20
        while self.master >= 0 and "\0" not in self.text:
            if left and (found := re.search(left[0][0], seen)):
                seen = seen[found.end() :]
                what = left.pop(0)[1]
                if callable(what):
                    what()
                else:
                    os.write(self.master, what.encode())
                continue
            if time.monotonic() > end:
                self.fault = f"{left[:1]} did not come: {seen!r}"
                os.write(self.master, b"\x04")  # gives up
                end += 1
            if select.select([self.master], [], [], 0.2)[0]:
                new = decoder.decode(os.read(self.master, 65536))
                self.text, seen = self.text + new, seen + new


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def desk() -> Iterator[Callable[..., Desk]]:
    opened: list[Desk] = []

    def open_desk(*size: int) -> Desk:
        opened.append(Desk(*size))
        return opened[-1]

    yield open_desk
    for one in opened:
        one.close()


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ([(ASKED, "y")], ApprovalAnswer(True, "approved at the terminal")),
        ([(ASKED, "Y\r")], ApprovalAnswer(True, "approved at the terminal")),
        (
            [(ASKED, "s")],
            ApprovalAnswer(True, "approved at the terminal", for_session=True),
        ),
        ([(ASKED, "n"), ("Why", "not that file\r")], ApprovalAnswer(False, "not that file")),
        ([(ASKED, "n"), ("Why", "\r")], ApprovalAnswer(False, "the user said no")),
        ([(ASKED, "p")], ApprovalAnswer(None)),
        ([(ASKED, "\x04")], ApprovalAnswer(None)),
        ([(ASKED, "n"), ("Why", "\x04"), (ASKED, "y")], ApprovalAnswer(True, "approved at the te")),
    ],
)
def test_one_key_answers(desk: Any, typed: list[tuple[str, str]], answer: ApprovalAnswer) -> None:
    (got,) = desk().asks(request(), typed=typed)
    assert got.reason.startswith(answer.reason)
    assert (got.approved, got.arguments, got.for_session) == (
        answer.approved,
        answer.arguments,
        answer.for_session,
    )


@pytest.mark.parametrize(
    "typed",
    ["\x1b[A", "\x1bOA", "yes", "yy", "a", "q", "\r", " ", "\t", "é", "у", "ß", "\x19", "\x1by"],
)
def test_what_is_no_offered_key_answers_nothing_and_the_keys_are_told(
    desk: Any, typed: str
) -> None:
    one = desk()
    (answer,) = one.asks(request(), typed=[(ASKED, typed), ("this list", ""), (ASKED, "p")])
    assert answer.approved is None and "edit the arguments" in one.text


def test_a_reason_is_text(desk: Any) -> None:
    typed = [(ASKED, "n"), ("Why", 'y {"approved": true} \x1b[2J ünd so\r')]
    (answer,) = desk().asks(request(), typed=typed)
    assert answer == ApprovalAnswer(False, 'y {"approved": true} [2J ünd so')


def test_what_was_typed_before_a_question_answers_nothing(desk: Any) -> None:
    one = desk()
    os.write(one.master, b"yyyy\ry")
    asked = [request({"path": "1"}), request({"path": "2"})]
    typed = [(ASKED, "y"), (r"2 of 2\)\?.*\] ", "p")]
    answers = one.asks(*asked, typed=typed)
    assert [answer.approved for answer in answers] == [True, None]


def test_a_terminal_that_goes_away_decides_nothing(desk: Any) -> None:
    one = desk()

    def hang_up() -> None:
        os.close(one.master)
        one.master = -1

    typist = threading.Thread(target=one._type, args=([(ASKED, hang_up)],), daemon=True)
    typist.start()
    answers = ask_user([request()] * 2, keyboard=one.keyboard, screen=one.screen)
    typist.join()
    assert [answer.approved for answer in answers] == [None, None]


# --- several calls ------------------------------------------------------------------------------


def test_all_that_are_left_are_approved_but_not_what_needs_a_look_of_its_own(desk: Any) -> None:
    asked = [
        request({"path": "1"}),
        request({"path": "2"}),
        request({"path": "3"}, suspect=True),
        request({"path": "4"}, in_doubt=True),
        request({"path": "5"}),
    ]
    one = desk()
    typed = [(ASKED, "n"), ("Why", "\r"), (ASKED, "a"), (ASKED, "n"), ("Why", "\r"), (ASKED, "p")]
    answers = one.asks(*asked, typed=typed)
    assert [a.approved for a in answers] == [False, True, False, None, None]
    assert not any(a.for_session for a in answers)


def test_an_answer_of_its_own_in_between_does_not_end_the_approval_of_all(desk: Any) -> None:
    asked = [request(), request({"path": "2"}, suspect=True), request({"path": "3"})]
    answers = desk().asks(*asked, typed=[(ASKED, "a"), (ASKED, "y")])
    assert [a.approved for a in answers] == [True, True, True]


def test_whoever_approves_all_has_seen_all(desk: Any) -> None:
    one = desk(80, 200)
    asked = [request({"path": f"file-{n}"}) for n in range(4)]
    answers = one.asks(*asked, typed=[(ASKED, "a")])
    assert [a.approved for a in answers] == [True] * 4
    before = one.text[: one.text.index("Run it")]
    assert all(f'"file-{n}"' in before for n in range(4))


@pytest.mark.parametrize(
    ("asked", "keys"),
    [
        ([request()], "y/n/e/s/d/p/?"),
        ([request(suspect=True)], "y/n/e/d/p/?"),
        ([request(in_doubt=True)], "y/n/e/d/p/?"),
        ([request(), request()], "y/n/e/s/a/d/p/?"),
        ([request(), request(suspect=True)], "y/n/e/s/d/p/?"),
        ([request(suspect=True), request(), request()], "y/n/e/d/p/?"),
    ],
)
def test_no_consent_is_offered_that_cannot_cover_the_call(
    desk: Any, asked: list[ApprovalRequest], keys: str
) -> None:
    one = desk()
    one.asks(*asked, typed=[(ASKED, "p")])
    assert f"[{keys}]" in one.text


def test_a_call_in_doubt_is_shown_as_one(desk: Any) -> None:
    one = desk()
    (answer,) = one.asks(request(in_doubt=True), typed=[(ASKED, "?"), (ASKED, "y")])
    assert answer.approved is True
    assert "nobody knows how it ended" in one.text and "Run it AGAIN?" in one.text
    assert "run it AGAIN" in one.text and "give it up" in one.text


def test_a_call_of_ones_own_is_neither_edited_nor_approved_for_a_session(desk: Any) -> None:
    one = desk()
    ask = partial(ask_user, in_session=False)
    typed = [(ASKED, "e"), (ASKED, "s"), (ASKED, "y")]
    assert one.asks(request(), typed=typed, ask=ask) == [
        ApprovalAnswer(True, "approved at the terminal")
    ]
    assert "[y/n/d/p/?]" in one.text


def test_a_standing_consent_covers_neither_what_is_suspect_nor_what_is_in_doubt() -> None:
    asked = [request(), request(suspect=True), request({}, in_doubt=True), request()]
    seen: list[ApprovalRequest] = []

    def nobody(requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        seen.extend(requests)
        return [ApprovalAnswer(None) for _ in requests]

    answers = _ask_about_the_rest(nobody, asked)
    assert [a.approved for a in answers] == [True, None, None, True] and seen == asked[1:3]
    assert [a.approved for a in asker("always")([request()])] == [True]


# --- editing ------------------------------------------------------------------------------------


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes an editor that saves the given texts, one a start, and keeps what it was given."""

    def make(*texts: str | bytes, code: int = 0) -> Path:
        folder = tmp_path / "an editor"
        folder.mkdir()
        for number, text in enumerate(texts):
            data = text.encode() if isinstance(text, str) else text
            (folder / f"text{number}").write_bytes(data)
        program = folder / "edit it"
        program.write_text(
            "#!/bin/sh\n"
            f'cd "{folder}" || exit 9\n'
            "n=$(ls | grep -c '^given')\n"
            '[ "$1" = --wait ] && shift\n'
            'cp "$1" "given$n"\n'
            'for f in "$1" "$(dirname "$1")"; do ls -ld "$f" | cut -c1-10 >> modes; done\n'
            'echo "$1" > name\n'
            '[ -e "text$n" ] && cat "text$n" > "$1"\n'
            f"exit {code}\n"
        )
        program.chmod(0o700)
        monkeypatch.setenv("VISUAL", f"'{program}' --wait")
        return folder

    return make


def test_edited_arguments_are_shown_and_asked_about_again(desk: Any, editor: Any) -> None:
    folder = editor('{"path": "b.txt", "n": true}')
    one, given_arguments = desk(), {"path": "a.txt", "n": 1}
    (answer,) = one.asks(request(given_arguments), typed=[(ASKED, "e"), (ASKED, "y")])
    assert answer.approved is True and answer.arguments == {"path": "b.txt", "n": True}
    assert answer.arguments["n"] is True
    assert json.loads((folder / "given0").read_text()) == given_arguments
    assert (folder / "modes").read_text().split() == ["-rw-------", "drwx------"]
    assert not Path((folder / "name").read_text().strip()).exists()
    edited = one.text[one.text.index("With your arguments") :]
    assert '"b.txt"' in edited and "edited by you" in edited and DIGEST not in edited


@pytest.mark.parametrize("wrong", ["{", "[1]", "", '{"a":1,"a":2}', '{"a":NaN}', b"\xff", "null"])
def test_an_edit_that_is_no_object_is_told_and_asked_again(
    desk: Any, editor: Any, wrong: str | bytes
) -> None:
    folder = editor(wrong, '{"path": "b"}')
    typed = [(ASKED, "e"), (ASKED, "e"), (ASKED, "y")]
    (answer,) = desk().asks(request(), typed=typed)
    assert answer.arguments == {"path": "b"}
    offered = (folder / "given1").read_bytes()
    if wrong and isinstance(wrong, str):
        assert offered == wrong.encode() + b"\n"  # nothing is lost
    else:
        assert json.loads(offered) == {"path": "a.txt"}


@pytest.mark.parametrize(
    ("saved", "code", "told"),
    [
        ("{", 0, "goes on with your text"),
        ("", 0, "not JSON"),
        ('{"n":1}', 0, "the call's own arguments"),
        ('{"n": 2}', 1, "exit code 1"),
    ],
)
def test_an_edit_that_fails_or_changes_nothing_leaves_the_call_as_it_was(
    desk: Any, editor: Any, saved: str, code: int, told: str
) -> None:
    editor(saved, code=code)
    one = desk()
    (answer,) = one.asks(request({"n": 1}), typed=[(ASKED, "e"), (ASKED, "y")])
    assert answer == ApprovalAnswer(True, "approved at the terminal") and told in one.text


@pytest.mark.parametrize(
    ("command", "told"), [("/nowhere/editor", "No such file"), ("'half", "no command")]
)
def test_an_editor_that_cannot_be_started_is_told(
    desk: Any, monkeypatch: pytest.MonkeyPatch, command: str, told: str
) -> None:
    monkeypatch.setenv("EDITOR", command)
    one = desk()
    (answer,) = one.asks(request(), typed=[(ASKED, "e"), (ASKED, "p")])
    assert answer.approved is None and told in one.text


def test_an_editor_is_started_without_a_shell(
    desk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDITOR", f"true ; touch {tmp_path}/ran")
    desk().asks(request(), typed=[(ASKED, "e"), (ASKED, "y")])
    assert not (tmp_path / "ran").exists()


def test_without_an_editor_a_line_is_read(desk: Any) -> None:
    typed = [(ASKED, "e"), ("on one line: ", '{"path": "c"}\r'), (ASKED, "y")]
    (answer,) = desk().asks(request(), typed=typed)
    assert answer.arguments == {"path": "c"}
    (answer,) = desk().asks(request(), typed=[(ASKED, "e"), ("line: ", "\r"), (ASKED, "y")])
    assert answer == ApprovalAnswer(True, "approved at the terminal")


def test_what_is_edited_holds_nothing_that_an_editor_shows_as_something_else(
    desk: Any, editor: Any
) -> None:
    folder = editor()
    arguments = {"path": "\u202etxt.exe\u200b\x1b" + " " * 50 + "{"}
    desk().asks(request(arguments), typed=[(ASKED, "e"), (ASKED, "p")])
    given_text = (folder / "given0").read_text()
    assert json.loads(given_text) == arguments
    assert "\u202e" not in given_text and "\u200b" not in given_text


# --- what is shown ------------------------------------------------------------------------------

COLOUR = re.compile(r"\x1b\[(?:1|2|31|32|33|0)m")
ESCAPES = re.compile(r'(\\(?:u[0-9a-f]{4}|["\\/bfnrt]))(?:\{(\d+)\})?')


def obeyed(text: str) -> set[str]:
    """The characters in a text that are not plainly seen."""
    unseen = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
    return {c for c in text if c != "\n" and unicodedata.category(c) in unseen}


def joined(rows: str) -> str:
    """The arguments in rows of a screen, whose lines are put together again."""
    lines: list[str] = []
    for row in rows.split("\n"):
        if row.startswith("| "):
            lines.append(row[2:])
        elif row.startswith(": "):
            lines[-1] += row[2:]
    return "\n".join(lines)


def unescaped(text: str) -> Any:
    """The value that is shown, runs written out."""
    plain = ESCAPES.sub(lambda m: m[1] * int(m[2] or 1), text)
    return json.loads(plain)


ODD = st.text(
    st.sampled_from(list('a{}1206\\"/u ×\x1b\x9b\u202e\u2028\u200b\ud55c\u0301\u3164😀\n\t\r|:'))
    | st.characters(exclude_categories=["Cs"]),
    max_size=40,
)
RUNS = st.builds(
    lambda before, unit, count, after: before + unit * count + after,
    ODD,
    st.sampled_from([" ", "\n", "\\", '"', "\u00a0", "\u200b", "x", "\U000e0041"]),
    st.integers(0, 60),
    ODD,
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ODD
    | RUNS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(ODD | RUNS, VALUES, max_size=3), st.integers(1, 120))
def test_whatever_the_arguments_all_is_shown_and_nothing_is_obeyed(
    arguments: dict[str, Any], columns: int
) -> None:
    rows = wrapped(whole(request(arguments), arguments), columns)
    text = "\n".join(row.text for row in rows)
    assert not obeyed(text)
    assert unescaped(joined(text)) == arguments
    assert all(cells(row.text) <= max(columns, 14) for row in rows)
    assert all(row.text[:2] in ("| ", ": ") for row in rows[_head(rows) :])


def _head(rows: Sequence[ShownLine]) -> int:
    return next(number for number, row in enumerate(rows) if row.text.startswith("| "))


@given(VALUES)
def test_one_line_stands_for_one_value(value: Any) -> None:
    text = on_one_line(value)
    assert "\n" not in text and not obeyed(text) and unescaped(text) == value


@given(VALUES)
def test_unfolded_it_is_json(value: Any) -> None:
    assert json.loads(exact(value, fold=False)) == value


@FEW
@given(
    st.dictionaries(ODD, VALUES, max_size=2),
    ODD,
    st.lists(ODD, max_size=4).map("\n".join),
    st.sampled_from([(20, 5), (80, 24), (200, 60)]),
)
def test_a_real_terminal_gets_nothing_but_text_and_our_colours(
    arguments: dict[str, Any], reason: str, preview: str, size: tuple[int, int]
) -> None:
    one = Desk(*size)
    try:
        asked = request(arguments, reason=reason, preview=preview, name="tool" + reason)
        one.asks(asked, typed=[(ASKED, "d"), ("(?:q ends|Run it)", "q"), (ASKED, "p")])
    finally:
        one.close()
    shown = COLOUR.sub("", one.text).replace("\r\n", "\n").removesuffix("\0")
    assert not obeyed(shown)


EVIL = {
    "ansi": "\x1b[2J\x1b[1;1H\x1b[8m",
    "c1": "\x9b2J\x9d52;c;\x9c",
    "osc 52": "\x1b]52;c;ZWNobyBoaQ==\x07",
    "title": "\x1b]0;safe\x07",
    "bidi": "\u202egnp.exe\u2066",
    "carriage return": "rm -rf ~\rls      ",
    "backspace": "rm -rf ~" + "\b" * 8 + "ls",
    "delete": "\x7f" * 3,
    "tags": "".join(chr(0xE0000 + ord(c)) for c in "rm -rf"),
    "zero width": "\u200b\u200c\u200d\ufeff\u2060\u00ad",
    "fillers": "\u3164\u115f\u2800\u00a0\u3000",
    "marks": "a" + "\u0300" * 500,
    "line ends": "\u2028\u2029\u0085\x0b\x0c",
    "fake prompt": "\nRun it once? [y/n/e/s/d/p/?] ",
}


@pytest.mark.parametrize("trick", EVIL.values(), ids=EVIL)
@pytest.mark.parametrize("where", ["arguments", "key", "reason", "preview", "name", "digest"])
def test_a_trick_is_spelled_out(trick: str, where: str) -> None:
    asked = {
        "arguments": request({"x": trick}),
        "key": request({trick: 1}),
        "reason": request(reason=trick),
        "preview": request(preview=f"--- a\n+++ b\n@@ -1 +1 @@\n+{trick}"),
        "name": request(name=trick),
        "digest": request(digest=trick),
    }[where]
    text = describe(asked)
    assert not obeyed(text) and trick not in text
    ours = [row for row in text.split("\n") if not row.startswith("| ")]
    assert not any(row.startswith("Run it") for row in ours)


def test_a_letter_that_only_looks_like_another_is_seen_in_a_name() -> None:
    assert r"c\u0430lculator" in describe(request(name="cаlculator"))


@pytest.mark.parametrize("padding", [" " * 10_000, "\n" * 10_000, "x" * 10_000, "\u3164" * 10_000])
@pytest.mark.parametrize("size", [(80, 24), (20, 8)])
def test_ten_kilobytes_push_nothing_out_of_sight(
    desk: Any, padding: str, size: tuple[int, int]
) -> None:
    one = desk(*size)
    arguments = {"path": "/etc/passwd", "content": padding, "mode": "overwrite"}
    one.asks(request(arguments, expires_at="2030-01-01T00:00:00Z"), typed=[(ASKED, "p")])
    text = COLOUR.sub("", one.text).replace("\r\n", "\n")
    last = "".join(text.split("\n")[-(size[1] + 18) :]).replace(": ", "").replace("  ", "")
    for part in ("create_file", "always", DIGEST[:8], DIGEST[-8:], '"/etc/passwd"', "overwrite"):
        assert part in last, part


def test_depth_is_no_padding() -> None:
    value: Any = 1
    for _ in range(90):
        value = [value]
    assert len(describe(request({"x": value, "y": 1})).split("\n")) < 30


def test_a_diff_is_coloured_and_escaped(desk: Any) -> None:
    preview = "--- a.txt\n+++ a.txt\n@@ -1,2 +1,2 @@\n-old\x1b[2J\n+new\n --- kept\n+\tindented\n"
    one = desk()
    one.asks(request(preview=preview), typed=[(ASKED, "p")])
    assert "\x1b[31m| -old\\u001b[2J\x1b[0m" in one.text
    assert "\x1b[32m| +new\x1b[0m" in one.text and "| +→   indented" in one.text


@pytest.mark.parametrize("variable", [("TERM", "dumb"), ("NO_COLOR", "1")])
def test_a_terminal_without_colours_gets_none(
    desk: Any, monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str]
) -> None:
    monkeypatch.setenv(*variable)
    one = desk(20, 10)
    asked = request(preview="+x\n" * 30, in_doubt=True)
    typed = [(ASKED, "d"), ("q ends", " "), ("q ends", "q"), (ASKED, "n"), ("reason", "no\r")]
    (answer,) = one.asks(asked, typed=typed)
    assert answer == ApprovalAnswer(False, "no") and "\x1b" not in one.text


def test_a_long_call_is_shown_a_screen_at_a_time_as_wide_as_the_screen_is_then(desk: Any) -> None:
    one = desk(100, 30)
    arguments = {"lines": [f"line {n} " + "." * 60 for n in range(100)]}

    def narrower() -> None:
        resize(one.master, 40, 12)
        os.write(one.master, b"d")

    typed: list[Any] = [(ASKED, narrower), *[("q ends", " ")] * 3, ("q ends", "q")]
    one.asks(request(arguments), typed=[*typed, (ASKED, "p")])
    paged = COLOUR.sub("", one.text).split("q ends")
    assert len(paged) == 5
    for page in paged[1:4]:
        rows = [row for row in page.split("\r\n") if row.startswith(("| ", ": "))]
        assert 5 <= len(rows) <= 10 and all(len(row) < 40 for row in rows)


# --- signals ------------------------------------------------------------------------------------

PROGRAM = """
import json, os, sys, termios
from mlx_tools.controller import ApprovalRequest
from mlx_tools.cli.approve import ask_user
request = ApprovalRequest(call="c1", name="t", arguments={}, reason="r", suspect=False, digest="d")
try:
    print("ANSWER", ask_user([request])[0].approved)
except KeyboardInterrupt:
    print("INTERRUPTED")
print("ECHO", bool(termios.tcgetattr(0)[3] & termios.ECHO))
"""


@pytest.fixture
def program() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(text: str = PROGRAM) -> Terminal:
        opened.append(Terminal(program=text))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_control_c_raises_and_leaves_the_terminal_as_it_was(program: Any) -> None:
    one = program()
    one.until(ASKED)
    assert "ANSWER" not in one.insist("\x03", r"INTERRUPTED\s+ECHO True")


def test_the_question_comes_again_where_the_program_was_stopped(program: Any) -> None:
    one = program()
    one.until(ASKED)
    for _ in range(30):  # between the question and the wait for a key a signal is not noticed yet
        os.kill(one.process.pid, signal.SIGSTOP)
        os.kill(one.process.pid, signal.SIGCONT)
        with contextlib.suppress(AssertionError):
            one.until(ASKED, timeout=1)
            break
    one.insist("n", "Why")
    one.type("\r")
    assert one.until(r"ANSWER False\s+ECHO True")
