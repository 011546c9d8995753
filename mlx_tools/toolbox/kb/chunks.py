"""Cuts a document into passages: at headings, definitions, paragraphs, and where it must, anywhere.

All of it is linear in the text and goes by lines, whatever they hold: no parser that could be led
astray.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

TARGET: Final = 1_200
"""Characters that a passage should have; it gets no longer than `MOST`."""

MOST: Final = 2_000
LEAST: Final = 250
"""A section that is shorter goes into one passage with what follows."""

OVERLAP: Final = 200
"""Characters of a paragraph's end that are repeated where a section has to be cut."""

MAX_HEADING_CHARS: Final = 120
BETWEEN_HEADINGS: Final = "; "
"""Stands between the headings of sections that went into one passage."""

_LEVELS: Final = 4

_HASHES: Final = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_FENCE: Final = re.compile(r" {0,3}(```|~~~)")
_RULE: Final = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*")
_TEX: Final = re.compile(r"\\(part|chapter|section|subsection|subsubsection)\*?\{([^{}]{1,200})\}")
_TEX_LEVELS: Final = ("part", "chapter", "section", "subsection", "subsubsection")
_DEFINITION: Final = re.compile(
    r"(?P<indent>[ \t]{0,8})"
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub"
    r"(?:\([a-z]{1,10}\))?|unsafe|override|virtual|inline|extern|const|local|data|sealed|open)"
    r"[ \t]+){0,5}"
    r"(?P<kind>def|class|func|function|fn|fun|interface|struct|enum|trait|impl|module|namespace|type"
    r"|protocol|object|record|sub|proc|defun|defmodule|create[ \t]+(?:table|view|function))\b"
    r"[ \t(]*(?P<name>[A-Za-z_$][\w$.:]{0,80})?",
    re.IGNORECASE,
)
_ATTACHED: Final = re.compile(r"\s*(?:@|#|//|/\*|\*|--|;;)")
"""A line that belongs to the definition below it: a decorator, a comment."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document: ``text[start:end]``, from ``line`` (from 1) to ``end_line``.

    ``heading`` is the path of headings, or the definitions, that it stands under.
    """

    start: int
    end: int
    line: int
    end_line: int
    heading: str = ""


@dataclass(frozen=True, slots=True)
class _Section:
    first: int
    heading: str


Cut = Callable[[Sequence[str]], list[_Section]]


def passages(text: str, form: str = "text") -> list[Passage]:
    """The passages of a text, together all of it that is not blank. ``form`` is ``markdown``,
    ``rst``, ``tex``, ``code`` or ``text``."""
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    sections = _CUTS.get(form, _plain)(lines)
    if not sections or sections[0].first:
        sections.insert(0, _Section(0, ""))
    found: list[Passage] = []
    for first, last, heading in _merged(sections, starts, len(lines)):
        for begin, end in _pieces(text, lines, starts, first, last):
            if text[begin:end].strip():
                found.append(_passage(begin, end, heading, starts, lines, first))
    return found


def _passage(
    begin: int, end: int, heading: str, starts: Sequence[int], lines: Sequence[str], first: int
) -> Passage:
    from bisect import bisect_right

    line = bisect_right(starts, begin, lo=first)
    return Passage(begin, end, line, bisect_right(starts, end - 1, lo=line - 1), heading)


def defined_in(heading: str) -> str:
    """The name that a heading is the definition of, or else the heading, without its arguments and
    marks."""
    if (found := _DEFINITION.fullmatch(heading)) is not None and found["name"]:
        return found["name"]
    return heading.partition("(")[0].strip("`* \t")


# --- where sections begin -----------------------------------------------------------------------


def _markdown(lines: Sequence[str]) -> list[_Section]:
    path: list[str] = []
    found: list[_Section] = []
    fence = ""
    for number, line in enumerate(lines):
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
            continue
        if fence:
            continue
        if hashes := _HASHES.match(line):
            found.append(_under(path, len(hashes[1]), hashes[2].rstrip("# \t"), number))
        elif _underlined(lines, number, "=-"):
            found.append(_under(path, 1 if lines[number + 1][0] == "=" else 2, line, number))
    return found


def _rst(lines: Sequence[str]) -> list[_Section]:
    path: list[str] = []
    found: list[_Section] = []
    kinds: list[str] = []  # the order in which kinds of underlines come says their level
    for number, line in enumerate(lines):
        if not _underlined(lines, number, ""):
            continue
        rule = lines[number + 1][0]
        over = number > 0 and lines[number - 1].rstrip() == lines[number + 1].rstrip()
        kind = rule + ("^" if over else "")
        if kind not in kinds:
            kinds.append(kind)
        found.append(_under(path, kinds.index(kind) + 1, line.strip(), number - over))
    return found


def _tex(lines: Sequence[str]) -> list[_Section]:
    path: list[str] = []
    return [
        _under(path, _TEX_LEVELS.index(found[1]) + 1, found[2], number)
        for number, line in enumerate(lines)
        if (found := _TEX.match(line.lstrip()))
    ]


def _code(lines: Sequence[str]) -> list[_Section]:
    """A section for each definition at the outer levels, with what stands right above it."""
    found: list[_Section] = []
    outer = ""
    floor = 0
    for number, line in enumerate(lines):
        match = _DEFINITION.match(line)
        if match is None or match["name"] is None:
            continue
        indent = len(match["indent"].expandtabs(4))
        if indent > 4:
            continue
        name = f"{match['kind']} {match['name'].rstrip(':.')}"
        if indent == 0:
            outer = name
        first = number
        while first > floor and _ATTACHED.match(lines[first - 1]):
            first -= 1
        floor = number + 1
        heading = name if indent == 0 or not outer else f"{outer} > {name}"
        found.append(_Section(first, heading[:MAX_HEADING_CHARS]))
    return found


def _plain(lines: Sequence[str]) -> list[_Section]:
    return []


_CUTS: Final[dict[str, Cut]] = {"markdown": _markdown, "rst": _rst, "tex": _tex, "code": _code}


def _underlined(lines: Sequence[str], number: int, marks: str) -> bool:
    """Whether a line is a heading by the rule below it."""
    line = lines[number]
    if not line.strip() or number + 1 == len(lines) or _RULE.fullmatch(line):
        return False
    rule = lines[number + 1]
    if not _RULE.fullmatch(rule) or (marks and rule[0] not in marks):
        return False
    if marks and (line[:1] in " \t-*+>|" or (number and lines[number - 1].strip())):
        return False  # of Markdown: a list, a table, a paragraph with a rule below it
    return len(rule.rstrip()) >= min(len(line.strip()), MAX_HEADING_CHARS)


def _under(path: list[str], level: int, title: str, number: int) -> _Section:
    """The section with this title; ``path``, the headings above, goes on from it."""
    level = min(level, _LEVELS)
    del path[level - 1 :]
    path += [""] * (level - 1 - len(path))
    path.append(" ".join(title.split())[:MAX_HEADING_CHARS])
    return _Section(number, " > ".join(part for part in path if part))


# --- sections to passages -----------------------------------------------------------------------


def _merged(
    sections: Sequence[_Section], starts: Sequence[int], count: int
) -> Iterator[tuple[int, int, str]]:
    """First line, line after the last, and heading, of sections of which short ones are joined."""
    ends = [one.first for one in sections[1:]] + [count]
    open_: tuple[int, int, list[str]] | None = None
    for section, end in zip(sections, ends, strict=True):
        size = starts[end] - starts[section.first]
        if open_ is not None:
            held = starts[open_[1]] - starts[open_[0]]
            if (held < LEAST or size < LEAST) and held + size <= TARGET:
                open_[2].append(section.heading)
                open_ = (open_[0], end, open_[2])
                continue
            yield open_[0], open_[1], _joined(open_[2])
        open_ = (section.first, end, [section.heading])
    if open_ is not None:
        yield open_[0], open_[1], _joined(open_[2])


def _joined(headings: Sequence[str]) -> str:
    kept = list(dict.fromkeys(h for h in headings if h))
    return BETWEEN_HEADINGS.join(kept)[: 4 * MAX_HEADING_CHARS]


def _pieces(
    text: str, lines: Sequence[str], starts: Sequence[int], first: int, last: int
) -> Iterator[tuple[int, int]]:
    """The section from line ``first`` to before ``last``, in pieces of a readable size."""
    begin, end = starts[first], min(starts[last], len(text))
    if end - begin <= MOST:
        yield begin, end
        return
    at = begin
    for stop in _stops(text, lines, starts, first, last):
        if stop - at < TARGET and stop != end:
            continue
        if stop > at:
            yield at, stop
        at = max(at + 1, _back(text, stop, at)) if stop < end else stop


def _stops(
    text: str, lines: Sequence[str], starts: Sequence[int], first: int, last: int
) -> Iterator[int]:
    """Where a section may be cut: after paragraphs; within those that are too long, after lines,
    and at last anywhere."""
    end = min(starts[last], len(text))
    at = starts[first]  # what was last yielded
    blank = at
    for number in range(first, last):
        line_end = min(starts[number + 1], end)
        while line_end - at > MOST:
            cut = blank if blank > at else starts[number] if starts[number] > at else 0
            at = cut or _space(text, at)
            yield at
        if not lines[number].strip():
            blank = line_end
            if line_end - at >= TARGET:
                at = line_end
                yield at
    if at < end:
        yield end


def _space(text: str, at: int) -> int:
    """Where to cut what has no line end for too long: behind a blank, if there is one."""
    space = text.rfind(" ", at + TARGET // 2, at + TARGET)
    return space + 1 if space > 0 else at + TARGET


def _back(text: str, stop: int, begin: int) -> int:
    """Where the next piece begins: a little before the last one's end, at the start of a line."""
    line = text.find("\n", max(stop - OVERLAP, begin), stop - 1)
    return line + 1 if 0 <= line < stop - 1 else stop
