"""What is in a note's file: a head that says where it came from, a title, and the text.

The head is YAML between two lines ``---``, as editors of notes know it. Ours says when the note was
written and in which session; what other programs or people put there is part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

MAX_TITLE_CHARS: Final = 500
MAX_ORIGIN_CHARS: Final = 100
"""What is taken of a title and of a session's name: anybody may write anything into a file."""

_WRITER: Final = "mlx-tools"
_SESSION: Final = ", session "
_HEAD: Final = re.compile(r"---[ \t]*\r?\n((?:.*\n)*?)---[ \t]*\r?(?:\n|\Z)")
_FIELD: Final = re.compile(r"([\w-]+):[ \t]+(.*)")
_HEADING_LINES: Final = 50


@dataclass(frozen=True, slots=True)
class Note:
    """A note as it was found. ``path`` is relative to the folder; ``created`` is what its head
    says, empty where it has none of ours: a person wrote it. ``modified`` is in seconds since 1970.
    """

    path: str
    title: str
    text: str
    created: str = ""
    session: str = ""
    modified: float = 0.0


def head_of(created: str, session: str) -> str:
    """The head of a note that is written in this session, which may be empty."""
    where = f"{_SESSION}{session}" if session else ""
    return f"---\ncreated: {created}\nby: {_WRITER}{where}\n---\n\n"


def note_of(path: str, text: str, modified: float = 0.0) -> Note:
    """A note's file, read.

    Its title is the one that its head names, or its first heading, or the file's name. The text is
    what stands below our head; what else stands in a head is kept in front of it.
    """
    found = _HEAD.match(text)
    head, body = (found[1], text[found.end() :].lstrip("\r\n")) if found else ("", text)
    fields = dict(_fields(head))
    by, _, session = fields.get("by", "").partition(_SESSION)
    created = fields.get("created", "") if by == _WRITER else ""
    if created:
        lines = (line for line in head.split("\n") if not line.startswith(("created:", "by:")))
        head = "\n".join(lines)
    title = fields.get("title") or _heading(body) or PurePath(path).stem
    return Note(
        path,
        title[:MAX_TITLE_CHARS],
        f"---\n{head}---\n\n{body}" if head.strip() else body,
        created[:MAX_ORIGIN_CHARS],
        session[:MAX_ORIGIN_CHARS] if created else "",
        modified,
    )


def _fields(head: str) -> Iterator[tuple[str, str]]:
    """The plain fields of a head: a key and a text on one line."""
    for line in head.split("\n"):
        if found := _FIELD.fullmatch(line.rstrip()):
            yield found[1], found[2].strip().strip("\"'")


def _heading(body: str) -> str:
    """The first heading, with a number sign or underlined; none of those in blocks of code."""
    before, fence = "", ""
    for line in map(str.strip, body.split("\n", _HEADING_LINES)[:_HEADING_LINES]):
        if line.startswith(("```", "~~~")):
            fence = "" if line.startswith(fence) and fence else fence or line[:3]
        elif not fence and line.startswith("# "):
            return line.removeprefix("#").strip(" #")
        elif not fence and before and line and not line.strip("="):
            return before
        before = line
    return ""
