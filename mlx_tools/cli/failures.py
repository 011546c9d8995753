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

from mlx_tools.cli.output import complain
from mlx_tools.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_STOPPED, EXIT_USAGE, MlxToolsError


def guarded(command: Callable[[], Any], *, debug: bool = False) -> int:
    """Run ``command`` and return the exit code: what it returns, or what its failure means.

    A user's mistake is one line, without a traceback. An internal error's traceback goes to a file
    that only the user can read, or with ``debug`` to standard error.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_OK
    except MlxToolsError as error:
        for line in getattr(error, "problems", (str(error),)):
            complain(line)
        return error.exit_code
    except KeyboardInterrupt:
        complain("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_STOPPED
    except Exception as error:
        message = getattr(error, "format_message", None)
        if callable(message):  # the option parser's own: wrong usage
            complain(_usage(str(message()), error))
            return EXIT_USAGE
        if isinstance(error, OSError) and not debug:  # a full disk, say: no bug of ours
            where = f"{error.filename}: " if error.filename else ""
            complain(f"{where}{error.strerror or error}")
            _silence_stdout()
            return EXIT_STOPPED
        return _internal(error, debug)


def _usage(message: str, error: Exception) -> str:
    line = re.sub(r"\s+", " ", message).strip().rstrip(".")
    line = line[:1].lower() + line[1:]
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "mlx-tools")
    return f"{line} (see: {path} --help)"


def _internal(error: Exception, debug: bool) -> int:
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
