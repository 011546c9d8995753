"""A schema as the plain schemas of which a value fits at least one.

A plain one has no ``$ref``, ``allOf``, ``anyOf``, ``oneOf`` and ``const`` at its top, and one type
or none. What stands in its properties and items is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.tools.schema import Path, resolve

Plain = dict[str, Any]

MAX_ALTERNATIVES: Final = 100

TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")

_OBJECT: Final = frozenset(
    {
        *("additionalProperties", "maxProperties", "minProperties", "patternProperties"),
        *("properties", "propertyNames", "required"),
    }
)
_ARRAY: Final = frozenset(("items", "maxItems", "minItems", "prefixItems"))
_STRING: Final = frozenset(("format", "maxLength", "minLength"))
_NUMBER: Final = frozenset(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"))
_PLAIN: Final = _OBJECT | _ARRAY | _STRING | _NUMBER | {"enum", "type"}

_GREATER: Final = frozenset(key for key in _PLAIN if key.startswith("min") or "Minimum" in key)
_LESSER: Final = frozenset(key for key in _PLAIN if key.startswith("max") or "Maximum" in key)


def alternatives(node: Any, root: Mapping[str, Any], named: Mapping[str, Path]) -> list[Plain]:
    """The plain schemas that a schema amounts to, as far as a grammar goes; [] where nothing fits.

    ``root`` and ``named`` are what its references are resolved in. Raises ToolDefinitionError where
    there are more than `MAX_ALTERNATIVES`.
    """
    if not isinstance(node, Mapping):
        return [] if node is False else [{}]
    plain = {key: value for key, value in node.items() if key in _PLAIN}
    if "const" in node:
        plain["enum"] = [node["const"]]
    result = [plain]
    groups: list[list[Any]] = [[part] for part in node.get("allOf", ())]
    groups += (list(node[key]) for key in ("anyOf", "oneOf") if key in node)
    if isinstance(node.get("$ref"), str):
        groups.append([resolve(root, node["$ref"], named)[1]])
    for group in groups:
        found = [plain for part in group for plain in alternatives(part, root, named)]
        result = [_both(one, other) for one in result for other in found]
        if len(result) > MAX_ALTERNATIVES:
            raise ToolDefinitionError(f"more than {MAX_ALTERNATIVES} ways to fit the schema")
    return [typed for plain in result for typed in _typed(plain)]


def _typed(plain: Plain) -> Iterable[Plain]:
    """The plain schema once for each of its types; as it is where it says none."""
    if "enum" in plain:
        values = [value for value in plain["enum"] if _is_of(value, plain.get("type", TYPES))]
        return [{**plain, "enum": values}] if values else []
    if "type" not in plain:
        about = {"object": _OBJECT, "array": _ARRAY, "string": _STRING, "number": _NUMBER}
        kinds = [kind for kind, keys in about.items() if not keys.isdisjoint(plain)]
        return [{**plain, "type": kind} for kind in kinds] or [plain]
    return [{**plain, "type": kind} for kind in TYPES if kind in _listed(plain["type"])]


def _both(one: Plain, other: Plain) -> Plain:
    """The plain schema for what fits two."""
    result = dict(one)
    for key, value in other.items():
        mine: Any = result.get(key)
        if key not in result or mine == value:
            result[key] = value
        elif key in _GREATER:
            result[key] = max(mine, value)
        elif key in _LESSER:
            result[key] = min(mine, value)
        elif key == "type":
            result[key] = _common(_listed(mine), _listed(value))
        elif key == "enum":
            result[key] = [item for item in mine if item in value]
        elif key == "required":
            result[key] = list(dict.fromkeys([*mine, *value]))
        elif key in ("properties", "patternProperties"):
            shared = {name: {"allOf": [mine[name], value[name]]} for name in mine if name in value}
            result[key] = {**mine, **value, **shared}
        elif key != "format":
            result[key] = {"allOf": [mine, value]} if key != "prefixItems" else mine
    return result


def _common(one: list[str], other: list[str]) -> list[str]:
    """The types in both lists; an integer is a number too."""
    common = [kind for kind in one if kind in other]
    for first, second in ((one, other), (other, one)):
        if "integer" in first and "number" in second and "integer" not in common:
            common.append("integer")
    return common


def _listed(kinds: Any) -> list[str]:
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _is_of(value: Any, kinds: Any) -> bool:
    """Whether a JSON value is of one of the types."""
    match value:
        case bool():
            kind = {"boolean"}
        case int():
            kind = {"integer", "number"}
        case float():
            kind = {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            kind = {"string"}
        case None:
            kind = {"null"}
        case list():
            kind = {"array"}
        case _:
            kind = {"object"}
    return not kind.isdisjoint(_listed(kinds))
