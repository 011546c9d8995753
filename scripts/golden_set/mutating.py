"""A mutation, and a transcript as a mutation sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from mlx_tools.golden import Golden, Room, read_golden
from mlx_tools.transcript.records import CallRecord, GoldenRecord, UserRecord


class Facts:
    """The view of a transcript that a predicate may ask."""

    def __init__(self, golden: Golden, name: str) -> None:
        self.golden = golden
        self.name = name
        self.header = golden.header
        self.features = frozenset(golden.golden.features)

    @classmethod
    def of(cls, path: Path, folder: Path) -> Facts:
        """The facts of a file."""
        return cls(read_golden(path), str(path.relative_to(folder).with_suffix("")))

    @cached_property
    def text(self) -> str:
        """All texts of the header and of the run, one after the other."""
        return "\n".join(
            text
            for record in self.golden.all
            if not isinstance(record, GoldenRecord)
            for text in _texts(record)
        )

    @property
    def tools(self) -> frozenset[str]:
        """The tools that were recorded, those besides the catalog too."""
        return frozenset(t["name"] for t in (*self.header.tools, *self.golden.golden.extra_tools))

    @property
    def calls(self) -> list[CallRecord]:
        """The calls that were read."""
        return [r for r in self.golden.records if isinstance(r, CallRecord)]

    @property
    def questions(self) -> list[UserRecord]:
        """The questions."""
        return [r for r in self.golden.records if isinstance(r, UserRecord)]

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of the run."""
        return dict(self.header.limits)

    @property
    def policy(self) -> dict[str, Any]:
        """The policy of the run."""
        return dict(self.header.policy)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Struct):
        return [t for name in value.__struct_fields__ for t in _texts(getattr(value, name))]
    if isinstance(value, dict):
        return [t for item in value.values() for t in _texts(item)]
    if isinstance(value, tuple | list):
        return [t for item in value for t in _texts(item)]
    return []


Holds = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A small change of the code or of its words.

    ``old``, which stands in ``file`` once, becomes ``new``. ``room`` is where the difference must
    be found, and nowhere else but in the rooms ``follows``: a call that is no longer asked about
    also ends the run otherwise. ``hits`` are the transcripts that must fail, all others must not,
    and ``who`` says in words which these are.
    """

    name: str
    file: str
    old: str
    new: str
    room: Room
    hits: Holds
    who: str
    follows: tuple[Room, ...] = ()


def has(*features: str) -> Holds:
    """Return a predicate: the transcript has one of these features."""
    return lambda facts: not facts.features.isdisjoint(features)


def has_all(*wanted: Holds) -> Holds:
    """Return a predicate: all of these predicates hold."""
    return lambda facts: all(one(facts) for one in wanted)


def lacks(unwanted: Holds) -> Holds:
    """Return a predicate: this predicate does not hold."""
    return lambda facts: not unwanted(facts)


def contains_text(text: str) -> Holds:
    """Return a predicate: the run has a text."""
    return lambda facts: text in facts.text


def has_in_prompt(text: str) -> Holds:
    """Return a predicate: the system prompt or the examples have a text."""
    return lambda facts: (
        text in facts.header.system or any(text in t["content"] for t in facts.header.examples)
    )


def has_tool(tool: str) -> Holds:
    """Return a predicate: the run had a built-in tool."""
    return lambda facts: tool in facts.tools
