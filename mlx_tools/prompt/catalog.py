"""The tools as the model sees them: one line each, a signature and what the tool does.

    weather(city: string, days?: integer = 3, unit?: "c"|"f") - Forecast for a city. city: its name

A signature costs a fifth of a JSON schema's tokens, and small models call it right more often.
Descriptions and schemas may come from anybody: each comes to one line of bounded length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.messages import TOOL_NAME, ToolSpec
from mlx_tools.schema.resolve import (
    branches,
    dereferenced,
    follow,
    properties,
    required,
    types,
)

MAX_LINE_CHARS: Final = 600
MAX_DESCRIPTION_CHARS: Final = 240
MAX_HINT_CHARS: Final = 80
MAX_NODES: Final = 200
MAX_ITEMS: Final = 16
MAX_VALUE_CHARS: Final = 60

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_HEAD: Final = re.compile(rf"^({TOOL_NAME.pattern})\(", re.ASCII | re.MULTILINE)
_BLANK: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")


@dataclass(frozen=True, slots=True)
class _Detail:
    """How much of a tool is told."""

    depth: int
    description: int
    hints: bool
    optional: bool = True


_DETAILS: Final = (
    _Detail(depth=3, description=MAX_DESCRIPTION_CHARS, hints=True),
    _Detail(depth=2, description=160, hints=False),
    _Detail(depth=1, description=100, hints=False),
    _Detail(depth=0, description=60, hints=False),
    _Detail(depth=0, description=60, hints=False, optional=False),
    _Detail(depth=0, description=0, hints=False, optional=False),
)
_USABLE: Final = _DETAILS[:4]
"""What still tells all arguments of a tool and what it does; the rest is for single tools whose
line would be too long."""

LEAST_SHOWN: Final = 10
"""So many tools are shown in less detail rather than fewer in more."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The lines of the tools that are shown, and the names of those shown and hidden.

    ``shown`` and ``lines`` go together. ``search`` says whether the last of them is the tool that
    finds the hidden ones.
    """

    lines: tuple[str, ...]
    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    search: bool = False


def count_tokens(text: str) -> int:
    """About how many tokens a text has: one for four characters."""
    return -(-len(text) // 4)


_Lines = list[tuple[ToolSpec, str]]
"""Tools with their lines."""


def build_catalog(
    tools: Sequence[ToolSpec],
    budget: int,
    count: Callable[[str], int] = count_tokens,
    *,
    best: Callable[[], Sequence[ToolSpec]] | None = None,
    search: ToolSpec | None = None,
    write: Callable[[ToolSpec, bool], str] | None = None,
) -> Catalog:
    """The catalog of ``tools`` within ``budget`` tokens, line ends included.

    ``write`` writes a tool in another form, given whether it is to be brief.

    All tools are told of in the same detail, the most that fits, in their own order. Where the
    least that makes a tool usable (its arguments, and what it does) is too much, a shortlist is
    shown: those of ``best()``, the best first (without it the tools as they come), each if it
    still fits, in as much detail as leaves room for `LEAST_SHOWN`. ``search``, which is not
    among the tools, then stands last, in a quarter of the budget if it can. One tool is always
    shown.
    """
    wide, narrow = _USABLE[0], _USABLE[-1]
    usable = _USABLE if write is None else (wide, narrow)

    def line(tool: ToolSpec, detail: _Detail) -> str:
        return _line(tool, detail) if write is None else write(tool, detail is narrow)

    for detail in usable:
        fitting = _fitting(tools, detail, budget, count, line, whole=True)
        if len(fitting) == len(tools):
            return _catalog(fitting, tools)
    last = _last(
        search, budget // 4, count, [line(search, one) for one in usable] if search else []
    )
    left = budget - sum(count(f"{text}\n") for _, text in last)
    ordered = tools if best is None else best()
    kept: _Lines = []
    for detail in usable:
        kept = _fitting(ordered, detail, left, count, line)
        if len(kept) >= min(LEAST_SHOWN, len(ordered)):
            break
    if not kept:
        kept = [(ordered[0], line(ordered[0], narrow))]
    return _catalog(kept, tools, last)


def _last(
    search: ToolSpec | None, budget: int, count: Callable[[str], int], lines: Sequence[str]
) -> _Lines:
    """The search with its line, in the most detail that fits, or the least."""
    if search is None:
        return []
    fitting = (line for line in lines if count(f"{line}\n") <= budget)
    return [(search, next(fitting, lines[-1]))]


def _catalog(kept: _Lines, tools: Sequence[ToolSpec], last: _Lines | None = None) -> Catalog:
    shown = {tool.name for tool, _ in kept}
    told = [*kept, *(last or ())]
    return Catalog(
        lines=tuple(line for _, line in told),
        shown=tuple(tool.name for tool, _ in told),
        hidden=tuple(tool.name for tool in tools if tool.name not in shown),
        search=bool(last),
    )


def _fitting(
    tools: Sequence[ToolSpec],
    detail: _Detail,
    budget: int,
    count: Callable[[str], int],
    write: Callable[[ToolSpec, _Detail], str],
    *,
    whole: bool = False,
) -> _Lines:
    """The tools that fit, each if it still does, with their lines. ``whole``: ends at the first
    that does not."""
    kept: _Lines = []
    left = budget
    for tool in tools:
        line = write(tool, detail)
        cost = count(f"{line}\n")
        if cost <= left:
            kept.append((tool, line))
            left -= cost
        elif whole or left <= 0:
            break
    return kept


def names_in(text: str) -> list[str]:
    """The names of the tools whose lines stand in ``text``, as `build_catalog` wrote them."""
    return _HEAD.findall(text)


def signature(spec: ToolSpec) -> str:
    """A tool's line in full detail, as far as it fits."""
    return _line(spec, _DETAILS[0])


def one_line(text: str, limit: int) -> str:
    """``text`` with white space and invisible characters as single spaces, cut to ``limit``."""
    line = _BLANK.sub(" ", text[: 8 * limit]).strip()
    return line if len(line) <= limit and len(text) <= 8 * limit else _cut(line, limit)


def _cut(text: str, limit: int) -> str:
    if limit < 1:
        return ""
    return text[: limit - 1].rstrip() + "…"


def _line(spec: ToolSpec, detail: _Detail) -> str:
    line = ""
    for less in _DETAILS[_DETAILS.index(detail) :]:
        line = _written(spec, less)
        if len(line) <= MAX_LINE_CHARS:
            return line
    return _cut(line, MAX_LINE_CHARS)


def _written(spec: ToolSpec, detail: _Detail) -> str:
    schema = dereferenced(spec.parameters, spec.parameters)
    writer = _TypeWriter(spec.parameters, detail.depth)
    arguments = writer.members(schema, detail.depth, optional=detail.optional)
    said = _first_lines(spec.description, detail.description)
    if detail.hints:
        said = " ".join(filter(None, (said, *_hints(schema, spec.parameters))))
    return f"{spec.name}({', '.join(arguments)})" + (f" - {said}" if said else "")


def _first_lines(description: str, limit: int) -> str:
    """The first paragraph of a description, in one line."""
    first = re.split(r"\n[ \t]*\n", description[: 8 * MAX_LINE_CHARS].strip(), maxsplit=1)[0]
    return one_line(first, limit) if limit else ""


def _hints(schema: Any, root: Mapping[str, Any]) -> list[str]:
    """What short descriptions the arguments have of their own."""
    said = []
    for name, member in list(properties(schema).items())[:MAX_ITEMS]:
        described = member.get("description") if isinstance(member, Mapping) else None
        if not isinstance(described, str):
            resolved = dereferenced(member, root)
            described = resolved.get("description") if isinstance(resolved, Mapping) else None
        if isinstance(described, str) and 0 < len(described.strip()) <= MAX_HINT_CHARS:
            said.append(f"{_key(name)}: {one_line(described, MAX_HINT_CHARS).rstrip('.')}.")
    return said


class _TypeWriter:
    """Writes schemas as types; stops at a bound on the parts of one signature."""

    def __init__(self, root: Mapping[str, Any], depth: int) -> None:
        self._root = root
        self._left = MAX_NODES
        self._within: list[str] = []

    def members(self, schema: Any, depth: int, *, optional: bool = True) -> list[str]:
        """The properties of an object as ``name: type``, the optional ones with a ``?``."""
        needed = required(schema)
        named = properties(schema)
        names = [name for name in named if optional or name in needed]
        names += [name for name in needed if name not in named]
        written: list[str] = []
        for name in names:
            if self._left <= 0 or len(written) >= 4 * MAX_ITEMS:
                written.append("…")
                break
            member = named.get(name, {})
            mark = "" if name in needed else "?"
            written.append(f"{_key(name)}{mark}: {self.type(member, depth)}{_default(member)}")
        if not optional and len(names) < len(named):
            written.append("…")
        return written

    def type(self, schema: Any, depth: int) -> str:
        """A schema as a type."""
        self._left -= 1
        if self._left < 0 or not isinstance(schema, Mapping):
            return "any"
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return self._type(schema, depth)
        name = one_line(reference.rpartition("/")[2], MAX_VALUE_CHARS)
        if reference in self._within:
            return name if _NAME.fullmatch(name) else "object"
        self._within.append(reference)
        written = self.type(follow(reference, self._root), depth)
        self._within.pop()
        return written

    def _type(self, schema: Mapping[str, Any], depth: int) -> str:
        if "const" in schema:
            return _value(schema["const"])
        values = schema.get("enum")
        if isinstance(values, list) and values:
            return _union([_value(value) for value in values])
        if found := branches(schema):
            return _union([self.type(branch, depth) for branch in found[:MAX_ITEMS]])
        parts = schema.get("allOf")
        if isinstance(parts, list) and parts and "properties" not in schema:
            return self.type(parts[0], depth)
        named = types(schema)
        if not named:
            return "any"
        return _union([self._one(name, schema, depth) for name in named])

    def _one(self, name: str, schema: Mapping[str, Any], depth: int) -> str:
        if name == "array":
            item = self.type(schema.get("items", {}), depth)
            item = "" if item == "any" else item
            return f"({item})[]" if "|" in item else f"{item or 'any'}[]"
        if name == "object":
            return self._object(schema, depth)
        return _simple(name, schema)

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        if properties(schema):
            return "{" + ", ".join(self.members(schema, depth - 1)) + "}" if depth else "object"
        more = schema.get("additionalProperties")
        if depth and isinstance(more, Mapping) and more:
            return f"{{[name]: {self.type(more, depth - 1)}}}"
        return "object"


def _simple(name: str, schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if name in ("integer", "number") and _number(low) and _number(high):
        return f"{name} {low}..{high}"
    form = schema.get("format")
    if name == "string" and isinstance(form, str) and _NAME.fullmatch(form.replace("-", "_")):
        return f"string {form[:20]}"
    return name if _NAME.fullmatch(name) else "any"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _union(names: Sequence[str]) -> str:
    some = list(dict.fromkeys(names))
    return "|".join(some[:MAX_ITEMS]) + ("|…" if len(some) > MAX_ITEMS else "")


def _value(value: Any) -> str:
    """A JSON value in one short line; a number beyond 4,300 digits cannot be written."""
    if isinstance(value, str):
        return json.dumps(one_line(value, MAX_VALUE_CHARS), ensure_ascii=False)
    if isinstance(value, bool | None) or _number(value):
        return json.dumps(value)
    return "object" if isinstance(value, Mapping) else "any"


def _default(schema: Any) -> str:
    if not isinstance(schema, Mapping) or "default" not in schema:
        return ""
    default = schema["default"]
    short = default is not None and not isinstance(default, Mapping | list)
    return f" = {_value(default)}" if short and default != "" else ""


def _key(name: str) -> str:
    return name if _NAME.fullmatch(name) and len(name) <= 64 else _value(name)
