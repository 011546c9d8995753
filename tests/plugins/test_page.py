"""The plugins of docs/plugins.md do what the page says."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import Controller, Policy, tool
from mlx_tools.app import Plugins, ToolRequest
from mlx_tools.backends import CompletionRequest
from mlx_tools.errors import UsageError
from mlx_tools.testing import ScriptedBackend, answer, call
from tests.tables import table

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))


def check_tools(result: Any) -> None:
    assert [tool.spec.name for tool in result] == ["moon"]


def check_commands(result: Any) -> None:
    assert [command.name for command in result] == ["moon"]


def check_settings(result: Any) -> None:
    assert result["moon"]().half == "north"
    assert result["moon"]().days == 7


def check_backends(result: Any) -> None:
    async def text() -> str:
        backend = result["echo"]("echo:http://127.0.0.1:9000")
        request = CompletionRequest(prompt="", messages=({"role": "user", "content": "hello"},))
        return "".join([chunk.text async for chunk in backend.complete(request)])

    assert anyio.run(text) == "You said: hello"


def check_checks(result: Any) -> None:
    assert [check.name for check in result] == ["ffmpeg"]


def check_routes(result: Any) -> None:
    assert [route.path for route in result] == ["/v1/moon"]


def check_observers(result: Any) -> None:
    backend = ScriptedBackend(call("moon"), answer("It is full."))
    controller = Controller(backend, [moon], Policy(allow=["moon"]), observers=result)
    assert controller.run_sync("What is the moon like?").status == "answered"
    assert result[0].counts == {"moon": 1}


@tool(effects={"read"})
def moon() -> str:
    """Tells the phase of the moon."""
    return "full"


def check_store(result: Any) -> None:
    (kind,) = result
    assert kind.open("folder:///nowhere/sessions").place
    with pytest.raises(UsageError):
        kind.check("nowhere")


HOOKS: dict[str, tuple[dict[str, Any], Callable[[Any], None]]] = {
    "tools": ({"request": ToolRequest()}, check_tools),
    "commands": ({}, check_commands),
    "settings": ({}, check_settings),
    "backends": ({}, check_backends),
    "checks": ({"configuration": None}, check_checks),
    "routes": ({"gateway": None}, check_routes),
    "observers": ({}, check_observers),
    "store": ({}, check_store),
}


def test_the_page_shows_one_of_each_hook() -> None:
    assert {f"plugin_with_{hook}.py" for hook in HOOKS} <= FILES.keys()


@table("hook", list(HOOKS))
def test_a_hook_of_the_page_works(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"plugin_with_{hook}"
    (tmp_path / f"{name}.py").write_text(FILES[f"{name}.py"])
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    hooks = Plugins("mlx_tools.no_such_package", lambda _: [EntryPoint("x", name, "mlx_tools")])
    arguments, check = HOOKS[hook]
    results = [result for _, result in hooks.call(hook, **arguments)]
    assert hooks.faults == {} and len(results) == 1
    check(results[0])


FAULTY = """
from typing import Annotated
import typer
from mlx_tools.app import Command, Section, Setting, hookimpl
app = typer.Typer()
class OddSettings(Section, frozen=True):
    x: Annotated[int, Setting("any", "An odd number")] = 1
    def __post_init__(self):
        if self.x % 2 == 0: raise KeyError("even")
class NoSettings(Section, frozen=True):
    pass
@app.command()
def fail(): raise ValueError("no luck")
@hookimpl
def commands():
    names = ("fail", "ask", "ask more", "tools list", "tools fail", "--help")
    places = {"tools fail": "no_such_module:app"}
    return [Command(name, "Do it.", places.get(name, "faulty:app")) for name in names]
@hookimpl
def settings():
    return {"tides": 7, "odd": OddSettings, "bare": NoSettings}
"""


def test_a_tool_of_the_page_reads_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_with_settings.py").write_text(FILES["plugin_with_settings.py"])
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    module = importlib.import_module("plugin_with_settings")
    (lit_side,) = module.tools(ToolRequest())
    assert lit_side(waxing=True) == "right"


def test_the_test_of_the_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tides.py").write_text(FILES["tides/tides.py"])
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    exec(FILES["tides/test_tides.py"], {})


@pytest.fixture
def installed(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs mlx-tools where the example package, and a faulty one, are installed."""
    place = tmp_path / "site"
    place.mkdir()
    (place / "tides.py").write_text(FILES["tides/tides.py"])
    (place / "broken.py").write_text("import no_such_module\n")
    (place / "faulty.py").write_text(FAULTY)
    for package in ("tides", "broken", "faulty"):
        info = place / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[mlx_tools]\n{package} = {package}\n")

    def run(*arguments: str, program: str = "") -> subprocess.CompletedProcess[str]:
        environ = {
            **os.environ,
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "PYTHONPATH": os.pathsep.join((str(place), str(ROOT))),
        }
        start = ["-c", program] if program else ["-m", "mlx_tools"]
        command = [sys.executable, *start, *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, cwd=tmp_path)

    return run


def test_the_example_package_has_its_tool_its_setting_and_its_command(
    installed: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    told = installed("tides")
    assert (told.returncode, told.stdout) == (0, "Dover: 04:10, 16:35\n")
    assert "the plugin broken is left out: ModuleNotFoundError" in told.stderr
    called = installed(
        "tools", "call", "high_water", '{"harbour": "Cork"}', "--tools", "high_water"
    )
    assert (called.returncode, called.stdout) == (0, '["05:20","17:45"]\n')


@pytest.mark.heavy
def test_the_example_package_stands_in_help_and_settings_and_gains_no_rights(
    installed: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert "\n  tides                 Tell when the water is high." in installed("--help").stdout
    assert "tides.harbour" in installed("config", "show").stdout
    refused = installed("tools", "call", "high_water", '{"harbour": "Cork"}')
    assert refused.returncode != 0 and "not among the allowed tools" in refused.stderr
    faults = installed("doctor")
    assert "plugin: broken is left out" in faults.stdout


PROGRAM = """
from mlx_tools.app import builtin_tools
registry = builtin_tools(["."]).with_entry_points()
print(registry.specs()["high_water"].plugin)
"""


def test_a_program_has_the_tools_of_plugins_of_other_packages(
    installed: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert installed(program=PROGRAM).stdout == "tides\n"


def test_a_command_of_a_package_that_fails_names_the_package(
    installed: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    told = installed("fail")
    assert told.returncode == 1
    assert "error: the plugin faulty failed: ValueError: no luck" in told.stderr
    assert "this is a bug" not in told.stderr


def test_commands_of_a_package_take_nothing_of_a_group_of_the_core(
    installed: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    told = installed("tools", "list")
    assert told.returncode == 0 and "calculator" in told.stdout
    for problem in ("command tools list already", "tools fail of the plugin faulty", "ask already"):
        assert problem in told.stderr


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        ("[broken]\nx = 1\n", 0, "broken: ignored, as a plugin's settings are left out"),
        ("[policies]\ndeny = []\n", 2, "policies: no such section (did you mean policy?)"),
        ("[policy]\ndney = []\n", 2, "policy.dney: no such setting"),
        ("[odd]\nx = 4\n", 2, "odd: its values do not go together"),
        ("[tides]\nx = 1\n", 0, "tides.x: ignored, as a plugin's settings are left out"),
    ],
)
def test_settings_of_a_faulty_plugin_stop_no_command_and_typing_errors_do(
    text: str,
    code: int,
    problem: str,
    installed: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    (tmp_path / "config" / "mlx-tools").mkdir(parents=True)
    (tmp_path / "config" / "mlx-tools" / "config.toml").write_text(text)
    told = installed("config", "check")
    assert (told.returncode, problem in told.stderr) == (code, True), told.stderr
