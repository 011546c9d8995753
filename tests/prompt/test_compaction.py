"""The parts that leave a prompt that grows too large, and what stands there then."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlx_tools.prompt import (
    Cut,
    Placeholders,
    Prompt,
    compact_prompt,
    conversation_text,
    count_turns,
    cut_all_turns,
    cut_to_fit,
    cut_to_sum_up,
    may_leave,
)
from mlx_tools.prompt.neutralise import KNOWN_TOKENS
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    ObservationRecord,
    Record,
    UserRecord,
)
from tests.prompt.conversations import WORDS, fold_records, list_formats
from tests.prompt.transcripts import CONTENT, ORIGINS, STYLES, Step, texts_of, transcripts
from tests.prompt.transcripts import opened as begun


def prompt_of(*records: Record, style: str = "jsonl") -> Prompt:
    return fold_records(*records, style=style, system="Be good.")


def asked(text: str) -> UserRecord:
    return UserRecord(content=text)


def looked(number: int, seen: str) -> list[Record]:
    """A turn that makes a call, and what is seen of it."""
    call = f'{{"type":"tool_call","name":"look","arguments":{{"x":{number}}}}}'
    return [
        CompletionRecord(turn=number, text=call, retained_text=call),
        CallRecord(turn=number, call=f"c{number}", name="look", arguments={"x": number}),
        ObservationRecord(call=f"c{number}", name="look", content=seen),
    ]


def answered(number: int, text: str) -> list[Record]:
    said = f'{{"type":"final_answer","content":"{text}"}}'
    return [
        CompletionRecord(turn=number, text=said, retained_text=said),
        AnswerRecord(turn=number, content=text),
    ]


def stand(*, readable: bool = True) -> Placeholders:
    return Placeholders(WORDS, readable)


def render(prompt: Prompt) -> str:
    return prompt.render()


def cut(prompt: Prompt, size: int, limit: int | None = None, *, readable: bool = True) -> Any:
    """The cut where a token is a character."""
    how = stand(readable=readable)
    return cut_to_fit(prompt, how, render, len, size=size, limit=size if limit is None else limit)


# --- the prompt ---


def test_a_question_that_is_being_answered_stays() -> None:
    gone = CompactedRecord(reason="full", removed=4, turns=1, content="[gone]")
    text = prompt_of(asked("Why?"), *looked(1, "old news"), *looked(2, "news"), gone).render()
    assert "<|im_start|>user\n[gone]\nWhy?<|im_end|>" in text
    assert "old news" not in text and "news" in text


@st.composite
def compacted_runs(draw: Any) -> tuple[str, list[Step]]:
    """A style, and a conversation in which turns and observations leave now and then."""
    style = draw(st.sampled_from(STYLES))
    prompt, steps = prompt_of(style=style), []
    for step in draw(transcripts(style)):
        records = []
        for record in step.records:
            prompt.add(record)
            records.append(record)
        if step.prefix is not None and draw(st.integers(0, 2)) == 0:
            gone = draw(st.integers(0, len(prompt.records)))
            calls = [r.call for r in prompt.records if isinstance(r, ObservationRecord)]
            if may_leave(prompt, gone, answering=True):
                record = CompactedRecord(
                    reason="full",
                    removed=gone,
                    content=draw(CONTENT),
                    observations=draw(st.dictionaries(st.sampled_from(calls), CONTENT))
                    if calls
                    else {},
                )
                prompt.add(record)
                records.append(record)
        steps.append(Step(tuple(records), step.prefix))
    return style, steps


@given(run=compacted_runs())
def test_the_bytes_only_grow_but_where_it_is_recorded(run: tuple[str, list[Step]]) -> None:
    style, steps = run
    prompt, before, seen = prompt_of(style=style), "", list[Record]()
    for step in steps:
        for record in step.records:
            prompt.add(record)
            seen.append(record)
        if step.prefix is None:
            continue
        text = prompt.render(step.prefix)
        broken = any(isinstance(record, CompactedRecord) for record in step.records)
        assert broken or text.startswith(before)
        assert text.startswith("<|im_start|>system\nBe good.<|im_end|>\n")
        before = text
        again = prompt_of(*seen, style=style)
        assert again.render(step.prefix) == text  # folding anew gives the same
        roles = [part.partition("\n")[0] for part in text.split("<|im_start|>")[1:]]
        assert {*roles[1::2]} == {"user"} and {*roles[2::2]} == {"assistant"}
        control = [token for token in KNOWN_TOKENS if token in text]
        assert {*control} <= {"<|im_start|>", "<|im_end|>"} or style == "xml"


@st.composite
def runs(draw: Any) -> tuple[str, str, str | int, list[Step]]:
    """A format's name, a style, how much is thought, and a conversation in that style."""
    style = draw(st.sampled_from(STYLES))
    name = draw(st.sampled_from(sorted(list_formats())))
    return name, style, draw(st.sampled_from(("off", "auto", 200))), draw(transcripts(style))


@given(run=runs(), text=CONTENT)
def test_the_prompt_of_a_turn_is_a_prefix_of_the_next_in_every_format(
    run: tuple[str, str, str | int, list[Step]], text: str
) -> None:
    name, style, reasoning, steps = run
    hostile = texts_of(**dict.fromkeys(ORIGINS, text))
    prompt = begun(list_formats()[name], style, hostile, reasoning=reasoning)
    again = begun(list_formats()[name], style, hostile, reasoning=reasoning)
    before = ""
    for step in (*steps, Step((asked("and then?"),), "")):
        for record in step.records:
            prompt.add(record)
            again.add(record)
        if step.prefix is not None:
            text = prompt.render(step.prefix)
            assert text.startswith(before)
            before = text
    assert again.render() == before  # folded without a prompt in between
    before.encode("utf-8")


# --- what leaves ---


def test_the_oldest_observations_leave_first_and_many_at_once() -> None:
    looks = [looked(n, f"{n}" * 400) for n in range(1, 9)]
    prompt = prompt_of(asked("Why?"), *itertools.chain(*looks))
    size = len(prompt.render()) - 1
    found = cut(prompt, size)
    assert found.removed == 0
    assert found.calls == tuple(f"c{n}" for n in range(1, len(found.calls) + 1))
    assert len(found.calls) > 1
    left = compact_prompt(prompt, stand().record(found)).render()
    assert len(left) <= size * 3 // 4


def test_turns_leave_when_no_observation_is_left_to_go() -> None:
    talk = [[asked(f"Question {n}? " + "why " * 60), *answered(n, "so " * 60)] for n in range(1, 9)]
    prompt = prompt_of(*itertools.chain(*talk), asked("Last?"))
    found = cut(prompt, len(prompt.render()) - 1)
    assert found.calls == () and found.removed % 3 == 0 and found.removed
    text = compact_prompt(prompt, stand().record(found)).render()
    assert "Question 1?" not in text and "Last?" in text


def test_what_the_model_has_not_seen_leaves_last_and_only_where_it_can_read_it() -> None:
    prompt = prompt_of(asked("Why?"), *looked(1, "a" * 2000))
    assert cut(prompt, 800) == Cut(("c1",), 0)
    assert cut(prompt, 800, readable=False) is None


def test_a_question_that_is_too_long_by_itself_cannot_be_made_to_fit() -> None:
    assert cut(prompt_of(asked("x" * 1000)), 500) is None
    talk = [asked("Hi"), *answered(1, "Hello."), asked("x" * 1000)]
    assert cut(prompt_of(*talk), 500) is None


def in_some_style(style: str) -> st.SearchStrategy[tuple[str, list[Step]]]:
    return st.tuples(st.just(style), transcripts(style))


@given(run=st.sampled_from(STYLES).flatmap(in_some_style), share=st.floats(0.1, 1))
def test_what_is_left_fits_or_nothing_could(run: Any, share: float) -> None:
    style, steps = run
    records = itertools.chain(*(step.records for step in steps))
    prompt = prompt_of(*records, asked("And then?"), style=style)
    whole = prompt.render()
    size = int(share * len(whole))
    how = stand()
    found = cut_to_fit(prompt, how, render, len, size=size, limit=size - 10)
    if found is not None:
        assert may_leave(prompt, found.removed, answering=True)
        assert len(compact_prompt(prompt, how.record(found)).render()) <= size - 10
        return
    least = prompt_of(asked("And then?"), style=style)
    assume(len(prompt.records) > 1)
    assert len(least.render()) + len(how.record(Cut(removed=1)).content) + 1 > size - 10


def test_turns_are_summed_up_until_the_rest_takes_half() -> None:
    talk = [[asked(f"{n}" * 200), *answered(n, "so")] for n in range(1, 9)]
    prompt = prompt_of(*itertools.chain(*talk), asked("Last?"))
    size = len(prompt.render())
    found = cut_to_sum_up(prompt, stand(), render, len, size=size)
    assert found is not None
    left = compact_prompt(prompt, stand().record(found)).render()
    assert len(left) <= size // 2
    one_less = stand().record(Cut(removed=found.removed - 3))
    assert len(compact_prompt(prompt, one_less).render()) > size // 2
    assert cut_to_sum_up(prompt_of(asked("Hi")), stand(), render, len, size=10) is None


def test_at_rest_all_but_the_last_question_is_summed_up() -> None:
    assert cut_all_turns(prompt_of()) is None
    one = prompt_of(asked("First?"), *answered(1, "One."))
    assert cut_all_turns(one) == Cut(removed=3)
    two = prompt_of(asked("First?"), *answered(1, "One."), asked("Second?"), *answered(2, "Two."))
    assert cut_all_turns(two) == Cut(removed=3)
    assert count_turns(two, 3) == 1


def test_what_leaves_is_retold_with_what_had_left_before() -> None:
    prompt = prompt_of(
        asked("First?"), *looked(1, "rain"), *answered(2, "It rains."), asked("Next?")
    )
    text = conversation_text(prompt, 6, WORDS)
    assert [line.partition(":")[0] for line in text.split("\n\n")] == [
        "User",
        "Assistant",
        "look",
        "Assistant",
    ]
    assert "rain" in text and "Next?" not in text
    prompt.add(CompactedRecord(reason="asked", removed=6, content="[summed up]"))
    assert conversation_text(prompt, 1, WORDS).startswith("[summed up]\n\nUser: Next?")


@pytest.mark.parametrize("gone", [1, 2, 4])
def test_only_whole_turns_leave(gone: int) -> None:
    prompt = prompt_of(asked("First?"), *answered(1, "One."), asked("Second?"))
    assert not may_leave(prompt, gone, answering=True)
    assert may_leave(prompt, 3, answering=True)
