"""The package works from a zip archive, and from compiled files without their sources."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
import zipapp
from collections.abc import Callable
from pathlib import Path

import pytest

from mlx_tools.lazy import VERSION
from tests.folders.tool_folders import make_folder

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import json, subprocess, sys

import mlx_tools
from mlx_tools import *
from mlx_tools.testing import ScriptedBackend, answer, call

place, folder = sys.argv[1:]
assert mlx_tools.__file__.startswith(place), mlx_tools.__file__
assert set(mlx_tools.__all__) <= set(dir(mlx_tools))

from mlx_tools.plugins.folders import load_tool

model = ScriptedBackend(call("echo"), answer("It is said."))
tools = [load_tool(folder), *builtin_tools()]
outcome = Controller(model, tools, Policy(allow=["echo"])).run_sync("Say it")
assert isinstance(outcome, Answered), outcome
assert 'got' in model.prompts[-1], model.prompts[-1]

from mlx_tools.process import RELAYED, SUPERVISED

for command in (
    (*RELAYED, "1000", "1000", sys.executable, "-c", "print(7)"),
    (*SUPERVISED, "this"),
):
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline(), command

from mlx_tools.toolbox.worker import Bounds, run_worker

work = "toolbox.html_text.read_html"
read = run_worker(work, "justhtml", {"html": "<p>some text"}, Bounds(60, 60, 2000))
assert "some text" in json.dumps(read), read

from mlx_tools.app import STYLESHEET, templates
from mlx_tools.cli.completion import complete
from mlx_tools.plugins.evaluate import load_tasks
from mlx_tools.gateway.openapi import openapi_document
from mlx_tools.golden import write_report
from mlx_tools.plugins.page.page import _FILES

assert all(path.is_file() for path in _FILES.values())
templates(STYLESHEET.parent).get_template("steps.html.j2")
assert load_tasks()
assert openapi_document()["info"]["version"] == mlx_tools.__version__
typed = {"COMP_WORDS": "mlx-tools doc", "COMP_CWORD": "1"}
assert "doctor" in complete("complete_bash", typed)[0]
"""


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of this environment, but for mlx-tools."""
    folder = tmp_path_factory.mktemp("dependencies")
    for name in ("purelib", "platlib"):
        for path in Path(sysconfig.get_path(name)).iterdir():
            if "mlx_tools" not in path.name and path.suffix != ".pth":
                (folder / path.name).exists() or (folder / path.name).symlink_to(path)
    return folder


def copy_sources(folder: Path) -> Path:
    """The package with its data beside it, as they stand in a checkout."""
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("mlx_tools", "prompts", "config"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    return folder


def copy_as_installed(folder: Path) -> Path:
    """The package with its data in it, as a wheel lays it."""
    package = copy_sources(folder) / "mlx_tools"
    for name in ("prompts", "config"):
        shutil.move(folder / name, package / "_data" / name)
    return folder


def copy_compiled(folder: Path) -> Path:
    """The package without the source of any module."""
    package = copy_as_installed(folder) / "mlx_tools"
    compileall.compile_dir(package, quiet=2, legacy=True)
    for path in package.rglob("*.py"):
        path.unlink()
    return folder


def archive(layout: Callable[[Path], Path], below: str = "") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        layout(folder / "unpacked" / below)
        name = shutil.make_archive(str(folder / "packed"), "zip", folder / "unpacked")
        return Path(name, below)

    return make


LAYOUTS = {
    "compiled": copy_compiled,
    "zip_of_a_checkout": archive(copy_sources),
    "zip_below_a_folder": archive(copy_as_installed, "lib/python"),
    "zip_of_compiled_files": archive(copy_compiled),
}


MORE = ("compiled", "zip_of_a_checkout", "zip_below_a_folder")
"""Checks that a zip of compiled files, an application and one without its prompts pass too."""


@pytest.mark.parametrize(
    "layout",
    [pytest.param(name, marks=[pytest.mark.heavy] * (name in MORE)) for name in LAYOUTS],
)
def test_the_package_works_wherever_python_imports_it_from(
    layout: str, dependencies: Path, tmp_path: Path
) -> None:
    place = LAYOUTS[layout](tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, "-S", program, place, make_folder(tmp_path / "tools")],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "TMPDIR": str(temporary),
            "PYTHONPATH": f"{place}:{dependencies}",
        },
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stderr
    assert not list(temporary.iterdir()), "what was unpacked is still there"


@pytest.mark.heavy
def test_a_zip_application_is_the_command(dependencies: Path, tmp_path: Path) -> None:
    copy_as_installed(tmp_path / "app")
    zipapp.create_archive(tmp_path / "app", tmp_path / "mlx-tools.pyz", main="mlx_tools.cli:main")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-S", "mlx-tools.pyz", *arguments],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "PYTHONPATH": str(dependencies),
            },
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("--version") == f"mlx-tools {VERSION}\n"
    assert "calculator" in run("tools", "list")
    assert "max_iterations" in run("config", "show")


@pytest.mark.heavy
def test_a_file_that_is_missing_in_the_archive_is_named(dependencies: Path, tmp_path: Path) -> None:
    copy_sources(tmp_path / "unpacked")
    shutil.rmtree(tmp_path / "unpacked" / "prompts")
    place = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "unpacked")
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import mlx_tools; mlx_tools.builtin_tools()"],
        env={"HOME": str(tmp_path), "PYTHONPATH": f"{place}:{dependencies}"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    last = done.stderr.splitlines()[-1]
    assert "ConfigError" in last and "prompts/" in last and "is missing" in last, done.stderr
