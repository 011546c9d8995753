"""Schemas and values of parameters with plain annotations, without pydantic.

The plain annotations are ``str``, ``int``, ``float``, ``bool``, ``None``, ``Any``, ``list``,
``dict`` with texts as keys, `Literal` of texts or of integers, and unions of these. Schemas and
values are exactly those of pydantic. Pydantic itself is used for other annotations, and for values
that do not fit directly. Its import takes longer than a small model needs to answer a question.
"""

from __future__ import annotations

import copy
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Union

Convert = Callable[[Any], Any]
"""Converts a JSON value to a parameter's value. Raises `NotPlain` if pydantic must decide."""

_EXACT_FLOATS: Final = 1 << 53
"""Every integer up to this one is exact as a float."""

_NAMES: Final[Mapping[Any, str]] = {
    str: "string",
    int: "integer",
    bool: "boolean",
    float: "number",
    types.NoneType: "null",
}


class NotPlain(Exception):
    """An annotation, a default or a value that pydantic must handle."""


def build_schema(fields: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Return the schema of parameters, given as annotation and default by name.

    Raises `NotPlain`.
    """
    properties: dict[str, Any] = {}
    for name, (annotation, default) in fields.items():
        schema = _schema(annotation)
        if default is not inspect.Parameter.empty:
            schema = dict(sorted({**schema, "default": _json_default(default)}.items()))
        properties[name] = schema
    required = [name for name, (_, value) in fields.items() if value is inspect.Parameter.empty]
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


class PlainArguments:
    """The parameters of a function, and the conversion of JSON values for them.

    Raises `NotPlain` if an annotation is not plain.
    """

    def __init__(self, fields: Mapping[str, tuple[Any, Any]]) -> None:
        self._convert = {name: _converter(annotation) for name, (annotation, _) in fields.items()}
        self._defaults = {
            name: default
            for name, (_, default) in fields.items()
            if default is not inspect.Parameter.empty
        }

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments.

        Raises `NotPlain` if an argument is missing or does not fit.
        """
        if not arguments.keys() <= self._convert.keys():
            raise NotPlain
        values = {}
        for name, convert in self._convert.items():
            if name in arguments:
                values[name] = convert(arguments[name])
            elif name in self._defaults:
                values[name] = copy.deepcopy(self._defaults[name])
            else:
                raise NotPlain
        return values


# --- schemas --------------------------------------------------------------------------------------


def _schema(annotation: Any) -> dict[str, Any]:
    """Return the schema of an annotation, its keys in alphabetical order."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return {}
    if isinstance(annotation, type) and annotation in _NAMES:
        return {"type": _NAMES[annotation]}
    if annotation is list or (origin is list and len(parts) == 1):
        return {"items": _schema(parts[0]) if parts else {}, "type": "array"}
    if annotation is dict or (origin is dict and len(parts) == 2 and parts[0] is str):
        inner = _schema(parts[1]) if parts else {}
        return {"additionalProperties": inner or True, "type": "object"}
    if origin is Literal and (kind := _common_type(parts)) is not None:
        values = list(dict.fromkeys(parts))
        named = {"const": values[0]} if len(values) == 1 else {"enum": values}
        return {**named, "type": _NAMES[kind]}
    if origin in (Union, types.UnionType):
        choices = [_schema(part) for part in parts if part is not types.NoneType]
        if len(choices) < len(parts):
            choices.append({"type": "null"})
        if len(choices) > 1 and all(c not in choices[:index] for index, c in enumerate(choices)):
            return {"anyOf": choices}
    raise NotPlain


def _common_type(values: tuple[Any, ...]) -> type | None:
    """Return the type of a literal's values: text, integer, or None for any other."""
    kinds = {type(value) for value in values}
    return kinds.pop() if kinds in ({str}, {int}) else None


def _json_default(value: Any) -> Any:
    """Return a default as a JSON value.

    An object within another one is not plain, because pydantic sorts its keys.
    """
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _json_scalar(item) for key, item in value.items()}
    return _json_list(value) if type(value) is list else _json_scalar(value)


def _json_list(value: list[Any]) -> list[Any]:
    return [_json_list(item) if type(item) is list else _json_scalar(item) for item in value]


def _json_scalar(value: Any) -> Any:
    if type(value) not in (str, int, float, bool, types.NoneType):
        raise NotPlain
    if type(value) is float and not math.isfinite(value):
        raise NotPlain
    if type(value) is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotPlain from None
    return value


# --- values ---------------------------------------------------------------------------------------


def _converter(annotation: Any) -> Convert:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return lambda value: value
    if annotation is float:
        return _as_float
    if isinstance(annotation, type) and annotation in _NAMES:
        return lambda value: _exactly(annotation, value)
    if annotation is list or origin is list:
        items = _converter(parts[0]) if parts else _converter(Any)
        return lambda value: [items(item) for item in _exactly(list, value)]
    if annotation is dict or origin is dict:
        values = _converter(parts[1]) if parts else _converter(Any)
        return lambda value: {
            _exactly(str, key): values(item) for key, item in _exactly(dict, value).items()
        }
    if origin is Literal:
        kind = _common_type(parts)
        return lambda value: _find_literal(parts, _exactly(kind, value))
    if origin in (Union, types.UnionType):
        return _union_converter(parts)
    raise NotPlain


def _union_converter(parts: tuple[Any, ...]) -> Convert:
    """Return the converter of a union. It uses the part for the type of the value.

    If several parts may fit a value, pydantic must decide.
    """
    by_type: dict[type, list[Convert]] = {}
    for part in parts:
        origin = typing.get_origin(part)
        kind = _common_type(typing.get_args(part)) if origin is Literal else origin or part
        if not isinstance(kind, type) or kind is typing.Any:
            raise NotPlain
        by_type.setdefault(kind, []).append(_converter(part))
    if float in by_type and not by_type.keys() & {int, bool}:
        by_type[int] = by_type[float]

    def convert(value: Any) -> Any:
        match by_type.get(type(value)):
            case [converter]:
                return converter(value)
        raise NotPlain

    return convert


def _exactly(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise NotPlain
    return value


def _as_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int and abs(value) <= _EXACT_FLOATS:
        return float(value)
    raise NotPlain


def _find_literal(values: tuple[Any, ...], value: Any) -> Any:
    if value not in values:
        raise NotPlain
    return value
