"""A call that a person decides about, as lines on a screen: whole, wrapped, and not to be forged.

Every row of what the model or a file wrote begins with ``| ``, or ``: `` where a line goes on: no
such text can look like a line of ours, whatever it holds and however wide the screen is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

from mlx_tools.cli.columns import cell, cells
from mlx_tools.cli.escape import as_code, as_name, exact, in_words, on_one_line
from mlx_tools.cli.output import COLOURS, colourful
from mlx_tools.controller import ApprovalRequest

MIN_COLUMNS: Final = 12
MAX_HEADS: Final = 8
_WIDE: Final = 40
"""Rows of so many columns part our own lines between words; narrower ones waste no room."""
_REASON_CHARS: Final = 300

IN_DOUBT: Final = (
    "It was started before, and nobody knows how it ended: it may have done all of its work, a "
    "part of it, or nothing. Look before you decide."
)


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line before it is wrapped. ``foreign``: the model or a file wrote it."""

    text: str
    colour: str = ""
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """Columns and rows of a screen."""

    columns: int
    rows: int

    @classmethod
    def of(cls, screen: TextIO) -> Size:
        """That of a terminal as it is now; 80 by 24 where it does not say."""
        try:
            columns, rows = os.get_terminal_size(screen.fileno())
        except (OSError, ValueError):
            columns, rows = 0, 0
        return cls(columns or 80, rows or 24)


def whole(
    request: ApprovalRequest,
    arguments: Mapping[str, Any],
    *,
    place: str = "",
    by_model: bool = True,
) -> list[ShownLine]:
    """All of a call: its name and why it is asked about, its arguments, what it would change.

    ``arguments`` are the request's own, or those that the person has put in their place.
    ``place`` is where the call stands among others: ``1 of 2``. ``by_model``: a model asks for it,
    not the person.
    """
    edited = arguments is not request.arguments
    name, of_many = as_name(request.name), f" ({place})" if place else ""
    who = "The model asks" if by_model else "You ask"
    lines = [ShownLine(f"{who} to call {name}{of_many}: {in_words(request.reason)}.", "bold")]
    if edited:
        lines.append(ShownLine("With your arguments:", "bold"))
    lines += [ShownLine(text, foreign=True) for text in exact(arguments).split("\n")]
    if request.preview and edited:
        lines.append(
            ShownLine("What it would change has not been worked out for your arguments.", "dim")
        )
    elif request.preview:
        lines.append(ShownLine("What it would change:", "bold"))
        lines += diff(request.preview)
    return lines


def diff(text: str) -> Iterator[ShownLine]:
    """The lines of a unified diff, with its colours."""
    header = True
    for line in text.removesuffix("\n").split("\n"):
        colour = ""
        if line.startswith("@@"):
            header, colour = False, "dim"
        elif header:
            colour = "bold"
        elif line[:1] in "+-":
            colour = {"+": "green", "-": "red"}.get(line[:1], "")
        yield ShownLine(as_code(line), colour, foreign=True)


def foot(
    request: ApprovalRequest, arguments: Mapping[str, Any], *, columns: int, heads: bool
) -> list[ShownLine]:
    """What stands right above the question, however long the call is: name, reason and digest.

    ``heads``: also the beginning of each argument, since the arguments themselves may be out of
    sight. A row has ``columns`` columns.
    """
    reason = in_words(request.reason)
    reason = reason if len(reason) <= _REASON_CHARS else f"{reason[: _REASON_CHARS - 1]}…"
    lines = [ShownLine(f"call {as_name(request.name)}: {reason}", "bold")]
    if heads:
        lines += _heads(arguments, columns)
    edited = arguments is not request.arguments
    size = len(exact(arguments))
    lines.append(ShownLine(f"{size} characters of arguments{', edited by you' if edited else ''}"))
    if not edited:
        lines.append(ShownLine(f"digest {in_words(request.digest)}"))
    if request.expires_at:
        lines.append(ShownLine(f"an approval holds until {in_words(request.expires_at)}"))
    if request.suspect:
        lines.append(ShownLine("The call was mended, or stands in what a tool said.", "yellow"))
    if request.in_doubt:
        lines.append(ShownLine(IN_DOUBT, "yellow"))
    return lines


def _heads(arguments: Mapping[str, Any], columns: int) -> list[ShownLine]:
    """The first row of each argument."""
    lines = []
    for key, value in list(arguments.items())[:MAX_HEADS]:
        text = f"{on_one_line(str(key))}: {on_one_line(value)}"
        room = max(30, columns - 24)
        if cells(text) > room:
            text = f"{next(_pieces(text, room))} … ({len(text)} characters)"
        lines.append(ShownLine(text, foreign=True))
    if len(arguments) > MAX_HEADS:
        lines.append(ShownLine(f"and {len(arguments) - MAX_HEADS} arguments more"))
    return lines


def wrapped(lines: Sequence[ShownLine], columns: int | None) -> list[ShownLine]:
    """The lines as rows of at most ``columns`` columns, None for rows of any length."""
    rows = []
    for line in lines:
        first, others = ("| ", ": ") if line.foreign else ("", "  ")
        if columns is None:
            rows.append(ShownLine(first + line.text, line.colour))
            continue
        room = max(MIN_COLUMNS, columns - 1) - len(others)
        parted = _pieces if line.foreign or columns < _WIDE else _words
        pieces = parted(line.text, room)
        for number, piece in enumerate(pieces):
            rows.append(ShownLine((others if number else first) + piece, line.colour))
    return rows


def show(rows: Sequence[ShownLine], screen: TextIO) -> None:
    """Print rows, in their colours where the screen has colours."""
    coloured = colourful(screen)
    for row in rows:
        paint = coloured and row.colour
        print(f"\x1b[{COLOURS[row.colour]}m{row.text}\x1b[0m" if paint else row.text, file=screen)


def _words(text: str, room: int) -> Iterator[str]:
    """As `_pieces`, parted between words where it can be."""
    first, *others = text.split(" ")
    *rows, row = _pieces(first, room)
    for word in others:
        if cells(f"{row} {word}") <= room:
            row += f" {word}"
        else:
            rows.append(row)
            *more, row = _pieces(word, room)
            rows += more
    return iter([*rows, row])


def _pieces(text: str, room: int) -> Iterator[str]:
    """The text in pieces of at most ``room`` columns; of an empty one, itself."""
    if text.isascii():
        yield from (text[at : at + room] for at in range(0, len(text) or 1, room))
        return
    start = taken = 0
    for at, char in enumerate(text):
        size = cell(char)
        if taken + size > room:
            yield text[start:at]
            start, taken = at, 0
        taken += size
    yield text[start:]
