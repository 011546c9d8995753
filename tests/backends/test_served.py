"""Which model a server runs: what it lists, what is meant by a name, what it is known by."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mlx_tools.app.wiring import identity_of
from mlx_tools.backends import (
    DEFAULT_MODEL,
    Chosen,
    CompletionsBackend,
    VerdictStore,
    choose_backend,
    find_verdict,
)
from mlx_tools.backends.choose import meant_by
from mlx_tools.backends.models.embedded import SMOLLM2, best_precision, model_folder
from mlx_tools.backends.models.listing import folder_identity, known_model
from mlx_tools.errors import EXIT_BACKEND, EXIT_USAGE, BackendRefused, UsageError
from tests.backends.asking import ask
from tests.backends.loopback import Connection, Server, answers, likelihoods, says, serving
from tests.backends.test_choose import OK, listing, mlx

Serving = AbstractContextManager[Server]

NOTHING = mlx(answers(200, b""))
"""What mlx-lm's server lists where there is no Hugging Face cache folder."""

EMBEDDED = likelihoods("Water", dict(SMOLLM2.likelihoods) | {"A": -4.2})
OTHER = likelihoods("Water", {"Water": -0.1, "The": -2.3})


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
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


def embedded_folder(environ: dict[str, str]) -> Path:
    return model_folder(SMOLLM2, best_precision(), environ)


def choose(environ: dict[str, str], server: Server, model: str | None = None) -> Chosen:
    return asyncio.run(choose_backend(url=server.url, model=model, environ=environ))


def sent(chosen: Chosen) -> str | None:
    assert isinstance(chosen.backend, CompletionsBackend)
    return chosen.backend.model


def verdict_source(chosen: Chosen, folder: Path) -> str | None:
    store = VerdictStore(folder / "verdicts")
    return find_verdict(identity_of(chosen, chosen.model), store).source


@pytest.mark.parametrize("named", ["", DEFAULT_MODEL, embedded_folder({}).name, "its folder"])
def test_the_embedded_model_in_a_stock_server_is_known_by_any_of_its_names(
    environ: dict[str, str], tmp_path: Path, named: str
) -> None:
    folder = str(embedded_folder(environ))
    models = mlx(listing("a/b", folder))
    with serving(says("Hi"), health=mlx(OK), models=models) as server:
        chosen = choose(environ, server, folder if named == "its folder" else named or None)
        assert server.bodies == []
    assert sent(chosen) is None  # a name would make the server load it once more
    assert chosen.files is not None and str(chosen.files.path) == folder
    assert verdict_source(chosen, tmp_path) == "shipped"


@pytest.mark.parametrize("named", [None, DEFAULT_MODEL, embedded_folder({}).name])
def test_a_copy_of_the_embedded_model_under_another_path_is_known_by_its_files(
    environ: dict[str, str], tmp_path: Path, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_TOOLS_CACHE_DIR", environ["MLX_TOOLS_CACHE_DIR"])
    copy = tmp_path / "copies" / embedded_folder(environ).name
    shutil.copytree(embedded_folder(environ), copy, ignore=shutil.ignore_patterns("manifest*"))
    with serving(says("Hi"), health=mlx(OK), models=mlx(listing(str(copy)))) as server:
        chosen = choose(environ, server, named)
    assert sent(chosen) is None
    assert chosen.files is not None and chosen.files.path == copy
    assert verdict_source(chosen, tmp_path) == "shipped"
    (copy / "model.safetensors").write_bytes(b"\x01" * 9000)  # trained further
    assert str(folder_identity(copy)).startswith("sha256:")


@pytest.mark.parametrize(
    "name", [DEFAULT_MODEL, f"{DEFAULT_MODEL}-4bit", "SmolLM2-135M-Instruct.Q4_1.gguf"]
)
def test_other_servers_that_serve_the_embedded_model_by_name_have_its_verdict_too(
    environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    for model in (None, DEFAULT_MODEL):
        with serving(says("Hi"), health=OK, models=listing(f"/srv/{name}")) as server:
            chosen = choose(environ, server, model)
        assert sent(chosen) == f"/srv/{name}"
        assert chosen.files is not None and chosen.files.path == embedded_folder(environ)
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
    environ: dict[str, str], tmp_path: Path, named: str | None
) -> None:
    folder = str(embedded_folder(environ))
    with recognising(EMBEDDED) as server:
        chosen = choose(environ, server, folder if named == "its folder" else named)
        assert len(server.bodies) == 1 and "model" not in server.bodies[0]
    assert (chosen.model, sent(chosen)) == (DEFAULT_MODEL, None)
    assert chosen.files is not None and verdict_source(chosen, tmp_path) == "shipped"


def test_another_model_is_not_taken_for_it(environ: dict[str, str]) -> None:
    with recognising(OTHER) as server:
        chosen = choose(environ, server)
        assert (chosen.model, chosen.files, sent(chosen)) == (None, None, None)


def test_a_stock_server_that_names_nothing_loads_a_folder_that_is_here(
    environ: dict[str, str],
) -> None:
    folder = str(embedded_folder(environ))
    with recognising(OTHER, folder) as server:
        chosen = choose(environ, server, DEFAULT_MODEL)
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
    environ: dict[str, str], server: Serving, knows: str
) -> None:
    with server as it, pytest.raises(UsageError) as caught:
        choose(environ, it, "nope")
    assert knows in str(caught.value) and "nope" in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == EXIT_USAGE


def test_a_stock_server_that_cannot_load_a_model_is_told_with_those_it_lists(
    environ: dict[str, str],
) -> None:
    """It loads models that it does not list, so it is asked first."""
    refuses = answers(404, {"error": "Repository not found"})
    with serving(refuses, health=mlx(OK), models=mlx(listing("a/b", "/m/c"))) as server:
        chosen = choose(environ, server, "no/such")
        assert sent(chosen) == "no/such"
        with pytest.raises(BackendRefused) as caught:
            ask(chosen.backend)
    assert "Repository not found; it lists the models a/b, /m/c" in caught.value.message
    assert "--model" in (caught.value.hint or "") and caught.value.exit_code == EXIT_BACKEND


def test_a_server_that_lists_nothing_is_sent_the_name_as_it_is(environ: dict[str, str]) -> None:
    with serving(says("Hi"), health=OK) as server:
        assert sent(choose(environ, server, "anything")) == "anything"


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
