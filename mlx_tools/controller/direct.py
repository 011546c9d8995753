"""A tool called without a model, under the same rules: validated, decided, recorded, limited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import anyio

from mlx_tools.controller.approvals import ApprovalAnswer, ApprovalRequest, Approver
from mlx_tools.controller.outputs import shorten
from mlx_tools.messages import ErrorInfo, ToolCall
from mlx_tools.policy import (
    ApprovalSubject,
    Decision,
    Facts,
    Limits,
    Policy,
    SecretFinder,
    approval_digest,
    decide,
    facts_of,
)
from mlx_tools.protocol import JudgedCall, Reading, judge, strict
from mlx_tools.store.artifacts import UndoStore
from mlx_tools.tools import OnProgress, Preview, Registry, ToolResult, execute, preview_of
from mlx_tools.transcript.records import (
    ApprovalRecord,
    CallRecord,
    DecisionRecord,
    ExecutionRecord,
    ObservationRecord,
    Record,
    RepairRecord,
)

_CALL: Final = "c1"

Status = Literal["ok", "error", "denied", "pending", "dry_run"]


@dataclass(frozen=True, slots=True)
class DirectCall:
    """How a call without a model ended.

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
    finder: SecretFinder | None = None,
    undo: UndoStore | None = None,
) -> DirectCall:
    """Call a tool of the registry as a run of a model would.

    ``record`` gets every record as it comes, the one that says that a tool starts before it does.
    Without an approver a call that needs approval is left ``pending``. ``session`` and ``secret``
    go into the digest that an approval binds to; ``finder`` looks for secrets in the arguments,
    ``undo`` keeps what the call replaces. One call alone is within every rate. Raises nothing for a
    call that is wrong, denied or fails: the result says so.
    """
    call = _Direct(registry, policy, limits or Limits(), record, now)
    try:
        arguments = strict.loads(json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        record(CallRecord(turn=0, call=_CALL, name=name, arguments={}))
        fault = ErrorInfo("invalid_arguments", f"the arguments are no JSON: {error}"[:500])
        return call.ended(DirectCall(name, {}, status="error", error=fault))
    judged = call.judged(name, arguments)
    done = DirectCall(judged.call.name, judged.call.arguments, judged.call.repairs)
    if judged.error is not None and done.name not in registry.disabled:
        return call.ended(replace(done, status="error", error=judged.error))
    decision = call.decided(judged, finder)
    done = replace(done, decision=decision)
    if decision.decision == "deny":
        code = decision.code or "not_allowed"
        dry = code == "dry_run"
        denial = ErrorInfo(code, decision.reason)
        done = call.ended(replace(done, status="dry_run" if dry else "denied", error=denial))
        return replace(done, preview=(await call.preview(done)).text) if dry else done
    expected: str | None = None
    if decision.decision == "ask":
        preview, answer = await call.asked(approver, judged, decision, session, secret)
        if answer.approved is None:
            return replace(done, status="pending", preview=preview.text)
        if not answer.approved or answer.arguments is not None:
            why = answer.reason or "denied"
            if answer.arguments is not None:
                why = "other arguments are another call: make that one"
            return call.ended(replace(done, status="denied", error=ErrorInfo("denied", why)))
        expected = preview.state or None
    tool = registry.get(done.name)
    mutates = tool.spec.mutates(done.arguments)
    record(ExecutionRecord(call=_CALL, mutates=mutates, at=now()))
    result = await execute(
        tool,
        done.arguments,
        timeout=call.limits.tool_timeout,
        policy=policy,
        expected=expected,
        session=session,
        undo=undo,
        clean=_clean if policy.redacts else str,
        on_progress=on_progress,
    )
    status: Status = "ok" if result.error is None else "error"
    return call.ended(replace(done, status=status, result=result, error=result.error))


@dataclass(frozen=True, slots=True)
class _Direct:
    """One call on its way, and its records."""

    registry: Registry
    policy: Policy
    limits: Limits
    record: Callable[[Record], None]
    now: Callable[[], str]

    def judged(self, name: str, arguments: Mapping[str, Any]) -> JudgedCall:
        """The call, its name and arguments held to the tool's spec."""
        reading = Reading(messages=(ToolCall(name, dict(arguments)),), clean=True)
        (judged,) = judge(reading, self.registry.specs())
        call = judged.call
        self.record(
            CallRecord(
                turn=0, call=_CALL, name=call.name, arguments=call.arguments, runs=judged.runs
            )
        )
        for repair in call.repairs:
            self.record(RepairRecord(turn=0, name=repair, call=_CALL))
        return judged

    def decided(self, judged: JudgedCall, finder: SecretFinder | None) -> Decision:
        """What the limits and the policy say."""
        name, arguments = judged.call.name, judged.call.arguments
        size, most = len(json.dumps(dict(arguments), separators=(",", ":"))), self.limits
        if size > most.max_argument_bytes:
            reason = f"the arguments are larger than {most.max_argument_bytes} bytes"
            decision = Decision("deny", "max_argument_bytes", reason, "payload_too_large")
        else:
            spec = self.registry.specs().get(name)
            decision = decide(
                self.policy,
                spec,
                name,
                arguments,
                runs=judged.runs,
                echoed=judged.echoed,
                disabled_reason=self.registry.disabled.get(name),
                facts=facts_of(spec, arguments, finder) if spec is not None else Facts(),
            )
        self.record(
            DecisionRecord(
                call=_CALL,
                decision=decision.decision,
                rule=decision.rule,
                reason=decision.reason,
                code=decision.code,
            )
        )
        return decision

    async def asked(
        self,
        approver: Approver | None,
        judged: JudgedCall,
        decision: Decision,
        session: str,
        secret: bytes,
    ) -> tuple[Preview, ApprovalAnswer]:
        """What the call would change, and what a person says of that."""
        call = judged.call
        preview = await self.preview(call)
        if approver is None:
            return preview, ApprovalAnswer(None)
        subject = ApprovalSubject(
            session=session,
            call=_CALL,
            name=call.name,
            arguments=call.arguments,
            tool=self.registry.get(call.name).spec.digest(),
            policy=self.policy.digest(),
            state=preview.state,
        )
        digest = approval_digest(secret, subject)
        request = ApprovalRequest(
            call=_CALL,
            name=call.name,
            arguments=call.arguments,
            reason=decision.reason,
            suspect=judged.runs == "with_approval",
            digest=digest,
            preview=preview.text,
        )
        (answer,) = await approver.decide([request])
        if answer.approved is not None and answer.arguments is None:
            self.record(
                ApprovalRecord(
                    call=_CALL,
                    approved=answer.approved,
                    digest=digest,
                    reason=answer.reason,
                    at=self.now(),
                    state=preview.state,
                )
            )
        return preview, answer

    async def preview(self, call: ToolCall | DirectCall) -> Preview:
        """What the call would change."""
        tool = self.registry.get(call.name)
        return await anyio.to_thread.run_sync(preview_of, tool, call.arguments, self.policy)

    def ended(self, done: DirectCall) -> DirectCall:
        """Record how the call ended, and say so."""
        result, content = done.result, None
        if result is not None:
            content = result.content
            if self.policy.redacts:
                content = None if content is None else _clean(content)
                done = replace(done, result=replace(result, content=content))
        if content is not None:
            limit = self.limits.max_observation_chars
            content = shorten(content, limit, lambda omitted, _: f"\n… {omitted} …\n")
        self.record(
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


def _clean(text: str) -> str:
    from mlx_tools.policy.redact import Redactor  # its patterns take a while to compile

    return Redactor().text(text).text
