"""The command line: one file for each group of commands.

This file and tables of the commands' options are all that `--help`, `--version` and a Tab load, so
it imports nothing slow. Each command's own file is imported when that command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from mlx_tools.cli.command_table import COMPLETION_VARIABLE, list_commands
from mlx_tools.lazy import UNSUPPORTED, VERSION

_OPTIONS: Mapping[str, str] = {
    "--version": "Print the version.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Print the completion script of the current shell.",
    "--help": "Print this, or with a command before it that command's options.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code of the process."""
    if sys.platform == "win32":  # the rest would fail at its imports
        print(f"mlx-tools: error: {UNSUPPORTED}", file=sys.stderr)
        return 2
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if shell := os.environ.get(COMPLETION_VARIABLE):
        from mlx_tools.cli.completion import SHELLS, complete

        if shell in SHELLS:
            text, code = complete(shell, os.environ)
            return _print(text and f"{text}\n") or code
    else:
        if not arguments or arguments[0] in ("--help", "-h"):
            from mlx_tools.cli.output import count_columns

            stream = sys.stdout if arguments else sys.stderr
            return _print(help_text(count_columns(stream)), code=0 if arguments else 2)
        if arguments[0] == "--version":
            return _print(f"mlx-tools {version()}\n")
        if arguments[-1] in ("--help", "-h", "--help-all"):
            from mlx_tools.cli.help_screen import find_page, render_help
            from mlx_tools.cli.output import count_columns

            if (page := find_page(arguments[:-1])) is not None:
                show_all = arguments[-1] == "--help-all"
                return _print(
                    render_help(page, count_columns(sys.stdout), show_all=show_all) + "\n"
                )
    from mlx_tools.cli.root import run

    return run(arguments, is_nested=argv is not None)


def help_text(columns: int | None = None) -> str:
    """Return the text of `mlx-tools --help`, wrapped at ``columns`` if given."""
    from mlx_tools.cli.output import join_columns, wrap_line

    def rows(texts: Mapping[str, str]) -> list[str]:
        return [join_columns(f"  {name:<21}", line, columns) for name, line in texts.items()]

    begins = "Usage: mlx-tools COMMAND [OPTIONS] [ARGUMENTS]"
    about = "Reliable tool use for local models that only complete text."
    ends = (
        "Exit codes: 0 done, 1 stopped without an answer, 2 wrong usage or configuration,",
        "3 backend unreachable or failed, 4 paused for an approval, 130 interrupted.",
    )
    parts = [
        [wrap_line(begins, columns)],
        [wrap_line(about, columns)],
        ["Commands:", *rows(list_commands())],
        ["Options:", *rows(_OPTIONS)],
        [wrap_line(line, columns) for line in ends],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def version() -> str:
    """Return the version that runs."""
    return VERSION


def _print(text: str, code: int = 0) -> int:
    if None in (sys.stdout, sys.stderr):  # one was closed before the program began
        from mlx_tools.cli.output import repair_streams

        repair_streams()
    stream = sys.stderr if code else sys.stdout
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:  # a full disk, or a closed pipe
        from mlx_tools.cli.root import handle_os_error

        return handle_os_error(error)
    return code
