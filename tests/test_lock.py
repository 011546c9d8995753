"""requirements.lock serves macOS and Linux, holds no address, and fits pyproject.toml."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

LARGE = {"vision", "speech"}
"""Extras of a gigabyte, which nothing else needs."""
LEFT_OUT = LARGE | {"all"}
"""Extras that the lock is not made of: ``all`` only names others."""

PYTHONS = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: Python :: 3." in text]

MAC = {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"}
OLD_MAC = MAC | {"platform_machine": "x86_64"}
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}


def lines() -> list[str]:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def locked(platform: dict[str, str], python: str = "3.11") -> dict[str, Requirement]:
    """The packages that the lock installs on a platform, by name."""
    environment = platform | {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    found = [Requirement(line) for line in lines()]
    return {
        canonicalize_name(requirement.name): requirement
        for requirement in found
        if requirement.marker is None or requirement.marker.evaluate(environment)
    }


def declared(platform: dict[str, str]) -> list[Requirement]:
    """The requirements of pyproject.toml on a platform, with every extra that the lock serves."""
    texts = [*PROJECT["dependencies"]]
    for extra, requirements in PROJECT["optional-dependencies"].items():
        texts += requirements if extra not in LEFT_OUT else ()
    found = [Requirement(text) for text in texts]
    return [r for r in found if r.marker is None or r.marker.evaluate(platform)]


def test_every_line_is_one_exact_version_and_no_address() -> None:
    assert lines()
    for line in lines():
        assert re.match(r"[a-z0-9-]+==[0-9][\w.]*( ;|$)", line), line
        assert "://" not in line


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", [MAC, OLD_MAC, LINUX], ids=["mac", "old-mac", "linux"])
def test_the_lock_satisfies_every_declared_bound(platform: dict[str, str], python: str) -> None:
    versions = locked(platform, python)
    for requirement in declared(platform):
        assert canonicalize_name(requirement.name) in versions, f"{requirement}: make lock"
        pinned = versions[canonicalize_name(requirement.name)]
        version = str(pinned.specifier).removeprefix("==")
        assert requirement.specifier.contains(version), f"{requirement}: make lock"


def test_the_lock_is_made_of_all_other_extras() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (named,) = re.findall(r"^LOCKED := (.*)$", makefile, re.MULTILINE)
    assert set(named.split()) == set(PROJECT["optional-dependencies"]) - LEFT_OUT


def test_all_extras_are_one_choice() -> None:
    extras = PROJECT["optional-dependencies"]
    (text,) = extras["all"]
    assert Requirement(text).name == PROJECT["name"]
    assert Requirement(text).extras == set(extras) - LARGE - {"all", "dev"}


def install_on_a_mac(folder: Path, python: str, *words: str) -> str:
    """The packages that pip would install on a Mac with macOS 14, from wheels alone."""
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    assert uv is not None
    tried = subprocess.run(
        [
            *(uv, "pip", "install", "--dry-run", "--only-binary", ":all:"),
            *("--python-platform", "aarch64-apple-darwin", "--python-version", python),
            *("--target", folder, *words),
        ],
        env=os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"},
        capture_output=True,
        text=True,
    )
    assert tried.returncode == 0, tried.stderr
    return tried.stderr


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_nothing_is_compiled_on_a_mac(tmp_path: Path, python: str) -> None:
    locked = ("--no-deps", "-r", str(ROOT / "requirements.lock"))
    assert "+ mlx-metal==" in install_on_a_mac(tmp_path, python, *locked)
    extras = (word for name in ("all", *sorted(LARGE)) for word in ("--extra", name))
    newest = ("-r", str(ROOT / "pyproject.toml"), *extras)
    assert "+ mlx-metal==" in install_on_a_mac(tmp_path, python, *newest)


def test_each_platform_gets_its_own_build_of_mlx() -> None:
    mac, linux, old_mac = set(locked(MAC)), set(locked(LINUX)), set(locked(OLD_MAC))
    assert {"mlx", "mlx-lm", "mlx-metal"} <= mac
    assert {"mlx", "mlx-lm", "mlx-cpu"} <= linux
    assert "mlx-cpu" not in mac
    assert "mlx-metal" not in linux
    assert not any(name.startswith("mlx") for name in old_mac)


def test_the_environment_of_the_benchmarks_has_all_that_the_package_needs() -> None:
    text = (ROOT / "benchmarks" / "peers.txt").read_text(encoding="utf-8")
    there = set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))
    needed = {canonicalize_name(Requirement(one).name) for one in PROJECT["dependencies"]}
    assert needed <= there, "python benchmarks/run.py --lock"
