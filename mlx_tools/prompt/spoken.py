"""What a model wrote, made fit to stand in the prompt again."""

from __future__ import annotations

import re
from typing import Final

from mlx_tools.prompt.neutralise import Neutraliser

_OPENING: Final = re.compile(r"<tool_call>(?=\s*\{)|<final_answer>")
_STRING_OR_END: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|</tool_call>', re.DOTALL)
_CLOSING: Final = {"<tool_call>": "</tool_call>", "<final_answer>": "</final_answer>"}


def neutral_speech(text: str, style: str, neutraliser: Neutraliser) -> str:
    """A model's own text with its control tokens broken, in JSON strings by an escape.

    In the style ``xml`` the protocol's own tags stay where they have their place: around a call's
    object, and around the answer.
    """
    if style != "xml":
        return neutraliser.in_mixed(text)
    parts: list[str] = []
    position = 0
    while match := _OPENING.search(text, position):
        tag, start = match[0], match.end()
        closing = _CLOSING[tag]
        end = _call_end(text, start) if tag == "<tool_call>" else text.rfind(closing, start)
        parts.append(neutraliser.in_mixed(text[position : match.start()]))
        inside = text[start:] if end < 0 else text[start:end]
        neutral = neutraliser.in_json if tag == "<tool_call>" else neutraliser.plain
        parts += (tag, neutral(inside))
        if end < 0:
            return "".join(parts)
        parts.append(closing)
        position = end + len(closing)
    return "".join((*parts, neutraliser.in_mixed(text[position:])))


def _call_end(text: str, start: int) -> int:
    """Where the tag stands that closes a call, not counting one in a string; -1 for none."""
    found = _STRING_OR_END.finditer(text, start)
    return next((match.start() for match in found if match[0][0] == "<"), -1)
