"""What a model wrote, made fit to stand in the prompt again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from mlx_tools.messages import ToolCall
from mlx_tools.prompt.neutralise import Neutraliser
from mlx_tools.prompt.tool_format import ToolFormat
from mlx_tools.protocol.reading import ReadingRules, Style
from mlx_tools.protocol.stream import read
from mlx_tools.transcript.records import CompletionRecord

_OPENING: Final = re.compile(r"<tool_call>(?=\s*\{)|<final_answer>")
_STRING_OR_END: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|</tool_call>', re.DOTALL)
_CLOSING: Final = {"<tool_call>": "</tool_call>", "<final_answer>": "</final_answer>"}
_ARRAY: Final = re.compile(r"\[[ \t\r\n]*\{")
_STRING_OR_FENCE: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"?|(`{3,16}|~{3,16})')


def closed(completion: CompletionRecord, style: Style, native: ToolFormat | None = None) -> str:
    """What of a completion counts, with the bracket, tag and fence closed that it leaves open.

    Reading may stop at a message's last brace, and a model may end there: what would have closed
    the message was never written. It is added only where the reader takes it for the end of that
    message, so reading the text again gives the same messages. A text without a message, and one
    that broke off inside one, stay as they are.
    """
    reason, rules = completion.finish_reason or "stop", _rules(style, native)

    def is_whole(text: str) -> bool:
        reading = read(text, reason, rules)
        return bool(reading.messages) and not reading.bare_text and reading.counted == text

    text = completion.counted
    own = () if native is None or not rules.catalog else _ways_to_close(native.close)
    for closer in (*own, *_closers(completion, style)):
        if text.endswith(closer.strip()):
            continue
        # An array is no message before its end; all else only goes around a message.
        if is_whole(text + closer) and (closer[:1] == "]" or is_whole(text)):
            text += closer
    return text


def _rules(style: Style, native: ToolFormat | None) -> ReadingRules:
    """How a text is read of which it does not matter which tools there are."""
    if style != "native" or native is None or not native.marks:
        return ReadingRules(style=style)
    return ReadingRules(style=style, catalog={"": {}}, native=frozenset(native.marks[:1]))


def _ways_to_close(close: str) -> Iterator[str]:
    """What closes a call in the model's own form: all of it, or its mark alone."""
    yield from dict.fromkeys(filter(None, (close, close.lstrip())))


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


def neutral_speech(
    text: str, style: str, neutraliser: Neutraliser, native: ToolFormat | None = None
) -> str:
    """A model's own text with its control tokens broken, in JSON strings by an escape.

    In the style ``xml`` the protocol's own tags stay where they have their place: around a call's
    object, and around the answer. In the style ``native`` the marks of the template's own form of
    calls stay where they are a call's.
    """
    if style == "native" and native is not None:
        return _native_speech(text, neutraliser, native)
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


# --- the style native ---------------------------------------------------------------------------

_PARAMETER: Final = r"(?:\w+:)?(?:parameter|param|(?:longcat_)?arg_(?:key|value))"
_VALUE: Final = re.compile(rf"(<{_PARAMETER}\b[^>\n]*>)(.*?)(</{_PARAMETER}>)", re.DOTALL)
"""A value in a tag of its own."""

_MOST_MARKS: Final = 64
"""So many places are tried for the mark that opens a run of calls."""


def _native_speech(text: str, neutraliser: Neutraliser, native: ToolFormat) -> str:
    """A model's text in its own form: the marks of its calls stay, nothing else does."""
    rules, family = _rules("native", native), native.family
    if family is None or family.open not in text:
        return neutraliser.in_mixed(text)
    calls = _calls(text, rules)
    starts = [found.start() for found in re.finditer(re.escape(family.open), text)]
    for begin in reversed(starts[-_MOST_MARKS:]):  # what opens it without need is no call's
        if calls and _calls(text[begin:], rules) == calls:
            run = _neutral_run(text[begin:], neutraliser, native, calls)
            if run is not None and len(_calls(run, rules)) == len(calls):
                return neutraliser.in_mixed(text[:begin]) + run
            break
    return neutraliser.in_mixed(text)


def _calls(text: str, rules: ReadingRules) -> list[ToolCall]:
    """The calls that a text is read as, none where it is read as anything else."""
    reading = read(text, "stop", rules)
    calls = [replace(one, repairs=()) for one in reading.messages if isinstance(one, ToolCall)]
    return calls if reading.error is None else []


def _neutral_run(
    run: str, neutraliser: Neutraliser, native: ToolFormat, calls: list[ToolCall]
) -> str | None:
    """A run of calls whose marks stay; None where a mark may stand in a value too."""
    family = native.family
    assert family is not None
    marks = "|".join(map(re.escape, sorted(native.marks, key=len, reverse=True)))
    if family.body in ("json", "named_json"):
        parts: list[str] = []
        done = 0
        string, mark = r'"(?:[^"\\]|\\.)*"?', rf"(?P<mark>{marks})(?!\s*(?P=mark))"
        for found in re.finditer(f"{string}|{mark}", run, re.DOTALL):
            if found["mark"]:
                parts += (neutraliser.in_json(run[done : found.start()]), found["mark"])
                done = found.end()
        return "".join((*parts, neutraliser.in_json(run[done:])))
    if family.body in ("xml", "pairs"):
        run = _VALUE.sub(lambda one: one[1] + neutraliser.plain(one[2]) + one[3], run)
    else:
        for value in sorted(filter(neutraliser.found, _texts(calls)), key=len, reverse=True):
            if value not in run:
                return None
            run = run.replace(value, neutraliser.plain(value))
    pieces = re.split(f"({marks})", run)
    return "".join(
        part if number % 2 else neutraliser.in_mixed(part) for number, part in enumerate(pieces)
    )


def _texts(value: Any) -> Iterator[str]:
    """Every text in calls' names, ids and arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, ToolCall):
        yield from _texts([value.name, value.id, value.arguments])
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
