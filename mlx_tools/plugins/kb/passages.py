"""Cuts a document into passages: at headings, definitions and paragraphs.

The work is done line by line and takes linear time. There is no parser that a faulty document could
mislead.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

TARGET_CHARS: Final = 1_200
"""Characters that a passage should have: a paragraph or two, which a model can read as a source."""

MAX_CHARS: Final = 2_000
"""Characters that a passage may have."""
MIN_SECTION_CHARS: Final = 250
"""Characters of a section. A shorter one shares a passage with the next section."""

OVERLAP: Final = 200
"""Characters of a paragraph's end that are repeated in the next passage if a section is cut."""

MAX_HEADING_CHARS: Final = 120
SECTION_SEPARATOR: Final = "; "
"""The text between the headings of sections that share a passage."""

HEADING_SEPARATOR: Final = " > "
"""The text between a heading and the ones below it."""

_LEVELS: Final = 4

_HASHES: Final = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_FENCE: Final = re.compile(r" {0,3}(```|~~~)")
_RULE: Final = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*")
_DEFINITION: Final = re.compile(
    r"(?P<indent>[ \t]{0,8})"
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub"
    r"(?:\([a-z]{1,10}\))?|unsafe|override|virtual|inline|extern|const|local|data|sealed|open)"
    r"[ \t]+){0,5}"
    r"(?P<kind>def|class|func|function|fn|fun|interface|struct|enum|trait|impl|module|namespace|type"
    r"|protocol|object|record|sub|proc|defun|defmodule|create[ \t]+(?:table|view|function))\b"
    r"[ \t(]*(?P<name>[A-Za-z_$][\w$.:]{0,80})",
    re.IGNORECASE,
)
_ATTACHED: Final = re.compile(r"\s*(?:@|#|//|/\*|\*|--|;;)")
"""A line that belongs to the definition below it: a decorator, a comment."""


class Passage(NamedTuple):
    """A piece of a document: ``text[start:end]``, ``line`` (from 1) to ``end_line``."""

    start: int
    end: int
    line: int
    end_line: int
    heading: str = ""
    """The path of its headings, or its definitions."""


_Section = tuple[int, str]
"""The number of its first line, from 0, and its heading."""


def split_passages(text: str, form: str = "text") -> list[Passage]:
    """Return the passages of a text, which together have all of its words.

    ``form`` is ``markdown``, ``rst``, ``code`` or ``text``.
    """
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    sections: list[_Section] = []
    if form == "code":
        sections = _find_definitions(lines)
    elif form != "text":
        sections = _find_headings(lines, rst=form == "rst")
    if not sections or sections[0][0]:
        sections.insert(0, (0, ""))
    result = []
    for first, last, heading in _merge_sections(sections, starts):
        for begin, end in _split_section(text, first, min(last, len(text))):
            if text[begin:end].strip():
                first_line, end_line = (bisect_right(starts, place) for place in (begin, end - 1))
                result.append(Passage(begin, end, first_line, end_line, heading))
    return result


def _find_headings(lines: Sequence[str], *, rst: bool) -> list[_Section]:
    """Return the sections of Markdown or reStructuredText.

    Headings have number signs or underlines.
    """
    path: list[str] = []
    sections: list[_Section] = []
    kinds = [] if rst else ["=", "-"]  # the level of a kind of underline is its place in this list
    fence = ""
    for number, line in enumerate(lines):
        if not rst and (mark := _FENCE.match(line)):
            fence = "" if fence == mark[1] else fence or mark[1]
        elif fence:
            continue
        elif not rst and (hashes := _HASHES.match(line)):
            sections.append(
                (number, _update_heading_path(path, len(hashes[1]), hashes[2].rstrip("# \t")))
            )
        elif _is_underlined(lines, number, rst=rst):
            rule = lines[number + 1]
            has_overline = rst and number > 0 and lines[number - 1].rstrip() == rule.rstrip()
            kind = rule[0] + "^" * has_overline
            if kind not in kinds:
                kinds.append(kind)
            sections.append(
                (number - has_overline, _update_heading_path(path, kinds.index(kind) + 1, line))
            )
    return sections


def _is_underlined(lines: Sequence[str], number: int, *, rst: bool) -> bool:
    """Return whether a line is a heading by the rule below it."""
    line = lines[number]
    if not line.strip() or number + 1 == len(lines) or _RULE.fullmatch(line):
        return False
    rule = lines[number + 1]
    if not _RULE.fullmatch(rule) or not (rst or rule[0] in "=-"):
        return False
    if not rst and (line[:1] in " \t-*+>|" or (number and lines[number - 1].strip())):
        return False  # in Markdown: a list, a table, or a paragraph above a rule
    return len(rule.rstrip()) >= min(len(line.strip()), MAX_HEADING_CHARS)


def _update_heading_path(path: list[str], level: int, title: str) -> str:
    """Return a title with those above it, and update ``path``, the headings above."""
    level = min(level, _LEVELS)
    del path[level - 1 :]
    path += [""] * (level - 1 - len(path))
    path.append(" ".join(title.split())[:MAX_HEADING_CHARS])
    return HEADING_SEPARATOR.join(filter(None, path))


def _find_definitions(lines: Sequence[str]) -> list[_Section]:
    """Return a section for each outer definition, with its decorators and comments."""
    sections: list[_Section] = []
    outer = ""
    floor = 0
    for number, line in enumerate(lines):
        match = _DEFINITION.match(line)
        indent = len(match["indent"].expandtabs(4)) if match is not None else 0
        if match is None or indent > 4:
            continue
        name = f"{match['kind']} {match['name'].rstrip(':.')}"
        if indent == 0:
            outer = name
        first = number
        while first > floor and _ATTACHED.match(lines[first - 1]):
            first -= 1
        floor = number + 1
        heading = name if indent == 0 or not outer else f"{outer}{HEADING_SEPARATOR}{name}"
        sections.append((first, heading[:MAX_HEADING_CHARS]))
    return sections


def _merge_sections(
    sections: Sequence[_Section], starts: Sequence[int]
) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and heading of sections, after joining short ones."""
    ends = [starts[first] for first, _ in sections[1:]] + [starts[-1]]
    begin = end = 0
    headings: list[str] = []
    for (first, heading), last in zip(sections, ends, strict=True):
        short = end - begin < MIN_SECTION_CHARS or last - starts[first] < MIN_SECTION_CHARS
        if headings and not (short and last - begin <= TARGET_CHARS):
            yield begin, end, _join_headings(headings)
            begin, headings = starts[first], []
        headings.append(heading)
        end = last
    yield begin, end, _join_headings(headings)


def _join_headings(headings: Sequence[str]) -> str:
    unique = dict.fromkeys(filter(None, headings))
    return SECTION_SEPARATOR.join(unique)[: 4 * MAX_HEADING_CHARS]


def _split_section(text: str, offset: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield a section in pieces of a readable size.

    Each begins with the last line of the one before.
    """
    while end - offset > MAX_CHARS:
        stop = _find_cut(text, offset)
        yield offset, stop
        line = text.find("\n", max(stop - OVERLAP, offset), stop - 1)
        offset = line + 1 if line >= 0 else stop
    yield offset, end


def _find_cut(text: str, offset: int) -> int:
    """Return where to cut a long text.

    The cut is after a paragraph if possible, otherwise after a line, after a word, or anywhere.
    """
    if (blank := text.find("\n\n", offset + TARGET_CHARS, offset + MAX_CHARS)) >= 0:
        return blank + 2
    for mark in "\n ":
        if (position := text.rfind(mark, offset + TARGET_CHARS // 2, offset + MAX_CHARS)) >= 0:
            return position + 1
    return offset + TARGET_CHARS
