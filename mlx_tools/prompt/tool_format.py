"""How a model's own template tells of tools, of calls and of what came of them (style ``native``).

Plain data, read off the template once (`mlx_tools.prompt.tool_probe`) and kept in a transcript's
header: what is written by it needs no template any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from mlx_tools.messages import ToolSpec
from mlx_tools.prompt.neutralise import Composer, Neutraliser
from mlx_tools.protocol.dialects import DIALECTS, Dialect

Slots = tuple[str, ...]
"""Text with slots: words as they stand and the name of what belongs between them, in turn."""

_BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}
_SLOTTED: Final = {
    "opening": frozenset(("system", "tools")),
    "toolless": frozenset(("system",)),
    "before": frozenset(("next_id", "next_name")),
    "between": frozenset(("id", "name", "next_id", "next_name")),
    "after": frozenset(("id", "name")),
}
MAX_DESCRIPTION: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """What the template writes around tools, calls and results.

    ``opening`` stands before the first question, the system text and the tools in it; ``toolless``
    is the same without tools. A tool is written as JSON: all of OpenAI's object or its function
    alone (``wrapped``), with ``indent`` blanks a level (0: on one line), after ``margin`` at each
    further line; ``separator`` stands between two.

    ``dialect`` names the family of `DIALECTS` in which the model calls, empty where its calls are
    bare objects. ``call`` is what such a turn begins with up to the name, and what stands between
    name and arguments; ``close`` what ends it after the last call's own closing bracket.

    ``before``, ``between`` and ``after`` stand around the results of a turn's calls, behind the end
    of the model's turn, up to what asks it to write. ``encoded``: a result is a JSON string there.
    """

    opening: Slots
    toolless: Slots
    wrapped: bool
    indent: int
    compact: bool
    margin: str
    separator: str
    dialect: str
    call: tuple[str, str]
    close: str
    before: Slots
    between: Slots
    after: Slots
    encoded: bool

    def __post_init__(self) -> None:
        for name, allowed in _SLOTTED.items():
            slots: Slots = getattr(self, name)
            if len(slots) % 2 == 0 or not {*slots[1::2]} <= allowed:
                raise ValueError(f"{name} has slots that it may not have")
        if self.dialect and self.dialect not in _BY_NAME:
            raise ValueError(f"{self.dialect!r} is no known form of calls")
        if len(self.call) != 2 or not 0 <= self.indent <= 16:
            raise ValueError("call must be a pair, and indent at most 16")

    @property
    def family(self) -> Dialect | None:
        """The family in whose form the model calls, None where its calls are bare objects."""
        return _BY_NAME.get(self.dialect)

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks of that form."""
        family = self.family
        return () if family is None else tuple(filter(None, _marks(family)))

    def written(self, spec: ToolSpec, *, brief: bool = False) -> str:
        """A tool as the template writes it; ``brief`` without what is said of its arguments."""
        description = spec.description[:MAX_DESCRIPTION]
        if brief:
            description = " ".join(description[:160].split())
        parameters = _without_words(spec.parameters) if brief else spec.parameters
        return self.listed(
            {"name": spec.name, "description": description, "parameters": parameters}
        )

    def listed(self, function: Mapping[str, Any]) -> str:
        """A function's object as the template writes it."""
        value = {"type": "function", "function": function} if self.wrapped else function
        separators = (",", ":" if not self.indent else ": ") if self.compact else None
        text = json.dumps(
            value, ensure_ascii=False, indent=self.indent or None, separators=separators
        )
        return text.replace("\n", f"\n{self.margin}")

    def begin(self, system: str, tools: Sequence[str], neutraliser: Neutraliser) -> str:
        """What stands before the first question; ``system`` is neutralised, ``tools`` are not."""
        text = Composer(neutraliser)
        for part, named in slotted(self.opening if tools else self.toolless):
            if not named:
                text.host(part)
            elif part == "system":
                text.untrusted(system)
            else:
                for number, tool in enumerate(tools):
                    text.host(self.separator if number else "")
                    text.untrusted(neutraliser.in_json(tool))
        return str(text)

    def result(self, text: str, neutraliser: Neutraliser) -> str:
        """The text of a result as it stands between the delimiters."""
        if self.encoded:
            return neutraliser.in_json(json.dumps(text, ensure_ascii=False))
        return neutraliser.plain(text)

    def to_json(self) -> dict[str, Any]:
        """The format as a JSON object."""
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in fields(self)
            for value in (getattr(self, field.name),)
        }

    @classmethod
    def from_json(cls, value: Any) -> ToolFormat:
        """The format that `to_json` gave. Raises `TypeError` or `ValueError` for anything else."""
        if not isinstance(value, Mapping):
            raise TypeError("tools must be an object")
        kinds = {"wrapped": bool, "compact": bool, "encoded": bool, "indent": int}
        kinds |= dict.fromkeys(("margin", "separator", "dialect", "close"), str)
        given: dict[str, Any] = {}
        for field in fields(cls):
            item, kind = value.get(field.name), kinds.get(field.name, list)
            texts = kind is list and isinstance(item, list) and {*map(type, item)} <= {str}
            if not texts and (kind is list or type(item) is not kind):
                raise ValueError(f"tools.{field.name} has a value of the wrong type")
            given[field.name] = tuple(item) if isinstance(item, list) else item
        return cls(**given)


def slotted(slots: Slots) -> Iterator[tuple[str, bool]]:
    """The parts of a text with slots, and whether each is the name of one."""
    return ((part, bool(number % 2)) for number, part in enumerate(slots))


def filled(slots: Slots, values: Mapping[str, str]) -> str:
    """The text with values in its slots."""
    return "".join(values[part] if named else part for part, named in slotted(slots))


def slots_of(text: str, values: Mapping[str, str]) -> Slots:
    """``text`` with slots where ``values`` stand, by their names."""
    parts: tuple[str, ...] = (text,)
    for name, value in values.items():
        cut: list[str] = []
        for number, part in enumerate(parts):
            if number % 2:
                cut.append(part)
                continue
            for place, piece in enumerate(part.split(value)):
                cut += [name, piece] if place else [piece]
        parts = tuple(cut)
    return parts


def _marks(family: Dialect) -> tuple[str, ...]:
    return (family.open, family.close, *family.inner)


_WORDS: Final = frozenset(("description", "title", "examples", "$comment", "default"))
_NAMED: Final = frozenset(("properties", "patternProperties", "$defs", "definitions"))


def _without_words(schema: Any) -> Any:
    """A schema without its descriptions; the names of properties stay, whatever they are."""
    if isinstance(schema, list | tuple):
        return [_without_words(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: {name: _without_words(item) for name, item in value.items()}
        if key in _NAMED and isinstance(value, Mapping)
        else value
        if key in ("enum", "const", "required")
        else _without_words(value)
        for key, value in schema.items()
        if key not in _WORDS
    }
