"""What people are used to at a terminal, on a narrow, a usual and a wide one.

The habits of a width are tried in one chat, one after the other: each begins with an empty line on
an empty screen. What the model says is told right before it is asked.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mlx_tools.testing import Completion, ScriptedServer, answer, call
from tests.cli.terminal import Terminal

WIDTHS = [40, *(pytest.param(columns, marks=pytest.mark.slow) for columns in (80, 200))]
PLAN = "# Beds\n\n1. beans\n2. kale\n3. carrots\n"
OTHER = PLAN.replace("kale", "lettuce")
LOG = 'Traceback (most recent call last):\n  File "a.py", line 1\n\tx = 1/0\nZeroDivisionError'
NEW = ("--root", ".:rw", "--tools", "calculator,file_access", "--chat-format", "plain")
CLEAR = {"operation": "write", "path": "plan.md", "content": ""}
ENDLESS = Completion('{"type":"final_answer","content":"' + "endless words " * 500, delay=0.05)
ADVICE = """\
## Before the frost

1. **Lift** the carrots.

| bed | then |
| --- | --- |
| 1 | rye |

```python
for bed in beds:
    dig(bed)
```

Cover whatever is left outside with straw or fleece, and water nothing at all in the evening.
"""


class Desk:
    """A home, a folder with a plan, a model that says what it is told to, and a chat with it."""

    def __init__(self, home: Path, columns: int) -> None:
        self.home = home
        self.columns = columns
        self.folder = home / "garden"
        self.folder.mkdir()
        self.edited = home / "edited"
        """What the user's editor makes of a file."""
        self._said: deque[str | Completion] = deque()
        self.server = ScriptedServer(*[lambda _: self._said.popleft()] * 200)

    def says(self, *completions: str | Completion) -> None:
        """Tell the model what to say next."""
        self._said.clear()
        self._said.extend(completions)

    @property
    def asked(self) -> str:
        """The last prompt."""
        return self.server.prompts[-1]

    def chat(self, *arguments: str, **environ: str) -> Terminal:
        """A new chat, which waits for a question."""
        kinds = ("CONFIG", "DATA", "STATE", "CACHE")
        places = {f"MLX_TOOLS_{kind}_DIR": str(self.home / kind) for kind in kinds}
        terminal = Terminal(
            *("chat", "--url", self.server.url, *(arguments or NEW)),
            environ={
                "HOME": str(self.home),
                "EDITOR": f"cp {self.edited}",
                "MLX_TOOLS_MODEL_CONTEXT": "8000",
                **places,
                **environ,
            },
            columns=self.columns,
            rows=40,
            folder=self.folder,
        )
        terminal.see("^>$")
        return terminal

    @property
    def plan(self) -> str:
        """The plan as it is on disk."""
        return (self.folder / "plan.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=WIDTHS, ids=lambda columns: f"{columns} columns")
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Desk, list[Terminal]]]:
    desk = Desk(tmp_path_factory.mktemp("home"), request.param)
    terminals: list[Terminal] = []
    with desk.server:
        yield desk, terminals
        for terminal in terminals:
            terminal.close()


@pytest.fixture
def desk(opened: tuple[Desk, list[Terminal]]) -> Desk:
    (opened[0].folder / "plan.md").write_text(PLAN, encoding="utf-8")
    return opened[0]


@pytest.fixture
def chat(desk: Desk, opened: tuple[Desk, list[Terminal]]) -> Terminal:
    """The chat of this width; another one where a habit failed and left it in disorder."""
    terminals = opened[1]
    if terminals:
        terminals[-1].press("ctrl-u", "ctrl-l")
        try:
            terminals[-1].see(r"\A>$", timeout=10)
        except (AssertionError, OSError):
            terminals.pop().close()
    if not terminals:
        terminals.append(desk.chat())
    return terminals[-1]


def ask(chat: Terminal, question: str, told: str) -> str:
    """The screen once an answer, or whatever is told, came to a question, and the next may come."""
    chat.type(question)
    chat.press("ctrl-l")  # what an earlier one was told is not taken for it
    chat.gone(told)
    chat.press("enter")
    return chat.see(rf"{told}(?s:.*)\n>$")


def say(chat: Terminal, text: str) -> None:
    chat.type(text)
    chat.press("enter")


def lettuce() -> str:
    """The call that puts lettuce in the place of the kale."""
    return call("file_access", operation="write", path="plan.md", content=OTHER)


# --- what is typed ------------------------------------------------------------------------------


def test_a_pasted_log_is_one_question(desk: Desk, chat: Terminal) -> None:
    desk.says(answer("It divides by zero."))
    chat.paste(LOG)
    chat.see("^ +ZeroDivisionError")
    count = len(desk.server.bodies)
    ask(chat, "", "It divides by zero")
    chat.see("^>$")
    assert len(desk.server.bodies) == count + 1 and "x = 1/0" in desk.asked


def test_what_was_typed_before_is_searched(desk: Desk, chat: Terminal) -> None:
    desk.says(answer("Soon."), answer("Now."), answer("Still soon."))
    ask(chat, "When do the marigolds bloom?", "Soon")
    ask(chat, "And the beans?", "Now")
    chat.press("ctrl-r")
    chat.type("marigo")
    chat.see("marigolds bloom\\?\nI-search backward: marigo")
    chat.press("enter", "enter")
    chat.see("Still soon")
    assert desk.asked.count("marigolds bloom?") == 2


def test_what_is_typed_ahead_is_the_next_line_and_smears_nothing(
    desk: Desk, chat: Terminal
) -> None:
    desk.says(ENDLESS, answer("Here."))
    say(chat, "Go on.")
    chat.see("endless words endless words")
    chat.type("still there?")
    chat.press("ctrl-c")
    shown = chat.see(r"stopped(?s:.*)^> still there\?$")
    assert shown.count("still there?") == 1
    ask(chat, "", "Here")


def test_a_dumb_terminal_will_do(desk: Desk) -> None:
    if desk.columns != 40:
        pytest.skip("a dumb terminal has no width to speak of")
    desk.says(answer("Here."))
    with closing(desk.chat(TERM="dumb")) as chat:
        say(chat, "Anybody?")
        chat.see(r"Here(?s:.*)\n>$")
        assert "\x1b" not in chat.text


# --- what is asked before it runs ---------------------------------------------------------------

KEYS = r"(y yes|y\)es) (n no|n\)o) (e edit|e\)dit) (s for|s\)ession)"


def asked_about(desk: Desk, chat: Terminal, *after: str) -> str:
    """The screen once a call that would change the plan waits for a key."""
    desk.says(lettuce(), *after)
    say(chat, "Put lettuce there.")
    return chat.see(KEYS)


def test_a_change_is_shown_as_a_diff_and_a_key_runs_it(desk: Desk, chat: Terminal) -> None:
    shown = asked_about(desk, chat, answer("It is there."))
    assert "-2. kale" in shown and "+2. lettuce" in shown
    assert "digest" not in shown and shown.count("\n") < 25
    assert desk.plan == PLAN
    chat.type("y")
    chat.see(r"It is there(?s:.*)\n>$")
    assert desk.plan == OTHER


def test_a_change_is_refused_with_a_reason(desk: Desk, chat: Terminal) -> None:
    asked_about(desk, chat, answer("Then not."))
    chat.type("n")
    chat.see("Why not")
    say(chat, "it is too cold")
    chat.see(r"Then not(?s:.*)\n>$")
    assert desk.plan == PLAN and "it is too cold" in desk.asked


def test_a_yes_holds_for_the_session_which_goes_on_the_next_day(desk: Desk) -> None:
    with closing(desk.chat()) as chat:
        asked_about(desk, chat, answer("Once."), call("file_access", **CLEAR), answer("Twice."))
        chat.type("s")
        chat.see(r"Once(?s:.*)\n>$")
        ask(chat, "And now clear it.", "Twice")
        chat.press("ctrl-d")
        assert chat.end() == 0
    assert desk.plan == ""
    before = desk.asked
    desk.says(answer("Lettuce, then nothing."))
    with closing(desk.chat("--continue")) as chat:
        assert "And now clear it." in chat.screen and "Twice." in chat.screen
        ask(chat, "What was there?", "then nothing")
    assert desk.asked.startswith(before)


def test_a_change_is_undone(desk: Desk, chat: Terminal) -> None:
    asked_about(desk, chat, answer("It is there."))
    chat.type("y")
    chat.see(r"It is there(?s:.*)\n>$")
    say(chat, "/undo")
    chat.see(r"plan\.md(?s:.*)\[y/N\]")
    chat.type("y")
    chat.see(r"restored(?s:.*)\n>$")
    assert desk.plan == PLAN


# --- what is shown ------------------------------------------------------------------------------


def test_a_tool_takes_one_quiet_line_and_the_answer_is_last(desk: Desk, chat: Terminal) -> None:
    desk.says(call("calculator", expression="6*7"), answer("It is 42."))
    shown = ask(chat, "Six times seven?", "It is 42")
    rows = shown.split("\n")
    assert re.fullmatch(r"· calculator .*6\*7.*42.*", rows[1]) and rows[2] == "It is 42."


def test_an_answer_in_markdown_is_drawn_and_folded_between_words(
    desk: Desk, chat: Terminal
) -> None:
    desk.says(Completion(answer(ADVICE), delay=0.002))
    shown = ask(chat, "What is to be done?", "evening")
    assert "Before the frost" in shown and "##" not in shown and "**" not in shown
    assert re.search(r"^ *bed +then *$", shown, re.MULTILINE) and "| --- |" not in shown
    assert "    dig(bed)" in shown and "```" not in shown
    words = {word for row in shown.split("\n") for word in row.split()}
    assert {*ADVICE.rsplit("\n\n", 1)[1].split()} <= words


def test_thoughts_are_folded(desk: Desk, chat: Terminal) -> None:
    desk.says("<think>The user wants a number.</think>" + answer("Seven."))
    shown = ask(chat, "A number?", "Seven")
    assert "thought" in shown and "wants a number" not in shown


def test_the_line_below_tells_how_full_the_context_is_and_how_to_make_room(
    desk: Desk, chat: Terminal
) -> None:
    """How fast is told where a turn took a second, which `StatusLine` is tried with by a clock."""
    usage = {"prompt_tokens": 7000, "completion_tokens": 50}
    desk.says(Completion(answer("Word by word, it comes."), usage=usage))
    ask(chat, "Take your time.", "it comes")
    chat.see(r"^88 % of 8000 · (\d+ tokens/s · )?/compact")
