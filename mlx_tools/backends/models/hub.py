"""The Hugging Face cache: listing its models, and fetching a model into it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.backends.models.download import PullProgress, Report, run
from mlx_tools.backends.models.embedded import folder_bytes
from mlx_tools.backends.server_errors import json_object
from mlx_tools.errors import MissingDependency, ModelError, UsageError
from mlx_tools.paths import expand_user, package_file, private_dir, read_regular, to_install
from mlx_tools.process import SUPERVISED, clean

REPOSITORY: Final = re.compile(
    r"(?!.*(?:--|\.\.))[\w][\w.-]{0,95}/[\w][\w.-]{0,95}(?<![.-])", re.ASCII
)
"""The name of a repository: ``owner/name``."""

_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "*.txt")
"""The files of a repository that mlx-lm reads. Code is never fetched."""

_SCRIPT: Final = str(package_file("backends/models/hub_fetch.py"))


class ListedModel(Struct, frozen=True):
    """A row of ``mlx-tools models list``."""

    name: str
    source: Literal["embedded", "huggingface"]
    pulled: bool
    """False for the embedded model before it is fetched; ``path`` is then None."""
    size: int
    """The size on the disk in bytes; before the model is fetched, the size that it will have."""
    path: Path | None
    """The model's folder."""
    mlx: bool = True
    """True if the model was made for MLX: quantised by it, or published as such.

    Other models can be loaded, too, if mlx-lm knows their architecture.
    """


def hub_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder of the Hugging Face libraries; it need not exist."""
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(key):
            return expand_user(environ[key])
    home = environ.get("HF_HOME")
    if not home:
        home = f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return expand_user(home) / "hub"


def list_cached_models(environ: Mapping[str, str] = os.environ) -> list[ListedModel]:
    """Return the complete models in the cache, sorted by name."""
    rows = []
    for folder in hub_cache_dir(environ).glob("models--*--*"):
        if (snapshot := _whole(folder)) is not None:
            name = "/".join(folder.name.split("--")[1:3])
            config = _object(snapshot / "config.json")
            is_for_mlx = "quantization" in config or "mlx" in name.lower()
            size = folder_bytes(snapshot)
            rows.append(ListedModel(name, "huggingface", True, size, snapshot, is_for_mlx))
    return sorted(rows, key=lambda row: row.name)


def list_cached_snapshots(environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, Path]]:
    """Yield name and newest snapshot of each repository, also of incomplete ones."""
    for folder in sorted(hub_cache_dir(environ).glob("models--*--*")):
        if (snapshot := next(_snapshots(folder), None)) is not None:
            yield "/".join(folder.name.split("--")[1:3]), snapshot


def find_cached_model(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of the model ``owner/name``, None if absent or incomplete."""
    return _whole(_find_folder(name, environ))


def _find_folder(name: str, environ: Mapping[str, str]) -> Path:
    return hub_cache_dir(environ) / f"models--{name.replace('/', '--')}"


def _whole(folder: Path) -> Path | None:
    """Return the first snapshot that mlx-lm can load, None if there is none."""
    for snapshot in _snapshots(folder):
        config = _object(snapshot / "config.json")
        tokenizers = (snapshot / "tokenizer.json", snapshot / "tokenizer.model")
        has_type = isinstance(config.get("model_type"), str)
        if has_type and any(path.is_file() for path in tokenizers) and _has_weights(snapshot):
            return snapshot
    return None


def _snapshots(folder: Path) -> Iterator[Path]:
    """Yield the snapshot that ``main`` names, then the others, newest first."""
    try:
        main = read_regular(folder / "refs" / "main").decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    # The name comes from a file: it must not lead out of the folder.
    if re.fullmatch(r"[\w-]+", main) and (folder / "snapshots" / main).is_dir():
        yield folder / "snapshots" / main
    try:
        folders = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return
    yield from (path for path in folders if path.name != main)


def _has_weights(snapshot: Path) -> bool:
    """Return True if every weight file exists; a broken link does not count."""
    index = snapshot / "model.safetensors.index.json"
    if index.is_file():
        places = _object(index).get("weight_map")
        names = set(map(str, places.values())) if isinstance(places, dict) else set()
        # Path.is_file raises an error for a long name.
        return bool(names) and all(os.path.isfile(snapshot / name) for name in names)  # noqa: PTH113
    files = list(snapshot.glob("model*.safetensors"))
    return bool(files) and all(path.is_file() for path in files)


def _object(path: Path) -> dict[str, Any]:
    try:
        return json_object(read_regular(path))
    except OSError:
        return {}


def pull_from_hub(
    name: str, report: Report = lambda progress: None, environ: Mapping[str, str] = os.environ
) -> Path:
    """Fetch the repository ``owner/name`` into the cache. Return its folder.

    Files that are in the cache are not fetched again. An interrupted fetch continues.

    Raises:
        UsageError: ``name`` is not the name of a repository.
        MissingDependency: the package ``huggingface_hub``, which mlx-lm needs, is not installed.
        ModelError: there is no such model, no network, no access, no space, or no weights for
            mlx-lm.
    """
    if not REPOSITORY.fullmatch(name):
        raise UsageError(
            f"{clean(name, 80)!r} names no model",
            hint="a model on Hugging Face is called owner/name, e.g. mlx-community/Qwen3-4B-4bit",
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingDependency(
            "fetching from Hugging Face needs huggingface_hub", hint=to_install("mlx")
        )
    cache = private_dir(hub_cache_dir(environ))
    blobs = _find_folder(name, environ) / "blobs"
    old_bytes, total = folder_bytes(blobs), 0

    def watch() -> None:
        nonlocal total
        if not total:
            match = re.search(r"(?m)^total (\d+)$", log.read_text(errors="replace"))
            total = int(match[1]) if match else 0
        # Until the total is known, files of earlier fetches are not counted.
        done = folder_bytes(blobs) - (0 if total else old_bytes)
        report(PullProgress("fetch", min(done, total) if total else max(done, 0), total))

    with tempfile.TemporaryDirectory(prefix="mlx-tools-") as work:
        log = Path(work) / "log"
        environment = dict(environ) | {
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        command = [*SUPERVISED, _SCRIPT, name, str(cache), *_FILES]
        run(command, log, environment, watch, lambda text: _not_pulled(name, text))
    path = find_cached_model(name, environ)
    if path is None:
        raise ModelError(
            f"{name} has no model that mlx-lm can load (config, tokenizer and safetensors)",
            hint="look for a version of it under mlx-community",
        )
    return path


_REASONS: Final = (
    (
        "GatedRepoError",
        "its owner asks for consent first",
        "accept on its page, then hf auth login",
    ),
    ("RepositoryNotFoundError", "there is no such model, or it is private", "check the name"),
    ("RevisionNotFoundError", "it has no main version", "check the name"),
    ("OfflineModeIsEnabled", "HF_HUB_OFFLINE forbids it", "unset HF_HUB_OFFLINE"),
    ("LocalEntryNotFoundError", "the hub cannot be reached", "check the network, then pull again"),
    ("TransportError", "the hub cannot be reached", "check the network, then pull again"),
    ("ConnectionError", "the hub cannot be reached", "check the network, then pull again"),
    ("TimeoutError", "the hub does not answer", "check the network, then pull again"),
    ("JSONDecodeError", "what answers is not the hub", "is there a page to log in at first?"),
)
"""Error classes of huggingface_hub and its libraries, each with reason and hint."""


def _not_pulled(name: str, log: str) -> ModelError:
    match = re.search(r"(?m)^failed (\{.*\})$", log)
    report: dict[str, Any] = json.loads(match[1]) if match else {"kinds": [], "message": log[-300:]}
    if report.get("disk_full"):
        return ModelError("the disk is full", hint="free some space, then pull again")
    for kind, reason, hint in _REASONS:
        if kind in report["kinds"]:
            return ModelError(f"{name} cannot be fetched: {reason}", hint=hint)
    return ModelError(
        f"{name} cannot be fetched: {clean(report['message'], 200)}", hint="pull again"
    )
