"""Tools as other programs want to be told of them. Sorted by name, so the same tools give the same
bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.messages import MUTATING, ToolSpec
from mlx_tools.schema import anchors, pointer, resolve, walk

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


_CHOICES: Final = ("allOf", "anyOf", "oneOf")
_NO_TOP: Final = (*_CHOICES, "enum", "not")
"""Keywords that the vendors' services take only below the top: one such schema, and they refuse all
tools. A call is held to the whole schema here in any case."""

_ANTHROPIC_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def to_openai(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """For ``tools`` of OpenAI's chat completions. Names take no dot there: it becomes ``_``. What
    a schema's top says of choices is loosened to which properties there are."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": spec.description,
                "parameters": _without_choices(spec.parameters),
            },
        }
        for name, spec in _without_dots(specs)
    ]


def to_anthropic(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """For ``tools`` of Anthropic's messages; names and choices as for OpenAI. Raises
    ToolDefinitionError for an argument's name that is not taken there."""
    tools = []
    for name, spec in _without_dots(specs):
        schema = _without_choices(spec.parameters)
        for key in schema.get("properties", {}):
            if not _ANTHROPIC_KEY.fullmatch(key):
                raise ToolDefinitionError(
                    f"{spec.name}: this format takes no argument called {key[:80]!r}",
                    hint="rename it, with A-Z a-z 0-9 _ . -, or leave the tool out",
                )
        tools.append({"name": name, "description": spec.description, "input_schema": schema})
    return tools


def to_mcp(specs: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """As the ``tools`` of an MCP server's ``tools/list``, with hints from the declared effects."""
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
        for spec in _sorted(specs)
    ]


def to_jsonschema(specs: Iterable[ToolSpec]) -> dict[str, Any]:
    """A JSON Schema of one whole line that a model may write: a call with arguments that fit its
    tool, or the final answer.

    Each tool's schema stands under ``$defs`` by the tool's name, its references rewritten.
    """
    lines: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for spec in _sorted(specs):
        definitions[spec.name] = _rebased(spec.parameters, ("$defs", spec.name))
        call = {
            "type": {"const": "tool_call"},
            "name": {"const": spec.name},
            "arguments": {"$ref": "#" + pointer(("$defs", spec.name))},
            "id": {"type": "string"},
        }
        lines.append(_closed(call, optional="id"))
    answer = {
        "type": {"const": "final_answer"},
        "content": {"type": "string"},
        "sources": {"type": "array"},
    }
    lines.append(_closed(answer, optional="sources"))
    return {"$schema": DIALECT, "anyOf": lines, "$defs": definitions}


def to_gbnf(specs: Iterable[ToolSpec]) -> str:
    """A grammar of the same line for llama.cpp."""
    from mlx_tools.protocol import turn_grammar

    return turn_grammar({spec.name: spec for spec in _sorted(specs)}, dialect="gbnf")


_WRITERS: Final[Mapping[str, Callable[[Iterable[ToolSpec]], Any]]] = {
    "openai": to_openai,
    "anthropic": to_anthropic,
    "mcp": to_mcp,
    "jsonschema": to_jsonschema,
    "gbnf": to_gbnf,
}

FORMATS: Final = tuple(_WRITERS)


def export(specs: Iterable[ToolSpec], format: str) -> str:  # noqa: A002
    """The tools in one of `FORMATS`, as text that ends in a newline. Raises UsageError for another
    format, ToolDefinitionError for a tool that it cannot hold."""
    writer = _WRITERS.get(format)
    if writer is None:
        raise UsageError(f"{format!r} is no export format", hint=f"one of {', '.join(FORMATS)}")
    made = writer(specs)
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False, indent=2) + "\n"


def _rebased(schema: Mapping[str, Any], place: tuple[str | int, ...]) -> dict[str, Any]:
    """The schema with its references rewritten for a document that holds it at ``place``."""
    named, moved = anchors(schema), deepcopy(dict(schema))
    for _, node in walk(moved):
        if not isinstance(node, dict):
            continue
        for key in ("$id", "$schema", "$anchor", "$dynamicAnchor"):
            node.pop(key, None)
        for key in ("$ref", "$dynamicRef"):
            if isinstance(reference := node.pop(key, None), str):
                node["$ref"] = "#" + pointer((*place, *resolve(schema, reference, named)[0]))
    return moved


def _without_choices(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with the properties of all choices that its top has, and none of the choices."""
    if not any(key in schema for key in _NO_TOP):
        return schema
    named = anchors(schema)
    found: dict[str, list[Any]] = {}
    pending: list[Any] = [schema]
    seen: set[int] = set()
    while pending:
        node = pending.pop(0)
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        for key, item in node.get("properties", {}).items():
            if item not in found.setdefault(key, []):
                found[key].append(item)
        pending += (item for choices in _CHOICES for item in node.get(choices, ()))
        if isinstance(node.get("$ref"), str):
            pending.append(resolve(schema, node["$ref"], named)[1])
    plain = {key: value for key, value in schema.items() if key not in _NO_TOP}
    plain["properties"] = {
        key: items[0] if len(items) == 1 else {"anyOf": items} for key, items in found.items()
    }
    return plain


def _closed(properties: dict[str, Any], *, optional: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [key for key in properties if key != optional],
        "additionalProperties": False,
    }


def _sorted(specs: Iterable[ToolSpec]) -> list[ToolSpec]:
    return sorted(specs, key=lambda spec: spec.name)


def _without_dots(specs: Iterable[ToolSpec]) -> list[tuple[str, ToolSpec]]:
    """The specs with names that have no dot. Reading accepts such a name for the tool's own."""
    named: dict[str, ToolSpec] = {}
    for spec in _sorted(specs):
        name = spec.name.replace(".", "_")
        if name in named:
            raise ToolDefinitionError(
                f"{spec.name} and {named[name].name} would both be called {name}",
                hint="rename one of them: this format takes no dots in names",
            )
        named[name] = spec
    return list(named.items())
