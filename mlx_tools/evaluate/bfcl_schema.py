"""BFCL's functions as tools: its types as JSON Schema, its words for Java and JavaScript.

The types are mapped as BFCL itself maps them for models that take JSON Schema (see
``constants/type_mappings.py`` and ``model_handler/utils.py`` of its package): an unknown or missing
type is a string, and so is ``any``, since its checker takes nothing else there. Of Java and
JavaScript functions every argument is a string that holds a value in that language's syntax. Names
keep their dots, as BFCL scores models that may write them.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping
from typing import Any, Final, Literal

from mlx_tools.messages import ToolSpec
from mlx_tools.paths import read_data
from mlx_tools.prompt.words import fill

Language = Literal["python", "java", "javascript"]

_WORDS: Final = "prompts/evaluate/bfcl.toml"

_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("integer", "byte", "short", "long", "Bigint"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple"), "array"),
    **dict.fromkeys(("ArrayList", "Array", "Queue", "Stack"), "array"),
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
}
_KEPT: Final = frozenset(
    ("description", "default", "format", "minimum", "maximum", "minItems", "maxItems")
)
_PYTHON: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def tool_of(function: Mapping[str, Any], language: Language = "python") -> ToolSpec:
    """A function of BFCL's data as a tool.

    It takes the parameters that it names and no others, as a function does; BFCL's checker counts
    any other as wrong.

    Raises `ToolDefinitionError` where its name cannot be a tool's.
    """
    description = str(function.get("description", ""))
    parameters = schema_of({**function.get("parameters", {}), "type": "dict"})
    if language != "python":
        words = _words()[language]
        description = f"{description} {words['function']}".strip()
        given = function["parameters"].get("properties", {})
        parameters["properties"] = {
            name: _written_in(words, schema) for name, schema in given.items()
        }
    parameters.setdefault("additionalProperties", False)
    return ToolSpec(str(function["name"]), description, parameters)


def schema_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema in BFCL's types as JSON Schema.

    What JSON Schema does not know (``optional``) is left out. An enumeration on an array is one of
    its items; one that names values of another type (``["1", "2", "dontcare"]`` for an integer)
    keeps those that can be read as the type, and is left out where none can.
    """
    kind = _TYPES.get(str(schema.get("type")), "string")
    out: dict[str, Any] = {"type": kind}
    out |= {key: schema[key] for key in schema if key in _KEPT}
    items = schema.get("items")
    if kind == "array":
        out["items"] = schema_of(items) if isinstance(items, Mapping) else {}
    if kind == "object":
        named = schema.get("properties")
        if isinstance(named, Mapping):
            out["properties"] = {name: schema_of(inner) for name, inner in named.items()}
        more = schema.get("additionalProperties")
        if more is not None:
            out["additionalProperties"] = schema_of(more) if isinstance(more, Mapping) else more
        if isinstance(schema.get("required"), list):
            out["required"] = schema["required"]
    if isinstance(values := schema.get("enum"), list):
        target = out["items"] if kind == "array" else out
        allowed = _of_type(values, target.get("type", "string"))
        if allowed:
            target.setdefault("enum", allowed)
    return out


def _of_type(values: list[Any], kind: str) -> list[Any]:
    """The values that are of the type, or that write one of it."""
    read = []
    for value in values:
        if isinstance(value, str) and kind in ("integer", "number", "boolean"):
            try:
                value = json.loads(value)
            except ValueError:
                continue
        if isinstance(value, _PYTHON[kind]) and isinstance(value, bool) == (kind == "boolean"):
            read.append(value)
    return read


@functools.cache
def _words() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(read_data(_WORDS))


def _written_in(words: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter whose value is written in the language, as a string that says so."""
    kind = str(schema.get("type"))
    values = {"type": kind}
    if kind == "any":
        form = "any"
    elif kind in ("Array", "ArrayList", "array"):
        form = "collection"
        values["elements"] = str(schema.get("items", {}).get("type", "any"))
    elif kind == "dict" and "properties" in schema:
        form = "dictionary"
        values["schema"] = json.dumps(schema["properties"])
    else:
        form = "plain"
    said = f"{fill(words[form], values)} {schema.get('description', '')}".strip()
    out: dict[str, Any] = {"type": "string", "description": said}
    if "default" in schema:
        default = schema["default"]
        out["default"] = default if isinstance(default, str) else json.dumps(default)
    return out
