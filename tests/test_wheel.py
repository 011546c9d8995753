"""What a user installs: the wheel alone, where nothing knows of this repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.golden.made import golden_file

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
    built = run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        target,
        "-d",
        folder,
        cwd=ROOT,
        home=folder,
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.iterdir()
    return path


@dataclass(frozen=True)
class Installed:
    """A clean environment with the wheel in it, and an empty home to run it from."""

    bin: Path
    home: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return run(self.bin / command[0], *command[1:], cwd=self.home)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, symlinks=True)
    binaries = folder / "bin"
    site = run(
        binaries / "python", "-c", "import site; print(site.getsitepackages()[0])", cwd=folder
    ).stdout.strip()
    # The dependencies come from the environment of the tests, so no network is needed. The file
    # there that names this repository is not followed from here.
    outer = sysconfig.get_paths()["purelib"]
    (Path(site) / "dependencies.pth").write_text(f"{outer}\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python")
    done = run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    home = tmp_path_factory.mktemp("home")
    return Installed(bin=binaries, home=home)


def files_under(folder: Path) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_wheel_carries_the_package_its_words_and_its_defaults(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = {name for name in files_under(ROOT / "mlx_tools") if "__pycache__" not in name}
    data = {
        f"mlx_tools/_data/{name}"
        for folder in ("prompts", "config")
        for name in files_under(ROOT / folder)
    }
    metadata = {name for name in names if name.startswith(f"mlx_tools-{VERSION}.dist-info/")}
    assert names == source | data | metadata
    assert "mlx_tools/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)


def test_the_data_of_the_wheel_is_that_of_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for folder in ("prompts", "config"):
            for name in files_under(ROOT / folder):
                assert archive.read(f"mlx_tools/_data/{name}") == (ROOT / name).read_bytes()


def test_a_wheel_can_be_built_from_the_source_distribution(tmp_path: Path) -> None:
    archive = build("sdist", tmp_path)
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    needed = files_under(ROOT / "prompts") | files_under(ROOT / "config")
    assert {"pyproject.toml", "README.md", "LICENSE", "mlx_tools/py.typed"} | needed <= names
    assert not any(name.startswith((".venv", ".git/")) for name in names)


def test_the_installed_package_is_the_wheel_and_not_this_repository(installed: Installed) -> None:
    done = installed.run("python", "-c", "import mlx_tools; print(mlx_tools.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed.bin.parent)


def test_the_installed_command_tells_its_version(installed: Installed) -> None:
    done = installed.run("mlx-tools", "--version")
    assert done.returncode == 0, done.stderr
    assert VERSION in done.stdout


def test_the_installed_command_has_help(installed: Installed) -> None:
    done = installed.run("mlx-tools", "--help")
    assert done.returncode == 0, done.stderr
    assert "ask" in done.stdout
    assert run(installed.bin / "python", "-m", "mlx_tools", "--help", cwd=installed.home).stdout


def test_pytest_replays_golden_transcripts_where_the_wheel_is_installed(
    wheel: Path, installed: Installed, tmp_path: Path
) -> None:
    declared = f"mlx_tools-{VERSION}.dist-info/entry_points.txt"
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(declared).decode().splitlines()
    assert {"[pytest11]", "mlx-tools-golden = mlx_tools.golden.plugin"} <= {*lines}
    golden_file(tmp_path / "golden", "sums")
    python = installed.bin / "python"
    without = ("-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:hypothesispytest")
    done = run(python, "-m", "pytest", *without, "golden", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_running_the_help_writes_nothing_into_the_home(installed: Installed) -> None:
    installed.run("mlx-tools", "--help")
    assert list(installed.home.iterdir()) == []
