r"""What a person decides about, in writing: exact, whole, wrapped, and not to be forged.

A character that a terminal would obey, or that would not be seen, is written as JSON writes it:
``\u202e``. Sixteen or more of one escape or of spaces are written once, with their number:
``\u0020{10000}``. So nothing can be pushed out of sight by characters that show nothing, and the
text still stands for one value only: a brace that follows an escape is itself written ``\u007b``.

Every row of what the model or a file wrote begins with ``| ``, or ``: `` where a line goes on: no
such text can look like a line of ours, whatever it holds and however wide the screen is.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

from mlx_tools.cli.output import COLOURS, colourful, cut, folded

if TYPE_CHECKING:
    from mlx_tools.controller import ApprovalRequest

MAX_INDENT: Final = 6
"""Levels that are indented. What is nested deeper stands on one line: depth is no padding."""

MAX_MARKS: Final = 3
"""Marks that may stand on one letter; more of them paint over the lines around it."""

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_BLANK: Final = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x16FE4, 0x1D159),
            *range(0x180B, 0x1810),
            *range(0xFE00, 0xFE10),
            *range(0xE0100, 0xE01F0),
        ),
    )
)
"""Characters of categories that are seen, and that are not: fillers, variation selectors."""

_RUNS: Final = re.compile(r"(\\(?:u[0-9a-f]{4}|.)| )\1*(\{?)", re.DOTALL)
_SPACES: Final = re.compile(r" {40,}")
_RUN: Final = 16
_SPACE: Final = "\\u0020"


def exact(value: Any, *, fold: bool = True) -> str:
    """A JSON value over several lines, as it may be shown to a person who decides about it.

    With ``fold`` long runs are written as the module says. Without it the text is JSON.
    """
    return _written(value, "", 0, fold)


def on_one_line(value: Any) -> str:
    """A JSON value on one line, as `exact` writes it."""
    return _scalar(value, True)


def in_words(text: str) -> str:
    """A text on one line: control characters, what is unseen and long runs of spaces spelled."""
    return _SPACES.sub(_counted, spelled(text))


def as_name(name: str) -> str:
    """A name, in ASCII: a letter that only looks like another one is spelled."""
    text = json.dumps(name)[1:-1]
    return text if len(text) <= 200 else f"{text[:199]}… ({len(name)} characters)"


def as_code(line: str) -> str:
    """A line of a file: as `in_words`, with tabs as arrows."""
    return in_words(line.replace("\t", "→   "))


def _written(value: Any, indent: str, depth: int, fold: bool) -> str:
    if not isinstance(value, Mapping | list | tuple) or not value or depth >= MAX_INDENT:
        return _scalar(value, fold)
    inner = indent + "  "
    if isinstance(value, Mapping):
        items = [
            f"{_scalar(str(key), fold)}: {_written(item, inner, depth + 1, fold)}"
            for key, item in value.items()
        ]
        opening, closing = "{", "}"
    else:
        items = [_written(item, inner, depth + 1, fold) for item in value]
        opening, closing = "[", "]"
    lines = f",\n{inner}".join(items)
    return f"{opening}\n{inner}{lines}\n{indent}{closing}"


def _scalar(value: Any, fold: bool) -> str:
    value = dict(value) if isinstance(value, Mapping) else value
    text = spelled(json.dumps(value, ensure_ascii=False))
    return _RUNS.sub(_folded, text) if fold else text


def _folded(found: re.Match[str]) -> str:
    unit, brace = found[1], found[2]
    run = found[0].removesuffix(brace)
    count = len(run) // len(unit)
    if count >= _RUN:
        run = f"{_SPACE if unit == ' ' else unit}{{{count}}}"
    elif unit == " ":
        return found[0]
    return run + ("\\u007b" if brace else "")


def _counted(found: re.Match[str]) -> str:
    return f"{_SPACE}{{{len(found[0])}}}"


def spelled(text: str) -> str:
    """The text with each character that is not plainly seen as JSON's escape of it."""
    if text.isascii() and text.isprintable():
        return text
    out: list[str] = []
    on_letter, marks = False, 0
    for char in text:
        kind = unicodedata.category(char)
        if char in _BLANK:
            seen = False
        elif kind[0] == "M":
            marks += 1
            seen = on_letter and marks <= MAX_MARKS
        else:
            seen = char == " " or kind not in _UNSEEN
            on_letter, marks = seen and kind[0] == "L", 0
        out.append(char if seen else json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f")
    return "".join(out)


def cells(text: str) -> int:
    """The columns that a text takes at most: terminals disagree, and the larger number is safe."""
    return len(text) if text.isascii() else sum(map(cell, text))


def cell(char: str) -> int:
    """Return how many columns a character takes at most."""
    if char.isascii():
        return 1
    wide = unicodedata.east_asian_width(char) in "WFA" or unicodedata.category(char) == "So"
    return 2 if wide else 1


# --- a call as lines on a screen ----------------------------------------------------------------

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


def size_of(screen: TextIO) -> os.terminal_size:
    """Columns and lines of a terminal as it is now; 80 by 24 where it does not say."""
    try:
        columns, lines = os.get_terminal_size(screen.fileno())
    except (OSError, ValueError):
        columns, lines = 0, 0
    return os.terminal_size((columns or 80, lines or 24))


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
        elif line.startswith(("+", "-")):
            colour = "green" if line[0] == "+" else "red"
        yield ShownLine(as_code(line), colour, foreign=True)


def foot(
    request: ApprovalRequest, arguments: Mapping[str, Any], *, columns: int, heads: bool
) -> list[ShownLine]:
    """The lines right above the question, however long the call is: name, reason and digest.

    ``heads``: also the beginning of each argument, since the arguments themselves may be out of
    sight. A row has ``columns`` columns.
    """
    reason = cut(in_words(request.reason), _REASON_CHARS)
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
        by_words = not line.foreign and columns >= _WIDE
        parts = folded(line.text, room).split("\n") if by_words else [line.text]
        for number, piece in enumerate(piece for part in parts for piece in _pieces(part, room)):
            rows.append(ShownLine((others if number else first) + piece, line.colour))
    return rows


def show(rows: Sequence[ShownLine], screen: TextIO) -> None:
    """Print rows, in their colours where the screen has colours."""
    coloured = colourful(screen)
    for row in rows:
        paint = coloured and row.colour
        print(f"\x1b[{COLOURS[row.colour]}m{row.text}\x1b[0m" if paint else row.text, file=screen)


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
