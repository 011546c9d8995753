"""Two plain schemas as one that both hold, and what the keywords of a plain schema mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.protocol.pattern import TooLong, UnsupportedPattern, compiled
from mlx_tools.tools.grammar.ranges import Bounds, exact

Plain = dict[str, Any]

TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")

ABOUT: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset(
        {
            *("additionalProperties", "maxProperties", "minProperties", "patternProperties"),
            *("properties", "propertyNames", "required", "unevaluatedProperties"),
        }
    ),
    "array": frozenset(("items", "maxItems", "minItems", "prefixItems")),
    "string": frozenset(("format", "maxLength", "minLength")),
    "number": frozenset(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")),
}
"""The keywords that speak of one type. A schema that names no type means those it speaks of."""

PLAIN: Final = frozenset({"enum", "type"}.union(*ABOUT.values()))

_GREATER: Final = frozenset(key for key in PLAIN if key.startswith("min") or "Minimum" in key)
_LESSER: Final = frozenset(key for key in PLAIN if key.startswith("max") or "Maximum" in key)


def merged(one: Plain, other: Plain) -> Plain:
    """The plain schema for what fits two."""
    result = {**other, **one}
    for key in one.keys() & other.keys():
        mine, yours = one[key], other[key]
        if mark(mine) == mark(yours):
            continue
        if key in _GREATER or key in _LESSER:
            result[key] = (max if key in _GREATER else min)(mine, yours)
        elif key == "type":
            result[key] = _common(listed(mine), listed(yours))
        elif key == "enum":
            marks = {mark(item) for item in yours}
            result[key] = [item for item in mine if mark(item) in marks]
        elif key == "required":
            result[key] = list(dict.fromkeys([*mine, *yours]))
        elif key == "patternProperties":
            shared = {name: both(mine[name], yours[name]) for name in mine if name in yours}
            result[key] = {**mine, **yours, **shared}
        elif key in ("additionalProperties", "unevaluatedProperties", "propertyNames", "items"):
            result[key] = both(mine, yours)
    if "properties" in result:
        result["properties"] = _properties(one, other)
    if "prefixItems" in result:
        result["prefixItems"] = _prefix(one, other)
    return result


def both(*schemas: Any) -> Any:
    """The schema of what fits all of these, written flat: a schema that refers to itself by way of
    ``allOf`` comes to the same again, and does not grow."""
    parts: dict[str, Any] = {}
    pending = list(reversed(schemas))
    while pending:
        schema = pending.pop()
        if isinstance(schema, Mapping) and schema.keys() == {"allOf"}:
            pending.extend(reversed(schema["allOf"]))
        elif schema is not True and schema != {}:
            parts[mark(schema)] = schema
    if not parts:
        return True
    found = list(parts.values())
    return found[0] if len(found) == 1 else {"allOf": found}


def _properties(one: Plain, other: Plain) -> dict[str, Any]:
    """The properties of both, each held to what the schema that does not name it says of others."""
    mine, yours = one.get("properties", {}), other.get("properties", {})
    found: dict[str, Any] = {}
    for name in dict.fromkeys([*mine, *yours]):
        found[name] = both(
            *(plain.get("properties", {}).get(name, _others(plain, name)) for plain in (one, other))
        )
    return found


def _others(plain: Plain, name: str) -> Any:
    """What a schema says of a property that it does not name."""
    others = plain.get("additionalProperties", True)
    return True if matching(plain, name) else others


def matching(plain: Plain, name: str) -> list[Any]:
    """The schemas that ``patternProperties`` has for a property of this name."""
    found = []
    for pattern, schema in plain.get("patternProperties", {}).items():
        try:
            if compiled(pattern).search(name):
                found.append(schema)
        except (UnsupportedPattern, TooLong) as error:
            raise ToolDefinitionError(f"patternProperties: {pattern!r:.80}: {error}") from None
    return found


def _prefix(one: Plain, other: Plain) -> list[Any]:
    """The items by place of both; a place that one does not list is held to its ``items``."""
    rests = (one.get("items", True), other.get("items", True))
    places = zip_longest(one.get("prefixItems", ()), other.get("prefixItems", ()))
    return [
        both(*(rest if part is None else part for part, rest in zip(pair, rests, strict=True)))
        for pair in places
    ]


def _common(one: list[str], other: list[str]) -> list[str]:
    """The types in both lists; an integer is a number too."""
    common = [kind for kind in one if kind in other]
    for first, second in ((one, other), (other, one)):
        if "integer" in first and "number" in second and "integer" not in common:
            common.append("integer")
    return common


def listed(kinds: Any) -> list[Any]:
    """The types of a ``type``, which may name one or list some."""
    return [kinds] if isinstance(kinds, str) else list(kinds)


def is_of(value: Any, kinds: list[Any]) -> bool:
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
    return not kind.isdisjoint(kinds)


def within(value: Any, plain: Plain) -> bool:
    """Whether a value keeps to the bounds and lengths of a schema, where it has some."""
    if isinstance(value, str):
        size, least, most = len(value), "minLength", "maxLength"
    elif isinstance(value, list):
        size, least, most = len(value), "minItems", "maxItems"
    elif isinstance(value, Mapping):
        size, least, most = len(value), "minProperties", "maxProperties"
        if not value.keys() >= set(plain.get("required", ())):
            return False
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return bounds_of(plain).holds(value)
    else:
        return True
    return bool(plain.get(least, 0) <= size <= plain.get(most, size))


def bounds_of(plain: Plain) -> Bounds:
    """The tightest bounds that a schema of numbers sets."""
    least, above = _bound(plain, "minimum", "exclusiveMinimum", 1)
    most, below = _bound(plain, "maximum", "exclusiveMaximum", -1)
    return Bounds(least, most, above, below)


def _bound(plain: Plain, among: str, barred: str, sign: int) -> tuple[Any, bool]:
    """One bound, and whether it is itself barred; the greater times ``sign`` of two."""
    if barred not in plain:
        return (exact(plain[among]) if among in plain else None), False
    bound = exact(plain[barred])
    if among in plain and exact(plain[among]) * sign > bound * sign:
        return exact(plain[among]), False
    return bound, True


def mark(value: Any) -> str:
    """The same text for values that JSON Schema calls equal, another for others."""
    return json.dumps(_canonical(value), sort_keys=True, default=str)


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value
