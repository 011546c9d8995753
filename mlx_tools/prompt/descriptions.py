"""The descriptions of tools and their parameters, whole or shortened evenly. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mlx_tools.messages import ToolSpec, replace
from mlx_tools.schema import follow, iter_children, read_properties, read_required

_MAX_DEPTH: Final = 64
"""Levels of a schema whose descriptions are shown: checked schemas have no more."""

_MIN_CHARS: Final = 8
"""Characters of a description below which none is shown."""

_ITEM_KEYWORDS: Final = frozenset(("items", "prefixItems", "contains", "unevaluatedItems"))
_MEMBER_KEYWORDS: Final = frozenset(
    ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties")
)
_ELSEWHERE: Final = frozenset(("properties", "$defs", "definitions"))
_INVISIBLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+"
)
"""Characters that nobody sees. Tabs are kept."""


class ParameterDescription(NamedTuple):
    """The description of one parameter, such as ``edits[].old``."""

    path: str
    text: str


def parameter_descriptions(spec: ToolSpec) -> list[ParameterDescription]:
    """Return the descriptions of a tool's parameters, required ones first.

    After each come those of its parts.

    A definition that is used several times is described once.
    """
    references: set[str] = set()
    found = _descriptions(spec.parameters, "", spec.parameters, references, _MAX_DEPTH)
    return list(dict.fromkeys(found))


def _descriptions(
    schema: Any, path: str, root: Mapping[str, Any], references: set[str], depth: int
) -> Iterator[ParameterDescription]:
    if not isinstance(schema, Mapping) or not depth:
        return
    text = schema.get("description")
    if isinstance(text, str) and text.strip():
        yield ParameterDescription(path or "arguments", text)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in references:
        references.add(reference)
        yield from _descriptions(follow(reference, root), path, root, references, depth - 1)
    needed, members = read_required(schema), read_properties(schema)
    for name in sorted(members, key=lambda name: name not in needed):
        inner = f"{path}.{name}" if path else name
        yield from _descriptions(members[name], inner, root, references, depth - 1)
    for (key, *_), child in iter_children(schema):
        if key not in _ELSEWHERE:
            part = "[]" if key in _ITEM_KEYWORDS else ".*" if key in _MEMBER_KEYWORDS else ""
            yield from _descriptions(child, f"{path}{part}", root, references, depth - 1)


def with_descriptions(line: str, spec: ToolSpec) -> str:
    """Return a tool's line, followed by its description and those of its parameters.

    Each further line is indented, so none looks like the line of a tool.
    """
    about = _indented(spec.description, "  ").strip()
    first = f"{line} - {about}" if about else line
    parts = [
        f"  {path}: {_indented(text, '    ').strip()}"
        for path, text in parameter_descriptions(spec)
    ]
    return "\n".join((first, *parts))


def _indented(text: str, margin: str) -> str:
    lines = (_INVISIBLE.sub(" ", line).rstrip() for line in text.split("\n"))
    return "\n".join(margin + line for line in lines if line)


# --- shortening -----------------------------------------------------------------------------------


class ShorterTools(NamedTuple):
    """Tools whose descriptions have so many characters, out of so many originally."""

    tools: tuple[ToolSpec, ...]
    size_chars: int
    original_chars: int


def shorten_descriptions(tools: Sequence[ToolSpec], max_chars: int) -> ShorterTools:
    """Shorten the longest descriptions until all together have at most ``max_chars``."""
    lengths = sorted(len(text) for spec in tools for text in _texts(spec))
    whole = sum(lengths)
    if whole <= max_chars:
        return ShorterTools(tuple(tools), whole, whole)
    limit = _common_limit(lengths, max_chars)
    shorter = tuple(_shorten(spec, limit) for spec in tools)
    left = sum(len(text) for spec in shorter for text in _texts(spec))
    return ShorterTools(shorter, left, whole)


def _common_limit(lengths: Sequence[int], max_chars: int) -> int:
    """Return the length to which longer texts are cut; ``lengths`` rise."""
    left = max(0, max_chars)
    for number, length in enumerate(lengths):
        share = left // (len(lengths) - number)
        if length > share:
            return share
        left -= length
    return lengths[-1] if lengths else 0


def _texts(spec: ToolSpec) -> Iterator[str]:
    yield spec.description
    pending: list[Any] = [spec.parameters]
    while pending:
        schema = pending.pop()
        if isinstance(schema, Mapping) and isinstance(text := schema.get("description"), str):
            yield text
        pending += (child for _, child in iter_children(schema))


def _shorten(spec: ToolSpec, limit: int) -> ToolSpec:
    return replace(
        spec,
        description=_cut(spec.description, limit),
        parameters=_with_shorter(spec.parameters, limit),
    )


def _with_shorter(schema: Any, limit: int) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    shorter = dict(schema)
    if isinstance(text := schema.get("description"), str):
        shorter["description"] = _cut(text, limit)
        if not shorter["description"]:
            del shorter["description"]
    for (key, *more), child in iter_children(schema):
        if not more:
            shorter[key] = _with_shorter(child, limit)
            continue
        if shorter[key] is schema[key]:
            held = schema[key]
            shorter[key] = dict(held) if isinstance(held, Mapping) else list(held)
        shorter[key][more[0]] = _with_shorter(child, limit)
    return shorter


def _cut(text: str, limit: int) -> str:
    """Return a text cut to a length, between words if one ends near it."""
    if len(text) <= limit:
        return text
    if limit < _MIN_CHARS:
        return ""
    head = text[: limit - 1]
    space = max(head.rfind(" "), head.rfind("\n"))
    return f"{head[: space if space > limit * 3 // 4 else None].rstrip()}…"
