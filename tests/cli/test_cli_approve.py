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
import sys
import termios
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.cli.approve import EditRequest, Questions
from mlx_tools.cli.call_text import (
    TextLine,
    describe_call,
    escape_invisible,
    exact,
    format_value,
    summarise_call,
    wrap_lines,
)
from mlx_tools.cli.inputs import find_editor, read_key
from mlx_tools.cli.output import cells
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest
from mlx_tools.errors import UsageError
from mlx_tools.messages import replace
from mlx_tools.tools import make_preview
from tests.cli.terminal import Terminal, resize
from tests.examples import FEW
from tests.tables import table
from tests.waiting import HANG

ASKED = r"(?:p pause|p\)ause) "
MAKE = {"consent_binding": {"program": "make"}}
MAKE_KEYS = "y yes  n no  e edit  s this program for the session  d details  p pause"
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


def told(asked: ApprovalRequest, *size: int) -> str:
    """The display of a call: in brief, on a screen of so many columns and rows, then in full."""
    lines = [
        *summarise_call(asked, os.terminal_size(size or (100, 40))),
        *wrap_lines(describe_call(asked), None),
    ]
    return "\n".join(line.text for line in lines)


def looked(asked: ApprovalRequest, arguments: Mapping[str, Any]) -> ApprovalRequest:
    """The request with other arguments; ``{"n": "no"}`` is none that it can have."""
    if arguments.get("n") == "no":
        raise UsageError("the arguments do not fit create_file: n is no number")
    text = json.dumps(arguments)
    return replace(asked, arguments=arguments, digest=f"of {text}", preview=f"@@ @@\n+{text}")


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
        look: EditRequest | None = looked,
        always: bool = False,
    ) -> list[ApprovalAnswer]:
        """The answers, where this is typed: each text once its pattern has been shown anew."""
        before = termios.tcgetattr(self.keyboard)
        typist = threading.Thread(target=self.type_keys, args=(typed,), daemon=True)
        typist.start()
        try:
            asking = Questions(look, keyboard=self.keyboard, screen=self.screen, always=always)
            answers = asking.ask(requests)
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

    def type_keys(self, typed: Sequence[tuple[str, str | Callable[[], None]]]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        seen, left, end = "", list(typed), time.monotonic() + HANG
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
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "false")


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

YES = ApprovalAnswer(True, "approved at the terminal")
EDITED = 'y {"ok": tru} ünd sx\x7fo' + "\x1b[D" * 8 + "e"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ([(ASKED, "y")], YES),
        ([(ASKED, "Y\r")], YES),
        ([(ASKED, "s")], replace(YES, for_session=True)),
        ([(ASKED, "n"), ("Why", f"{EDITED}\r")], ApprovalAnswer(False, 'y {"ok": true} ünd so')),
        ([(ASKED, "n"), ("Why", "\r")], ApprovalAnswer(False, "the user said no")),
        ([(ASKED, "p")], ApprovalAnswer(None)),
        ([(ASKED, "\x04")], ApprovalAnswer(None)),
        ([(ASKED, "n"), ("Why", "\x04"), (ASKED, "y")], YES),
    ],
)
def test_one_key_answers(desk: Any, typed: list[tuple[str, str]], answer: ApprovalAnswer) -> None:
    assert desk().asks(request(), typed=typed) == [answer]


PASTE = "\x1b[200~{}\x1b[201~"


@pytest.mark.parametrize(
    "typed",
    ["\x1b[A", "\x1bOA", "yes", "yy", "a", "q", "\r", " ", "é", "у", "\x19", "\x1by"]
    + [PASTE.format(text) for text in ("y", "y\r", "n" * 9000)],
)
def test_what_is_no_offered_key_answers_nothing(desk: Any, typed: str) -> None:
    (answer,) = desk().asks(request(), typed=[(ASKED, typed), (r"\?\r\n.*pause ", "p")])
    assert answer.approved is None


def test_a_paste_that_comes_in_pieces_answers_nothing(desk: Any) -> None:
    one = desk()

    def pieces() -> None:
        for piece in ("\x1b[200~some", "y", "\x1b[201~"):
            os.write(one.master, piece.encode())
            time.sleep(0.1)  # longer than what comes in one go

    (answer,) = one.asks(request(), typed=[(ASKED, pieces), (r"\?\r\n.*pause ", "p")])
    assert answer.approved is None
    assert "\x1b[?2004h" in one.text and one.text.rstrip("\0\r\n").endswith("paused")


def test_what_was_typed_before_a_call_is_shown_answers_nothing(desk: Any) -> None:
    one = desk()
    os.write(one.master, b"yyyy\ry")
    asked = [request({"path": "1"}), request({"path": "2"})]
    typed = [(r"\(1 of 2\)[^$]*pause ", "y"), (r"\(2 of 2\)[^$]*pause ", "p")]
    assert [answer.approved for answer in one.asks(*asked, typed=typed)] == [True, None]

    def typed_meanwhile(screen: TextIO) -> None:
        os.write(one.master, b"y")
        assert select.select([one.keyboard], [], [], HANG)[0]

    def ask() -> None:
        os.write(one.master, b"n")

    assert read_key(one.keyboard, one.screen, ask, typed_meanwhile) == "n"


def test_a_call_is_not_on_the_screen_before_a_key_can_answer(desk: Any) -> None:
    one = desk()
    on_screen = []

    def show(screen: TextIO) -> None:
        print("a call", file=screen, flush=True)
        on_screen.extend(select.select([one.master], [], [], 0)[0])

    def ask() -> None:
        assert "a call" in os.read(one.master, 4096).decode()
        os.write(one.master, b"y")

    assert read_key(one.keyboard, one.screen, ask, show) == "y"
    assert on_screen == []


def test_a_terminal_that_goes_away_decides_nothing(desk: Any) -> None:
    one = desk()

    def hang_up() -> None:
        os.close(one.master)
        one.master = -1

    typist = threading.Thread(target=one.type_keys, args=([(ASKED, hang_up)],), daemon=True)
    typist.start()
    answers = Questions(keyboard=one.keyboard, screen=one.screen).ask([request()] * 2)
    typist.join()
    assert [answer.approved for answer in answers] == [None, None]


@pytest.mark.parametrize(
    ("columns", "look", "more", "keys"),
    [
        (60, looked, {}, "y yes  n no  e edit  s for the session  d details  p pause"),
        (40, looked, {}, "y)es n)o e)dit s)ession d)etails p)ause"),
        (80, looked, {"suspect": True}, "y yes  n no  e edit  d details  p pause"),
        (80, looked, {"in_doubt": True}, "y run it AGAIN  n give it up  d details  p pause"),
        (80, None, {}, "y yes  n no  d details  p pause"),  # a call of one's own
        (80, looked, MAKE, MAKE_KEYS),
        (58, looked, MAKE, "y)es n)o e)dit s)ession, this program d)etails p)ause"),
        (80, looked, {"consent_binding": None}, "y yes  n no  e edit  d details  p pause"),
    ],
)
def test_the_keys_are_spelled_out_and_no_consent_is_offered_that_cannot_cover_the_call(
    desk: Any, columns: int, look: EditRequest | None, more: dict[str, Any], keys: str
) -> None:
    one = desk(columns, 24)
    pressed = [(ASKED, key) for key in "es" if f"{key} " not in keys and f"{key})" not in keys]
    (answer,) = one.asks(request(**more), typed=[*pressed, (ASKED, "p")], look=look)
    assert f"\n\x1b[?2004h{keys} " in one.text and answer.approved is None


@pytest.mark.parametrize(("columns", "is_new_line"), [(60, True), (80, False)])
def test_a_word_that_does_not_fit_after_the_keys_is_on_a_line_of_its_own(
    desk: Any, columns: int, is_new_line: bool
) -> None:
    one = desk(columns, 24)
    one.asks(request(), typed=[(ASKED, "p")], look=looked)
    assert bool(re.search(r"\npaused\r?\n", one.text)) == is_new_line
    assert "paused" in one.text


def test_a_consent_for_the_session_covers_the_calls_beside_it_but_none_with_more_effects(
    desk: Any,
) -> None:
    writes = frozenset({"write"})
    asked = [
        request(effects=writes),
        request({"path": "2"}, effects=writes),
        request({"path": "3"}, effects=writes, suspect=True),
        request({"path": "4"}, effects=writes | {"execute"}),
        request({"path": "5"}, effects=writes, name="other"),
    ]
    typed = [(ASKED, "s"), (ASKED, "y"), (ASKED, "y"), (ASKED, "p")]
    answers = desk().asks(*asked, typed=typed)
    assert [a.approved for a in answers] == [True, True, True, True, None]
    assert [a.for_session for a in answers] == [True, True, False, False, False]


def test_a_consent_for_the_session_covers_calls_with_the_same_binding_only(desk: Any) -> None:
    asked = [
        request({"program": name, "arguments": [str(number)]}, consent_binding={"program": name})
        for number, name in enumerate(("make", "make", "rm"))
    ]
    answers = desk().asks(*asked, typed=[(ASKED, "s"), (ASKED, "p")])
    assert [a.approved for a in answers] == [True, True, None]


def test_a_standing_consent_covers_neither_what_is_suspect_nor_what_is_in_doubt(desk: Any) -> None:
    asked = [request(), request(suspect=True), request({}, in_doubt=True), request()]
    answers = desk().asks(*asked, typed=[(ASKED, "n"), ("Why", "\r"), (ASKED, "p")], always=True)
    assert [a.approved for a in answers] == [True, False, None, True]
    assert [a.approved for a in Questions(always=True).ask([request()])] == [True]


# --- editing ------------------------------------------------------------------------------------

EDITOR = """#!{python} -IS
import sys
from pathlib import Path
file, folder = Path(sys.argv[-1]), Path(__file__).parent
number = len([*folder.glob("given*")])
(folder / f"given{{number}}").write_bytes(file.read_bytes())
modes = [oct(one.stat().st_mode & 0o777) for one in (file, file.parent)]
(folder / "file").write_text(f"{{file}}\\n{{modes}}")
if (text := folder / f"text{{number}}").exists():
    file.write_bytes(text.read_bytes())
sys.exit({code})
"""


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
        program.write_text(EDITOR.format(python=sys.executable, code=code))
        program.chmod(0o700)
        monkeypatch.setenv("VISUAL", f"'{program}' --wait")
        return folder

    return make


def test_the_change_is_shown_again_for_edited_arguments_and_just_that_is_approved(
    desk: Any, editor: Any
) -> None:
    folder = editor('{"path": "b.txt", "n": true}')
    one, given_arguments = desk(), {"path": "a.txt\u202e\x1b" + " " * 50 + "{", "n": 1}
    (answer,) = one.asks(request(given_arguments), typed=[(ASKED, "e"), (ASKED, "y")])
    assert answer.approved is True and answer.arguments == {"path": "b.txt", "n": True}
    assert answer.arguments["n"] is True and answer.digest == 'of {"path": "b.txt", "n": true}'
    given_text = (folder / "given0").read_text()
    assert json.loads(given_text) == given_arguments and "\u202e" not in given_text
    file, modes = (folder / "file").read_text().split("\n")
    assert modes == "['0o600', '0o700']" and not Path(file).exists()
    edited = one.text[one.text.index("with your arguments? ") :]
    assert '| +{"path": "b.txt", "n": true}' in edited


@pytest.mark.parametrize("wrong", ["{", "[1]", "", '{"a":1,"a":2}', b"\xff", '{"n": "no"}'])
def test_an_edit_that_the_call_cannot_have_is_told_and_asked_again(
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
        ("", 0, "not JSON"),
        ('{"n":1}', 0, "the call's own arguments"),
        ('{"n": 2}', 1, "code 1"),
        ("/nowhere/editor", None, "No such file"),
        ("'half", None, "no command"),
        ("true ; touch ran", None, "the call's own arguments"),  # there is no shell
    ],
)
def test_an_edit_that_fails_or_changes_nothing_leaves_the_call_as_it_was(
    desk: Any,
    editor: Any,
    saved: str,
    code: int | None,
    told: str,
    monkeypatch: Any,
    tmp_path: Path,
) -> None:
    if code is None:
        monkeypatch.setenv("EDITOR", saved)
        monkeypatch.chdir(tmp_path)
    else:
        editor(saved, code=code)
    one = desk()
    assert one.asks(request({"n": 1}), typed=[(ASKED, "e"), (ASKED, "y")]) == [YES]
    assert told in one.text and not Path("ran").exists()


@pytest.mark.parametrize(
    ("term", "typed"), [("xterm", '\x7f\x7f\x7fc"}\r'), ("dumb", '{"path": "c"}\r')]
)
def test_without_an_editor_the_arguments_stand_on_a_line(
    desk: Any, monkeypatch: pytest.MonkeyPatch, term: str, typed: str
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("EDITOR")
    one = desk()
    (answer,) = one.asks(
        request({"path": ""}), typed=[(ASKED, "e"), ("The arguments: ", typed), (ASKED, "y")]
    )
    assert answer.arguments == {"path": "c"}
    if term == "dumb":
        assert "\x1b" not in one.text and 'Now it is:\r\n{ "path": "" }' in one.text


def test_nano_or_vi_is_the_editor_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_editor({}) == []
    for name in ("vi", "nano"):
        (tmp_path / name).touch(0o700)
        assert find_editor({"EDITOR": " "}) == [str(tmp_path / name)]
    assert find_editor({"TERM": "dumb", "VISUAL": "v"}) == []
    assert find_editor({"EDITOR": "e -w", "VISUAL": ""}) == ["e", "-w"]


# --- what is shown ------------------------------------------------------------------------------

COLOUR = re.compile(r"\x1b\[(?:(?:1|2|31|32|33|0)m|\?2004[hl])")
"""Sequences of our own: colours, and that pastes are to be told."""

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
    rows = [row.text for row in wrap_lines(describe_call(request(arguments)), columns)]
    assert not obeyed("\n".join(rows))
    theirs = [row for row in rows if row.startswith(("| ", ": "))]
    assert unescaped(joined("\n".join(theirs))) == arguments
    assert all(cells(row) <= max(columns, 14) for row in rows)


@given(
    st.dictionaries(ODD | RUNS, VALUES, max_size=9),
    ODD | RUNS,
    st.booleans(),
    st.integers(20, 120),
    st.integers(5, 40),
)
def test_whatever_is_in_a_call_its_brief_fits_the_screen_and_no_row_of_it_looks_like_ours(
    arguments: dict[str, Any], text: str, diff: bool, columns: int, rows: int
) -> None:
    asked = request(arguments, preview=f"@@ @@\n+{text}" * diff, reason=text, suspect=not diff)
    brief = [row.text for row in summarise_call(asked, os.terminal_size((columns, rows)))]
    assert not obeyed("\n".join(brief)) and all(cells(row) < columns for row in brief)
    assert brief[0].startswith("Run create_file? "[: columns - 3])
    beginnings = ("| ", ": ", "!", "  ")
    assert all(row.startswith(beginnings) for row in brief[1:])
    body = [row for row in brief if row.startswith("| ")]
    assert len(body) <= max(2, rows)


WORDS = st.lists(st.text("abé好", min_size=1, max_size=12), min_size=20, max_size=60)


@given(WORDS, st.integers(40, 90))
def test_a_line_of_ours_is_parted_between_words_and_loses_none(
    words: list[str], columns: int
) -> None:
    first, *others = (row.text for row in wrap_lines([TextLine(" ".join(words))], columns))
    assert others and all(row[:2] == "  " for row in others)
    assert all(cells(row) < columns for row in (first, *others))
    assert " ".join([first, *(row[2:] for row in others)]).split(" ") == words


def test_a_mark_is_shown_on_a_letter_and_spelled_elsewhere() -> None:
    assert escape_invisible("naïve नमस्ते e\u0301") == "naïve नमस्ते e\u0301"
    assert escape_invisible("\u0301") == r"\u0301"


@given(VALUES)
def test_one_line_stands_for_one_value(value: Any) -> None:
    text = format_value(value)
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
        one.asks(asked, typed=[(ASKED, "d"), (f"(?:q ends|{ASKED})", "q"), (ASKED, "p")])
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
    "fake prompt": "\nRun t? none\ny yes  n no  d details  p pause ",
}


@table("trick", EVIL.values(), ids=EVIL)
@table("where", ["arguments", "key", "reason", "preview", "name", "digest"])
def test_a_trick_is_spelled_out(trick: str, where: str) -> None:
    asked = {
        "arguments": request({"x": trick}),
        "key": request({trick: 1}),
        "reason": request(reason=trick),
        "preview": request(preview=f"--- a\n+++ b\n@@ -1 +1 @@\n+{trick}"),
        "name": request(name=trick),
        "digest": request(digest=trick),
    }[where]
    text = told(asked)
    assert not obeyed(text) and trick not in text
    ours = [row for row in text.split("\n") if not row.startswith(("| ", ": "))]
    assert not any(row.startswith(("Run t?", "y yes")) for row in ours)


@table("padding", [" " * 10_000, "\n" * 10_000, "x" * 10_000, "\u3164" * 10_000])
@table("where", ["content", "preview"])
@table("size", [(200, 50), (80, 24), (40, 24)])
def test_ten_kilobytes_push_nothing_out_of_sight(
    padding: str, where: str, size: tuple[int, int]
) -> None:
    content = padding if where == "content" else ""
    diff = f"@@ -1 +1 @@\n-old\n+{padding}" if where == "preview" else ""
    arguments = {"path": "/etc/passwd", "content": content, "mode": "overwrite"}
    asked = request(arguments, preview=diff, suspect=True, reason="it was not written cleanly")
    rows = [row.text for row in summarise_call(asked, os.terminal_size(size))]
    assert len(rows) <= size[1] - 3
    shown = "".join(rows).replace(": ", "").replace("| ", "")
    for part in ("create_file", "/etc/passwd", "overwrite", "! it was not written cleanly"):
        assert part.replace(": ", "") in shown, part
    folded = padding[0] in " \n\u3164"
    assert folded or "d shows all" in shown
    assert not folded or "{" in shown or "d shows all" in shown


def test_what_must_be_known_before_a_yes_is_a_line_each() -> None:
    def brief(**more: Any) -> str:
        rows = summarise_call(request(**more), os.terminal_size((80, 24)))
        return "\n".join(row.text for row in rows)

    ordinary = brief(preview="--- a\n+++ a\n@@ -1 +1 @@\n-old\n+new\ttab\r\n")
    assert "!" not in ordinary and DIGEST not in ordinary and "always needs" not in ordinary
    assert "! it always needs approval" in brief(suspect=True)
    assert "! it always needs approval" in brief(is_changed=True)
    assert "Run create_file AGAIN? " in brief(in_doubt=True)
    assert "may have done its work" in brief(in_doubt=True)
    for unseen in ("\u202e", "\x1b", "\x7f", "\u3164"):
        assert "invisible" in brief(arguments={"x": f"a{unseen}"})
        assert "invisible" in brief(preview=f"@@ @@\n+a{unseen}")
    assert "invisible" not in brief(arguments={"x": 'a\\u001b \\b "한국어"\n\t'})
    preview = "--- a\n+++ a\n@@ -1,9 +1,200 @@\n" + "-old\n" * 9 + "+new\n" * 200
    long = brief(preview=preview)
    assert "! This is the beginning of 212 lines (+200 -9); d shows all" in long
    assert len(long.split("\n")) <= 21


def test_the_line_of_a_call_holds_the_beginning_of_each_argument() -> None:
    def line(columns: int, **arguments: Any) -> list[str]:
        asked = request(arguments, preview="@@ @@\n+x")
        rows = [row.text for row in summarise_call(asked, os.terminal_size((columns, 24)))]
        return rows[: rows.index("| @@ @@")]

    whole = 'Run create_file? path: "a.txt", content: "hello"'
    assert line(80, path="a.txt", content="hello") == [whole]
    (row,) = line(80, path="a.txt", content="x" * 3_000_000)
    assert row.startswith('Run create_file? path: "a.txt", content: "xxx') and "… 29999" in row
    assert len(line(40, path="notes/a.txt", content="x" * 3_000, mode="w")) <= 3
    (row,) = line(200, **{f"a{n}": n for n in range(20)})
    assert row.endswith("a7: 7, and 12 arguments more")
    assert line(80) == ["Run create_file? no arguments"]
    assert line(80, **{"a: 1, b": 2}) == ['Run create_file? "a: 1, b": 2']
    assert r"c\u0430lculator" in told(request(name="cаlculator"))
    value: Any = 1
    for _ in range(90):
        value = [value]
    assert len(told(request({"x": value, "y": 1})).split("\n")) < 40  # depth is no padding


def test_all_of_a_call_stands_behind_d(desk: Any) -> None:
    one = desk()
    asked = request(expires_at="2030-01-01T00:00:00Z", in_doubt=True)
    one.asks(asked, typed=[(ASKED, "d"), (ASKED, "p")])
    brief, full = one.text.split("The model asks to call create_file: ")
    assert DIGEST not in brief
    for part in ("it always needs approval", f"digest {DIGEST}", "2030-01-01", "nobody knows how"):
        assert part in full


def test_the_question_counts_the_whole_change_and_d_shows_all_of_it(
    desk: Any, tmp_path: Path
) -> None:
    kept = [f"kept {n}" for n in range(195)]
    (tmp_path / "long.txt").write_text("\n".join([*kept, *(f"lost {n}" for n in range(2_000)), ""]))
    files = builtin_tools([f"{tmp_path}:rw"]).get("file_access")
    added = [f"new {n}" for n in range(300)]
    arguments = {
        "operation": "write",
        "path": "long.txt",
        "content": "\n".join([*added, *kept, ""]),
    }
    seen = make_preview(files, arguments)
    one, pages = desk(100, 1_000), [("q ends", " ")] * 2
    asked = request(arguments, name="file_access", preview=seen.text, counts=seen.counts)
    one.asks(asked, typed=[(ASKED, "d"), *pages, (ASKED, "p")])
    brief, full = COLOUR.sub("", one.text).split("The model asks to call")
    assert "lines (+300 -2000); d shows all" in brief
    assert all(f"| -lost {n}\r\n" in full for n in range(2_000))
    assert all(f"| +new {n}\r\n" in full for n in range(300))


def test_a_change_that_is_not_shown_whole_wants_more_than_a_key(desk: Any) -> None:
    one = desk()
    asked = request(preview="@@ @@\n+x", counts="+1 -90000", omitted="80000 lines are not shown")
    typed = [(ASKED, "s"), (ASKED, "y"), ("Type yes", "y\r"), (ASKED, "y"), ("Type yes", "yes\r")]
    assert one.asks(asked, typed=typed) == [YES]
    before = one.text.split("y yes, typed out  n no  e edit  d details")[0]
    assert "NOT ALL OF THE CHANGE IS SHOWN: 80000 lines are not shown" in before
    assert "the whole change: +1 -90000" in before
    (nobody,) = desk().asks(asked, typed=[(ASKED, "y"), ("Type yes", "\r"), (ASKED, "p")])
    assert nobody.approved is None


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
    typed = [(ASKED, "d"), ("q ends", " "), ("q ends", "q"), (ASKED, "y")]
    assert one.asks(asked, typed=typed) == [YES]
    escapes = one.text.replace("\x1b[?2004h", "").replace("\x1b[?2004l", "")
    assert "\x1b" not in (one.text if variable[0] == "TERM" else escapes)


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
from mlx_tools.cli.approve import Questions
request = ApprovalRequest(call="c1", name="t", arguments={}, reason="r", suspect=False, digest="d")
try:
    print("ANSWER", Questions().ask([request])[0].approved)
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
    one.type("\x03")
    assert "ANSWER" not in one.until(r"INTERRUPTED\s+ECHO True")


@pytest.mark.heavy
def test_the_question_comes_again_where_the_program_was_stopped(program: Any) -> None:
    one = program()
    one.until(ASKED)
    os.kill(one.process.pid, signal.SIGSTOP)
    os.kill(one.process.pid, signal.SIGCONT)
    one.until(ASKED)
    one.type("n")
    assert one.until(r"ANSWER False\s+ECHO True")
