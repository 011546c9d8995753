"""The tools of an installed package, in commands that use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_tools.testing import ScriptedServer, answer
from tests.command_line import Run

TOOLS = """
from mlx_tools import tool

@tool(effects={"read"})
def calculator(text: str) -> str:
    "Not the one that is built in."
    return text

@tool(effects={"read"})
def tide(harbour: str) -> str:
    "Tells the tide."
    return harbour

tools = [calculator, tide]
"""
LEFT_OUT = "calculator of the plugin moon is left out: there is a tool calculator already"


@pytest.fixture(autouse=True)
def moon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_moon(tmp_path, monkeypatch)


def install_moon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package moon, which has a tool whose name is taken."""
    module = f"moon_of_{folder.name}".replace("-", "_")
    site = folder / "site"
    info = site / "moon-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(TOOLS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mlx_tools.tools]\nmoon = {module}:tools\n")
    monkeypatch.syspath_prepend(site)


@pytest.mark.parametrize("allowed", ["calculator", "plugin:moon", "*", "plugin:moon/calculator"])
def test_a_tool_whose_name_is_taken_is_told_where_it_is_allowed(run: Run, allowed: str) -> None:
    with ScriptedServer(lambda prompt: answer("Hello.")) as server:
        asked = run("ask", "Hi", "--url", server.url, "--tools", allowed)
    assert asked.code == 0 and asked.out == "Hello.\n" and LEFT_OUT in asked.err
    called = run("tools", "call", "calculator", '{"expression": "1+1"}', "--tools", allowed)
    assert LEFT_OUT in called.err


@pytest.mark.parametrize("allowed", ["tide", "clock", "plugin:moon/tide"])
def test_nothing_is_told_where_it_is_not_allowed(run: Run, allowed: str) -> None:
    with ScriptedServer(lambda prompt: answer("Hello.")) as server:
        asked = run("ask", "Hi", "--url", server.url, "--tools", allowed)
    assert asked.code == 0 and "left out" not in asked.err


@pytest.mark.parametrize(
    ("allowed", "hint"),
    [
        ("plugin:mon", "no tools of a plugin mon (did you mean plugin:moon?)"),
        ("plugin:", "plugin:"),
        ("plugin:moon/tied", "the plugin moon has no tool tied (did you mean tide?)"),
        ("plugin:moon/clock", "the plugin moon has no tool clock"),
        ("plugin:folder/echo", "the plugin folder has no tool echo"),
        ("plugin:mcp:files", "no tools of a plugin mcp:files"),
    ],
)
@pytest.mark.parametrize("command", [("ask", "Hi"), ("tools", "list")])
def test_a_plugin_that_is_not_there_is_a_mistake(
    run: Run, allowed: str, hint: str, command: tuple[str, ...]
) -> None:
    refused = run(*command, "--tools", allowed)
    assert refused.code == 2 and hint in refused.err and refused.out == ""


@pytest.mark.parametrize("key", ["deny", "ask"])
def test_a_plugin_that_is_not_there_cannot_be_denied_or_asked_about(
    run: Run, configure: object, key: str
) -> None:
    assert callable(configure)
    configure(f"[policy]\n{key} = ['plugin:mon']\n")
    refused = run("tools", "list")
    assert refused.code == 2 and "did you mean plugin:moon?" in refused.err


@pytest.mark.parametrize(
    "allowed", ["plugin:builtin", "plugin:folder", "plugin:mcp:*", "plugin:m*"]
)
def test_a_plugin_that_may_have_no_tool_yet_can_be_allowed(run: Run, allowed: str) -> None:
    assert run("tools", "list", "--tools", allowed).code == 0
