"""The tools as a grammar of the model's turn. Backends mask the sampler with it.

The grammar always has calls and answers, unless a choice rules one of them out. A grammar of calls
alone would keep the model from answering.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mlx_tools.backends import GrammarText, repeated_end, turn_grammar
from mlx_tools.messages import Style, ToolSpec


class Grammar(GrammarText, frozen=True):
    """A turn's grammar."""

    repeated_prefix: str = ""
    """The end of the prefix, which the grammar begins with again: a prompt must end before it."""


def build_grammar(
    tools: Mapping[str, ToolSpec],
    *,
    style: Style = "jsonl",
    tool_choice: str = "auto",
    max_calls: int = 1,
    prefix: str = "",
) -> Grammar:
    """Return the grammar of a turn in both dialects: see `mlx_tools.backends`.

    Raises:
        UsageError: ``tool_choice`` names no tool here, or nothing may follow ``prefix``.
    """
    parameters = {name: spec.parameters for name, spec in tools.items()}
    return _compile_grammar(
        json.dumps(parameters, default=dict), style, tool_choice, max_calls, prefix
    )


@lru_cache(maxsize=32)
def _compile_grammar(
    parameters: str, style: Style, tool_choice: str, max_calls: int, prefix: str
) -> Grammar:
    tools = {name: ToolSpec(name, parameters=one) for name, one in json.loads(parameters).items()}
    asked: Any = {"style": style, "tool_choice": tool_choice, "max_calls": max_calls}
    gbnf, lark = (
        turn_grammar(tools, dialect=dialect, prefix=prefix, **asked) for dialect in ("gbnf", "lark")
    )
    return Grammar(gbnf, lark, repeated_end(prefix))
