"""OpenAI's, Anthropic's and MCP's own packages accept what `tools export` writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import builtin_tools
from mlx_tools.messages import ToolSpec
from mlx_tools.tools.exports import export
from tests.tools.test_exports import TREE

ODD: dict[int, dict[str, Any]] = dict(
    enumerate(
        [
            {"type": "object"},
            {"type": "object", "additionalProperties": False},
            {"type": "object", "$anchor": "top", "properties": {"a": {"$ref": "#top"}}},
            {
                "type": "object",
                "properties": {"größe": {"$ref": "#/$defs/a~1b~0c"}, "": True, "$ref": {}},
                "$defs": {"a/b~c": {"type": ["string", "null"]}},
            },
            {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "title": "T"},
            {"type": "object", "patternProperties": {"^x": {"const": None}}, "minProperties": 2},
            {"type": "object", "properties": {"a": {"enum": [{"$ref": "#/none"}, 1.0, 10**40]}}},
        ]
    )
)
"""Schemas as hardly anybody writes them."""

JUDGES = Path(__file__).with_name("export_judges.py")


@pytest.mark.slow
def test_the_vendors_own_types_accept_the_exports(tmp_path: Path) -> None:
    there = tmp_path / "judges"
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    fetched = subprocess.run(
        [*uv, "--target", str(there), "openai", "anthropic", "mcp"], capture_output=True, text=True
    )
    if fetched.returncode != 0:
        pytest.skip(f"the packages cannot be fetched: {fetched.stderr[-200:]}")
    specs = [*builtin_tools([f"{tmp_path}:rw"]).all_specs().values()]
    specs += [ToolSpec("tree.walk", "Walks.", TREE), ToolSpec("plain", effects=frozenset())]
    specs += [
        ToolSpec(f"{number:x<64}", "日本 \u202e\x1b", schema) for number, schema in ODD.items()
    ]
    taken = {"openai": specs, "mcp": specs}
    taken["anthropic"] = [spec for spec in specs if not spec.name.startswith("3x")]
    given = {name: json.loads(export(taken[name], name)) for name in ("openai", "anthropic", "mcp")}
    judged = subprocess.run(
        [sys.executable, "-s", str(JUDGES)],
        input=json.dumps(given),
        env={**os.environ, "PYTHONPATH": str(there)},
        capture_output=True,
        text=True,
    )
    assert judged.returncode == 0, judged.stderr
    most = len(specs)
    assert judged.stdout.split() == ["agreed", str(most), str(most - 1), str(most)]
