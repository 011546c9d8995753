"""`mlx-tools config`, and the other commands that run nothing: `models`, `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from mlx_tools.app import config
from mlx_tools.cli import ask
from mlx_tools.testing import ScriptedServer


def test_every_setting_is_shown_with_its_value_and_origin(
    run: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "config").mkdir()
    (home / "config" / "config.toml").write_text("[model]\nseed = 3\n")
    Path("mlx-tools.toml").write_text("[policy]\ndeny = ['clock']\n")
    monkeypatch.setenv("MLX_TOOLS_DRY_RUN", "yes")
    rows = {row["key"]: row for row in run("config", "show", "--json").lines}
    assert list(rows) == list(config.table())
    assert rows["model.seed"]["value"] == 3
    assert rows["model.seed"]["from"][0]["name"].endswith("config.toml")
    assert rows["policy.deny"]["from"][-1]["kind"] == "project"
    assert rows["policy.dry_run"]["from"] == [{"kind": "environment", "name": "MLX_TOOLS_DRY_RUN"}]
    shown = run("config", "show").out
    assert "MLX_TOOLS_DRY_RUN" in shown and "mlx-tools.toml" in shown
    assert len(shown.splitlines()) == len(rows)


def test_a_key_is_never_shown(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_TOOLS_BACKEND_API_KEY", "hush")
    for options in ((), ("--json",)):
        result = run("config", "show", *options)
        assert "hush" not in result.out + result.err and "(hidden)" in result.out


def test_check_names_what_it_read(run: Any, home: Path) -> None:
    Path("mlx-tools.toml").write_text("[limits]\nmax_tokens = 2\n")
    result = run("config", "check")
    assert result.code == 0 and "mlx-tools.toml" in result.out


def test_check_lists_every_fault_on_a_line_of_its_own(run: Any, write: Any) -> None:
    text = "x = 1\n[limits]\nmax_iterations = 0\n[policy]\nallow = 'a'\n"
    result = run("config", "check", write("mine.toml", text))
    assert result.code == 2 and result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("mlx-tools: error: mine.toml: ") for line in lines)


def test_a_file_can_be_checked_as_a_projects(run: Any, write: Any) -> None:
    text = "[limits]\nmax_iterations = 9\n"
    assert run("config", "check", write("mine.toml", text)).code == 0
    assert run("config", "check", write("mlx-tools.toml", text)).code == 2


def test_a_fault_in_a_file_stops_every_command(run: Any, write: Any) -> None:
    write("mlx-tools.toml", "[policy]\nallow = ['run_command']\n")
    for command in (("ask", "Hi"), ("tools", "list"), ("config", "show"), ("parse",)):
        result = run(*command)
        assert result.code == 2 and "mlx-tools.toml: policy.allow" in result.error


def test_models_lists_the_embedded_one(
    run: Any, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    (row,) = run("models", "list", "--json").lines
    assert row["name"] == "smollm2-135m" and row["pulled"] is False and row["path"] is None
    assert run("models", "list").out.startswith("smollm2-135m")


@pytest.mark.parametrize("command", ["path", "pull"])
def test_a_name_that_is_no_models_is_one_line(run: Any, command: str) -> None:
    result = run("models", command, "no such model")
    assert result.code == 2 and "smollm2-135m" in result.error


def test_the_path_of_a_model_that_is_not_here(run: Any) -> None:
    result = run("models", "path", "smollm2-135m")
    assert result.code == 3 and "mlx-tools models pull smollm2-135m" in result.error


def test_the_path_of_a_folder_is_the_folder(run: Any, write: Any) -> None:
    Path("model").mkdir()
    write("model/config.json", {})
    assert run("models", "path", "./model").out == f"{Path('model').absolute()}\n"


def test_doctor_of_a_server_that_is_not_there_is_exit_code_3(run: Any) -> None:
    with ScriptedServer() as server:
        url = server.url
    result = run("doctor", "--url", url, "--json")
    assert result.code == 3 and result.json["ok"] is False
    assert result.json["checks"][0]["name"] == "server"
    assert "FAIL" in run("doctor", "--url", url).out


def test_every_option_of_the_settings_is_one_of_ask() -> None:
    rows = (row.setting for row in config.table().values())
    flags = {row.flag for row in rows if row.group != "gateway"} - {""}
    offered = {flag for one in get_command(ask.app).params for flag in one.opts}
    assert flags <= offered
