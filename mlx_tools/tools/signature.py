"""The schema of a typed function's arguments, and their conversion from JSON.

Pydantic does both if annotations are not plain (`mlx_tools.tools.plain_types`). It is imported only
when it is needed, not when a tool is declared. Errors in the signature itself are found at once,
without pydantic.
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
from mlx_tools.schema import to_pointer, walk
from mlx_tools.tools.context import ToolContext
from mlx_tools.tools.plain_types import NotPlain, PlainArguments, build_schema

_FIRST_KEYS: Final = ("type", "description", "properties", "required")
"""The first keys of each schema, because readers look for them first."""

_UNSUPPORTED_KINDS: Final[Mapping[Any, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values",
    inspect.Parameter.VAR_KEYWORD: "takes any names",
}
"""Kinds of parameters that cannot be filled by name."""

METHOD: Final = "make a tool of a function, or of the method of an object: tool(thing.method)"


class InvalidArguments(UsageError):
    """Arguments that fit the schema but not the function, such as an impossible date."""


def read_parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """Return the function's parameters.

    Raises:
        ToolDefinitionError: a parameter has no annotation, or cannot be filled by name.
    """
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"{name}: its signature cannot be read: {error}") from None
    for key, parameter in parameters.items():
        if parameter.kind in _UNSUPPORTED_KINDS:
            raise ToolDefinitionError(
                f"{name}: the parameter {parameter} {_UNSUPPORTED_KINDS[parameter.kind]}",
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
    """The schema of a function's arguments, and the conversion of JSON to them.

    Args:
        function: the function.
        name: the name of the tool, for messages.
        source: a schema to use unchanged; arguments are then passed on unchanged, too.

    Raises:
        ToolDefinitionError: a type has no JSON Schema.
    """

    def __init__(self, function: Callable[..., Any], name: str, source: Any = None) -> None:
        self.schema: Any = source  # a given schema is checked when the tool is registered
        """The schema. It is compact: without titles, and without ``$defs`` that are used once."""
        self.context: str | None = None
        """The name of the parameter that takes the `ToolContext`, or None."""
        self._model: Any = None
        self._plain: PlainArguments | None = None
        self.fields: dict[str, tuple[Any, Any]] = {}
        """The type and default of each parameter; empty if the schema was given."""
        self._is_given = source is not None
        if source is not None:
            return
        parameters = read_parameters(function, name)
        hints = _resolve_annotations(function, parameters, name)
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
        self.fields = {
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
            schema = build_schema(self.fields)
            self._plain = PlainArguments(self.fields)
            return schema
        try:
            self._model, schema = build_model(self.fields)
        except Exception as error:  # a type's code may raise anything
            why = f"a parameter has no JSON Schema: {_describe_error(error)}"
            raise ToolDefinitionError(f"{name}: {why}") from None
        return schema

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments for a call.

        Raises:
            InvalidArguments: some arguments do not fit; the message names all of them.
        """
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
            self._model, _ = build_model(self.fields)
        try:
            model = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            parts = []
            for fault in error.errors(
                include_url=False, include_context=False, include_input=False
            ):
                path = ".".join(map(str, fault["loc"]))
                parts.append(f"{path}: {fault['msg']}" if path else fault["msg"])
            raise InvalidArguments("; ".join(parts)) from None
        return {key: getattr(model, field_name(index)) for index, key in enumerate(self.fields)}


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """Shorten a schema, in place, without changing its meaning.

    Titles are removed, and defaults that are null or that JSON cannot express. A definition that is
    used once is moved to the place where it is used.
    """
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
            extras = dict(user)
            user.clear()
            user.update({**definition, **extras})
    if not definitions:
        schema.pop("$defs", None)
    for _, node in walk(schema):
        if isinstance(node, dict):
            ordered = {key: node.pop(key) for key in (*_FIRST_KEYS, *node) if key in node}
            node.update(ordered)
    return schema


def _refers(node: Any, key: str) -> bool:
    return isinstance(node, dict) and node.get("$ref") == "#" + to_pointer(("$defs", key))


def _is_shown(default: Any) -> bool:
    try:
        return default is not None and bool(json.dumps(default, allow_nan=False))
    except (TypeError, ValueError):
        return False


# --- pydantic's part ------------------------------------------------------------------------------


def field_name(position: int) -> str:
    """Return the name of the model's field for a parameter.

    The parameter's own name could be one that pydantic reserves.
    """
    return f"p{position}"


def build_model(fields: Mapping[str, tuple[Any, Any]]) -> tuple[Any, dict[str, Any]]:
    """Return the model that converts JSON to these types, and its schema."""
    from pydantic import ConfigDict, Field, create_model
    from pydantic.json_schema import GenerateJsonSchema

    class Compact(GenerateJsonSchema):
        """A generator without warnings, and with one form for decimal numbers."""

        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            as_float: Any = {**schema, "type": "float"}
            return self.float_schema(as_float)

        def emit_warning(self, kind: Any, detail: str) -> None:
            """Drop the warning: a default that cannot be shown is left out."""

    annotated: Any = typing.Annotated
    definitions: dict[str, Any] = {}
    for index, (key, (hint, default)) in enumerate(fields.items()):
        parts = typing.get_args(hint) if typing.get_origin(hint) is annotated else (hint,)
        # later metadata override earlier: those of the parameter must come after the alias
        field_type = annotated[(parts[0], Field(alias=key), *parts[1:])]
        definitions[field_name(index)] = (
            field_type if default is inspect.Parameter.empty else (field_type, default)
        )
    config = ConfigDict(extra="forbid", defer_build=True)
    model = create_model("Arguments", __config__=config, **definitions)
    return model, model.model_json_schema(schema_generator=Compact)


def _describe_error(error: Exception) -> str:
    """Describe an exception about a type, with its class unless it is pydantic's."""
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    is_pydantic = isinstance(error, PydanticUserError | SchemaError | NameError | TypeError)
    return _first_line(error) if is_pydantic else f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    """Return one line of an exception's text.

    It is the first line; the last one if pydantic-core's message begins with "Error building".
    """
    lines = str(error).strip().split("\n")
    return lines[-1 if lines[0].startswith("Error building") else 0].strip()[:200]


# --- annotations as types -------------------------------------------------------------------------


def _resolve_annotations(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], name: str
) -> dict[str, Any]:
    """Return the parameters' annotations as types.

    Texts are resolved in the function's module. The return annotation is ignored: its names may
    exist for type checkers only.
    """
    annotations = {key: parameter.annotation for key, parameter in parameters.items()}
    holder = types.SimpleNamespace(__annotations__=annotations)
    module_names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return typing.get_type_hints(holder, module_names, include_extras=True)
    except Exception as error:  # evaluating an annotation's text may raise anything
        raise ToolDefinitionError(
            f"{name}: an annotation cannot be resolved: {_first_line(error)}",
            hint="define its names in the module, before the tool",
        ) from None


# --- docstrings -----------------------------------------------------------------------------------


_BULLET = re.compile(r"(?:[-*+•]|\d+[.)])\s")
_LOST_INDENT = re.compile(r"(?:Args|Arguments|Parameters|Params):\n(?=\S)")
"""The beginning of a docstring that begins with its arguments.

``inspect.cleandoc`` has then removed the indentation of the arguments."""
_SECTION_LINE = re.compile(r"^(?!\w+:$)(?=.)", re.MULTILINE)
"""The beginning of each line that is not a section's heading."""


class Docstring(Struct, frozen=True):
    """The parts of a docstring."""

    text: str = ""
    """The text before the first section."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The descriptions of the parameters by name."""


def parse_docstring(text: str | None) -> Docstring:
    """Parse a docstring in the style of Google, NumPy, Sphinx or Epydoc.

    Any other text is plain text.
    """
    if not text:
        return Docstring()
    from docstring_parser import DocstringStyle, ParseError, parse

    plain = inspect.cleandoc(text).expandtabs()
    begins = _LOST_INDENT.match(plain)
    try:
        if begins:
            body = _SECTION_LINE.sub("    ", plain[begins.end() :])
            # The last line has no indentation, so that the parser does not remove that of the
            # others.
            parsed = parse(f"{begins[0]}{body}\n.", DocstringStyle.GOOGLE)
        else:
            parsed = parse(plain)
    except ParseError:
        return Docstring(_join_lines(plain))
    descriptions = {
        name.strip().lstrip("*\\"): " ".join((parameter.description or "").split())
        for parameter in parsed.params
        for name in parameter.arg_name.split(",")
    }
    return Docstring(
        _join_lines(parsed.description or ""),
        {name: words for name, words in descriptions.items() if words},
    )


def _join_lines(text: str) -> str:
    """Join the lines of each paragraph; lists and indented text keep their lines."""
    paragraphs = []
    for block in text.strip("\n").split("\n\n"):
        rows = [row.rstrip() for row in block.strip("\n").split("\n")]
        keep = any(row.startswith(" ") or _BULLET.match(row) for row in rows)
        text = "\n".join(rows) if keep else " ".join(row.strip() for row in rows)
        if text.strip():
            paragraphs.append(text)
    return "\n\n".join(paragraphs)
