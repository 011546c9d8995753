"""Schemas of real tools, and faulty ones that are made of them by one change each."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.schema import check_parameters, walk

REAL = Path(__file__).parent / "data" / "schemas" / "mcp_tools.json"


@cache
def real_schemas() -> tuple[dict[str, Any], ...]:
    """The arguments of tools of real MCP servers."""
    return tuple(tool["parameters"] for tool in json.loads(REAL.read_text()))


def is_sound(schema: Any) -> bool:
    """Return whether it can be used as it is."""
    try:
        check_parameters(schema)
    except ToolDefinitionError:
        return False
    return True


_WRONG: tuple[Any, ...] = (5, -1, 1.5, "x", "", [], {}, [5], {"a": 5}, None, True)
_TYPES_OF: tuple[Any, ...] = ("what", 5, [], ["what"], {}, ["string", 5])


def mutants(count: int, seed: int = 7) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Faulty schemas, each with the real one that it was made of by one change."""
    random_ = random.Random(seed)
    while count:
        original = random_.choice(real_schemas())
        schema = copy.deepcopy(original)
        nodes = [node for _, node in walk(schema) if isinstance(node, dict) and node]
        node = random_.choice(nodes)
        match random_.randrange(7):
            case 0:
                node["type"] = random_.choice(_TYPES_OF)
            case 1 if members := node.get("properties"):
                members[random_.choice([*members])] = random_.choice(_WRONG)
            case 2:
                node["$ref"] = random_.choice(["#/$defs/Gone", "https://x.org/y", "#/a", "##"])
            case 3:
                node["pattern"] = random_.choice(["(", "(?=a)", r"\p{L}", "(a)\\1", "["])
            case 4:
                node[random_.choice(["anyOf", "allOf", "oneOf"])] = random_.choice(_WRONG)
            case 5:
                names = ["enum", "required", "items", "properties", "minLength", "minimum", "not"]
                node[random_.choice(names)] = random_.choice(_WRONG)
            case _:
                node[random_.choice([*node])] = random_.choice(_WRONG)
        node.update({"required": 5} if node.get("required") is True else {})  # draft 3
        if not is_sound({"type": "object", **schema}):
            count -= 1
            yield original, schema
