"""A tool's parameters as a validator: JSON Schema 2020-12, bounded, without the network.

jsonschema does the work; this narrows it where an untrusted schema or a model's arguments could
do harm: no ``$ref`` leads out of the schema, a ``pattern`` is matched in linear time, and a check
takes a bounded number of steps.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import islice
from typing import Any, Final, NamedTuple

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.schema.faults import Fault
from mlx_tools.schema.pattern import TooLong, UnsupportedPattern, compiled
from mlx_tools.schema.simple import PlainSchema, plain_schema

_MAX_SCHEMA_NODES: Final = 50_000
_MAX_STEPS: Final = 200_000
_STEPS_OF: Final = {"$ref": 10, "$dynamicRef": 10}
"""What a keyword costs where that is not 1: these take as much longer than others."""

_CACHED: Final = 512

# What stands under these keys is no schema, or a table of schemas whose keys are names.
_DATA: Final = frozenset(("enum", "const", "default", "examples", "required", "dependentRequired"))
_TABLES: Final = frozenset(
    ("properties", "$defs", "definitions", "dependentSchemas", "patternProperties")
)
_steps: ContextVar[list[int]] = ContextVar("steps")


class TooMuch(Exception):
    """The check took more steps than it may."""


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raises `ToolDefinitionError` where ``parameters`` cannot be used as a tool's schema.

    It must be a schema of an object by JSON Schema 2020-12, refer to nothing outside itself, and
    hold no pattern that cannot be matched in linear time.
    """
    validator_for(parameters)


def validator_for(parameters: Mapping[str, Any]) -> Any:
    """The validator of a schema, made once. Raises `ToolDefinitionError`."""
    return _checked(parameters).validator


def plainly_fits(parameters: Mapping[str, Any], value: dict[str, Any]) -> bool:
    """Whether ``value`` fits for certain, told without the validator; False says nothing.

    Raises `ToolDefinitionError`.
    """
    plain = _checked(parameters).plain
    return plain is not None and plain.fits(value)


class _Checked(NamedTuple):
    """A schema that was checked. It is kept here, so that no other can come to bear its id."""

    parameters: Mapping[str, Any]
    validator: Any
    plain: PlainSchema | None


def _checked(parameters: Mapping[str, Any]) -> _Checked:
    key = id(parameters)
    found = _cache.get(key)
    if found is None or found.parameters is not parameters:
        validator = _validator(parameters)
        found = _cache[key] = _Checked(parameters, validator, plain_schema(parameters))
        while len(_cache) > _CACHED:
            _cache.popitem(last=False)
    return found


_cache: OrderedDict[int, _Checked] = OrderedDict()


@contextmanager
def bounded() -> Iterator[None]:
    """All that `faults` does within shares one bound of steps."""
    token = _steps.set([_MAX_STEPS])
    try:
        yield
    finally:
        _steps.reset(token)


def fits_within(parameters: Mapping[str, Any], schema: Any, value: Any) -> bool:
    """Whether ``value`` fits ``schema``, a part of ``parameters``, where its references lead.

    False too where that takes more steps than a check may. Raises `ToolDefinitionError` for
    parameters that cannot be used.
    """
    validator = validator_for(parameters)
    if schema is not parameters:
        validator = validator.evolve(schema=schema)
    try:
        with bounded():
            return not faults(validator, value, 1)
    except (TooMuch, RecursionError):
        return False


def faults(validator: Any, value: Any, most: int) -> list[Any]:
    """The first ``most`` faults of ``value``. Raises `TooMuch` or RecursionError."""
    return list(islice(validator.iter_errors(value), most))


def _validator(parameters: Mapping[str, Any]) -> Any:
    import jsonschema
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        resolver = Registry().resolver_with_root(DRAFT202012.create_resource(parameters))
        for reference in _vet(parameters):
            resolver.lookup(reference)
        jsonschema.Draft202012Validator.check_schema(parameters)
    except jsonschema.SchemaError as error:
        place = "/".join(map(str, error.absolute_path))
        raise ToolDefinitionError(
            f"the parameters are no JSON Schema: {place or 'schema'}: {error.message[:200]}",
            hint="write them as JSON Schema 2020-12",
        ) from None
    except Unresolvable as error:
        raise ToolDefinitionError(f"$ref {error.ref[:80]!r} leads nowhere") from None
    except RecursionError:
        raise ToolDefinitionError("the parameters nest too deeply") from None
    return _validator_class()(dict(parameters), registry=Registry())


def _vet(parameters: Mapping[str, Any]) -> list[str]:
    """Refuses what jsonschema would take, see `check_parameters`; returns the references."""
    if parameters.get("type", "object") != "object":
        raise ToolDefinitionError(
            "a tool's parameters are an object", hint='write {"type": "object", "properties": …}'
        )
    todo: list[tuple[Any, bool]] = [(parameters, True)]
    keys: set[str] = set()
    references: list[str] = []
    nodes = 0
    while todo:
        node, is_root = todo.pop()
        nodes += 1
        if nodes > _MAX_SCHEMA_NODES:
            raise ToolDefinitionError("the parameters are too large to be checked")
        if isinstance(node, list):
            todo += ((item, False) for item in node)
        elif isinstance(node, Mapping):
            keys |= node.keys()
            references += _vet_schema(node, is_root=is_root)
            for key, value in node.items():
                if key in _TABLES and isinstance(value, Mapping):
                    todo += ((item, False) for item in value.values())
                elif key not in _DATA:
                    todo.append((value, False))
    if {"patternProperties", "unevaluatedProperties"} <= keys:
        raise ToolDefinitionError("patternProperties and unevaluatedProperties cannot be combined")
    return references


def _vet_schema(schema: Mapping[str, Any], *, is_root: bool) -> list[str]:
    references: list[str] = []
    for key in ("$ref", "$dynamicRef"):
        reference = schema.get(key)
        if isinstance(reference, str) and not reference.startswith("#"):
            raise ToolDefinitionError(
                f"{key} {reference[:80]!r} leads out of the schema",
                hint="put what it refers to under $defs; nothing is fetched",
            )
        if isinstance(reference, str):
            references.append(reference)
    if not is_root and isinstance(schema.get("$id"), str):
        raise ToolDefinitionError("an $id within the parameters is not supported")
    patterns = [schema.get("pattern")]
    if isinstance(by_pattern := schema.get("patternProperties"), Mapping):
        patterns += by_pattern
    for pattern in patterns:
        if isinstance(pattern, str):
            try:
                compiled(pattern)
            except UnsupportedPattern as error:
                raise ToolDefinitionError(
                    f"the pattern {pattern[:80]!r} cannot be used: {error}"[:300],
                    hint="leave it out, or write it without look-around and back references",
                ) from None
    return references


# --- keywords ---------------------------------------------------------------------------------


@cache
def _validator_class() -> Any:
    import jsonschema

    base = jsonschema.Draft202012Validator
    types = base.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number})
    keywords = dict(base.VALIDATORS) | {
        "properties": _properties,
        "required": _required,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    counted = {
        name: _counted(keyword, _STEPS_OF.get(name, 1)) for name, keyword in keywords.items()
    }
    extend: Callable[..., Any] = jsonschema.validators.extend
    return extend(base, counted, type_checker=types)


_Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


def _counted(keyword: _Keyword, steps: int) -> _Keyword:
    def count(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        left = _steps.get()
        left[0] -= steps
        if left[0] < 0:
            raise TooMuch
        return keyword(validator, value, instance, schema)

    return count


def _is_integer(checker: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(checker: Any, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _properties(validator: Any, properties: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for name, subschema in properties.items():
        if name in instance and subschema is False:
            yield Fault("no such key", path=(name,))
        elif name in instance:
            yield from validator.descend(instance[name], subschema, path=name, schema_path=name)


def _required(validator: Any, required: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for name in required:
            if name not in instance:
                yield Fault("required", path=(name,))


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string"):
        try:
            if not compiled(pattern).search(instance):
                yield Fault(f"text that matches {pattern}")
        except TooLong:
            yield Fault("a shorter text")


def _matching(patterns: Any, key: str) -> bool:
    return any(compiled(pattern).search(key) for pattern in patterns)


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for key, value in instance.items():
            try:
                if compiled(pattern).search(key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)
            except TooLong:
                yield Fault("a shorter name", path=(key,))


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    known = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    for key, value in instance.items():
        try:
            if key in known or _matching(patterns, key):
                continue
        except TooLong:
            continue  # patternProperties has said so
        if allowed is False:
            yield Fault("no such key", path=(key,))
        elif allowed is not True:
            yield from validator.descend(value, allowed, path=key)


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if unique and validator.is_type(instance, "array"):
        seen = set()
        for item in instance:
            mark = _mark(item)
            if mark in seen:
                yield Fault("no item twice")
                return
            seen.add(mark)


def _mark(value: Any) -> Any:
    """A hashable stand-in: the same for values that JSON Schema calls equal."""
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, Mapping):
        return ("object", frozenset((key, _mark(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return ("array", tuple(_mark(item) for item in value))
    return value
