"""The command line. Wiring only: one file a command group.

This file is all that `mlx-tools --help` and `--version` load, so it imports nothing that takes
time; each command's own file is imported when that command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

COMMANDS: Mapping[str, str] = {
    "ask": "Ask one question; the model may call tools.",
    "chat": "Talk with the model, with tools, line by line.",
    "parse": "Show how one completion's text is read; runs nothing.",
    "propose": "Show what the model would write in one turn; runs nothing.",
    "tools": "List, show, search, call and export tools.",
    "sessions": "List, show and remove the sessions that are kept.",
    "golden": "Record runs, replay them, and check them on real models.",
    "models": "List, fetch and find models.",
    "doctor": "Check the server, the model and what both can do.",
    "eval": "Measure how well a model calls tools.",
    "config": "Show and check the settings.",
}

_OPTIONS: Mapping[str, str] = {
    "--version": "Print the version.",
    "--debug": "Show the traceback of an internal error.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Print the completion script of the current shell.",
    "--help": "Print this, or with a command before it that command's options.",
}

COMPLETION_VARIABLE = "_MLX_TOOLS_COMPLETE"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what is returned is the process's exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if COMPLETION_VARIABLE not in os.environ:
        if not arguments or arguments[0] in ("--help", "-h"):
            return _print(help_text(), code=0 if arguments else 2)
        if arguments[0] == "--version":
            return _print(f"mlx-tools {version()}\n")
    from mlx_tools.cli.root import run

    return run(arguments)


def help_text() -> str:
    """What `mlx-tools --help` prints."""
    lines = [
        "Usage: mlx-tools COMMAND [OPTIONS] [ARGUMENTS]",
        "",
        "Reliable tool use for local models that only complete text.",
        "",
        "Commands:",
        *(f"  {name:<21} {line}" for name, line in COMMANDS.items()),
        "",
        "Options:",
        *(f"  {name:<21} {line}" for name, line in _OPTIONS.items()),
        "",
        "Exit codes: 0 done, 1 stopped without an answer, 2 wrong usage or configuration,",
        "3 backend unreachable or failed, 4 paused for an approval, 130 interrupted.",
    ]
    return "\n".join(lines) + "\n"


def version() -> str:
    """The installed version."""
    from importlib.metadata import version as installed

    return installed("mlx-tools")


def _print(text: str, code: int = 0) -> int:
    try:
        (sys.stderr if code else sys.stdout).write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
