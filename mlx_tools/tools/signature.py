"""From a typed function to the schema of its arguments, and from JSON to the values it takes.

Pydantic does both. It is imported when a schema is first needed, not when a tool is declared: what
can be wrong with a signature itself is found at once, without it.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import json
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.tools.context import ToolContext
from mlx_tools.tools.docstring import parse_docstring
from mlx_tools.tools.schema import pointer, walk

Convert = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Arguments as JSON values in, keyword arguments of the annotated types out."""

_FIRST: Final = ("type", "description", "properties", "required")
"""What a reader looks for first in a schema."""

_REFUSED: Final[Mapping[Any, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values",
    inspect.Parameter.VAR_KEYWORD: "takes any names",
}


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
                hint=f"annotate it, as in {parameter.name}: str; typing.Any takes any JSON value",
            )
    return parameters


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
        hints = _hints(function, name, names)
        self.context = next((key for key in parameters if _is_context(hints[key])), None)
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
        self._adapter = _adapter(fields, frozenset(self._defaults), name, names)
        described = parse_docstring(inspect.getdoc(function)).parameters
        self.schema = self._schema(name, described, shown)

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

    def _schema(
        self, name: str, described: Mapping[str, str], shown: Mapping[str, Any]
    ) -> dict[str, Any]:
        from pydantic.errors import PydanticUserError
        from pydantic.json_schema import GenerateJsonSchema

        class Compact(GenerateJsonSchema):
            """Without warnings, and with one way to write a decimal number."""

            def decimal_schema(self, schema: Any) -> dict[str, Any]:
                as_float: Any = {**schema, "type": "float"}
                return self.float_schema(as_float)

            def emit_warning(self, kind: Any, detail: str) -> None:
                """Says nothing: what cannot be shown of a default is left out."""

        try:
            schema = self._adapter.json_schema(schema_generator=Compact)
        except PydanticUserError as error:
            raise ToolDefinitionError(f"{name}: {_first_line(error)}") from None
        properties = schema.setdefault("properties", {})
        for key, default in shown.items():
            _show_default(properties.get(key), default)
        for key, text in described.items():
            if key in properties:
                properties[key].setdefault("description", text)
        return compact(schema)


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


def _hints(
    function: Callable[..., Any], name: str, names: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The annotations as types, text resolved in the names that the function sees."""
    target = inspect.unwrap(function)
    while hasattr(target, "func") and not inspect.isroutine(target):
        target = inspect.unwrap(target.func)  # functools.partial
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, localns=dict(names or {}), include_extras=True)
    except Exception as error:  # whatever an annotation's text does when it is evaluated
        raise ToolDefinitionError(
            f"{name}: an annotation cannot be resolved: {_first_line(error)}",
            hint="define or import what it names before the tool",
        ) from None


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in typing.get_args(hint)


def _is_field(value: Any) -> bool:
    """Whether a default is pydantic's ``Field(...)``, found without importing pydantic."""
    module = sys.modules.get("pydantic.fields")
    return module is not None and isinstance(value, module.FieldInfo)


def _field(hint: Any, default: Any) -> Any:
    """The type of a parameter, with what ``= Field(...)`` says of it."""
    hint = _portable(hint)
    return typing.Annotated[hint, default] if _is_field(default) else hint


def _default(hint: Any, default: Any) -> Callable[[], Any] | None:
    """What gives the value of a parameter that a call leaves out; None where it is required."""
    if default is inspect.Parameter.empty or _is_field(default):
        infos = [item for item in getattr(hint, "__metadata__", ()) if _is_field(item)]
        info = next((item for item in reversed(infos) if not item.is_required()), None)
        if info is None:
            return None
        return lambda: info.get_default(call_default_factory=True)
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


def _adapter(
    fields: Mapping[str, Any],
    optional: frozenset[str],
    name: str,
    names: Mapping[str, Any] | None,
) -> Any:
    import typing_extensions
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.errors import PydanticUserError

    def build(some: Mapping[str, Any]) -> Any:
        items = {
            key: typing_extensions.NotRequired[hint] if key in optional else hint
            for key, hint in some.items()
        }
        record = _typed_dict("Arguments", items)
        record.__pydantic_config__ = ConfigDict(extra="forbid", defer_build=True)
        adapter = TypeAdapter(record)
        adapter.rebuild(force=True, _types_namespace=dict(names or {}))
        return adapter

    try:
        return build(fields)
    except (PydanticUserError, NameError, TypeError) as error:
        fault = error
    for key, hint in fields.items():  # once more, one by one, to name the parameter at fault
        try:
            build({key: hint})
        except (PydanticUserError, NameError, TypeError) as error:
            message = f"{name}: the parameter {key} has no JSON Schema: {_first_line(error)}"
            raise ToolDefinitionError(message) from None
    raise ToolDefinitionError(f"{name}: {_first_line(fault)}")


def _portable(hint: Any) -> Any:
    """The hint with every ``typing.TypedDict`` as one of ``typing_extensions``: before Python 3.12
    pydantic takes no other."""
    if sys.version_info >= (3, 12):
        return hint
    if isinstance(hint, type) and typing.is_typeddict(hint):
        return _portable_dict(hint)
    parts = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if not parts or origin in (typing.Literal, collections.abc.Callable):
        return hint
    if origin is typing.Annotated:
        return typing.Annotated[(_portable(parts[0]), *parts[1:])]
    changed = tuple(_portable(part) for part in parts)
    if all(new is old for new, old in zip(changed, parts, strict=True)):
        return hint
    return functools.reduce(operator.or_, changed) if _is_union(origin) else origin[changed]


def _portable_dict(hint: Any) -> Any:
    import typing_extensions

    items: dict[str, Any] = {}
    for key, value in typing.get_type_hints(hint, include_extras=True).items():
        required = key in hint.__required_keys__
        kind = typing_extensions.Required if required else typing_extensions.NotRequired
        items[key] = kind[_portable(value)]
    return _typed_dict(hint.__name__, items)


def _typed_dict(name: str, items: Mapping[str, Any]) -> Any:
    import typing_extensions

    make: Any = typing_extensions.TypedDict
    return make(name, items)


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or origin is types.UnionType


def _faults(error: Any) -> str:
    """Every fault of a pydantic ValidationError as ``path: what is wrong``."""
    parts = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join(str(step) for step in fault["loc"])
        parts.append(f"{path}: {fault['msg']}" if path else fault["msg"])
    return "; ".join(parts)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
