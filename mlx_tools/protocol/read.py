"""Reading a completion that is there as a whole."""

from __future__ import annotations

from typing import Final

from mlx_tools.messages import FinalAnswer, FinishReason, ToolCall
from mlx_tools.protocol.lexis import WHITE
from mlx_tools.protocol.reading import Reading, ReadingRules, sound
from mlx_tools.protocol.stream import Reader
from mlx_tools.protocol.strict import Unreadable, decode

_DEFAULT: Final = ReadingRules()


def read(
    text: str, finish_reason: FinishReason = "stop", rules: ReadingRules = _DEFAULT
) -> Reading:
    """How ``rules.prefix`` and ``text`` are read together. Never raises, whatever the text.

    The same as feeding a `Reader` and finishing it, only quicker.
    """
    if text[:1] == "{" and (rules is _DEFAULT or not (rules.prefix or rules.in_thought)):
        reading = _one_line(text, rules) if finish_reason != "tool_calls" else None
        if reading is not None:
            return reading
    reader = Reader(rules, _whole=True)
    reader.feed(text)
    return reader.finish(finish_reason)


def _one_line(text: str, rules: ReadingRules) -> Reading | None:
    """The reading of a text that is one well-formed message and nothing else, which most are."""
    try:
        value, end = decode(text)
    except Unreadable:
        return None
    if end < len(text) and text[end:].strip(WHITE):
        return None
    kind = value.get("type")
    message: ToolCall | FinalAnswer
    if kind == "tool_call" and len(value) == 3:
        name, arguments = value.get("name"), value.get("arguments")
        if type(name) is not str or not name or type(arguments) is not dict:
            return None
        message = ToolCall(name, arguments)
    elif kind == "final_answer" and len(value) == 2:
        content = value.get("content")
        if rules.tool_choice not in ("auto", "none") or type(content) is not str:
            return None
        message = FinalAnswer(content)
    else:
        return None
    return sound(message, text[:end])
