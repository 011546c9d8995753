"""What a caller of the library gave, checked where it comes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from mlx_tools.errors import UsageError

T = TypeVar("T")

_SHOWN = 80


def wrong(name: str, value: object, hint: str) -> UsageError:
    """The error for a ``value`` that cannot be what the caller calls ``name``; ``hint`` says what
    can."""
    try:
        shown = repr(value)
    except Exception:  # a foreign object's own: it must not hide what is wrong
        shown = f"a {type(value).__name__}"
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}…"
    return UsageError(f"{name} cannot be {shown}", hint=hint)


def instance(name: str, value: object, kind: type[T], hint: str) -> T:
    """``value``, which must be of this kind. Raises `UsageError`."""
    if not isinstance(value, kind):
        raise wrong(name, value, hint)
    return value


def having(name: str, value: T, method: str, hint: str) -> T:
    """``value``, which must be an object (no class) with this method. Raises `UsageError`."""
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise wrong(name, value, hint)
    return value


def items(name: str, value: Iterable[T] | None, hint: str) -> list[T]:
    """The items of ``value``, none where it is None. Raises `UsageError` for what is no collection,
    a text and a mapping among it."""
    if value is None:
        return []
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise wrong(name, value, hint)
    return list(value)


def texts(name: str, value: Any, hint: str) -> tuple[str, ...]:
    """A collection of texts, as a tuple. Raises `UsageError`."""
    found = items(name, value, hint)
    if value is None or not all(isinstance(one, str) for one in found):
        raise wrong(name, value, hint)
    return tuple(found)
