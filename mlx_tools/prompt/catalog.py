"""The catalog of tools in a prompt: one line for each, signature and description.

    weather(city: string, days?: integer = 3, unit?: "c"|"f") - Forecast for a city. city: its name

A signature costs a fifth of a JSON schema's tokens, and small models call it right more often.
Descriptions and schemas may come from anybody: each becomes one line of bounded length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mlx_tools.messages import TOOL_NAME, ToolSpec
from mlx_tools.prompt.descriptions import with_descriptions
from mlx_tools.schema import (
    dereference,
    follow,
    list_branches,
    list_types,
    read_properties,
    read_required,
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


class _Limits(NamedTuple):
    """The bounds of one signature: parts, items of a list, characters of a value."""

    nodes: int = MAX_NODES
    items: int = MAX_ITEMS
    chars: int = MAX_VALUE_CHARS


_LIMITS: Final = _Limits()
_WHOLE_LIMITS: Final = _Limits(nodes=5_000, items=500, chars=1_000)


class _Detail(NamedTuple):
    """The amount of detail in a tool's line."""

    depth: int
    description: int
    hints: bool = False
    optional: bool = True


_WHOLE: Final = _Detail(depth=8, description=0)

_DETAILS: Final = (
    _Detail(depth=3, description=MAX_DESCRIPTION_CHARS, hints=True),
    _Detail(depth=2, description=160),
    _Detail(depth=1, description=100),
    _Detail(depth=0, description=60),
    _Detail(depth=0, description=60, optional=False),
    _Detail(depth=0, description=0, optional=False),
)
_USABLE: Final = 4
"""Characters of a line that still describes all arguments of a tool and its purpose. The rest is
for single tools whose line would be too long."""

MIN_SHOWN_TOOLS: Final = 10
"""Tools that are rather shown in less detail than left out."""


class Catalog(Struct, frozen=True):
    """The lines of the shown tools, and the names of those shown and hidden.

    ``shown_names`` and ``lines`` go together. ``search`` is True if the last of them is the tool
    that finds the hidden ones.
    """

    lines: tuple[str, ...]
    shown_names: tuple[str, ...]
    hidden_names: tuple[str, ...]
    search: bool = False


def count_tokens(text: str) -> int:
    """Estimate the tokens of a text: one for four characters."""
    return -(-len(text) // 4)


_Write = Callable[[ToolSpec], str]
_Lines = list[tuple[ToolSpec, str]]
"""Tools with their lines."""


def build_catalog(
    tools: Sequence[ToolSpec],
    budget: int,
    count: Callable[[str], int] = count_tokens,
    *,
    best: Callable[[], Sequence[ToolSpec]] | None = None,
    search: ToolSpec | None = None,
    write: Sequence[_Write] = (),
) -> Catalog:
    """Return the catalog of ``tools`` within a budget of tokens.

    All tools are written in the same form, the longest that fits, in their own order. If the
    shortest is too long, a shortlist is shown, each tool if it still fits, in a form that leaves
    room for `MIN_SHOWN_TOOLS`. ``search`` then stands last, in a quarter of the budget if it can.
    One tool is always shown.

    Args:
        tools: the tools.
        budget: the tokens, line ends included.
        count: counts the tokens of a text.
        best: returns the tools of a shortlist, the best first; without it they come in their order.
        search: the tool that finds hidden tools, which is not among ``tools``.
        write: the forms in which a tool may be written, the longest first; without it those of
            `signature`, in less and less detail.
    """
    forms = write or [partial(signature, detail=detail) for detail in range(_USABLE)]
    for form in forms:
        kept = _select_fitting(tools, form, budget, count, whole=True)
        if len(kept) == len(tools):
            return _catalog(kept, tools, search=False)
    last: _Lines = []
    if search is not None:
        lines = [form(search) for form in forms]
        fitting = (line for line in lines if count(f"{line}\n") <= budget // 4)
        last = [(search, next(fitting, lines[-1]))]
        budget -= count(f"{last[0][1]}\n")
    ordered = tools if best is None else best()
    for form in forms:
        kept = _select_fitting(ordered, form, budget, count)
        if len(kept) >= min(MIN_SHOWN_TOOLS, len(ordered)):
            break
    kept = kept or [(ordered[0], forms[-1](ordered[0]))]
    return _catalog([*kept, *last], tools, search=bool(last))


def _catalog(known_lines: _Lines, tools: Sequence[ToolSpec], *, search: bool) -> Catalog:
    shown = {tool.name: None for tool, _ in known_lines}
    hidden = tuple(tool.name for tool in tools if tool.name not in shown)
    return Catalog(tuple(line for _, line in known_lines), tuple(shown), hidden, search)


def _select_fitting(
    tools: Sequence[ToolSpec],
    form: _Write,
    budget: int,
    count: Callable[[str], int],
    *,
    whole: bool = False,
) -> _Lines:
    """Return the tools that fit, with their lines.

    Each is added if it still fits. With ``whole`` the selection ends at the first tool that does
    not.
    """
    kept: _Lines = []
    for tool in tools:
        line = form(tool)
        cost = count(f"{line}\n")
        if cost <= budget:
            kept.append((tool, line))
            budget -= cost
        elif whole or budget <= 0:
            break
    return kept


def parse_tool_names(text: str) -> list[str]:
    """Return the names of the tools whose catalog lines are in ``text``."""
    return _HEAD.findall(text)


MAX_CACHED_LINES: Final = 16_384
"""Lines of tools that are kept: of three times as many tools as the largest set of MCP servers that
was measured (5,000), at most 400 characters each."""

_lines_by_tool: dict[tuple[str, int], str] = {}


def signature(spec: ToolSpec, detail: int = 0) -> str:
    """Return a tool's line in full detail, or in less, so that it fits."""
    try:
        key = spec.digest(), detail
    except (TypeError, ValueError, RecursionError):  # values that JSON does not have
        return _signature(spec, detail)
    line = _lines_by_tool.get(key)
    if line is None:
        if len(_lines_by_tool) >= MAX_CACHED_LINES:
            _lines_by_tool.clear()
        line = _lines_by_tool[key] = _signature(spec, detail)
    return line


def _signature(spec: ToolSpec, detail: int) -> str:
    line = ""
    for less in _DETAILS[detail:]:
        line = _format_tool(spec, less)
        if len(line) <= MAX_LINE_CHARS:
            return line
    return _cut(line, MAX_LINE_CHARS)


def whole_signature(spec: ToolSpec) -> str:
    """Return a tool's line in full detail, with the descriptions of its parameters."""
    return with_descriptions(_format_tool(spec, _WHOLE, _WHOLE_LIMITS), spec)


def one_line(text: str, limit: int) -> str:
    """Return ``text`` on one line of at most ``limit`` characters.

    White space and invisible characters become single spaces.
    """
    line = _BLANK.sub(" ", text[: 8 * limit]).strip()
    return line if len(line) <= limit and len(text) <= 8 * limit else _cut(line, limit)


def _cut(text: str, limit: int) -> str:
    return f"{text[: limit - 1].rstrip()}…" if limit else ""


def _format_tool(spec: ToolSpec, detail: _Detail, limits: _Limits = _LIMITS) -> str:
    schema = dereference(spec.parameters, spec.parameters)
    writer = _TypeWriter(spec.parameters, limits)
    arguments = writer.members(schema, detail.depth, optional=detail.optional)
    first = re.split(r"\n[ \t]*\n", spec.description[: 8 * MAX_LINE_CHARS].strip(), maxsplit=1)[0]
    said = [one_line(first, detail.description)]
    if detail.hints:
        said += _hints(schema, spec.parameters)
    told = " ".join(filter(None, said))
    return f"{spec.name}({', '.join(arguments)})" + (f" - {told}" if told else "")


def _hints(schema: Any, root: Mapping[str, Any]) -> list[str]:
    """Return the short descriptions of the arguments."""
    said = []
    for name, member in list(read_properties(schema).items())[:MAX_ITEMS]:
        described = member.get("description") if isinstance(member, Mapping) else None
        if not isinstance(described, str):
            resolved = dereference(member, root)
            described = resolved.get("description") if isinstance(resolved, Mapping) else None
        if isinstance(described, str) and 0 < len(described.strip()) <= MAX_HINT_CHARS:
            said.append(f"{_key(name)}: {one_line(described, MAX_HINT_CHARS).rstrip('.')}.")
    return said


class _TypeWriter:
    """A writer of schemas as types; it stops at a limit on the parts of one signature."""

    def __init__(self, root: Mapping[str, Any], limits: _Limits) -> None:
        self._root, self._limits = root, limits
        self._depth_left = limits.nodes
        self._root_definitions: list[str] = []

    def members(self, schema: Any, depth: int, *, optional: bool = True) -> list[str]:
        """Return an object's properties as ``name: type``, the optional ones with a ``?``."""
        needed = read_required(schema)
        named = read_properties(schema)
        names = [name for name in named if optional or name in needed]
        names += [name for name in needed if name not in named]
        written: list[str] = []
        for name in names:
            if self._depth_left <= 0 or len(written) >= 4 * self._limits.items:
                written.append("…")
                break
            member = named.get(name, {})
            mark = "" if name in needed else "?"
            written.append(f"{_key(name)}{mark}: {self._type(member, depth)}{_default(member)}")
        if not optional and len(names) < len(named):
            written.append("…")
        return written

    def _type(self, schema: Any, depth: int) -> str:
        self._depth_left -= 1
        if self._depth_left < 0 or not isinstance(schema, Mapping):
            return "any"
        if isinstance(reference := schema.get("$ref"), str):
            name = one_line(reference.rpartition("/")[2], MAX_VALUE_CHARS)
            if reference in self._root_definitions:
                return name if _NAME.fullmatch(name) else "object"
            self._root_definitions.append(reference)
            written = self._type(follow(reference, self._root), depth)
            self._root_definitions.pop()
            return written
        if "const" in schema:
            return _value(schema["const"], self._limits.chars)
        values, parts, most = schema.get("enum"), schema.get("allOf"), self._limits.items
        if isinstance(values, list) and values:
            return _union((_value(value, self._limits.chars) for value in values), most)
        if found := list_branches(schema):
            return _union([self._type(branch, depth) for branch in found[:most]], most)
        if isinstance(parts, list) and parts and "properties" not in schema:
            return self._type(parts[0], depth)
        names = [self._render_type(name, schema, depth) for name in list_types(schema)]
        return _union(names, self._limits.items) or "any"

    def _render_type(self, name: str, schema: Mapping[str, Any], depth: int) -> str:
        if name == "array":
            item = self._type(schema.get("items", {}), depth)
            return f"({item})[]" if "|" in item else f"{item}[]"
        if name != "object":
            return _simple(name, schema)
        if read_properties(schema):
            return "{" + ", ".join(self.members(schema, depth - 1)) + "}" if depth else "object"
        more = schema.get("additionalProperties")
        if depth and isinstance(more, Mapping) and more:
            return f"{{[name]: {self._type(more, depth - 1)}}}"
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


def _union(names: Iterable[str], limit: int) -> str:
    some = list(dict.fromkeys(names))
    return "|".join(some[:limit]) + ("|…" if len(some) > limit else "")


def _value(value: Any, limit: int = MAX_VALUE_CHARS) -> str:
    """Return a JSON value on one short line.

    A number of more than 4,300 digits cannot be written.
    """
    if isinstance(value, str):
        return json.dumps(one_line(value, limit), ensure_ascii=False)
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
