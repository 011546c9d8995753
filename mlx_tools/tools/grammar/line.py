"""The grammar of what a model may write in one turn: its calls, or its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.messages import Style
from mlx_tools.protocol.lexis import ANSWER_END, ANSWER_TAG
from mlx_tools.protocol.strict import encodable
from mlx_tools.protocol.styles import write_answer, write_call
from mlx_tools.spec import ToolSpec
from mlx_tools.tools.grammar.alternatives import Schemas
from mlx_tools.tools.grammar.cut import cut
from mlx_tools.tools.grammar.merge import both
from mlx_tools.tools.grammar.nodes import (
    NOTHING,
    Node,
    Ref,
    Rules,
    Text,
    alt,
    factored,
    repeat,
    seq,
    tokens,
    without_dead_ends,
)
from mlx_tools.tools.grammar.terminals import MAX_CHARS, rule_name, string, text_until
from mlx_tools.tools.grammar.values import Values
from mlx_tools.tools.grammar.write import ROOT, to_gbnf, to_lark


@dataclass(frozen=True, slots=True)
class LineGrammar:
    """A grammar in both dialects, and what it leaves to validation, each as ``tool: keyword``."""

    gbnf: str
    lark: str
    left_to_validation: tuple[str, ...] = ()


def line_grammar(
    tools: Mapping[str, ToolSpec],
    *,
    style: Style = "jsonl",
    tool_choice: str = "auto",
    max_calls: int = 1,
    prefix: str = "",
    max_chars: int = MAX_CHARS,
) -> LineGrammar:
    """The grammar of up to ``max_calls`` calls of these tools, or the final answer.

    ``tool_choice`` narrows it: ``none`` leaves the answer, ``required`` the calls, a tool's name
    the calls of that tool. ``prefix`` is what already stands at the start of the turn; the grammar
    is of what may follow it. ``max_chars`` bounds every string whose schema does not.

    Raises:
        UsageError: ``tool_choice`` names no tool here, or nothing may follow ``prefix``.
        ToolDefinitionError: a tool's schema cannot be expressed, or no arguments fit it; tool and
            keyword stand in the message.
    """
    if max_calls < 1:
        raise UsageError(f"max_calls is {max_calls}", hint="it must be 1 or more")
    chosen = _chosen(tools, tool_choice)
    rules = Rules()
    lines = _Lines(rules, style, max_chars)
    root = rules.add(ROOT, NOTHING)
    options: list[Node] = []
    if tool_choice in ("auto", "none"):
        options.append(lines.answer())
    calls = [lines.call(name, spec) for name, spec in chosen.items()]
    without_dead_ends(rules)
    for name, rule in zip(chosen, calls, strict=True):
        if rules.bodies[rule.name] == NOTHING:
            raise ToolDefinitionError(f"{name}: no arguments fit its schema")
    if calls:
        one = seq(lines.head, rules.add("call", alt(calls)), lines.tail)
        options.append(seq(one, repeat(seq(Text("\n"), one), 0, max_calls - 1)))
    left = cut(rules, factored(options), prefix)
    if left == NOTHING:
        raise UsageError(f"no call or answer begins with {prefix!r:.200}")
    rules.bodies[root.name] = left
    return LineGrammar(to_gbnf(rules), to_lark(rules), tuple(lines.left))


def _chosen(tools: Mapping[str, ToolSpec], tool_choice: str) -> Mapping[str, ToolSpec]:
    if tool_choice in ("auto", "required"):
        if tool_choice == "required" and not tools:
            raise UsageError("a call is required, and there are no tools")
        return tools
    if tool_choice == "none":
        return {}
    if tool_choice not in tools:
        raise UsageError(f"there is no tool {tool_choice!r:.80} to call")
    return {tool_choice: tools[tool_choice]}


class _Lines:
    """The lines of one style. All calls begin with ``head`` and end with ``tail``; ``left`` is what
    their grammar leaves to validation."""

    def __init__(self, rules: Rules, style: Style, max_chars: int) -> None:
        self.left: dict[str, None] = {}
        self._rules = rules
        self._style = style
        self._max_chars = max_chars
        self._empty = write_call("", {"": 0}, style=style)
        self._at = self._empty.index(":0}") + 1
        before, _, after = write_call("", {}, style=style).rpartition("{}")
        self._before, _, _ = before.partition('""')
        self.head, self.tail = tokens(self._before), tokens(after)

    def call(self, name: str, spec: ToolSpec) -> Ref:
        """The rule of a call of one tool, from its name to the end of its arguments."""
        rule = self._rules.add(f"call-{rule_name(name)}".strip("-"), NOTHING)
        before, _, _ = write_call(name, {}, style=self._style).rpartition("{}")
        try:
            schemas = Schemas(spec.parameters)
            values = Values(self._rules, schemas, rule.name, self._spelled, self._max_chars)
            arguments = values.of(both({"type": "object"}, spec.parameters))
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"{name}: {error.message}", hint=error.hint) from None
        except RecursionError:
            raise ToolDefinitionError(f"{name}: its schema nests too deeply") from None
        named = tokens(before.removeprefix(self._before))
        self._rules.bodies[rule.name] = seq(named, arguments)
        self.left |= {f"{name}: {keyword}": None for keyword in schemas.left}
        return rule

    def answer(self) -> Node:
        """The answer, in the one or two ways in which the style writes it."""
        before, after = write_answer(ANSWER_END, self._style).split(str(self._spelled(ANSWER_END)))
        written = seq(tokens(before), string(self._rules, 0, self._max_chars), tokens(after))
        if self._style != "xml":
            return written
        text = text_until(ANSWER_END, self._max_chars)
        return alt([seq(Text(ANSWER_TAG), self._rules.add("text", text, terminal=True)), written])

    def _spelled(self, value: Any) -> str | None:
        """A JSON value as it stands in a call; None for one that the reader would not take."""
        try:
            if not encodable(json.dumps(value, ensure_ascii=False, allow_nan=False)):
                return None
        except ValueError:
            return None
        whole = write_call("", {"": value}, style=self._style)
        return whole[self._at : len(whole) - (len(self._empty) - self._at - 1)]
