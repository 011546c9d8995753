"""A completion that repeats itself is stopped, and a text that only looks so is left whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Answered, Controller, Limits, Outcome, Policy, Stopped, tool
from mlx_tools.decoding import RepetitionWatch
from mlx_tools.decoding.repetition import MAX_PERIOD, MAX_REPEATED, is_repeated
from mlx_tools.testing import Script, ScriptedBackend, answer
from mlx_tools.transcript.records import CompletionRecord, CorrectionRecord

PERIODS = {
    1: "a",
    7: "word 12",
    60: "x" * 59 + "\n",
    199: ("".join(f"{number} " for number in range(100)) * 2)[:198] + "\n",
}


@tool(effects={"write"})
def save(path: str, content: str) -> str:
    """Save a text."""
    return f"saved {len(content)}"


def run(*texts: str, pieces: int = 5, **more: Any) -> tuple[Outcome, ScriptedBackend]:
    """Ask one question of a model that writes these texts in pieces."""
    backend = ScriptedBackend(*(Script(text, pieces=pieces) for text in texts))
    policy = Policy(allow=["save"], ask_effects=())
    return Controller(backend, [save], policy, **more).run_sync("Save it"), backend


def written(outcome: Outcome) -> list[str]:
    """The texts of the model's turns."""
    return [record.text for record in outcome.records if isinstance(record, CompletionRecord)]


def loop(period: int, characters: int = 100_000) -> str:
    return PERIODS[period] * (characters // period)


def saves(content: str) -> str:
    call = {"type": "tool_call", "name": "save", "arguments": {"path": "a", "content": content}}
    return json.dumps(call, separators=(",", ":"))


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("begun", ["Here it is: ", '{"type":"final_answer","content":"'])
def test_an_answer_that_repeats_itself_stays_as_it_was_shown_and_is_truncated(
    period: int, begun: str
) -> None:
    outcome, _ = run(begun + json.dumps(loop(period))[1:-1])
    assert isinstance(outcome, Answered)
    assert (outcome.truncated, outcome.truncated_by) == (True, "repetition")
    assert outcome.to_json()["truncated_by"] == "repetition"
    (text,) = written(outcome)
    assert MAX_REPEATED["answer"] < len(text) < MAX_REPEATED["answer"] + 1_000
    assert PERIODS[period].strip() in outcome.answer


@pytest.mark.parametrize("period", PERIODS)
def test_a_call_that_repeats_itself_is_corrected_once(period: int) -> None:
    bad = saves(loop(period))
    outcome, backend = run(bad, answer("Done."))
    assert isinstance(outcome, Answered) and not outcome.calls
    (correction,) = (r for r in outcome.records if isinstance(r, CorrectionRecord))
    assert correction.error.code == "repetition"
    assert len(written(outcome)[0]) < MAX_REPEATED["call"] + 1_000
    assert len(backend.prompts[1]) < len(backend.prompts[0]) + 2_000  # not all of the loop
    assert backend.prompts[1].startswith(backend.prompts[0])
    outcome, _ = run(bad, bad, answer("Done."))
    assert isinstance(outcome, Stopped) and outcome.reason == "repetition"


@pytest.mark.parametrize("period", PERIODS)
def test_a_thought_that_repeats_itself_is_closed_and_the_turn_goes_on(period: int) -> None:
    outcome, backend = run("<think>" + loop(period), answer("Done."))
    assert isinstance(outcome, Answered) and outcome.answer == "Done."
    assert backend.prompts[1].rstrip().endswith("</think>")
    assert len(backend.prompts[1]) < len(backend.prompts[0]) + MAX_REPEATED["thought"] + 1_000
    assert not [r for r in outcome.records if isinstance(r, CorrectionRecord)]


def test_a_thought_is_closed_once_a_turn() -> None:
    outcome, backend = run("<think>" + loop(7), "<think>" + loop(7), answer("Done."))
    assert isinstance(outcome, Answered) and outcome.answer == "Done."
    (correction,) = (r for r in outcome.records if isinstance(r, CorrectionRecord))
    assert correction.error.code == "repetition" and len(backend.requests) == 3


def test_what_was_recorded_of_a_loop_is_read_the_same_again(tmp_path: Any) -> None:
    from mlx_tools import TranscriptStore

    store = TranscriptStore(tmp_path)
    first, _ = run(saves(loop(7)), answer("Done."), store=store)
    backend = ScriptedBackend(answer("And on."))
    controller = Controller(backend, [save], Policy(allow=["save"], ask_effects=()), store=store)

    async def go_on() -> Outcome:
        async with await controller.reopen(first.session) as conversation:
            return await conversation.run("Go on")

    import anyio

    assert anyio.run(go_on).status == "answered"


@pytest.mark.parametrize("line", ["same line\n", "x = 1\n", "\n", "0, "])
def test_a_file_of_a_thousand_equal_lines_is_written_whole(line: str) -> None:
    text = line * 1_000
    outcome, _ = run(saves(text), answer("Done."))
    assert outcome.calls[0].arguments["content"] == text
    assert outcome.calls[0].status == "ok"


@pytest.mark.parametrize("times", [1, 100])
def test_a_sentence_said_a_hundred_times_is_an_answer(times: int) -> None:
    said = "I will not talk in class again, I promise it. " * times
    outcome, _ = run(answer(said))
    assert isinstance(outcome, Answered) and not outcome.truncated
    assert outcome.answer == said


def test_a_long_answer_without_a_repetition_is_left_alone() -> None:
    said = " ".join(f"Line {number} of it." for number in range(3_000))
    outcome, _ = run(answer(said), limits=Limits(max_tokens=100_000))
    assert isinstance(outcome, Answered) and outcome.answer == said and not outcome.truncated


@given(st.text(min_size=1, max_size=MAX_PERIOD), st.text(max_size=300), st.integers(400, 3_000))
def test_any_short_text_over_and_over_is_found(part: str, before: str, most: int) -> None:
    text = before + part * (2 * most // len(part) + 2)
    assert is_repeated(text, most)
    assert not is_repeated(text[:most], most)


@given(st.text("ab", max_size=2_000), st.integers(400, 800))
def test_what_is_found_repeats_a_short_text(text: str, most: int) -> None:
    tail = text[-most - 1 :]
    periods = range(1, MAX_PERIOD + 1)
    repeats = len(text) > most and any(tail[p:] == tail[:-p] for p in periods)
    assert is_repeated(text, most) == repeats


@given(st.lists(st.integers(1, 700), min_size=1, max_size=40))
def test_a_watch_finds_a_loop_however_the_text_comes(steps: list[int]) -> None:
    watch, text = RepetitionWatch(), ""
    for step in steps:
        text += "ab" * step
        found = watch.repeats(text, "answer")
        assert not found or len(text) > MAX_REPEATED["answer"]
    assert watch.repeats(text + "ab" * 4_000, "answer")


def test_a_text_that_repeats_itself_at_its_end_alone_is_left_alone() -> None:
    prose = "".join(f"sentence {number}. " for number in range(1_000))
    assert not is_repeated(prose + "again and " * 2 * MAX_PERIOD, len(prose))
