"""Restrictions that a tool's folder states: they are enforced, and never taken for its effects."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.controller import call_tool
from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ALL_EFFECTS
from mlx_tools.plugins.folders import load_tool
from mlx_tools.plugins.folders.definition import read_folder
from mlx_tools.policy import Policy
from mlx_tools.testing import ScriptedApprover
from mlx_tools.tools import Registry, ToolResult, execute, make_preview
from tests.folders.tool_folders import make_folder

READING = ALL_EFFECTS - {"write", "execute"}
CHANGES = """
import pathlib
def execute(arguments):
    target = pathlib.Path(TARGET)
    if arguments.get("operation", "read") != "read":
        target.unlink()
    return {"there": target.exists()}
"""


def schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def operations(*names: str) -> dict[str, Any]:
    return schema("operation", operation={"type": "string", "enum": list(names)}, path={})


FILES = operations("read", "list", "write", "delete")


def restricted(parent: Path, parameters: Any, code: str = "", **config: Any) -> Path:
    """The folder of a tool that declares no effects."""
    code = code or "def execute(arguments): return arguments"
    folder = make_folder(parent, "files", code, parameters)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def called(folder: Path, arguments: dict[str, Any]) -> ToolResult:
    return asyncio.run(execute(load_tool(folder), arguments, timeout=120))


@pytest.mark.parametrize("policy", [{}, {"dry_run": True}, {"ask_effects": ()}])
@pytest.mark.parametrize("operation", ["write", "delete", "Delete", "frobnicate"])
def test_what_could_write_is_refused_under_mode_ro_and_nobody_is_asked(
    tmp_path: Path, operation: str, policy: dict[str, Any]
) -> None:
    target = tmp_path / "target"
    target.touch()
    code = CHANGES.replace("TARGET", repr(str(target)))
    parameters = operations("read", "list", operation)
    registry = Registry([load_tool(restricted(tmp_path, parameters, code, mode="ro"))])
    approver = ScriptedApprover(True)

    def call(operation: str) -> Any:
        given = {"operation": operation}
        allowed = Policy(allow=["files"], **policy)
        return asyncio.run(call_tool(registry, allowed, "files", given, approver=approver))

    done = call(operation)
    assert done.error.code == "not_allowed" and "mode ro" in done.error.message
    assert target.exists() and not approver.requests
    if "dry_run" not in policy:
        assert json.loads(call("read").result.content) == {"there": True}
    assert not approver.requests


def test_where_the_host_cannot_tell_a_call_has_all_effects(tmp_path: Path) -> None:
    for number, (parameters, arguments) in enumerate(
        [
            (schema(path={"type": "string"}), {"path": "a"}),
            (schema(command={"type": "string"}), {"command": "ls"}),
            (schema(operation={"type": "string"}), {}),
            (FILES, {"operation": "read", "delete": True}),
            (schema(op={}, overwrite={"type": "boolean"}), {"op": "read", "overwrite": True}),
        ]
    ):
        for mode in ("ro", "rw"):
            spec = read_folder(restricted(tmp_path / f"{number}{mode}", parameters, mode=mode)).spec
            assert spec.get_effects(arguments) == spec.possible_effects | ALL_EFFECTS


@pytest.mark.parametrize(
    "reading",
    ["read", "list", "read_file", "listFiles", "get-info", "search", "stat", "exists", "READ"],
)
def test_reading_does_not_ask_under_either_mode(tmp_path: Path, reading: str) -> None:
    for mode in ("ro", "rw"):
        spec = read_folder(
            restricted(tmp_path / mode, operations(reading, "write"), mode=mode)
        ).spec
        assert spec.get_effects({"operation": reading}) == READING
    assert spec.get_effects({"operation": "write"}) == ALL_EFFECTS


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        (schema("action", action={"enum": ["view", "create"]}), {"action": "create"}),
        (schema("op", op={"type": "string"}), {"op": "rm"}),
        (schema("op", op={"type": "string"}), {"op": "read_and_delete"}),
        (schema("op", op={"type": "string"}), {"op": "ｒead"}),
        (schema("op", op={"type": "string"}), {"op": ""}),
        (schema("do", do={"anyOf": [{"const": "read"}, {"const": "write"}]}), {"do": "write"}),
        (schema("command", command={"enum": ["view", "insert"]}), {"command": "insert"}),
        (schema("method", method={"enum": ["GET", "POST"]}), {"method": "POST"}),
        (schema("mode", mode={"enum": ["r", "w"]}), {"mode": "w"}),
        (schema(steps={"items": {"properties": {"action": {}}}}), {"steps": [{"action": "move"}]}),
        (schema(operations={"type": "array"}), {"operations": ["read", "delete"]}),
        (schema("operation", operation={}), {"operation": "read", "action": "delete"}),
    ],
)
def test_an_operation_is_known_by_its_name_or_its_values(
    tmp_path: Path, parameters: dict[str, Any], arguments: dict[str, Any]
) -> None:
    folder = restricted(tmp_path, parameters, mode="ro")
    result = called(folder, arguments)
    assert result.error is not None and result.error.code == "not_allowed"
    assert make_preview(load_tool(folder), arguments).fails


def test_declared_effects_stand_and_a_mode_only_takes_from_them(tmp_path: Path) -> None:
    only = read_folder(restricted(tmp_path / "a", schema(), mode="ro", effects=["read"])).spec
    assert only.get_effects({}) == {"read"}
    both = restricted(tmp_path / "b", FILES, mode="ro", effects=["read", "write"])
    assert read_folder(both).spec.get_effects({"operation": "list"}) == {"read"}
    assert called(both, {"operation": "write"}).error is not None


COMMANDS = ["ls", "git status", "git log *", "cat docs/*"]


@pytest.mark.parametrize(
    ("command", "permitted"),
    [
        *((command, True) for command in ("ls", "ls -la /tmp", "git status", "git log")),
        *((command, True) for command in ("git log -3 --stat", "cat docs/a.md", ["ls", "-l"])),
        *((command, False) for command in ("rm -rf .", "", "lsof", "/bin/ls", "git push", "cat")),
        *((command, False) for command in ("git status -s", "git -c a=b log", "cat docs/a b")),
        *((command, False) for command in ("cat docs/../x", "cat docs/..", "cat docs/a/b")),
        *((command, False) for command in ("ls; rm x", "ls && rm x", "ls | sh", "ls `rm x`")),
        *(
            (command, False)
            for command in ("ls $(rm x)", "ls > x", "ls\nrm x", "A=b ls", "ls & rm")
        ),
        *((command, False) for command in ("'ls", "l\\s", ["rm"], ["ls", "a;b"], [], 7, {"a": 1})),
    ],
)
def test_a_whitelist_of_commands_holds_for_the_parameter_command(
    tmp_path: Path, command: Any, permitted: bool
) -> None:
    folder = restricted(tmp_path, schema(command={}), whitelist=COMMANDS)
    result = called(folder, {"command": command})
    assert (result.error is None) == permitted
    assert permitted or result.error.code == "not_allowed"
    assert load_tool(folder).spec.get_effects({"command": command}) == ALL_EFFECTS


def test_each_of_several_commands_is_held_to_the_whitelist(tmp_path: Path) -> None:
    folder = restricted(
        tmp_path, schema(commands={}, steps={"properties": {"cmd": {}}}), whitelist=["ls"]
    )
    assert called(folder, {"commands": ["ls a", "ls b"], "steps": {"cmd": "ls"}}).error is None
    for wrong in (
        {"commands": ["ls", "rm x"]},
        {"commands": ["ls", {"run": "rm x"}]},
        {"steps": [{"cmd": "ls"}, {"cmd": "rm x"}]},
    ):
        assert called(folder, wrong).error is not None, wrong


def test_a_definition_may_state_restrictions_too(tmp_path: Path) -> None:
    folder = restricted(tmp_path, FILES)
    definition = json.loads((folder / "tool_definition.json").read_text())

    def stated(around: dict[str, Any], **within: Any) -> Any:
        whole = {"type": "function", "function": definition | within, **around}
        (folder / "tool_definition.json").write_text(json.dumps(whole))
        return read_folder(folder)

    found = stated({"requires_approval": True}, mode="ro", whitelist=["docs/*"])
    assert found.spec.needs_approval and found.restrictions.whitelist == ("docs/*",)
    assert called(folder, {"operation": "delete"}).error is not None
    with pytest.raises(ToolDefinitionError, match="it says mode twice"):
        stated({"mode": "ro"}, mode="rw")
    (folder / "config.json").write_text('{"mode": "ro"}')
    with pytest.raises(ToolDefinitionError, match=r"mode: config\.json says another"):
        stated({}, mode="rw")


def test_no_word_of_a_folder_lifts_asking_first(tmp_path: Path) -> None:
    said = {"requires_approval": False, "mode": "rw"}
    registry = Registry([load_tool(restricted(tmp_path, FILES, **said))])
    approver = ScriptedApprover(False)
    policy = Policy(allow=["files"])
    for operation, asked in (("read", 0), ("write", 1)):
        given = {"operation": operation}
        asyncio.run(call_tool(registry, policy, "files", given, approver=approver))
        assert len(approver.requests) == asked
