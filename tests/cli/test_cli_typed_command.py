"""A chat's line that begins with ``!``: a program that the person runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlx_tools.cli.typed_command import is_command, split_line
from mlx_tools.errors import UsageError
from mlx_tools.testing import ScriptedServer, answer
from tests.cli.terminal import Terminal
from tests.tables import table
from tests.tools.sandboxed import needs_sandbox

ROOT = ("--root", ".")
MAY_RUN = (*ROOT, "--tools", "+run_command")


@table(
    ("line", "words"),
    [
        ("!ls", ["ls"]),
        ("! git log --oneline ", ["git", "log", "--oneline"]),
        ("!grep 'a | b' notes.txt", ["grep", "a | b", "notes.txt"]),
        ('!grep "|" notes.txt', ["grep", "|", "notes.txt"]),
        ("!ls *.py", ["ls", "*.py"]),
    ],
)
def test_a_line_is_a_program_and_its_arguments(line: str, words: list[str]) -> None:
    assert is_command(line) and split_line(line) == words


@table(
    ("line", "said"),
    [
        ("!", "no program is named"),
        ("!ls | wc", "|: there is no shell"),
        ("!ls > out", ">: there is no shell"),
        ("!make && make test", "&&: there is no shell"),
        ("!it's fine", "No closing quotation"),
    ],
)
def test_what_only_a_shell_could_run_is_refused(line: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        split_line(line)
    assert said in str(refused.value)


def talk(run: Any, *lines: str, options: tuple[str, ...] = ()) -> tuple[Any, ScriptedServer]:
    text = "".join(f"{line}\n" for line in lines)
    with ScriptedServer(answer("One."), answer("Two.")) as server:
        return run("chat", "--url", server.url, *options, stdin=text), server


def test_a_space_before_it_makes_it_a_question(run: Any) -> None:
    result, server = talk(run, " !important: is it?")
    assert (result.code, result.out) == (0, "One.\n")
    assert "!important: is it?" in server.prompts[0]
    assert not is_command("![a picture](x.png)\nwhat is that?")


@needs_sandbox
@table(
    ("options", "line", "said"),
    [
        ((), "!ls", "run_command is off: no folder was named that programs may see (/root DIR)"),
        (ROOT, "!ls", "is not among the allowed tools (/allow run_command)"),
        (MAY_RUN, "!make", "run_command may not run make (/commands make adds it"),
        (MAY_RUN, "!ls", "nobody is asked here"),
        ((*MAY_RUN, "--approve", "always"), "!cat ../secret", "nothing ran: "),
        ((*MAY_RUN, "--approve", "always"), "!git push", "nothing ran: "),
    ],
)
def test_the_rules_of_run_command_hold(
    run: Any, options: tuple[str, ...], line: str, said: str
) -> None:
    result, server = talk(run, line, options=options)
    assert said in result.err and result.out == "" and server.bodies == []


@needs_sandbox
def test_an_output_goes_with_the_next_question_only(run: Any, home: Path) -> None:
    (home / "here" / "beds.txt").write_text("kale\nbeans\n")
    options = (*MAY_RUN, "--approve", "always")
    lines = ("!cat beds.txt", "!wc -l beds.txt", "What grows?", "/clear", "And else?")
    result, server = talk(run, *lines, options=options)
    assert "kale\nbeans\n" in result.out
    assert "characters of output go with the next question" in result.err
    assert "What grows?\n\n!cat beds.txt\n[exit code 0]\nkale\nbeans" in server.prompts[0]
    assert "!wc -l beds.txt\n[exit code 0]\n2 beds.txt" in server.prompts[0]
    assert "kale" not in server.prompts[1]
    result, server = talk(run, "!cat beds.txt", "/clear", "What grows?", options=options)
    assert "kale" not in server.prompts[0]


@needs_sandbox
def test_of_a_long_output_the_model_gets_head_and_tail(run: Any, home: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(10_000))
    (home / "here" / "long.txt").write_text(text)
    options = (*MAY_RUN, "--approve", "always")
    result, server = talk(run, "!cat long.txt", "What is it?", options=options)
    assert "line 5000\n" in result.out
    prompt = server.prompts[0]
    assert "line 0\n" in prompt and "characters left out]" in prompt and "line 9999" in prompt
    assert "line 5000\n" not in prompt


@needs_sandbox
def test_in_a_dry_run_nothing_runs(run: Any, home: Path) -> None:
    (home / "here" / "beds.txt").write_text("kale\n")
    result, _ = talk(run, "!cat beds.txt", options=(*MAY_RUN, "--dry-run"))
    assert result.out == "" and "cat -- beds.txt" in result.err and "nothing ran" in result.err


@needs_sandbox
def test_a_person_is_asked_and_ctrl_c_ends_the_program(terminal: Any, home: Path) -> None:
    (home / "here" / "beds.txt").write_text("kale\n")
    with ScriptedServer(answer("It is kale.")) as server:
        options = (*ROOT, "--commands", "sleep")
        screen: Terminal = terminal("chat", "--url", server.url, *options)
        screen.see("^>$")
        screen.type("!ca\t")
        screen.see("> !cat$")
        screen.type(" be\t")
        screen.see("> !cat beds.txt$")
        screen.press("enter")
        screen.until("p pause ")
        screen.type("n")
        screen.see("nothing ran: the user said no")
        screen.type("!cat beds.txt\r")
        screen.until("p pause ")
        screen.type("p")
        screen.see("p pause paused\nmlx-tools: note: nothing ran\n^>$")
        screen.type("!cat beds.txt\r")
        screen.until("p pause ")
        screen.type("y")
        screen.see("kale$")
        screen.see("go with the next question")
        screen.type("!sleep 1000\r")
        screen.until("p pause ")
        screen.type("y")
        screen.see("sleep runs")
        screen.press("ctrl-c")
        screen.see("stopped: by Ctrl-C ^>$")
        screen.type("What is it?\r")
        screen.see(r"It is kale\.")
        screen.press("ctrl-d")
        assert screen.end() == 0
    assert "!cat beds.txt\n[exit code 0]\nkale" in server.prompts[0]
