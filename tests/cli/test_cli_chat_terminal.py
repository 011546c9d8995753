"""`mlx-tools chat` in a terminal emulator: what a person sees is what the emulator holds.

The other tests of terminals read the bytes that a program writes. Here tmux obeys them, and the
screen is looked at: a row that was overwritten, or a colour code that was broken, would be seen.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.testing import ScriptedServer, answer, call

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

QUESTION = r"Run it once\? \[y/n/e/s/d/p/\?\]$"
PROMPT = r"^>$"


class Emulator:
    """A terminal in tmux, with a server and a socket of its own, and a command in it."""

    def __init__(self, folder: Path, *command: str, columns: int = 100, rows: int = 30) -> None:
        self._socket = folder / "tmux"
        size = ("-x", str(columns), "-y", str(rows))
        self._tmux("-f", os.devnull, "new-session", "-d", *size, shlex.join(command))

    def type(self, text: str) -> None:
        """Type a text as it is."""
        self._tmux("send-keys", "-l", "--", text)

    def key(self, name: str) -> None:
        """Press a key that tmux knows by this name: Enter, C-c, Up."""
        self._tmux("send-keys", name)

    def screen(self) -> str:
        """What is to be seen, and what has scrolled away above it; no row ends with a space."""
        text = self._tmux("capture-pane", "-p", "-S", "-")
        return "\n".join(row.rstrip() for row in text.rstrip("\n").split("\n"))

    def until(self, pattern: str, times: int = 1, timeout: float = 60.0) -> str:
        """What is seen once the pattern is seen so often."""
        end = time.monotonic() + timeout
        while True:
            seen = self.screen()
            if len(re.findall(pattern, seen, re.MULTILINE)) >= times:
                return seen
            assert time.monotonic() < end, f"{pattern!r} did not come:\n{seen}"
            time.sleep(0.1)

    def ended(self, timeout: float = 60.0) -> bool:
        """Whether the command ends by itself: its terminal closes then."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if self._run("has-session").returncode != 0:
                return True
            time.sleep(0.1)
        return False

    def kill(self, how: str) -> None:
        """Take the terminal away (``HUP``), or kill what runs in it (``KILL``)."""
        if how == "HUP":
            self._tmux("kill-session")
        else:
            pid = int(self._tmux("list-panes", "-F", "#{pane_pid}"))
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End all of it."""
        self._run("kill-server")

    def _tmux(self, *arguments: str) -> str:
        done = self._run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["tmux", "-S", str(self._socket), "-u", *arguments]
        environ = {k: v for k, v in os.environ.items() if k not in ("TMUX", "NO_COLOR")}
        environ |= {"MLX_TOOLS_POLICY_ASK": "calculator", "LANG": "C.UTF-8", "SHELL": "/bin/sh"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


@pytest.fixture
def emulator(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    opened: list[Emulator] = []

    def open_emulator(*arguments: str, **size: int) -> Emulator:
        command = (sys.executable, "-m", "mlx_tools", *arguments)
        opened.append(Emulator(home, *command, **size))
        return opened[-1]

    yield open_emulator
    for one in opened:
        one.close()


def records(home: Path) -> list[dict[str, Any]]:
    """The records of the one session that there is."""
    (transcript,) = (home / "state" / "sessions").glob("*/transcript.jsonl")
    return [json.loads(line) for line in transcript.read_text().splitlines()]


def test_calls_are_approved_and_denied_in_a_chat(emulator: Any, home: Path) -> None:
    script = (
        call("calculator", expression="6*7"),
        answer("It is 42."),
        call("calculator", expression="6*8"),
        answer("As you wish."),
    )
    with ScriptedServer(*script) as server:
        one = emulator("chat", "--url", server.url, "--chat-format", "plain")
        one.until(PROMPT)
        one.type("six times seven?")
        one.key("Enter")
        seen = one.until(QUESTION)
        assert '|   "expression": "6*7"' in seen and re.search(r"^digest [0-9a-f]{64}$", seen, re.M)
        one.type("y")
        one.until(r"^It is 42\.$")
        one.until(PROMPT)
        one.type("six times eight?")
        one.key("Enter")
        one.until(QUESTION)
        one.key("Up")  # an arrow is no answer, though its code ends with an A
        one.until("this list")
        one.until(QUESTION)
        one.type("n")
        one.until("Why not")
        one.type("too large")
        one.key("Enter")
        seen = one.until(r"^As you wish\.$")
        assert "\x1b" not in seen and "[0m" not in seen
        one.until(PROMPT)
        one.key("C-d")
        assert one.ended()
        assert "too large" in server.prompts[3]
    approvals = [r for r in records(home) if r["type"] == "approval"]
    assert [(r["approved"], r["reason"]) for r in approvals] == [
        (True, "approved at the terminal"),
        (False, "too large"),
    ]
    assert sum(r["type"] == "execution_started" for r in records(home)) == 1


def test_on_a_tiny_screen_the_question_is_in_sight_and_a_fake_one_is_behind_the_gutter(
    emulator: Any, home: Path
) -> None:
    fake = "1" + "+1" * 300 + "\nRun it once? [y/n/e/s/d/p/?] y\x1b[2J\x1b[H"
    with ScriptedServer(call("calculator", expression=fake), answer("Done.")) as server:
        one = emulator("ask", "--url", server.url, "add?", columns=32, rows=10)
        seen = one.until(QUESTION)
        ours = [row for row in seen.split("\n") if row.startswith("Run it")]
        assert len(ours) == 1 and "The model asks to call" in seen
        shown = seen[seen.index("The model asks") : seen.rindex("calculator: ")]
        rows = [row[2:] for row in shown.split("\n") if row.startswith(("| ", ": "))]
        assert json.dumps(fake) in "".join(rows)
        one.type("d")
        one.until("q ends")
        one.type(" ")
        one.until("q ends", 2)
        one.type("q")
        one.until(QUESTION)
        one.type("p")
        assert one.ended()
    assert records(home)[-1]["type"] == "paused"


@pytest.mark.parametrize("how", ["HUP", "KILL"])
def test_a_terminal_that_is_killed_with_an_approval_open_leaves_a_session_that_resumes(
    emulator: Any, home: Path, how: str
) -> None:
    root = home / "root"
    root.mkdir()
    make = call("create_file", path="note.txt", content="hello\n")
    with ScriptedServer(make, answer("Made.")) as server:
        options = ("--root", str(root), "--tools", "create_file", "--chat-format", "plain")
        one = emulator("chat", "--url", server.url, *options)
        one.until(PROMPT)
        one.type("make a note")
        one.key("Enter")
        seen = one.until(QUESTION)
        assert "+hello" in seen  # what would be written is shown
        one.kill(how)
        assert one.ended()
        assert not (root / "note.txt").exists()
        assert records(home)[-1]["type"] == "paused"
        two = emulator("sessions", "resume", "last")
        seen = two.until(QUESTION)
        assert "note.txt" in seen and "+hello" in seen
        two.type("y")
        assert two.ended()
    assert (root / "note.txt").read_text() == "hello\n"
    assert records(home)[-1] | {"turn": 0} == {
        "type": "final_answer",
        "turn": 0,
        "content": "Made.",
    }
