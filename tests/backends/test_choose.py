"""Which backend a run gets."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.backends import (
    Chosen,
    CompletionsBackend,
    LocalBackend,
    ModelMissing,
    ServerBackend,
    choose_backend,
)
from mlx_tools.errors import BackendUnreachable, UsageError
from tests.backends.loopback import Connection, answers, says, serving

NOBODY = "http://127.0.0.1:1"
OK = answers(200, {"status": "ok"})


def listing(*names: str) -> Callable[[Connection], None]:
    return answers(200, {"object": "list", "data": [{"id": name} for name in names]})


def mlx(route: Callable[[Connection], None]) -> Callable[[Connection], None]:
    """The route as mlx-lm's server answers it: by its ``Server`` header."""

    def answer(request: Connection) -> None:
        send = request.send
        request.send = lambda data: send(  # type: ignore[method-assign]
            data.replace(b"\r\n", b"\r\nServer: BaseHTTP/0.6 Python/3.12\r\n", 1)
        )
        route(request)

    return answer


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine with no models."""
    return {
        "MLX_TOOLS_CACHE_DIR": str(tmp_path / "cache"),
        "MLX_TOOLS_STATE_DIR": str(tmp_path / "state"),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "PATH": os.environ["PATH"],
    }


def put_in_hub(environ: dict[str, str], name: str, added: dict[str, int]) -> None:
    folder = Path(environ["HF_HUB_CACHE"]) / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "qwen3"}')
    (snapshot / "model.safetensors").write_bytes(b"x")
    tokens = [{"id": number, "content": token, "special": True} for token, number in added.items()]
    (snapshot / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))


def choose(environ: dict[str, str], **options: Any) -> Chosen:
    return asyncio.run(choose_backend(environ=environ, **{"usual": NOBODY, **options}))


def test_a_named_address_is_used_and_nothing_is_said(environ: dict[str, str]) -> None:
    with serving(says("Hi"), health=OK, models=listing("a/b")) as server:
        chosen = choose(environ, url=server.url + "/v1")
    assert (chosen.how, chosen.note, chosen.model, chosen.files) == ("named", "", "a/b", None)
    assert str(chosen.backend.address) == server.url  # type: ignore[union-attr]


def test_a_named_address_that_does_not_answer_never_falls_back(environ: dict[str, str]) -> None:
    with serving(says("Hi"), health=OK, models=listing("a")) as other:
        for kind in ("auto", "completions"):
            with pytest.raises(BackendUnreachable):
                choose(environ, kind=kind, url=NOBODY, usual=other.url)
        assert other.requests == []


def test_without_an_address_the_usual_server_is_found_and_said(environ: dict[str, str]) -> None:
    with serving(says("Hi"), health=OK, models=listing("a/b")) as server:
        chosen = choose(environ, usual=server.url)
    assert chosen.how == "found"
    assert server.url in chosen.note
    assert "a/b" in chosen.note


def test_a_server_that_cannot_list_is_found_by_how_it_refuses(environ: dict[str, str]) -> None:
    refuses = answers(400, {"error": "max_tokens must be at least 1"})
    with serving(refuses, health=OK, models=answers(200, b"")) as server:
        assert choose(environ, usual=server.url, model="a/b").how == "found"
        assert server.bodies == [{"max_tokens": 0}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("health", "complete"),
    [
        (answers(200, b"<html>", "text/html"), says("Hi")),
        (OK, answers(404, b"Not Found", "text/plain")),
        (OK, answers(200, b"<html>", "text/html")),
        (answers(503, {"status": "unavailable"}), answers(404, {"error": "x"})),
        (Connection.until_gone, says("Hi")),
    ],
    ids=["web server", "other service", "single-page app", "dead", "hangs"],
)
def test_what_is_no_living_completions_server_is_not_used(
    environ: dict[str, str],
    health: Callable[[Connection], None],
    complete: Callable[[Connection], None],
) -> None:
    with serving(complete, health=health) as server, pytest.raises(ModelMissing) as caught:
        choose(environ, usual=server.url)
    assert caught.value.name == "smollm2-135m"
    assert "models pull smollm2-135m" in str(caught.value)


def test_with_no_server_the_embedded_model_is_used_and_said_in_one_line(
    environ: dict[str, str],
) -> None:
    from mlx_tools.backends.models.embedded import SMOLLM2, best_precision, model_folder

    folder = model_folder(SMOLLM2, best_precision(), environ)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    manifest = {"format": 1, "source": SMOLLM2.gguf_sha256, "files": {"config.json": [23, ""]}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    chosen = choose(environ)
    assert isinstance(chosen.backend, ServerBackend)
    assert (chosen.how, chosen.model) == ("embedded", "smollm2-135m")
    assert "smollm2-135m" in chosen.note
    assert "\n" not in chosen.note + chosen.suggestion
    assert "GB" in chosen.suggestion
    assert chosen.files is not None
    assert chosen.backend.pid is None


def test_a_model_that_was_named_and_is_here_gets_a_server_of_our_own(
    environ: dict[str, str],
) -> None:
    put_in_hub(environ, "org/here", {"<tool_call>": 7, "<think>": 8})
    with serving(says("Hi"), health=OK, models=listing("other/model")) as server:
        chosen = choose(environ, usual=server.url, model="org/here")
    assert chosen.how == "started"
    assert "org/here" in chosen.note
    assert chosen.files is not None
    assert chosen.files.added_tokens["<tool_call>"] == 7


def test_a_model_that_the_usual_server_lists_is_asked_of_it(environ: dict[str, str]) -> None:
    put_in_hub(environ, "org/here", {})
    with serving(says("Hi"), health=OK, models=listing("other/model", "org/here")) as server:
        chosen = choose(environ, usual=server.url, model="org/here")
    assert chosen.how == "found"
    assert isinstance(chosen.backend, CompletionsBackend)
    assert chosen.backend.model == "org/here"
    assert chosen.files is not None


def test_mlx_lms_server_is_not_sent_a_name_that_would_make_it_load_again(
    environ: dict[str, str],
) -> None:
    put_in_hub(environ, "org/here", {"<tool_call>": 7, "<think>": 8})
    with serving(says("Hi"), health=mlx(OK), models=mlx(listing("org/here"))) as server:
        chosen = choose(environ, url=server.url)
    assert isinstance(chosen.backend, CompletionsBackend)
    assert chosen.backend.model is None
    assert chosen.model == "org/here"
    assert chosen.files is not None
    assert chosen.backend.forbidden_tokens == (7,)


def test_other_servers_are_sent_the_one_name_they_list(environ: dict[str, str]) -> None:
    with serving(says("Hi"), health=OK, models=listing("m")) as server:
        chosen = choose(environ, url=server.url)
    assert isinstance(chosen.backend, CompletionsBackend)
    assert chosen.backend.model == "m"
    assert chosen.backend.forbidden_tokens == ()


def test_of_many_listed_models_mlx_lm_runs_the_folder_it_was_started_with(
    environ: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with serving(says("Hi"), health=mlx(OK), models=mlx(listing("a/b", str(folder)))) as server:
        chosen = choose(environ, url=server.url)
    assert chosen.model == str(folder)
    assert chosen.files is not None


def test_where_it_cannot_be_told_which_model_runs_that_is_said(environ: dict[str, str]) -> None:
    with serving(says("Hi"), health=mlx(OK), models=mlx(listing("a/b", "c/d"))) as server:
        chosen = choose(environ, url=server.url)
    assert chosen.model is None
    assert "--model" in chosen.note
    with serving(says("Hi"), health=OK, models=listing("a", "b")) as server:
        chosen = choose(environ, url=server.url)
    assert chosen.model == "a"
    assert "--model" in chosen.note


def test_files_that_cannot_be_read_are_said_and_do_not_stop_the_run(
    environ: dict[str, str],
) -> None:
    put_in_hub(environ, "org/here", {})
    for file in Path(environ["HF_HUB_CACHE"]).rglob("tokenizer.json"):
        file.write_text("{")
    with serving(says("Hi"), health=OK, models=listing("org/here")) as server:
        chosen = choose(environ, url=server.url)
    assert chosen.files is None
    assert "tokenizer.json" in chosen.note


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "server", "url": "http://127.0.0.1:1"},
        {"kind": "local", "url": "http://127.0.0.1:1"},
        {"kind": "local", "model": "no model's name"},
        {"kind": "native"},
        {"kind": "engine"},
        {"kind": "server", "model": "no model's name"},
        {"url": "ftp://there"},
    ],
)
def test_options_that_cannot_be_are_refused(
    environ: dict[str, str], options: dict[str, str]
) -> None:
    with pytest.raises(UsageError) as caught:
        choose(environ, **options)
    assert caught.value.hint


def test_a_model_can_be_run_in_this_process(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    chosen = choose(environ, kind="local", model=str(tmp_path))
    assert isinstance(chosen.backend, LocalBackend)
    assert (chosen.how, chosen.model) == ("loaded", str(tmp_path))
    assert chosen.backend.model == tmp_path
    assert "this process" in chosen.note
    assert chosen.backend.forward_passes == 0  # nothing is loaded yet
