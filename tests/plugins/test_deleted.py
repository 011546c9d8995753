"""The core works without any plugin, and without each of them.

The tree is copied, folders of plugins are deleted there, and tests of the core and the golden
transcripts run in the copy, but for those of the deleted tools.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from mlx_tools.app import ToolRequest, plugins
from mlx_tools.testing import ScriptedServer
from tests.plugins.without_tools import VARIABLE

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = ("mlx_tools", "prompts", "config", "golden_transcripts", "tests", "scripts", "docs")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md")

CORE = (
    *("tests/controller/test_controller.py", "tests/tools/test_tool_search.py"),
    *("tests/cli/test_cli_golden.py", "tests/gateway/test_interfaces.py"),
)
"""Tests of what every plugin could break."""
APPLICATIONS = (
    *("tests/cli/test_cli_ask.py", "tests/cli/test_cli_chat.py", "tests/cli/test_cli_resume.py"),
    *(
        "tests/gateway/test_chat_completions.py",
        "tests/controller/test_resume.py",
        "tests/tools/test_tool.py",
    ),
)
"""Tests of ``ask``, ``chat`` and the gateway."""


def tool_names(plugin: str) -> set[str]:
    """The tools of a built-in plugin."""
    hooks = plugins()
    if plugin not in hooks.built_in("tools"):
        return set()
    found = hooks.call_one(plugin, "tools", built_in=True, request=ToolRequest())
    return {tool.spec.name for _, made in found for tool in made}


def copy_without(folder: Path, *deleted: str) -> Path:
    """Copy the tree, delete these plugins, and leave out the transcripts of their tools."""
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    tools = set[str]().union(*map(tool_names, deleted))
    for name in deleted:
        shutil.rmtree(folder / "mlx_tools" / "plugins" / name)
    for path in (folder / "golden_transcripts").rglob("*.jsonl"):
        text = path.read_text(encoding="utf-8")
        if any(f'"{tool}"' in text for tool in tools):
            path.unlink()
    return folder


def run(
    folder: Path, *arguments: str, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environ = {**os.environ, **paths, **variables}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ, input=stdin, capture_output=True, text=True
    )


def check_tests(folder: Path, deleted: Iterable[str], wanted: Iterable[str]) -> None:
    """Run tests in a copy, but for those of the tools of deleted plugins."""
    tools = ",".join(sorted(set[str]().union(*map(tool_names, deleted))))
    options = ("-q", "-p", "no:cacheprovider")
    if tools:
        options += ("-p", "tests.plugins.without_tools")
    done = run(folder, "pytest", *options, *wanted, **{VARIABLE: tools})
    assert done.returncode == 0, done.stdout[-5000:]


def test_the_tests_that_run_without_plugins_are_there() -> None:
    assert [name for name in (*CORE, *APPLICATIONS) if not (ROOT / name).is_file()] == []


@pytest.mark.heavy
@pytest.mark.parametrize("plugin", plugins().names())
def test_the_core_and_the_golden_set_do_without(plugin: str, tmp_path: Path) -> None:
    folder = copy_without(tmp_path / "tree", plugin)
    check_tests(folder, (plugin,), ("golden_transcripts", *CORE))


@pytest.mark.heavy
def test_ask_chat_golden_and_the_gateway_do_without_all_of_them(tmp_path: Path) -> None:
    folder = copy_without(tmp_path / "tree", *plugins().names())
    shutil.rmtree(folder / "mlx_tools" / "plugins")
    listed = run(folder, "mlx_tools", "--help")
    commands = [command.name for _, made in plugins().call("commands") for command in made]
    assert listed.returncode == 0 and "\n  ask " in listed.stdout
    assert [name for name in commands if f"\n  {name} " in listed.stdout] == []
    for command in (("disable", "read_artifact"), ("enable", "read_artifact"), ("list",)):
        own = str(folder / "data")  # other tests share the home
        done = run(folder, "mlx_tools", "tools", *command, MLX_TOOLS_DATA_DIR=own)
        assert done.returncode == 0, done.stderr
    with ScriptedServer() as server:
        address = ("--url", server.url, "--root", str(tmp_path))
        typed = run(folder, "mlx_tools", "chat", *address, stdin="!git status\n/undo\n")
    assert "nothing ran: there is no tool run_command here" in typed.stderr
    assert "this needs the plugin files, which is not here" in typed.stderr
    check_tests(folder, plugins().names(), ("golden_transcripts", *CORE, *APPLICATIONS))
