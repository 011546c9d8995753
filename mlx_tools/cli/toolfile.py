"""Tools that only have a definition, read from a JSON file: for `parse` and `propose`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from mlx_tools.cli.inputs import read_json
from mlx_tools.errors import MlxToolsError, UsageError
from mlx_tools.messages import ALL_EFFECTS, Effect, Effects, ToolSpec


def read_tools(path: Path) -> dict[str, ToolSpec]:
    """The tools in a file, by name. Raises `UsageError` naming the file, the item and the fault."""
    return tools_of(read_json(path), str(path))


def tools_of(value: Any, name: str) -> dict[str, ToolSpec]:
    """The tools in a list of OpenAI function definitions or of plain definitions.

    Each may carry ``effects``, else it has all of them.
    """
    if not isinstance(value, list):
        raise UsageError(f"{name}: expected a list of tool definitions")
    tools: dict[str, ToolSpec] = {}
    for number, item in enumerate(value, start=1):
        try:
            spec = _tool(item)
        except MlxToolsError as error:
            raise UsageError(f"{name}: tool {number}: {error}") from None
        if spec.name in tools:
            raise UsageError(f"{name}: tool {number}: {spec.name} is there twice")
        tools[spec.name] = spec
    return tools


def _tool(item: Any) -> ToolSpec:
    if not isinstance(item, Mapping):
        raise UsageError("expected an object")
    function = item.get("function", item)
    if not isinstance(function, Mapping):
        raise UsageError("function: expected an object")
    name = function.get("name")
    if not isinstance(name, str):
        raise UsageError("name: expected a string")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise UsageError(f"{name}: description: expected a string")
    return ToolSpec(
        name=name,
        description=description,
        parameters=_parameters(name, function.get("parameters")),
        effects=_effects(name, item.get("effects", function.get("effects"))),
    )


def _parameters(name: str, value: Any) -> Mapping[str, Any]:
    from mlx_tools.schema.resolve import check_parameters

    if value is None:
        return {"type": "object", "properties": {}}
    if not isinstance(value, Mapping) or value.get("type", "object") != "object":
        raise UsageError(f"{name}: parameters: expected a JSON Schema of type object")
    parameters = {"type": "object", **value}
    check_parameters(parameters)
    return parameters


def _effects(name: str, value: Any) -> Effects:
    if value is None:
        return ALL_EFFECTS
    allowed = get_args(Effect)
    if not isinstance(value, list) or not all(effect in allowed for effect in value):
        raise UsageError(f"{name}: effects: expected a list of {', '.join(allowed)}")
    return frozenset(value)
