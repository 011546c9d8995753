"""From a typed function to the schema of its arguments, and from JSON to the values it takes.

Pydantic does both. It is imported when a schema is first needed, not when a tool is declared: what
can be wrong with a signature itself is found at once, without it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.schema.resolve import pointer, walk
from mlx_tools.tools.annotations import annotations_of, first_line, typed_dict
from mlx_tools.tools.context import ToolContext
from mlx_tools.tools.docstring import docstring_of

Convert = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Arguments as JSON values in, keyword arguments of the annotated types out."""

_FIRST: Final = ("type", "description", "properties", "required")
"""What a reader looks for first in a schema."""

_REFUSED: Final[Mapping[Any, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values",
    inspect.Parameter.VAR_KEYWORD: "takes any names",
}


METHOD: Final = "make a tool of the method of an object, as in tool(thing.method)"

_COPIED: Final = (list, dict, set, bytearray)
"""Defaults that a call may change: each call gets one of its own, as the schema tells it."""


class InvalidArguments(Exception):
    """Arguments that fit the schema but not the function, such as a date that is none."""


def parameters_of(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """The function's parameters. Raises ToolDefinitionError for one that a call by name cannot
    fill, or that has no annotation."""
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"{name}: its signature cannot be read: {error}") from None
    for parameter in parameters.values():
        if parameter.kind in _REFUSED:
            raise ToolDefinitionError(
                f"{name}: the parameter {parameter} {_REFUSED[parameter.kind]}",
                hint="a tool's arguments come by name, each one declared",
            )
        if parameter.annotation is inspect.Parameter.empty:
            raise ToolDefinitionError(
                f"{name}: the parameter {parameter.name} has no annotation",
                hint=METHOD if parameter.name in ("self", "cls") else _annotate(parameter.name),
            )
    return parameters


def _annotate(name: str) -> str:
    return f"annotate it, as in {name}: str; typing.Any takes any JSON value"


class Arguments:
    """The schema of a function's arguments, and what turns JSON into them.

    ``schema`` is compact: no titles, nothing in ``$defs`` that is used once. ``context`` is the
    name of the parameter that takes the `ToolContext`, or None. ``names`` are the local names
    around the function, for annotations that are written as text. Raises ToolDefinitionError where
    a type has no JSON Schema.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, names: Mapping[str, Any] | None = None
    ) -> None:
        parameters = parameters_of(function, name)
        hints = annotations_of(function, parameters, name, names)
        contexts = [key for key in parameters if _is_context(hints[key])]
        if len(contexts) > 1:
            raise ToolDefinitionError(
                f"{name}: the parameters {' and '.join(contexts)} are both a ToolContext",
                hint="a call has one: leave the other out",
            )
        self.context = contexts[0] if contexts else None
        fields: dict[str, Any] = {}
        self._defaults: dict[str, Callable[[], Any]] = {}
        shown: dict[str, Any] = {}
        for key, parameter in parameters.items():
            if key == self.context:
                continue
            hint = fields[key] = _field(hints[key], parameter.default)
            if default := _default(hint, parameter.default):
                self._defaults[key] = default
            if parameter.default is not parameter.empty and not _is_field(parameter.default):
                shown[key] = parameter.default
        self._adapter, schema = _built(fields, frozenset(self._defaults), name, names)
        self.schema = _described(schema, docstring_of(function).parameters, shown)

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for a call. Raises InvalidArguments, which names every fault."""
        from pydantic import ValidationError

        try:
            values = self._adapter.validate_python(dict(arguments))
        except ValidationError as error:
            raise InvalidArguments(_faults(error)) from None
        for key, default in self._defaults.items():
            if key not in values:
                values[key] = default()
        return typing.cast("dict[str, Any]", values)


class AsGiven:
    """The arguments of a function whose schema was given: passed on as they came.

    ``context`` is the name of the parameter that is annotated with `ToolContext`, or None. Nothing
    else of the annotations counts; what cannot be resolved is passed over.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        schema: Mapping[str, Any] | None,
        names: Mapping[str, Any],
    ) -> None:
        self.schema: Any = schema  # held to what it must be where the tool is registered
        self.context: str | None = None
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return
        for key, parameter in parameters.items():
            with contextlib.suppress(ToolDefinitionError):
                hints = annotations_of(function, {key: parameter}, key, names)
                if _is_context(hints[key]):
                    self.context = key

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for a call."""
        return dict(arguments)


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without titles and null defaults, and with definitions used once put in place."""
    for _, node in walk(schema):
        if isinstance(node, dict):
            node.pop("title", None)
            node.pop("discriminator", None)
            if node.get("default", ...) is None:
                del node["default"]
    definitions = schema.get("$defs", {})
    for key in list(definitions):
        users = [node for _, node in walk(schema) if _refers(node, key)]
        inside = [node for _, node in walk(definitions[key]) if _refers(node, key)]
        if len(users) == 1 and not inside:
            user, definition = users[0], definitions.pop(key)
            del user["$ref"]
            own = dict(user)
            user.clear()
            user.update({**definition, **own})
    if not definitions:
        schema.pop("$defs", None)
    for _, node in walk(schema):
        if isinstance(node, dict):
            first = {key: node[key] for key in _FIRST if key in node}
            rest = {key: node[key] for key in node if key not in first}
            node.clear()
            node.update({**first, **rest})
    return schema


def _refers(node: Any, key: str) -> bool:
    return isinstance(node, dict) and node.get("$ref") == "#" + pointer(("$defs", key))


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def _is_field(value: Any) -> bool:
    """Whether a default is pydantic's ``Field(...)``, found without importing pydantic."""
    module = sys.modules.get("pydantic.fields")
    return module is not None and isinstance(value, module.FieldInfo)


def _field(hint: Any, default: Any) -> Any:
    """The type of a parameter, with what ``= Field(...)`` says of it."""
    return typing.Annotated[hint, default] if _is_field(default) else hint


def _default(hint: Any, default: Any) -> Callable[[], Any] | None:
    """What gives the value of a parameter that a call leaves out; None where it is required."""
    if default is inspect.Parameter.empty or _is_field(default):
        infos = [item for item in getattr(hint, "__metadata__", ()) if _is_field(item)]
        info = next((item for item in reversed(infos) if not item.is_required()), None)
        if info is None:
            return None
        return lambda: info.get_default(call_default_factory=True)
    if type(default) in _COPIED:
        return lambda: copy.deepcopy(default)
    return lambda: default


def _show_default(schema: Any, default: Any) -> None:
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    if not isinstance(schema, dict) or "default" in schema:
        return
    try:
        value = to_jsonable_python(default)
        json.dumps(value, allow_nan=False)
    except (PydanticSerializationError, ValueError):
        return  # a default that JSON cannot show holds all the same
    schema["default"] = value


def _built(
    fields: Mapping[str, Any],
    optional: frozenset[str],
    name: str,
    names: Mapping[str, Any] | None,
) -> tuple[Any, dict[str, Any]]:
    """What turns JSON into values of these types, and the JSON Schema of it."""
    try:
        return _build(fields, optional, names)
    except Exception as error:  # a type may be somebody else's code
        fault = error
    for key, hint in fields.items():  # once more, one by one, to name the parameter at fault
        try:
            _build({key: hint}, optional, names)
        except Exception as error:
            message = f"{name}: the parameter {key} has no JSON Schema: {_said(error)}"
            raise ToolDefinitionError(message) from None
    raise ToolDefinitionError(f"{name}: {_said(fault)}")


def _build(
    fields: Mapping[str, Any], optional: frozenset[str], names: Mapping[str, Any] | None
) -> tuple[Any, dict[str, Any]]:
    import typing_extensions
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Compact(GenerateJsonSchema):
        """Without warnings, and with one way to write a decimal number."""

        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            as_float: Any = {**schema, "type": "float"}
            return self.float_schema(as_float)

        def emit_warning(self, kind: Any, detail: str) -> None:
            """Says nothing: what cannot be shown of a default is left out."""

    items = {
        key: typing_extensions.NotRequired[hint] if key in optional else hint
        for key, hint in fields.items()
    }
    record = typed_dict("Arguments", items)
    record.__pydantic_config__ = ConfigDict(extra="forbid", defer_build=True)
    adapter = TypeAdapter(record)
    adapter.rebuild(force=True, _types_namespace=dict(names or {}))
    return adapter, adapter.json_schema(schema_generator=Compact)


def _described(
    schema: dict[str, Any], described: Mapping[str, str], shown: Mapping[str, Any]
) -> dict[str, Any]:
    """The schema with defaults and descriptions, made compact."""
    properties = schema.setdefault("properties", {})
    for key, default in shown.items():
        _show_default(properties.get(key), default)
    for key, text in described.items():
        if key in properties:
            properties[key].setdefault("description", text)
    return compact(schema)


def _said(error: Exception) -> str:
    """What an error says of a type; of one that is not pydantic's own, with its kind."""
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    own = isinstance(error, PydanticUserError | SchemaError | NameError | TypeError)
    return first_line(error) if own else f"{type(error).__name__}: {first_line(error)}"


def _faults(error: Any) -> str:
    """Every fault of a pydantic ValidationError as ``path: what is wrong``."""
    parts = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join(str(step) for step in fault["loc"])
        parts.append(f"{path}: {fault['msg']}" if path else fault["msg"])
    return "; ".join(parts)
