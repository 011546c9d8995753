"""The Hugging Face cache: which models stand there, and fetching one into it."""

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
from mlx_tools.backends.transport import json_object
from mlx_tools.errors import MissingDependency, ModelError, UsageError
from mlx_tools.paths import expand_user, package_file, private_dir, read_regular, to_install
from mlx_tools.process import SUPERVISED, clean

REPOSITORY: Final = re.compile(
    r"(?!.*(?:--|\.\.))[\w][\w.-]{0,95}/[\w][\w.-]{0,95}(?<![.-])", re.ASCII
)
"""What a repository is called: ``owner/name``."""

_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "*.txt")
"""What mlx-lm reads of a repository. Code that may stand in it is left out."""

_SCRIPT: Final = str(package_file("backends/models/hub_fetch.py"))


class ListedModel(Struct, frozen=True):
    """A row of ``mlx-tools models list``. ``size`` is in bytes: on the disk, or to be.

    ``pulled`` is False for the embedded model where it is still to be fetched; ``path`` is then
    None. ``mlx``: it was made for MLX (quantised by it, or published as such); others load as well
    where mlx-lm knows their architecture.
    """

    name: str
    source: Literal["embedded", "huggingface"]
    pulled: bool
    size: int
    path: Path | None
    mlx: bool = True


def hub_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the Hugging Face libraries keep what they fetch; the folder need not exist."""
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(key):
            return expand_user(environ[key])
    home = environ.get("HF_HOME")
    if not home:
        home = f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return expand_user(home) / "hub"


def cached_models(environ: Mapping[str, str] = os.environ) -> list[ListedModel]:
    """The whole models in the cache, by name; half-fetched ones are left out."""
    rows = []
    for folder in hub_cache_dir(environ).glob("models--*--*"):
        if (snapshot := _whole(folder)) is not None:
            name = "/".join(folder.name.split("--")[1:3])
            config = _object(snapshot / "config.json")
            made = "quantization" in config or "mlx" in name.lower()
            size = folder_bytes(snapshot)
            rows.append(ListedModel(name, "huggingface", True, size, snapshot, made))
    return sorted(rows, key=lambda row: row.name)


def cached_snapshots(environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, Path]]:
    """What the cache holds of each repository, by name, whether it is a whole model or not."""
    for folder in sorted(hub_cache_dir(environ).glob("models--*--*")):
        if (snapshot := next(_snapshots(folder), None)) is not None:
            yield "/".join(folder.name.split("--")[1:3]), snapshot


def cached_model(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the model ``owner/name``, a `REPOSITORY`, if the cache holds all of it."""
    return _whole(_folder_of(name, environ))


def _folder_of(name: str, environ: Mapping[str, str]) -> Path:
    return hub_cache_dir(environ) / f"models--{name.replace('/', '--')}"


def _whole(folder: Path) -> Path | None:
    """The first snapshot that mlx-lm can be asked to load."""
    for snapshot in _snapshots(folder):
        config = _object(snapshot / "config.json")
        tokenizers = (snapshot / "tokenizer.json", snapshot / "tokenizer.model")
        known = isinstance(config.get("model_type"), str)
        if known and any(path.is_file() for path in tokenizers) and _has_weights(snapshot):
            return snapshot
    return None


def _snapshots(folder: Path) -> Iterator[Path]:
    """The snapshot that ``main`` names, then the others, newest first."""
    try:
        named = read_regular(folder / "refs" / "main").decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        named = ""
    if re.fullmatch(r"[\w-]+", named) and (folder / "snapshots" / named).is_dir():
        yield folder / "snapshots" / named
    try:
        others = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return
    yield from (path for path in others if path.name != named)


def _has_weights(snapshot: Path) -> bool:
    """Whether every weight file that there should be is there (a link to nothing is not)."""
    index = snapshot / "model.safetensors.index.json"
    if index.is_file():
        places = _object(index).get("weight_map")
        names = set(places.values()) if isinstance(places, dict) else set()
        return bool(names) and all((snapshot / str(name)).is_file() for name in names)
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
    """Fetch the repository ``owner/name`` into the Hugging Face cache; give its snapshot's folder.

    What is there already is not fetched again, and a fetch that was broken off goes on where it
    stopped.

    Raises:
        UsageError: that is no repository's name.
        MissingDependency: the ``huggingface_hub`` package (which mlx-lm brings) is not here.
        ModelError: no such model, no network, no access, no space, or no weights for mlx-lm in it.
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
    blobs = _folder_of(name, environ) / "blobs"
    before, total = folder_bytes(blobs), 0

    def watch() -> None:
        nonlocal total
        if not total:
            said = re.search(r"(?m)^total (\d+)$", log.read_text(errors="replace"))
            total = int(said[1]) if said else 0
        done = folder_bytes(blobs) - (0 if total else before)
        report(PullProgress("fetch", min(done, total) if total else max(done, 0), total))

    with tempfile.TemporaryDirectory(prefix="mlx-tools-") as work:
        log = Path(work) / "log"
        own = dict(environ) | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [*SUPERVISED, _SCRIPT, name, str(cache), *_FILES]
        run(command, log, own, watch, lambda said: _not_pulled(name, said))
    path = cached_model(name, environ)
    if path is None:
        raise ModelError(
            f"{name} holds no model that mlx-lm can load (config, tokenizer and safetensors)",
            hint="look for a version of it under mlx-community",
        )
    return path


_REASONS: Final = (
    # a class that huggingface_hub or what it is built on raises, what it means, what to do
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


def _not_pulled(name: str, log: str) -> ModelError:
    found = re.search(r"(?m)^failed (\{.*\})$", log)
    said: dict[str, Any] = json.loads(found[1]) if found else {"kinds": [], "message": log[-300:]}
    if said.get("disk_full"):
        return ModelError("the disk is full", hint="free some space, then pull again")
    for kind, what, hint in _REASONS:
        if kind in said["kinds"]:
            return ModelError(f"{name} cannot be fetched: {what}", hint=hint)
    return ModelError(f"{name} cannot be fetched: {clean(said['message'], 200)}", hint="pull again")
