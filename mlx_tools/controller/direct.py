"""A tool called without a model, under the same rules: validated, decided, recorded, limited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

import anyio
from msgspec import Struct

from mlx_tools.controller.approvals import (
    ApprovalAnswer,
    ApprovalRequest,
    Approver,
    PauseApprover,
    Templates,
    approval_request,
    ask_approver,
    by_template,
    confirm_action,
)
from mlx_tools.controller.outputs import cleaner, shorten
from mlx_tools.controller.turn import decision_record
from mlx_tools.messages import ErrorInfo, ToolCall, json_bytes, replace
from mlx_tools.policy import (
    Decision,
    Facts,
    Limits,
    Policy,
    can_be_preapproved,
    decide,
    facts_of,
)
from mlx_tools.protocol import Reading, judge, strict
from mlx_tools.store import UndoStore
from mlx_tools.tools import (
    OnProgress,
    Preview,
    Registry,
    ToolContext,
    ToolResult,
    execute,
    preview_of,
)
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    ExecutionRecord,
    ObservationRecord,
    Record,
    RepairRecord,
)

_CALL: Final = "c1"

Status = Literal["ok", "error", "denied", "pending", "dry_run"]


class DirectCall(Struct, frozen=True):
    """The end of a call without a model.

    ``name`` and ``arguments`` are those that were decided about, after ``repairs``. ``result`` is
    None where the tool did not run; ``error`` then says why, and is None for a call that waits for
    an approval. ``decision`` is None where the call was not valid. ``preview`` is what it would
    change, of one that waits or that a dry run left out.
    """

    name: str
    arguments: Mapping[str, Any]
    repairs: tuple[str, ...] = ()
    status: Status = "pending"
    decision: Decision | None = None
    result: ToolResult | None = None
    error: ErrorInfo | None = None
    preview: str = ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


async def call_tool(
    registry: Registry,
    policy: Policy,
    name: str,
    arguments: Mapping[str, Any],
    *,
    limits: Limits | None = None,
    approver: Approver | None = None,
    record: Callable[[Record], None] = lambda record: None,
    session: str = "",
    secret: bytes = b"",
    now: Callable[[], str] = _now,
    on_progress: OnProgress | None = None,
    undo: UndoStore | None = None,
    templates: Templates | None = None,
    roots: Sequence[str] = (),
) -> DirectCall:
    """Call a tool of the registry as a run of a model would.

    ``record`` gets every record as it comes, the one that says that a tool starts before it does.
    Without an approver a call that needs approval is left ``pending``. An approval binds to
    ``session`` and ``secret``; ``undo`` keeps what the call replaces; ``templates`` answer first,
    in these ``roots``. Raises nothing where a call is wrong, denied or fails: the result says so.
    """
    limits, approver, clean = limits or Limits(), approver or PauseApprover(), cleaner(policy)
    end = partial(_record_end, limit=limits.observation_chars, clean=clean, record=record)
    call, done, fault = _read(registry, name, arguments)
    record(call)
    for repair in done.repairs:
        record(RepairRecord(turn=0, name=repair, call=_CALL))
    if fault is not None:
        return end(done, "error", fault)
    decision, preview = _decided(call, registry, policy, limits), Preview("", "")
    record(decision_record(_CALL, decision))
    if decision.decision == "ask" or decision.code == "dry_run":
        look = partial(preview_of, registry.get(call.name), call.arguments, policy)
        preview = await anyio.to_thread.run_sync(look)
    if decision.decision == "deny":
        shown = await anyio.to_thread.run_sync(clean, preview.text)  # may be 5 MB
        return end(*_denied(replace(done, preview=shown), decision))
    tool = registry.get(call.name)
    if templates is not None and can_be_preapproved(decision.rule):
        run: dict[str, Any] = {"roots": roots, "now": datetime.fromisoformat(now())}
        if made := by_template(templates, call, tool, preview, nested=False, **run):
            decision = made
            record(decision_record(_CALL, decision))
    done = replace(done, decision=decision)
    if decision.decision == "ask" and preview.error is not None:  # nobody is asked about a failure
        return end(done, "error", replace(preview.error, message=clean(preview.error.message)))
    if decision.decision == "ask":
        binds: dict[str, Any] = {"policy": policy, "session": session, "secret": secret}
        binds |= {"tool": tool.spec, "reason": decision.reason}
        answer = await _answer(approval_request(call, preview, **binds), approver, record, now)
        if answer.approved is None:
            return replace(done, preview=preview.text)
        if not answer.approved:
            return end(done, "denied", ErrorInfo("denied", answer.reason))
    record(ExecutionRecord(call=_CALL, mutates=tool.spec.mutates(call.arguments), at=now()))
    context = ToolContext(
        policy=policy,
        tools=registry,
        expected=preview.state or None,
        session=session,
        undo=undo,
        report=on_progress,
        confirms=lambda context, *asked: confirm_action(approver, _CALL, *asked),
    )
    result = await execute(tool, call.arguments, context, timeout=limits.tool_timeout, clean=clean)
    status: Status = "ok" if result.error is None else "error"
    return end(replace(done, result=result), status, result.error)


def _read(
    registry: Registry, name: str, arguments: Mapping[str, Any]
) -> tuple[CallRecord, DirectCall, ErrorInfo | None]:
    """The call held to the tool's spec, its report so far, and what is wrong with it."""
    try:
        given = dict(strict.loads(json.dumps(arguments, ensure_ascii=False, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as fault:
        message = f"the arguments are no JSON: {fault}"[:500]
        call = CallRecord(turn=0, call=_CALL, name=name, arguments={})
        return call, DirectCall(name, {}), ErrorInfo("invalid_arguments", message)
    (judged,) = judge(Reading(messages=(ToolCall(name, given),), clean=True), registry.specs())
    read = judged.call
    call = CallRecord(
        turn=0, call=_CALL, name=read.name, arguments=read.arguments, runs=judged.runs
    )
    error = None if call.name in registry.disabled else judged.error
    return call, DirectCall(call.name, call.arguments, read.repairs), error


async def _answer(
    request: ApprovalRequest,
    approver: Approver,
    record: Callable[[Record], None],
    now: Callable[[], str],
) -> ApprovalAnswer:
    """The answer of a person to the call; other arguments are no."""
    (answer,) = await ask_approver(approver, [request])
    if answer.approved is None:
        return answer
    if answer.arguments is not None:
        return ApprovalAnswer(False, "other arguments are another call: make that one")
    record(
        ApprovalRecord(
            call=_CALL,
            approved=answer.approved,
            digest=request.digest,
            reason=answer.reason,
            at=now(),
            state=request.state,
        )
    )
    return answer if answer.reason else replace(answer, reason="denied")


def _record_end(
    done: DirectCall,
    status: Status,
    error: ErrorInfo | None,
    *,
    limit: int,
    clean: Callable[[str], str],
    record: Callable[[Record], None],
) -> DirectCall:
    """Record how the call ended, and say so."""
    result, content = done.result, None
    if result is not None and result.content is not None:
        content = clean(result.content)
        result = replace(result, content=content)
        content = shorten(content, limit, lambda omitted, _: f"\n… {omitted} …\n")
    record(
        ObservationRecord(
            call=_CALL,
            name=done.name,
            content=content,
            error=error,
            duration_ms=result.duration_ms if result is not None else None,
            output_size_chars=result.output_size_chars if result is not None else None,
        )
    )
    return replace(done, result=result, status=status, error=error)


def _denied(done: DirectCall, decision: Decision) -> tuple[DirectCall, Status, ErrorInfo]:
    """A call that was decided against: its report, how it ended, and why."""
    denial = ErrorInfo(decision.code or "not_allowed", decision.reason)
    status: Status = "dry_run" if denial.code == "dry_run" else "denied"
    return replace(done, decision=decision), status, denial


def _decided(call: CallRecord, registry: Registry, policy: Policy, limits: Limits) -> Decision:
    """The decision of the limits and the policy."""
    if len(json_bytes(call.arguments)) > limits.max_argument_bytes:
        reason = f"the arguments are larger than {limits.max_argument_bytes} bytes"
        return Decision("deny", "max_argument_bytes", reason, "payload_too_large")
    spec = registry.specs().get(call.name)
    return decide(
        policy,
        spec,
        call.name,
        call.arguments,
        runs=call.runs,
        disabled_reason=registry.disabled.get(call.name),
        facts=facts_of(spec, call.arguments) if spec is not None else Facts(),
    )
