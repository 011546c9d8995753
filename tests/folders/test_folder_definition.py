"""Reading a tool's folder: what may stand in it, and what is said of what may not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ALL_EFFECTS
from mlx_tools.plugins.folders import definition as contents
from mlx_tools.plugins.folders.definition import read_folder
from tests.folders.tool_folders import make_folder

PLAIN = {"name": "echo", "description": "Says it again."}


def write(folder: Path, name: str, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    (folder / name).write_text(text)


def test_everything_that_can_be_declared_reaches_the_spec(tmp_path: Path) -> None:
    own: dict[str, Any] = {"timeout": 2.5, "needs_approval": True, "retry": "read_only"}
    own |= {"private": True, "cache": False}
    more: dict[str, Any] = {"enabled": False, "max_output_bytes": 100}
    effects, environment = ["read", "network"], ["API_TOKEN"]
    folder = make_folder(tmp_path, effects=effects, environment=environment, **own, **more)
    found = read_folder(folder)
    spec = found.spec
    assert (spec.name, spec.plugin, spec.effects) == ("echo", "folder", {*effects})
    assert {key: getattr(spec, key) for key in own} == own
    assert {key: getattr(found, key) for key in more} == more
    assert found.environment == ("API_TOKEN",)


def test_a_folder_that_declares_no_effects_has_them_all(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write(folder, "config.json", {})
    without = read_folder(folder)
    (folder / "config.json").unlink()
    for found in (without, read_folder(folder)):
        assert found.spec.effects == ALL_EFFECTS
        assert found.enabled


@pytest.mark.parametrize(
    "value",
    [
        PLAIN,
        {"type": "function", "function": PLAIN},
        {"function": {**PLAIN, "strict": True}},
        {"type": "function", "function": {**PLAIN, "parameters": {"properties": {}}}},
        {"type": "function", **PLAIN},
        {**PLAIN, "parameters": None, "version": "2", "returns": {"type": "string"}},
        {"name": "echo"},
    ],
)
def test_a_definition_is_read_with_or_without_what_openai_puts_around_it(
    tmp_path: Path, value: Any
) -> None:
    folder = make_folder(tmp_path)
    write(folder, "tool_definition.json", value)
    spec = read_folder(folder).spec
    assert spec.description == ("Says it again." if "description" in str(value) else "")
    assert spec.parameters["type"] == "object"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("config.json", {"efects": []}, "config.json: efects: unknown key (did you mean effects?)"),
        ("config.json", {"effects": "read"}, 'effects: "read" is not allowed (a list of some of'),
        ("config.json", {"effects": ["fly"]}, 'effects: ["fly"] is not allowed'),
        ("config.json", {"effects": [["read"]]}, 'effects: [["read"]] is not allowed'),
        ("config.json", {"timeout": 0}, "timeout: 0 is not allowed (seconds, more than 0"),
        ("config.json", {"timeout": True}, "timeout: true is not allowed"),
        ("config.json", {"private": None}, "private: null is not allowed (true or false)"),
        ("config.json", {"retry": "x" * 500}, f'retry: "{"x" * 58}… is not allowed'),
        ("config.json", {"timeout": "9"}, 'timeout: "9" is not allowed'),
        ("config.json", {"timeout": 1e300}, "timeout: 1e+300 is not allowed"),
        ("config.json", {"enabled": 1}, "enabled: 1 is not allowed (true or false)"),
        ("config.json", {"retry": "always"}, 'retry: "always" is not allowed'),
        ("config.json", {"environment": ["A B"]}, 'environment: ["A B"] is not allowed'),
        ("config.json", {"environment": ["LD_PRELOAD"]}, "none that begins with LD_"),
        ("config.json", {"environment": ["\u017f"]}, "is not allowed"),
        ("config.json", {"environment": "HOME"}, 'environment: "HOME" is not allowed'),
        ("config.json", {"max_output_bytes": 0}, "max_output_bytes: 0 is not allowed"),
        ("config.json", {"name": "other"}, "'other' is not the name in tool_definition.json, echo"),
        ("config.json", [], "config.json: expected an object"),
        ("config.json", "{", "config.json is not JSON"),
        ("config.json", '{\n  "timeout": 5,,\n}\n', "(line 2, column 16)"),
        ("config.json", '{"timeout": NaN}', "config.json is not JSON: NaN is no JSON"),
        ("config.json", '{"timeout": 1, "timeout": 2}', "stands twice"),
        ("config.json", "[" * 100_000, "config.json is not JSON"),
        ("config.json", {"requires_confirmation": True}, "unknown key (known are name, enabled,"),
        ("config.json", {"sandbox": True}, "sandbox: unknown key"),
        ("config.json", {"timeout_ms": "5"}, 'timeout_ms: "5" is not allowed (milliseconds'),
        ("config.json", {"timeout": 1, "timeout_ms": 5}, "timeout_ms: it says timeout once more"),
        ("tool_definition.json", {**PLAIN, "effects": []}, "key (it belongs in config.json)"),
        ("tool_definition.json", {**PLAIN, "input_schema": {}}, "(it is called parameters here)"),
        ("tool_definition.json", {**PLAIN, "inputSchema": {}}, "(it is called parameters here)"),
        ("tool_definition.json", {"type": "x", "function": PLAIN}, "expected a function"),
        ("tool_definition.json", {**PLAIN, "function": {}}, "name: unknown key (it belongs within"),
        ("tool_definition.json", {"function": 1}, "expected a function definition"),
        ("tool_definition.json", {**PLAIN, "type": "tool"}, "expected a function definition"),
        ("tool_definition.json", {"name": "echo", "description": 1}, "description: expected a"),
        ("tool_definition.json", {"description": "x"}, "name: expected a text"),
        ("tool_definition.json", {"name": "a b", "description": "x"}, "cannot name a tool"),
        ("tool_definition.json", {**PLAIN, "parameters": []}, "parameters: expected a JSON Schema"),
        ("tool_definition.json", {**PLAIN, "parameters": {"type": "array"}}, "object"),
        ("tool_definition.json", {**PLAIN, "parameters": {"properties": 1}}, "tool_definition"),
        ("execute.py", "def execute(:", "execute.py, line 1: not Python"),
        ("execute.py", "def exceute(a): ...", "has no function execute"),
        ("execute.py", "a\0b", "not Python"),
        ("execute.py", "-" * 100_000 + "1", "not Python: it nests too deep"),
    ],
)
def test_what_is_wrong_is_told_by_file_and_key(
    tmp_path: Path, name: str, value: Any, said: str
) -> None:
    folder = make_folder(tmp_path)
    write(folder, name, value)
    with pytest.raises(ToolDefinitionError) as caught:
        read_folder(folder)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600


def test_other_names_of_keys_are_known_and_what_only_tells_something_is_passed_over(
    tmp_path: Path,
) -> None:
    more = {"author": "A", "version": "1.0", "tags": ["a"], "$schema": "x", "_note": 1, "x-of": {}}
    spec = read_folder(make_folder(tmp_path, requires_approval=True, timeout_ms=15500, **more)).spec
    plain = make_folder(tmp_path / "other", needs_approval=True, timeout=15.5)
    assert spec == read_folder(plain).spec


EXECUTE = "\ndef execute(arguments):\n    return {}\n"


@pytest.mark.parametrize(
    ("imports", "missing"),
    [
        ("import nothing_of_that_name.part as n, json", ("nothing_of_that_name",)),
        ("from nothing_b import x\nfrom nothing_a.y import *", ("nothing_a", "nothing_b")),
        ("import os.path, pydantic, helper\nfrom data.more import x", ()),
        ("try:\n    import nothing_of_that_name\nexcept ImportError:\n    pass", ()),
        ("def later():\n    import nothing_of_that_name", ()),
        ("from . import nothing_of_that_name", ()),
        ("import sys\nsys.path.insert(0, 'vendor')\nimport nothing_of_that_name", ()),
        ("from sys import path\nimport nothing_of_that_name", ()),
        ("import site\nimport nothing_of_that_name", ()),
        ("import os, site\nimport nothing_of_that_name", ()),
        ("import os\nos.path.join('a')\nimport nothing_of_that_name", ("nothing_of_that_name",)),
    ],
)
def test_what_is_imported_and_not_installed_is_found_without_running_anything(
    tmp_path: Path, imports: str, missing: tuple[str, ...]
) -> None:
    folder = make_folder(tmp_path, code=imports + EXECUTE)
    (folder / "helper.py").touch()
    (folder / "data").mkdir()
    (folder / "data" / "more.py").touch()
    assert read_folder(folder).missing == missing


def test_a_folder_that_is_no_tools_is_not_read_through(tmp_path: Path) -> None:
    for number in range(1100):
        (tmp_path / f"{number}.txt").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ToolDefinitionError, match=r"tool_definition\.json is missing"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "tool_definition.json").unlink(), "tool_definition.json is missing"),
        (lambda f: (f / "execute.py").unlink(), "execute.py is missing"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe{"), "is not UTF-8"),
        (lambda f: (f / "more.py").symlink_to("/etc/hostname"), "is a symbolic link"),
        (lambda f: os.mkfifo(f / "pipe"), "is no regular file"),
        (rmtree, "cannot be read: No such file"),
        (lambda f: f.rename(f.with_name("other")) and f.touch(), "cannot be read: Not a directory"),
    ],
)
def test_what_cannot_be_read_is_told_of(tmp_path: Path, damage: Any, said: str) -> None:
    folder = make_folder(tmp_path)
    damage(folder)
    with pytest.raises(ToolDefinitionError, match=said):
        read_folder(folder)


def test_a_folder_has_a_size(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    with (folder / "large").open("wb") as file:
        file.truncate(contents.MAX_BYTES + 1)
    with pytest.raises(ToolDefinitionError, match="at most 20000000 bytes"):
        read_folder(folder)
    (folder / "large").unlink()
    deep = folder.joinpath(*["d"] * (contents.MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    with pytest.raises(ToolDefinitionError, match="folders deep"):
        read_folder(folder)
    rmtree(folder / "d")
    (folder / "many").mkdir()
    for number in range(contents.MAX_FILES - 3):
        (folder / "many" / str(number)).touch()
    assert len(read_folder(folder).contents) == contents.MAX_FILES
    (folder / "one more").touch()
    with pytest.raises(ToolDefinitionError, match="more than 1000 files"):
        read_folder(folder)


def test_any_change_of_a_file_is_another_digest(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    seen = {read_folder(folder).digest}
    (folder / "data").mkdir()
    one = folder / "data" / "a"
    for change in (
        lambda: one.write_bytes(b"1"),
        lambda: one.write_bytes(b"2"),
        lambda: one.chmod(0o700),
        lambda: one.rename(folder / "data" / "b"),
    ):
        change()
        seen.add(read_folder(folder).digest)
    for name in ("__pycache__", ".pytest_cache"):  # what other programs leave is no part of it
        (folder / name).mkdir()
        (folder / name / "x").touch()
    assert len(seen | {read_folder(folder).digest}) == 5
