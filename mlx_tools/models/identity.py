"""What identifies a model, whatever the machine and the path it stands under."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from mlx_tools.models.embedded import EMBEDDED, read_manifest
from mlx_tools.models.hub import REPOSITORY

SAMPLES: Final = 64
"""So many places of a large file go into its digest: a fine-tuned model differs from the one it was
made of in all of its weights, or in those of many layers."""

SAMPLE_BYTES: Final = 4096

_READ: Final = ("*.safetensors", "*.json", "*.model", "*.jinja")


def model_identity(name: str | None, folder: Path | None = None) -> str | None:
    """The model's identity, or None where nothing tells which one it is.

    With its ``folder`` on this machine: the embedded model's name, ``owner/name`` of the Hugging
    Face cache, or ``sha256:`` and a digest of what stands there. Else ``name``, which is what a
    server calls it.
    """
    return folder_identity(folder) if folder is not None else name or None


def folder_identity(folder: Path) -> str | None:
    """The identity of the model in ``folder``; None where the folder cannot be read."""
    manifest = read_manifest(folder)
    for model in EMBEDDED.values():
        if manifest is not None and manifest["source"] == model.gguf_sha256:
            return model.name
    cache = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cache.startswith("models--"):
        name = "/".join(cache.split("--")[1:])
        if REPOSITORY.fullmatch(name):
            return name
    try:
        return _sampled(folder)
    except OSError:
        return None


def _sampled(folder: Path) -> str:
    """A digest of names, sizes and samples of the model's files: weights are gigabytes."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _READ for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            size = file.seek(0, 2)
            digest.update(f"{path.name}\0{size}\0".encode(errors="surrogatepass"))
            step = max(size // SAMPLES, SAMPLE_BYTES)
            for place in range(0, size, step):
                file.seek(place)
                digest.update(file.read(SAMPLE_BYTES))
    return f"sha256:{digest.hexdigest()[:32]}"
