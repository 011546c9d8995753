"""Slows down the commands that tests start: tests that act too early or look too late fail then.

``make test-slowed`` runs the tests so. A pause stands before each command, before each prompt and
before typed input is discarded: where a busy machine may stop a program for as long.
"""

from __future__ import annotations

import importlib
import os
import time
from functools import wraps
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


def _paused(function: Any) -> Any:
    @wraps(function)
    def paused(*args: Any, **kwargs: Any) -> Any:
        time.sleep(PROMPT_PAUSE)
        return function(*args, **kwargs)

    return paused
