"""The trial of training the embedded model: its questions, and how it reads what is printed."""

from __future__ import annotations

import json
import re

import lora_trial as trial

from tests.tables import table

QUESTIONS = (*trial.TRAIN, *trial.HELD_BACK)


def test_no_question_is_asked_in_both_parts() -> None:
    texts = [question.text for question in QUESTIONS]
    assert len(set(texts)) == len(texts)


@table("question", QUESTIONS, ids=lambda question: question.text)
def test_the_recorded_call_is_what_is_expected(question: trial.Question) -> None:
    wanted = question.expected()
    json.dumps(wanted)
    assert [call["name"] for call in wanted["calls"]] == [question.tool][: bool(question.tool)]
    for call in wanted["calls"]:
        for name, value in (question.arguments or {}).items():
            assert re.search(call["arguments"][name]["regex"], value)


def test_other_numbers_are_not_what_is_expected() -> None:
    question = trial.sum_of("What is {} minus {}?", "-", 91, 37)
    assert question.number == 54
    assert re.search(question.fits, "91-37")
    assert not re.search(question.fits, "37 - 91")


def test_losses_are_read_from_what_the_trainer_prints() -> None:
    told = "\x1b[38;5;244m   1\x1b[0m    \x1b[1mval\x1b[0m \x1b[1m1.645\x1b[0m    67.86s\n"
    told += "     5     0.812     12.1     2420\n   save 0000005_adapters.safetensors\n"
    assert trial.losses(told) == {"train": {"5": 0.812}, "valid": {"1": 1.645}}
