"""``calculator``: the value of an arithmetic expression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_tools.toolbox.arithmetic import evaluate
from mlx_tools.toolbox.numbers import CalculationError, write
from mlx_tools.tools import Tool, ToolError, words_of


def calculator() -> Tool:
    """The tool. It needs neither a thread nor a long time, whatever the expression."""

    async def run(arguments: Mapping[str, Any]) -> str:
        try:
            return write(evaluate(arguments["expression"]))
        except CalculationError as error:
            raise ToolError(str(error)) from None

    return Tool(words_of("calculator").spec(frozenset(("read",))), run)
