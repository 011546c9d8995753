"""Reading JSON Schemas, for the catalog and the examples: references, unions, bounds on both.

A schema may come from anybody: references are followed within it alone, and every walk is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

MAX_REFERENCES: Final = 20


def resolve(schema: Any, root: Mapping[str, Any]) -> Any:
    """``schema``, or what its ``$ref`` (or sole ``allOf``) leads to within ``root``.

    A reference that leads nowhere, out of ``root`` or round in a circle is taken for a schema that
    allows anything.
    """
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return schema
        reference, parts = schema.get("$ref"), schema.get("allOf")
        if isinstance(reference, str):
            schema = follow(reference, root)
        elif isinstance(parts, list) and len(parts) == 1 and "properties" not in schema:
            schema = parts[0]
        else:
            return schema
    return {}


def follow(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference such as ``#/$defs/point`` points to; a schema that allows anything if
    that is nothing here."""
    if reference != "#" and not reference.startswith("#/"):
        return {}
    found: Any = root
    for step in reference[2:].split("/") if reference != "#" else ():
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isascii() and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            return {}
    return found


def properties(schema: Any) -> Mapping[str, Any]:
    """The named properties of an object's schema."""
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def required(schema: Any) -> Sequence[str]:
    """The names that an object must have, in the order in which they are listed."""
    found = schema.get("required") if isinstance(schema, Mapping) else None
    names = found if isinstance(found, list) else []
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def branches(schema: Mapping[str, Any]) -> Sequence[Any]:
    """The schemas of an ``anyOf`` or ``oneOf``; empty where there is none."""
    for key in ("anyOf", "oneOf"):
        found = schema.get(key)
        if isinstance(found, list) and found:
            return found
    return ()


def types(schema: Mapping[str, Any]) -> Sequence[str]:
    """The types a schema names, or that its keywords imply."""
    named = schema.get("type")
    if isinstance(named, str):
        return (named,)
    if isinstance(named, list):
        return [name for name in named if isinstance(name, str)]
    if "properties" in schema or "additionalProperties" in schema:
        return ("object",)
    if "items" in schema or "prefixItems" in schema:
        return ("array",)
    return ()
