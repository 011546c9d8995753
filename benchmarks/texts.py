"""The texts that are read: the same bytes for every parser, made from a kind and a size.

`COMPARED` are read by all, `HOSTILE` too; `GROWTH` are more hostile texts, read by mlx-tools alone:
what they show is how its time grows. A text has the wanted size, in bytes, to within a few per
cent; at 100 B the envelope alone takes most of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)

SENTENCE = (
    'The tide tables for the harbour are kept in the "blue" folder;\n'
    "ask the owner of the café, who has the key.\n"
)
PROSE = "I will look at the notes first and then write down what I have found in them.\n"


@dataclass(frozen=True)
class Text:
    """A text, and the tool call that stands in it (None: there is none to be found)."""

    text: str
    call: dict[str, Any] | None = None


def _filled(unit: str, size: int) -> str:
    """``unit`` repeated to ``size`` bytes; its last repetition may be cut."""
    count = len(unit.encode())
    return (unit * (size // count + 1)).encode()[: max(size, 1)].decode(errors="ignore")


def _dumped(call: Any) -> str:
    return json.dumps(call, ensure_ascii=False, separators=(",", ":"))


def _call(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_call", "name": "save", "arguments": arguments}


def one_string(size: int) -> dict[str, Any]:
    """A call whose argument is one long string: a file to be written."""
    empty = len(_dumped(_call({"text": ""})))
    wanted = max(size - empty, 1)
    written = len(json.dumps(SENTENCE, ensure_ascii=False).encode()) - 2
    return _call({"text": _filled(SENTENCE, wanted * len(SENTENCE.encode()) // written)})


def many_strings(size: int) -> dict[str, Any]:
    """A call with a list of records of strings."""
    rows: list[dict[str, str]] = []
    length = len(_dumped(_call({"rows": []})))
    while True:
        row = {"id": f"r{len(rows)}", "title": PROSE[:38], "body": SENTENCE.strip()}
        length += len(_dumped(row).encode()) + 1
        if rows and length > size:
            return _call({"rows": rows})
        rows.append(row)
        if length > size:
            return _call({"rows": [{"id": "r0", "title": PROSE[:18]}]})


def numbers(size: int) -> dict[str, Any]:
    """A call with rows of numbers and literals: hardly any string."""
    rows: list[list[Any]] = []
    length = len(_dumped(_call({"rows": []})))
    while True:
        row: list[Any] = [len(rows), len(rows) / 7, -3, True, None, {}]
        length += len(_dumped(row)) + 1
        if rows and length > size:
            return _call({"rows": rows})
        rows.append(row)


def _valid(make: Callable[[int], dict[str, Any]]) -> Callable[[int], Text]:
    def text(size: int) -> Text:
        call = make(size)
        return Text(_dumped(call), call)

    return text


def _fenced(size: int) -> Text:
    call = one_string(max(size - 16, 1))
    return Text(f"```json\n{_dumped(call)}\n```\n", call)


def _in_prose(size: int) -> Text:
    call = one_string(size // 3)
    prose = _filled(PROSE, size // 3).rstrip()
    return Text(f"{prose}\n\n{_dumped(call)}\n\n{prose}\n", call)


def _in_a_line(size: int) -> Text:
    call = one_string(max(size - 40, 1))
    return Text(f"I will do this: {_dumped(call)} and then see.\n", call)


def _python_literal(size: int) -> Text:
    call = many_strings(size)
    return Text(str(call), call)


def _trailing_commas(size: int) -> Text:
    call = many_strings(size)
    return Text(_dumped(call).replace("}", ",}").replace("]", ",]"), call)


def _deep(size: int) -> Text:
    depth = max(size // 6, 1)
    return Text('{"a":' * depth + "1" + "}" * depth)


COMPARED: dict[str, Callable[[int], Text]] = {
    "valid, one long string": _valid(one_string),
    "valid, records of strings": _valid(many_strings),
    "valid, mostly numbers": _valid(numbers),
    "fenced": _fenced,
    "between lines of prose": _in_prose,
    "within a line of prose": _in_a_line,
    "Python literals": _python_literal,
    "trailing commas": _trailing_commas,
}

BEGUN = '{"type":"tool_call","name":"save","arguments":{"text":"'


def _unit(unit: str, start: str = "", end: str = "") -> Callable[[int], Text]:
    def text(size: int) -> Text:
        return Text(start + _filled(unit, size - len((start + end).encode())) + end)

    return text


HOSTILE: dict[str, Callable[[int], Text]] = {
    "{ repeated": _unit("{"),
    '{"a"␠ repeated': _unit('{"a" '),
    "objects nested to the end": _deep,
    "cut off inside a string": _unit("la la ", start=BEGUN),
    '{"type":" repeated': _unit('{"type":"'),
    "fences repeated": _unit("```json\n{\n"),
}

GROWTH: dict[str, Callable[[int], Text]] = {
    "[ repeated": _unit("["),
    '{"a": repeated': _unit('{"a":'),
    '" repeated': _unit('"'),
    "}{ repeated": _unit("}{"),
    "{} on lines": _unit("{}\n"),
    "lines that begin like messages": _unit('{"type":"tool_call",\n'),
    "calls without arguments": _unit('{"type":"tool_call","name":"save"}\n'),
    "calls, whole, on lines": _unit('{"type":"tool_call","name":"a","arguments":{}}\n'),
    "calls within one line of prose": _unit('see {"type":"tool_call","name":"a","arguments":{}} '),
    "calls in one array, never closed": _unit(
        '{"type":"tool_call","name":"a","arguments":{}},', start="["
    ),
    "call in call": _unit('{"type":"tool_call","name":"a","arguments":'),
    "commas in a message": _unit(",", start='{"type":"tool_call"'),
    "missing commas": _unit('"a":1 ', start='{"type":"tool_call","name":"a","arguments":{'),
    "one key again and again": _unit('"a":1,', start='{"type":"tool_call",'),
    "unquoted keys": _unit("a:1,", start="{type:'tool_call',"),
    "single quotes": _unit("{'type':'"),
    "apostrophes in a string": _unit("it's ", start="{'type':'tool_call','name':'"),
    "comments": _unit("/* a */", start='{"type":"tool_call",'),
    "comments opened": _unit("/*", start='{"type":"tool_call",'),
    "line comments": _unit("// a\n", start='{"type":"tool_call",'),
    "backslashes": _unit("\\", start=BEGUN),
    "invalid escapes": _unit("\\d ", start=BEGUN, end='"}}'),
    "unicode escapes": _unit("\\u00e9", start=BEGUN, end='"}}'),
    "lone surrogates": _unit("\\ud800", start=BEGUN, end='"}}'),
    "raw newlines in a string": _unit("a\n", start=BEGUN, end='"}}'),
    "quotes in a string": _unit('a "b" c, ', start=BEGUN, end='"}}'),
    "one long number": _unit("9", start='{"type":"tool_call","name":"a","arguments":{"n":'),
    "one long key": _unit("k", start='{"type":"tool_call","'),
    "unfinished literals": _unit("tru", start='{"type":"tool_call","name":"a","arguments":{"x":'),
    "thoughts, closed": _unit("<think>a</think>"),
    "thoughts, opened": _unit("<think>"),
    "markers half written": _unit("<think"),
    "< repeated": _unit("<"),
    "native call tags": _unit("<tool_call>"),
    "native calls": _unit('<tool_call>{"name":"a","arguments":{}}</tool_call>\n'),
    "aliases in prose": _unit('so {"name":"a","parameters":{}} or\n'),
    "bullets": _unit("- - * "),
    "backticks": _unit("`"),
    "newlines": _unit("\n"),
    "carriage returns": _unit("\r"),
    "line separators": _unit("\u2028{"),
    "white space after a message": _unit(
        " \n", start='{"type":"tool_call","name":"a","arguments":{}}\n'
    ),
    "prose": _unit(PROSE),
    "braces in prose": _unit("the set {a, b} and \\frac{1}{2} "),
}

KINDS = {**COMPARED, **HOSTILE, **GROWTH}
