"""Models by name: what there is, where it stands, and having it fetched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlx_tools.backends.models.download import Report
from mlx_tools.backends.models.embedded import (
    EMBEDDED,
    best_precision,
    folder_bytes,
    is_complete,
    model_folder,
)
from mlx_tools.backends.models.hub import REPOSITORY, cached_model, cached_models, pull_from_hub
from mlx_tools.backends.models.pull import Pulled, pull_embedded
from mlx_tools.errors import ModelError, UsageError
from mlx_tools.process import clean


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A row of ``mlx-tools models list``. ``size`` is in bytes: on the disk, or to be.

    ``pulled`` is False for the embedded model where it is still to be fetched; ``path`` is then
    None.
    """

    name: str
    source: Literal["embedded", "huggingface"]
    pulled: bool
    size: int
    path: Path | None
    mlx: bool = True


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
    cached = cached_models(environ)
    return rows + [ListedModel(m.name, "huggingface", True, m.size, m.path, m.mlx) for m in cached]


def find_model(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the model called ``name``, or None where it is not on this machine.

    ``name`` is the embedded model's, a folder, or ``owner/name`` of the Hugging Face cache; a name
    that could be both is the folder only if it starts with ``/``, ``.`` or ``~``.
    """
    embedded = EMBEDDED.get(name)
    if embedded is not None:
        folder = model_folder(embedded, best_precision(), environ)
        return folder if is_complete(folder, embedded) else None
    if not name.startswith(("/", ".", "~")):
        cached = cached_model(name, environ)
        if cached is not None:
            return cached.path
    try:
        folder = Path(name).expanduser()
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
    name: str,
    report: Report = lambda progress: None,
    environ: Mapping[str, str] = os.environ,
) -> Pulled:
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
    return Pulled(path, fetched=before is None or before.path != path)


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"{clean(name, 80)!r} names no model",
        hint=f"use {', '.join(EMBEDDED)}, owner/name as on Hugging Face, or a model's folder",
    )
