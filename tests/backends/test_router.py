"""The chat format that is found, its source, and whether it is a mere guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools.backends import (
    CompletionsBackend,
    ServerBackend,
    find_chat_format,
    find_context_size,
    find_model_folder,
    read_model_files,
)
from mlx_tools.errors import BackendBroken, BackendUnreachable, ChatFormatError, UsageError
from mlx_tools.plugins.local import LocalBackend
from mlx_tools.testing import ScriptedBackend
from tests.backends.loopback import answers, says, serving

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (None, "nothing says which model is served"),
        ("", "nothing says which model is served"),
        ("my-own-thing", "my-own-thing"),
    ],
)
def test_a_model_of_which_nothing_is_known_gets_plain_and_a_word_of_doubt(
    model: str | None, said: str
) -> None:
    found = find_chat_format(model=model)
    assert found.chat_format.name == "plain"
    assert said in found.doubt
    assert "--chat-format" in found.doubt and ("--model" in found.doubt) is not bool(model)
    assert "\n" not in found.doubt


def test_a_format_that_was_named_leaves_no_doubt() -> None:
    assert find_chat_format("plain", model="my-own-thing").doubt == ""
    with pytest.raises(ChatFormatError, match="no chat format"):
        find_chat_format("chatlm")


def test_a_template_leaves_no_doubt_and_files_without_one_leave_some(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_chat_format(files=read_model_files(tmp_path), model="m").doubt
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    found = find_chat_format(files=read_model_files(tmp_path), model="m")
    assert (found.source, found.doubt) == ("the model's own template", "")


# --- the size of the context ---


def model_in(folder: Path, size: Any = 4096) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": size}))
    return folder


def size_of(backend: Any, model: str | None = None) -> int | None:
    async def main() -> int | None:
        return await find_context_size(backend, model)

    return anyio.run(main)


def rows(*items: Any) -> Any:
    return answers(200, {"object": "list", "data": list(items)})


def properties(value: Any) -> Any:
    return answers(200, {"default_generation_settings": value})


@pytest.mark.parametrize(
    ("models", "props", "size"),
    [
        (rows({"id": "m", "max_model_len": 2048}), None, 2048),  # vLLM, SGLang
        (rows({"id": "a", "max_model_len": 1}, {"id": "m", "max_model_len": 2048}), None, 2048),
        (rows({"id": "m", "context_length": 9000}), None, 9000),
        (rows({"id": "m"}), properties({"n_ctx": 1024}), 1024),  # llama.cpp
        (None, properties({"n_ctx": 1024}), 1024),
        (rows({"id": "m", "max_model_len": 512}), properties({"n_ctx": 1024}), 512),
        (rows({"id": "a"}, {"id": "b", "max_model_len": 2048}), None, None),  # not the one in use
        (rows({"id": "m", "max_model_len": "2048"}), properties({"n_ctx": True}), None),
        (rows({"id": "m", "max_model_len": -1}, 7), properties([]), None),
        (answers(200, []), answers(200, b"[[["), None),
        (None, None, None),
    ],
)
def test_a_server_may_say_the_size(models: Any, props: Any, size: int | None) -> None:
    with serving(says("Hi"), models=models, props=props) as server:
        assert size_of(CompletionsBackend(server.url, "m")) == size


def test_what_a_server_does_not_say_its_models_files_do(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "m")
    with serving(says("Hi"), models=rows({"id": str(folder)}), health=answers(200, {})) as server:
        assert size_of(CompletionsBackend(server.url, str(folder))) == 4096
        assert size_of(CompletionsBackend(server.url), str(folder)) == 4096
        assert size_of(CompletionsBackend(server.url)) == 4096
    with serving(says("Hi"), models=rows({"id": str(folder), "max_model_len": 99})) as server:
        assert size_of(CompletionsBackend(server.url, str(folder))) == 99


def test_a_model_of_our_own_says_it_by_its_files(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "m")
    for backend in (ServerBackend(folder), LocalBackend(folder)):
        assert size_of(backend) == 4096
        assert find_model_folder(backend, "another name") == folder


def test_a_backend_of_another_kind_may_say_it() -> None:
    async def late() -> int:
        return 77

    async def unreachable() -> int:
        raise BackendUnreachable("no server")

    backend: Any = ScriptedBackend()
    assert size_of(backend) is None
    sizes = ((88, 88), (late, 77), (lambda: 66, 66), (lambda: None, None), (unreachable, None))
    for declared, size in sizes:
        backend.context = declared
        assert size_of(backend) == size


def test_a_context_that_fails_or_is_no_number_is_an_error() -> None:
    async def broken() -> int:
        raise ValueError("no such file")

    backend: Any = ScriptedBackend()
    backend.context = broken
    with pytest.raises(BackendBroken, match="ScriptedBackend raised ValueError: no such file"):
        size_of(backend)
    for declared in ("88", True, 0, 1.5, lambda: "88", lambda one: 88):
        backend.context = declared
        with pytest.raises((UsageError, BackendBroken), match="context of the backend"):
            size_of(backend)


@pytest.mark.parametrize(
    ("config", "tokenizer", "size"),
    [
        ({"max_position_embeddings": 4096}, {"model_max_length": 2048}, 4096),
        ({"text_config": {"max_position_embeddings": 8192}}, None, 8192),
        ({"n_positions": 1024}, None, 1024),
        ({}, {"model_max_length": 2048}, 2048),
        ({}, {"model_max_length": 10**30}, None),  # no bound, as transformers writes it
        ({"max_position_embeddings": "4096"}, None, None),
        ({"max_position_embeddings": True}, None, None),
    ],
)
def test_the_files_say_it_in_several_ways(
    tmp_path: Path, config: Any, tokenizer: Any, size: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert size_of(ServerBackend(tmp_path)) == size
    assert read_model_files(tmp_path).context == size
