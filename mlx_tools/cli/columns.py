"""Texts in the columns of a terminal: how wide they are, and where they go on in the next row."""

from __future__ import annotations

import os
import unicodedata
from typing import Any, Final

_ROOM: Final = 30
"""Columns that a text of a list needs beside what stands before it; else it goes below that."""

_BELOW: Final = "    "


def columns_of(stream: Any) -> int | None:
    """The columns of a terminal; None for anything else, and for one that does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def cells(text: str) -> int:
    """How many columns a text takes at most: terminals disagree, and the larger number is safe."""
    return len(text) if text.isascii() else sum(map(cell, text))


def cell(char: str) -> int:
    """How many columns a character takes at most."""
    if char.isascii():
        return 1
    wide = unicodedata.east_asian_width(char) in "WFA" or unicodedata.category(char) == "So"
    return 2 if wide else 1


def folded(text: str, columns: int | None, indent: str = "") -> str:
    """One line as rows of at most ``columns`` columns, parted between words; all but the first
    begin with ``indent``. A word that is longer stays whole: it may be a path that is copied."""
    if columns is None or cells(text) <= columns:
        return text
    rows: list[str] = []
    row: list[str] = []
    width, blank = 0, True  # of the row so far
    for word in text.split(" "):
        size = cells(word)
        if not blank and width + 1 + size > columns:
            rows.append(" ".join(row))
            row, width, blank = [indent + word], cells(indent) + size, not word
        else:
            width += size + (1 if row else 0)
            row.append(word)
            blank = blank and not word
    return "\n".join([*rows, " ".join(row)])


def beside(head: str, text: str, columns: int | None) -> str:
    """A row of a list: what stands in columns of its own, then a text that is folded beside them,
    or below them where there is too little room."""
    if columns is None or cells(head) + 1 + cells(text) <= columns:
        return f"{head} {text}"
    if columns - cells(head) - 1 >= _ROOM:
        return folded(f"{head} {text}", columns, " " * (cells(head) + 1))
    return f"{folded(head.rstrip(), columns)}\n{folded(_BELOW + text, columns, _BELOW)}"
