"""What a model wrote, made fit to stand in the prompt again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from mlx_tools.prompt.neutralise import Neutraliser
from mlx_tools.protocol.read import read
from mlx_tools.protocol.rules import ReadingRules, Style
from mlx_tools.records import CompletionRecord

_OPENING: Final = re.compile(r"<tool_call>(?=\s*\{)|<final_answer>")
_STRING_OR_END: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|</tool_call>', re.DOTALL)
_CLOSING: Final = {"<tool_call>": "</tool_call>", "<final_answer>": "</final_answer>"}
_ARRAY: Final = re.compile(r"\[[ \t\r\n]*\{")
_STRING_OR_FENCE: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"?|(`{3,16}|~{3,16})')


def closed(completion: CompletionRecord, style: Style) -> str:
    """What of a completion counts, with the bracket, tag and fence closed that it leaves open.

    Reading may stop at a message's last brace, and a model may end there: what would have closed
    the message was never written. It is added only where the reader takes it for the end of that
    message, so reading the text again gives the same messages. A text without a message, and one
    that broke off inside one, stay as they are.
    """
    reason, rules = completion.finish_reason or "stop", ReadingRules(style=style)

    def is_whole(text: str) -> bool:
        reading = read(text, reason, rules)
        return bool(reading.messages) and not reading.bare_text and reading.counted == text

    text = completion.counted
    for closer in _closers(completion, style):
        if text.endswith(closer.strip()):
            continue
        # An array is no message before its end; all else only goes around a message.
        if is_whole(text + closer) and (closer == "]" or is_whole(text)):
            text += closer
    return text


def _closers(completion: CompletionRecord, style: Style) -> Iterator[str]:
    """What may be missing, the innermost first."""
    text = completion.counted
    more = not completion.text.endswith(text.removeprefix(completion.prefix))
    # Where the model itself ended within an array, reading says what that means (rule 7).
    if (completion.closed_early or more) and _ARRAY.search(text):
        yield "]"
    for tag, closing in _CLOSING.items():
        if tag in text and (tag == "<tool_call>" or style == "xml"):
            yield closing
    if "```" in text or "~~~" in text:
        fences = [match[1] for match in _STRING_OR_FENCE.finditer(text) if match[1]]
        yield from (f"\n{fence}" for fence in fences[-1:])


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
