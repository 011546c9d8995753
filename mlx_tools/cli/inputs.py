"""What comes in: files, standard input, and the JSON in them. Each fault is one clear line."""

from __future__ import annotations

import contextlib
import json
import os
import select
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

from mlx_tools.cli.columns import columns_of, folded
from mlx_tools.cli.escape import in_words
from mlx_tools.cli.keys import forget_typed, read_line
from mlx_tools.cli.output import note
from mlx_tools.errors import UsageError
from mlx_tools.protocol.strict import HOOKS, Unreadable

MAX_BYTES = 64 * 1024 * 1024
"""More than this is no question, completion or list of tools, but a mistake."""

_PATIENCE = 3.0
"""Seconds after which somebody who waits is told what for."""


def read_bytes(path: Path | None) -> bytes:
    """The bytes of a file, or of standard input where ``path`` is None or ``-``."""
    if path is None or str(path) == "-":
        return stdin_bytes()
    try:
        with path.open("rb") as file:
            return _bounded(file, str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def read_text(path: Path | None) -> str:
    """The text of a file, or of standard input. Raises `UsageError` where it is not UTF-8."""
    return decoded(read_bytes(path), "standard input" if path is None else str(path))


def decoded(data: bytes, name: str) -> str:
    """Bytes as text. Raises `UsageError` where they are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 at byte {error.start}") from None


def stdin_bytes() -> bytes:
    """All of standard input; after a while of silence, says that it is being read."""
    stream = sys.stdin.buffer if hasattr(sys.stdin, "buffer") else None
    if stream is None:
        return sys.stdin.read().encode("utf-8")
    with contextlib.suppress(OSError, ValueError):
        ready, _, _ = select.select([stream.fileno()], [], [], _PATIENCE)
        if not ready:
            note("reading standard input (end it, or redirect it from /dev/null)")
    return _bounded(stream, "standard input")


def stdin_is_piped() -> bool:
    """Whether somebody sends something: a pipe, a file or a socket, not a terminal or nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def parse_json(text: str, name: str) -> Any:
    """The JSON value in a text. Raises `UsageError` naming ``name``, line and column.

    As strict as with a model's text: a key that stands twice in one object, ``NaN`` and a number
    that overflows mean nothing for certain.
    """
    try:
        return json.loads(text, **HOOKS)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{name}: not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except Unreadable as error:
        raise UsageError(f"{name}: {error}") from None
    except RecursionError:
        raise UsageError(f"{name}: not JSON: nested too deep") from None


def read_json(path: Path) -> Any:
    """The JSON value in a file."""
    return parse_json(read_text(path), str(path))


def as_question(text: str) -> str:
    """A question as it was typed. Raises `UsageError` where it is no text, or empty."""
    return _spoken(text, "question", "give it as an argument or by a pipe")


def as_task(text: str) -> str:
    """What is to be done later, as it was typed. Raises `UsageError` as `as_question` does."""
    return _spoken(text, "task", "say what is to be done")


def _spoken(text: str, what: str, hint: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"the {what} is not UTF-8") from None
    if not text.strip():
        raise UsageError(f"the {what} is empty", hint=hint)
    return text


def _bounded(stream: BinaryIO, name: str) -> bytes:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name}: larger than {MAX_BYTES >> 20} MB")
    return data


# --- yes or no ----------------------------------------------------------------------------------


def said_yes(question: str) -> bool:
    """Whether the user at the terminal says yes. Nothing, and the end of the input, is no.

    What was typed before the question is shown answers nothing. Raises KeyboardInterrupt for
    Ctrl-C.
    """
    forget_typed(sys.stdin)
    columns = columns_of(sys.stderr) if sys.stderr.isatty() else None
    asked = folded(f"{in_words(question)} [y/N]", columns, "  ")
    print(asked, end=" ", file=sys.stderr, flush=True)
    line = read_line(sys.stdin)
    if line is None:
        print(file=sys.stderr)  # behind the question
    return (line or "").strip().casefold() in ("y", "yes")
