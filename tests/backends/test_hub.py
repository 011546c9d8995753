"""The Hugging Face cache: what counts as a model in it, and fetching one from a hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.backends import (
    ModelMissing,
    PullProgress,
    find_model,
    model_path,
    pull_model,
    suggest_model,
)
from mlx_tools.backends.models.hub import find_cached_model, hub_cache_dir, list_cached_models
from mlx_tools.backends.models.listing import GB
from mlx_tools.errors import ModelError, UsageError
from tests.backends.loopback import Connection, Server

WHOLE = {
    "config.json": '{"model_type": "llama", "quantization": {"bits": 4}}',
    "tokenizer.json": "{}",
    "model.safetensors": "weights",
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    keep = {"PATH": os.environ["PATH"]}
    return keep | {
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "MLX_TOOLS_CACHE_DIR": str(tmp_path / "cache"),
    }


def put(
    environ: dict[str, str],
    name: str,
    files: dict[str, str],
    *,
    revision: str = "abc",
    ref: bool = True,
) -> Path:
    """A snapshot as huggingface_hub makes it: links to blobs."""
    folder = Path(environ["HF_HUB_CACHE"]) / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir(exist_ok=True)
    if ref:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(revision)
    for file, text in files.items():
        blob = folder / "blobs" / hashlib.sha256(f"{revision}{file}".encode()).hexdigest()
        blob.write_text(text)
        (snapshot / file).symlink_to(blob)
    return snapshot


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/b"}, "/c"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/d"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({}, "~/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hugging_face_libraries_look(
    environ: dict[str, str], folder: str
) -> None:
    assert hub_cache_dir(environ) == Path(folder).expanduser()


def test_whole_models_are_listed_by_name_with_their_size(environ: dict[str, str]) -> None:
    put(environ, "org/b", WHOLE)
    put(environ, "mlx-community/a", WHOLE | {"config.json": '{"model_type": "qwen3"}'})
    put(environ, "org/plain", WHOLE | {"config.json": '{"model_type": "qwen3"}'})
    found = list_cached_models(environ)
    assert [(model.name, model.mlx) for model in found] == [
        ("mlx-community/a", True),
        ("org/b", True),
        ("org/plain", False),
    ]
    assert found[1].size == sum(len(text) for text in WHOLE.values())


INDEX = json.dumps({"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}})


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"config.json": "{}"},
        {key: WHOLE[key] for key in ("config.json", "tokenizer.json")},
        {key: WHOLE[key] for key in ("config.json", "model.safetensors")},
        WHOLE | {"config.json": "{"},
        WHOLE | {"config.json": "[]"},
        WHOLE | {"config.json": '{"model_type": 3}'},
        WHOLE | {"model.safetensors.index.json": INDEX, "model-1.safetensors": "x"},
        WHOLE | {"model.safetensors.index.json": "{}"},
        WHOLE | {"model.safetensors.index.json": '{"weight_map": {"x": []}}'},
        WHOLE | {"model.safetensors.index.json": json.dumps({"weight_map": {"x": "x" * 300}})},
    ],
)
def test_what_mlx_lm_could_not_load_is_not_listed(
    environ: dict[str, str], files: dict[str, str]
) -> None:
    put(environ, "org/a", files)
    gone = put(environ, "org/gone", WHOLE) / "model.safetensors"
    gone.resolve().unlink()  # a link to nothing
    assert list_cached_models(environ) == []
    assert find_cached_model("org/a", environ) is None


def test_the_snapshot_that_main_names_comes_first(environ: dict[str, str]) -> None:
    main = put(environ, "org/a", WHOLE, revision="one")
    other = put(environ, "org/a", WHOLE, revision="two", ref=False)
    assert find_model("org/a", environ) == main
    (main / "config.json").unlink()
    assert find_model("org/a", environ) == other
    (main.parent.parent / "refs" / "main").write_text("../../../../etc")
    assert find_model("org/a", environ) == other


def test_a_model_is_found_by_name_or_by_its_folder(environ: dict[str, str], tmp_path: Path) -> None:
    snapshot = put(environ, "org/a", WHOLE)
    assert find_model("org/a", environ) == snapshot
    assert find_model(str(snapshot), environ) == snapshot
    assert find_model("smollm2-135m", environ) is None
    assert find_model(str(tmp_path), environ) is None
    assert find_model("", environ) is None
    assert find_model("a\x00b", environ) is None


@pytest.mark.parametrize("name", ["smollm2-135m", "org/elsewhere"])
def test_a_model_that_could_be_pulled_is_told_so(environ: dict[str, str], name: str) -> None:
    with pytest.raises(ModelMissing, match=f"models pull {name}") as caught:
        model_path(name, environ)
    assert caught.value.name == name


@pytest.mark.parametrize(
    "name", ["", "x", "../x", "a/b/c", "/nowhere", "a/..", "-a/b", "a/b-", "a b/c", "a/\u0430"]
)
def test_what_names_no_model_is_refused(environ: dict[str, str], name: str) -> None:
    for use in (model_path, lambda name, environ: pull_model(name, environ=environ)):
        with pytest.raises(UsageError, match="names no model"):
            use(name, environ)


# --- fetching -------------------------------------------------------------------------------------


@pytest.fixture
def hub(environ: dict[str, str]) -> Iterator[Server]:
    """A hub with one model, ``org/tiny``."""
    commit = "0123456789abcdef0123456789abcdef01234567"

    def handle(request: Connection) -> None:
        path = request.path.partition("?")[0]
        if path.startswith("/api/models/org/tiny"):
            if "/tree/" in path:
                request.answer(200, [entry(name, text) for name, text in WHOLE.items()])
            else:
                listed = [{"rfilename": name, "size": len(text)} for name, text in WHOLE.items()]
                request.answer(200, {"id": "org/tiny", "sha": commit, "siblings": listed})
        elif path.startswith("/org/tiny/resolve/"):
            text = WHOLE.get(path.rpartition("/")[2], "").encode()
            etag = hashlib.sha256(text).hexdigest()
            head = f'ETag: "{etag}"\r\nX-Repo-Commit: {commit}\r\nContent-Length: {len(text)}\r\n'
            request.answer(200, b"" if request.method == "HEAD" else text, "text/plain", head)
        elif "gated" in path:
            request.answer(403, {"error": "gated"}, head="X-Error-Code: GatedRepo\r\n")
        elif "hotel" in path:
            request.answer(200, b"<p>Log in first</p>", "text/html")
        else:
            request.answer(404, {"error": "no"}, head="X-Error-Code: RepoNotFound\r\n")

    server = Server(handle)
    environ["HF_ENDPOINT"] = server.url
    environ["HF_HUB_DISABLE_XET"] = "1"
    yield server
    server.stop()


def entry(name: str, text: str) -> dict[str, Any]:
    digest = hashlib.sha1(text.encode()).hexdigest()
    return {"type": "file", "path": name, "size": len(text), "oid": digest}


@pytest.mark.real
def test_a_model_is_fetched_into_the_cache(hub: Server, environ: dict[str, str]) -> None:
    steps: list[PullProgress] = []
    pulled = pull_model("org/tiny", steps.append, environ)
    assert pulled.fetched
    assert pulled.path == find_model("org/tiny", environ)
    assert (pulled.path / "model.safetensors").read_text() == "weights"
    assert {step.stage for step in steps} == {"fetch"}
    size = sum(len(text) for text in WHOLE.values())
    assert (steps[-1].done, steps[-1].total) == (size, size)
    assert not pull_model("org/tiny", environ=environ).fetched


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "setting", "words", "hint"),
    [
        ("org/absent", {}, "no such model", "name"),
        ("org/gated", {}, "consent", "accept"),
        ("org/hotel", {}, "not the hub", "log in"),
        ("org/tiny", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be fetched", "network"),
        ("org/tiny", {"HF_HUB_OFFLINE": "1"}, "cannot be fetched", "OFFLINE"),
    ],
)
@pytest.mark.heavy
def test_a_model_that_cannot_be_had_of_a_hub_is_told_why(
    hub: Server, environ: dict[str, str], name: str, setting: Any, words: str, hint: str
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        pull_model(name, environ=environ | setting)
    assert hint in (caught.value.hint or "")


# --- memory ---------------------------------------------------------------------------------------


def test_more_memory_never_gets_a_smaller_model() -> None:
    for platform in ("darwin", "linux"):
        sizes = [suggest_model(memory * GB, platform) for memory in range(1, 600, 3)]
        weights = [found.weights for found in sizes if "/" in found.name]
        assert weights == sorted(weights)
        assert all(
            found.weights < memory * GB
            for memory, found in zip(range(1, 600, 3), sizes, strict=True)
        )


@pytest.mark.parametrize("memory", [None, 0, 4 * GB, 16 * GB, 10**15])
@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_the_suggestion_is_one_line_with_what_to_type(memory: int | None, platform: str) -> None:
    found = suggest_model(memory, platform)
    assert f"models pull {found.name}" in found.line
    assert "\n" not in found.line
