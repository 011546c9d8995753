"""The reason why a run stopped, in words that name a way out."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from mlx_tools.errors import ErrorCode, StopReason
from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.transcript import STOP_WORDS, cut_in_words, stopped_in_words
from mlx_tools.transcript.records import CompletionRecord, CorrectionRecord, StoppedRecord

WAY_OUT = re.compile(r"--[a-z]+|/[a-z]+|mlx-tools [a-z]+")
CODES = {*get_args(StopReason), *get_args(ErrorCode)}


def completed(**more: object) -> CompletionRecord:
    usage = Usage(prompt_tokens=10, completion_tokens=8_192)
    return CompletionRecord(turn=1, text="x", retained_text="x", usage=usage, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", get_args(StopReason))
@pytest.mark.parametrize("message", ["", "what was seen"])
def test_each_stop_reason_is_told_in_words_with_a_way_out(reason: StopReason, message: str) -> None:
    assert {*STOP_WORDS} == {*get_args(StopReason)}
    line = stopped_in_words([completed(), StoppedRecord(reason=reason, message=message)])
    assert WAY_OUT.search(line) and "\n" not in line
    assert not re.search(r" /[a-z]|\(/[a-z]", line) or " in chat" in line
    assert not [code for code in CODES if "_" in code and code in re.sub(r"/set \w+", "", line)]


def test_an_error_that_says_what_to_do_is_given_no_second_advice() -> None:
    message = "http://127.0.0.1:8080 broke off (its text is not used; ask again)"
    line = stopped_in_words([StoppedRecord(reason="backend_error", message=message)])
    assert line == f"stopped: the model's server failed: {message}"
    message = "http://127.0.0.1:8080 did not complete within 9 s (allow more time with --timeout)"
    line = stopped_in_words([StoppedRecord(reason="completion_timeout", message=message)])
    assert line == f"stopped: the server took too long for one completion: {message}"


@pytest.mark.parametrize("reason", ["interrupted", "cancelled"])
def test_an_end_that_somebody_wanted_is_told_once(reason: StopReason) -> None:
    line = stopped_in_words([StoppedRecord(reason=reason, message=f"the run was {reason}")])
    assert line.count(reason) == 1


def test_the_step_limit_names_the_steps_and_both_ways_on() -> None:
    records = [completed()] * 24 + [StoppedRecord(reason="iteration_limit")]
    assert stopped_in_words(records) == (
        "stopped after 24 steps (raise it with --max-iterations, or /set max_iterations in chat)"
    )


def test_a_call_that_was_cut_off_names_the_tokens() -> None:
    cut = CorrectionRecord(turn=1, error=ErrorInfo("truncated_output", "open"))
    records = [completed(finish_reason="length"), cut, StoppedRecord(reason="format_errors")]
    line = stopped_in_words(records)
    assert "the call was cut off at 8,192 tokens" in line and "--max-tokens" in line


def test_a_model_that_only_thought_is_told_as_that() -> None:
    thought = CompletionRecord(turn=1, text="<think>hm", reasoning="hm", finish_reason="length")
    cut = CorrectionRecord(turn=1, error=ErrorInfo("truncated_output", "open"))
    line = stopped_in_words([thought, cut, StoppedRecord(reason="format_errors")])
    assert "only thought and wrote no answer" in line and "--reasoning off" in line


def test_an_answer_that_was_cut_off_says_where_and_what_raises_it() -> None:
    assert cut_in_words([completed()]) == (
        "the answer was cut off at 8,192 tokens "
        "(raise it with --max-tokens, or /set max_tokens in chat)"
    )
    assert "over and over" in cut_in_words([completed()], repeated=True)
