"""Output.

JSON to standard output, text for people without anything that a terminal would obey.

Standard output is for a command's answer; all other output goes to standard error. Tools of
packages run in this process. Python's ``print`` finds standard error as ``sys.stdout``. If standard
output is no terminal, descriptor 1 leads to standard error too, for C code and for programs that a
tool starts and that inherit it.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TextIO

from mlx_tools.unseen import FOR_PEOPLE, escape_unseen

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
"""Names of colours, and the codes of a terminal."""

LINES = "\n\t"
PROSE = "\n\t\u200c\u200d"
"""Characters that stay in a text for reading, not for approval: also joiners of scripts and emoji.
"""

_MIN_TEXT_COLUMNS: Final = 30
"""Columns that a text in a list needs beside its head; with fewer it goes below."""

_INDENT_BELOW: Final = "    "


def escape_for_terminal(text: str, *, keep: str = "") -> str:
    """Return a text as a terminal may show it.

    Characters that it would obey, or not show at all, are escaped, except those in ``keep``.
    """
    return escape_unseen(text, FOR_PEOPLE, keep=keep)


def repair_streams() -> None:
    """Make the standard streams usable, whatever this process was given.

    A closed descriptor would be taken by the next file that is opened, and a started program would
    write into that file. Writing to a closed standard output still fails: else an answer would be
    lost without a word. A text that the locale cannot write must not end a run.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def count_noun(number: int, thing: str) -> str:
    """Return a number with its noun, in the plural that most words have."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def amount(size: int) -> str:
    """Return a number of bytes in units of a thousand."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.{0 if size >= 100 * least else 1}f} {unit}"
    return count_noun(size, "byte")


def cut(text: str, length: int) -> str:
    """Return a text, or its beginning with an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def print_json(value: Any) -> None:
    """Print one line of JSON to standard output, as UTF-8 in any locale."""
    from mlx_tools.messages import json_line

    write_bytes(json_line(value).encode() + b"\n")


def write_bytes(data: bytes) -> None:
    """Write to standard output and flush, past its text layer if there is one."""
    with _hide_bar():
        out = stdout()
        out.flush()
        buffer = getattr(out, "buffer", None)
        if buffer is None:
            out.write(data.decode("utf-8"))
            out.flush()
            return
        buffer.write(data)
        buffer.flush()


def first_sentence(text: str) -> str:
    """Return the first sentence of a description."""
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0]


def print_text(text: str, *, colour: str = "", exact: bool = False) -> None:
    """Print text to standard output, escaped: a pipe may end in a terminal, too.

    With ``exact`` the text is printed as it is, such as an answer, a tool's output or a path. It is
    then escaped only on a terminal.
    """
    if not exact or stdout().isatty():
        text = color_text(text, colour, stdout())
    write_bytes(text.encode("utf-8", "backslashreplace") + b"\n")


def print_prose(text: str, indent: str = "", *, colour: str = "") -> None:
    """Print text to standard output as `print_text` does.

    At a terminal each line is wrapped between words, and continues after ``indent``.
    """
    if stdout().isatty():
        lines = escape_for_terminal(text, keep=PROSE).split("\n")
        text = "\n".join(wrap_line(line, count_columns(stdout()), indent) for line in lines)
    print_text(text, colour=colour)


def print_row(head: str, text: str) -> None:
    """Print a row of a list: ``head`` in columns, and a text beside it.

    It is one line, whatever is in it, if standard output is no terminal.
    """
    if not stdout().isatty():
        print_text(" ".join(f"{head} {text}".splitlines()))
    else:
        print_text(
            join_columns(
                escape_for_terminal(head), escape_for_terminal(text), count_columns(stdout())
            )
        )


def print_padded_row(head: str, text: str, width: int = 0) -> None:
    """Print a row of a list; heads have ``width`` columns if there is room."""
    columns = count_columns(stdout())
    # two blanks follow the head
    narrow = columns is not None and columns < width + 2 + _MIN_TEXT_COLUMNS
    print_text(join_columns(f"{head if narrow else head.ljust(width)} ", text, columns))


def table(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> Iterator[str]:
    """Yield rows in columns, aligned to the left.

    ``numbers`` aligns all but the first to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *cells_of_row in rows:
        cells = [
            text.rjust(width) if numbers else text.ljust(width)
            for text, width in zip(cells_of_row, widths[1:], strict=True)
        ]
        yield "  ".join([first.ljust(widths[0]), *cells])


def count_columns(stream: Any) -> int | None:
    """Return the columns of a terminal; None for anything else, or if it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def cells(text: str) -> int:
    """Return the most columns that a text takes.

    Terminals disagree, and the larger number is safe.
    """
    return len(text) if text.isascii() else sum(map(cell, text))


def cell(char: str) -> int:
    """Return the most columns that a character takes."""
    if char.isascii():
        return 1
    wide = unicodedata.east_asian_width(char) in "WFA" or unicodedata.category(char) == "So"
    return 2 if wide else 1


def wrap_line(text: str, columns: int | None, indent: str = "") -> str:
    """Return one line as rows of ``columns``, wrapped between words.

    All rows but the first begin with ``indent``. A longer word stays whole: it may be a path to
    copy.
    """
    if columns is None or cells(text) <= columns:
        return text
    rows, row = [], ""
    for blank, word in re.findall(r"(\s*)(\S+)", text):
        if row.strip() and cells(row) + len(blank) + cells(word) > columns:
            rows.append(row)
            row = indent + word
        else:
            row += blank + word
    return "\n".join([*rows, row])


def join_columns(head: str, text: str, columns: int | None) -> str:
    """Return a row of a list: a head in columns, and a text wrapped beside it.

    The text goes below the head if there is too little room, for all of it or for a word.
    """
    used = cells(head) + 1
    word = max(map(cells, text.split()), default=0)
    if columns is None or columns - used >= max(_MIN_TEXT_COLUMNS, word):
        return wrap_line(f"{head} {text}", columns, " " * used)
    if used + cells(text) <= columns:
        return f"{head} {text}"
    below = wrap_line(_INDENT_BELOW + text, columns, _INDENT_BELOW)
    return f"{wrap_line(head.rstrip(), columns)}\n{below}"


def color_text(text: str, colour: str, stream: Any) -> str:
    """Return a text as ``stream`` may show it, coloured if it shows colours.

    ``colour`` is one of `COLOURS`, or empty.
    """
    text = escape_for_terminal(text, keep=PROSE)
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colour and colourful(stream) else text


def steerable(stream: Any) -> bool:
    """Return True if a stream is a terminal that obeys: a line on it can be erased."""
    return bool(stream.isatty() and os.environ.get("TERM") != "dumb")


def colourful(stream: Any) -> bool:
    """Return True if a stream is a terminal that should get colours.

    The variable NO_COLOR turns them off, as no-color.org says.
    """
    return steerable(stream) and not os.environ.get("NO_COLOR")


def begin_line() -> None:
    """Begin a new line on standard error, after the ``^C`` of a terminal."""
    if steerable(sys.stderr):
        sys.stderr.write("\r\x1b[K")


def complain(message: str, *, kind: str = "error") -> None:
    """Print one line for a person on standard error, safe for a terminal.

    A terminal gets it wrapped between words. An empty ``kind`` is left out.
    """
    try:
        head = f"mlx-tools: {kind}: " if kind else "mlx-tools: "
        line = wrap_line(f"{head}{escape_for_terminal(message)}", count_columns(sys.stderr), "  ")
        print(line, file=sys.stderr, flush=True)
    except OSError:  # standard error is closed
        return


def note(message: str) -> None:
    """Print a line that a person should know, and that is no error."""
    complain(message, kind="note")


_told_warnings: set[str] = set()
"""The warnings that this command has printed."""


def warn_all(messages: Iterable[str]) -> None:
    """Print a line on standard error for each warning, once in a command."""
    for message in messages:
        if message not in _told_warnings:
            _told_warnings.add(message)
            complain(message, kind="warning")


def forget_warnings() -> None:
    """Let each warning be printed again, as a new command begins."""
    _told_warnings.clear()


# --- standard output, for us only ---------------------------------------------------------------


class _SavedOutput(NamedTuple):
    """The standard output before `keep_output`."""

    stream: TextIO
    """The stream for a command's answer."""
    original: TextIO
    """The earlier ``sys.stdout``."""
    is_moved: bool
    """``stream`` has a descriptor of its own."""


_saved_output: _SavedOutput | None = None


def stdout() -> TextIO:
    """Return standard output for a command's answer."""
    return sys.stdout if _saved_output is None else _saved_output.stream


def keep_output() -> None:
    """Send all other output to standard error, until `restore_output`."""
    global _saved_output
    if _saved_output is not None:
        return
    original = sys.stdout
    original.flush()
    new_stream = None if original.isatty() else _move_stdout(original)
    _saved_output = _SavedOutput(new_stream or original, original, new_stream is not None)
    sys.stdout = sys.stderr


def restore_output() -> None:
    """Undo `keep_output`, for a program that runs a command within it."""
    global _saved_output
    saved, _saved_output = _saved_output, None
    if saved is None:
        return
    sys.stdout = saved.original
    if saved.is_moved:
        with suppress(OSError):  # the command has reported this error already
            saved.stream.flush()
        os.dup2(saved.stream.fileno(), 1)
        with suppress(OSError):
            saved.stream.close()


def _move_stdout(stream: TextIO) -> TextIO | None:
    """Return standard output under a number that no started program inherits.

    None if it is not the process's own, or there are no more descriptors.
    """
    try:
        if stream.fileno() != 1:
            return None
        number = os.dup(1)
        os.dup2(sys.stderr.fileno(), 1)
    except (OSError, ValueError, AttributeError):
        return None
    return open(number, "w", encoding=stream.encoding, errors=stream.errors)  # noqa: PTH123


# --- progress: a bar on standard error, only at a terminal --------------------------------------

_bars: list[Any] = []
"""The bar that is on the screen, if there is one."""


@contextmanager
def progress_bar(label: str, *, counts: bool = True) -> Iterator[Callable[..., None]]:
    """Show a bar; provide a function that takes ``done``, ``total`` and a text.

    ``counts``: the numbers are shown to the person.
    """
    if not sys.stderr.isatty():
        yield lambda done, total=None, text=label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("{task.description}"), BarColumn(), *(MofNCompleteColumn(),) * counts)
    with Progress(*columns, Left(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        _bars.append(bar)
        try:
            yield lambda done, total=None, text=label: bar.update(
                task, completed=done, total=total, description=text
            )
        finally:
            _bars.remove(bar)


@contextmanager
def progress_counter(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar; provide a function to call after each of ``total`` steps."""
    done = iter(range(1, total + 1))
    with progress_bar(label) as report:
        report(0, total)
        yield lambda: report(next(done, total), total)


@contextmanager
def _hide_bar() -> Iterator[None]:
    """Remove the bar for the block, so that output on standard output begins a line."""
    if not _bars or not stdout().isatty():
        yield
        return
    bar = _bars[-1]
    bar.stop()
    try:
        yield
    finally:
        bar.start()
