"""aider: its program, set up by `mlx-tools connect`. It has no tools: the model writes edits."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import checks
from checks import HELLO, URL

EDIT = "Write b.txt: EDIT b.txt"


def aider(question: str, *options: str) -> tuple[str, str]:
    """The output, and the content of b.txt then."""
    with tempfile.TemporaryDirectory() as folder:
        home, repository = Path(folder) / "home", Path(folder) / "repository"
        home.mkdir()
        repository.mkdir()
        environ = os.environ | {"HOME": str(home), "AIDER_ANALYTICS": "false"}
        connect = [*shlex.split(os.environ["MLX_TOOLS"]), "connect", "aider"]
        subprocess.run(
            [*connect, "--url", URL, "--write"], env=environ, check=True, capture_output=True
        )
        program = str(Path(sys.executable).with_name("aider"))
        usual = ["--yes-always", "--no-git", "--no-check-update", "--no-show-release-notes"]
        done = subprocess.run(
            [program, *usual, "--no-show-model-warnings", *options, "--message", question],
            env=environ,
            cwd=repository,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr or done.stdout
        made = repository / "b.txt"
        return done.stdout, made.read_text() if made.exists() else ""


def answer() -> None:
    said, _ = aider(HELLO)
    assert checks.SAID in said, said[-300:]


def edit(form: str, streamed: str) -> None:
    said, text = aider(EDIT, "--edit-format", form, streamed)
    assert text == "two\n", said[-300:]


if __name__ == "__main__":
    checks.run(
        "aider",
        {
            "answer": answer,
            "a whole file": lambda: edit("whole", "--stream"),
            "a diff": lambda: edit("diff", "--no-stream"),
        },
    )
