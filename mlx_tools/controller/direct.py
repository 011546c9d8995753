"""A tool called without a model, under the same rules: validated, decided, recorded, limited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

import anyio

from mlx_tools.controller.approvals import (
    ApprovalAnswer,
    ApprovalRequest,
    Approver,
    NobodyThere,
    Templates,
    approval_request,
    confirmed,
    template_of,
)
from mlx_tools.controller.outputs import cleaner, shorten
from mlx_tools.controller.turn import arguments_size, recorded
from mlx_tools.messages import ErrorInfo, ToolCall
from mlx_tools.policy import (
    Decision,
    Facts,
    Limits,
    Policy,
    covered,
    decide,
    facts_of,
    may_stand,
)
from mlx_tools.protocol import JudgedCall, Reading, judge, strict
from mlx_tools.store import UndoStore
from mlx_tools.tools import (
    Callee,
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


@dataclass(frozen=True, slots=True)
class DirectCall:
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
    limits = limits or Limits()
    end = partial(_ended, policy=policy, limits=limits, record=record)
    arguments, fault = _as_json(arguments)
    if fault is not None:
        record(CallRecord(turn=0, call=_CALL, name=name, arguments={}))
        return end(DirectCall(name, {}, status="error", error=fault))
    judged, call = _read(registry, name, arguments, record)
    done = DirectCall(call.name, call.arguments, judged.call.repairs)
    if judged.error is not None and call.name not in registry.disabled:
        return end(replace(done, status="error", error=judged.error))
    decision, preview = _decided(call, registry, policy, limits), Preview("", "")
    record(recorded(_CALL, decision))
    done = replace(done, decision=decision)
    if decision.decision == "ask" or decision.code == "dry_run":
        asked = registry.get(call.name)
        preview = await anyio.to_thread.run_sync(preview_of, asked, call.arguments, policy)
    if decision.decision == "deny":
        denial = ErrorInfo(decision.code or "not_allowed", decision.reason)
        done = replace(done, error=denial, preview=cleaner(policy)(preview.text))
        return end(replace(done, status="dry_run" if denial.code == "dry_run" else "denied"))
    tool = registry.get(call.name)
    if templates is not None and may_stand(decision.rule):
        decision = _by_template(decision, templates, call, tool, preview, roots, now(), record)
        done = replace(done, decision=decision)
    if decision.decision == "ask":
        binds: dict[str, Any] = {"policy": policy, "session": session, "secret": secret}
        binds |= {"tool": tool.spec, "reason": decision.reason}
        request = approval_request(call, preview, **binds)
        answer = await _answer(request, approver, record, now)
        if answer.approved is None:
            return replace(done, status="pending", preview=preview.text)
        if not answer.approved:
            return end(replace(done, status="denied", error=ErrorInfo("denied", answer.reason)))
    record(ExecutionRecord(call=_CALL, mutates=tool.spec.mutates(call.arguments), at=now()))
    context = ToolContext(
        policy=policy,
        expected=preview.state or None,
        session=session,
        undo=undo,
        report=on_progress,
        confirms=lambda context, *asked: confirmed(approver or NobodyThere(), _CALL, *asked),
    )
    seconds, clean = limits.tool_timeout, cleaner(policy)
    result = await execute(tool, call.arguments, context, timeout=seconds, clean=clean)
    done = replace(done, result=result, error=result.error)
    return end(replace(done, status="ok" if result.error is None else "error"))


def _as_json(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], ErrorInfo | None]:
    """The arguments as JSON has them, or what is wrong with them."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        return dict(strict.loads(text)), None
    except (TypeError, ValueError, RecursionError) as error:
        return {}, ErrorInfo("invalid_arguments", f"the arguments are no JSON: {error}"[:500])


def _read(
    registry: Registry,
    name: str,
    arguments: Mapping[str, Any],
    record: Callable[[Record], None],
) -> tuple[JudgedCall, CallRecord]:
    """The call, its name and arguments held to the tool's spec."""
    reading = Reading(messages=(ToolCall(name, dict(arguments)),), clean=True)
    (judged,) = judge(reading, registry.specs())
    name, arguments = judged.call.name, judged.call.arguments
    call = CallRecord(turn=0, call=_CALL, name=name, arguments=arguments, runs=judged.runs)
    record(call)
    for repair in judged.call.repairs:
        record(RepairRecord(turn=0, name=repair, call=_CALL))
    return judged, call


def _by_template(
    decision: Decision,
    templates: Templates,
    call: CallRecord,
    tool: Callee,
    preview: Preview,
    roots: Sequence[str],
    now: str,
    record: Callable[[Record], None],
) -> Decision:
    """The decision of a template that covers the call, else the one before."""
    at = datetime.fromisoformat(now)
    found = template_of(templates, call, tool, preview, roots=roots, nested=False, now=at)
    if found is None:
        return decision
    made = covered(found, tool.spec, tool.spec.effects_of(call.arguments))
    record(recorded(_CALL, made))
    return made


async def _answer(
    request: ApprovalRequest,
    approver: Approver | None,
    record: Callable[[Record], None],
    now: Callable[[], str],
) -> ApprovalAnswer:
    """The answer of a person to the call; other arguments are no."""
    (answer,) = await (approver or NobodyThere()).decide([request])
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


def _decided(call: CallRecord, registry: Registry, policy: Policy, limits: Limits) -> Decision:
    """The decision of the limits and the policy."""
    if arguments_size(call.arguments) > limits.max_argument_bytes:
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


def _ended(
    done: DirectCall, policy: Policy, limits: Limits, record: Callable[[Record], None]
) -> DirectCall:
    """Record how the call ended, and say so."""
    result, content = done.result, None
    if result is not None:
        clean = cleaner(policy)
        content = None if result.content is None else clean(result.content)
        done = replace(done, result=replace(result, content=content))
    if content is not None:
        limit = limits.max_observation_chars
        content = shorten(content, limit, lambda omitted, _: f"\n… {omitted} …\n")
    record(
        ObservationRecord(
            call=_CALL,
            name=done.name,
            content=content,
            error=done.error,
            duration_ms=result.duration_ms if result is not None else None,
            output_size_chars=result.output_size_chars if result is not None else None,
        )
    )
    return done
