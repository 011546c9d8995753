"""Frozen dataclasses out of JSON values, by their annotations: what does not fit is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from mlx_tools.errors import TranscriptError

_Read = Callable[[Any], Any]
"""Makes a field's value of a JSON value. Raises `_Misfit`."""


class _Misfit(Exception):
    """The value is not of the kind that the field has."""


def build(cls: type[Any], values: Mapping[str, Any], what: str) -> Any:
    """The dataclass ``cls`` with the fields ``values``; lists become tuples.

    ``what`` names it in the `TranscriptError` that is raised for a field that is unknown, missing,
    or has a value of another kind than its annotation says.
    """
    readers, needed = _fields(cls)  # type: ignore[arg-type]  # a class is hashable
    made: dict[str, Any] = {}
    for key, value in values.items():
        read = readers.get(key)
        if read is None:
            raise TranscriptError(
                f"{what} holds the unknown key {key!r}",
                hint="it was written by a newer version of mlx-tools",
            )
        try:
            made[key] = read(value)
        except _Misfit:
            raise TranscriptError(f"{what}: the value of {key} cannot be right") from None
    for key in needed:
        if key not in made:
            raise TranscriptError(f"{what} is incomplete: it lacks {key}")
    return cls(**made)


@functools.cache
def _fields(cls: type[Any]) -> tuple[Mapping[str, _Read], tuple[str, ...]]:
    """How each field is read, and which must be there."""
    hints = get_type_hints(cls)
    own = fields(cls)
    needed = (f.name for f in own if f.default is MISSING and f.default_factory is MISSING)
    return {f.name: _reader(hints[f.name]) for f in own}, tuple(needed)


_PLAIN: Final[Mapping[Any, tuple[type, ...]]] = {
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: (float, int),
    type(None): (type(None),),
}


def _reader(hint: Any) -> _Read:
    """How a value of this annotation is read."""
    if hint is Any:
        return lambda value: value
    if hint in _PLAIN:
        return _one_of_types(frozenset(_PLAIN[hint]))
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _one_of_values(inner)
    if origin in (UnionType, Union):
        return _one_of_readers([_reader(one) for one in inner])
    if origin is tuple:
        return _tuple_of(_reader(inner[0]))
    if origin is Mapping:
        return _mapping_of(_reader(inner[1]))
    if isinstance(hint, type) and is_dataclass(hint):
        return _nested(hint)
    raise TypeError(f"no record holds a {hint}")


def _one_of_types(kinds: frozenset[type]) -> _Read:
    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise _Misfit
        return value

    return read


def _one_of_values(values: tuple[Any, ...]) -> _Read:
    def read(value: Any) -> Any:
        if not any(value is one or (type(value) is type(one) and value == one) for one in values):
            raise _Misfit
        return value

    return read


def _one_of_readers(readers: list[_Read]) -> _Read:
    def read(value: Any) -> Any:
        for one in readers:
            try:
                return one(value)
            except _Misfit:
                continue
        raise _Misfit

    return read


def _tuple_of(inner: _Read) -> _Read:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Misfit
        return tuple(map(inner, value))

    return read


def _mapping_of(inner: _Read) -> _Read:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit
        for item in value.values():
            inner(item)
        return value

    return read


def _nested(cls: type[Any]) -> _Read:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit
        return build(cls, value, f"a record's {cls.__name__}")

    return read
