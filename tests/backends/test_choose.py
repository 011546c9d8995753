"""Which backend a run gets, and which model a server runs: by what it lists, and is known by."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.app.wiring import identity_of
from mlx_tools.backends import (
    DEFAULT_MODEL,
    Chosen,
    CompletionsBackend,
    LocalBackend,
    ModelMissing,
    ServerBackend,
    VerdictStore,
    choose_backend,
    find_verdict,
)
from mlx_tools.backends.choose import meant_by
from mlx_tools.backends.models.embedded import SMOLLM2, best_precision, model_folder
from mlx_tools.backends.models.listing import folder_identity, known_model
from mlx_tools.errors import (
    EXIT_BACKEND,
    EXIT_USAGE,
    BackendRefused,
    BackendUnreachable,
    UsageError,
)
from tests.backends.asking import ask
from tests.backends.loopback import Connection, Server, answers, likelihoods, says, serving

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


GATEWAY = answers(200, {"status": "ok", "server": "mlx-tools"})


def test_a_gateway_of_ours_goes_before_the_usual_server(environ: dict[str, str]) -> None:
    with (
        serving(says("Hi"), health=GATEWAY, models=listing("a/b", "c/d")) as gateway,
        serving(says("Hi"), health=OK, models=listing("e/f")) as usual,
    ):
        addresses = {"gateway": gateway.url, "usual": usual.url}
        chosen = choose(environ, **addresses, gateway_key="sesame")
        assert gateway.requests[-1].headers["authorization"] == "Bearer sesame"
        assert (chosen.how, chosen.model) == ("found", "a/b")
        assert chosen.note == f"using the gateway at {gateway.url} (model a/b)"
        assert choose(environ, **addresses, model="c/d").model == "c/d"
        assert choose(environ, **addresses, model="e/f").backend.address.url == usual.url  # type: ignore[union-attr]


def test_a_stranger_where_the_gateway_would_be_is_none(environ: dict[str, str]) -> None:
    with (
        serving(says("Hi"), health=OK, models=listing("a/b")) as stranger,
        serving(says("Hi"), health=OK, models=listing("e/f")) as usual,
    ):
        addresses = {"gateway": stranger.url, "usual": usual.url}
        assert choose(environ, **addresses, gateway_key="sesame").model == "e/f"
        assert stranger.requests
        assert not any("authorization" in asked.headers for asked in stranger.requests)


def test_a_gateway_that_does_not_take_the_key_is_told_and_not_used(environ: dict[str, str]) -> None:
    told: list[str] = []
    refused = answers(401, {"error": {"message": "the key is missing or wrong"}})
    with (
        serving(says("Hi"), health=GATEWAY, models=refused) as gateway,
        serving(says("Hi"), health=OK, models=listing("e/f")) as usual,
    ):
        chosen = choose(environ, gateway=gateway.url, usual=usual.url, note=told.append)
    assert chosen.model == "e/f"
    assert len(told) == 1 and "gateway.api_key" in told[0]


def test_who_takes_no_gateway_takes_none_at_the_usual_address_either(
    environ: dict[str, str],
) -> None:
    with serving(says("Hi"), health=GATEWAY, models=listing("a/b")) as gateway:
        with pytest.raises(ModelMissing):
            choose(environ, usual=gateway.url)
        assert choose(environ, usual=gateway.url, gateway=NOBODY).model == "a/b"


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
        {"kind": "completions", "url": "ollama:http://127.0.0.1:1"},
        {"url": "anthropic:http://127.0.0.1:1"},
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


# --- which model a server runs: what it lists, what is meant by a name, what it is kn ---------

Serving = AbstractContextManager[Server]

NOTHING = mlx(answers(200, b""))
"""What mlx-lm's server lists where there is no Hugging Face cache folder."""

EMBEDDED = likelihoods("Water", dict(SMOLLM2.likelihoods) | {"A": -4.2})
OTHER = likelihoods("Water", {"Water": -0.1, "The": -2.3})


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """A machine with the embedded model alone."""
    found = {
        "MLX_TOOLS_CACHE_DIR": str(tmp_path / "cache"),
        "MLX_TOOLS_STATE_DIR": str(tmp_path / "state"),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
    }
    pull(model_folder(SMOLLM2, best_precision(), found))
    return found


def pull(folder: Path) -> Path:
    """The embedded model's folder, as small as can be."""
    folder.mkdir(parents=True)
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"\x00" * 9000}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    sizes = {name: [len(data), ""] for name, data in files.items()}
    manifest = {"format": 1, "source": SMOLLM2.gguf_sha256, "files": sizes}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def embedded_folder(machine: dict[str, str]) -> Path:
    return model_folder(SMOLLM2, best_precision(), machine)


def choose_at(machine: dict[str, str], server: Server, model: str | None = None) -> Chosen:
    return asyncio.run(choose_backend(url=server.url, model=model, environ=machine))


def sent(chosen: Chosen) -> str | None:
    assert isinstance(chosen.backend, CompletionsBackend)
    return chosen.backend.model


def verdict_source(chosen: Chosen, folder: Path) -> str | None:
    store = VerdictStore(folder / "verdicts")
    return find_verdict(identity_of(chosen, chosen.model), store).source


@pytest.mark.parametrize("named", ["", DEFAULT_MODEL, embedded_folder({}).name, "its folder"])
def test_the_embedded_model_in_a_stock_server_is_known_by_any_of_its_names(
    machine: dict[str, str], tmp_path: Path, named: str
) -> None:
    folder = str(embedded_folder(machine))
    models = mlx(listing("a/b", folder))
    with serving(says("Hi"), health=mlx(OK), models=models) as server:
        chosen = choose_at(machine, server, folder if named == "its folder" else named or None)
        assert server.bodies == []
    assert sent(chosen) is None  # a name would make the server load it once more
    assert chosen.files is not None and str(chosen.files.path) == folder
    assert verdict_source(chosen, tmp_path) == "shipped"


@pytest.mark.parametrize("named", [None, DEFAULT_MODEL, embedded_folder({}).name])
def test_a_copy_of_the_embedded_model_under_another_path_is_known_by_its_files(
    machine: dict[str, str], tmp_path: Path, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_TOOLS_CACHE_DIR", machine["MLX_TOOLS_CACHE_DIR"])
    copy = tmp_path / "copies" / embedded_folder(machine).name
    shutil.copytree(embedded_folder(machine), copy, ignore=shutil.ignore_patterns("manifest*"))
    with serving(says("Hi"), health=mlx(OK), models=mlx(listing(str(copy)))) as server:
        chosen = choose_at(machine, server, named)
    assert sent(chosen) is None
    assert chosen.files is not None and chosen.files.path == copy
    assert verdict_source(chosen, tmp_path) == "shipped"
    (copy / "model.safetensors").write_bytes(b"\x01" * 9000)  # trained further
    assert str(folder_identity(copy)).startswith("sha256:")


@pytest.mark.parametrize(
    "name", [DEFAULT_MODEL, f"{DEFAULT_MODEL}-4bit", "SmolLM2-135M-Instruct.Q4_1.gguf"]
)
def test_other_servers_that_serve_the_embedded_model_by_name_have_its_verdict_too(
    machine: dict[str, str], tmp_path: Path, name: str
) -> None:
    for model in (None, DEFAULT_MODEL):
        with serving(says("Hi"), health=OK, models=listing(f"/srv/{name}")) as server:
            chosen = choose_at(machine, server, model)
        assert sent(chosen) == f"/srv/{name}"
        assert chosen.files is not None and chosen.files.path == embedded_folder(machine)
        assert verdict_source(chosen, tmp_path) == "shipped"


def recognising(answer: Callable[[Connection], None], known: str = "") -> Serving:
    """mlx-lm's server that lists nothing, and knows the model ``known`` beside its own."""

    def complete(request: Connection) -> None:
        if request.body.get("model", known) != known:
            request.answer(404, {"error": "Repository not found"})
        else:
            (answer if request.body["prompt"] == SMOLLM2.asked else says("Hi"))(request)

    return serving(complete, health=mlx(OK), models=NOTHING)


@pytest.mark.parametrize("named", [None, DEFAULT_MODEL, "its folder"])
def test_the_embedded_model_is_recognised_where_the_server_names_nothing(
    machine: dict[str, str], tmp_path: Path, named: str | None
) -> None:
    folder = str(embedded_folder(machine))
    with recognising(EMBEDDED) as server:
        chosen = choose_at(machine, server, folder if named == "its folder" else named)
        assert len(server.bodies) == 1 and "model" not in server.bodies[0]
    assert (chosen.model, sent(chosen)) == (DEFAULT_MODEL, None)
    assert chosen.files is not None and verdict_source(chosen, tmp_path) == "shipped"


def test_another_model_is_not_taken_for_it(machine: dict[str, str]) -> None:
    with recognising(OTHER) as server:
        chosen = choose_at(machine, server)
        assert (chosen.model, chosen.files, sent(chosen)) == (None, None, None)


def test_a_stock_server_that_names_nothing_loads_a_folder_that_is_here(
    machine: dict[str, str],
) -> None:
    folder = str(embedded_folder(machine))
    with recognising(OTHER, folder) as server:
        chosen = choose_at(machine, server, DEFAULT_MODEL)
    assert sent(chosen) == folder
    assert chosen.files is not None


@pytest.mark.parametrize(
    ("server", "knows"),
    [
        (serving(says("Hi"), health=OK, models=listing("a/b", "c")), "it knows a/b, c"),
        (
            serving(says("Hi"), health=OK, models=listing(*map(str, range(20)))),
            "it knows 0, 1, 2, 3, 4, 5, 6, 7 and 12 more",
        ),
    ],
    ids=["some", "many"],
)
def test_a_model_that_the_server_does_not_know_is_told_with_those_it_does(
    machine: dict[str, str], server: Serving, knows: str
) -> None:
    with server as it, pytest.raises(UsageError) as caught:
        choose_at(machine, it, "nope")
    assert knows in str(caught.value) and "nope" in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == EXIT_USAGE


def test_a_stock_server_that_cannot_load_a_model_is_told_with_those_it_lists(
    machine: dict[str, str],
) -> None:
    """It loads models that it does not list, so it is asked first."""
    refuses = answers(404, {"error": "Repository not found"})
    with serving(refuses, health=mlx(OK), models=mlx(listing("a/b", "/m/c"))) as server:
        chosen = choose_at(machine, server, "no/such")
        assert sent(chosen) == "no/such"
        with pytest.raises(BackendRefused) as caught:
            ask(chosen.backend)
    assert "Repository not found; it lists the models a/b, /m/c" in caught.value.message
    assert "--model" in (caught.value.hint or "") and caught.value.exit_code == EXIT_BACKEND


def test_a_server_that_lists_nothing_is_sent_the_name_as_it_is(machine: dict[str, str]) -> None:
    with serving(says("Hi"), health=OK) as server:
        assert sent(choose_at(machine, server, "anything")) == "anything"


@pytest.mark.parametrize(
    ("name", "listed", "meant"),
    [
        ("a/b", ("b", "a/b"), "a/b"),
        ("b", ("a/b", "c"), "a/b"),
        ("b", ("a/b", "c/b"), None),
        ("qwen3", ("qwen3:latest", "qwen3:4b"), "qwen3:latest"),
        ("m", ("/models/m.gguf",), "/models/m.gguf"),
        ("m", (r"C:\models\m",), r"C:\models\m"),
        (DEFAULT_MODEL, ("/mnt/x/models/smollm2-135m-4bit",), "/mnt/x/models/smollm2-135m-4bit"),
        ("x/b", ("a/b",), None),
        ("", ("",), ""),
    ],
)
def test_what_is_meant_by_a_name(name: str, listed: tuple[str, ...], meant: str | None) -> None:
    assert meant_by(name, listed, {}, loopback=False) == meant


def test_a_repository_of_that_name_is_another_model() -> None:
    assert known_model("someone/smollm2-135m") is None
    assert known_model("/srv/someone/smollm2-135m/") == DEFAULT_MODEL
    assert known_model("smollm2-135m-4bit-tuned") is None
