"""Every family's form, damaged: no value takes in a mark, no call stands in an answer unseen, and
none is read out of code, quotations or documents.

``python benchmarks/damaged_calls.py`` writes the counts by kind into docs/evaluation.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import pytest

from mlx_tools.messages import ToolCall
from mlx_tools.protocol import DIALECTS, ReadingRules, read
from tests.protocol.test_dialects import _MARK, written


class Case(NamedTuple):
    """A tool, the arguments that a call gives it, and that call in every form."""

    name: str
    arguments: dict[str, Any]
    rules: ReadingRules
    forms: dict[str, str]


def case_of(name: str, arguments: dict[str, Any], schemas: dict[str, Any]) -> Case:
    """Return a call of a tool that requires the first parameter alone, beside another tool."""
    body = json.dumps(arguments)
    keywords = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    children = "".join(
        f"<{key}>{value if isinstance(value, str) else json.dumps(value)}</{key}>\n"
        for key, value in arguments.items()
    )
    forms = {
        **{one.name: written(one, [(name, arguments)]) for one in DIALECTS},
        "an object": f'{{"name": "{name}", "arguments": {body}}}',
        "an array": f'[{{"name": "{name}", "parameters": {body}}}]',
        "other keys": f'{{"tool": "{name}", "args": {body}}}',
        "Anthropic's": f'{{"type": "tool_use", "name": "{name}", "input": {body}}}',
        "a name first": f"{name}\n{body}",
        "Python": f"{name}({keywords})",
        "elements": f"<{name}>\n{children}</{name}>",
        "the protocol's": f'{{"type":"tool_call","name":"{name}","arguments":{body}}}',
    }
    schema = {
        "type": "object",
        "properties": schemas,
        "required": [next(iter(arguments))],
        "additionalProperties": False,
    }
    catalog = {name: schema, "other_tool": {"type": "object", "properties": {}}}
    rules = ReadingRules(catalog=catalog, mutates=lambda name, arguments: False)
    return Case(name, arguments, rules, forms)


NAME = "read_file"
ARGUMENTS = {"path": "a.txt", "lines": 3, "note": "two words"}
READ_FILE = case_of(
    NAME,
    ARGUMENTS,
    {"path": {"type": "string"}, "lines": {"type": "integer"}, "note": {"type": "string"}},
)
CATALOG: Any = {NAME: READ_FILE.rules.catalog[NAME]}
FORMS = READ_FILE.forms
SENTENCES = (
    ("Let me look at the file.", "I will tell you what it says."),
    ("Ich sehe mir die Datei an.", "Danach sage ich dir, was darin steht."),
    ("ファイルを確認します。", "結果をお知らせします。"),
)
_TOKEN = re.compile(r"</?[|｜][^<>\n]*[|｜]?>|</?[^<>\n]*[|｜]>|\[[A-Z_]+(?:\d+)?\]|✿\w+✿")


def outcome(text: str, case: Case = READ_FILE) -> str:
    """The kind of reading of a text; ``hidden`` is an answer that holds the whole call."""
    reading = read(text, "stop", case.rules)
    calls = [(m.name, dict(m.arguments)) for m in reading.messages if isinstance(m, ToolCall)]
    if calls == [(case.name, case.arguments)]:
        return "exact"
    if calls:
        values = [value for _, arguments in calls for value in arguments.values()]
        marked = [v for v in values if isinstance(v, str) and re.search(r"[<>｜|{}]|arg_|param", v)]
        return "a mark in a value" if marked else "another call"
    if reading.error is not None:
        return "corrected" if reading.call_like else "refused"
    words = (case.name, *case.arguments, *map(str, case.arguments.values()))
    whole = all(word.lower() in text.lower() for word in words)
    return "hidden" if whole else "shown"


def damaged(case: Case = READ_FILE) -> Iterator[tuple[str, str, str]]:
    """The kind of damage, the form and the text."""
    for name, text in case.forms.items():
        for at in range(len(text)):
            yield "one character deleted", name, text[:at] + text[at + 1 :]
        for mark in _MARK.finditer(text):
            yield "one mark left out", name, text[: mark.start()] + text[mark.end() :]
        stripped = _TOKEN.sub("", text)
        if stripped != text:
            yield "control tokens left out", name, stripped
        for before, after in SENTENCES:
            yield "a sentence before", name, f"{before}\n\n{text}"
            yield "a sentence after", name, f"{text}\n{after}"
            yield "a sentence before and after", name, f"{before}\n{text}\n\n{after}"
        yield "all of a fence", name, f"```\n{text}\n```"
        for opening in ("<tool_call>", "[TOOL_CALLS]", "<|tool_call_start|>", "<|python_tag|>"):
            yield "another family's mark before it", name, opening + text


def quoted(case: Case = READ_FILE) -> Iterator[tuple[str, str, str]]:
    """The place, the form and a text that shows a call."""
    for name, text in case.forms.items():
        lines = text.split("\n")
        yield "a fence amid text", name, f"So:\n```\n{text}\n```\nThat is it."
        yield "a quotation", name, "\n".join(("Log:", *(f"> {line}" for line in lines), "So."))
        yield "a diff", name, "\n".join(("@@ -1 +1 @@", *(f"+{line}" for line in lines)))
        if len(lines) == 1:
            yield "backticks", name, f"One writes `{text}` for that."
            yield "a table", name, f"| form | text |\n| --- | --- |\n| x | {text} |"


def counts(texts: Iterator[tuple[str, str, str]]) -> dict[str, Counter[str]]:
    """The number of texts of each kind, by their reading."""
    found: dict[str, Counter[str]] = {}
    for kind, _, text in texts:
        found.setdefault(kind, Counter())[outcome(text)] += 1
    return found


UNRECOGNISABLE = {"deepseek_dsml", "deepseek_v4", "gigachat_xml", "solar"}
"""Forms of which no more than values, or keys glued to them, are left without control tokens."""

OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bash": (
        {"command": "ls -la /tmp"},
        {"command": {"type": "string"}, "timeout": {"type": "number"}},
    ),
    "set_light": (
        {"room": "kitchen", "on": True},
        {"room": {"type": "string"}, "on": {"type": "boolean"}},
    ),
    "send-mail": (
        {"to": "a@b.c", "subject": "Hi there"},
        {"to": {"type": "string"}, "subject": {"type": "string"}},
    ),
}


def _check(texts: Iterator[tuple[str, str, str]], case: Case) -> None:
    for kind, name, text in texts:
        came = outcome(text, case)
        is_own_fence = name == "gemma3" and kind.startswith("a sentence") and "after" in kind
        if kind == "control tokens left out" and name in UNRECOGNISABLE:
            continue
        assert came != "a mark in a value", (kind, name, text)
        assert came not in ("hidden", "shown") or is_own_fence, (kind, name, text)


@pytest.mark.slow
def test_no_damage_hides_a_call_in_an_answer_or_a_mark_in_a_value() -> None:
    _check(damaged(READ_FILE), READ_FILE)


@pytest.mark.slow
@pytest.mark.parametrize("tool", OTHERS)
def test_calls_of_other_tools_are_not_hidden_by_damage_either(tool: str) -> None:
    arguments, schemas = OTHERS[tool]
    case = case_of(tool, arguments, schemas)
    _check(damaged(case), case)
    for kind, name, text in quoted(case):
        assert outcome(text, case) == "hidden", (kind, name, text)


def test_every_thirtieth_damaged_text_is_no_answer_that_hides_a_call() -> None:
    _check(islice(damaged(READ_FILE), 7, None, 30), READ_FILE)


def test_no_call_is_read_out_of_code_quotations_or_diffs() -> None:
    for kind, name, text in quoted():
        assert outcome(text) == "hidden", (kind, name, text)


def test_whole_forms_are_read() -> None:
    assert [name for name, text in FORMS.items() if outcome(text) != "exact"] == []
