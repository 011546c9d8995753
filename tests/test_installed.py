"""Advice on adding an extra, by who installed the program, and from where."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from mlx_tools.paths import command_to_install, to_install

GIT = {"url": "https://h/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
EDITABLE = {"url": "file:///src/mlx tools", "dir_info": {"editable": True}}


def found(folder: Path, installer: str = "pip", source: object = None) -> Distribution:
    info = folder / "mlx_tools-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "INSTALLER").write_text(f"{installer}\n")
    (info / "direct_url.json").write_text(json.dumps(source) if source else "")
    return PathDistribution(info)


def said(folder: Path, distribution: Distribution) -> str:
    return command_to_install("gateway", distribution, folder, f"{folder}/bin/python")


def test_pip_of_another_environment_is_not_named(tmp_path: Path) -> None:
    assert said(tmp_path, found(tmp_path)) == (
        f"{tmp_path}/bin/python -m pip install 'mlx-tools[gateway]'"
    )


def test_uv_installs_into_the_environment_that_runs(tmp_path: Path) -> None:
    assert said(tmp_path, found(tmp_path, "uv", EDITABLE)) == (
        f"uv pip install --python {tmp_path}/bin/python -e '/src/mlx tools[gateway]'"
    )


def test_pipx_adds_to_the_environment_of_the_program(tmp_path: Path) -> None:
    prefix = tmp_path / "mlx-tools"
    prefix.mkdir()
    (prefix / "pipx_metadata.json").write_text("{}")
    assert said(prefix, found(tmp_path)) == "pipx inject mlx-tools 'mlx-tools[gateway]'"
    assert said(prefix, found(tmp_path, source=GIT)) == (
        "pipx inject mlx-tools 'mlx-tools[gateway] @ git+https://h/x.git@abc'"
    )


@pytest.mark.parametrize(
    ("receipt", "wanted"),
    [
        ('[tool]\nrequirements = [{ name = "mlx-tools" }]', "'mlx-tools[gateway]'"),
        (
            '[tool]\nrequirements = [{ name = "mlx-tools", extras = ["pdf"] }, { name = "ddgs" }]',
            "'mlx-tools[pdf,gateway]' --with ddgs",
        ),
        ("damaged", "'mlx-tools[gateway]'"),
    ],
)
def test_uv_tool_keeps_what_was_asked_for_before(tmp_path: Path, receipt: str, wanted: str) -> None:
    (tmp_path / "uv-receipt.toml").write_text(receipt)
    assert said(tmp_path, found(tmp_path, "uv")) == f"uv tool install {wanted}"


def test_this_very_installation_is_told_a_command() -> None:
    assert "[pdf]" in to_install("pdf") and " install " in to_install("pdf")
