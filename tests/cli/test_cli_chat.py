"""`mlx-tools chat`: over a pipe, and at a terminal (a real pseudo-terminal)."""

from __future__ import annotations

import re
import stat
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.testing import Completion, ScriptedServer, answer, call
from tests.cli.terminal import Terminal
from tests.controller.full_disk import file_size_limit

TELLING = """
import os, sys
from mlx_tools.cli import main
from mlx_tools.cli.type_ahead import TypeAhead

end_text = TypeAhead._end_text

def tell(self):
    end_text(self)
    os.write(2, b"\\x1b]2;%r\\x07" % (self._input,))  # as the title of the terminal

TypeAhead._end_text = tell
sys.exit(main(["chat", "--url", sys.argv[1]]))
"""
"""A chat that tells what it holds of what was typed ahead, once no more comes."""

Talk = Callable[..., Terminal]
QUESTION = r"p pause "


def talk(run: Any, *script: Any, lines: str, options: tuple[str, ...] = ()) -> Any:
    with ScriptedServer(*script) as server:
        result = run("chat", "--url", server.url, *options, stdin=lines)
    return result, server


# --- over a pipe --------------------------------------------------------------------------------


def test_each_line_is_a_turn_that_sees_the_ones_before(run: Any) -> None:
    result, server = talk(run, answer("One."), answer("Two."), lines="first?\n\nsecond?\n")
    assert (result.code, result.out, result.err) == (0, "One.\nTwo.\n", "")
    assert server.prompts[1].startswith(server.prompts[0]) and "second?" in server.prompts[1]


def test_compact_has_the_model_sum_up_what_was_said(run: Any) -> None:
    script = (answer("One."), answer("Two."), Completion("Of numbers."), answer("Three."))
    lines = "/compact\nfirst?\nsecond?\n/compact\nthird?\n"
    result, server = talk(run, *script, lines=lines)
    assert result.code == 0
    assert result.out.splitlines() == [
        "nothing was said yet",
        "One.",
        "Two.",
        "the prompt was compacted: 1 turn left out",
        "Three.",
    ]
    assert "first?" in server.prompts[2] and "Of numbers." in server.prompts[3]
    assert "first?" not in server.prompts[3] and "second?" in server.prompts[3]


def test_a_paused_turn_is_told_and_the_talk_goes_on(run: Any, environ: Any) -> None:
    environ(POLICY_ASK="calculator")
    script = (answer("Hi."), call("calculator", expression="1"), answer("Two."))
    result, server = talk(run, *script, lines="hello?\nfirst?\nsecond?\n")
    assert result.code == 4 and result.out == "Hi.\nTwo.\n" and "paused" in result.error
    assert "hello?" in server.prompts[2] and "first?" not in server.prompts[2]


@pytest.mark.heavy
def test_a_call_that_was_paused_is_found_again_in_the_same_chat(
    terminal: Any, environ: Any
) -> None:
    environ(POLICY_ASK="calculator")
    script = call("calculator", expression="1"), answer("Two."), answer("One.")
    with ScriptedServer(*script) as server:
        screen = terminal("chat", "--url", server.url)
        screen.see("^>$")
        screen.type("first?\r")
        screen.see("p pause")
        screen.type("p")
        screen.see(r"an approval is due for calculator\s+\(/resume 2\S+\)")
        screen.type("/resume\r")
        screen.see(r"1. first\? \(2\S+,\s+paused: 1 approval\s+due\)")
        screen.type("\n")
        screen.see("^>$")
        screen.type("second?\r")
        screen.see(r"the call that waits stays behind: /resume\s+2\S+ goes back")
        screen.see("Two")
        screen.type("/resume\r")
        screen.see(r"Two\.[\s\S]*1-1:")
        screen.type("1\n")
        screen.see(r"going on with[\s\S]*p pause")
        screen.type("y")
        screen.see("One")


@pytest.mark.heavy
def test_a_talk_that_goes_on_says_at_once_how_full_the_context_is(run: Any, terminal: Any) -> None:
    with ScriptedServer(answer("One."), context=1_000) as server:
        assert run("ask", "first?", "--url", server.url).code == 0
        screen = terminal("chat", "--continue", "--url", server.url)
        screen.see(r"^context 11 % of 1,000")


@pytest.mark.heavy
def test_a_talk_goes_on_after_a_turn_that_a_full_disk_broke_off(run: Any) -> None:
    script = (answer(" ".join(map(str, range(6_000)))), answer("Two."), answer("One."))
    with ScriptedServer(*script) as server:
        with file_size_limit(25_000):
            result = run("chat", "--url", server.url, stdin="first?\nsecond?\n")
        assert (result.code, result.out) == (2, "Two.\n") and "first?" not in server.prompts[1]
        told = re.search(r"free some space, then: mlx-tools sessions resume (\S+)\)", result.error)
        assert told is not None
        resumed = run("sessions", "resume", told[1])
    assert (resumed.code, resumed.out) == (0, "One.\n") and "first?" in server.prompts[2]


def test_a_backend_that_fails_ends_a_piped_talk_with_exit_code_3(run: Any) -> None:
    result, _ = talk(run, lines="first?\nsecond?\n")
    assert result.code == 3 and "script is at its end" in result.error


def test_bytes_that_are_no_text_are_told(run: Any) -> None:
    with ScriptedServer() as server:
        result = run("chat", "--url", server.url, stdin=b"\xff\n")
        assert result.code == 2 and "not UTF-8" in result.error
        result = run("chat", "--url", server.url, stdin=b"\x89PNG\r\n\x1a\n\0IHDR\nHello?\n")
        assert result.code == 2 and "the model reads text only" in result.error
        assert server.bodies == []


# --- at a terminal ------------------------------------------------------------------------------


def test_a_talk_at_a_terminal(terminal: Talk, home: Path) -> None:
    slow = Completion('{"type":"final_answer","content":"' + "endless " * 400, delay=0.1)
    script = (
        call("calculator", expression="6*7"),
        answer("It is 42."),
        slow,
        answer("Still here."),
    )
    with ScriptedServer(*script) as server:
        screen = terminal("chat", "--url", server.url, NO_COLOR="1")
        screen.see("^>$")
        screen.type("six times seven?\r")
        seen = screen.see(r"It is 42\.[^>]*^>$")
        assert "· calculator 6*7 → 42 · " in seen
        assert seen.count("It is 42.") == 1 and "\x1b[1m" not in screen.text
        screen.type("go on?\r")
        screen.see("endless endless")
        screen.type("there?\r\x03")  # Ctrl-C stops the turn, not the program
        screen.see(r"mlx-tools: stopped: by Ctrl-C ^> there\?$")  # nor is what was typed asked
        screen.press("enter")
        screen.see(r"Still here\.[^>]*^>$")
        screen.type("\x04")
        assert screen.end() == 0 and screen.echoes()
    history = home / "state" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "six times seven?" in history.read_text()


def test_what_is_typed_early_answers_no_approval_and_is_asked_when_its_time_comes(
    terminal: Talk,
) -> None:
    typed = threading.Event()

    def once_typed(_: str) -> str:
        typed.wait(60)
        return call("calculator", expression="6*7")

    with ScriptedServer(once_typed, answer("It is 42."), answer("All is well.")) as server:
        screen = terminal(server.url, program=TELLING, MLX_TOOLS_POLICY_ASK="calculator")
        screen.type("six times seven?\r")
        screen.see("· the model")
        screen.type("y")
        screen.type("es or no?\r")
        screen.until(r"yes or no\?")
        typed.set()
        screen.until(QUESTION)
        screen.type("y")
        seen = screen.see(r"All is well\.")
    assert re.search(r"It is 42\.[^>]*^> yes or no\?$", seen, re.MULTILINE)
    assert "\x1b[2m· calculator 6*7 → 42" in screen.text
    assert "six times seven?\nyes" not in seen


def test_lines_that_are_typed_ahead_are_questions_each(terminal: Talk) -> None:
    typed = threading.Event()

    def once_typed(_: str) -> str:
        typed.wait(60)
        return answer("One.")

    with ScriptedServer(once_typed, answer("Two."), answer("Three.")) as server:
        screen = terminal(server.url, program=TELLING)
        screen.see("^>$")
        screen.type("first?\r")
        screen.see("· the model")
        for text, held in (("second", "second'"), ("?\r", "second[?].*b''"), ("third?\r", "third")):
            screen.type(text)
            screen.until(held)  # a person types no faster
        typed.set()
        screen.see(r"Three\.")
    assert "second?" in server.prompts[1] and "third?" not in server.prompts[1]
    assert "third?" in server.prompts[2]


def test_after_ctrl_z_a_question_has_the_keyboard_still(terminal: Talk) -> None:
    with ScriptedServer(call("calculator", expression="6*7"), answer("It is 42.")) as server:
        screen = terminal("chat", "--url", server.url, MLX_TOOLS_POLICY_ASK="calculator")
        screen.see("^>$")
        screen.type("/steps on\r")
        screen.see("every step is shown")
        screen.type("six times seven?\r")
        screen.until(QUESTION)
        screen.press("ctrl-z")  # nobody could wake it here, so it is not stopped
        for _ in range(4):
            screen.type("d")
            screen.until(f"The model asks to call calculator[^$]*{QUESTION}")
        screen.type("y")
        shown = screen.until(r"It is 42\.")
        assert "← calculator" in shown and "→ calculator" not in shown  # the question said it


def test_a_dumb_terminal_will_do(terminal: Talk) -> None:
    with ScriptedServer(answer("Here."), answer("Still here.")) as server:
        screen = terminal("chat", "--url", server.url, TERM="dumb")
        for question, said in (("Anybody?", "Here"), ("And now?", "Still here")):
            screen.see("^>$")
            screen.type(f"{question}\r")
            screen.see(f"{said}.[^>]*^>$")
        assert "\x1b" not in screen.text


@pytest.mark.heavy
def test_a_terminal_that_goes_away_is_no_error(terminal: Talk) -> None:
    program = """
        import os, signal, sys
        from mlx_tools.cli import main
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT), 2)
        sys.exit(main(["chat", "--url", "URL"]))
    """
    slow = Completion(answer("endless " * 400), delay=0.1)
    with ScriptedServer(slow) as server:
        screen = terminal(program=textwrap.dedent(program).replace("URL", server.url))
        screen.see("^>$")
        screen.type("go on?\r")
        screen.see("endless endless")
        screen.hang_up()
        assert screen.process.wait(120) == 1
    assert Path("said").read_text().splitlines()[-1] == "/help lists the commands, Ctrl-D leaves"


def test_ctrl_c_at_an_approval_interrupts_the_run(terminal: Talk, home: Path) -> None:
    with ScriptedServer(call("calculator", expression="6*7")) as server:
        screen = terminal(
            "ask", "--url", server.url, "six times seven?", MLX_TOOLS_POLICY_ASK="calculator"
        )
        screen.until(QUESTION)
        screen.type("\x03")
        assert screen.end() == 130
    (transcript,) = (home / "state" / "sessions").glob("*/transcript.jsonl")
    assert '"execution_started"' not in transcript.read_text()
