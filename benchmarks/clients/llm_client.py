"""``llm``: its program, as its users run it, set up by `mlx-tools connect`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import checks
from checks import HELLO, JOKE, SUM, SUMS, URL

CALCULATOR = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})

def calculator(expression: str) -> str:
    "Work out an arithmetic expression."
    import checks
    with open("called.txt", "a") as file:
        file.write(expression + "\\n")
    return checks.calculate(expression)
"""


def llm(*arguments: str) -> tuple[list[str], str]:
    """The calls, and the output."""
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"LLM_USER_PATH": folder}
        connect = [*shlex.split(os.environ["MLX_TOOLS"]), "connect", "llm"]
        subprocess.run(
            [*connect, "--url", URL, "--write"], env=environ, check=True, capture_output=True
        )
        (Path(folder) / "tools.py").write_text(CALCULATOR)
        called = Path(folder) / "called.txt"
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("llm")),
                "-m",
                "mlx-tools",
                *("-o", "max_tokens", str(checks.MOST)),
                *arguments,
            ],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr or done.stdout
        lines = called.read_text().splitlines() if called.exists() else []
    return lines, done.stdout.strip()


TOOLS = ("--functions", "tools.py")

if __name__ == "__main__":
    checks.run(
        "llm",
        {
            "answer": lambda: checks.check_answer(llm("--no-stream", HELLO)[1]),
            "call": lambda: checks.check_sum(*llm(*TOOLS, "--no-stream", SUM)),
            "two calls": lambda: checks.check_sums(*llm(*TOOLS, "--no-stream", SUMS)),
            "streamed answer": lambda: checks.check_answer(llm(HELLO)[1]),
            "streamed call": lambda: checks.check_sum(*llm(*TOOLS, SUM)),
            "schema": lambda: checks.check_joke(
                json.loads(llm("--schema", "setup, punchline", JOKE)[1])
            ),
        },
    )
