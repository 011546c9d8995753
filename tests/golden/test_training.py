"""Recorded runs as training data: right completions alone, as the model is asked and answers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlx_tools import builtin_tools
from mlx_tools.errors import UsageError
from mlx_tools.golden import Golden, export_lora
from mlx_tools.golden.training import CONFIG, TRAIN, VALID, make_samples
from mlx_tools.messages import replace
from mlx_tools.testing import Script, answer, call
from mlx_tools.transcript import CompletionRecord
from tests.golden.recordings import record_session

SUM = call("calculator", expression="6*7")


def run_of(*scripts: Any, question: str = "What is 6 * 7?", **more: Any) -> Golden:
    return record_session(builtin_tools(), *scripts, questions=[question], **more)


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_sample_is_what_was_asked_and_what_was_written() -> None:
    golden = run_of(SUM, answer("It is 42."))
    first, second = make_samples(golden)
    assert first is not None and second is not None
    assert first.prompt.endswith("What is 6 * 7?<|im_end|>\n<|im_start|>assistant\n")
    assert (first.completion, second.completion) == (SUM, answer("It is 42."))
    assert second.prompt.startswith(first.prompt + SUM) and '"content":"42"' in second.prompt
    assert first.text == f"{first.prompt}{first.completion}<|im_end|>"


def test_what_the_host_began_is_what_the_model_learns_to_write() -> None:
    golden = run_of(
        'calculator","arguments":{"expression":"6*7"}}', answer(), tool_choice="required"
    )
    sample = next(make_samples(golden))
    assert sample is not None and sample.prompt.endswith("<|im_start|>assistant\n")
    assert json.loads(sample.completion) == json.loads(SUM)


@pytest.mark.parametrize(
    "wrong",
    [
        call("calc", expression="1"),
        call("calculator", expresion="1"),
        call("calculator", expression="6*7")[:-1] + ",}",
        '{"type":"tool_call","name":"calcu',
        Script(answer("It is"), finish_reason="length"),
        "It is 42.",
    ],
)
def test_a_completion_that_was_not_right_is_left_out(wrong: Any) -> None:
    golden = run_of(wrong, SUM, answer("It is 42."))
    assert next(make_samples(golden)) is None


def test_every_tenth_run_is_held_back_and_nothing_is_written_twice(tmp_path: Path) -> None:
    runs = [run_of(SUM, answer(f"{n}."), question=f"{n}?") for n in range(20)]
    done = export_lora([*runs, runs[0]], tmp_path / "data")
    assert (done.train, done.valid, done.left_out) == (36, 4, 2)
    train, valid = lines(tmp_path / "data" / TRAIN), lines(tmp_path / "data" / VALID)
    assert [one["completion"] for one in valid] == [SUM, answer("9."), SUM, answer("19.")]
    assert len(train) == 36 and all(set(one) == {"prompt", "completion", "text"} for one in train)
    with pytest.raises(UsageError, match=r"train\.jsonl is there already"):
        export_lora(runs, tmp_path / "data")


def test_runs_without_a_right_completion_write_nothing(tmp_path: Path) -> None:
    golden = run_of(SUM, answer())
    old = tuple(
        replace(one, prompt=None) if isinstance(one, CompletionRecord) else one
        for one in golden.records
    )
    with pytest.raises(UsageError, match="no completion to learn from"):
        export_lora([replace(golden, records=old)], tmp_path / "data")
    assert not (tmp_path / "data").exists()


class Letters:
    """A tokenizer whose tokens are letters, with a chat template that would show."""

    eos_token_id = 0

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(self, *_: Any, **__: Any) -> list[int]:
        raise AssertionError("a chat template was written around a prompt that has one")


@pytest.mark.heavy
def test_mlx_lms_trainer_takes_each_line_as_it_is(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    datasets = pytest.importorskip("mlx_lm.tuner.datasets")
    export_lora([run_of(SUM, answer(f"{n}."), question=f"{n}?") for n in range(2)], tmp_path)
    config = SimpleNamespace(**yaml.safe_load((tmp_path / CONFIG).read_text()))
    loaded: Any = datasets.load_local_dataset(tmp_path, Letters(), config)
    for data, name in zip(loaded, (TRAIN, VALID), strict=False):
        texts = [one["text"] for one in lines(tmp_path / name)]
        tokens = [data.process(data[place])[0] for place in range(len(data))]
        assert tokens == [[*map(ord, text), 0] for text in texts]
