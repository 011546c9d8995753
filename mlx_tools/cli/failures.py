"""What fails becomes one line on standard error and an exit code."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_tools.app.own_output import ours
from mlx_tools.cli.output import complain
from mlx_tools.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_STOPPED, EXIT_USAGE, MlxToolsError


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after the command itself has said what became of it."""


def interrupted(error: KeyboardInterrupt) -> int:
    """Say that Ctrl-C ended the command, where it was not said yet; its exit code."""
    if not isinstance(error, Interrupted):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # behind ^C, or a question
        complain("by Ctrl-C", kind="interrupted")
    # Where it came within an exec, as there are many in what is imported, `python -m` ends by the
    # signal itself, whatever is returned here. The next exec takes that back.
    exec("")  # noqa: S102
    return EXIT_INTERRUPTED


def guarded(command: Callable[[], Any], *, debug: bool = False) -> int:
    """Run ``command`` and return the exit code: what it returns, or what its failure means.

    A user's mistake is one line, without a traceback. An internal error's traceback goes to a file
    that only the user can read, or with ``debug`` to standard error.
    """
    try:
        code = command()
        ours().flush()
        return code if isinstance(code, int) else EXIT_OK
    except MlxToolsError as error:
        for line in getattr(error, "problems", (str(error),)):
            complain(line)
        return error.exit_code
    except KeyboardInterrupt as error:
        return interrupted(error)
    except BrokenPipeError as error:
        return refused(error)
    except Exception as error:
        message = getattr(error, "format_message", None)
        if callable(message):  # the option parser's own: wrong usage
            complain(_usage(str(message()), error))
            return EXIT_USAGE
        if isinstance(error, OSError) and not debug:  # a full disk, say: no bug of ours
            return refused(error)
        return internal_error(error, debug=debug)


def refused(error: OSError) -> int:
    """Say what the system refused, such as room on a disk that is full; the exit code, which is
    that of every file that cannot be written.

    Whoever has read enough of standard output is told nothing.
    """
    _silence_stdout()
    if isinstance(error, BrokenPipeError):
        return EXIT_STOPPED
    where = f"{error.filename}: " if error.filename else ""
    complain(f"{where}{error.strerror or error}")
    return EXIT_USAGE


def _usage(message: str, error: Exception) -> str:
    line = re.sub(r"\s+", " ", message).strip().rstrip(".")
    line = line[:1].lower() + line[1:]
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "mlx-tools")
    wanted = _wanted(error, context) if line.startswith("missing ") else ""
    return f"{line}{wanted} (see: {path} --help)"


def _wanted(error: Exception, context: Any) -> str:
    """What could stand where something is missing: the commands of a group, or an option's
    values."""
    command: Any = getattr(context, "command", None)
    parameter = getattr(error, "param", None)
    if parameter is None and hasattr(command, "list_commands"):
        return f": one of {', '.join(command.list_commands(context))}"
    values = getattr(parameter, "metavar", None) or ""
    return f": one of {values.replace('|', ', ')}" if "|" in values else ""


def internal_error(error: Exception, *, debug: bool = False) -> int:
    """Tell of a fault of this program and keep its traceback; returns the exit code."""
    text = "".join(traceback.format_exception(error))
    if debug:
        print(text, file=sys.stderr, end="")
    summary = f"internal error: {type(error).__name__}: {error}"
    try:
        path = _keep(text)
    except Exception:  # no place to write must not hide the error itself
        path = None
    if debug:
        complain(summary)
    elif path:
        complain(f"{summary} (this is a bug; its traceback is in {path})")
    else:
        complain(f"{summary} (this is a bug; mlx-tools --debug … shows its traceback)")
    return EXIT_STOPPED


def _keep(text: str) -> Path:
    from mlx_tools.paths import state_dir
    from mlx_tools.policy.redact import Redactor

    folder = state_dir() / "crashes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(Redactor().text(text).text)
    return path


def _silence_stdout() -> None:
    """Give the interpreter a standard output that it can flush when it ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), ours().fileno())
    except (OSError, ValueError):
        return
