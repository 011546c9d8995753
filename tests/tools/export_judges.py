"""What the vendors' own packages say of our exports. Run by `test_export_judges`, in an environment
that has them: reads the three exports as one JSON object on standard input."""

from __future__ import annotations

import json
import sys
from typing import Any

from anthropic.types import ToolParam
from mcp_types import ListToolsResult
from openai.types.chat import ChatCompletionFunctionToolParam
from pydantic import TypeAdapter, ValidationError


def main() -> None:
    given: dict[str, list[Any]] = json.load(sys.stdin)
    for name, kind in (("openai", ChatCompletionFunctionToolParam), ("anthropic", ToolParam)):
        judge: TypeAdapter[Any] = TypeAdapter(kind)
        for tool in given[name]:
            # what the type does not know would be left out
            assert judge.validate_python(tool) == tool, (name, tool)
        try:
            judge.validate_python({"name": 1, "function": {"name": 1}})
        except ValidationError:
            continue
        raise AssertionError(f"{name} refuses nothing")
    listed = ListToolsResult.model_validate({"tools": given["mcp"]})
    written = listed.model_dump(by_alias=True, exclude_none=True, mode="json")["tools"]
    assert written == given["mcp"]
    print("agreed", *(len(tools) for tools in given.values()))


if __name__ == "__main__":
    main()
