"""The lower bounds of pyproject.toml are honest: the tests pass with exactly those versions."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def lowest() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = []
    for text in project["dependencies"]:
        requirement = Requirement(text)
        (bound,) = [s.version for s in requirement.specifier if s.operator == ">="]
        pins.append(f"{requirement.name}=={bound}")
    return pins


def install(python: Path, *what: str) -> None:
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
    done = subprocess.run([*pip, *what], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_dependency_has_one_lower_bound() -> None:
    assert lowest()


@pytest.mark.slow
def test_the_tests_pass_with_the_lowest_versions_of_the_dependencies(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install(python, *lowest())
    # Test tools and the model server come from the environment of this test, behind the lowest.
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    install(python, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    # Plugins are named, since that environment may declare some that the lowest do not have.
    names = ("anyio", "hypothesispytest", "mlx-tools-golden", "no:cacheprovider")
    plugins = [f"-p{name}" for name in names]
    # Those that start pytest with all the plugins of an environment are left out with it.
    starting = ("tests/golden/test_plugin.py", "tests/golden/test_three_ways.py")
    left_out = ("tests/benchmarks", "tests/docs", "tests/test_bounds.py", "tests/test_wheel.py")
    left_out += starting
    done = subprocess.run(
        [str(python), "-m", "pytest", "-m", "not real and not slow", *plugins]
        + [f"--ignore={path}" for path in left_out],
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
