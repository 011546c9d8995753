"""What a tool's folder says in JSON: ``tool_definition.json`` and ``config.json``.

Every key is known or refused: one that is passed over might have been meant to keep a tool from
something. Passed over is what only tells something about the tool, such as who wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ToolSpec
from mlx_tools.schema.resolve import check_parameters

CONFIG: Final = "config.json"
DEFINITION: Final = "tool_definition.json"

_LOADERS: Final = ("LD_", "DYLD_", "PYTHON")
"""Variables that begin so decide what a program loads."""

TELLING: Final = frozenset(
    {
        *("author", "authors", "category", "comment", "comments", "created", "description"),
        *("display_name", "examples", "homepage", "icon", "keywords", "label", "license"),
        *("maintainer", "notes", "output_schema", "repository", "returns", "summary", "tags"),
        *("title", "updated", "url", "version"),
    }
)
"""Keys that tell a person something and change nothing; so do those that begin with ``_``, ``$`` or
``x-``."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _switch(value: Any) -> bool:
    return isinstance(value, bool)


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not _switch(value) and 0 < value <= 86_400


def _milliseconds(value: Any) -> bool:
    return isinstance(value, int | float) and not _switch(value) and 0 < value <= 86_400_000


def _bytes(value: Any) -> bool:
    return isinstance(value, int) and not _switch(value) and 1 <= value <= 10_000_000


def _effects(value: Any) -> bool:
    return isinstance(value, list) and all(one in _EFFECTS for one in value)


def _variables(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 100 and all(map(_variable, value))


def _variable(value: Any) -> bool:
    named = isinstance(value, str) and value.isascii() and value.isidentifier()
    return named and not value.upper().startswith(_LOADERS)


_EFFECTS: Final = ("read", "write", "execute", "network")
_YES_OR_NO: Final = (_switch, "true or false")
_TIME: Final = (_seconds, "seconds, more than 0 and at most 86400")
_KEYS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "name": (_text, f"the name in {DEFINITION}"),
    "enabled": _YES_OR_NO,
    "effects": (_effects, f"a list of some of {', '.join(_EFFECTS)}"),
    "timeout": _TIME,
    "timeout_seconds": _TIME,
    "timeout_ms": (_milliseconds, "milliseconds, more than 0 and at most 86400000"),
    "needs_approval": _YES_OR_NO,
    "requires_approval": _YES_OR_NO,
    "retry": (lambda value: value in ("never", "read_only"), "never or read_only"),
    "private": _YES_OR_NO,
    "cache": _YES_OR_NO,
    "environment": (
        _variables,
        "a list of variables' names, none that begins with LD_, DYLD_ or PYTHON",
    ),
    "max_output_bytes": (_bytes, "a whole number from 1 to 10000000"),
}
"""The keys of a configuration: whether a value is one, and in words what is."""

_SAME: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "requires_approval": ("needs_approval", lambda value: value),
    "timeout_seconds": ("timeout", lambda value: value),
    "timeout_ms": ("timeout", lambda value: value / 1000),
}
"""Other names of a key, as such files have them elsewhere, and the value under the key's own."""

_AROUND: Final = ("type", "function")
_SCHEMAS: Final = ("input_schema", "inputSchema")
"""What Anthropic and MCP call the schema of the arguments."""
_FUNCTION: Final = ("name", "description", "parameters", "strict", "type")


def configuration(data: bytes, path: Path, name: str) -> dict[str, Any]:
    """The keys of ``config.json`` under their own names. ``name`` is the tool's. Raises
    ToolDefinitionError, naming the key and what is allowed."""
    given = _json(data, path)
    _check_keys(given, tuple(_KEYS), path, "")
    config: dict[str, Any] = {}
    for key, value in given.items():
        if key not in _KEYS:
            continue
        fits, allowed = _KEYS[key]
        if not fits(value):
            raise ToolDefinitionError(
                f"{path}: {key}: {_written(value)} is not allowed", hint=allowed
            )
        own, converted = _SAME.get(key, (key, lambda value: value))
        if own in config:
            raise ToolDefinitionError(f"{path}: {key}: it says {own} once more")
        config[own] = converted(value)
    if config.get("name", name) != name:
        raise ToolDefinitionError(
            f"{path}: name: {config['name']!r:.80} is not the name in {DEFINITION}, {name}"
        )
    return config


def _written(value: Any) -> str:
    """A value as it stands in the file, cut short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def definition(data: bytes, path: Path) -> tuple[str, str, dict[str, Any]]:
    """Name, description and parameters of ``tool_definition.json``: a function as OpenAI writes it,
    with or without ``{"type": "function", "function": …}`` around it. Raises
    ToolDefinitionError."""
    value, place = _function(_json(data, path), path)
    name, description = value.get("name"), value.get("description")
    if not isinstance(name, str) or not name.strip():
        raise ToolDefinitionError(f"{path}: {place}name: expected a text")
    if not isinstance(description, str | None):
        raise ToolDefinitionError(f"{path}: {place}description: expected a text")
    given = value.get("parameters")
    if not isinstance(given, dict | None):
        raise ToolDefinitionError(f"{path}: {place}parameters: expected a JSON Schema")
    parameters = {"type": "object", **({"properties": {}} if given is None else given)}
    try:
        ToolSpec(name)
        check_parameters(parameters)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{path}: {error.message}", hint=error.hint) from None
    return name, description or "", parameters


def _function(value: dict[str, Any], path: Path) -> tuple[dict[str, Any], str]:
    """The function in a definition, and where in the file it stands."""
    wrapped = "function" in value
    inner = value.get("function", value)
    if value.get("type", "function") != "function" or not isinstance(inner, dict):
        raise ToolDefinitionError(
            f"{path}: expected a function definition",
            hint='{"type": "function", "function": {"name": …, "description": …, …}}',
        )
    if wrapped:
        _check_keys(value, _AROUND, path, "")
    place = "function." if wrapped else ""
    _check_keys(inner, _FUNCTION, path, place)
    return inner, place


def _json(data: bytes, path: Path) -> dict[str, Any]:
    from mlx_tools.protocol import strict

    try:
        text = data.decode("utf-8-sig")
        value = strict.loads(text)
    except UnicodeDecodeError:
        raise ToolDefinitionError(f"{path} is not UTF-8 text") from None
    except strict.Unreadable as error:
        raise ToolDefinitionError(f"{path} is not JSON: {_fault(text, error)}") from None
    if not isinstance(value, dict):
        raise ToolDefinitionError(f"{path}: expected an object")
    return value


def _fault(text: str, error: Exception) -> str:
    """What is wrong with a text, by line and column where that is known: a person mends it."""
    try:
        json.loads(text)
    except json.JSONDecodeError as found:
        return f"{found.msg} (line {found.lineno}, column {found.colno})"
    except (ValueError, RecursionError):
        pass
    return str(error)


def _check_keys(value: Mapping[str, Any], known: tuple[str, ...], path: Path, place: str) -> None:
    unknown = sorted(key for key in value if key not in known and not _only_tells(key))
    if unknown:
        from difflib import get_close_matches

        close = get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        if known is _AROUND and unknown[0] in _FUNCTION:
            hint = "it belongs within function"
        elif unknown[0] in _SCHEMAS:
            hint = "it is called parameters here"
        elif unknown[0] in _KEYS:
            hint = f"it belongs in {CONFIG}"
        raise ToolDefinitionError(f"{path}: {place}{unknown[0][:80]}: unknown key", hint=hint)


def _only_tells(key: str) -> bool:
    return key in TELLING or key.startswith(("_", "$", "x-"))
