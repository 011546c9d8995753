"""Output: JSON to standard output, words for people with nothing a terminal would obey.

Standard output is for what a command answers: whatever else prints goes to standard error. A
package's tools run in this process. Python's ``print`` finds standard error in the place of
``sys.stdout``; and where standard output is no terminal, the descriptor 1 leads to standard error
too, for what C code prints and for programs that a tool starts, which inherit it.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TextIO

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}

LINES = "\n\t"
PROSE = "\n\t\u200c\u200d"
"""Characters that stay in a text that is read, not approved: joiners of scripts and emoji too."""

_ROOM: Final = 30
"""Columns that a text of a list needs beside what stands before it; else it goes below that."""

_BELOW: Final = "    "


def for_terminal(text: str, *, keep: str = "") -> str:
    """The text as a terminal may show it: what it would obey, or not show at all, is spelled.

    The characters of ``keep`` stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    obeyed = ("Cc", "Cs", "Cf", "Zl", "Zp")
    return "".join(
        c if c in keep or unicodedata.category(c) not in obeyed else _escape_char(c) for c in text
    )


def _escape_char(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else ascii(char)[1:-1]


def make_sound() -> None:
    """Have standard streams that can be used, whatever this process was given.

    A descriptor that is closed would be taken by the next file that is opened, and a program that
    is started would write into it; and a text that the locale cannot write must end no run.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def count_noun(number: int, thing: str) -> str:
    """So many of a thing, with the plural that most words have."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def amount(size: int) -> str:
    """A number of bytes as a person says it, in units of a thousand."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.{0 if size >= 100 * least else 1}f} {unit}"
    return count_noun(size, "byte")


def cut(text: str, length: int) -> str:
    """The text, or its beginning and a mark that it goes on."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def print_json(value: Any) -> None:
    """Print one line of JSON to standard output, as UTF-8 whatever the locale."""
    from mlx_tools.messages import json_line

    write_bytes(json_line(value).encode() + b"\n")


def write_bytes(data: bytes) -> None:
    """Write to standard output and flush, past its text layer where there is one."""
    with _bar_away():
        out = stdout()
        out.flush()
        buffer = getattr(out, "buffer", None)
        if buffer is None:
            out.write(data.decode("utf-8"))
            out.flush()
            return
        buffer.write(data)
        buffer.flush()


def print_text(text: str, *, colour: str = "", exact: bool = False) -> None:
    """Print text to standard output, escaped: a pipe may end in a terminal, too.

    With ``exact`` it is what somebody asked for as it is, an answer, a tool's output or a path: it
    is escaped in a terminal alone.
    """
    if not exact or stdout().isatty():
        text = color_text(text, colour, stdout())
    write_bytes(text.encode("utf-8", "backslashreplace") + b"\n")


def print_prose(text: str, indent: str = "", *, colour: str = "") -> None:
    """Print text to standard output as `print_text` does; at a terminal each line is folded between
    words, and goes on behind ``indent``."""
    if stdout().isatty():
        lines = for_terminal(text, keep=PROSE).split("\n")
        text = "\n".join(wrap_line(line, columns_of(stdout()), indent) for line in lines)
    print_text(text, colour=colour)


def print_row(head: str, text: str) -> None:
    """Print a row of a list: ``head``, which stands in columns, and a text beside it; one line,
    whatever is in them, where nobody folds it at a terminal."""
    if not stdout().isatty():
        print_text(" ".join(f"{head} {text}".splitlines()))
    else:
        print_text(join_columns(for_terminal(head), for_terminal(text), columns_of(stdout())))


def table(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> Iterator[str]:
    """Rows in columns, to the left; ``numbers``: all but the first to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [
            text.rjust(width) if numbers else text.ljust(width)
            for text, width in zip(others, widths[1:], strict=True)
        ]
        yield "  ".join([first.ljust(widths[0]), *cells])


def columns_of(stream: Any) -> int | None:
    """The columns of a terminal; None for anything else, and for one that does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def cells(text: str) -> int:
    """The columns that a text takes at most: terminals disagree, and the larger number is safe."""
    return len(text) if text.isascii() else sum(map(cell, text))


def cell(char: str) -> int:
    """Return how many columns a character takes at most."""
    if char.isascii():
        return 1
    wide = unicodedata.east_asian_width(char) in "WFA" or unicodedata.category(char) == "So"
    return 2 if wide else 1


def wrap_line(text: str, columns: int | None, indent: str = "") -> str:
    """One line as rows of ``columns``, parted between words; all but the first begin with
    ``indent``. A word that is longer stays whole: it may be a path that is copied."""
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
    """A row of a list: what stands in columns of its own, then a text that is folded beside them,
    or below them where there is too little room."""
    used = cells(head) + 1
    if columns is None or columns - used >= _ROOM:
        return wrap_line(f"{head} {text}", columns, " " * used)
    if used + cells(text) <= columns:
        return f"{head} {text}"
    return f"{wrap_line(head.rstrip(), columns)}\n{wrap_line(_BELOW + text, columns, _BELOW)}"


def color_text(text: str, colour: str, stream: Any) -> str:
    """The text as ``stream`` may show it, in one of `COLOURS` where it shows colours."""
    text = for_terminal(text, keep=PROSE)
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colour and colourful(stream) else text


def steerable(stream: Any) -> bool:
    """Return whether a stream is a terminal that obeys, and a line on it can be taken back."""
    return bool(stream.isatty() and os.environ.get("TERM") != "dumb")


def colourful(stream: Any) -> bool:
    """Return whether a stream is a terminal that should get colours (https://no-color.org)."""
    return steerable(stream) and not os.environ.get("NO_COLOR")


def begin_line() -> None:
    """Have what is said next on standard error begin a line, after the ``^C`` that a terminal shows
    for Ctrl-C."""
    if steerable(sys.stderr):
        sys.stderr.write("\r\x1b[K")


def complain(message: str, *, kind: str = "error") -> None:
    """One line for a person on standard error, with nothing in it that a terminal would obey.

    A terminal gets it folded between words. An empty ``kind`` is left out.
    """
    try:
        head = f"mlx-tools: {kind}: " if kind else "mlx-tools: "
        line = wrap_line(f"{head}{for_terminal(message)}", columns_of(sys.stderr), "  ")
        print(line, file=sys.stderr, flush=True)
    except OSError:  # nobody is there to read it
        return


def note(message: str) -> None:
    """Return what a person should know, and that is no error."""
    complain(message, kind="note")


def warn_all(messages: Iterable[str]) -> None:
    """A line on standard error for each warning."""
    for message in messages:
        complain(message, kind="warning")


# --- standard output, kept to ourselves ---------------------------------------------------------


class _SavedOutput(NamedTuple):
    """``stream`` is where a command's answers go, ``original`` what ``sys.stdout`` was.
    ``is_moved``: ``stream`` has a descriptor of its own."""

    stream: TextIO
    original: TextIO
    is_moved: bool


_saved_output: _SavedOutput | None = None


def stdout() -> TextIO:
    """Standard output, as it is for what a command answers."""
    return sys.stdout if _saved_output is None else _saved_output.stream


def keep_output() -> None:
    """From now on what anybody else prints goes to standard error, until `give_output_back`."""
    global _saved_output
    if _saved_output is not None:
        return
    before = sys.stdout
    before.flush()
    moved = None if before.isatty() else _move_stdout(before)
    _saved_output = _SavedOutput(moved or before, before, moved is not None)
    sys.stdout = sys.stderr


def give_output_back() -> None:
    """Takes `keep_output` back, for whoever runs a command within a program of their own."""
    global _saved_output
    kept, _saved_output = _saved_output, None
    if kept is None:
        return
    sys.stdout = kept.original
    if kept.is_moved:
        with suppress(OSError):  # the command has told of it
            kept.stream.flush()
        os.dup2(kept.stream.fileno(), 1)
        with suppress(OSError):
            kept.stream.close()


def _move_stdout(stream: TextIO) -> TextIO | None:
    """The same standard output under another number, which no program that is started inherits;
    None where it is not the process's own, or there are no more descriptors."""
    try:
        if stream.fileno() != 1:
            return None
        number = os.dup(1)
        os.dup2(sys.stderr.fileno(), 1)
    except (OSError, ValueError, AttributeError):
        return None
    return open(number, "w", encoding=stream.encoding, errors=stream.errors)  # noqa: PTH123


# --- progress: a bar on standard error, at a terminal alone -------------------------------------

_stream_proxies: list[Any] = []
"""The bar that is on the screen, where one is."""


@contextmanager
def progress_bar(label: str, *, counts: bool = True) -> Iterator[Callable[..., None]]:
    """Gives what takes how much is ``done``, of what ``total``, and a text for what goes on;
    ``counts``: these are numbers that a person is shown."""
    if not sys.stderr.isatty():
        yield lambda done, total=None, text=label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("{task.description}"), BarColumn(), *(MofNCompleteColumn(),) * counts)
    with Progress(*columns, Left(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        _stream_proxies.append(bar)
        try:
            yield lambda done, total=None, text=label: bar.update(
                task, completed=done, total=total, description=text
            )
        finally:
            _stream_proxies.remove(bar)


@contextmanager
def progress_counter(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Gives what is to be called after each of ``total`` steps."""
    done = iter(range(1, total + 1))
    with progress_bar(label) as report:
        report(0, total)
        yield lambda: report(next(done, total), total)


@contextmanager
def _bar_away() -> Iterator[None]:
    """Inside, no bar is on the screen: what is written to standard output begins a line."""
    if not _stream_proxies or not stdout().isatty():
        yield
        return
    bar = _stream_proxies[-1]
    bar.stop()
    try:
        yield
    finally:
        bar.start()
