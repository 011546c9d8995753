"""A call of a tool without a model, by the driver and the rules of every run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NoReturn

import anyio
import anyio.to_thread
from msgspec import Struct

from mlx_tools.controller.approvals import CallApprovals
from mlx_tools.controller.approver import (
    ApprovalAnswer,
    ApprovalRequest,
    Approver,
    PauseApprover,
    Templates,
    ask_approver,
)
from mlx_tools.controller.context import FittedStep
from mlx_tools.controller.driver import CallEnd, Driver, DriverParts, RunClock
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Complete, Session
from mlx_tools.controller.state import CallState, SessionInputs
from mlx_tools.controller.tool_runner import RegistryRunner
from mlx_tools.controller.writer import WALL_CLOCK, SessionWriter
from mlx_tools.errors import BackendBroken, require_instance, require_text, require_texts
from mlx_tools.messages import ErrorInfo, ToolCall, replace
from mlx_tools.parsing import loads
from mlx_tools.policy import Decision, Limits, Policy
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.protocol import Reading
from mlx_tools.store import SessionFiles, Transcript, UndoStore, load_words
from mlx_tools.tools import OnProgress, Progress, ReadCallCache, Registry, ToolResult
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    CompletionRecord,
    DecisionRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    Record,
    RepairRecord,
    State,
    UserRecord,
)

_CALL: Final = "c1"
_CALL_RECORDS: Final = (
    *(CallRecord, RepairRecord, DecisionRecord),
    *(ApprovalRecord, ExecutionRecord, ObservationRecord),
)
"""The records of a call. The question, completion and pause in it are only for the driver: there is
no model, and nothing to resume."""

Status = Literal["ok", "error", "denied", "pending", "dry_run"]


class DirectCall(Struct, frozen=True):
    """The end of a call without a model."""

    name: str
    """The tool that was decided about, after ``repairs``."""
    arguments: Mapping[str, Any]
    repairs: tuple[str, ...] = ()
    status: Status = "pending"
    decision: Decision | None = None
    """None if the call was not valid."""
    result: ToolResult | None = None
    """None if the tool did not run; ``error`` then says why."""
    error: ErrorInfo | None = None
    """None for a call that ran, or that waits for an approval."""
    preview: str = ""
    """The change that the call would make, if it waits or a dry run left it out."""


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
    now: Callable[[], datetime] = WALL_CLOCK,
    on_progress: OnProgress | None = None,
    undo: UndoStore | None = None,
    templates: Templates | None = None,
    roots: Sequence[str] = (),
) -> DirectCall:
    """Call a tool of the registry as a run of a model would.

    Nothing is raised if a call is wrong, denied or fails: the result says so.

    Args:
        registry: the tools.
        policy: what may be called.
        name: the tool's name.
        arguments: its arguments.
        limits: the limits of a run.
        approver: decides about the call. Without one a call that needs an approval stays
            ``pending``.
        record: called with every record as it comes, that of a tool's start before it starts.
        session, secret: what an approval binds to.
        now: the wall clock.
        on_progress: called with the tool's progress.
        undo: stores what the call replaces.
        templates: approval templates, which answer first.
        roots: the folders of the templates.

    Raises:
        UsageError: an argument besides ``arguments`` is not valid.
    """
    limits = Limits() if limits is None else limits
    _check_arguments(registry, policy, name, limits)
    try:
        # As a transcript would hold them: tuples become lists, and values that JSON cannot hold are
        # refused here.
        given = dict(loads(json.dumps(arguments, ensure_ascii=False, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as fault:
        return _no_json(name, fault, record)
    header = Header(
        session=session,
        created="",
        chat_format=NAMED_FORMATS["chatml"].to_json(),  # no prompt is made
        roots=require_texts("roots", roots, "give a list of folders"),
        policy=policy.to_json(),
        limits=limits.to_json(),
    )
    specs, disabled = registry.specs(), dict(registry.disabled)
    direct = _DirectSession(
        Session(header, SessionInputs(specs=specs, words=load_words(), disabled=disabled)),
        SessionFiles(session, _CallLog(record), undo=undo),
        registry,
        approver=approver or PauseApprover(),
        templates=templates,
        secret=secret,
        now=now,
        on_progress=on_progress,
    )
    return await direct.call(ToolCall(name, given))


def _check_arguments(registry: object, policy: object, name: object, limits: object) -> None:
    require_instance("registry", registry, Registry, "write controller.registry")
    require_instance("policy", policy, Policy, "write Policy(allow=[…])")
    require_text("name", name, "give the name of a tool")
    require_instance("limits", limits, Limits, "write Limits(tool_timeout=…)")


def _no_json(name: str, fault: Exception, record: Callable[[Record], None]) -> DirectCall:
    """End a call whose arguments are no JSON: no session could hold them."""
    error = ErrorInfo("invalid_arguments", f"the arguments are no JSON: {fault}"[:500])
    record(CallRecord(turn=0, call=_CALL, name=name, arguments={}))
    record(ObservationRecord(call=_CALL, name=name, error=error))
    return DirectCall(name, {}, status="error", error=error)


class _CallLog(Transcript):
    """The records of a call, each passed on before anything follows from it."""

    def __init__(self, record: Callable[[Record], None]) -> None:
        super().__init__()
        self._record = record

    def append(self, record: Record) -> None:
        if isinstance(record, _CALL_RECORDS):
            self._record(record)
        super().append(record)


class _DirectSession:
    """A session of one call, and the driver that makes the call."""

    def __init__(
        self,
        session: Session,
        files: SessionFiles,
        registry: Registry,
        *,
        approver: Approver,
        templates: Templates | None,
        secret: bytes,
        now: Callable[[], datetime],
        on_progress: OnProgress | None,
    ) -> None:
        self._session = session
        self._records = files.transcript
        # A person who calls a tool by hand has given its arguments, so there is nothing to edit.
        approver = _WithoutEdits(approver)
        writer = SessionWriter(session, files.transcript, secret=secret, now=now)
        outputs = Outputs(session, None)
        self._clean = outputs.clean
        self._approvals = CallApprovals(
            writer,
            registry,
            outputs,
            approver=approver,
            templates=templates,
            consumed_approvals=files.consumed_approvals,
        )
        self._runner = _DirectRunner(
            writer, registry, files, outputs, approver, ReadCallCache(), on_progress=on_progress
        )
        no_model = _NoModel()
        parts = DriverParts(
            completer=no_model,
            window=no_model,
            runner=self._runner,
            approvals=self._approvals,
            approver=approver,
            outputs=outputs,
            clock=RunClock(),
        )
        self._driver = Driver(writer, parts)

    async def call(self, call: ToolCall) -> DirectCall:
        """Make the call, as if a model had written it and nothing else."""
        session, writer = self._session, self._driver.writer
        # The records are those of a model's turn, so that the one driver makes the call by the same
        # rules.
        writer.append(UserRecord(content=call.name))
        reading = Reading(messages=(call,), clean=True)
        writer.append(CompletionRecord(turn=0, text="", finish_reason="stop"), reading=reading)
        self._runner.begin()
        try:
            # Up to the point where a model would be asked: there is none, so the call and its
            # approval are all.
            await self._driver.take_steps(lambda: session.state is State.COMPLETING)
        finally:
            self._runner.end()
        state = session.current.calls[_CALL]
        end = next((r for r in self._records if isinstance(r, ObservationRecord)), None)
        repairs = tuple(r.name for r in self._records if isinstance(r, RepairRecord))
        done = DirectCall(state.record.name, state.record.arguments, repairs)
        return await self._report(done, state, end)

    async def _report(
        self, done: DirectCall, state: CallState, end: ObservationRecord | None
    ) -> DirectCall:
        """Return the report on the call, by what was recorded of it."""
        decided = state.decision
        if decided is not None:
            decision = Decision(decided.decision, decided.rule, decided.reason, decided.code)
            done = replace(done, decision=decision)
        # A dry run and a pending call show what would change: that is their purpose.
        is_dry = end is not None and end.error is not None and end.error.code == "dry_run"
        if end is None or is_dry:
            preview = (await self._approvals.preview(state.record)).text
            shown = await anyio.to_thread.run_sync(self._clean, preview)  # may be 5 MB
            done = replace(done, preview=shown)
        if end is None:
            return done
        if self._runner.result is not None:
            result = self._runner.result
            if result.content is not None:
                result = replace(result, content=self._clean(result.content))
            done = replace(done, result=result)
        if end.error is None:
            return replace(done, status="ok")
        # A person who called the tool reads the reason, and not the words for the model.
        error = end.error
        if decided is not None and decided.decision == "deny":
            error = ErrorInfo(error.code, decided.reason)
            return replace(done, status="dry_run" if is_dry else "denied", error=error)
        if error.code == "denied":
            answers = (r.reason for r in self._records if isinstance(r, ApprovalRecord))
            reason = next(answers, "") or "denied"
            return replace(done, status="denied", error=ErrorInfo("denied", reason))
        is_limit = error.code == "payload_too_large"
        return replace(done, status="denied" if is_limit else "error", error=error)


class _DirectRunner(RegistryRunner):
    """Runs the call, keeps its whole result and reports its progress to the caller."""

    def __init__(self, *parts: Any, on_progress: OnProgress | None) -> None:
        super().__init__(*parts)
        self.result: ToolResult | None = None
        self._on_progress = on_progress

    async def run(self, call: CallRecord, expected_state: str | None) -> CallEnd:
        end = await super().run(call, expected_state)
        self.result = end.result
        return end

    @property
    def _listens(self) -> bool:
        return self._on_progress is not None

    def report(self, call: CallRecord, progress: Progress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)


class _WithoutEdits:
    """Asks a person about the call as it is; other arguments count as a no."""

    def __init__(self, approver: Approver) -> None:
        self._approver = approver

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        answers = await ask_approver(self._approver, requests)
        other = ApprovalAnswer(False, "other arguments are another call: make that one")
        return [answer if answer.arguments is None else other for answer in answers]


class _NoModel:
    """Stands in for the model and its context: nothing is ever completed."""

    received_any = False
    partial = ""

    async def start(self) -> None:
        """Start nothing."""

    async def fit(self, step: Complete) -> NoReturn:
        """Fail: the driver stops before a model would be asked."""
        raise BackendBroken("there is no model in a direct call")

    async def complete(self, step: Complete, emit: object) -> NoReturn:
        """Fail as `fit` does."""
        await self.fit(step)

    async def count_sent(self, step: FittedStep, record: CompletionRecord) -> None:
        """Count nothing."""
