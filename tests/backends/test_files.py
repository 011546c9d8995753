"""The tokenizer and template in a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.backends import ModelFiles, read_model_files
from mlx_tools.errors import ModelError

BOS_FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}
BOS_LAST = BOS_FIRST | {"single": list(reversed(BOS_FIRST["single"]))}  # type: ignore[call-overload]


def added(number: int, content: str, special: bool = True) -> dict[str, Any]:
    return {"id": number, "content": content, "special": special, "lstrip": False}


def read(folder: Path, **files: Any) -> ModelFiles:
    """Read a folder with these files; a name ends in ``_json`` or ``_jinja``."""
    for name, value in {"config_json": {"model_type": "llama"}, **files}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        stem, _, kind = name.rpartition("_")
        (folder / f"{stem}.{kind}").write_text(text)
    return read_model_files(folder)


def test_tokens_are_read_from_every_place_they_stand_in(tmp_path: Path) -> None:
    files = read(
        tmp_path,
        config_json={"model_type": "x", "eos_token_id": 3, "max_position_embeddings": 4096},
        generation_config_json={"eos_token_id": [4, 5, 77]},
        tokenizer_config_json={
            "bos_token": {"content": "<s>", "lstrip": False},
            "eos_token": "</s>",
            "pad_token": None,
            "additional_special_tokens": ["<a>", {"content": "<b>"}],
            "extra_special_tokens": {"image_token": "<image>"},
            "added_tokens_decoder": {
                "3": {"content": "</s>", "special": True},
                "9": {"content": "<tool_call>", "special": False},
            },
        },
        special_tokens_map_json={"unk_token": "<unk>"},
        tokenizer_json={"added_tokens": [added(4, "<|end|>"), added(5, "<|eot|>")], "model": {}},
    )
    assert files.bos_token == "<s>"
    assert files.end_tokens == ("</s>", "<|end|>", "<|eot|>")
    expected = {"<s>", "</s>", "<a>", "<b>", "<image>", "<unk>", "<|end|>", "<|eot|>"}
    assert set(files.special_tokens) == expected
    assert files.added_tokens == {"</s>": 3, "<|end|>": 4, "<|eot|>": 5, "<tool_call>": 9}
    assert files.context == 4096


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"chat_template_jinja": "J", "tokenizer_config_json": {"chat_template": "T"}}, "J"),
        ({"tokenizer_config_json": {"chat_template": "T"}}, "T"),
        ({"chat_template_json": {"chat_template": "C"}}, "C"),
        (
            {
                "tokenizer_config_json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "U"},
                        {"name": "default", "template": "D"},
                    ]
                }
            },
            "D",
        ),
        ({"tokenizer_config_json": {"chat_template": [{"name": "rag", "template": "R"}]}}, "R"),
        ({"tokenizer_config_json": {"chat_template": 3}}, None),
        ({"tokenizer_config_json": {"chat_template": [3, {"name": "x"}]}}, None),
    ],
)
def test_the_template_is_found(tmp_path: Path, files: dict[str, Any], template: str | None) -> None:
    assert read(tmp_path, **files).chat_template == template


@pytest.mark.parametrize(
    ("processor", "settings", "adds"),
    [
        (BOS_FIRST, {}, True),
        (BOS_FIRST, {"add_bos_token": False}, True),
        (BOS_LAST, {"add_bos_token": True}, False),
        (None, {"add_bos_token": True}, False),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, BOS_FIRST]}, {}, True),
        ({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}, {}, True),
        ({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["[CLS]", 1]}, {}, False),
        ({"type": "ByteLevel"}, {}, False),
    ],
)
def test_whether_bos_is_added_stands_in_the_post_processor(
    tmp_path: Path, processor: Any, settings: dict[str, Any], adds: bool
) -> None:
    tokenizer = {"added_tokens": [], "post_processor": processor, "model": {"vocab": {"a": 1}}}
    settings = {"bos_token": "<s>", **settings}
    files = read(tmp_path, tokenizer_json=tokenizer, tokenizer_config_json=settings)
    assert files.adds_bos is adds


def test_without_a_tokenizer_file_bos_is_added_unless_it_is_denied(tmp_path: Path) -> None:
    assert read(tmp_path, tokenizer_config_json={"bos_token": "<s>"}).adds_bos
    settings = {"bos_token": "<s>", "add_bos_token": False}
    assert not read(tmp_path, tokenizer_config_json=settings).adds_bos
    assert not read(tmp_path, tokenizer_config_json={}).adds_bos


def test_the_vocabulary_is_not_decoded(tmp_path: Path) -> None:
    text = ' {"added_tokens" : [] ,\n"post_processor":null, "model": this is no JSON}'
    assert read(tmp_path, tokenizer_json=text).added_tokens == {}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("tokenizer", t) for t in ("", "{", "[]", '{"a"', '{"a":1', "{" * 5000)),
        *(("tokenizer", t) for t in ('{"added_tokens": [}', '{"post_processor":]}')),
        ("tokenizer", '{"post_processor": {"type": "Sequence", "processors": 7}}'),
        *(("tokenizer_config", t) for t in ("", "{}}", "[1]", "[" * 100_000)),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, text: str) -> None:
    with pytest.raises(ModelError, match=rf"{file}\.json"):
        read(tmp_path, **{f"{file}_json": text})


def test_a_number_that_no_token_has_is_left_out(tmp_path: Path) -> None:
    decoder = {"9" * 5_000: {"content": "x"}, "7": {"content": "y"}}
    text = json.dumps({"added_tokens_decoder": decoder})
    assert read(tmp_path, tokenizer_config_json=text).added_tokens == {"y": 7}


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model_files(tmp_path)
