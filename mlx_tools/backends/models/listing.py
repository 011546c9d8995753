"""Models by name: finding, listing, fetching, identifying and suggesting them."""

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
    find_cached_model,
    list_cached_models,
    pull_from_hub,
)
from mlx_tools.errors import ModelError, UsageError
from mlx_tools.paths import expand_user, open_regular
from mlx_tools.process import clean


class ModelMissing(ModelError):
    """The model ``name`` is not on this machine, but can be pulled."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the model {name} is not on this machine", hint=f"mlx-tools models pull {name}"
        )
        self.name = name


def list_models(environ: Mapping[str, str] = os.environ) -> list[ListedModel]:
    """Return the embedded model, pulled or not, and those in the Hugging Face cache."""
    rows = []
    for model in EMBEDDED.values():
        folder = model_folder(model, best_precision(), environ)
        pulled = is_complete(folder, model)
        size = folder_bytes(folder) if pulled else model.converted_bytes[best_precision()]
        rows.append(ListedModel(model.name, "embedded", pulled, size, folder if pulled else None))
    return rows + list_cached_models(environ)


def find_model(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of the model called ``name``, None if not on this machine.

    ``name`` is the embedded model's name, a folder, or ``owner/name`` in the Hugging Face cache. If
    it could be both of the latter, the cache comes first.
    """
    embedded = EMBEDDED.get(name)
    if embedded is not None:
        folder = model_folder(embedded, best_precision(), environ)
        return folder if is_complete(folder, embedded) else None
    if REPOSITORY.fullmatch(name):
        cached = find_cached_model(name, environ)
        if cached is not None:
            return cached
    try:
        folder = expand_user(name)
        return folder.absolute() if name and (folder / "config.json").is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def model_path(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the model called ``name``; see `find_model`.

    Raises:
        UsageError: no model can have this name.
        ModelMissing: the model is not on this machine; the hint has the command to fetch it.
    """
    folder = find_model(name, environ)
    if folder is not None:
        return folder
    if name in EMBEDDED or REPOSITORY.fullmatch(name):
        raise ModelMissing(name)
    raise _unknown(name)


def pull_model(
    name: str, report: Report = lambda progress: None, environ: Mapping[str, str] = os.environ
) -> PullResult:
    """Fetch the model called ``name``, unless it is complete on this machine.

    Raises:
        UsageError: no model can have this name.
        MissingDependency: a package for fetching or converting is not installed.
        ModelError: the model cannot be fetched.
    """
    embedded = EMBEDDED.get(name)
    if embedded is not None:
        return pull_embedded(embedded, report, environ=environ)
    if not REPOSITORY.fullmatch(name):
        raise _unknown(name)
    old_path = find_cached_model(name, environ)
    path = pull_from_hub(name, report, environ)
    return PullResult(path, fetched=old_path != path)


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"{clean(name, 80)!r} names no model",
        hint=f"use {', '.join(EMBEDDED)}, owner/name as on Hugging Face, or a model's folder",
    )


# --- the identity of a model, independent of machine and path ---------------------------------

SAMPLES: Final = 64
"""The number of samples of a large file in its digest.

A choice: a fine-tuned model differs from its base in all of its weights, or in those of many
layers. So 64 samples show a difference, and gigabytes need not be read.
"""

SAMPLE_BYTES: Final = 4096
"""The size of a sample: one page of a disk."""

_DIGESTED_FILES: Final = ("*.safetensors", "*.json", "*.model", "*.jinja")
"""The files of a model that have an effect on its text, and so are part of its digest."""


def model_identity(name: str | None, folder: Path | None = None) -> str | None:
    """Return the model's identity, None if unknown.

    Args:
        name: the server's name for the model. Without a folder it is the identity, unless it means
            the embedded model.
        folder: the model's folder on this machine. Then the identity is the embedded model's name,
            ``owner/name`` of the Hugging Face cache, or ``sha256:`` and a digest of the files.
    """
    if folder is not None:
        return folder_identity(folder)
    return (known_model(name) or name) if name else None


def known_model(name: str) -> str | None:
    """Return the embedded model that a server calls ``name``, None for other models.

    A server may use the model's name, the name of its folder, or that of its GGUF file. A name on
    Hugging Face is never the embedded model's.
    """
    if REPOSITORY.fullmatch(name):
        return None
    tail = last_part(name)
    for model in EMBEDDED.values():
        folders = [f"{model.name}-{precision}" for precision in get_args(Precision)]
        file = last_part(model.member)
        if tail in (model.name, *folders, file, file.removesuffix(".gguf")):
            return model.name
    return None


def last_part(name: str) -> str:
    """Return the last part of a path on any system, or of ``owner/name``."""
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def folder_identity(folder: Path) -> str | None:
    """Return the identity of the model in ``folder``, None if it cannot be read."""
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
        return _digest_samples(path for pattern in _DIGESTED_FILES for path in folder.glob(pattern))
    except OSError:
        return None


def _digest_samples(paths: Iterable[Path]) -> str:
    """Return a digest of names, sizes and samples of files, because weights are large."""
    digest = hashlib.sha256()
    for path in sorted(set(paths)):
        with open_regular(path) as file:
            size = file.seek(0, 2)
            digest.update(f"{path.name}\0{size}\0".encode(errors="surrogatepass"))
            # A small file is read completely, a large one in samples at equal distances.
            step = max(size // SAMPLES, SAMPLE_BYTES)
            for place in range(0, size, step):
                file.seek(place)
                digest.update(file.read(SAMPLE_BYTES))
    return f"sha256:{digest.hexdigest()[:32]}"


# --- suggesting a model by the size of the memory ---------------------------------------------

GB: Final = 10**9


class Suggestion(NamedTuple):
    """A suggested model."""

    name: str
    weights: int
    """The size of the weights in bytes."""
    line: str
    """One line for a person, with the reason."""


_METAL: Final = (
    (0.4, "mlx-community/Qwen3-0.6B-4bit"),
    (1.0, "mlx-community/Qwen3-1.7B-4bit"),
    (2.3, "mlx-community/Qwen3-4B-4bit"),
    (4.7, "mlx-community/Qwen3-8B-4bit"),
    (8.4, "mlx-community/Qwen3-14B-4bit"),
    (17.2, "mlx-community/Qwen3-30B-A3B-4bit"),
    (132.3, "mlx-community/Qwen3-235B-A22B-4bit"),
)
"""Models by the gigabytes of their weights: 4-bit versions for MLX of one family that calls tools.
"""

WEIGHTS_SHARE: Final = 0.4
"""The share of the memory for a model's weights.

A choice: macOS lets the GPU use about two thirds of the memory, and the key-value cache and other
programs need their part of it.
"""


def memory_bytes() -> int | None:
    """Return the bytes of the machine's or container's memory, None if unknown."""
    total = None
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        # A container may have less memory than the machine; "max" means no limit.
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def suggest_model(memory: int | None, platform: str = sys.platform) -> Suggestion:
    """Return the largest suitable model for ``memory`` bytes.

    Without Metal, which only macOS has, only small models are fast enough for a chat.
    """
    share, metal = WEIGHTS_SHARE * (memory or 0), platform == "darwin"
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
