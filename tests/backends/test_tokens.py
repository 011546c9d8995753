"""The tokens of a text: counted by the model's tokenizer, step by step, or by an estimate."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends import TokenCounter
from mlx_tools.backends.models.files import estimate_tokens


@cache
def texts() -> tuple[str, ...]:
    """Some texts to learn a vocabulary from, and to count: prose, JSON, TOML."""
    root = Path(__file__).resolve().parents[2]
    return tuple(
        path.read_text(encoding="utf-8")
        for folder in ("prompts", "docs")
        for path in sorted((root / folder).rglob("*.*"))
        if path.suffix in {".md", ".toml", ".txt", ".json"}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a tokenizer: byte-level, of 20,000 entries, with two control tokens."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    from tokenizers import models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=20_000,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts(), trainer)
    path = tmp_path_factory.mktemp("model")
    made.save(str(path / "tokenizer.json"))
    return path


@cache
def tokenizer_in(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def whole(folder: Path, text: str) -> int:
    return len(tokenizer_in(folder).encode(text).ids)


def test_a_prompt_that_grows_turn_by_turn_is_counted_exactly(folder: Path) -> None:
    counter, text = TokenCounter(lambda: folder), ""
    for turn in range(8):
        text += f"<|im_start|>user\nQuestion {turn}: why?<|im_end|>\n<|im_start|>assistant\n"
        assert counter.count(text) == whole(folder, text)
        assert counter.count(text) == whole(folder, text)
        text += '{"type":"final_answer","content":"Because."}<|im_end|>\n'


def test_texts_that_part_somewhere_are_counted_exactly(folder: Path) -> None:
    counter = TokenCounter(lambda: folder)
    turns = [f"<|im_start|>user\n{text[:3000]}<|im_end|>\n" for text in texts()[:9]]
    for number in (9, 4, 8, 1, 9):
        for other in ("", "<|im_start|>", "and more"):
            text = "".join(turns[:number]) + other
            assert counter.count(text) == whole(folder, text)
    assert counter.count("three") == whole(folder, "three") and counter.count("") == 0


@given(text=st.text(), more=st.text())
def test_the_bound_grows_with_its_text_and_is_no_more_than_its_bytes(text: str, more: str) -> None:
    counter = TokenCounter()
    first, second = counter.count(text), counter.count(text + more)
    assert first <= second
    assert estimate_tokens(text) <= len(text.encode("utf-8", "surrogatepass"))


def test_what_a_tokenizer_adds_by_itself_counts(folder: Path, tmp_path: Path) -> None:
    value = json.loads((folder / "tokenizer.json").read_text())
    value["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [0], "tokens": ["<|im_start|>"]}
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    counter = TokenCounter(lambda: tmp_path)
    plain = TokenCounter(lambda: folder)
    for text in ("hello", "hello there<|im_end|>", "hello there<|im_end|> and more"):
        assert counter.count(text) == plain.count(text) + 1 == whole(tmp_path, text)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}'])
def test_a_tokenizer_that_cannot_be_read_leaves_the_bound(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    assert TokenCounter(lambda: tmp_path).count("hello there") == estimate_tokens("hello there")
    assert TokenCounter(lambda: tmp_path / "nowhere").count("hello") == estimate_tokens("hello")


def test_the_bound_is_above_what_a_tokenizer_makes_of_text(folder: Path) -> None:
    for text in texts():
        assert whole(folder, text) <= estimate_tokens(text) <= 3 * whole(folder, text)
