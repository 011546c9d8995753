"""Every family's form, damaged: no value takes in a mark, no call stands in an answer unseen, and
none is read out of code, quotations or documents.

``python -m tests.protocol.test_damage`` prints the counts by kind that docs/evaluation.md holds.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from mlx_tools.messages import ToolCall
from mlx_tools.protocol import DIALECTS, ReadingRules, read
from tests.protocol.test_dialects import _MARK, written

NAME = "read_file"
ARGUMENTS = {"path": "a.txt", "lines": 3, "note": "two words"}
CATALOG: Any = {
    NAME: {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "lines": {"type": "integer"},
            "note": {"type": "string"},
        },
        "required": ["path"],
        "additionalProperties": False,
    }
}
RULES = ReadingRules(catalog=CATALOG, mutates=lambda name, arguments: False)
_BODY = json.dumps(ARGUMENTS)
_KEYWORDS = ", ".join(f"{key}={value!r}" for key, value in ARGUMENTS.items())
FORMS = {
    **{one.name: written(one, [(NAME, ARGUMENTS)]) for one in DIALECTS},
    "an object": f'{{"name": "{NAME}", "arguments": {_BODY}}}',
    "an array": f'[{{"name": "{NAME}", "parameters": {_BODY}}}]',
    "other keys": f'{{"tool": "{NAME}", "args": {_BODY}}}',
    "Anthropic's": f'{{"type": "tool_use", "name": "{NAME}", "input": {_BODY}}}',
    "a name first": f"{NAME}\n{_BODY}",
    "Python": f"{NAME}({_KEYWORDS})",
    "elements": f"<{NAME}>\n<path>a.txt</path>\n<lines>3</lines>\n<note>two words</note>\n"
    f"</{NAME}>",
    "the protocol's": f'{{"type":"tool_call","name":"{NAME}","arguments":{_BODY}}}',
}
SENTENCES = (
    ("Let me look at the file.", "I will tell you what it says."),
    ("Ich sehe mir die Datei an.", "Danach sage ich dir, was darin steht."),
    ("ファイルを確認します。", "結果をお知らせします。"),
)
_TOKEN = re.compile(r"</?[|｜][^<>\n]*[|｜]?>|</?[^<>\n]*[|｜]>|\[[A-Z_]+(?:\d+)?\]|✿\w+✿")


def outcome(text: str) -> str:
    """What comes of a text; ``hidden`` is an answer that holds the whole call."""
    reading = read(text, "stop", RULES)
    calls = [(m.name, dict(m.arguments)) for m in reading.messages if isinstance(m, ToolCall)]
    if calls == [(NAME, ARGUMENTS)]:
        return "exact"
    if calls:
        values = [value for _, arguments in calls for value in arguments.values()]
        marked = [v for v in values if isinstance(v, str) and re.search(r"[<>｜|{}]|arg_|param", v)]
        return "a mark in a value" if marked else "another call"
    if reading.error is not None:
        return "corrected" if reading.call_like else "refused"
    whole = all(word in text for word in (NAME, "path", "lines", "note", "a.txt", "two words"))
    return "hidden" if whole else "shown"


def damaged() -> Iterator[tuple[str, str, str]]:
    """The kind of damage, the form and the text."""
    for name, text in FORMS.items():
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


def quoted() -> Iterator[tuple[str, str, str]]:
    """The place, the form and a text that shows a call."""
    for name, text in FORMS.items():
        lines = text.split("\n")
        yield "a fence amid text", name, f"So:\n```\n{text}\n```\nThat is it."
        yield "a quotation", name, "\n".join(("Log:", *(f"> {line}" for line in lines), "So."))
        yield "a diff", name, "\n".join(("@@ -1 +1 @@", *(f"+{line}" for line in lines)))
        if len(lines) == 1:
            yield "backticks", name, f"One writes `{text}` for that."
            yield "a table", name, f"| form | text |\n| --- | --- |\n| x | {text} |"


def counts(texts: Iterator[tuple[str, str, str]]) -> dict[str, Counter[str]]:
    """How many texts of each kind come to what."""
    found: dict[str, Counter[str]] = {}
    for kind, _, text in texts:
        found.setdefault(kind, Counter())[outcome(text)] += 1
    return found


MOST_HIDDEN = {
    "one character deleted": 0.01,
    "one mark left out": 0.02,
    "control tokens left out": 0.1,
}
"""Shares of texts in which nothing is left that shows a call: a bracket or a name is gone."""


@pytest.mark.slow
def test_no_damage_hides_a_call_in_an_answer_or_a_mark_in_a_value() -> None:
    for kind, found in counts(damaged()).items():
        assert found["a mark in a value"] == 0, kind
        own_fence = 3 if kind.startswith("a sentence") else 0  # of gemma3, amid text
        most = MOST_HIDDEN.get(kind, 0) * found.total() + own_fence + (kind == "all of a fence")
        assert found["hidden"] <= most, (kind, found)


def test_no_call_is_read_out_of_code_quotations_or_diffs() -> None:
    for kind, name, text in quoted():
        assert outcome(text) == "hidden", (kind, name, text)


def test_whole_forms_are_read() -> None:
    assert [name for name, text in FORMS.items() if outcome(text) != "exact"] == []


def main() -> None:
    """Print the table of docs/evaluation.md."""
    kinds = (
        "exact",
        "another call",
        "corrected",
        "refused",
        "shown",
        "hidden",
        "a mark in a value",
    )
    for kind, found in (*counts(damaged()).items(), *counts(quoted()).items()):
        cells = " | ".join(str(found[one]) for one in kinds)
        print(f"| {kind} | {found.total()} | {cells} |")


if __name__ == "__main__":
    main()
