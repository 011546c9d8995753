"""A tool's parameters as a bounded validator (JSON Schema 2020-12).

jsonschema does the work. This module limits it where an untrusted schema or a model's arguments
could do harm. No ``$ref`` leads out of the schema, a ``pattern`` is matched in linear time, and a
check takes a bounded number of steps. Faults are reported as ``path: what was expected``. A value
that is only written as another type is coerced (reading rule 10).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.schema.pattern import TextTooLong, compile_pattern
from mlx_tools.schema.resolve import cache_by_identity, check_parameters, is_plain, schema_text

_MAX_STEPS: Final = 200_000
"""Keywords that one check may apply. A choice: real calls take a small part of it, and a hostile
schema must not hold up the event loop."""
_KEYWORD_STEPS: Final = {"$ref": 10, "$dynamicRef": 10}
"""The cost of a keyword if it is not 1: these take so much longer than others."""

_MAX_REPORTED_FAULTS: Final = 40
"""Faults of one call that are reported. A choice: a model reads a few of them."""

_steps: ContextVar[list[int]] = ContextVar("steps")


class CheckTooLong(Exception):
    """The check took more steps than it may."""


@cache_by_identity
def make_validator(parameters: Mapping[str, Any]) -> Any:
    """Return the validator of a schema, made once.

    Raises:
        ToolDefinitionError: the schema is not sound.
    """
    return _validator(schema_text({"type": "object", **parameters}))


@lru_cache(maxsize=512)
def _validator(text: str) -> Any:
    from referencing import Registry

    parameters = json.loads(text)
    check_parameters(parameters)
    return _validator_class()(parameters, registry=Registry())


@contextmanager
def limit_steps() -> Iterator[None]:
    """Share one limit of steps between all calls of `find_faults` in the block."""
    token = _steps.set([_MAX_STEPS])
    try:
        yield
    finally:
        _steps.reset(token)


def find_faults(validator: Any, value: Any, max_faults: int) -> list[Any]:
    """Return the first faults of ``value``.

    Raises:
        CheckTooLong: the check took too many steps.
        RecursionError: the schema or the value is too deep.
    """
    return list(islice(validator.iter_errors(value), max_faults))


_PLAIN_TYPES: Final[Mapping[str, type]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "object": dict,
}


def fits_plainly(value: Any, parameters: Mapping[str, Any]) -> bool:
    """Return whether ``value`` fits a plain schema; False means that nothing is known.

    It takes far less time than jsonschema.
    """
    schema = _find_plain(parameters)
    return schema is not None and _fits(value, schema)


@cache_by_identity
def _find_plain(parameters: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schema = {"type": "object", **parameters}
    return schema if is_plain(schema) else None


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    kind = schema["type"]
    if kind == "number":
        return type(value) is int or (type(value) is float and math.isfinite(value))
    if type(value) is not _PLAIN_TYPES[kind]:
        return False
    if isinstance(value, str):
        longest = schema.get("maxLength", math.inf)
        fitting = schema.get("minLength", 0) <= len(value) <= longest
        return bool(fitting and ("enum" not in schema or value in schema["enum"]))
    if not isinstance(value, dict):
        return True
    members = schema.get("properties", {})
    for name, item in value.items():
        if name not in members or not _fits(item, members[name]):
            return False  # a name that is not known may be allowed, with any value
    return value.keys() >= set(schema.get("required", ()))


def fits(value: Any, parameters: Mapping[str, Any]) -> bool:
    """Return whether ``value`` fits; also False if the schema is unusable or too slow."""
    try:
        with limit_steps():
            return fits_plainly(value, parameters) or not find_faults(
                make_validator(parameters), value, 1
            )
    except (ToolDefinitionError, CheckTooLong, RecursionError):
        return False


# --- keywords ---------------------------------------------------------------------------------


def check_arguments(
    arguments: Mapping[str, Any], parameters: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...], Sequence[Any]]:
    """Return the arguments as a tool takes them, the coercions, and the faults.

    Raises `ToolDefinitionError`, `CheckTooLong` or `RecursionError` if they cannot be checked.
    """
    given = dict(arguments)
    # Most calls fit as they are; then no validator is built, which takes milliseconds.
    if fits_plainly(given, parameters):
        return given, (), ()
    with limit_steps():
        validator = make_validator(parameters)
        found = find_faults(validator, given, _MAX_REPORTED_FAULTS)
        mended, coercions = coerce(validator, given) if found else (given, ())
        if coercions:
            found = find_faults(validator, mended, _MAX_REPORTED_FAULTS)
    return mended, coercions, found


@cache
def _validator_class() -> Any:
    import jsonschema

    base = jsonschema.Draft202012Validator
    types = base.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number})
    keywords = {**base.VALIDATORS, **_KEYWORDS}
    counted = {
        name: _limit_keyword(check, _KEYWORD_STEPS.get(name, 1)) for name, check in keywords.items()
    }
    extend: Callable[..., Any] = jsonschema.validators.extend
    return extend(base, counted, type_checker=types)


_Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


def _limit_keyword(keyword: _Keyword, steps: int) -> _Keyword:
    def count(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        budget = _steps.get()
        budget[0] -= steps
        if budget[0] < 0:
            raise CheckTooLong
        return keyword(validator, value, instance, schema)

    return count


def _is_integer(checker: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(checker: Any, value: Any) -> bool:
    return _is_integer(checker, value) or (isinstance(value, float) and math.isfinite(value))


def _make_fault(message: str, path: Sequence[str | int] = ()) -> Any:
    """Return a fault whose message says what was expected."""
    from jsonschema import ValidationError

    return ValidationError(message, path=path)


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string"):
        try:
            if not compile_pattern(pattern).search(instance):
                yield _make_fault(f"text that matches {pattern}")
        except TextTooLong:
            yield _make_fault("a shorter text")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for key, value in instance.items():
            try:
                if compile_pattern(pattern).search(key):
                    yield from validator.descend(value, subschema, path=key, schema_path=pattern)
            except TextTooLong:
                yield _make_fault("a shorter name", path=(key,))


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    members, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items():
        try:
            if key in members or any(compile_pattern(pattern).search(key) for pattern in patterns):
                continue
        except TextTooLong:
            continue  # patternProperties has said so
        yield from _member(validator, allowed, key, value)


def _properties(validator: Any, properties: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "object"):
        for name in [name for name in properties if name in instance]:
            yield from _member(validator, properties[name], name, instance[name])


def _member(validator: Any, schema: Any, key: str, value: Any) -> Iterator[Any]:
    if schema is False:  # of which jsonschema does not say where
        yield _make_fault("no such key", path=(key,))
    else:
        yield from validator.descend(value, schema, path=key, schema_path=key)


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check in linear time, unlike jsonschema."""
    is_array = unique and validator.is_type(instance, "array")
    if is_array and len({to_hashable(item) for item in instance}) < len(instance):
        yield _make_fault("no item twice")


def to_hashable(value: Any) -> Any:
    """Return a hashable stand-in for a JSON value.

    Values that JSON Schema calls equal have equal ones.
    """
    if type(value) is str:
        return value
    if value is None or isinstance(value, (str, int, float)):
        return ("constant", value) if value is None or isinstance(value, bool) else value
    if isinstance(value, (dict, Mapping)):
        return ("object", frozenset([(key, to_hashable(item)) for key, item in value.items()]))
    if isinstance(value, (list, tuple)):
        return ("array", tuple(to_hashable(item) for item in value))
    return value


_KEYWORDS: Final[Mapping[str, _Keyword]] = {
    "properties": _properties,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
"""Keywords checked here; their faults say themselves what was expected."""


# --- what is wrong, in words ------------------------------------------------------------------

MAX_MESSAGE_CHARS: Final = 500
"""Characters of an error message: a model reads a few faults, and mends one at a time."""

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]{0,63}")
_MAX_VALUE_CHARS: Final = 120


def join_faults(errors: Iterable[Any]) -> str:
    """Join all faults to one message, up to `MAX_MESSAGE_CHARS`."""
    lines: dict[str, None] = {}
    for fault in errors:
        for path, expected in _explain(fault):
            lines[f"{path}: {expected}"] = None
    text = "; ".join(lines)
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def format_path(path: Iterable[str | int]) -> str:
    """Return a place in the arguments, as ``a.b[0]``; unusual names are JSON."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{_shorten(step)}]"
    return text or "arguments"


def _explain(fault: Any) -> Iterator[tuple[str, str]]:
    path = tuple(fault.absolute_path)
    if fault.validator in ("anyOf", "oneOf") and fault.context:
        yield from _explain_branches(fault)
    elif fault.validator == "required":
        missing = (name for name in fault.validator_value if name not in fault.instance)
        yield from ((format_path((*path, name)), "required") for name in missing)
    else:
        yield format_path(path), _describe_expected(fault)


_WHOLE_VALUE: Final = (None, "type", "const", "enum")
"""Keywords whose fault says that a branch of a union is not meant; None is the schema false."""


def _explain_branches(fault: Any) -> Iterator[tuple[str, str]]:
    """Yield the faults of the meant branch of a union, else all that would fit."""
    branches: dict[int, list[Any]] = {}
    for inner in fault.context:
        place = next(iter(inner.relative_schema_path), -1)  # of the schema false there is none
        branches.setdefault(place, []).append(inner)
    fitting = [
        inner
        for inner in branches.values()
        if not any(f.validator in _WHOLE_VALUE and not f.relative_path for f in inner)
    ]
    if len(fitting) == 1:
        for inner in fitting[0]:
            yield from _explain(inner)
        return
    ways = dict.fromkeys(_describe_expected(f) for inner in branches.values() for f in inner[:1])
    yield format_path(fault.absolute_path), " or ".join(ways)[:_MAX_VALUE_CHARS]


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= _MAX_VALUE_CHARS else text[:_MAX_VALUE_CHARS] + "…"


_EXPECTED: Final[Mapping[str, Callable[[Any], str]]] = {
    "type": lambda kinds: " or ".join(kinds) if isinstance(kinds, list) else str(kinds),
    "enum": lambda values: "one of " + ", ".join(_shorten(value) for value in values),
    "const": _shorten,
    "minimum": lambda bound: f"at least {bound}",
    "maximum": lambda bound: f"at most {bound}",
    "exclusiveMinimum": lambda bound: f"more than {bound}",
    "exclusiveMaximum": lambda bound: f"less than {bound}",
    "multipleOf": lambda step: f"a multiple of {step}",
    "minLength": lambda size: f"at least {size} characters",
    "maxLength": lambda size: f"at most {size} characters",
    "minItems": lambda size: f"at least {size} items",
    "maxItems": lambda size: f"at most {size} items",
    "minProperties": lambda size: f"at least {size} keys",
    "maxProperties": lambda size: f"at most {size} keys",
    "required": lambda _: "required",
    "contains": lambda _: "an item of another form",
    "oneOf": lambda _: "exactly one of the forms allowed",
    "not": lambda _: "another form",
    "unevaluatedProperties": lambda _: "no other keys",
    "unevaluatedItems": lambda _: "no other items",
    "dependentRequired": lambda needs: "keys that go together: " + _shorten(needs),
}


def _describe_expected(fault: Any) -> str:
    """Return what was expected at the fault."""
    if fault.validator is None:  # the schema false
        return "nothing"
    if fault.validator in _EXPECTED:
        return _EXPECTED[fault.validator](fault.validator_value)[:_MAX_VALUE_CHARS]
    return str(fault.message[:_MAX_VALUE_CHARS])


# --- coercions that cannot change meaning -----------------------------------------------------

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,299})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,299})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")
_MAX_FAULTS: Final = 100
"""Faults of a value that is still coerced; one with more was written for another schema."""

_TYPE_KEYWORDS: Final = frozenset(("type", "enum", "const", "anyOf", "oneOf"))
"""Keywords whose fault may be that a value is written as another type."""

_MAX_DEPTH: Final = 3
"""Times that a list may be put around a value, or a union be within a union."""


def coerce(validator: Any, value: Any, depth: int = 0) -> tuple[Any, tuple[str, ...]]:
    """Return ``value`` with coercions that cannot change its meaning, and their names.

    The original is not changed. The result need not be valid. If nothing can be done it is the
    original.
    """
    names: list[str] = []
    value_faults = find_faults(validator, value, _MAX_FAULTS) if depth < _MAX_DEPTH else []
    # Below: each change is made in a copy, so that a fault's path still leads to its value.
    if not 0 < len(value_faults) < _MAX_FAULTS:
        return value, ()
    holder = [deepcopy(value)]
    for fault in value_faults:
        change = _change(validator, fault, depth)
        path: list[Any] = [0, *fault.relative_path]
        parent: Any = holder
        last = path.pop()
        try:
            for step in path:
                parent = parent[step]
            if change is not None:
                parent[last] = change[0]
                names += change[1]
            elif (
                isinstance(parent, dict)
                and parent[last] is None
                and fault.validator in _TYPE_KEYWORDS
            ):
                del parent[last]  # where the key is required, that is the fault that remains
                names.append("dropped_null")
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change replaced what this fault speaks of
    return holder[0], tuple(dict.fromkeys(names))


def _change(validator: Any, fault: Any, depth: int) -> tuple[Any, tuple[str, ...]] | None:
    """Return the only value that fits at the fault, and the names of its coercions."""
    if fault.validator not in _TYPE_KEYWORDS:
        return None
    local = validator.evolve(schema=fault.schema)
    ways: list[tuple[Any, tuple[str, ...]]] = []
    choices = fault.validator_value if fault.validator == "enum" else ()
    choices = (fault.validator_value,) if fault.validator == "const" else choices
    for new, name in (*list_coercions(fault.instance), *find_other_case(fault.instance, choices)):
        nests = isinstance(new, (dict, list))
        mended, names = coerce(local, new, depth + 1) if nests else (new, ())
        if not find_faults(local, mended, 1):
            ways.append((mended, (name, *names)))
    if fault.validator in ("anyOf", "oneOf"):
        for branch in fault.validator_value:
            mended, names = coerce(validator.evolve(schema=branch), fault.instance, depth + 1)
            if names and not find_faults(local, mended, 1):
                ways.append((mended, names))
    # Two values that fit would be a choice, and could change the meaning.
    if not ways or any(not _equal(ways[0][0], way[0]) for way in ways):
        return None
    return ways[0]


def list_coercions(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield values that ``value`` may stand for, with the names of the repairs.

    Validation uses one only if exactly one fits. A constrained turn uses what its grammar allows.
    """
    if isinstance(value, str):
        if (container := _parse_container(value)) is not None:
            yield container, "coerced_json"
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
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value), "coerced_text"
    may_be_list = isinstance(value, str) and value.lstrip()[:1] in ("[", "{", "(")
    if not isinstance(value, list) and value is not None and not may_be_list:
        yield [value], "wrapped_list"


def _parse_container(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the object or list that a string holds as JSON, or None."""
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members


def _refuse(name: str) -> Any:
    raise ValueError(name)


def find_other_case(value: Any, choices: Any) -> Iterator[tuple[str, str]]:
    """Yield the only choice that differs in case, and the name of the repair."""
    if isinstance(value, str) and isinstance(choices, list | tuple):
        lower = value.lower()
        matching = {item for item in choices if isinstance(item, str) and item.lower() == lower}
        if len(matching) == 1:
            yield matching.pop(), "coerced_case"


def list_choices(schema: Any) -> tuple[str, ...]:
    """Return every string that an ``enum`` or ``const`` allows, at any depth."""
    choices: dict[str, None] = {}
    pending = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            listed = item.get("enum")
            values = [*listed] if isinstance(listed, list | tuple) else []
            choices |= dict.fromkeys(v for v in (*values, item.get("const")) if isinstance(v, str))
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item
    return tuple(choices)


def _equal(first: Any, second: Any) -> bool:
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)
