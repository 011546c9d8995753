"""Docstrings read: the words for a function and for each parameter, in three usual styles."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_PARAMETERS: Final = frozenset(
    {
        *("args", "arguments", "parameters", "params", "other parameters"),
        *("keyword args", "keyword arguments"),
    }
)
_OTHERS: Final = frozenset(
    {
        *("attributes", "caution", "danger", "error", "example", "examples", "hint", "important"),
        *("methods", "note", "notes", "raises", "references", "return", "returns", "see also"),
        *("tip", "todo", "warning", "warnings", "warns", "yield", "yields"),
    }
)
_FIELD = re.compile(r"[:@](\w+)(?:\s+([^:]*?))?:(?:\s+(.*))?$")
_FIELD_NAMES: Final = frozenset(("arg", "argument", "key", "keyword", "param", "parameter"))
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*(?:\([^)]*\)[^)]*)*\))?\s*:(?:\s+(.*))?$")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_BULLET = re.compile(r"(?:[-*+•]|\d+[.)])\s")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The text before the first section, and the descriptions of the parameters by name."""

    text: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


def docstring_of(function: Any) -> Docstring:
    """Return what is said of what a call runs: of a partial function that is the function, of an
    object its method ``__call__``, or where that says nothing, its class."""
    while isinstance(function, functools.partial):
        function = function.func
    own = inspect.isroutine(function) or isinstance(function, type) or "__doc__" in vars(function)
    text = None if own else type(function).__call__.__doc__
    return parse_docstring(text or inspect.getdoc(function))


def parse_docstring(text: str | None) -> Docstring:
    """Reads a docstring in any of the three styles; what is in none of them is plain text."""
    lines = _indented(inspect.cleandoc(text or "").expandtabs().split("\n"))
    prose: list[str] = []
    found: dict[str, list[str]] = {}
    at, sections = 0, False
    while at < len(lines):
        title, field_match = _section(lines, at), _FIELD.match(lines[at])
        entries: Iterable[tuple[str, str]] = ()
        if title is not None:
            underlined = _is_underline(lines, at + 1)
            start = at + 1 + underlined
            end = _section_end(lines, start, underlined)
            if title in _PARAMETERS:
                entries = (_numpy if underlined else _google)(lines[start:end])
        elif field_match:
            end = at + 1
            while end < len(lines) and lines[end].startswith(" "):
                end += 1
            entries = _sphinx(field_match, lines[at + 1 : end])
        else:
            end = at + 1
            prose += [] if sections else [lines[at]]
        for name, words in entries:
            found.setdefault(name, []).append(words)
        sections |= title is not None or field_match is not None
        at = end
    words_of = {name: " ".join(" ".join(parts).split()) for name, parts in found.items()}
    return Docstring(_paragraphs(prose), {name: said for name, said in words_of.items() if said})


def _indented(lines: list[str]) -> list[str]:
    """The lines, where the first is a section's title with what the section had of indents: where
    there is nothing but this section they were taken for the margin."""
    only = len(lines) > 1 and _section(lines, 0) in _PARAMETERS and not _is_underline(lines, 1)
    if not only or lines[1][:1] <= " ":
        return lines
    return [lines[0], *(f" {line}" for line in lines[1:])]


def _section(lines: list[str], at: int) -> str | None:
    """The title of the section that begins here, in lower case, or None."""
    line = lines[at]
    if line != line.strip():
        return None
    title = line.removesuffix(":").strip().lower()
    if title not in _PARAMETERS and title not in _OTHERS:
        return None
    return title if line.endswith(":") or _is_underline(lines, at + 1) else None


def _is_underline(lines: list[str], at: int) -> bool:
    return at < len(lines) and bool(re.fullmatch(r"[-=~]{3,}", lines[at].strip()))


def _section_end(lines: list[str], start: int, underlined: bool) -> int:
    """Return where the section's body ends: at the next section, or (Google) at text not
    indented."""
    for at in range(start, len(lines)):
        if lines[at].strip() == "":
            continue
        indented = lines[at].startswith(" ")
        if not indented and (not underlined or _section(lines, at) or _FIELD.match(lines[at])):
            return at
    return len(lines)


def _google(body: list[str]) -> Iterator[tuple[str, str]]:
    indents = [len(line) - len(line.lstrip()) for line in body if line.strip()]
    name = None
    for line in body:
        indent = len(line) - len(line.lstrip())
        match = _GOOGLE_ENTRY.match(line.strip()) if indent == min(indents, default=0) else None
        if match:
            name = match[1]
            yield name, match[2] or ""
        elif name is not None:
            yield name, line.strip()


def _numpy(body: list[str]) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    for line in body:
        match = _NUMPY_ENTRY.match(line) if line.strip() and not line.startswith(" ") else None
        if match:
            names = [name.strip().lstrip("*") for name in match[1].split(",")]
        for name in names:
            yield name, "" if match else line.strip()


def _sphinx(match: re.Match[str], more: list[str]) -> Iterator[tuple[str, str]]:
    if match[1].lower() in _FIELD_NAMES and match[2]:
        name = match[2].split()[-1].lstrip("*\\")
        yield from ((name, text) for text in (match[3] or "", *(line.strip() for line in more)))


def _paragraphs(lines: list[str]) -> str:
    """Paragraphs with their lines joined; lists and indented text keep their lines."""
    paragraphs = []
    for block in "\n".join(lines).strip("\n").split("\n\n"):
        rows = [row.rstrip() for row in block.strip("\n").split("\n")]
        keep = any(row.startswith(" ") or _BULLET.match(row) for row in rows)
        text = "\n".join(rows) if keep else " ".join(row.strip() for row in rows)
        if text.strip():
            paragraphs.append(text)
    return "\n\n".join(paragraphs)
