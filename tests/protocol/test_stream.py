"""The reader fed piece by piece: the same result, deltas, and when it is done."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import FinalAnswer, FinishReason, ToolCall
from mlx_tools.protocol import (
    AnswerDelta,
    ArgumentsDelta,
    CallStarted,
    Delta,
    Reader,
    Reading,
    ReadingRules,
    Style,
    find_call_keys,
    read,
    write_answer,
    write_call,
)
from tests.protocol.texts import (
    ANSWER,
    CALL,
    OBSERVATION,
    OTHER_CALL,
    REASONS,
    arguments,
    mixtures,
    one_line,
    rules,
    streamed,
)

STYLES: tuple[Style, ...] = ("jsonl", "markdown-json", "xml")


def fed(
    pieces: list[str], reason: FinishReason = "stop", given_rules: ReadingRules | None = None
) -> tuple[Reading, list[Delta]]:
    reader = Reader(given_rules or ReadingRules())
    deltas = list(itertools.chain.from_iterable(reader.feed(piece) for piece in pieces))
    return reader.finish(reason), deltas


def answer_of(deltas: list[Delta]) -> str:
    return "".join(d.text for d in deltas if isinstance(d, AnswerDelta))


def arguments_of(deltas: list[Delta], index: int) -> str:
    return "".join(d.text for d in deltas if isinstance(d, ArgumentsDelta) and d.index == index)


@given(mixtures(), rules(), REASONS, st.data())
def test_a_text_is_read_the_same_however_it_is_split(
    text: str, given_rules: ReadingRules, reason: FinishReason, data: st.DataObject
) -> None:
    whole = read(text, reason, given_rules)
    assert fed(list(text), reason, given_rules)[0] == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    assert fed(pieces, reason, given_rules)[0] == whole


TOOLCALL = '<TOOLCALL>[{"name": "g", "arguments": {}}]</TOOLCALL>'


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        # A lone backtick is over with its line, and so is a fence with the thought it began in.
        ("a `b\nc<|im_end|>d", (FinalAnswer("a `b\nc"),)),
        *(
            (before + TOOLCALL, (ToolCall("g", {}, None, ("dialect",)),))
            for before in ("", "```json so\n</think>\n", "`so</think>\n")
        ),
        # A mark may be text.
        ('<s>x{"ty{"name": "h"} =-', (FinalAnswer('<s>x{"ty{"name": "h"} =-'),)),
    ],
)
def test_marks_mean_the_same_however_the_text_is_split(text: str, messages: Any) -> None:
    rules = ReadingRules(catalog={"g": {}})
    assert read(text, "stop", rules).messages == messages
    assert streamed(text, rules) == read(text, "stop", rules)


@pytest.mark.parametrize("shown", ["x", " x ", TOOLCALL, f" {TOOLCALL} "])
def test_code_of_three_ticks_or_more_is_closed_by_as_many_or_more(shown: str) -> None:
    rules = ReadingRules(catalog={"g": {}})
    for opening, closing, closes in (
        *((3, 3, True), (3, 4, True), (3, 7, True), (4, 5, True), (4, 4, True)),
        *((4, 3, False), (9, 8, False), (1, 1, True), (2, 2, True)),
    ):
        text = f"So {'`' * opening}{shown}{'`' * closing} and\n{TOOLCALL}"
        reading = read(text, "stop", rules)
        called = [message for message in reading.messages if isinstance(message, ToolCall)]
        assert len(called) == closes, text
        assert streamed(text, rules) == reading


@pytest.mark.parametrize("text", [CALL, ANSWER, f"{CALL}</think>{ANSWER}"])
@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
@pytest.mark.parametrize("more", [{}, {"in_thought": True}, {"prefix": '{"type":"'}])
def test_a_whole_text_is_read_as_its_letters_are(text: str, reason: Any, more: Any) -> None:
    """A message that is alone is read by a shorter way, where there is nothing else to know."""
    rules = ReadingRules(**more)
    assert read(text, reason, rules) == fed([*text], reason, rules)[0]


EMPTY_COMMENTS = '{"type":"tool_call", //\n"name":"f", #\n"arguments":{"x": //\n12}}'


def test_empty_comments_read_alike_however_the_text_is_split() -> None:
    reading, deltas = fed(list(EMPTY_COMMENTS))
    assert reading == read(EMPTY_COMMENTS) and reading.error is None
    assert reading.messages[0].arguments == {"x": 12}
    assert all(delta.text for delta in deltas if isinstance(delta, ArgumentsDelta))
    assert find_call_keys(f"seen: {EMPTY_COMMENTS} on a page")
    reader = Reader(ReadingRules(max_calls=1))
    reader.feed(EMPTY_COMMENTS)
    assert reader.done


@given(mixtures(), rules(), REASONS)
def test_reading_never_raises_and_gives_text_that_can_be_written(
    text: str, given_rules: ReadingRules, reason: FinishReason
) -> None:
    reading = read(text, reason, given_rules)
    assert bool(reading.messages) or reading.error is not None
    for part in (reading.retained_text, reading.commentary, reading.reasoning, *reading.dropped):
        part.encode()
    for message in reading.messages:
        if isinstance(message, ToolCall):
            message.name.encode()
            one_line(message.arguments).encode()
        else:
            message.content.encode()


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.sampled_from(STYLES), st.data())
def test_answer_deltas_join_to_the_content(content: str, style: Style, data: st.DataObject) -> None:
    text = write_answer(content, style)
    size = data.draw(st.integers(1, 5))
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    reading, deltas = fed(pieces, "stop", ReadingRules(style=style))
    assert reading.messages == (FinalAnswer(content),)
    assert answer_of(deltas) == content


def test_escaped_characters_come_whole() -> None:
    text = '{"type":"final_answer","content":"a\\u00e9\\ud83d\\ude00\\n\\"b"}'
    _, deltas = fed(list(text))
    assert [d.text for d in deltas if isinstance(d, AnswerDelta)] == list('aé😀\n"b')


@given(arguments, st.sampled_from(STYLES), st.integers(1, 6))
def test_argument_deltas_join_to_what_was_written(
    given_arguments: dict[str, object], style: Style, size: int
) -> None:
    text = "\n".join(write_call("t", given_arguments, style=style) for _ in range(2))
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    reading, deltas = fed(pieces, "stop", ReadingRules(style=style))
    assert [m.arguments for m in reading.messages if isinstance(m, ToolCall)] == (
        [given_arguments] * 2
    )
    assert [d for d in deltas if isinstance(d, CallStarted)] == [
        CallStarted(0, "t"),
        CallStarted(1, "t"),
    ]
    for index in (0, 1):
        raw = arguments_of(deltas, index)
        assert raw in text
        assert read(f'{{"type":"tool_call","name":"t","arguments":{raw}}}').messages == (
            ToolCall("t", given_arguments),
        )


@pytest.mark.parametrize(
    ("prefix", "text", "started"),
    [
        ("", '{"arguments":{"a":1},"name":"t","type":"tool_call"}', [CallStarted(0, "t")]),
        ("", '{"type":"tool_call","arguments":{"a":1},"name":"t"}', [CallStarted(0, "t")]),
        ('{"type":"tool_call","name":"t","arguments":{', '"a":1}}', [CallStarted(0, "t")]),
        ('{"type":"final_answer","content":"', '{"a":1}"}', []),
    ],
)
def test_deltas_wait_for_what_they_belong_to_and_go_on_from_the_prefix(
    prefix: str, text: str, started: list[Delta]
) -> None:
    text = text if started else text.replace('{"a":1}', '{\\"a\\":1}')
    _, deltas = fed(list(text), "stop", ReadingRules(prefix=prefix))
    assert [delta for delta in deltas if isinstance(delta, CallStarted)] == started
    assert (arguments_of(deltas, 0) or answer_of(deltas)) == '{"a":1}'


def test_a_quoted_answer_that_is_not_the_message_is_not_shown() -> None:
    text = 'Write {"type":"final_answer","content":"no" oops}, I was told.\n' + ANSWER
    reading, deltas = fed(list(text))
    assert reading.messages == (FinalAnswer("17 times 23 is 391."),)
    assert answer_of(deltas) == "17 times 23 is 391."


def joined(deltas: list[Delta]) -> list[Delta]:
    """The deltas with those that go on from one another as one."""
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        if isinstance(delta, AnswerDelta) and isinstance(last, AnswerDelta):
            out[-1] = AnswerDelta(last.text + delta.text)
        elif isinstance(delta, ArgumentsDelta) and isinstance(last, ArgumentsDelta):
            assert last.index == delta.index
            out[-1] = ArgumentsDelta(delta.index, last.text + delta.text)
        else:
            out.append(delta)
    return out


@given(mixtures(), rules())
def test_deltas_of_sound_messages_do_not_depend_on_the_pieces(
    text: str, given_rules: ReadingRules
) -> None:
    reading, deltas = fed([text], "stop", given_rules)
    sound = reading.error is None and not reading.bare_text
    if sound and not any(message.repairs for message in reading.messages):
        assert joined(deltas) == joined(fed(list(text), "stop", given_rules)[1])


# --- done -------------------------------------------------------------------------------------


def done_after(text: str, given_rules: ReadingRules | None = None) -> str:
    """The text that had been fed when the reader said that it was done."""
    reader = Reader(given_rules or ReadingRules())
    for at, char in enumerate(text):
        reader.feed(char)
        if reader.done:
            return text[: at + 1]
    return "(not done)"


@pytest.mark.parametrize(
    ("text", "rest", "given_rules"),
    [
        (f"Well.\n{ANSWER}", "\nmore", ReadingRules()),
        ("<final_answer>391</final_answer>", "\nmore", ReadingRules(style="xml")),
        (CALL, f"\n{CALL}", ReadingRules(max_calls=1)),
        (f"{CALL}\n{OTHER_CALL}", f"\n{CALL}", ReadingRules(max_calls=2)),
        # Also where a bracket may begin another form of a call:
        (f"[{CALL}", "]", ReadingRules(max_calls=1, catalog={"calculator": {}})),
        # A forged observation, and an answer, as soon as the type is there:
        (CALL + '\n{"type":"tool_observation"', OBSERVATION[26:], ReadingRules()),
        (CALL + '\n{"type":"final_answer"', ANSWER[22:], ReadingRules()),
        # An error, where it is found:
        ('{"type":"tool_call",oops}', " or so", ReadingRules()),
        ('{"type":"tool_call";', '"name":1}', ReadingRules()),
    ],
)
def test_reading_is_done_as_soon_as_nothing_that_follows_can_count(
    text: str, rest: str, given_rules: ReadingRules
) -> None:
    assert done_after(text + rest, given_rules) == text


@pytest.mark.parametrize("after", ["So", "}", "- ", "\u2028", "\x85", "* ", "(", "<p>", "[{", "`x"])
def test_a_run_of_calls_is_done_at_what_cannot_stand_between_calls(after: str) -> None:
    text = done_after(CALL + "\n" + after + " and so on")
    assert text.startswith(CALL + "\n")
    assert len(text) <= len(CALL) + 1 + len(after)


@pytest.mark.parametrize(
    "after", ["", "\n", " ,\n", "\n```\n", "</tool_call>\n", "\n~~~\n", "\r\n"]
)
def test_a_run_of_calls_is_not_done_while_another_call_may_come(after: str) -> None:
    assert done_after(CALL + after) == "(not done)"
    assert len(read(CALL + after + CALL).messages) == 2


@given(mixtures(), rules())
def test_what_comes_after_done_changes_nothing_but_what_was_dropped(
    text: str, given_rules: ReadingRules
) -> None:
    reader = Reader(given_rules)
    for at, char in enumerate(text):
        reader.feed(char)
        if reader.done:
            early = reader.finish()
            late = read(text, "stop", given_rules)
            if early.error is None or early.messages:
                assert (late.messages, late.error) == (early.messages, early.error), at
            assert late.commentary == early.commentary
            assert late.reasoning == early.reasoning
            break
