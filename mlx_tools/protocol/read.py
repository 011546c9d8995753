"""Reading a completion that is there as a whole."""

from __future__ import annotations

from typing import Final

from mlx_tools.messages import FinalAnswer, FinishReason, ToolCall
from mlx_tools.protocol.lexis import WHITE
from mlx_tools.protocol.rules import Reading, ReadingRules
from mlx_tools.protocol.stream import Reader
from mlx_tools.protocol.strict import Unreadable, decode

_DEFAULT: Final = ReadingRules()
_CALL_KEYS: Final = {"type", "name", "arguments"}
_ANSWER_KEYS: Final = {"type", "content"}


def read(
    text: str, finish_reason: FinishReason = "stop", rules: ReadingRules = _DEFAULT
) -> Reading:
    """How ``rules.prefix`` and ``text`` are read together. Never raises, whatever the text.

    The same as feeding a `Reader` and finishing it, only quicker.
    """
    if text[:1] == "{" and not rules.prefix and not rules.in_thought:
        reading = _one_line(text, finish_reason, rules)
        if reading is not None:
            return reading
    reader = Reader(rules, _whole=True)
    reader.feed(text)
    return reader.finish(finish_reason)


def _one_line(text: str, finish_reason: FinishReason, rules: ReadingRules) -> Reading | None:
    """The reading of a text that is one well-formed message and nothing else, which most are."""
    try:
        value, end = decode(text)
    except Unreadable:
        return None
    if finish_reason == "tool_calls" or (end < len(text) and text[end:].strip(WHITE)):
        return None
    kind = value.get("type")
    if kind == "tool_call" and value.keys() == _CALL_KEYS:
        name, arguments = value["name"], value["arguments"]
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        message: ToolCall | FinalAnswer = ToolCall(name, arguments)
    elif kind == "final_answer" and value.keys() == _ANSWER_KEYS:
        if rules.tool_choice not in ("auto", "none") or not isinstance(value["content"], str):
            return None
        message = FinalAnswer(value["content"])
    else:
        return None
    return Reading(messages=(message,), counted=text[:end], clean=True)
