"""Export of tools in the formats of other programs, sorted by name.

The same tools always result in the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Final

from mlx_tools.errors import (
    ToolDefinitionError,
    require_instance,
    require_items,
    wrong_argument,
)
from mlx_tools.messages import MUTATING, ToolSpec
from mlx_tools.schema import find_anchors, resolve, to_pointer, walk

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
"""The dialect that exported schemas declare."""


_CHOICES: Final = ("allOf", "anyOf", "oneOf")
_NOT_AT_TOP: Final = (*_CHOICES, "enum", "not")
"""Keywords that the vendors' services do not accept at the top of a schema.

They refuse all tools if one schema has such a keyword. mlx-tools itself always checks calls against
the whole schema."""

_ANTHROPIC_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def to_openai(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Return the ``tools`` of OpenAI's chat completions.

    Names cannot have a dot in this format, so it becomes ``_``. Choices at the top of a schema
    become one object with all their properties.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": spec.description,
                "parameters": _flatten_choices(spec.parameters),
            },
        }
        for name, spec in _replace_dots(specs)
    ]


def to_anthropic(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Return the ``tools`` of Anthropic's messages; names and choices as for OpenAI.

    Raises:
        ToolDefinitionError: the name of an argument is not allowed in this format.
    """
    tools = []
    for name, spec in _replace_dots(specs):
        schema = _flatten_choices(spec.parameters)
        for key in schema.get("properties", {}):
            if not _ANTHROPIC_KEY.fullmatch(key):
                raise ToolDefinitionError(
                    f"{spec.name}: this format takes no argument called {key[:80]!r}",
                    hint="rename it, with A-Z a-z 0-9 _ . -, or leave the tool out",
                )
        tools.append({"name": name, "description": spec.description, "input_schema": schema})
    return tools


def to_mcp(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Return the ``tools`` of an MCP server, with hints from the effects."""
    return [
        {
            "name": spec.name,
            "description": spec.description,
            "inputSchema": spec.parameters,
            "annotations": {
                "readOnlyHint": MUTATING.isdisjoint(spec.possible_effects),
                "destructiveHint": not MUTATING.isdisjoint(spec.possible_effects),
                "openWorldHint": "network" in spec.possible_effects,
            },
        }
        for spec in _sort_by_name(specs)
    ]


def to_jsonschema(specs: Iterable[ToolSpec]) -> dict[str, Any]:
    """Return the JSON Schema of a line that a model may write: a call or an answer.

    Each tool's schema is under ``$defs`` by the tool's name, with its references rewritten.
    """
    lines: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for spec in _sort_by_name(specs):
        definitions[spec.name] = _rebase(spec.parameters, ("$defs", spec.name))
        call = {
            "type": {"const": "tool_call"},
            "name": {"const": spec.name},
            "arguments": {"$ref": "#" + to_pointer(("$defs", spec.name))},
            "id": {"type": "string"},
        }
        lines.append(_close_object(call, optional="id"))
    answer = {
        "type": {"const": "final_answer"},
        "content": {"type": "string"},
        "sources": {"type": "array"},
    }
    lines.append(_close_object(answer, optional="sources"))
    return {"$schema": DIALECT, "anyOf": lines, "$defs": definitions}


def to_gbnf(specs: Iterable[ToolSpec]) -> str:
    """Return a grammar for llama.cpp of the line that a model may write."""
    from mlx_tools.backends import turn_grammar

    return turn_grammar({spec.name: spec for spec in _sort_by_name(specs)}, dialect="gbnf")


_WRITERS: Final[Mapping[str, Callable[[Iterable[ToolSpec]], Any]]] = {
    "openai": to_openai,
    "anthropic": to_anthropic,
    "mcp": to_mcp,
    "jsonschema": to_jsonschema,
    "gbnf": to_gbnf,
}

FORMATS: Final = tuple(_WRITERS)


def export(specs: Iterable[ToolSpec], format: str) -> str:  # noqa: A002
    """Return the tools in one of `FORMATS`, as text that ends in a newline.

    Raises:
        UsageError: there is no such format, or ``specs`` are not specifications.
        ToolDefinitionError: the format cannot express one of the tools.
    """
    if format not in FORMATS:
        raise wrong_argument("the format", format, f"one of {', '.join(FORMATS)}")
    hint = "give ToolSpecs: [tool.spec, …], or registry.specs().values()"
    items = require_items("specs", specs, hint)
    exported = _WRITERS[format]([require_instance("specs", item, ToolSpec, hint) for item in items])
    return (
        exported
        if isinstance(exported, str)
        else json.dumps(exported, ensure_ascii=False, indent=2) + "\n"
    )


def _rebase(schema: Mapping[str, Any], place: tuple[str | int, ...]) -> dict[str, Any]:
    """Return the schema with its references rewritten for its new ``place``."""
    anchors_by_name, copy = find_anchors(schema), deepcopy(dict(schema))
    for _, node in walk(copy):
        if not isinstance(node, dict):
            continue
        for key in ("$id", "$schema", "$anchor", "$dynamicAnchor"):
            node.pop(key, None)
        for key in ("$ref", "$dynamicRef"):
            if isinstance(reference := node.pop(key, None), str):
                node["$ref"] = "#" + to_pointer(
                    (*place, *resolve(schema, reference, anchors_by_name)[0])
                )
    return copy


def _flatten_choices(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema without choices at its top, but with all their properties."""
    if not any(key in schema for key in _NOT_AT_TOP):
        return schema
    anchors_by_name = find_anchors(schema)
    schemas_by_key: dict[str, list[Any]] = {}
    pending: list[Any] = [schema]
    visited: set[int] = set()
    while pending:
        node = pending.pop(0)
        if not isinstance(node, Mapping) or id(node) in visited:
            continue
        visited.add(id(node))
        for key, item in node.get("properties", {}).items():
            if item not in schemas_by_key.setdefault(key, []):
                schemas_by_key[key].append(item)
        pending += (item for choices in _CHOICES for item in node.get(choices, ()))
        if isinstance(node.get("$ref"), str):
            pending.append(resolve(schema, node["$ref"], anchors_by_name)[1])
    plain = {key: value for key, value in schema.items() if key not in _NOT_AT_TOP}
    plain["properties"] = {
        key: items[0] if len(items) == 1 else {"anyOf": items}
        for key, items in schemas_by_key.items()
    }
    return plain


def _close_object(properties: dict[str, Any], *, optional: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [key for key in properties if key != optional],
        "additionalProperties": False,
    }


def _sort_by_name(specs: Iterable[ToolSpec]) -> list[ToolSpec]:
    return sorted(specs, key=lambda spec: spec.name)


def _replace_dots(specs: Iterable[ToolSpec]) -> list[tuple[str, ToolSpec]]:
    """Return the specifications with names in which ``_`` replaces dots.

    The reader of calls accepts such a name for the tool.
    """
    spec_by_name: dict[str, ToolSpec] = {}
    for spec in _sort_by_name(specs):
        name = spec.name.replace(".", "_")
        if name in spec_by_name:
            raise ToolDefinitionError(
                f"{spec.name} and {spec_by_name[name].name} would both be called {name}",
                hint="rename one of them: this format takes no dots in names",
            )
        spec_by_name[name] = spec
    return list(spec_by_name.items())
