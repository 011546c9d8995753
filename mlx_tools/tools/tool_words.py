"""The words of a built-in tool: what ``prompts/tools/<name>.json`` says of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.messages import Effects, ToolSpec
from mlx_tools.paths import read_data
from mlx_tools.policy import BUILTIN

PLUGIN: Final = BUILTIN
"""What a policy calls the built-in tools together: ``plugin:builtin``."""


@dataclass(frozen=True, slots=True)
class Words:
    """Name, description and schema as the model sees them, and the notices in a tool's output."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    notices: Mapping[str, str]

    def spec(
        self,
        effects: Effects | Callable[[Mapping[str, Any]], Effects],
        *,
        needs_approval: bool = False,
        private: bool = False,
        cache: bool = True,
    ) -> ToolSpec:
        """The tool's spec; what it does is code and stands with the code."""
        return ToolSpec(
            self.name,
            self.description,
            self.parameters,
            effects,
            needs_approval=needs_approval,
            plugin=PLUGIN,
            private=private,
            cache=cache,
        )


@functools.cache
def words_of(name: str) -> Words:
    """The words in a file of ``prompts/tools/``, named without its ending."""
    read = json.loads(read_data(f"prompts/tools/{name}.json"))
    return Words(read["name"], read["description"], read["parameters"], read.get("notices", {}))
