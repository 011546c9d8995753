"""The grammar of one turn of a model: its calls, or its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from mlx_tools.errors import UsageError
from mlx_tools.messages import Style, ToolSpec
from mlx_tools.parsing import compact
from mlx_tools.protocol import ANSWER_END, ANSWER_TAG, write_answer, write_call
from mlx_tools.schema import COMPACT, make_compilable, walk

_MAX_REPEATS: Final = 900
"""The limit of repetitions: llama.cpp refuses 2000 and more, and counts some twice."""

_JSON: Final[Mapping[str, str]] = {
    "value": 'object | array | string | number | "true" | "false" | "null"',
    "object": '"{" (key value (next-key value)*)? "}"',
    "key": 'string ":"',
    "next-key": '"," string ":"',
    "array": '"[" (value ("," value)*)? "]"',
    "string": '"\\"" string-end',
    "string-end": 'char* "\\""',
    "char": r'[^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" unit)',
    "unit": "[0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex",
    "hex": "[0-9a-fA-F]",
    "number": '"-"? not-negative',
    "not-negative": 'whole ("." [0-9]{1,17})? ([eE] ("-" [0-9]{1,3} | "+"? [0-9]{1,2}))?',
    "integer": '"-"? whole',
    "whole": '"0" | [1-9] [0-9]{0,19}',
}
"""The rules of JSON. Numbers have a limited length, so that they end and do not overflow."""


class _Gbnf:
    """The dialect of llama.cpp. Schemas that it cannot express are left to validation."""

    string_end: Final = "string-end"
    tag_end: Final = "tag-end"

    def __init__(self) -> None:
        self._rules = {"root": "", **_JSON, "tag-end": _tag_end()}
        self._tool = ""
        self._definitions: Mapping[str, Any] = {}
        self._referred: dict[str, str] = {}

    def literal(self, text: str) -> str:
        return f'"{"".join(map(_character, text))}"' if text else ""

    def rule(self, name: str, body: str) -> str:
        name = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
        while name in self._rules:
            name = f"{name}-{len(self._rules)}"
        self._rules[name] = body
        return name

    def arguments(self, name: str, schema: Mapping[str, Any]) -> str:
        self._tool, self._referred, self._definitions = name, {}, schema.get("$defs", {})
        return self.rule(f"arguments-{name}", self._value(schema))

    def text(self, root: str) -> str:
        rules = {**self._rules, "root": root}
        return "".join(f"{name} ::= {body}\n" for name, body in rules.items())

    def _value(self, schema: Any) -> str:
        """Return the rule for the values of a schema, as one item of a sequence."""
        if isinstance(schema, bool):
            return "value"
        if "enum" in schema or "const" in schema:
            values = schema["enum"] if "enum" in schema else [schema["const"]]
            whole = (int(v) if isinstance(v, float) and v.is_integer() else v for v in values)
            return _either([self.literal(compact(value)) for value in whole])
        if "properties" not in schema:
            if "$ref" in schema:
                return self._reference(schema["$ref"].rpartition("/")[2])
            if "anyOf" in schema:
                return _either([self._value(one) for one in schema["anyOf"]])
            if "allOf" in schema:  # of several the first
                return self._value(schema["allOf"][0])
        kinds = schema.get("type", "object" if "properties" in schema else [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return _either([self._of_kind(kind, schema) for kind in kinds]) if kinds else "value"

    def _reference(self, name: str) -> str:
        if name not in self._referred:
            self._referred[name] = self.rule(f"{self._tool}-{name}", "")
            self._rules[self._referred[name]] = self._value(self._definitions[name])
        return self._referred[name]

    def _of_kind(self, kind: str, schema: Mapping[str, Any]) -> str:
        match kind:
            case "object":
                return self._object(schema)
            case "array" if "prefixItems" in schema:
                return "array"
            case "array":
                items, counts = schema.get("items", True), _counts(schema, "Items")
                item = self._value(items)
                several = self._several(item, f'"," {item}', *counts)
                return '"[]"' if items is False or counts[1] == 0 else f'("[" {several} "]")'
            case "string":
                return rf'("\"" {_times("char", *_counts(schema, "Length"))} "\"")'
            case "integer" | "number":
                names = ("number", "integer", "not-negative", "whole")
                return names[2 * (schema.get("minimum", -1) >= 0) + (kind == "integer")]
        return '("true" | "false")' if kind == "boolean" else '"null"'

    def _object(self, schema: Mapping[str, Any]) -> str:
        others = "patternProperties" in schema or schema.get("additionalProperties", True)
        named, required = dict(schema.get("properties", {})), schema.get("required", [])
        named |= {key: others for key in required if key not in named}
        other = "" if others is False else self._value(others)
        if not named and other:
            counts = _counts(schema, "Properties")
            return f'("{{" {self._several(f"key {other}", f"next-key {other}", *counts)} "}}")'
        members = [
            (compact(key) + ":", self._value(one), key in required)
            for key, one in named.items()
            if one is not False or key in required
        ]
        return f'("{{" {self._members(members, other)} "}}")'

    def _members(self, members: Sequence[tuple[str, str, bool]], other_values: str) -> str:
        """Return the rule for members (key, value, is required) in order, then others.

        A comma is part of the key after it, so that a lexer need not go back.
        """
        rest = f"(next-key {other_values})*" if other_values else ""
        options = [f"key {other_values} {rest}"] if other_values else []
        for key, value, needed in reversed(members):
            begun = f"{self.literal(key)} {value} {rest}"
            options = [begun] if needed else [begun, *options]
            member = f"{self.literal(',' + key)} {value}"
            member = member if needed else f"({member})?"
            rest = self.rule(f"{self._tool}-rest", f"{member} {rest}")
        optional = "" if any(needed for _, _, needed in members) else "?"
        return f"({' | '.join(options)}){optional}" if options else ""

    def _several(self, first: str, next_item: str, min_count: int, max_count: int | None) -> str:
        next_item = self.rule(f"{self._tool}-more", next_item)
        next_item = _times(
            next_item, max(min_count - 1, 0), None if max_count is None else max(max_count - 1, 0)
        )
        return f"({first} {next_item}){'' if min_count else '?'}"


def _tag_end() -> str:
    """Return the rule for a text up to the first closing tag, with the tag.

    The rule relies on the tag having its first character only once.
    """
    prefixes = [ANSWER_END[:size] for size in range(1, len(ANSWER_END))]
    broken = " | ".join(f'"{prefix}" [^<{ANSWER_END[len(prefix)]}]' for prefix in prefixes)
    stray = " | ".join(f'"{prefix}"' for prefix in prefixes)
    return f'([^<] | ({stray})* ({broken}))* ({stray})* "{ANSWER_END}"'


def _either(options: Sequence[str]) -> str:
    return options[0] if len(options) == 1 else f"({' | '.join(dict.fromkeys(options))})"


def _counts(schema: Mapping[str, Any], noun: str) -> tuple[int, int | None]:
    """Return the minimum and maximum count, as far as a grammar can express them."""
    least, most = schema.get(f"min{noun}", 0), schema.get(f"max{noun}")
    return (
        least if least <= _MAX_REPEATS else 0,
        most if most is None or most <= _MAX_REPEATS else None,
    )


def _times(item: str, min_count: int, max_count: int | None) -> str:
    if max_count is None:
        return f"{item}{{{min_count},}}" if min_count else f"{item}*"
    return f"{item}{{{min_count},{max(min_count, max_count)}}}" if max_count else ""


def _character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    plain = " " <= character < "\x7f" or character > "\x9f"  # readers differ in \x and \u
    return character if plain else f"\\x{ord(character):02X}"


def turn_grammar(
    tools: Mapping[str, ToolSpec],
    *,
    dialect: Literal["lark", "gbnf"] = "lark",
    style: Style = "jsonl",
    tool_choice: str = "auto",
    max_calls: int = 1,
    prefix: str = "",
) -> str:
    """Return the grammar of up to ``max_calls`` calls, one per line, or of the answer.

    Args:
        tools: the tools that may be called.
        dialect: the dialect of the grammar.
        style: the form of calls and answer.
        tool_choice: ``none`` allows only the answer, ``required`` only calls, and a tool's name
            only calls of this tool.
        max_calls: the maximum number of calls.
        prefix: the text with which the turn already begins
            (`mlx_tools.protocol.forcing_prefix`). The grammar is of the text after it, and begins
            with `repeated_end` of it.

    Raises:
        UsageError: ``tool_choice`` is an unknown tool, or ``prefix`` begins no call or answer.
    """
    writer = _Gbnf() if dialect == "gbnf" else _Lark()
    due = len(prefix) - len(repeated_end(prefix))

    def ways_left(ways: Iterable[tuple[str, str, str]]) -> list[str]:
        """Return the forms that begin with the prefix, without the prefix."""
        return [
            f"{writer.literal(head[due:])} {inner} {writer.literal(tail)}"
            for head, inner, tail in ways
            if head.startswith(prefix[:due])
        ]

    head, tail = write_answer(" ", style).split(' "')  # the blank marks the place of the text
    ways = [(head, writer.string_end, tail), (ANSWER_TAG, writer.tag_end, "")]
    ways = ways if style == "xml" else ways[:1]
    options = ways_left(ways) if tool_choice in ("auto", "none") else []
    named = []
    head, between, tail = re.split('(?<=")"|{}', write_call("", {}, style=style))
    for name, spec in _choose_tools(tools, tool_choice).items():
        named.append((f"{json.dumps(name)[1:]}{between}", writer.arguments(name, _schema(spec))))
    if named:
        tool = writer.rule("tool", " | ".join(f"{writer.literal(n)} {inner}" for n, inner in named))
        whole = f"{writer.literal(head)} {tool} {writer.literal(tail)}"
        more = writer.rule("more", f"{writer.literal(chr(10))} {whole}")
        first = ways_left([(head, tool, tail)])
        first = first or ways_left((head + text, inner, tail) for text, inner in named)
        options += [f"{one} {more}{{0,{max_calls - 1}}}" if max_calls > 1 else one for one in first]
    if not options:
        raise UsageError(f"no call or answer begins with {prefix!r:.200}")
    return writer.text(" | ".join(options))


def repeated_end(prefix: str) -> str:
    """Return the end of a prefix that the turn's grammar repeats.

    It is the brace of the arguments, which is part of their rule. So a prompt must end before it.
    """
    return "{" if prefix.endswith('"arguments":{') else ""


def _choose_tools(tools: Mapping[str, ToolSpec], tool_choice: str) -> Mapping[str, ToolSpec]:
    if tool_choice == "required" and not tools:
        raise UsageError("a call is required, and there are no tools")
    if tool_choice in ("auto", "required", "none"):
        return tools if tool_choice != "none" else {}
    if tool_choice not in tools:
        raise UsageError(f"there is no tool {tool_choice!r:.80} to call")
    return {tool_choice: tools[tool_choice]}


def _schema(spec: ToolSpec) -> dict[str, Any]:
    """Return the schema that the grammar uses for arguments.

    An object has only the properties that its schema names, unless the schema mentions others.
    Combined schemas stay unchanged, because another part may name further properties.
    """
    schema: dict[str, Any] = json.loads(json.dumps(make_compilable(spec.parameters).schema or {}))
    nodes = [node for _, node in walk(schema) if isinstance(node, dict)]
    naming = [node for node in nodes if node.keys() & {"properties", "required"}]
    mixed = any("allOf" in node for node in nodes)
    if not mixed and not any(node.keys() & {"anyOf", "$ref"} for node in naming):
        for node in naming:
            if set(node.get("required", ())) <= node.get("properties", {}).keys() != set():
                node.setdefault("additionalProperties", False)
    return {"type": "object", **schema}


class _Lark:
    """The dialect of llguidance, which supports schemas itself."""

    string_end: Final = "STRING_END"
    tag_end: Final = "TAG_END"

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
