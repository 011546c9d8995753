"""Models by name: what there is, where it stands, having it fetched, what identifies it, and which
suits this machine's memory."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, get_args

from mlx_tools.backends.models.download import Report
from mlx_tools.backends.models.embedded import (
    DEFAULT_MODEL,
    EMBEDDED,
    Precision,
    PullResult,
    best_precision,
    folder_bytes,
    is_complete,
    model_folder,
    pull_embedded,
    read_manifest,
)
from mlx_tools.backends.models.hub import (
    REPOSITORY,
    ListedModel,
    cached_model,
    cached_models,
    pull_from_hub,
)
from mlx_tools.errors import ModelError, UsageError
from mlx_tools.paths import expand_user, open_regular
from mlx_tools.process import clean


class ModelMissing(ModelError):
    """The model is known by name, and could be pulled; ``name`` says which."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the model {name} is not on this machine", hint=f"mlx-tools models pull {name}"
        )
        self.name = name


def list_models(environ: Mapping[str, str] = os.environ) -> list[ListedModel]:
    """The embedded model, pulled or not, then what the Hugging Face cache holds."""
    rows = []
    for model in EMBEDDED.values():
        folder = model_folder(model, best_precision(), environ)
        pulled = is_complete(folder, model)
        size = folder_bytes(folder) if pulled else model.converted_bytes[best_precision()]
        rows.append(ListedModel(model.name, "embedded", pulled, size, folder if pulled else None))
    return rows + cached_models(environ)


def find_model(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the model called ``name``, or None where it is not on this machine.

    ``name`` is the embedded model's, a folder, or ``owner/name`` of the Hugging Face cache; a name
    that could be both is the folder only if it starts with ``/``, ``.`` or ``~``.
    """
    embedded = EMBEDDED.get(name)
    if embedded is not None:
        folder = model_folder(embedded, best_precision(), environ)
        return folder if is_complete(folder, embedded) else None
    if REPOSITORY.fullmatch(name):
        cached = cached_model(name, environ)
        if cached is not None:
            return cached
    try:
        folder = expand_user(name)
        return folder.absolute() if name and (folder / "config.json").is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def model_path(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """As `find_model`.

    Raises:
        UsageError: ``name`` can be no model's.
        ModelMissing: the model is not on this machine; says how to fetch it.
    """
    found = find_model(name, environ)
    if found is not None:
        return found
    if name in EMBEDDED or REPOSITORY.fullmatch(name):
        raise ModelMissing(name)
    raise _unknown(name)


def pull_model(
    name: str, report: Report = lambda progress: None, environ: Mapping[str, str] = os.environ
) -> PullResult:
    """Have the model called ``name`` on this machine, whole.

    Raises:
        UsageError: ``name`` can be no model's.
        MissingDependency: a package that fetching or converting needs is not here.
        ModelError: it cannot be had; says why, and what to do.
    """
    embedded = EMBEDDED.get(name)
    if embedded is not None:
        return pull_embedded(embedded, report, environ=environ)
    if not REPOSITORY.fullmatch(name):
        raise _unknown(name)
    before = cached_model(name, environ)
    path = pull_from_hub(name, report, environ)
    return PullResult(path, fetched=before != path)


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"{clean(name, 80)!r} names no model",
        hint=f"use {', '.join(EMBEDDED)}, owner/name as on Hugging Face, or a model's folder",
    )


# --- what identifies a model, whatever the machine and the path it stands under ---------------

SAMPLES: Final = 64
"""So many places of a large file go into its digest: a fine-tuned model differs from the one it was
made of in all of its weights, or in those of many layers."""

SAMPLE_BYTES: Final = 4096

_READ: Final = ("*.safetensors", "*.json", "*.model", "*.jinja")


def model_identity(name: str | None, folder: Path | None = None) -> str | None:
    """The model's identity, or None where nothing tells which one it is.

    With its ``folder`` on this machine: the embedded model's name, ``owner/name`` of the Hugging
    Face cache, or ``sha256:`` and a digest of what stands there. Else ``name``, which is what a
    server calls it, or the embedded model's where that means it.
    """
    if folder is not None:
        return folder_identity(folder)
    return (known_model(name) or name) if name else None


def known_model(name: str) -> str | None:
    """The embedded model that a server calls ``name``: by the model's own name, its folder's, or
    that of the file which it was made from. None for any other, and for what is on Hugging Face."""
    if REPOSITORY.fullmatch(name):
        return None
    last = last_part(name)
    for model in EMBEDDED.values():
        folders = [f"{model.name}-{precision}" for precision in get_args(Precision)]
        file = last_part(model.member)
        if last in (model.name, *folders, file, file.removesuffix(".gguf")):
            return model.name
    return None


def last_part(name: str) -> str:
    """What stands last in a path of any system's, or in ``owner/name``."""
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def folder_identity(folder: Path) -> str | None:
    """The identity of the model in ``folder``; None where the folder cannot be read."""
    manifest = read_manifest(folder)
    for model in EMBEDDED.values():
        if manifest is not None and manifest.source == model.gguf_sha256:
            return model.name
    cache = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cache.startswith("models--"):
        name = "/".join(cache.split("--")[1:])
        if REPOSITORY.fullmatch(name):
            return name
    try:
        return _sampled(path for pattern in _READ for path in folder.glob(pattern))
    except OSError:
        return None


def _sampled(paths: Iterable[Path]) -> str:
    """A digest of names, sizes and samples of the model's files: weights are gigabytes."""
    digest = hashlib.sha256()
    for path in sorted(set(paths)):
        with open_regular(path) as file:
            size = file.seek(0, 2)
            digest.update(f"{path.name}\0{size}\0".encode(errors="surrogatepass"))
            step = max(size // SAMPLES, SAMPLE_BYTES)
            for place in range(0, size, step):
                file.seek(place)
                digest.update(file.read(SAMPLE_BYTES))
    return f"sha256:{digest.hexdigest()[:32]}"


# --- which model suits this machine's memory --------------------------------------------------

GB: Final = 10**9


class Suggestion(NamedTuple):
    """A model, its weights in bytes, and one line that says why it suits."""

    name: str
    weights: int
    line: str


_METAL: Final = (
    # weights in GB, model: 4-bit versions published for MLX, all of one family that calls tools
    (0.4, "mlx-community/Qwen3-0.6B-4bit"),
    (1.0, "mlx-community/Qwen3-1.7B-4bit"),
    (2.3, "mlx-community/Qwen3-4B-4bit"),
    (4.7, "mlx-community/Qwen3-8B-4bit"),
    (8.4, "mlx-community/Qwen3-14B-4bit"),
    (17.2, "mlx-community/Qwen3-30B-A3B-4bit"),
    (132.3, "mlx-community/Qwen3-235B-A22B-4bit"),
)

SHARE: Final = 0.4
"""Of the memory, for weights: macOS lets the GPU hold about two thirds, and the key-value cache
and other programs need their part."""


def memory_bytes() -> int | None:
    """This machine's memory, or what a container allows of it; None where it cannot be told."""
    total = None
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def suggest_model(memory: int | None, platform: str = sys.platform) -> Suggestion:
    """The largest model that leaves room for the rest, for ``memory`` bytes of it.

    Without Metal (any platform but macOS) only small models are quick enough to talk to.
    """
    share, metal = SHARE * (memory or 0), platform == "darwin"
    where = f"{memory / 2**30:.0f} GB of memory" if memory else "memory of unknown size"
    where += "" if metal else " and no Metal"
    fits = [entry for entry in (_METAL if metal else _METAL[:2]) if entry[0] * GB <= share]
    if not fits:
        return Suggestion(
            DEFAULT_MODEL,
            GB // 2,
            f"for {where}: mlx-tools models pull {DEFAULT_MODEL} (a demonstration model)",
        )
    size, name = fits[-1]
    line = f"for {where}: mlx-tools models pull {name} ({size:g} GB)"
    return Suggestion(name, int(size * GB), line)
