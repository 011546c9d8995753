"""Other names of a tool: accepted wherever a tool is named, and never a way round a rule."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mlx_tools import Controller, Policy, RunSettings, UsageError
from mlx_tools.controller import call_tool
from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ALIASES, ToolSpec
from mlx_tools.policy import can_be_allowed, decide, matches
from mlx_tools.protocol import Reading, find_call_keys, judge, read
from mlx_tools.testing import ScriptedBackend, call
from mlx_tools.tools import Registry, Tool

KINDS = tuple(ALIASES.items())


def stand_in(name: str, **more: Any) -> Tool:
    return Tool(ToolSpec(name, "Does it.", effects=frozenset({"read"}), **more), lambda a: name)


ANSWER = '{"type":"final_answer","content":"done"}'


@pytest.fixture(params=KINDS, ids=lambda kind: kind[0])
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Another name, and the tool's own."""
    named: tuple[str, str] = request.param
    return named


def test_a_model_that_writes_another_name_calls_the_tool(kind: tuple[str, str]) -> None:
    alias, name = kind
    scripts = ScriptedBackend(call(alias), ANSWER)
    outcome = Controller(scripts, [stand_in(name)], Policy(allow=[alias])).run_sync("Do it.")
    (made,) = outcome.calls
    assert (made.name, made.status, made.output, made.repairs) == (name, "ok", name, ())


@pytest.mark.parametrize(("written", "tool"), [*KINDS, *(kind[::-1] for kind in KINDS)])
def test_a_policy_means_a_tool_by_any_of_its_names(written: str, tool: str) -> None:
    spec = ToolSpec(tool, effects=frozenset({"read"}), plugin="p")
    for pattern in (written, f"plugin:p/{written}", f"{written[:6]}*", f"plugin:p/{written[:6]}*"):
        assert matches(pattern, spec), pattern
        assert can_be_allowed(Policy(allow=[pattern]), spec)
        denying = Policy(allow=["*"], deny=[pattern])
        assert decide(denying, spec, tool, {}, runs="freely").decision == "deny"
        asking = Policy(allow=["*"], ask=[pattern])
        assert decide(asking, spec, tool, {}, runs="freely").decision == "ask"
    assert not matches("clock", spec)


def test_a_registry_finds_a_tool_by_any_of_its_names(kind: tuple[str, str]) -> None:
    alias, name = kind
    registry = Registry([stand_in(name)])
    assert registry.get(alias).spec.name == name
    assert registry.describe(alias)["name"] == name
    assert registry.lacks(alias, Policy(allow=["*"])) is None
    with pytest.raises(ToolDefinitionError, match="of which this is another name"):
        registry.add(stand_in(alias))
    registry.disable(alias, "not today")
    assert registry.disabled == {name: "not today"}
    own = Registry([stand_in(alias)])
    assert own.get(alias).spec.name == alias
    with pytest.raises(UsageError):
        own.get(name)


def test_a_disabled_tool_is_said_to_be_so_by_any_of_its_names(kind: tuple[str, str]) -> None:
    alias, name = kind
    registry = Registry([stand_in(name)], switched_off={name: "not today"})
    done = asyncio.run(call_tool(registry, Policy(allow=["*"]), alias, {}))
    assert done.error is not None
    assert (done.name, done.error.code) == (name, "disabled")
    run = Controller(ScriptedBackend(call(alias), ANSWER), registry, Policy(allow=["*"]))
    assert run.run_sync("Do it.").calls[0].error_code == "disabled"


def test_required_and_chosen_tools_may_be_named_so(kind: tuple[str, str]) -> None:
    alias, name = kind
    settings = RunSettings(tool_choice=alias, require_tools=(alias,), strategy="free")
    answers = (call(name).partition(f'"{name}",')[2], ANSWER)
    backend = ScriptedBackend(*answers)
    run = Controller(backend, [stand_in(name)], Policy(allow=["*"]), settings=settings)
    assert run.run_sync("Do it.").calls[0].status == "ok"
    backend = ScriptedBackend(*answers)
    run = Controller(backend, [stand_in(name)], Policy(allow=["*"]))
    assert run.run_sync("Do it.", tool_choice=alias).calls[0].status == "ok"
    assert name in backend.prompts[0]
    other = Controller(backend, [stand_in("clock")], Policy(allow=["*"]), settings=settings)
    with pytest.raises(UsageError, match=f"lacks the required tool {alias}"):
        other.run_sync("Do it.")


def test_a_call_out_of_an_observation_is_known_by_any_of_its_names(kind: tuple[str, str]) -> None:
    alias, name = kind
    spec = ToolSpec(name, effects=frozenset({"write"}))
    for planted, written in ((alias, name), (name, alias)):
        reading = read(call(written))
        (judged,) = judge(reading, {name: spec}, calls_seen=find_call_keys(call(planted)))
        assert judged.echoed, (planted, written)


def test_a_tool_of_that_very_name_comes_first() -> None:
    tools = {"queryKnowledgeBase": ToolSpec("queryKnowledgeBase")}
    (judged,) = judge(read(call("queryKnowledgeBase")), tools)
    assert judged.call.name == "queryKnowledgeBase"
    assert judge(Reading(), tools) == ()


def test_a_rate_holds_for_all_names_together() -> None:
    name, alias = "schedule_task", "scheduleAgentTask"
    scripts = ScriptedBackend(call(name, n=1), call(alias, n=2), ANSWER)
    policy = Policy(allow=["*"], rate_limits={alias: "1/hour"})
    outcome = Controller(scripts, [stand_in(name)], policy).run_sync("Do it.")
    assert [one.error_code for one in outcome.calls] == [None, "rate_limited"]
