"""A tool called without a model: the same validation, decision and records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from cProfile import Profile
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import builtin_tools
from mlx_tools.controller import ApprovalAnswer, ApproveAlways, DirectCall, call_tool
from mlx_tools.policy import Limits, Policy
from mlx_tools.prompt import Prompt
from mlx_tools.testing import ScriptedApprover
from mlx_tools.tools import Registry, tool
from mlx_tools.transcript.records import ApprovalRecord, ExecutionRecord, Record

CALLS: list[Any] = []
SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@tool(effects={"read"})
def double(number: int) -> int:
    """Doubles a number."""
    CALLS.append(number)
    return 2 * number


@tool(effects={"write"})
def save(number: int) -> str:
    """Saves a number."""
    CALLS.append(number)
    return "saved"


@tool(effects={"read"}, needs_approval=True)
def careful(number: int) -> int:
    """Asks first."""
    CALLS.append(number)
    return number


@tool(effects={"read", "network"})
def fetch(query: str) -> str:
    """Fetches something."""
    CALLS.append(query)
    return query


@tool(effects={"write"})
def keep(text: str) -> str:
    """Keeps a text."""
    CALLS.append(text)
    return text


@tool(effects={"write"})
def broken() -> None:
    """Fails."""
    raise ValueError("no")


ALL = Policy(allow=["*"], ask_effects=())
DRY = Policy(allow=["*"], dry_run=True)


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


def call(
    name: str, arguments: Mapping[str, Any], policy: Policy = ALL, **rest: Any
) -> tuple[DirectCall, list[Record]]:
    """The end of the call, and its records."""
    tools = [double, save, careful, fetch, keep, broken]
    registry = Registry(tools, switched_off=rest.pop("off", {}))
    records: list[Record] = []
    made = call_tool(registry, policy, name, arguments, record=records.append, **rest)
    return asyncio.run(made), records


def kinds(records: list[Record]) -> str:
    return " ".join(record.type for record in records)


def deep() -> Any:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    return value


def test_the_record_that_it_starts_comes_before_it_starts() -> None:
    seen: list[tuple[str, int]] = []

    def note(record: Record) -> None:
        seen.append((record.type, len(CALLS)))

    asyncio.run(call_tool(Registry([save]), ALL, "save", {"number": 1}, record=note))
    started = ("tool_call", 0), ("decision", 0), ("execution_started", 0)
    assert seen == [*started, ("tool_observation", 1)]


LONG = pytest.param(10**5000, id="long")


@pytest.mark.parametrize("number", [float("nan"), deep(), "\ud800", {1, 2}, LONG, b"x"])
def test_arguments_that_are_no_json_do_not_run(number: Any) -> None:
    done, records = call("double", {"number": number})
    assert done.status == "error" and CALLS == []
    assert done.error is not None and done.error.code == "invalid_arguments"
    assert kinds(records) == "tool_call tool_observation"


def test_arguments_that_are_too_large_do_not_run() -> None:
    done, _ = call("double", {"number": 10**50}, limits=Limits(max_argument_bytes=20))
    assert done.error is not None and done.error.code == "payload_too_large"
    assert CALLS == []


@pytest.mark.parametrize(
    ("name", "arguments", "policy", "status", "code", "off"),
    [
        ("double", {}, ALL, "error", "invalid_arguments", {}),
        ("double", {"number": "four"}, ALL, "error", "invalid_arguments", {}),
        ("double", {"number": 1, "more": 2}, ALL, "error", "invalid_arguments", {}),
        ("treble", {"number": 1}, ALL, "error", "unknown_tool", {}),
        ("save", {"number": 1}, Policy(), "denied", "not_allowed", {}),
        ("save", {"number": 1}, Policy(allow=["*"], deny=["save"]), "denied", "not_allowed", {}),
        ("save", {"number": 1}, DRY, "dry_run", "dry_run", {}),
        ("fetch", {"query": "x"}, DRY, "dry_run", "dry_run", {}),
        ("save", {"number": 1}, ALL, "denied", "disabled", {"save": "not today"}),
        ("broken", {}, ALL, "error", "tool_error", {}),
    ],
)
def test_what_does_not_run_or_fails_is_told_with_its_code(
    name: str, arguments: Any, policy: Policy, status: str, code: str, off: dict[str, str]
) -> None:
    done, records = call(name, arguments, policy, off=off)
    assert done.error is not None
    assert (done.status, done.error.code, CALLS) == (status, code, [])
    assert off.get(name, "") in str(done.error)
    assert records[-1].type == "tool_observation"
    started = [record for record in records if isinstance(record, ExecutionRecord)]
    assert [record.mutates for record in started] == [True] * (name == "broken")


def test_a_person_approves_or_refuses() -> None:
    assert call("careful", {"number": 1})[0].status == "pending" and CALLS == []
    person = ScriptedApprover(True)
    done, records = call("careful", {"number": 1}, approver=person, secret=b"s", session="x")
    assert (done.status, CALLS) == ("ok", [1])
    (approval,) = (record for record in records if isinstance(record, ApprovalRecord))
    assert approval.approved and len(approval.digest) == 64
    assert approval.digest == person.requests[0].digest
    no = ScriptedApprover(ApprovalAnswer(False, "not now"))
    done, _ = call("careful", {"number": 2}, approver=no)
    assert (done.status, CALLS) == ("denied", [1])
    assert done.error is not None and "not now" in done.error.message


def test_nobody_is_asked_about_a_call_that_can_only_fail(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nprint(x)\n")
    registry, person = builtin_tools([f"{tmp_path}:rw"]), ScriptedApprover(True)
    edit = {"path": "a.py", "old": "x", "new": "y"}
    policy = Policy(allow=["edit_file"])
    done = asyncio.run(call_tool(registry, policy, "edit_file", edit, approver=person))
    assert (done.status, person.requests) == ("error", [])
    assert done.error is not None and "2 times" in done.error.message


def test_a_mutating_call_that_had_to_be_coerced_is_asked_about() -> None:
    for approver in (None, ApproveAlways()):
        done, records = call("save", {"number": "5"}, approver=approver)
        assert done.status == "pending" and done.repairs
        assert "repair" in kinds(records)
    done, _ = call("double", {"number": "5"})
    assert done.result is not None and done.result.content == "10"


@pytest.mark.parametrize(
    ("name", "arguments", "rule"),
    [
        ("fetch", {"query": f"my {SECRET}"}, "secret"),
        ("keep", {"text": "a [redacted:jwt] b"}, "placeholder"),
    ],
)
def test_a_secret_for_the_network_and_a_placeholder_to_be_written_stop_the_call(
    name: str, arguments: dict[str, str], rule: str
) -> None:
    done, _ = call(name, arguments)
    assert done.status == "denied" and done.decision is not None
    assert done.decision.rule == rule and CALLS == []
    assert done.error is not None and SECRET not in done.error.message
    assert call(name, dict.fromkeys(arguments, "a word"))[0].status == "ok"


def test_one_call_is_within_every_rate_and_after_no_private_read() -> None:
    rates: Any = {"rate_limits": {"*": "1/day"}, "session_rate_limit": "1/day"}
    strict = Policy(allow=["*"], network_after_read="deny", **rates)
    assert [call("fetch", {"query": "x"}, strict)[0].status for _ in range(2)] == ["ok", "ok"]


def test_a_call_that_no_model_makes_renders_no_prompt() -> None:
    profile = Profile()
    profile.enable()
    done = asyncio.run(call_tool(Registry([double]), ALL, "double", {"number": 2}))
    profile.disable()
    functions = {entry.code for entry in profile.getstats()}
    assert done.status == "ok"
    assert Prompt.add.__code__ in functions and Prompt.render.__code__ not in functions
