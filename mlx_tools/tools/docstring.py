"""Docstrings read: the words for a function and for each parameter, in the usual styles."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_BULLET = re.compile(r"(?:[-*+•]|\d+[.)])\s")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The text before the first section, and the descriptions of the parameters by name."""

    text: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Docstring:
    """Reads a docstring of Google's, numpy's, Sphinx' or Epydoc's style; what is in none of them is
    plain text."""
    if not text:
        return Docstring()
    from docstring_parser import ParseError, parse

    plain = inspect.cleandoc(text).expandtabs()
    try:
        found = parse(plain)
    except ParseError:
        return Docstring(_paragraphs(plain))
    said = {
        name.strip().lstrip("*\\"): " ".join((one.description or "").split())
        for one in found.params
        for name in one.arg_name.split(",")
    }
    return Docstring(
        _paragraphs(found.description or ""), {name: words for name, words in said.items() if words}
    )


def _paragraphs(text: str) -> str:
    """Paragraphs with their lines joined; lists and indented text keep their lines."""
    paragraphs = []
    for block in text.strip("\n").split("\n\n"):
        rows = [row.rstrip() for row in block.strip("\n").split("\n")]
        keep = any(row.startswith(" ") or _BULLET.match(row) for row in rows)
        text = "\n".join(rows) if keep else " ".join(row.strip() for row in rows)
        if text.strip():
            paragraphs.append(text)
    return "\n\n".join(paragraphs)
