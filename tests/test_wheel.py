"""The installed program: the wheel alone, where nothing knows of this repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.golden.recordings import write_golden_file

ROOT = Path(__file__).resolve().parent.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def run(
    *command: str | Path, cwd: Path, home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command with nothing of the developer's environment but PATH.

    Its home is ``home``, else the working directory.
    """
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(home or cwd), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def build(target: str, folder: Path) -> Path:
    command = (sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder)
    built = run(*command, cwd=ROOT, home=folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a clean environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    # The dependencies come from the environment of the tests, so no network is needed. The file
    # there that names this repository is not followed from here.
    outer = sysconfig.get_paths()["purelib"]
    (site / "dependencies.pth").write_text(f"{outer}\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    done = run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def files_under(folder: Path) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_wheel_carries_the_package_and_the_words_and_defaults_of_the_repository(
    wheel: Path,
) -> None:
    source = {name for name in files_under(ROOT / "mlx_tools") if "__pycache__" not in name}
    data = {name for folder in ("prompts", "config") for name in files_under(ROOT / folder)}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for name in data:
            assert archive.read(f"mlx_tools/_data/{name}") == (ROOT / name).read_bytes()
    metadata = {name for name in names if name.startswith(f"mlx_tools-{VERSION}.dist-info/")}
    assert names == source | {f"mlx_tools/_data/{name}" for name in data} | metadata
    assert "mlx_tools/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)


@pytest.mark.heavy
def test_a_wheel_can_be_built_from_the_source_distribution(tmp_path: Path) -> None:
    archive = build("sdist", tmp_path)
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    needed = files_under(ROOT / "prompts") | files_under(ROOT / "config")
    assert {"pyproject.toml", "README.md", "LICENSE", "mlx_tools/py.typed"} | needed <= names
    assert not any(name.startswith((".venv", ".git/")) for name in names)


@pytest.mark.heavy
def test_the_installed_command_is_the_wheels_and_writes_nothing_for_its_help(
    binaries: Path, tmp_path: Path
) -> None:
    where = "import mlx_tools; print(mlx_tools.__file__)"
    for command, said in (
        (("python", "-c", where), str(binaries.parent)),
        (("mlx-tools", "--version"), VERSION),
        (("mlx-tools", "--help"), "ask"),
        (("python", "-m", "mlx_tools", "--help"), "ask"),
    ):
        done = run(binaries / command[0], *command[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
def test_pytest_replays_golden_transcripts_where_the_wheel_is_installed(
    binaries: Path, tmp_path: Path
) -> None:
    (site,) = (binaries.parent / "lib").glob("python*/site-packages")
    declared = site / f"mlx_tools-{VERSION}.dist-info" / "entry_points.txt"
    lines = declared.read_text(encoding="utf-8").splitlines()
    assert {"[pytest11]", "mlx-tools-golden = mlx_tools.golden.plugin"} <= {*lines}
    write_golden_file(tmp_path / "golden", "sums")
    alone = ("--disable-plugin-autoload", "-p", "mlx-tools-golden", "-p", "no:cacheprovider")
    done = run(binaries / "python", "-m", "pytest", *alone, "golden", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
