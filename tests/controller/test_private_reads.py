"""Data that a session has read does not leave by the network, where the policy holds that back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import Controller, Paused, Policy, Registry, builtin_tools, tool
from mlx_tools.controller import RunSettings
from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.tools import ToolContext

READS: list[tuple[str, dict[str, Any]]] = [
    ("file_access", {"operation": "read", "path": "plan.txt"}),
    ("file_access", {"operation": "list", "path": "."}),
    ("notes_search", {"query": "bread"}),
    ("query_knowledge_base", {"query": "bread"}),
    ("list_corpora", {}),
]
NETWORK: list[tuple[str, dict[str, Any]]] = [
    ("fetch_url", {"url": "http://127.0.0.1/"}),
    ("web_search", {"query": "bread"}),
]


def call_of(one: tuple[str, dict[str, Any]]) -> str:
    return call(one[0], **one[1])


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "plan.txt").write_text("Bake bread.")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("Bake bread.")
    base = KnowledgeBase(tmp_path / "kb.sqlite3")
    base.add([tmp_path / "root"])
    return builtin_tools([tmp_path / "root"], knowledge_base=base.path, notes=tmp_path / "notes")


@pytest.mark.parametrize("network", NETWORK, ids=lambda one: one[0])
@pytest.mark.parametrize("read", READS, ids=lambda one: one[0])
def test_after_a_private_read_no_tool_asks_the_network(
    registry: Registry, read: tuple[str, dict[str, Any]], network: tuple[str, dict[str, Any]]
) -> None:
    lines = (call_of(read), call_of(network), answer())
    policy = Policy(allow=["*"], network_after_read="deny")
    outcome = Controller(ScriptedBackend(*lines), registry, policy).run_sync("Go")
    assert [one.status for one in outcome.calls] == ["ok", "denied"]
    asking = Policy(allow=["*"], network_after_read="ask")
    paused = Controller(ScriptedBackend(*lines), registry, asking).run_sync("Go")
    assert isinstance(paused, Paused)


def test_a_read_that_was_answered_before_counts_too(registry: Registry) -> None:
    lines = (call_of(READS[2]), answer(), call_of(READS[2]), call_of(NETWORK[0]), answer())
    policy = Policy(allow=["*"], network_after_read="deny")
    controller = Controller(
        ScriptedBackend(*lines), registry, policy, settings=RunSettings(cache="session")
    )

    async def main() -> list[str]:
        async with await controller.conversation() as talk:
            await talk.run("Go")
            return [one.status for one in (await talk.run("Go on")).calls]

    assert anyio.run(main) == ["ok", "denied"]


def test_what_a_run_within_a_call_may_have_read_counts_as_private(registry: Registry) -> None:
    @tool(effects={"read"})
    async def research(question: str, context: ToolContext) -> str:
        """Finds something out."""
        return await context.ask(question)

    @tool(effects={"network"})
    def send(text: str) -> str:
        """Send a text."""
        return "sent"

    assert not research.spec.private
    for made in (research, send):
        registry.add(made)
    policy = Policy(allow=["*"], ask_effects=(), network_after_read="deny")
    for reads in ((call_of(READS[0]),), ()):
        lines = call("research", question="x"), *reads, answer(), call("send", text="x"), answer()
        outcome = Controller(ScriptedBackend(*lines), registry, policy).run_sync("Go")
        assert [one.status for one in outcome.calls] == ["ok", "denied"]
    lines = call("send", text="x"), answer()
    outcome = Controller(ScriptedBackend(*lines), registry, policy).run_sync("Go")
    assert [one.status for one in outcome.calls] == ["ok"]


OPEN = {"calculator", "clock", "fetch_url", "format_xml", "tool_search", "translate", "web_search"}
"""Tools that read, and of whose answers nothing is the user's own."""

HELD = {"read_artifact"}
"""It reads what a call of the same session was answered: that call has counted."""


def test_every_built_in_tool_that_reads_the_users_own_is_private(tmp_path: Path) -> None:
    specs = builtin_tools([f"{tmp_path}:rw"], notes=tmp_path).all_specs()
    reading = {name for name, spec in specs.items() if "read" in spec.possible_effects}
    private = {name for name, spec in specs.items() if spec.private}
    assert reading - private == OPEN | HELD
    assert {"file_access", "run_command", "notes_search", "query_knowledge_base"} <= private
