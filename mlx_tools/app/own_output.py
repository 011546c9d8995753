"""Standard output is for what a command answers: whatever else prints goes to standard error.

A package's tools run in this process. Python's ``print`` finds standard error in the place of
``sys.stdout``; and where standard output is no terminal, the descriptor 1 leads to standard error
too, for what C code prints and for programs that a tool starts, which inherit it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

_NUMBER = 1


@dataclass(frozen=True, slots=True)
class _KeptOutput:
    """``stream`` is where a command's answers go, ``before`` what ``sys.stdout`` was. ``moved``:
    ``stream`` has a descriptor of its own."""

    stream: TextIO
    before: TextIO
    moved: bool


_kept: _KeptOutput | None = None
_command = False


def ours() -> TextIO:
    """Standard output, as it is for what a command answers."""
    return sys.stdout if _kept is None else _kept.stream


def begin() -> None:
    """A command begins: from here to `give_back` it may `keep` standard output to itself."""
    global _command
    _command = True


def keep() -> None:
    """From now on what anybody else prints goes to standard error. Outside of a command nothing is
    done: the output is that of a program of somebody's own."""
    global _kept
    if _kept is not None or not _command:
        return
    before = sys.stdout
    before.flush()
    moved = None if before.isatty() or not _is_process_output(before) else _moved(before)
    _kept = _KeptOutput(moved or before, before, moved is not None)
    sys.stdout = sys.stderr


def give_back() -> None:
    """Takes `keep` back, for whoever runs a command within a program of their own."""
    global _kept, _command
    _command = False
    kept, _kept = _kept, None
    if kept is None:
        return
    sys.stdout = kept.before
    if kept.moved:
        with contextlib.suppress(OSError):  # the command has told of it
            kept.stream.flush()
        os.dup2(kept.stream.fileno(), _NUMBER)
        with contextlib.suppress(OSError):
            kept.stream.close()


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Inside, ``sys.stdout`` is what it was: a line is edited there alone."""
    now = sys.stdout
    sys.stdout = ours()
    try:
        yield
    finally:
        sys.stdout = now


def _is_process_output(stream: TextIO) -> bool:
    try:
        return stream.fileno() == _NUMBER
    except (OSError, ValueError, AttributeError):  # of a program that took its place
        return False


def _moved(stream: TextIO) -> TextIO | None:
    """The same standard output under another number, which no program that is started inherits."""
    try:
        number = os.dup(_NUMBER)
        os.dup2(sys.stderr.fileno(), _NUMBER)
    except (OSError, ValueError):  # there are no more descriptors
        return None
    return open(number, "w", encoding=stream.encoding, errors=stream.errors)  # noqa: PTH123
