"""A note as a file: its name, a head that says where it came from, a title, and the text.

The head is YAML between two lines ``---``, as editors of notes know it. Ours says when the note was
written and in which session; what other programs or people put there is part of the text.
"""

from __future__ import annotations

import re
import unicodedata
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


# --- the name of its file -----------------------------------------------------------------------

ENDING: Final = ".md"

MAX_CHARS: Final = 100
MAX_BYTES: Final = 180
"""What a title may take of a name, which has 255 bytes: there is room for a number and the ending,
also where a file system takes accents apart."""

NAMELESS: Final = "note"
"""The name of a note whose title has nothing that a name may hold."""

_DIVIDING: Final = frozenset('/\\:*?"<>|')
"""What divides paths or names streams, and what Windows has in no name."""

_EDGES: Final = " .-~_"
"""Not at either end: hidden files, options, home folders, names that differ in nothing visible."""

_DEVICES: Final = frozenset(
    (
        *("con", "prn", "aux", "nul", "conin$", "conout$"),
        *(
            f"{port}{number}"
            for port in ("com", "lpt")
            for number in "0123456789\u00b9\u00b2\u00b3"
        ),
    )
)
"""Names that Windows keeps for devices, with any ending."""


def has_a_title(text: str) -> bool:
    """Whether anything in the text can be seen."""
    return any(unicodedata.category(c)[0] not in "CZ" for c in text)


def note_stem(title: str) -> str:
    """The file's name without its ending: what of the title a name may hold, shortened.

    Characters that divide or steer become spaces, those that nobody sees are left out. The same
    title always gives the same name; different ones may share it.
    """
    text = unicodedata.normalize("NFC", title)
    if text.casefold().endswith(ENDING):
        text = text[: -len(ENDING)]
    words = "".join(map(_allowed, text)).split()
    stem = _shortened(" ".join(words).strip(_EDGES))
    if not stem:
        return NAMELESS
    device = stem.partition(".")[0].rstrip().casefold()
    return f"{NAMELESS} {stem}" if device in _DEVICES else stem


def _allowed(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cf", "Cs", "Co", "Cn"):
        return ""
    return " " if category[0] in "CZ" or character in _DIVIDING else character


def _shortened(stem: str) -> str:
    """The first whole words that are short enough; of one long word, its beginning."""
    raw = stem[:MAX_CHARS].encode()[:MAX_BYTES]
    kept = raw.decode(errors="ignore")
    if len(kept) == len(stem):
        return stem
    whole, space, _ = kept.rpartition(" ")
    if space and stem[len(kept)] != " " and len(whole) * 2 > len(kept):
        kept = whole
    return kept.rstrip(_EDGES)
