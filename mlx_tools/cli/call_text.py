r"""The text that a person decides about: exact, complete, and impossible to forge.

A character that a terminal would obey, or that is invisible, is written as JSON writes it:
``\u202e``. Sixteen or more of one escape or of spaces are written once, with their number:
``\u0020{10000}``. So invisible characters cannot push anything out of sight. The text still has one
meaning only: a brace that follows an escape is itself written ``\u007b``.

Every row that the model or a file wrote begins with ``| ``, or ``: `` if a line continues. So no
such text can look like a line of mlx-tools, whatever it holds and however wide the screen is.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from msgspec import Struct

from mlx_tools.cli.output import cell, cells, color_text, count_columns, cut, wrap_line
from mlx_tools.paths import expand_user
from mlx_tools.unseen import FOR_DECISIONS, as_json_escape, escape_unseen

if TYPE_CHECKING:
    from mlx_tools.controller import ApprovalRequest
    from mlx_tools.tools import BoundSource, BoundTool

MAX_INDENT: Final = 6
"""Levels that are indented. Deeper values are on one line, so that depth is no padding."""

_RUNS: Final = re.compile(r"(\\(?:u[0-9a-f]{4}|.)| )\1*(\{?)", re.DOTALL)
_SPACES: Final = re.compile(r" {40,}")
_CONTROL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\[ubf]")
"""JSON's escape of a character that a terminal would obey."""
_USUAL: Final = dict.fromkeys(map(ord, "\n\r\t"), " ")
_RUN: Final = 16
"""Repetitions from which on a run is written with its number. A choice: short runs are easy to
read."""
_SPACE: Final = "\\u0020"


def exact(value: Any, *, fold: bool = True) -> str:
    """Return a JSON value over several lines, for a person who decides about it.

    With ``fold`` long runs are written as the module says. Without it the text is JSON.
    """
    return _format_value(value, 0, fold)


def format_value(value: Any) -> str:
    """Return a JSON value on one line, as `exact` writes it."""
    return _scalar(value, True)


def escape_line(text: str) -> str:
    """Return a text on one line.

    Control characters, invisible ones and long runs of spaces are escaped.
    """
    return _SPACES.sub(lambda run: f"{_SPACE}{{{len(run[0])}}}", escape_invisible(text))


def home_path(path: str) -> str:
    """Return a path from the home folder, so that it is valid from anywhere."""
    full, home = expand_user(path).resolve(), Path.home().resolve()
    shown = Path("~", full.relative_to(home)) if full.is_relative_to(home) else full
    return escape_line(str(shown))


def escape_name(name: str) -> str:
    """Return a name in ASCII: a letter that only looks like another one is escaped."""
    text = json.dumps(name)[1:-1]
    return text if len(text) <= 200 else f"{text[:199]}… ({len(name)} characters)"


def _format_value(value: Any, depth: int, fold: bool) -> str:
    if not isinstance(value, Mapping | list | tuple) or not value or depth >= MAX_INDENT:
        return _scalar(value, fold)
    if isinstance(value, Mapping):
        opening, closing = "{", "}"
        items = [
            f"{_scalar(str(key), fold)}: {_format_value(item, depth + 1, fold)}"
            for key, item in value.items()
        ]
    else:
        opening, closing = "[", "]"
        items = [_format_value(item, depth + 1, fold) for item in value]
    begin = "\n" + "  " * depth
    lines = f",{begin}  ".join(items)
    return f"{opening}{begin}  {lines}{begin}{closing}"


def _scalar(value: Any, fold: bool) -> str:
    text = escape_invisible(_dumped(value))
    return _RUNS.sub(_fold_run, text) if fold else text


def _dumped(value: Any) -> str:
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False)


def _fold_run(match: re.Match[str]) -> str:
    unit, brace = match[1], match[2]
    run = match[0].removesuffix(brace)
    count = len(run) // len(unit)
    if count >= _RUN:
        run = f"{_SPACE if unit == ' ' else unit}{{{count}}}"
    elif unit == " ":
        return match[0]
    return run + ("\\u007b" if brace else "")


def escape_invisible(text: str) -> str:
    """Return a text in which characters that are not clearly visible are JSON escapes."""
    return escape_unseen(text, FOR_DECISIONS, as_json_escape)


# --- a call as lines on a screen ----------------------------------------------------------------

MIN_COLUMNS: Final = 12
"""The narrowest screen that rows are made for."""
MAX_ARGUMENTS: Final = 8
"""Arguments that the line of a call names; the others are counted."""

_WRAPPED_FROM_COLUMNS: Final = 40
"""Columns from which the lines of mlx-tools are wrapped between words; narrower screens waste no
room."""
_SHORT: Final = 32
"""Columns of an argument that is shown whole in the line of a call, even if that takes one more
row."""
_SHORT_WORD: Final = 72
"""The same of a text without white space, such as a path: by a part of it nobody can decide."""
_MIN_ARGUMENT_COLUMNS: Final = 12
"""The fewest columns of a longer argument, besides its size."""
_MORE_SUFFIX: Final = ", … 1000000 more"
_SCANNED_CHARS: Final = 2_000
"""Characters of an argument that are scanned for its beginning: it can have megabytes."""
_REASON_CHARS: Final = 300
_PLAIN_COLUMNS: Final = 160
"""Columns of the line of a call without a screen."""

IN_DOUBT: Final = (
    "It was started before, and nobody knows how it ended: it may have done all of its work, a "
    "part of it, or nothing. Look before you decide."
)
"""The warning about a call whose end is unknown."""
SUSPECT: Final = (
    "The call was mended, came with other text, or was copied from a tool's output: the model may "
    "never have meant it."
)
"""The warning about a call that the model may not have meant."""


class TextLine(Struct, frozen=True):
    """A line before it is wrapped."""

    text: str
    colour: str = ""
    foreign: bool = False
    """The model or a file wrote it."""
    is_opened: bool = False
    """Words of mlx-tools come before the foreign text."""


def get_screen_size(screen: TextIO) -> os.terminal_size:
    """Return columns and lines of a terminal as it is now.

    80 by 24 if it does not say.
    """
    try:
        columns, lines = os.get_terminal_size(screen.fileno())
    except (OSError, ValueError):
        columns, lines = 0, 0
    return os.terminal_size((columns or 80, lines or 24))


def summarise_call(
    request: ApprovalRequest, size: os.terminal_size, *, place: str = "", edited: bool = False
) -> list[TextLine]:
    """Return the rows of a call that fit on a screen.

    They have the tool with the beginning of each argument. Then come its changes, or its arguments,
    as far as there is room. A line each says what a person must know before a yes.

    Args:
        request: the call.
        size: the screen.
        place: the call's place among others: ``1 of 2``.
        edited: the arguments are the person's own.
    """
    again_mark = " AGAIN" if request.in_doubt else ""
    edited_mark = " with your arguments" if edited else ""
    of_many = f" ({place})" if place else ""
    head = f"Run {escape_name(request.name)}{again_mark}{edited_mark}{of_many}? "
    arguments, are_complete = _beginnings(request.arguments, size.columns - 3 - len(head))
    top = [*wrap_lines([TextLine(head + arguments, "bold", True, True)], size.columns)]
    warnings = [*wrap_lines(_warnings(request), size.columns)]
    body, amount = _body(request, are_complete)
    room = max(2, size.lines - len(top) - len(warnings) - _RESERVED_ROWS)
    shown = [*islice(wrap_lines(body, size.columns), room + 1)]
    if len(shown) > room:
        advice = "d shows more" if request.omitted else "d shows all"
        notice = TextLine(f"! This is the beginning of {amount}; {advice}", "yellow")
        shown[room - 1 :] = wrap_lines([notice], size.columns)
    return [*top, *shown, *warnings]


_RESERVED_ROWS: Final = 4
"""Rows for the keys, the row before the question, and what the user types."""


def _beginnings(arguments: Mapping[str, Any], room: int) -> tuple[str, bool]:
    """Return the arguments in about ``room`` columns, and True if they are complete."""
    items = [_item(key, value) for key, value in list(arguments.items())[:MAX_ARGUMENTS]]
    short = [cells(text) + 2 for text, length in items if not length]
    share = (room - sum(short)) // max(1, len(items) - len(short)) - len(_MORE_SUFFIX)
    texts, are_complete = [], len(items) == len(arguments)
    for text, length in items:
        beginning = next(_pieces(text, max(_MIN_ARGUMENT_COLUMNS, share))) if length else text
        are_complete &= (is_whole := not length or len(beginning) == length)
        texts.append(beginning if is_whole else f"{beginning}… {length - len(beginning)} more")
    if len(arguments) > len(items):
        texts.append(f"and {len(arguments) - len(items)} arguments more")
    return ", ".join(texts) or "no arguments", are_complete


def _item(key: str, value: Any) -> tuple[str, int]:
    """Return an argument as far as it is scanned, and its length; 0 if it is short."""
    is_plain = key.isascii() and key.isidentifier()
    text = f"{key if is_plain else json.dumps(key)}: {_dumped(value)}"
    escaped = _RUNS.sub(_fold_run, escape_invisible(text[:_SCANNED_CHARS]))
    if len(text) > _SCANNED_CHARS:
        return escaped, len(text)
    is_word = isinstance(value, str) and len(value.split()) == 1
    short = _SHORT_WORD if is_word else _SHORT
    return escaped, len(escaped) if cells(escaped) > short else 0


def _body(request: ApprovalRequest, whole: bool) -> tuple[Iterator[TextLine], str]:
    """Return the lines of a call's changes, else of its arguments, and their amount.

    The arguments are left out if the line of the call has all of them.
    """
    if request.preview:
        lines = request.preview.removesuffix("\n").split("\n")
        counts = escape_line(request.counts or _count_changes(lines))
        return diff(request.preview), f"{len(lines)} lines" + (f" ({counts})" if counts else "")
    text = "" if whole else exact(request.arguments)
    lines = text.split("\n") if text else []
    return (TextLine(line, foreign=True) for line in lines), f"{len(text)} characters"


def _count_changes(lines: Sequence[str]) -> str:
    """Return how many lines a diff adds and removes; empty for another text."""
    changes = [*dropwhile(lambda line: not line.startswith("@@"), lines)]
    added, removed = (sum(line.startswith(mark) for line in changes) for mark in "+-")
    return f"+{added} -{removed}" if changes else ""


def _warnings(request: ApprovalRequest) -> Iterator[TextLine]:
    """Yield what a person must know before a yes, each on a line."""
    if request.omitted:
        yield TextLine(omission(request), "yellow")
    if request.in_doubt:
        yield TextLine("! It was started before, and may have done its work", "yellow")
    elif request.suspect or request.is_changed:
        yield TextLine(f"! {cut(escape_line(request.reason), _REASON_CHARS)}", "yellow")
    text, preview = _dumped(request.arguments), request.preview.translate(_USUAL)
    if (
        escape_invisible(text) != text
        or _CONTROL.search(text)
        or escape_invisible(preview) != preview
    ):
        yield TextLine("! It has invisible characters, shown here as \\u…", "yellow")


def omission(request: ApprovalRequest) -> str:
    """Return the line about the part of a change that cannot be shown, and its size."""
    counts = f" (the whole change: {escape_line(request.counts)})" if request.counts else ""
    return f"! NOT ALL OF THE CHANGE IS SHOWN: {escape_line(request.omitted)}{counts}"


def describe_call(
    request: ApprovalRequest, *, place: str = "", edited: bool = False, by_model: bool = True
) -> Iterator[TextLine]:
    """Yield all that is known of a call, the change first.

    ``by_model``: a model asks for it, not the person.
    """
    of_many = f" ({place})" if place else ""
    subject = "The model asks" if by_model else "You ask"
    reason = escape_line(request.reason)
    yield TextLine(f"{subject} to call {escape_name(request.name)}{of_many}: {reason}.", "bold")
    if request.suspect or request.in_doubt:
        yield TextLine(IN_DOUBT if request.in_doubt else SUSPECT, "yellow")
    if request.preview:
        counts = f" ({escape_line(request.counts)})" if request.counts else ""
        yield TextLine(f"What it would change{counts}:", "bold")
        yield from diff(request.preview)
    if request.omitted:
        yield TextLine(omission(request), "yellow")
    yield TextLine("Your arguments:" if edited else "Arguments:", "bold")
    yield from (TextLine(text, foreign=True) for text in exact(request.arguments).split("\n"))
    yield TextLine(f"digest {escape_line(request.digest)}")
    if request.expires_at:
        yield TextLine(f"an approval holds until {escape_line(request.expires_at)}")


def format_call_message(request: ApprovalRequest) -> str:
    """Return a call as a message that is shown elsewhere: on one line, then in full."""
    arguments, _ = _beginnings(request.arguments, _PLAIN_COLUMNS)
    head = TextLine(f"Run {escape_name(request.name)}? {arguments}")
    return "\n".join(row.text for row in wrap_lines([head, *describe_call(request)], None))


def diff(text: str) -> Iterator[TextLine]:
    """Yield the lines of a unified diff with its colours."""
    header = True
    for line in text.removesuffix("\n").split("\n"):
        colour = ""
        if line.startswith("@@"):
            header, colour = False, "dim"
        elif header:
            colour = "bold"
        elif line.startswith(("+", "-")):
            colour = "green" if line[0] == "+" else "red"
        yield TextLine(escape_line(line.replace("\t", "→   ")), colour, foreign=True)


def diff_sources(old_source: BoundSource, new_source: BoundSource) -> Iterator[TextLine]:
    """Yield a diff of a source's tools since they were agreed to.

    Nothing if they are the same.
    """
    from difflib import unified_diff

    old, new = (
        [row for tool in source.tools for row in _describe_tool(tool)]
        for source in (old_source, new_source)
    )
    text = "\n".join(unified_diff(old, new, "agreed to", "now", n=2, lineterm=""))
    if text:
        yield TextLine("What changed:", "bold")
        yield from diff(text)


def _describe_tool(tool: BoundTool) -> list[str]:
    details = {"description": tool.description, "parameters": tool.parameters, "at": tool.location}
    text = json.dumps({tool.name: details, "effects": tool.effects}, indent=1, ensure_ascii=False)
    return text.split("\n")


def wrap_lines(lines: Iterable[TextLine], columns: int | None) -> Iterator[TextLine]:
    """Yield the lines as rows of at most ``columns`` columns.

    None for rows of any length.
    """
    for line in lines:
        first, continuation = ("" if line.is_opened else "| ", ": ") if line.foreign else ("", "  ")
        if columns is None:
            yield TextLine(first + line.text, line.colour)
            continue
        room = max(MIN_COLUMNS, columns - 1) - len(continuation)
        by_words = not line.foreign and columns >= _WRAPPED_FROM_COLUMNS
        parts = wrap_line(line.text, room).split("\n") if by_words else [line.text]
        for number, piece in enumerate(piece for part in parts for piece in _pieces(part, room)):
            yield TextLine((continuation if number else first) + piece, line.colour)


def show_all(lines: Iterable[TextLine]) -> None:
    """Print lines on standard error, wrapped for its terminal."""
    show(wrap_lines(lines, count_columns(sys.stderr)), sys.stderr)


def show(rows: Iterable[TextLine], screen: TextIO) -> None:
    """Print rows, in colours if the screen has them."""
    for row in rows:
        print(color_text(row.text, row.colour, screen), file=screen)


def _pieces(text: str, room: int) -> Iterator[str]:
    """Yield a text in pieces of at most ``room`` columns; an empty text as it is."""
    if text.isascii():
        yield from (text[at : at + room] for at in range(0, len(text) or 1, room))
        return
    start = used_columns = 0
    for at, char in enumerate(text):
        size = cell(char)
        if used_columns + size > room:
            yield text[start:at]
            start, used_columns = at, 0
        used_columns += size
    yield text[start:]
