"""A tool called without a model, under the same rules: validated, decided, recorded, limited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import anyio

from mlx_tools.controller.approver import ApprovalAnswer, ApprovalRequest, Approver, NobodyThere
from mlx_tools.controller.observation import shorten
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectCall:
    """How a call without a model ended.

    ``name`` and ``arguments`` are those that were decided about, after ``repairs``. ``result`` is
    None where the tool did not run; ``error`` then says why, and is None for a call that waits for
    an approval. ``decision`` is None where the call was not valid. ``preview`` is what it would
    change, of one that waits or that a dry run left out.
    """

    name: str
    arguments: Mapping[str, Any]
    repairs: tuple[str, ...]
    status: Status
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
    """Calls a tool of the registry as a run of a model would.

    ``record`` gets every record as it comes, the one that says that a tool starts before it does.
    Without an approver a call that needs approval is left ``pending``. ``session`` and ``secret``
    go into the digest that an approval binds to; ``finder`` looks for secrets in the arguments,
    ``undo`` keeps what the call replaces. One call alone is within every rate. Raises nothing for a
    call that is wrong, denied or fails: the result says so.
    """
    call = _Direct(registry, policy, limits or Limits(), record, now, finder)
    try:
        arguments = strict.loads(json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return call.unreadable(name, f"the arguments are no JSON: {error}"[:500])
    judged = call.judged(name, arguments)
    if judged.error is not None and judged.call.name not in registry.disabled:
        return call.ended("error", error=judged.error)
    decision = call.decided(judged)
    if decision.decision == "deny":
        code = decision.code or "not_allowed"
        status: Status = "dry_run" if code == "dry_run" else "denied"
        done = call.ended(status, error=ErrorInfo(code, decision.reason))
        return replace(done, preview=(await call.preview()).text) if status == "dry_run" else done
    expected: str | None = None
    if decision.decision == "ask":
        preview, answer = await call.asked(approver or NobodyThere(), judged, session, secret)
        if answer.approved is None:
            return replace(call.result("pending"), preview=preview.text)
        if not answer.approved or answer.arguments is not None:
            why = answer.reason or "denied"
            if answer.arguments is not None:
                why = "other arguments are another call: make that one"
            return call.ended("denied", error=ErrorInfo("denied", why))
        expected = preview.state or None
    return await call.run(on_progress, expected, session, undo)


class _Direct:
    """One call on its way, and its records."""

    def __init__(
        self,
        registry: Registry,
        policy: Policy,
        limits: Limits,
        record: Callable[[Record], None],
        now: Callable[[], str],
        finder: SecretFinder | None,
    ) -> None:
        self._registry = registry
        self._policy = policy
        self._limits = limits
        self._record = record
        self._now = now
        self._finder = finder
        self._call = ToolCall("", {})
        self._decision: Decision | None = None

    def unreadable(self, name: str, fault: str) -> DirectCall:
        """The end of a call whose arguments no record can hold."""
        self._call = ToolCall(name, {})
        self._record(CallRecord(turn=0, call=_CALL, name=name, arguments={}))
        return self.ended("error", error=ErrorInfo("invalid_arguments", fault))

    def judged(self, name: str, arguments: Mapping[str, Any]) -> JudgedCall:
        """The call, its name and arguments held to the tool's spec."""
        reading = Reading(messages=(ToolCall(name, dict(arguments)),), clean=True)
        (judged,) = judge(reading, self._registry.specs())
        self._call = judged.call
        self._record(
            CallRecord(
                turn=0,
                call=_CALL,
                name=judged.call.name,
                arguments=judged.call.arguments,
                runs=judged.runs,
            )
        )
        for repair in judged.call.repairs:
            self._record(RepairRecord(turn=0, name=repair, call=_CALL))
        return judged

    def decided(self, judged: JudgedCall) -> Decision:
        """What the limits and the policy say."""
        name, arguments = judged.call.name, judged.call.arguments
        size = len(json.dumps(dict(arguments), separators=(",", ":")))
        if size > self._limits.max_argument_bytes:
            reason = f"the arguments are larger than {self._limits.max_argument_bytes} bytes"
            decision = Decision("deny", "max_argument_bytes", reason, "payload_too_large")
        else:
            spec = self._registry.specs().get(name)
            decision = decide(
                self._policy,
                spec,
                name,
                arguments,
                runs=judged.runs,
                echoed=judged.echoed,
                disabled_reason=self._registry.disabled.get(name),
                facts=facts_of(spec, arguments, self._finder) if spec is not None else Facts(),
            )
        self._decision = decision
        self._record(
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
        self, approver: Approver, judged: JudgedCall, session: str, secret: bytes
    ) -> tuple[Preview, ApprovalAnswer]:
        """What the call would change, and what a person says of that."""
        tool, preview = self._registry.get(judged.call.name), await self.preview()
        shown = ApprovalSubject(
            session=session,
            call=_CALL,
            name=judged.call.name,
            arguments=judged.call.arguments,
            tool=tool.spec.digest(),
            policy=self._policy.digest(),
            state=preview.state,
        )
        digest = approval_digest(secret, shown)
        request = ApprovalRequest(
            call=_CALL,
            name=judged.call.name,
            arguments=judged.call.arguments,
            reason=self._decision.reason if self._decision else "",
            suspect=judged.runs == "with_approval",
            digest=digest,
            preview=preview.text,
        )
        (answer,) = await approver.decide([request])
        if answer.approved is not None and answer.arguments is None:
            self._record(
                ApprovalRecord(
                    call=_CALL,
                    approved=answer.approved,
                    digest=digest,
                    reason=answer.reason,
                    at=self._now(),
                    state=preview.state,
                )
            )
        return preview, answer

    async def preview(self) -> Preview:
        """What the call would change."""
        tool = self._registry.get(self._call.name)
        return await anyio.to_thread.run_sync(preview_of, tool, self._call.arguments, self._policy)

    async def run(
        self,
        on_progress: OnProgress | None,
        expected: str | None,
        session: str,
        undo: UndoStore | None,
    ) -> DirectCall:
        """Runs the tool."""
        tool = self._registry.get(self._call.name)
        mutates = tool.spec.mutates(self._call.arguments)
        self._record(ExecutionRecord(call=_CALL, mutates=mutates, at=self._now()))
        result = await execute(
            tool,
            self._call.arguments,
            timeout=self._limits.tool_timeout,
            policy=self._policy,
            expected=expected,
            session=session,
            undo=undo,
            clean=_clean if self._policy.redacts else str,
            on_progress=on_progress,
        )
        status: Status = "ok" if result.error is None else "error"
        return self.ended(status, result=result, error=result.error)

    def ended(
        self, status: Status, *, result: ToolResult | None = None, error: ErrorInfo | None = None
    ) -> DirectCall:
        """Records how the call ended, and says so."""
        content = result.content if result is not None else None
        if self._policy.redacts and result is not None:
            content = None if content is None else _clean(content)
            result = replace(result, content=content, error=error)
        if content is not None:
            limit = self._limits.max_observation_chars
            content = shorten(content, limit, lambda omitted, _: f"\n… {omitted} …\n")
        self._record(
            ObservationRecord(
                call=_CALL,
                name=self._call.name,
                content=content,
                error=error,
                duration_ms=result.duration_ms if result is not None else None,
                output_size_chars=result.output_size_chars if result is not None else None,
            )
        )
        return self.result(status, result=result, error=error)

    def result(
        self, status: Status, *, result: ToolResult | None = None, error: ErrorInfo | None = None
    ) -> DirectCall:
        return DirectCall(
            name=self._call.name,
            arguments=self._call.arguments,
            repairs=self._call.repairs,
            status=status,
            decision=self._decision,
            result=result,
            error=error,
        )


def _clean(text: str) -> str:
    from mlx_tools.policy.redact import Redactor  # its patterns take a while to compile

    return Redactor().text(text).text
