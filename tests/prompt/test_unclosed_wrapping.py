"""Closing marks that the model never wrote: the prompt writes them, and nothing else."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import Message, replace
from mlx_tools.prompt.render import close_completion
from mlx_tools.protocol import (
    Reader,
    Reading,
    ReadingRules,
    forcing_prefix,
    read,
    write_answer,
    write_call,
)
from mlx_tools.transcript.records import (
    CompletionRecord,
)
from tests.prompt.transcripts import CONTENT, STYLES

Messages = tuple[Message, ...]
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def spoken(
    style: Any, whole: str, *, prefix: str = "", size: int = 1, most: int | None = None
) -> tuple[CompletionRecord, Messages]:
    """``whole`` in pieces of ``size`` characters up to where reading is done, and the messages that
    were read; ``prefix`` of it was the host's."""
    reader = Reader(ReadingRules(style=style, prefix=prefix, max_calls=most))
    text, come = whole.removeprefix(prefix), 0
    while come < len(text) and not reader.done:
        reader.feed(text[come : come + size])
        come += size
    reading = reader.finish("stop")
    record = CompletionRecord(
        turn=1,
        prefix=prefix,
        text=text[:come],
        retained_text=reading.retained_text,
        finish_reason="stop",
        closed_early=come < len(text),
    )
    return record, without_repairs(reading)


def without_repairs(reading: Reading) -> Messages:
    """The messages of a reading, whatever had to be mended in them."""
    return tuple(replace(message, repairs=()) for message in reading.messages)


def unbalanced(turn: str) -> list[str]:
    """The marks that are opened outside of JSON strings and not closed as often."""
    bare = STRING.sub('""', turn)
    pairs = (("[", "]"), ("{", "}"), ("<tool_call>", "</tool_call>"))
    odd = [
        a
        for a, b in (*pairs, ("<final_answer>", "</final_answer>"))
        if bare.count(a) != bare.count(b)
    ]
    return odd + [fence for fence in ("```", "~~~") if bare.count(fence) % 2]


# Prose that is balanced, so that what is out of balance is the wrapping's.
PROSE = st.sampled_from(["", "", "Let me see.\n", 'I say "so":\n', "An aside.\n\n"])
TEXT = CONTENT.map(lambda text: re.sub("[\ud800-\udfff]", "", text))
# A call with a backspace or a form feed is not read: a path or a formula is more likely meant.
VALUE = TEXT.map(lambda text: re.sub("[\b\f]", "", text))
VALUES = st.dictionaries(
    st.sampled_from(["a", "b", "path"]),
    st.one_of(VALUE, st.integers(), st.lists(st.dictionaries(st.just("k"), VALUE, max_size=1))),
    max_size=2,
)


@st.composite
def completions(draw: Any) -> tuple[Any, CompletionRecord, Messages]:
    """Calls or an answer in a style, in whatever stands around them, cut where reading stops, or
    ended by the model right after its last brace; and the messages that were read."""
    style = draw(st.sampled_from(STYLES))
    size = draw(st.integers(1, 9))
    if draw(st.booleans()):
        plain = draw(st.sampled_from(["17 times 23 is 391.", "a `b` c", "no < tag"]))
        content = plain if style == "xml" else draw(TEXT)
        whole = draw(PROSE) + draw(_wrapped([write_answer(content, style)], style))
        return style, *spoken(style, draw(_ended(whole)), size=size)
    calls = [write_call("look", draw(VALUES), style=style) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        prefix = forcing_prefix(style, "look")
        return style, *spoken(style, draw(_ended(calls[0])), prefix=prefix, size=size, most=1)
    whole = draw(PROSE) + draw(_wrapped(calls, style))
    return style, *spoken(style, draw(_ended(whole)), size=size, most=draw(st.integers(1, 4)))


@st.composite
def _wrapped(draw: Any, lines: list[str], style: str) -> str:
    """Lines as the style has them, or (in jsonl) in a fence, an array, or an array in a fence."""
    text = "\n".join(lines)
    if style != "jsonl":
        return text
    fence = draw(st.sampled_from(["", "```", "~~~~", "```json"]))
    if draw(st.booleans()):
        text = "[" + ",\n".join(lines) + "]"
    return f"{fence}\n{text}\n{fence.removesuffix('json')}" if fence else text


@st.composite
def _ended(draw: Any, whole: str) -> str:
    """All of a text, or, where no array stands in it, up to what would close its last message."""
    end = re.search(r"(?:</tool_call>|</final_answer>|\n(?:```|~~~~))\Z", whole)
    cut = end is not None and "[{" not in whole and draw(st.booleans())
    return whole[: end.start()] if end is not None and cut else whole


@given(completions())
def test_what_a_message_leaves_open_is_closed_and_is_read_as_it_was(
    said: tuple[Any, CompletionRecord, Messages],
) -> None:
    style, record, messages = said
    turn = close_completion(record, style)
    assert turn.startswith(record.retained_text) and unbalanced(turn) == []
    assert messages
    assert without_repairs(read(turn, "stop", ReadingRules(style=style))) == messages
    assert (
        close_completion(replace(record, retained_text=turn), style) == turn
    )  # nothing is left to close


@given(completions(), st.integers(1, 60), st.sampled_from(["stop", "length"]))
def test_what_breaks_off_is_closed_only_behind_a_message(
    said: tuple[Any, CompletionRecord, Messages], cut: int, reason: Any
) -> None:
    style, record, _ = said
    reading = read(record.text[:-cut], reason, ReadingRules(style=style, prefix=record.prefix))
    record = replace(
        record,
        text=record.text[:-cut],
        retained_text=reading.retained_text,
        finish_reason=reason,
        closed_early=False,  # it is cut off, not left
    )
    kept = close_completion(record, style)
    assert kept.startswith(reading.retained_text)
    if not reading.messages or reading.bare_text:
        assert kept == reading.retained_text


@pytest.mark.parametrize(
    ("style", "whole"),
    [
        ("xml", '<tool_call>{"name":"look","arguments":{"a":"'),
        ("xml", '<tool_call>{"name":"look","arguments":{}'),
        ("xml", "<final_answer>It is 391.</final_answer"),
        ("markdown-json", '```json\n{"type":"tool_call","name":"look","arguments":{"a":1'),
        ("jsonl", '[{"type":"tool_call","name":"look","arguments":{}}'),
        ("jsonl", "```python\nprint(1)"),
        ("jsonl", "I would write <tool_call> here."),
    ],
)
def test_what_is_no_whole_message_stays_as_it_was_written(style: str, whole: str) -> None:
    record, _ = spoken(style, whole)
    assert close_completion(record, cast(Any, style)) == record.retained_text
