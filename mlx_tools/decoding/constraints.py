"""Grammars of a model's turn, with its tools.

A backend masks its sampler with a grammar. It has calls and answers, unless the tool choice
excludes one of them. With calls alone the model could not answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mlx_tools.backends import GrammarText, repeated_end, turn_grammar
from mlx_tools.messages import Style, ToolSpec


class Grammar(GrammarText, frozen=True):
    """The grammar of a turn."""

    repeated_prefix: str = ""
    """The end of the prefix, with which the grammar begins too. The prompt must end before it."""


def build_grammar(
    tools: Mapping[str, ToolSpec],
    *,
    style: Style = "jsonl",
    tool_choice: str = "auto",
    max_calls: int = 1,
    prefix: str = "",
) -> Grammar:
    """Return the grammar of a turn in both dialects, GBNF and Lark.

    Args:
        tools: the tools by name.
        style: the form of messages.
        tool_choice: ``auto``, ``none``, ``required``, or the name of a tool.
        max_calls: the maximum number of calls in the turn.
        prefix: the beginning of the turn that the host writes.

    Raises:
        UsageError: ``tool_choice`` is not one of these, or nothing may follow ``prefix``.
    """
    parameters = {name: spec.parameters for name, spec in tools.items()}
    return _compile_grammar(
        json.dumps(parameters, default=dict), style, tool_choice, max_calls, prefix
    )


@lru_cache(maxsize=32)
def _compile_grammar(
    parameters: str, style: Style, tool_choice: str, max_calls: int, prefix: str
) -> Grammar:
    tools = {
        name: ToolSpec(name, parameters=schema) for name, schema in json.loads(parameters).items()
    }
    options: Any = {"style": style, "tool_choice": tool_choice, "max_calls": max_calls}
    gbnf, lark = (
        turn_grammar(tools, dialect=dialect, prefix=prefix, **options)
        for dialect in ("gbnf", "lark")
    )
    return Grammar(gbnf, lark, repeated_end(prefix))
