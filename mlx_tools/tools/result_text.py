"""The value that a tool returned, as the text of an observation."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import fractions
import functools
import inspect
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from mlx_tools.transcript import Sources, sources_of


class ResultError(Exception):
    """The tool returned something that has no JSON."""


def to_text(value: Any) -> str:
    """A string as it is, anything else as compact JSON, so that nothing returned is ``null``.

    Dataclasses, models, enums, dates, decimals, paths and sets are written as one would expect.
    Raises ResultError for bytes, for NaN and infinity, which JSON does not have, and for objects
    that are no data.
    """
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str):
        return whole_characters(value)
    try:
        try:
            return whole_characters(_encoder().encode(value))
        except TypeError:  # a key that is no text
            return whole_characters(_encoder().encode(_with_plain_keys(value)))
    except RecursionError:
        raise ResultError("the result is nested too deep for JSON") from None
    except ValueError as error:
        raise ResultError(f"the result cannot be written as JSON: {error}") from None


def to_result(value: Any) -> str | Sources:
    """Return what a tool returned: sources as they are, anything else as text. Raises
    ResultError."""
    sources = sources_of(value)
    return to_text(value) if sources is None else sources.cleaned(whole_characters)


def whole_characters(text: str) -> str:
    """The text with U+FFFD for every lone surrogate, which no UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@functools.cache
def _encoder() -> json.JSONEncoder:
    return json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
    )


def _plain(value: Any) -> Any:
    """A value that JSON does not have, one step closer to one that it has."""
    match value:
        case enum.Enum():
            return value.value
        case datetime.datetime():  # pydantic writes another form
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case fractions.Fraction() | pathlib.PurePath():
            return str(value)
        case bytes() | bytearray() | memoryview():
            raise ResultError("the result holds bytes; decode them, or encode them as base64")
        case Mapping():
            return dict(value)
        case Set():
            return sorted(value, key=repr)
        case Sequence():
            return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if callable(getattr(value, "model_dump", None)) and not isinstance(value, type):
        return value.model_dump(mode="json")
    if callable(getattr(value, "tolist", None)):  # arrays and numbers of numpy and mlx
        return value.tolist()
    if inspect.iscoroutine(value):
        value.close()
    return _as_pydantic(value)


def _as_pydantic(value: Any) -> Any:
    """A value of a type that pydantic can write: dates, decimals, paths, addresses, URLs, secrets,
    which it masks."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        if not isinstance(value, Iterator):  # which may never end
            return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        pass
    raise ResultError(f"a result of type {type(value).__name__} cannot be written as JSON")


def _with_plain_keys(value: Any) -> Any:
    """The value with the keys of its mappings as strings: dates, enums, numbers."""
    if isinstance(value, Mapping):
        return {_key(key): _with_plain_keys(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_plain_keys(item) for item in value]
    if isinstance(value, str | int | float | None):
        return value
    return _with_plain_keys(_plain(value))


def _key(key: Any) -> str:
    plain = key if isinstance(key, str | int | float | None) else _plain(key)
    if isinstance(plain, list | dict):
        raise ResultError(f"a key of type {type(key).__name__} cannot be written as JSON")
    return str(plain) if not isinstance(plain, bool | None) else json.dumps(plain)
