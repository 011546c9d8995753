"""Reads the texts of a command line without pydantic.

From 0.29 on typer makes a pydantic adapter for each parameter, even for those that nobody typed.
The import of pydantic takes longer than a whole short command.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any


def read_plainly(parameters: Iterable[Any]) -> None:
    """Make parameters take missing values and texts as they are."""
    for parameter in parameters:
        # Older versions of typer have no adapters.
        if (make_adapter := getattr(parameter, "get_runtime_param", None)) is not None:
            annotation = parameter.type_descriptor.annotation
            reader = functools.partial(_PlainValues, annotation, make_adapter)
            parameter.get_runtime_param = reader


class _PlainValues:
    """Reads the value of a parameter; typer's adapter reads any value that is no text."""

    def __init__(self, annotation: Any, make_adapter: Callable[[], Any]) -> None:
        self._annotation, self._make_adapter = annotation, make_adapter

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Return the value of the parameter, as typer's adapter does."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is self._annotation and (
            type(value) in (str, bool) or value == param.default
        ):
            return value
        if self._annotation == list[str] and isinstance(value, list | tuple):
            texts = [text for text in value if type(text) is str]
            if len(texts) == len(value):
                return texts
        return self._make_adapter().coerce(value, param=param, ctx=ctx)
