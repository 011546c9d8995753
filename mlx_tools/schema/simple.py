"""Schemas so plain that whether a value fits shows without a validator.

Most tools take a flat object of strings, numbers and flags. For a schema of that kind this says
yes at once, where jsonschema would say yes too; in all other cases it says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

_KINDS: Final[Mapping[str, frozenset[type[Any]]]] = {
    "string": frozenset((str,)),
    "boolean": frozenset((bool,)),
    "integer": frozenset((int,)),
    "number": frozenset((int, float)),
    "null": frozenset((type(None),)),
}
_WORDS: Final = frozenset(("title", "description", "default", "examples", "$comment"))
"""Keywords that ask nothing of a value."""

_OF_OBJECT: Final = _WORDS | {"type", "properties", "required", "additionalProperties"}
_SIMPLE: Final = frozenset((str, bool, int, type(None)))


class PlainSchema:
    """A flat object's schema, ready to be held against values. `plain_schema` makes it."""

    __slots__ = ("_closed", "_kinds", "_required")

    def __init__(
        self, kinds: Mapping[str, frozenset[type[Any]]], required: frozenset[str], *, closed: bool
    ) -> None:
        self._kinds = kinds
        self._required = required
        self._closed = closed

    def fits(self, value: dict[str, Any]) -> bool:
        """True where ``value`` fits for certain; False where a validator must look."""
        kinds, others = self._kinds, None if self._closed else _SIMPLE
        for key, item in value.items():
            allowed = kinds.get(key, others)
            kind = type(item)
            if allowed is None or kind not in allowed:
                return False
            if kind is float and not math.isfinite(item):
                return False
        return self._required <= value.keys()


def plain_schema(parameters: Mapping[str, Any]) -> PlainSchema | None:
    """The schema, if it is that plain. ``parameters`` must be a valid JSON Schema."""
    if not parameters.keys() <= _OF_OBJECT:
        return None
    more = parameters.get("additionalProperties", True)
    if not isinstance(more, bool):
        return None
    kinds = {}
    for name, schema in parameters.get("properties", {}).items():
        found = _kinds_of(schema)
        if found is None:
            return None
        kinds[name] = found
    return PlainSchema(kinds, frozenset(parameters.get("required", ())), closed=not more)


def _kinds_of(schema: Any) -> frozenset[type[Any]] | None:
    """The Python types of the values that a property takes, None where there is more to it."""
    if not isinstance(schema, Mapping):
        return None
    asked = schema.keys() - _WORDS
    if asked == {"anyOf"}:
        found = [_kinds_of_type(one) for one in schema["anyOf"]]
    else:
        found = [_kinds_of_type(schema)]
    kinds = [some for some in found if some is not None]
    return frozenset[type[Any]]().union(*kinds) if len(kinds) == len(found) else None


def _kinds_of_type(schema: Any) -> frozenset[type[Any]] | None:
    if not isinstance(schema, Mapping) or schema.keys() - _WORDS != {"type"}:
        return None
    kind = schema["type"]
    return _KINDS.get(kind) if isinstance(kind, str) else None
