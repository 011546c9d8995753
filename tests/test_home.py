"""A run of the tests leaves the home of whoever runs it alone, and does without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mlx_tools.backends.models.hub import hub_cache_dir
from mlx_tools.paths import cache_dir, config_dir, data_dir, state_dir
from tests.clean_environment import PERSON, clean_environment, is_personal

ROOT = Path(__file__).resolve().parents[1]

WRITERS = "tests/gateway/test_native_models.py"
"""Tests that leave it to the package where a server's verdict stands."""


def test_every_folder_of_the_tests_stands_in_their_own_home() -> None:
    home = Path.home()
    assert home.name.startswith("mlx-tools-home-") and home.is_dir()
    for folder in (cache_dir(), config_dir(), data_dir(), state_dir(), hub_cache_dir()):
        assert folder.is_relative_to(home)
    set_by_readline = {"COLUMNS", "LINES"}
    assert {*filter(is_personal, os.environ)} - set_by_readline == {"HOME"}


def test_what_is_a_persons_is_taken_aside_once() -> None:
    theirs = {"HOME": "/home/ada", "XDG_CACHE_HOME": "/cache"}
    more = {"XDG_CONFIG_HOME": "/config", "MLX_TOOLS_URL": "http://x", "ANTHROPIC_API_KEY": "k"}
    environ = {**theirs, **more, "PATH": "/bin"}
    assert clean_environment(environ) == theirs
    assert environ.keys() == {"HOME", "PATH", PERSON}
    assert not Path(environ["HOME"]).is_relative_to("/home/ada")
    once = dict(environ)
    assert clean_environment(environ) == theirs and environ == once


def test_each_worker_has_a_home_of_its_own(tmp_path: Path) -> None:
    homes = set()
    for worker in ("gw0", "gw1"):
        environ = {PERSON: "{}", "HOME": str(tmp_path), "PYTEST_XDIST_WORKER": worker}
        for _ in range(2):  # what a worker starts has its home
            clean_environment(environ)
            homes.add(environ["HOME"])
    assert len(homes) == 2 and all(Path(home).is_dir() for home in homes)


@pytest.mark.parametrize(
    ("there", "workers"),
    [pytest.param(True, ("-n", "1"), marks=pytest.mark.heavy), (False, ())],
)
def test_a_run_writes_nothing_into_a_home(
    tmp_path: Path, there: bool, workers: tuple[str, ...]
) -> None:
    home = tmp_path / "home"
    names = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    environ: Mapping[str, str] = {
        **{key: value for key, value in os.environ.items() if key not in (PERSON, *names)},
        **{name: str(home / name.lower()) for name in names},
    }
    if there:
        for name in names:
            (home / name.lower()).mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers, WRITERS],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert not [path for path in home.rglob("*") if path.parent != home]
    assert home.exists() == there
