"""What the tools of a recorded run give today: those that only read, and always give the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import anyio

from mlx_tools.golden.file import Golden
from mlx_tools.golden.recorded import Given
from mlx_tools.messages import ErrorInfo
from mlx_tools.policy import Limits, Policy
from mlx_tools.prompt import is_reader
from mlx_tools.tools import Registry, execute
from mlx_tools.transcript.records import CallRecord, EditRecord, ExecutionRecord

READING = frozenset(("read",))


def run_tools(golden: Golden, registry: Registry) -> Mapping[str, Given]:
    """What the calls of a recorded run give today, by call.

    Run are the calls of tools that ``registry`` has, that only read, and whose output is not
    recorded as volatile: whatever else the recording says, nothing else is called.
    """
    return anyio.run(_run, golden, registry)


async def _run(golden: Golden, registry: Registry) -> Mapping[str, Given]:
    policy, limits = Policy.from_json(golden.header.policy), Limits.from_json(golden.header.limits)
    specs = registry.specs()
    given: dict[str, Given] = {}
    for call in _started(golden):
        spec = specs.get(call.name)
        if spec is None or call.name in golden.golden.volatile or is_reader(spec):
            continue
        if not spec.effects_of(call.arguments) <= READING:
            continue
        tool = registry.get(call.name)
        result = await execute(tool, call.arguments, timeout=limits.tool_timeout, policy=policy)
        if result.error is not None:
            given[call.call] = ErrorInfo(result.error.code, result.error.message)
        else:
            given[call.call] = result.content or ""
    return given


def _started(golden: Golden) -> Sequence[CallRecord]:
    """The calls that were run, with the arguments that they ran with."""
    calls: dict[str, CallRecord] = {}
    started: dict[str, CallRecord] = {}
    for record in golden.records:
        match record:
            case CallRecord():
                calls[record.call] = record
            case EditRecord():
                calls[record.call] = replace(calls[record.call], arguments=record.arguments)
            case ExecutionRecord():
                started[record.call] = calls[record.call]
    return list(started.values())
