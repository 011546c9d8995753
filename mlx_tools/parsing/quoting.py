"""Quoted text: code, quotations, tables and diffs."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+\Z")
_FENCE: Final = re.compile(r"[ \t]*+(?P<fence>(?P<char>[`~])(?P=char){2,})(?P<info>[^\n`]*)\n?\Z")
_INLINE: Final = re.compile(r"(?<!`)(`++)(?:[^\n]*?(?<!`)\1(?!`)|[^\n]*)")
_SHOWN_LINE: Final = re.compile(r"^[ \t]*+(?:>(?!>>)|\|[ \t:-])[^\n]*", re.MULTILINE)
_DIFF: Final = re.compile(r"^(?:@@ |\+\+\+ |--- )", re.MULTILINE)
_CHANGED_LINE: Final = re.compile(r"^[+-][^\n]*", re.MULTILINE)
_VISIBLE: Final = re.compile(r"[^\n]")


class Fence(NamedTuple):
    """A fenced block: its place, its content, and its info string."""

    begin: int
    end: int
    inside: str
    info: str


def fences(text: str) -> Iterator[Fence]:
    """Yield the fenced blocks of ``text``; one that is not closed ends with it."""
    begin = inside = 0
    opening: re.Match[str] | None = None
    for line in _LINE.finditer(text) if "```" in text or "~~~" in text else ():
        mark = _FENCE.match(line[0])
        if opening is None:
            if mark is not None:
                opening, begin, inside = mark, line.start(), line.end()
        elif (
            mark is not None
            and not mark["info"].strip()
            and mark["fence"].startswith(opening["fence"])
        ):
            content = text[inside : line.start()]
            yield Fence(begin, line.end(), content, opening["info"].strip())
            opening = None
    if opening is not None:
        yield Fence(begin, len(text), text[inside:], opening["info"].strip())


def without_quoted(text: str) -> str:
    """Return ``text`` with blanks in place of quoted parts; offsets stay the same."""
    pieces: list[str] = []
    pos = 0
    for fence in fences(text):
        pieces += (text[pos : fence.begin], _VISIBLE.sub(" ", text[fence.begin : fence.end]))
        pos = fence.end
    said = "".join((*pieces, text[pos:]))
    patterns = [_INLINE] if "`" in said else []
    patterns += [_SHOWN_LINE, *([_CHANGED_LINE] if _DIFF.search(said) else [])]
    for pattern in patterns:
        said = pattern.sub(lambda found: " " * len(found[0]), said)
    return said


def last_fence(text: str) -> Fence | None:
    """Return the fence that ends the text, None if none does or it is all of the text."""
    last = next(iter(deque(fences(text), maxlen=1)), None)
    if last is None or text[last.end :].strip() or not text[: last.begin].strip():
        return None
    return last


def only_fence(text: str) -> Fence | None:
    """Return the fence that is all of the text, None if there is more."""
    first = next(fences(text), None)
    if first is None or text[: first.begin].strip() or text[first.end :].strip():
        return None
    return first
