"""Slows down the commands that tests start: tests that act too early or look too late fail then.

``make test-slowed`` runs the tests so. A pause stands before each command, before each prompt and
before typed input is discarded: where a busy machine may stop a program for as long. On Linux with
a C compiler each wait of the main thread has a pause before it, too, in which no signal is noticed.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
import time
from functools import wraps
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "TESTS_OF_MLX_TOOLS_SLOWED"

COMMAND_PAUSE: Final = 0.5
PROMPT_PAUSE: Final = 0.4
"""Seconds: longer than a test takes to type, short enough for a run of all tests."""

PROMPTS: Final = (
    ("termios", "tcflush"),
    ("prompt_toolkit", "PromptSession.prompt"),
    ("mlx_tools.cli.line_editor", "read_line"),
    ("mlx_tools.cli.approve", "Questions._prompt"),
)
"""The functions that show a prompt, wait at one or discard what was typed before it."""


def is_slowed() -> bool:
    """Return whether the run of the tests asked for it."""
    return VARIABLE in os.environ


def slow_down() -> None:
    """Pause, and have this process pause before each prompt. It is a test's, and is not reused."""
    for module, name in PROMPTS:
        owner: Any = importlib.import_module(module)
        *parents, last = name.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, last, _paused(getattr(owner, last)))
    time.sleep(COMMAND_PAUSE)
    if hasattr(program := ctypes.CDLL(None), "slow_waits"):
        program.slow_waits()


def preload(folder: str) -> dict[str, str]:
    """Return the variables of a program whose waits can be slowed; none if they cannot be.

    ``folder`` gets what is compiled for that.
    """
    compiler = shutil.which("cc")
    if not is_slowed() or sys.platform != "linux" or compiler is None:
        return {}
    source, library = Path(__file__).with_name("late_waits.c"), Path(folder, "late_waits.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


def _paused(function: Any) -> Any:
    @wraps(function)
    def paused(*args: Any, **kwargs: Any) -> Any:
        time.sleep(PROMPT_PAUSE)
        return function(*args, **kwargs)

    return paused
