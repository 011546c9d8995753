"""From a typed function to the schema of its arguments, and from JSON to the values it takes.

Pydantic does both where annotations are not plain (`mlx_tools.tools.plain_types`). It is imported
when it is first needed, not when a tool is declared: what can be wrong with a signature itself is
found at once, without it.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct, field

from mlx_tools.errors import ToolDefinitionError, UsageError, for_message
from mlx_tools.schema import pointer, walk
from mlx_tools.tools.context import ToolContext
from mlx_tools.tools.plain_types import NotPlain, PlainArguments, schema_of

_FIRST: Final = ("type", "description", "properties", "required")
"""The keys that a reader looks for first in a schema."""

_REFUSED: Final[Mapping[Any, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values",
    inspect.Parameter.VAR_KEYWORD: "takes any names",
}

METHOD: Final = "make a tool of a function, or of the method of an object: tool(thing.method)"


class InvalidArguments(UsageError):
    """Arguments that fit the schema but not the function, such as a date that is none."""


def parameters_of(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """The function's parameters. Raises ToolDefinitionError for one that a call by name cannot
    fill, or that has no annotation."""
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"{name}: its signature cannot be read: {error}") from None
    for key, parameter in parameters.items():
        if parameter.kind in _REFUSED:
            raise ToolDefinitionError(
                f"{name}: the parameter {parameter} {_REFUSED[parameter.kind]}",
                hint="a tool's arguments come by name, each one declared",
            )
        if parameter.annotation is inspect.Parameter.empty:
            annotate = f"annotate it, as in {key}: str; typing.Any takes any JSON value"
            raise ToolDefinitionError(
                f"{name}: the parameter {key} has no annotation",
                hint=METHOD if key in ("self", "cls") else annotate,
            )
    return parameters


class Arguments:
    """The schema of a function's arguments, and what turns JSON into them.

    ``schema`` is compact: no titles, nothing in ``$defs`` that is used once; where it was given it
    is used as it is, and arguments are passed on as they came. ``context`` is the name of the
    parameter that takes the `ToolContext`, or None. Raises ToolDefinitionError where a type has no
    JSON Schema.
    """

    def __init__(self, function: Callable[..., Any], name: str, source: Any = None) -> None:
        self.schema: Any = source  # held to what it must be where the tool is registered
        self.context: str | None = None
        self._model: Any = None
        self._plain: PlainArguments | None = None
        self._fields: dict[str, tuple[Any, Any]] = {}
        self._is_given = source is not None
        if source is not None:
            return
        parameters = parameters_of(function, name)
        hints = _annotations_of(function, parameters, name)
        contexts = [
            key
            for key in parameters
            if hints[key] is ToolContext or ToolContext in typing.get_args(hints[key])
        ]
        if len(contexts) > 1:
            raise ToolDefinitionError(
                f"{name}: the parameters {' and '.join(contexts)} are both a ToolContext",
                hint="a call has one: leave the other out",
            )
        self.context = contexts[0] if contexts else None
        self._fields = {
            key: (hints[key], parameter.default)
            for key, parameter in parameters.items()
            if key != self.context
        }
        schema = self._make_schema(name)
        for key, text in parse_docstring(inspect.getdoc(function)).parameters.items():
            if key in schema["properties"]:
                schema["properties"][key].setdefault("description", text)
        self.schema = compact(schema)

    def _make_schema(self, name: str) -> dict[str, Any]:
        with suppress(NotPlain):
            schema = schema_of(self._fields)
            self._plain = PlainArguments(self._fields)
            return schema
        try:
            self._model, schema = _build(self._fields)
        except Exception as error:  # a type may be somebody else's code
            why = f"a parameter has no JSON Schema: {_describe_error(error)}"
            raise ToolDefinitionError(f"{name}: {why}") from None
        return schema

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for a call. Raises InvalidArguments, which names every fault."""
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(
                f"the arguments are {for_message(arguments)}, and must be an object"
            )
        if self._is_given:
            return dict(arguments)
        if self._plain is not None:
            with suppress(NotPlain):
                return self._plain.convert(arguments)
        from pydantic import ValidationError

        if self._model is None:
            self._model, _ = _build(self._fields)
        try:
            made = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            parts = []
            for one in error.errors(include_url=False, include_context=False, include_input=False):
                path = ".".join(map(str, one["loc"]))
                parts.append(f"{path}: {one['msg']}" if path else one["msg"])
            raise InvalidArguments("; ".join(parts)) from None
        return {key: getattr(made, _field(at)) for at, key in enumerate(self._fields)}


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without titles and without defaults that are null or that JSON cannot show, and with
    definitions used once put in place."""
    for _, node in walk(schema):
        if isinstance(node, dict):
            node.pop("title", None)
            node.pop("discriminator", None)
            if "default" in node and not _is_shown(node["default"]):
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
            ordered = {key: node.pop(key) for key in (*_FIRST, *node) if key in node}
            node.update(ordered)
    return schema


def _refers(node: Any, key: str) -> bool:
    return isinstance(node, dict) and node.get("$ref") == "#" + pointer(("$defs", key))


def _is_shown(default: Any) -> bool:
    try:
        return default is not None and bool(json.dumps(default, allow_nan=False))
    except (TypeError, ValueError):
        return False


# --- pydantic's part ------------------------------------------------------------------------------


def _field(position: int) -> str:
    """The name of the model's field for a parameter, which may have a name that models reserve."""
    return f"p{position}"


def _build(fields: Mapping[str, tuple[Any, Any]]) -> tuple[Any, dict[str, Any]]:
    """What turns JSON into values of these types, each with its default, and its schema."""
    from pydantic import ConfigDict, Field, create_model
    from pydantic.json_schema import GenerateJsonSchema

    class Compact(GenerateJsonSchema):
        """Without warnings, and with one way to write a decimal number."""

        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            as_float: Any = {**schema, "type": "float"}
            return self.float_schema(as_float)

        def emit_warning(self, kind: Any, detail: str) -> None:
            """Says nothing: what cannot be shown of a default is left out."""

    annotated: Any = typing.Annotated
    made: dict[str, Any] = {}
    for at, (key, (hint, default)) in enumerate(fields.items()):
        said = typing.get_args(hint) if typing.get_origin(hint) is annotated else (hint,)
        # what the parameter says itself comes later, and so holds
        named = annotated[(said[0], Field(alias=key), *said[1:])]
        made[_field(at)] = named if default is inspect.Parameter.empty else (named, default)
    config = ConfigDict(extra="forbid", defer_build=True)
    model = create_model("Arguments", __config__=config, **made)
    return model, model.model_json_schema(schema_generator=Compact)


def _describe_error(error: Exception) -> str:
    """What an error says of a type; of one that is not pydantic's own, with its kind."""
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    own = isinstance(error, PydanticUserError | SchemaError | NameError | TypeError)
    return _first_line(error) if own else f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    """Return what an error says, in a line: the first, or where pydantic-core tells what it was
    building, the last."""
    lines = str(error).strip().split("\n")
    return lines[-1 if lines[0].startswith("Error building") else 0].strip()[:200]


# --- annotations as types -------------------------------------------------------------------------


def _annotations_of(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], name: str
) -> dict[str, Any]:
    """The parameters' annotations as types, text resolved in the names that the function's module
    has. What it returns is nobody's business here: its annotation may name what is there for type
    checkers alone."""
    written = {key: parameter.annotation for key, parameter in parameters.items()}
    holder = types.SimpleNamespace(__annotations__=written)
    around = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(holder, around, include_extras=True)
    except Exception as error:  # whatever an annotation's text does when it is evaluated
        raise ToolDefinitionError(
            f"{name}: an annotation cannot be resolved: {_first_line(error)}",
            hint="define what it names in the module, before the tool",
        ) from None


# --- docstrings -----------------------------------------------------------------------------------


_BULLET = re.compile(r"(?:[-*+•]|\d+[.)])\s")


class Docstring(Struct, frozen=True):
    """The text before the first section, and the descriptions of the parameters by name."""

    text: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Docstring:
    """Reads a docstring of Google's, numpy's, Sphinx' or Epydoc's style; what is in none of them is
    plain text."""
    if not text:
        return Docstring()
    from docstring_parser import ParseError, parse

    plain = inspect.cleandoc(text).expandtabs()
    try:
        found = parse(plain)
    except ParseError:
        return Docstring(_paragraphs(plain))
    said = {
        name.strip().lstrip("*\\"): " ".join((one.description or "").split())
        for one in found.params
        for name in one.arg_name.split(",")
    }
    return Docstring(
        _paragraphs(found.description or ""), {name: words for name, words in said.items() if words}
    )


def _paragraphs(text: str) -> str:
    """Paragraphs with their lines joined; lists and indented text keep their lines."""
    paragraphs = []
    for block in text.strip("\n").split("\n\n"):
        rows = [row.rstrip() for row in block.strip("\n").split("\n")]
        keep = any(row.startswith(" ") or _BULLET.match(row) for row in rows)
        text = "\n".join(rows) if keep else " ".join(row.strip() for row in rows)
        if text.strip():
            paragraphs.append(text)
    return "\n\n".join(paragraphs)
