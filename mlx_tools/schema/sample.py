"""Example values for a JSON Schema: its own examples first, else plain values."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mlx_tools.schema.resolve import (
    dereference,
    list_branches,
    list_types,
    read_properties,
    read_required,
)
from mlx_tools.schema.validator import fits

MAX_DEPTH: Final = 8
"""Levels of an example; deeper ones are no help to a model."""
MAX_PARTS: Final = 100
"""Values in one example, so that schemas that branch end soon."""
MAX_CHARS: Final = 200
"""Characters of an example in a schema that is shown."""


class NoSample(Exception):
    """No value can be made for this schema."""


def sample_arguments(schema: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any] | None:
    """Return arguments that fit a schema: required ones, and those with examples.

    None if no arguments can be made, or if they do not fit.

    Args:
        schema: the schema of the tool.
        texts: strings by format, which values of type string are filled with.
    """
    try:
        arguments = _Sampler(schema, texts).make_value(schema, 0)
    except NoSample:
        return None
    return arguments if isinstance(arguments, dict) and fits(arguments, schema) else None


class _Sampler:
    def __init__(self, root: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        self._root = root
        self._texts = texts
        self._budget = MAX_PARTS

    def make_value(self, schema: Any, depth: int) -> Any:
        """Return a value for ``schema``. Raises `NoSample`."""
        self._budget -= 1
        if depth > MAX_DEPTH or self._budget < 0 or schema is False:
            raise NoSample
        schema = dereference(schema, self._root)
        if not isinstance(schema, Mapping):
            return self._texts["string"]
        if (example := _short_example(schema)) is not None:
            return example[0]
        for branch in (alternatives := list_branches(schema)):
            try:
                value = self.make_value(branch, depth + 1)
            except NoSample:
                continue
            if value is not None or len(alternatives) == 1:
                return value
        if alternatives:
            raise NoSample
        return self._of_type(schema, depth)

    def _of_type(self, schema: Mapping[str, Any], depth: int) -> Any:
        kinds = [kind for kind in list_types(schema) if kind != "null"] or list(list_types(schema))
        match kinds[0] if kinds else "string":
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer" | "number" as kind:
                return _make_number(schema, whole=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
        raise NoSample

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        members, needed = read_properties(schema), read_required(schema)
        values = {}
        for name in (
            *(n for n in members if n in needed),
            *(n for n in needed if n not in members),
        ):
            values[name] = self.make_value(members.get(name, {}), depth + 1)
        return values

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        minimum, maximum = schema.get("minItems"), schema.get("maxItems")
        first = schema.get("prefixItems")
        parts: Sequence[Any] = first if isinstance(first, list) else ()
        length = max(1, len(parts), minimum if isinstance(minimum, int) else 0)
        if isinstance(maximum, int):
            length = min(length, maximum)
        if length > MAX_PARTS:
            raise NoSample
        items = schema.get("items", {})
        return [
            self.make_value(parts[i] if i < len(parts) else items, depth + 1) for i in range(length)
        ]

    def _string(self, schema: Mapping[str, Any]) -> str:
        if "pattern" in schema:
            raise NoSample
        form = schema.get("format")
        if isinstance(form, str) and form not in self._texts:
            raise NoSample
        text = self._texts[form if isinstance(form, str) else "string"]
        minimum, maximum = schema.get("minLength"), schema.get("maxLength")
        if isinstance(minimum, int) and len(text) < minimum:
            if minimum > MAX_CHARS:
                raise NoSample
            text = (text + " ") * (minimum // (len(text) + 1) + 1)
            text = text[:minimum].rstrip().ljust(minimum, ".")
        return text[:maximum] if isinstance(maximum, int) and maximum >= 0 else text


def _short_example(schema: Mapping[str, Any]) -> tuple[Any] | None:
    """Return a value that the schema itself gives, if it is short."""
    examples, values = schema.get("examples"), schema.get("enum")
    for candidates in (examples, [schema[k] for k in ("const", "default") if k in schema], values):
        if isinstance(candidates, list) and candidates and _is_short(candidates[0]):
            return (candidates[0],)
    return None


def _is_short(value: Any) -> bool:
    try:
        return len(json.dumps(value, ensure_ascii=False, allow_nan=False)) <= MAX_CHARS
    except (TypeError, ValueError, RecursionError):
        return False


_LIMITS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}


def _make_number(schema: Mapping[str, Any], *, whole: bool) -> int | float:
    """Return the first plain number within the bounds, else the nearest to them."""
    limits = {name: real for name in _LIMITS if (real := _real(schema.get(name))) is not None}
    highs = [limits[name] for name in limits if name.endswith("aximum")]
    low = max((limits[name] for name in limits if name.endswith("inimum")), default=None)
    low = min([1.0, *highs]) if low is None else low
    step = max(_real(schema.get("multipleOf")) or 1.0, 0.0) or 1.0
    middle = (low + min(highs, default=low + step)) / 2
    candidates = [math.ceil(low / step) * step, (low // step + 1) * step, middle]
    fitting = (c for c in candidates if all(_LIMITS[n](c, bound) for n, bound in limits.items()))
    value = next(fitting, low)
    return int(value) if whole or value.is_integer() else value


def _real(value: Any) -> float | None:
    """Return a number of ordinary size as a float; None for anything else."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if real else None
