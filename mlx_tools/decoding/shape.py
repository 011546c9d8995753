"""What a JSON Schema asks for, as something that can be filled in.

`Shapes.of` takes one schema to one shape: references followed, ``allOf`` merged, branches and types
told apart. It goes one level deep, so a schema that refers to itself is no trouble. What a shape
does not hold (``pattern``, ``multipleOf``, ``not`` …) is left to validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from mlx_tools.prompt.schema import MAX_REFERENCES, follow

Schema = Mapping[str, Any] | bool

MAX_MERGED: Final = 64
"""How many schemas may come to one by ``allOf`` and references."""


@dataclass(frozen=True, slots=True)
class Choices:
    """One of these values."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A string of ``least`` to ``most`` characters."""

    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """A number; ``whole``: without a fraction."""

    whole: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """An array: ``first`` by position, then any number of ``rest`` (False: none)."""

    first: tuple[Schema, ...] = ()
    rest: Schema = True
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An object: its named members, those it must have, and what any other must be."""

    members: Mapping[str, Schema]
    needed: tuple[str, ...] = ()
    other: Schema = True
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class OneOf:
    """What one of these asks for."""

    branches: tuple[Schema, ...]


@dataclass(frozen=True, slots=True)
class Free:
    """Any JSON value."""


Shape = Choices | Text | Number | Items | Record | OneOf | Free


class Impossible(Exception):
    """Nothing fits the schema."""


class Shapes:
    """The shapes of the schemas within ``root``, in which their references are looked up."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def of(self, schema: Schema) -> Shape:
        """The shape of ``schema``. Raises `Impossible`."""
        merged = self.merged(schema)
        if "const" in merged:
            return Choices((merged["const"],))
        values = merged.get("enum")
        if isinstance(values, list):
            return Choices(tuple(values))
        for key in ("anyOf", "oneOf"):
            branches = merged.get(key)
            if isinstance(branches, list) and branches:
                rest = {name: value for name, value in merged.items() if name != key}
                return OneOf(tuple({"allOf": [branch, rest]} for branch in branches))
        kinds = _kinds(merged)
        if len(kinds) > 1:
            return OneOf(tuple({**merged, "type": kind} for kind in kinds))
        return _of_kind(kinds[0] if kinds else "", merged)

    def merged(self, schema: Schema) -> Mapping[str, Any]:
        """``schema`` with its references and ``allOf`` taken in. Raises `Impossible`."""
        made: dict[str, Any] = {}
        waiting: list[Any] = [schema]
        for _ in range(MAX_MERGED):
            if not waiting:
                return made
            part = waiting.pop(0)
            if part is False:
                raise Impossible
            if not isinstance(part, Mapping):
                continue
            part = dict(part)
            reference, parts = part.pop("$ref", None), part.pop("allOf", None)
            if isinstance(reference, str):
                waiting.append(self._followed(reference))
            if isinstance(parts, list):
                waiting += parts
            _merge(made, part)
        return made

    def _followed(self, reference: str) -> Any:
        found: Any = {"$ref": reference}
        for _ in range(MAX_REFERENCES):
            if not (isinstance(found, Mapping) and found.keys() == {"$ref"}):
                return found
            found = follow(str(found["$ref"]), self._root)
        raise Impossible


_BOUNDS: Final = {
    "minimum": max,
    "exclusiveMinimum": max,
    "minLength": max,
    "minItems": max,
    "minProperties": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "maxLength": min,
    "maxItems": min,
    "maxProperties": min,
}


def _merge(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Narrows ``into`` by ``part``. Keywords that both have and that do not merge keep the first;
    validation holds the value to both."""
    _merge_members(into, part)
    for key, value in part.items():
        if key in ("properties", "additionalProperties"):
            continue
        if key not in into:
            into[key] = value
            continue
        have = into[key]
        if key == "required" and isinstance(have, list) and isinstance(value, list):
            into[key] = [*have, *(name for name in value if name not in have)]
        elif key == "type":
            into[key] = _common(have, value)
        elif key == "enum" and isinstance(have, list) and isinstance(value, list):
            into[key] = [item for item in have if item in value]
        elif key in _BOUNDS and _real(have) and _real(value):
            into[key] = _BOUNDS[key](have, value)
        elif key == "items":
            into[key] = {"allOf": [have, value]}
        elif key in ("anyOf", "oneOf") and have != value:
            # both sets of branches hold: one is chosen from, the other is put into each branch
            into[key] = [{"allOf": [branch, {key: value}]} for branch in have]


def _merge_members(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Merges ``properties`` and ``additionalProperties``, which speak of each other."""
    if "properties" not in part and "additionalProperties" not in part:
        return
    have, more = _table(into), _table(part)
    ours, theirs = into.get("additionalProperties", True), part.get("additionalProperties", True)
    members: dict[str, Any] = {}
    for name in (*have, *(name for name in more if name not in have)):
        parts = [have.get(name, ours), more.get(name, theirs)]
        told = [part for part in parts if part is not True]
        if False in [part for part in told if isinstance(part, bool)]:
            members[name] = False
        else:
            members[name] = told[0] if len(told) == 1 else {"allOf": told} if told else True
    into["properties"] = members
    if ours is False or theirs is False:
        into["additionalProperties"] = False
    elif "additionalProperties" in into or "additionalProperties" in part:
        told = [item for item in (ours, theirs) if item is not True]
        into["additionalProperties"] = {"allOf": told} if len(told) == 2 else (told or [True])[0]


def _table(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _common(one: Any, other: Any) -> list[str]:
    ours, theirs = _listed(one), _listed(other)
    kept = [kind for kind in ours if kind in theirs]
    if ("number" in ours and "integer" in theirs) or ("integer" in ours and "number" in theirs):
        kept += [] if "integer" in kept or "number" in kept else ["integer"]
    return kept


def _listed(kinds: Any) -> list[str]:
    return [kinds] if isinstance(kinds, str) else list(kinds) if isinstance(kinds, list) else []


_IMPLIED: Final = (
    ("object", ("properties", "required", "additionalProperties", "patternProperties")),
    ("object", ("minProperties", "maxProperties", "propertyNames", "dependentRequired")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains")),
    ("string", ("minLength", "maxLength", "pattern", "format", "contentEncoding")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema names, or that its keywords imply. Raises `Impossible` for none."""
    if "type" in schema:
        kinds = _listed(schema["type"])
        if not kinds:
            raise Impossible
        return kinds
    implied = [kind for kind, keys in _IMPLIED if any(key in schema for key in keys)]
    return list(dict.fromkeys(implied))[:1]


def _of_kind(kind: str, schema: Mapping[str, Any]) -> Shape:
    match kind:
        case "object":
            needed = schema.get("required")
            names = [n for n in needed if isinstance(n, str)] if isinstance(needed, list) else []
            return Record(
                _table(schema),
                tuple(dict.fromkeys(names)),
                schema.get("additionalProperties", True),
                *_sizes(schema, "minProperties", "maxProperties"),
            )
        case "array":
            first = schema.get("prefixItems")
            return Items(
                tuple(first) if isinstance(first, list) else (),
                schema.get("items", True),
                *_sizes(schema, "minItems", "maxItems"),
            )
        case "string":
            return Text(*_sizes(schema, "minLength", "maxLength"))
        case "integer" | "number":
            return Number(kind == "integer")
        case "boolean":
            return Choices((True, False))
        case "null":
            return Choices((None,))
    return Free()


def _sizes(schema: Mapping[str, Any], least: str, most: str) -> tuple[int, int | None]:
    low, high = schema.get(least), schema.get(most)
    return (int(low) if _real(low) else 0), (int(high) if _real(high) else None)


def _real(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def members_in_order(shape: Record) -> tuple[Sequence[str], Sequence[str]]:
    """The names an object must have, in the schema's order, and those it may have."""
    needed = [name for name in shape.members if name in shape.needed]
    needed += [name for name in shape.needed if name not in shape.members]
    optional = [n for n in shape.members if n not in shape.needed and shape.members[n] is not False]
    return needed, optional
