"""The grammar of what a model may write in one turn: its calls, or its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from mlx_tools.errors import UsageError
from mlx_tools.messages import Style, ToolSpec
from mlx_tools.protocol.gbnf import Gbnf
from mlx_tools.protocol.lexis import ANSWER_TAG
from mlx_tools.protocol.styles import write_answer, write_call
from mlx_tools.schema.compilable import COMPACT, compilable
from mlx_tools.schema.resolve import walk


@dataclass(frozen=True, slots=True)
class TurnGrammar:
    """A grammar as ``text``, and what it leaves to validation, each as ``tool: path: keyword``.

    ``again`` is the end of the prefix that the grammar begins with once more, for the brace of the
    arguments belongs to them: a prompt must end before it."""

    text: str
    left_to_validation: tuple[str, ...] = ()
    again: str = ""


def turn_grammar(
    tools: Mapping[str, ToolSpec],
    *,
    dialect: Literal["lark", "gbnf"] = "lark",
    style: Style = "jsonl",
    tool_choice: str = "auto",
    max_calls: int = 1,
    prefix: str = "",
) -> TurnGrammar:
    """The grammar of up to ``max_calls`` calls of these tools, one a line, or of the final answer.

    ``tool_choice`` narrows it: ``none`` leaves the answer, ``required`` the calls, a tool's name
    the calls of that tool. ``prefix`` is what already stands at the start of the turn
    (`mlx_tools.protocol.forcing_prefix`); the grammar is of what may follow it.

    Raises:
        UsageError: ``tool_choice`` names no tool here, or nothing may follow ``prefix``.
    """
    writer = Gbnf() if dialect == "gbnf" else _Lark()
    again = "{" if prefix.endswith('"arguments":{') else ""
    due = len(prefix) - len(again)

    def after(ways: Iterable[tuple[str, str, str]]) -> list[str]:
        """Those that begin with what is written, without it."""
        return [
            f"{writer.literal(head[due:])} {inner} {writer.literal(tail)}"
            for head, inner, tail in ways
            if head.startswith(prefix[:due])
        ]

    head, tail = write_answer(" ", style).split(' "')  # a blank stands in an object in any style
    ways = [(head, writer.string_end, tail), (ANSWER_TAG, writer.tag_end, "")]
    ways = ways if style == "xml" else ways[:1]
    options = after(ways) if tool_choice in ("auto", "none") else []
    left, named = [], []
    head, between, tail = re.split('(?<=")"|{}', write_call("", {}, style=style))
    for name, spec in _chosen(tools, tool_choice).items():
        named.append((f"{json.dumps(name)[1:]}{between}", writer.arguments(name, _schema(spec))))
        left += [f"{name}: {one}" for one in compilable(spec.parameters).left_to_validation]
    if named:
        tool = writer.rule("tool", " | ".join(f"{writer.literal(n)} {inner}" for n, inner in named))
        whole = f"{writer.literal(head)} {tool} {writer.literal(tail)}"
        more = writer.rule("more", f"{writer.literal(chr(10))} {whole}")
        first = after([(head, tool, tail)])
        first = first or after((head + text, inner, tail) for text, inner in named)
        options += [f"{one} {more}{{0,{max_calls - 1}}}" if max_calls > 1 else one for one in first]
    if not options:
        raise UsageError(f"no call or answer begins with {prefix!r:.200}")
    return TurnGrammar(writer.text(" | ".join(options)), (*left, *writer.left), again)


def _chosen(tools: Mapping[str, ToolSpec], tool_choice: str) -> Mapping[str, ToolSpec]:
    if tool_choice == "required" and not tools:
        raise UsageError("a call is required, and there are no tools")
    if tool_choice in ("auto", "required", "none"):
        return tools if tool_choice != "none" else {}
    if tool_choice not in tools:
        raise UsageError(f"there is no tool {tool_choice!r:.80} to call")
    return {tool_choice: tools[tool_choice]}


def _schema(spec: ToolSpec) -> dict[str, Any]:
    """The arguments as they are held: an object has the properties that its schema names, and no
    others unless it speaks of them. Where schemas are mixed, one cannot tell which it names."""
    schema: dict[str, Any] = json.loads(json.dumps(compilable(spec.parameters).schema or {}))
    nodes = [node for _, node in walk(schema) if isinstance(node, dict)]
    naming = [node for node in nodes if node.keys() & {"properties", "required"}]
    mixed = any("allOf" in node for node in nodes)
    if not mixed and not any(node.keys() & {"anyOf", "$ref"} for node in naming):
        for node in naming:
            if set(node.get("required", ())) <= node.get("properties", {}).keys() != set():
                node.setdefault("additionalProperties", False)
    return {"type": "object", **schema}


class _Lark:
    """The dialect of llguidance, which holds to a schema itself."""

    string_end: Final = "STRING_END"
    tag_end: Final = "TAG_END"
    left: Final = ()

    def __init__(self) -> None:
        self._rules = [
            r'STRING_END: /([^"\\\x00-\x1F]|\\(["\\\/bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD]'
            r'([0-7][0-9a-fA-F]{2}|[89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))))*"/',
            r"TAG_END: /(?s:.*)<\/final_answer>/ & ~/(?s:.*)<\/final_answer>(?s:.+)/",
        ]

    def literal(self, text: str) -> str:
        return json.dumps(text) if text else ""

    def rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}_{len(self._rules)}: {body}")
        return f"{name}_{len(self._rules) - 1}"

    def arguments(self, _name: str, schema: Mapping[str, Any]) -> str:
        return self.rule("arguments", f"%json {json.dumps({**schema, **COMPACT})}")

    def text(self, root: str) -> str:
        return "\n".join(("%llguidance {}", f"start: {root}", *self._rules, ""))
