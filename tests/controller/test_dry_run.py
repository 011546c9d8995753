"""A dry run of every built-in tool that changes things leaves files and network as they were."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import Controller, Policy, TranscriptStore, builtin_tools, tool
from mlx_tools.messages import MUTATING
from mlx_tools.plugins.schedule.task_tool import Jobs
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.transcript.records import ExecutionRecord
from tests.controller.sessions import read_records
from tests.schedule.kept_jobs import open_job_store

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("file_access", {"operation": "write", "path": "there.txt", "content": "other"}),
    ("file_access", {"operation": "write", "path": "new.txt", "content": "new"}),
    ("file_access", {"operation": "delete", "path": "there.txt"}),
    ("create_file", {"path": "folder/new.txt", "content": "new"}),
    ("edit_file", {"path": "there.txt", "old": "there", "new": "here"}),
    ("run_command", {"program": "cat", "arguments": ["there.txt"]}),
    ("notes_create", {"title": "New", "content": "new"}),
    ("schedule_task", {"task": "Count.", "when": "@daily"}),
]


def tree(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Everything below a folder: its kind, when it was changed, and what it holds."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, content)
    return found


def test_all_tools_that_change_things_are_tried_here(tmp_path: Path) -> None:
    specs = builtin_tools([f"{tmp_path}:rw"]).all_specs().values()
    changing = {spec.name for spec in specs if not MUTATING.isdisjoint(spec.possible_effects)}
    assert changing == {name for name, _ in CALLS}


@pytest.mark.parametrize(("name", "arguments"), CALLS)
def test_a_dry_run_leaves_files_and_network_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "there.txt").write_text("there")
    before = tree(root)
    jobs = Jobs(store=open_job_store(root / "schedule.sqlite", b"secret"))
    registry = builtin_tools([f"{root}:rw"], notes=root / "notes", jobs=jobs)
    backend = ScriptedBackend(call(name, **arguments), answer())
    controller = Controller(backend, registry, Policy(allow=["*"], dry_run=True))
    opened: list[Any] = []
    connect = socket.socket.connect

    def watched(self: socket.socket, address: Any) -> None:
        opened.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    outcome = controller.run_sync("Change it.")
    # Where there is no sandbox, run_command is no tool that the model could name.
    called = [] if name in registry.disabled else ["dry_run"]
    assert [one.status for one in outcome.calls] == called
    assert tree(root) == before
    assert opened == []


def test_a_session_that_goes_on_under_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """The session began without it; what is configured when it goes on holds as well."""
    changed: list[str] = []

    @tool(effects={"write"})
    def save(text: str) -> str:
        """Saves a text."""
        changed.append(text)
        return "saved"

    def controller(*script: str, dry_run: bool) -> Controller:
        policy = Policy(allow=["*"], ask_effects=(), dry_run=dry_run)
        return Controller(ScriptedBackend(*script), [save], policy, store=TranscriptStore(tmp_path))

    async def go() -> Any:
        first = controller(call("save", text="a"), answer(), dry_run=False)
        async with await first.conversation() as conversation:
            session = (await conversation.run("Save a.")).session
        second = controller(call("save", text="b"), answer(), dry_run=True)
        async with await second.reopen(session) as conversation:
            return await conversation.run("Save b.")

    outcome = anyio.run(go)
    assert [one.status for one in outcome.calls] == ["dry_run"]
    assert changed == ["a"]
    assert sum(isinstance(record, ExecutionRecord) for record in read_records(outcome)) == 1
