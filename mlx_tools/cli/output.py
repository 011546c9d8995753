"""What goes out: JSON to standard output, words for people with nothing a terminal would obey."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

from mlx_tools.app.own_output import ours
from mlx_tools.cli.columns import beside, columns_of, folded
from mlx_tools.cli.progress import bar_away

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}

LINES = "\n\t"
PROSE = "\n\t\u200c\u200d"
"""What may stay in a text that is read, not approved: the joiners of scripts and emoji too."""

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def shown(text: str, *, keep: str = "") -> str:
    """The text as a terminal may show it: what it would obey, or not show at all, is spelled.

    The characters of ``keep`` stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or _harmless(c) else _spelled(c) for c in text)


def _harmless(char: str) -> bool:
    return unicodedata.category(char) not in ("Cc", "Cs", "Cf", "Zl", "Zp") and char not in _BIDI


def _spelled(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


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


def to_json(value: Any) -> str:
    """One line of JSON. Half a surrogate pair, which is no text, stands as its escape."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text


def counted(number: int, thing: str) -> str:
    """So many of a thing, with the plural that most words have."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def amount(size: int) -> str:
    """A number of bytes as a person says it, in units of a thousand."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.{0 if size >= 100 * least else 1}f} {unit}"
    return counted(size, "byte")


def print_json(value: Any) -> None:
    """Print one line of JSON to standard output, as UTF-8 whatever the locale."""
    write_bytes(to_json(value).encode("utf-8") + b"\n")


def write_bytes(data: bytes) -> None:
    """Write to standard output and flush, past its text layer where there is one."""
    with bar_away():
        out = ours()
        out.flush()
        buffer = getattr(out, "buffer", None)
        if buffer is None:
            out.write(data.decode("utf-8"))
            out.flush()
            return
        buffer.write(data)
        buffer.flush()


def print_text(text: str, *, colour: str = "") -> None:
    """Print text to standard output: safe to look at in a terminal, untouched elsewhere."""
    text = painted(text, colour, ours()) if ours().isatty() else text
    write_bytes(text.encode("utf-8", "backslashreplace") + b"\n")


def print_prose(text: str, indent: str = "", *, colour: str = "") -> None:
    """Print text to standard output as `print_text` does; at a terminal each line is folded between
    words, and goes on behind ``indent``."""
    columns = columns_of(ours()) if ours().isatty() else None
    if columns is not None:
        lines = shown(text, keep=PROSE).split("\n")
        text = "\n".join(folded(line, columns, indent) for line in lines)
    print_text(text, colour=colour)


def print_row(head: str, text: str) -> None:
    """Print a row of a list: ``head``, which stands in columns, and a text beside it; one line,
    whatever is in them, where nobody folds it at a terminal."""
    if not ours().isatty():
        print_text(" ".join(f"{head} {text}".splitlines()))
    else:
        print_text(beside(shown(head), shown(text), columns_of(ours())))


def painted(text: str, colour: str, stream: Any) -> str:
    """The text as ``stream`` may show it, in one of `COLOURS` where it shows colours."""
    text = shown(text, keep=PROSE)
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colour and colourful(stream) else text


def steerable(stream: Any) -> bool:
    """Whether a stream is a terminal that obeys, and a line on it can be taken back."""
    return bool(stream.isatty() and os.environ.get("TERM") != "dumb")


def colourful(stream: Any) -> bool:
    """Whether a stream is a terminal that should get colours (https://no-color.org)."""
    return steerable(stream) and not os.environ.get("NO_COLOR")


def begin_line() -> None:
    """Have what is said next on standard error begin a line, after the ``^C`` that a terminal shows
    for Ctrl-C."""
    if steerable(sys.stderr):
        sys.stderr.write("\r\x1b[K")


def complain(message: str, *, kind: str = "error") -> None:
    """One line for a person on standard error, with nothing in it that a terminal would obey.

    A terminal gets it folded between words.
    """
    try:
        columns = columns_of(sys.stderr) if sys.stderr.isatty() else None
        line = folded(f"mlx-tools: {kind}: {shown(message)}", columns, "  ")
        print(line, file=sys.stderr, flush=True)
    except OSError:  # nobody is there to read it
        return


def note(message: str) -> None:
    """What a person should know, and that is no error."""
    complain(message, kind="note")


def warn_all(messages: Iterable[str]) -> None:
    """A line on standard error for each warning."""
    for message in messages:
        complain(message, kind="warning")
