"""Tool folders for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ECHO = """
def execute(arguments):
    return {"got": arguments}
"""


def make_folder(
    parent: Path,
    name: str = "echo",
    code: str = ECHO,
    parameters: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A tool's folder in ``parent``, with the keys of ``config`` in its configuration."""
    folder = parent / name
    folder.mkdir(parents=True)
    definition = {
        "name": name,
        "description": f"Does what {name} does.",
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    (folder / "tool_definition.json").write_text(json.dumps(definition))
    (folder / "config.json").write_text(json.dumps({"effects": ["read"], **config}))
    (folder / "execute.py").write_text(code)
    return folder
