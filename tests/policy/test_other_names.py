"""Other names of a tool: accepted wherever a tool is named, and never a way round a rule."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mlx_tools import Controller, Policy, RunSettings, UsageError
from mlx_tools.controller import call_tool
from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ALIASES, ToolSpec
from mlx_tools.policy import decide, matches, permitted
from mlx_tools.protocol import Reading, calls_in, judge, read
from mlx_tools.testing import ScriptedBackend
from mlx_tools.tools import Registry, Tool

KINDS = tuple(ALIASES.items())


def stand_in(name: str, **more: Any) -> Tool:
    return Tool(ToolSpec(name, "Does it.", effects=frozenset({"read"}), **more), lambda a: name)


def line(name: str) -> str:
    return json.dumps({"type": "tool_call", "name": name, "arguments": {}})


@pytest.mark.parametrize(("alias", "name"), KINDS)
def test_a_model_that_writes_another_name_calls_the_tool(alias: str, name: str) -> None:
    run = Controller(
        ScriptedBackend(line(alias), '{"type":"final_answer","content":"done"}'),
        [stand_in(name)],
        Policy(allow=[alias]),
    )
    outcome = run.run_sync("Do it.")
    (call,) = outcome.calls
    assert (call.name, call.status, call.output, call.repairs) == (name, "ok", name, ())


@pytest.mark.parametrize(("alias", "name"), KINDS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_policy_means_a_tool_by_any_of_its_names(alias: str, name: str, turned: bool) -> None:
    written, tool = (name, alias) if turned else (alias, name)
    spec = ToolSpec(tool, effects=frozenset({"read"}), plugin="p")
    for pattern in (written, f"plugin:p/{written}", f"{written[:6]}*", f"plugin:p/{written[:6]}*"):
        assert matches(pattern, spec), pattern
        assert permitted(Policy(allow=[pattern]), spec)
        denying = Policy(allow=["*"], deny=[pattern])
        assert decide(denying, spec, tool, {}, runs="freely").decision == "deny"
        asking = Policy(allow=["*"], ask=[pattern])
        assert decide(asking, spec, tool, {}, runs="freely").decision == "ask"
    assert not matches("clock", spec)


@pytest.mark.parametrize(("alias", "name"), KINDS)
def test_a_registry_finds_a_tool_by_any_of_its_names(alias: str, name: str) -> None:
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


@pytest.mark.parametrize(("alias", "name"), KINDS)
def test_a_disabled_tool_is_said_to_be_so_by_any_of_its_names(alias: str, name: str) -> None:
    registry = Registry([stand_in(name)], switched_off={name: "not today"})
    done = asyncio.run(call_tool(registry, Policy(allow=["*"]), alias, {}))
    assert done.error is not None
    assert (done.name, done.error.code) == (name, "disabled")
    run = Controller(
        ScriptedBackend(line(alias), '{"type":"final_answer","content":"done"}'),
        registry,
        Policy(allow=["*"]),
    )
    assert run.run_sync("Do it.").calls[0].error_code == "disabled"


@pytest.mark.parametrize(("alias", "name"), KINDS)
def test_required_and_chosen_tools_may_be_named_so(alias: str, name: str) -> None:
    settings = RunSettings(tool_choice=alias, require_tools=(alias,), strategy="free")
    answers = (line(name).partition(f'"{name}",')[2], '{"type":"final_answer","content":"x"}')
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


@pytest.mark.parametrize(("alias", "name"), KINDS)
def test_a_call_out_of_an_observation_is_known_by_any_of_its_names(alias: str, name: str) -> None:
    spec = ToolSpec(name, effects=frozenset({"write"}))
    for planted, written in ((alias, name), (name, alias)):
        reading = read(line(written))
        (call,) = judge(reading, {name: spec}, planted=calls_in(line(planted)))
        assert call.echoed, (planted, written)


def test_a_tool_of_that_very_name_comes_first() -> None:
    tools = {"queryKnowledgeBase": ToolSpec("queryKnowledgeBase")}
    (call,) = judge(read(line("queryKnowledgeBase")), tools)
    assert call.call.name == "queryKnowledgeBase"
    assert judge(Reading(), tools) == ()


def test_a_rate_holds_for_all_names_together() -> None:
    name, alias = "schedule_task", "scheduleAgentTask"
    run = Controller(
        ScriptedBackend(
            json.dumps({"type": "tool_call", "name": name, "arguments": {"n": 1}}),
            json.dumps({"type": "tool_call", "name": alias, "arguments": {"n": 2}}),
            '{"type":"final_answer","content":"done"}',
        ),
        [stand_in(name)],
        Policy(allow=["*"], rate_limits={alias: "1/hour"}),
    )
    outcome = run.run_sync("Do it.")
    assert [call.error_code for call in outcome.calls] == [None, "rate_limited"]
