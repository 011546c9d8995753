"""The tools as a grammar of the model's turn, for backends that mask the sampler with one.

The grammar is always of calls and answer together, unless a choice rules one of them out: a grammar
of calls alone would keep the model from answering. What it holds and what it leaves to validation:
`mlx_tools.tools.grammar`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.backends.base import GrammarText
from mlx_tools.messages import Style
from mlx_tools.spec import ToolSpec
from mlx_tools.tools.grammar import MAX_CHARS, line_grammar

_KEPT: Final = 32
"""Grammars that are kept for the next turn; one of 300 tools takes a third of a second to make."""


@dataclass(frozen=True, slots=True)
class Grammar(GrammarText):
    """What a turn may be. ``left_to_validation`` names the keywords that it does not hold to, each
    as ``tool: keyword``."""

    left_to_validation: tuple[str, ...] = ()


def grammar_for(
    tools: Mapping[str, ToolSpec],
    *,
    style: Style = "jsonl",
    tool_choice: str = "auto",
    max_calls: int = 1,
    prefix: str = "",
    max_chars: int = MAX_CHARS,
) -> Grammar:
    """The grammar of up to ``max_calls`` calls of ``tools``, one a line, or of the final answer.

    ``tool_choice`` narrows it: ``none`` leaves the answer, ``required`` the calls, a tool's name
    the calls of that tool. ``prefix`` is what the host has already written at the start of the
    turn (`mlx_tools.protocol.forcing_prefix`); the grammar is of what may follow it. ``max_chars``
    bounds each string whose schema does not.

    Raises:
        UsageError: ``tool_choice`` names no tool here, or nothing may follow ``prefix``.
        ToolDefinitionError: a tool's schema cannot be expressed, or no arguments fit it; tool and
            keyword stand in the message.
    """
    schemas = tuple(spec.parameters for spec in tools.values())
    key = (tuple(tools), tuple(map(id, schemas)), style, tool_choice, max_calls, prefix, max_chars)
    if key not in _made:
        made = line_grammar(
            tools,
            style=style,
            tool_choice=tool_choice,
            max_calls=max_calls,
            prefix=prefix,
            max_chars=max_chars,
        )
        _made[key] = schemas, Grammar(made.gbnf, made.lark, made.left_to_validation)
        while len(_made) > _KEPT:
            _made.popitem(last=False)
    return _made[key][1]


_made: OrderedDict[Any, tuple[tuple[Mapping[str, Any], ...], Grammar]] = OrderedDict()
# The schemas are kept beside their grammar, so that no others can come to bear their ids.
