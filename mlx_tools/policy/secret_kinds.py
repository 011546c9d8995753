"""The table of secrets, ``config/secrets.toml``: shapes, names that tell, and words that do not.

It is read once, when this module is first imported, which redaction alone does.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from mlx_tools.paths import read_data

_COLOUR: Final = r"(?<=[\[;0-9][0-9]m)|(?<=\[m)"
_PARTS: Final = {
    "<left>": rf"(?:(?<![A-Za-z0-9])|{_COLOUR})",
    "<edge>": rf"(?:(?<![\w.-])|{_COLOUR})",
    "<right>": "(?![A-Za-z0-9])",
    "<uuid>": "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
}
"""What a pattern of the table may hold by name."""

TABLE: Final[dict[str, list[dict[str, Any]]]] = tomllib.loads(read_data("config/secrets.toml"))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of secret: its name as placeholders show it, hints (one of them is in every such
    secret), and its shape."""

    name: str
    hints: tuple[str, ...]
    pattern: str


def _kind(entry: dict[str, str]) -> Kind:
    pattern = entry["pattern"]
    for name, part in _PARTS.items():
        pattern = pattern.replace(name, part)
    return Kind(entry["kind"], tuple(entry["hints"].split()), pattern)


TOKEN_KINDS: Final = tuple(map(_kind, TABLE["tokens"]))
"""All that have a shape; where two meet, the one that comes first names what was found."""

CONTEXT_KINDS: Final = tuple(entry["kind"] for entry in (*TABLE["contexts"], *TABLE["names"]))
"""Kinds that are known by what stands before them (`mlx_tools.policy.secret_context`)."""

PATH: Final = "path"
"""What a redacted folder is called, where paths are redacted too."""

KIND_NAMES: Final = frozenset({kind.name for kind in TOKEN_KINDS} | {*CONTEXT_KINDS, PATH})
"""Every name that a placeholder of ours can hold."""


def words_of(group: str, column: str) -> frozenset[str]:
    """The words in a column of all entries of a group of the table."""
    return frozenset(word for entry in TABLE[group] for word in entry.get(column, "").split())


@cache
def compiled() -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, re.Pattern[str]], ...]]:
    """Every hint with the place of its kind, and the kinds' names and patterns.

    Compiled when first used, since it takes a while.
    """
    hints = tuple((hint, at) for at, kind in enumerate(TOKEN_KINDS) for hint in kind.hints)
    return hints, tuple((kind.name, re.compile(kind.pattern, re.ASCII)) for kind in TOKEN_KINDS)
