"""A tool called without a model: the same validation, decision and records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mlx_tools.controller import AlwaysApprove, ApprovalAnswer, DirectCall, call_tool
from mlx_tools.policy import Limits, Policy
from mlx_tools.testing import ScriptedApprover
from mlx_tools.tools import Registry, tool
from mlx_tools.transcript.records import ApprovalRecord, ExecutionRecord, Record

CALLS: list[int] = []
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


ALL = Policy(allow=["*"], ask_effects=())


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


def call(
    name: str, arguments: Mapping[str, Any], policy: Policy = ALL, **rest: Any
) -> tuple[DirectCall, list[Record]]:
    registry = Registry([double, save, careful], switched_off=rest.pop("off", {}))
    records: list[Record] = []
    made = call_tool(
        registry, policy, name, arguments, record=records.append, now=lambda: "now", **rest
    )
    return asyncio.run(made), records


def code_of(done: DirectCall) -> str | None:
    return done.error and done.error.code


def kinds(records: Sequence[Record]) -> list[str]:
    return [record.type for record in records]


def test_the_record_that_it_starts_comes_before_it_starts() -> None:
    seen: list[tuple[str, int]] = []

    def note(record: Record) -> None:
        seen.append((record.type, len(CALLS)))

    asyncio.run(call_tool(Registry([save]), ALL, "save", {"number": 1}, record=note))
    kinds = ("tool_call", 0), ("decision", 0), ("execution_started", 0), ("tool_observation", 1)
    assert tuple(seen) == kinds


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("double", {}, "invalid_arguments"),
        ("double", {"number": "four"}, "invalid_arguments"),
        ("double", {"number": 1, "more": 2}, "invalid_arguments"),
        ("treble", {"number": 1}, "unknown_tool"),
    ],
)
def test_what_is_not_valid_does_not_run(name: str, arguments: Any, code: str) -> None:
    done, records = call(name, arguments)
    assert (done.status, code_of(done), CALLS) == ("error", code, [])
    assert kinds(records)[-1] == "tool_observation"


@pytest.mark.parametrize(
    ("policy", "status", "code", "off"),
    [
        (Policy(), "denied", "not_allowed", {}),
        (Policy(allow=["*"], deny=["save"]), "denied", "not_allowed", {}),
        (Policy(allow=["*"], dry_run=True), "dry_run", "dry_run", {}),
        (ALL, "denied", "disabled", {"save": "not today"}),
    ],
)
def test_what_is_denied_or_disabled_does_not_run(
    policy: Policy, status: str, code: str, off: dict[str, str]
) -> None:
    done, records = call("save", {"number": 1}, policy, off=off)
    assert done.status == status and CALLS == []
    assert code_of(done) == code and off.get("save", "") in str(done.error)
    assert kinds(records) == ["tool_call", "decision", "tool_observation"]


def test_a_person_approves_or_refuses() -> None:
    assert call("careful", {"number": 1})[0].status == "pending" and CALLS == []
    person = ScriptedApprover(True)
    done, records = call("careful", {"number": 1}, approver=person, secret=b"s", session="x")
    assert done.status == "ok"
    assert CALLS == [1]
    approval = next(record for record in records if isinstance(record, ApprovalRecord))
    assert approval.approved
    assert approval.digest == person.requests[0].digest
    assert len(approval.digest) == 64
    done, _ = call(
        "careful", {"number": 2}, approver=ScriptedApprover(ApprovalAnswer(False, "not now"))
    )
    assert done.status == "denied"
    assert code_of(done) == "denied" and "not now" in str(done.error)
    assert CALLS == [1]


def test_a_mutating_call_that_had_to_be_coerced_is_asked_about() -> None:
    done, records = call("save", {"number": "5"})
    assert done.status == "pending"
    assert done.repairs
    assert "repair" in kinds(records)
    done, _ = call("save", {"number": "5"}, approver=AlwaysApprove())
    assert done.status == "pending"
    done, _ = call("double", {"number": "5"})
    assert done.result is not None
    assert done.result.content == "10"


def deep() -> Any:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [float("nan"), deep(), "\ud800", {1, 2}, pytest.param(10**5000, id="long"), b"x"]
)
def test_arguments_that_are_no_json_do_not_run(value: Any) -> None:
    done, records = call("double", {"number": value})
    assert (done.status, code_of(done), CALLS) == ("error", "invalid_arguments", [])
    assert kinds(records) == ["tool_call", "tool_observation"]


def test_arguments_that_are_too_large_do_not_run() -> None:
    done, _ = call("double", {"number": 10**50}, limits=Limits(max_argument_bytes=20))
    assert code_of(done) == "payload_too_large"
    assert CALLS == []


def test_a_tool_that_fails_is_an_error_with_its_record() -> None:
    @tool(effects={"write"})
    def broken() -> None:
        raise ValueError("no")

    records: list[Record] = []
    done = asyncio.run(call_tool(Registry([broken]), ALL, "broken", {}, record=records.append))
    assert done.status == "error" and "ValueError: no" in str(done.error)
    started = next(record for record in records if isinstance(record, ExecutionRecord))
    assert started.mutates


@tool(effects={"read", "network"})
def fetch(query: str) -> str:
    """Fetches something."""
    CALLS.append(1)
    return query


@tool(effects={"write"})
def keep(text: str) -> str:
    """Keeps a text."""
    CALLS.append(1)
    return text


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
    registry = Registry([fetch, keep])
    done = asyncio.run(call_tool(registry, ALL, name, arguments))
    assert done.status == "denied" and done.decision is not None
    assert done.decision.rule == rule and CALLS == []
    assert done.error is not None and SECRET not in done.error.message
    harmless = dict.fromkeys(arguments, "a word")
    assert asyncio.run(call_tool(registry, ALL, name, harmless)).status == "ok"


def test_one_call_is_within_every_rate_and_after_no_private_read() -> None:
    rates: Any = {"rate_limits": {"*": "1/day"}, "session_rate_limit": "1/day"}
    strict = Policy(allow=["*"], network_after_read="deny", **rates)
    registry = Registry([fetch])
    for _ in range(2):
        assert asyncio.run(call_tool(registry, strict, "fetch", {"query": "x"})).status == "ok"


@pytest.mark.parametrize("name", ["fetch", "keep"])
def test_a_dry_run_neither_writes_nor_uses_the_network(name: str) -> None:
    dry = Policy(allow=["*"], dry_run=True)
    arguments = {"query": "x"} if name == "fetch" else {"text": "x"}
    done = asyncio.run(call_tool(Registry([fetch, keep]), dry, name, arguments))
    assert (done.status, CALLS) == ("dry_run", [])
