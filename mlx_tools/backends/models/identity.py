"""What identifies a model, whatever the machine and the path it stands under."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, get_args

from mlx_tools.backends.models.embedded import EMBEDDED, Precision, model_folder, read_manifest
from mlx_tools.backends.models.hub import REPOSITORY

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
        if manifest is not None and manifest["source"] == model.gguf_sha256:
            return model.name
        for precision in get_args(Precision):
            if _is_copy(folder, model_folder(model, precision)):
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


def _is_copy(folder: Path, pulled: Path) -> bool:
    """Whether ``folder`` holds the pulled model's files, by name and by what is in them."""
    manifest = read_manifest(pulled)
    if manifest is None:
        return False
    sizes = {name: size for name, (size, _) in manifest["files"].items()}
    try:
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return False
        return _sampled(folder / name for name in sizes) == _sampled(pulled / n for n in sizes)
    except OSError:
        return False


def _sampled(paths: Iterable[Path]) -> str:
    """A digest of names, sizes and samples of the model's files: weights are gigabytes."""
    digest = hashlib.sha256()
    for path in sorted(set(paths)):
        with path.open("rb") as file:
            size = file.seek(0, 2)
            digest.update(f"{path.name}\0{size}\0".encode(errors="surrogatepass"))
            step = max(size // SAMPLES, SAMPLE_BYTES)
            for place in range(0, size, step):
                file.seek(place)
                digest.update(file.read(SAMPLE_BYTES))
    return f"sha256:{digest.hexdigest()[:32]}"
