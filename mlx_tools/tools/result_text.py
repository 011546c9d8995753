"""The value that a tool returned, as the text of an observation."""

from __future__ import annotations

import enum
import functools
import inspect
import json
from collections.abc import Iterator, Sequence, Set
from pathlib import PurePath
from typing import Any

from mlx_tools.transcript import Sources, sources_of


class ResultError(Exception):
    """The tool returned something that has no JSON."""


def to_text(value: Any) -> str:
    """A string as it is, anything else as compact JSON, so that nothing returned is ``null``.

    What JSON does not have is written as pydantic does: dataclasses, models, enums, dates, paths.
    Raises ResultError for NaN and infinity, and for objects that are no data.
    """
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str):
        return whole_characters(value)
    try:
        try:
            return whole_characters(_encoder().encode(value))
        except TypeError:  # a key that is no text
            return whole_characters(_encoder().encode(_plain(value)))
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
    """A value that JSON does not have, as one that it has."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    match value:
        case bytes() | bytearray() | memoryview():
            raise ResultError("the result holds bytes; decode them, or encode them as base64")
        case PurePath():
            return str(value)
        case Set():
            return sorted(value, key=repr)  # the same text each time
        case Sequence():
            return list(value)
    if callable(getattr(value, "tolist", None)):  # arrays and numbers of numpy and mlx
        return value.tolist()
    if inspect.iscoroutine(value):
        value.close()
    try:
        if not isinstance(value, Iterator):  # which may never end
            return to_jsonable_python(value, by_alias=True)
    except (PydanticSerializationError, ValueError):
        pass
    raise ResultError(f"a result of type {type(value).__name__} cannot be written as JSON")
