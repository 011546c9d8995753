"""Annotations as types: their text resolved, and each in a form that pydantic takes."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from mlx_tools.errors import ToolDefinitionError


def annotations_of(
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    name: str,
    names: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The parameters' annotations as types that pydantic takes, text resolved in the names that the
    function sees, of which ``names`` are the local ones. What it returns is nobody's business here:
    its annotation may name what is there for type checkers alone."""
    written = {key: parameter.annotation for key, parameter in parameters.items()}
    holder = types.SimpleNamespace(__annotations__=written)
    portable = _Portable(names or {})
    local = dict(names or {})
    try:
        hints = typing.get_type_hints(holder, _names_around(function), local, include_extras=True)
        return {key: portable(hint) for key, hint in hints.items()}
    except Exception as error:  # whatever an annotation's text does when it is evaluated
        raise ToolDefinitionError(
            f"{name}: an annotation cannot be resolved: {first_line(error)}",
            hint="define or import what it names before the tool",
        ) from None


def _names_around(function: Callable[..., Any]) -> dict[str, Any]:
    """The global names that a function's own text sees."""
    target: Any = inspect.unwrap(function)
    while hasattr(target, "func") and not inspect.isroutine(target):
        target = inspect.unwrap(target.func)  # functools.partial
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = inspect.unwrap(type(target).__call__)
    found = getattr(target, "__globals__", None)
    if found is None:
        found = vars(sys.modules.get(getattr(target, "__module__", ""), typing))
    return dict(found)


class _Portable:
    """Makes of a hint one with every ``typing.TypedDict`` as one of ``typing_extensions``: before
    Python 3.12 pydantic takes no other. One for all hints of a function, whose local names are
    ``names``."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = dict(names)
        self._made: dict[Any, Any] = {}

    def __call__(self, hint: Any) -> Any:
        if sys.version_info >= (3, 12):
            return hint
        if isinstance(hint, type) and typing.is_typeddict(hint):
            return self._made[hint] if hint in self._made else self._dictionary(hint)
        parts = typing.get_args(hint)
        origin = typing.get_origin(hint)
        if not parts or origin in (typing.Literal, collections.abc.Callable):
            return hint
        if origin is typing.Annotated:
            return typing.Annotated[(self(parts[0]), *parts[1:])]
        changed = tuple(map(self, parts))
        if all(new is old for new, old in zip(changed, parts, strict=True)):
            return hint
        return functools.reduce(operator.or_, changed) if _is_union(origin) else origin[changed]

    def _dictionary(self, hint: Any) -> Any:
        """Made before its items are: one of them may be of the same type."""
        made = self._made[hint] = typed_dict(hint.__name__, {})
        made.__doc__, made.__module__ = hint.__doc__, hint.__module__
        if hasattr(hint, "__pydantic_config__"):
            made.__pydantic_config__ = hint.__pydantic_config__
        needed = set()
        hints = typing.get_type_hints(hint, localns=self._names, include_extras=True)
        for key, value in hints.items():
            said = typing.get_origin(value)  # the type itself knows nothing of what is said in text
            by_itself = said in (typing.Required, typing.NotRequired)
            if said is typing.Required if by_itself else key in hint.__required_keys__:
                needed.add(key)
            made.__annotations__[key] = self(typing.get_args(value)[0] if by_itself else value)
        made.__required_keys__ = frozenset(needed)
        made.__optional_keys__ = frozenset(made.__annotations__) - needed
        return made


def typed_dict(name: str, items: Mapping[str, Any]) -> Any:
    """A typed dictionary of this name with these items."""
    import typing_extensions

    make: Any = typing_extensions.TypedDict
    return make(name, items)


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or origin is types.UnionType


def first_line(error: BaseException) -> str:
    """What an error says, in a line: the first, or where pydantic-core tells what it was building,
    the last."""
    lines = str(error).strip().split("\n")
    return lines[-1 if lines[0].startswith("Error building") else 0].strip()[:200]
