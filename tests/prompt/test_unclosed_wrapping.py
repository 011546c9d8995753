"""What closes a message and was never written: the prompt writes it, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ErrorInfo, FinalAnswer, Message, replace
from mlx_tools.prompt import NAMED_FORMATS, Neutraliser, Prompt
from mlx_tools.prompt.render import closed
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
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    ObservationRecord,
    UserRecord,
)
from tests.prompt.conversations import prompt_for
from tests.prompt.transcripts import CONTENT, STYLES

CHATML = NAMED_FORMATS["chatml"]
NEUTRALISER = Neutraliser(CHATML.control_tokens)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


@dataclass(frozen=True)
class Spoken:
    """A completion that is streamed, closed where its reading is done, and how it was read."""

    style: str
    record: CompletionRecord
    reading: Reading


def spoken(
    style: str, whole: str, *, prefix: str = "", size: int = 1, most: int | None = None
) -> Spoken:
    """``whole`` in pieces of ``size`` characters, of which ``prefix`` was the host's."""
    rules = ReadingRules(style=cast(Any, style), prefix=prefix, max_calls=most)
    reader, text, come = Reader(rules), whole.removeprefix(prefix), 0
    while come < len(text) and not reader.done:
        reader.feed(text[come : come + size])
        come += size
    reading = reader.finish("stop")
    record = CompletionRecord(
        turn=1,
        prefix=prefix,
        text=text[:come],
        counted=reading.counted,
        finish_reason="stop",
        closed_early=come < len(text),
        dropped=reading.dropped,
    )
    return Spoken(style, record, reading)


def turn_of(said: Spoken) -> tuple[str, str, str]:
    """The prompt that asked, the prompt that follows, and the model's turn as it stands there."""
    prompt = prompt_for(CHATML, style=said.style)
    prompt.add(UserRecord(content="?"))
    asked = prompt.render(said.record.prefix)
    following = folded(prompt, said).render()
    turns = following.split("<|im_start|>assistant\n")
    return asked, following, turns[1].partition("<|im_end|>")[0]


def folded(prompt: Prompt, said: Spoken) -> Prompt:
    """The prompt with the completion and what follows of it."""
    prompt.add(said.record)
    for number, message in enumerate(said.reading.messages):
        if isinstance(message, FinalAnswer):
            prompt.add(AnswerRecord(turn=1, content=message.content))
            prompt.add(UserRecord(content="!"))
        else:
            key, name, given_id = f"c{number}", message.name, message.id
            prompt.add(
                CallRecord(turn=1, call=key, name=name, arguments=message.arguments, id=given_id)
            )
            prompt.add(ObservationRecord(call=key, name=name, id=given_id, content="seen"))
    if not said.reading.messages:
        prompt.add(CorrectionRecord(turn=1, error=ErrorInfo("truncated_output", "cut off")))
    return prompt


def meaning(messages: tuple[Message, ...]) -> list[Any]:
    """What messages say, repairs and broken control tokens aside."""
    return [
        NEUTRALISER.restore(m.content) if isinstance(m, FinalAnswer) else (m.name, m.arguments)
        for m in messages
    ]


def unbalanced(turn: str) -> list[str]:
    """What is opened outside of JSON strings and not closed as often."""
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
VALUES = st.dictionaries(
    st.sampled_from(["a", "b", "path"]),
    st.one_of(TEXT, st.integers(), st.lists(st.dictionaries(st.just("k"), TEXT, max_size=1))),
    max_size=2,
)


@st.composite
def completions(draw: Any) -> Spoken:
    """Calls or an answer in a style, in whatever stands around them, cut where reading stops, or
    ended by the model right after its last brace."""
    style = draw(st.sampled_from(STYLES))
    size = draw(st.integers(1, 9))
    if draw(st.booleans()):
        plain = draw(st.sampled_from(["17 times 23 is 391.", "a `b` c", "no < tag"]))
        content = plain if style == "xml" else draw(TEXT)
        whole = draw(PROSE) + draw(_wrapped([write_answer(content, style)], style))
        return spoken(style, draw(_ended(whole)), size=size)
    calls = [write_call("look", draw(VALUES), style=style) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        prefix = forcing_prefix(style, "look")
        return spoken(style, draw(_ended(calls[0])), prefix=prefix, size=size, most=1)
    whole = draw(PROSE) + draw(_wrapped(calls, style))
    return spoken(style, draw(_ended(whole)), size=size, most=draw(st.integers(1, 4)))


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


@given(said=completions())
def test_what_a_message_leaves_open_is_closed_and_is_read_as_it_was(said: Spoken) -> None:
    assert said.reading.messages
    asked, following, turn = turn_of(said)
    # The bytes only grow: what was asked, then what the model wrote, then what closes it.
    assert following.startswith(asked)
    assert closed(said.record, cast(Any, said.style)).startswith(said.record.counted)
    assert unbalanced(turn) == []
    again = read(turn, "stop", ReadingRules(style=cast(Any, said.style)))
    assert meaning(again.messages) == meaning(said.reading.messages)
    # Nothing is left to close, and folding again gives the same bytes.
    assert closed(replace(said.record, counted=turn), cast(Any, said.style)) == turn
    assert turn_of(said) == (asked, following, turn)


@given(said=completions(), cut=st.integers(1, 60), reason=st.sampled_from(["stop", "length"]))
def test_a_prompt_grows_whatever_its_completion_leaves_open(
    said: Spoken, cut: int, reason: Any
) -> None:
    text = said.record.text[:-cut]
    rules = ReadingRules(style=cast(Any, said.style), prefix=said.record.prefix)
    reading = read(text, reason, rules)
    record = replace(
        said.record,
        text=text,
        counted=reading.counted,
        finish_reason=reason,
        closed_early=False,  # it is cut off, not left
    )
    broken = Spoken(said.style, replace(record, dropped=reading.dropped), reading)
    asked, following, _ = turn_of(broken)
    assert following.startswith(asked)
    kept = closed(broken.record, cast(Any, said.style))
    assert kept.startswith(reading.counted)
    if not reading.messages or reading.bare_text:
        assert kept == reading.counted


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
    said = spoken(style, whole)
    assert closed(said.record, cast(Any, style)) == said.record.counted
