"""Coercions that cannot change meaning (reading rule 10).

Tried only where a value does not fit as it is, and kept only where exactly one result does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

from mlx_tools.schema.validator import faults

COERCIONS: Final[tuple[str, ...]] = (
    "coerced_integer",
    "coerced_number",
    "coerced_boolean",
    "wrapped_list",
    "dropped_null",
)

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,299})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,299})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")
_MOST: Final = 100
"""Values with as many faults are not mended."""

_OF_TYPE: Final = frozenset(("type", "enum", "const", "anyOf", "oneOf"))
"""Keywords whose fault may be that a value is written as another type."""

_DEEPEST: Final = 3
"""So often may a list be put around a value, or a union stand in a union."""


def coerced(validator: Any, arguments: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """``arguments`` with what could be mended, and what was done, in order.

    What comes back need not be valid; where nothing can be done it is as it was.
    """
    value, names = _mended(validator, arguments)
    return value, tuple(dict.fromkeys(names))


def _mended(validator: Any, value: Any, depth: int = 0) -> tuple[Any, list[str]]:
    """``value`` mended as far as it goes for this validator's schema; the original stays."""
    names: list[str] = []
    found = faults(validator, value, _MOST) if depth < _DEEPEST else []
    if not 0 < len(found) < _MOST:
        return value, names
    holder = [deepcopy(value)]
    for fault in found:
        change = _change(validator, fault, depth)
        path = [0, *fault.relative_path]
        parent: Any = holder
        last = path.pop()
        try:
            for step in path:
                parent = parent[step]
            if change is not None:
                parent[last] = change[0]
                names += change[1]
            elif isinstance(parent, dict) and parent[last] is None and fault.validator in _OF_TYPE:
                del parent[last]  # where the key is required, that is the fault that remains
                names.append("dropped_null")
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change replaced what this fault speaks of
    return holder[0], names


def _change(validator: Any, fault: Any, depth: int) -> tuple[Any, list[str]] | None:
    """The one value that fits where the fault is, and how it came about."""
    if fault.validator not in _OF_TYPE:
        return None
    local = validator.evolve(schema=fault.schema)
    ways: list[tuple[Any, list[str]]] = []
    for new, name in _readings(fault.instance):
        mended, names = _mended(local, new, depth + 1) if name == "wrapped_list" else (new, [])
        if not faults(local, mended, 1):
            ways.append((mended, [name, *names]))
    if fault.validator in ("anyOf", "oneOf"):
        for branch in fault.validator_value:
            mended, names = _mended(validator.evolve(schema=branch), fault.instance, depth + 1)
            if names and not faults(local, mended, 1):
                ways.append((mended, names))
    if not ways or any(not _same(ways[0][0], way[0]) for way in ways):
        return None
    return ways[0]


def _readings(value: Any) -> Iterator[tuple[Any, str]]:
    """What ``value`` may have been meant to be."""
    if isinstance(value, str):
        if _INTEGER.fullmatch(value):
            yield int(value), "coerced_integer"
        elif _NUMBER.fullmatch(value) and math.isfinite(number := float(value)):
            yield number, "coerced_number"
            if number.is_integer() and abs(number) < 2**53:
                yield int(number), "coerced_integer"
        if value.lower() in ("true", "false"):
            yield value.lower() == "true", "coerced_boolean"
    if isinstance(value, float) and value.is_integer():
        yield int(value), "coerced_integer"
    if not isinstance(value, list) and value is not None and not _may_be_list(value):
        yield [value], "wrapped_list"


def _may_be_list(value: Any) -> bool:
    """Whether a text may be a whole list, so that it is no single item for certain."""
    return isinstance(value, str) and value.lstrip()[:1] in ("[", "{", "(")


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
