"""The tools as a grammar of the model's turn, for backends that mask the sampler with one.

The grammar is always of calls and answer together, unless a choice rules one of them out: a grammar
of calls alone would keep the model from answering.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.backends import GrammarText
from mlx_tools.messages import Style, ToolSpec
from mlx_tools.protocol.grammar import turn_grammar

_KEPT: Final = 32
"""Grammars that are kept for the next turn."""


@dataclass(frozen=True, slots=True)
class Grammar(GrammarText):
    """A turn's grammar. ``left_to_validation`` names the keywords that one of the dialects does
    not hold to, each as ``tool: path: keyword``. ``again`` is the end of the prefix that the
    grammar begins with once more, so that a prompt must end before it."""

    left_to_validation: tuple[str, ...] = ()
    again: str = ""


def grammar_for(
    tools: Mapping[str, ToolSpec],
    *,
    style: Style = "jsonl",
    tool_choice: str = "auto",
    max_calls: int = 1,
    prefix: str = "",
) -> Grammar:
    """The grammar of a turn in both dialects: see `mlx_tools.protocol.grammar.turn_grammar`.

    Raises:
        UsageError: ``tool_choice`` names no tool here, or nothing may follow ``prefix``.
    """
    schemas = tuple(spec.parameters for spec in tools.values())
    key = (tuple(tools), tuple(map(id, schemas)), style, tool_choice, max_calls, prefix)
    if key not in _made:
        options: Any = {
            "style": style,
            "tool_choice": tool_choice,
            "max_calls": max_calls,
            "prefix": prefix,
        }
        lark = turn_grammar(tools, dialect="lark", **options)
        gbnf = turn_grammar(tools, dialect="gbnf", **options)
        left = tuple(dict.fromkeys((*lark.left_to_validation, *gbnf.left_to_validation)))
        _made[key] = schemas, Grammar(gbnf.text, lark.text, left, lark.again)
        while len(_made) > _KEPT:
            _made.popitem(last=False)
    return _made[key][1]


_made: OrderedDict[Any, tuple[tuple[Mapping[str, Any], ...], Grammar]] = OrderedDict()
# The schemas are kept beside their grammar, so that no others can come to bear their ids.
