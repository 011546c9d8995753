"""The loop: takes the steps that a session asks for, and records the results.

There is one driver for every kind of session: a run of the library or the chat, a turn of the
gateway, a proposal, a call without a model, the replay of a golden transcript. These differ in the
parts that are plugged in (`DriverParts`), and in when they stop the driver.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final, Literal, Protocol

import anyio
import anyio.to_thread
from msgspec import Struct

from mlx_tools.controller.approver import ApprovalOutdated, Approver, StepApprover
from mlx_tools.controller.completer import CompletionResult
from mlx_tools.controller.context import FittedStep
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Ask, Complete, Execute, Idle, Step, Write
from mlx_tools.controller.turn import decision_record, make_refusal, not_started, refusal
from mlx_tools.controller.writer import Emit, SessionWriter
from mlx_tools.errors import (
    BackendError,
    BackendTimeout,
    ErrorCode,
    StopReason,
    StorageError,
    TranscriptError,
)
from mlx_tools.messages import ToolSpec, replace
from mlx_tools.policy import TEMPLATE, Decision
from mlx_tools.process import AWAKE
from mlx_tools.tools import Preview, Progress, ToolResult
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    ExecutionRecord,
    ExtendedRecord,
    PendingCall,
    Record,
    StartedCall,
    State,
    StoppedRecord,
    SummaryRecord,
    events,
)

_SUMMARISING: Final = "its output is long: the model summarises it"


# --- the parts ------------------------------------------------------------------------------------


class Completions(Protocol):
    """Lets a model write its turns."""

    @property
    def received_any(self) -> bool: ...
    @property
    def partial(self) -> str: ...

    async def start(self) -> None:
        """Get the model ready."""
        ...

    async def complete(self, step: Complete, emit: Emit | None, /) -> CompletionResult:
        """Take the step. Raises `BackendError`."""
        ...


class Window(Protocol):
    """Makes the next prompt fit the model's context."""

    async def fit(self, step: Complete, /) -> FittedStep | CompactedRecord | StoppedRecord:
        """Return the step to send, the record that must come first, or the run's end."""
        ...

    async def count_sent(self, step: FittedStep, record: CompletionRecord, /) -> int | None:
        """Return the tokens of a prompt that was sent; None if they are not counted."""
        ...


class Summaries(Protocol):
    """Lets a model summarise an output that is too long to be shown."""

    async def summarise(
        self, call: CallRecord, text: str, tell: Callable[[float], None], /
    ) -> SummaryRecord:
        """Return the record of the summary. ``tell`` is called with the progress, 0 to 1."""
        ...


class CallEnd(Struct, frozen=True):
    """The end of a call."""

    result: ToolResult
    nested_turns: int = 0
    """Completions that runs within the call took."""
    unknown_ends: tuple[StartedCall, ...] = ()
    """Calls of nested runs whose end nobody knows."""
    waiting: tuple[PendingCall, ...] = ()
    """Calls of nested runs that wait for a person. The call is made again once they are decided."""
    problem: StorageError | None = None
    """The reason why a record of a nested run could not be written."""


class ToolRunner(Protocol):
    """Runs calls that were let through."""

    def begin(self) -> None:
        """Begin a run."""
        ...

    def end(self) -> None:
        """End the run: nothing may be called any more."""
        ...

    def find_spec(self, call: CallRecord, /) -> ToolSpec:
        """Return the tool of a call, as it is now."""
        ...

    def find_denial(self, call: CallRecord, /) -> Decision | None:
        """Return why the call may not start after all; None if it may."""
        ...

    async def run(self, call: CallRecord, expected_state: str | None, /) -> CallEnd:
        """Run the call. ``expected_state`` is the state that it was approved on."""
        ...

    def is_in_doubt(self, sessions: Iterable[str], /) -> bool:
        """Return whether a call of these sessions, of runs within a call, is in doubt."""
        ...

    def report(self, call: CallRecord, progress: Progress, /) -> None:
        """Report how far a call has come."""
        ...


class CallDecisions(Protocol):
    """A person's decisions about calls, and what they bind to."""

    async def write(self, records: Sequence[Record], /) -> None:
        """Record these records; a call of a dry run gets the change that it would make."""
        ...

    async def decide_again(self) -> None:
        """Decide again, by the policy in force now, about calls that have not run yet."""
        ...

    async def preview(self, call: CallRecord, /) -> Preview:
        """Return what the call would change, as its tool tells it."""
        ...

    async def approve_by_template(self, calls: Sequence[CallRecord], /) -> bool:
        """Let the calls run that a template covers; return whether there are such calls."""
        ...

    async def ask(self, calls: Sequence[CallRecord], /) -> None:
        """Ask about calls; if nobody decides about some, the run pauses."""
        ...

    async def pause(
        self, calls: Sequence[CallRecord], nested_calls: Sequence[PendingCall], /
    ) -> object:
        """Record the questions, here and in runs within calls."""
        ...

    async def consume_approval(self, call: CallRecord, approval: ApprovalRecord, /) -> str | None:
        """Use an approval up. Return the state that the call must find.

        Raises:
            ApprovalOutdated: something else was approved than what would run now.
        """
        ...

    async def check_template(self, call: CallRecord, rule: str, /) -> str | None:
        """Check that a template still covers a call; return the state of what it acts on."""
        ...


class RunClock:
    """The time that a run may take. The clock stops while a person is asked."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        """End the work in this context after so many seconds.

        The scope says whether it was ended.
        """
        with anyio.move_on_after(seconds) as scope:
            self._scope = scope
            yield scope

    @contextmanager
    def person_waits(self) -> Iterator[None]:
        """Stop the run's clock while a person is asked."""
        scope = self._scope or anyio.CancelScope()
        began, deadline = anyio.current_time(), scope.deadline
        # Not cancelled and begun again: the work in the scope goes on, and only its deadline moves.
        scope.deadline = math.inf
        try:
            yield
        finally:
            # By the loop's clock, which does not jump when the system's clock is set.
            scope.deadline = deadline + anyio.current_time() - began


class BegunCall(Struct, frozen=True):
    """A call whose start was recorded."""

    expected_state: str | None
    """The state that it was approved on; None if it has none."""
    mutates: bool
    """True if it can change things."""


class DriverParts(Struct, frozen=True, kw_only=True):
    """The parts of a driver that differ between kinds of sessions."""

    completer: Completions
    window: Window
    runner: ToolRunner
    approvals: CallDecisions
    approver: Approver
    outputs: Outputs
    clock: RunClock
    summaries: Summaries | None = None
    in_thread: bool = False
    """True if the conversation is long: steps are then worked out in a thread, so that others are
    served."""


# --- the driver -----------------------------------------------------------------------------------


class Driver:
    """Drives one session."""

    def __init__(self, writer: SessionWriter, parts: DriverParts) -> None:
        self.writer = writer
        self.session = writer.session
        self.parts = parts
        self.is_cancelled = False
        """True if the person who breaks the run off wants no more of it."""
        self._waiting_for: Literal["", "backend", "tool"] = ""

    async def drive(self, is_over: Callable[[], bool] | None = None) -> None:
        """Take steps until the run rests, within its time, and record how it ended.

        Args:
            is_over: returns True once the run is to be broken off.
        """
        session, parts = self.session, self.parts
        try:
            parts.runner.begin()
            await parts.completer.start()
            # The clock starts once the server is up: loading a model is not part of a question's
            # time.
            with parts.clock.limit(session.limits.total_timeout) as scope, AWAKE:
                if not await self.take_steps(is_over):
                    self.break_off(KeyboardInterrupt())
            # The calls first: their ends are records of a turn, which may not follow the end of the
            # run.
            if scope.cancelled_caught:
                self._give_up_calls("timeout")
                self.stop("total_timeout", f"not done in {session.limits.total_timeout:g} s")
        except BackendError as error:
            if session.state is State.CALLING:
                raise  # calls wait to be made: the session can be resumed once the server is there
            self._waiting_for = "backend"
            timed_out = isinstance(error, BackendTimeout)
            self.stop("completion_timeout" if timed_out else "backend_error", str(error))
            # Nothing was said yet: a server that is down is an error for the caller, not an
            # outcome.
            if session.turn == 0 and not parts.completer.received_any:
                raise
        except StorageError:
            raise  # nothing more is written: the session can be resumed from the records so far
        except BaseException as error:
            # The transcript itself may be at fault: the first error is the one to raise.
            with contextlib.suppress(TranscriptError):
                self.break_off(error)
            raise
        finally:
            parts.runner.end()

    async def take_steps(self, is_over: Callable[[], bool] | None = None) -> bool:
        """Take steps until the session rests, or ``is_over`` returns True.

        Returns:
            True if the session rests.
        """
        # Asked before a step is worked out: the step of a completion renders the whole prompt.
        while is_over is None or not is_over():
            # Folding and rendering a long transcript takes tens of milliseconds, in which nobody
            # else is served.
            if self.parts.in_thread:
                step = await anyio.to_thread.run_sync(self.session.next_step)
            else:
                step = self.session.next_step()
            if isinstance(step, Idle):
                return True
            await self.take(step)
        return False

    async def take_turn(self) -> None:
        """Let the model write one turn, and record what follows from it; run nothing.

        Raises:
            BackendError: the backend failed. Nothing in the transcript says so.
        """
        await self.parts.completer.start()
        turn = self.session.turn

        def is_over() -> bool:
            return self.session.turn > turn and self.session.state is not State.READING

        with AWAKE:
            await self.take_steps(is_over)

    async def take(self, step: Step) -> None:
        """Take one step."""
        parts, current = self.parts, self.session.current
        match step:
            case Write(records):
                # Records of a turn are written as they are. Only at the step limit may a person add
                # steps.
                if not (self.session.at_step_limit and await self._extend()):
                    await parts.approvals.write(records)
            case Complete():
                await self._complete(step)
            case Execute(calls):
                self._waiting_for = "tool"
                one = len(calls) == 1
                within = await (self._call(calls[0]) if one else self._call_all(calls))
                self._waiting_for = ""
                # All calls of the turn that can run have run: a person is asked once about all
                # others.
                if within:
                    await parts.approvals.pause(current.calls_needing_decision(), within)
            case Ask():
                self._waiting_for = ""
                await parts.approvals.decide_again()  # a consent may cover them by now
                waiting = await self._answer_hopeless(current.calls_needing_decision())
                if waiting and not await parts.approvals.approve_by_template(waiting):
                    # A person's time is not the run's: after a long break the run still goes on.
                    with parts.clock.person_waits():
                        await parts.approvals.ask(waiting)

    async def _answer_hopeless(self, calls: Sequence[CallRecord]) -> list[CallRecord]:
        """End the calls that can only fail with their tool's own error; return the others.

        Such a call changes nothing, so nobody is asked about it, and the model learns at once what
        is wrong. A call in doubt may have done its work, so it is asked about.
        """
        left = []
        for call in calls:
            in_doubt = self.session.current.calls[call.call].in_doubt
            error = None if in_doubt else (await self.parts.approvals.preview(call)).error
            if error is None:
                left.append(call)
                continue
            record, problem = self.parts.outputs.take(call, ToolResult(None, error, 0, 0))
            # If the disk is full, say, the run must not go on from an end that was not written.
            if problem is not None:
                raise problem
            self.writer.append(record)
        return left

    async def _extend(self) -> bool:
        """Ask the approver for more steps at the limit; return whether it gave some."""
        asker = self.parts.approver
        if not isinstance(asker, StepApprover):
            return False
        with self.parts.clock.person_waits():
            more = await asker.more_steps(self.session.iterations)
        if more > 0:
            self.writer.append(ExtendedRecord(iterations=more))
        return more > 0

    # --- ends ---

    def stop(self, reason: StopReason, message: str) -> None:
        """Record that the run ends without an answer."""
        self.writer.append(
            StoppedRecord(
                reason=reason,
                message=self.parts.outputs.clean(message),
                waiting_for=self._waiting_for,
                partial=self.parts.completer.partial,
            )
        )

    def break_off(self, error: BaseException) -> None:
        """End a run that cannot go on, unless it has come to rest."""
        # An event that cannot be delivered must not keep the end from being recorded.
        self.writer.emit = None  # the receiver of events may be at fault
        asking = self.session.state is State.PAUSED  # an error here comes while somebody is asked
        if isinstance(self.session.next_step(), Idle) and not asking:
            return
        self._give_up_calls("tool_error")
        if isinstance(error, Exception):
            self.stop("internal_error", f"{type(error).__name__}: {error}")
        else:
            reason: StopReason = "cancelled" if self.is_cancelled else "interrupted"
            self.stop(reason, f"the run was {reason}")

    def _give_up_calls(self, code: ErrorCode) -> None:
        """End the open calls with an error, except those that are in doubt."""
        session = self.session
        # A call with runs within it whose calls are in doubt is in doubt, too.
        doubts = self.calls_in_doubt
        for key, state in [*session.current.open_calls.items()]:
            running = session.state in (State.CALLING, State.PAUSED)
            if running and key not in doubts:
                self.writer.append(
                    refusal(state.record, session, code)
                    if state.was_started
                    else not_started(state.record, session)
                )

    @property
    def calls_in_doubt(self) -> tuple[str, ...]:
        """The calls that a person must decide about before anything else.

        Nobody knows how they ended, or how a call in a run within them did.
        """
        return tuple(
            key
            for key, state in self.session.current.open_calls.items()
            if state.in_doubt
            or (state.nested and self.parts.runner.is_in_doubt(state.nested.values()))
        )

    # --- completions ---

    async def _complete(self, step: Complete) -> None:
        self._waiting_for = "backend"
        parts, writer = self.parts, self.writer
        fitted = await parts.window.fit(step)
        if not isinstance(fitted, FittedStep):
            self._waiting_for = ""
            writer.append(fitted)
            return
        step = fitted.step
        if fitted.filling:
            size = self.session.header.context
            writer.tell(events.ContextFilling(size=size or 0, used_tokens=fitted.used_tokens or 0))
        if writer.emit is not None:
            writer.emit(events.TurnStarted(turn=step.turn, prompt_chars=len(step.prompt)))
        began = monotonic()
        written = await parts.completer.complete(step, writer.emit)
        record = written.record(
            step,
            str(self.session.sent_prompt),
            duration_ms=round((monotonic() - began) * 1000),
        )
        record = replace(record, context=await parts.window.count_sent(fitted, record))
        # Before the completion that they belong to: folding needs them to read its text.
        for mend in written.mends:
            writer.append(mend)
        self._waiting_for = ""
        # With the reading that is known already: reading a long turn twice would cost twice.
        writer.append(record, reading=written.reading)

    # --- calls ---

    async def _call_all(self, calls: Sequence[CallRecord]) -> tuple[PendingCall, ...]:
        """Make several calls, those that only read in parallel; return like `_call`.

        The first exception ends the others and is raised; where something cannot be written down,
        what runs meanwhile may come to its end.
        """
        limiter, one_change = anyio.CapacityLimiter(self.session.limits.parallel), anyio.Lock()
        problems: list[Exception] = []
        waiting: dict[str, tuple[PendingCall, ...]] = {}

        async def limited(call: CallRecord) -> None:
            # Changes are made one after the other, in call order. A later one may build on an
            # earlier one, and an approval holds for the state of a file when its call begins.
            mutates = self.parts.runner.find_spec(call).mutates(call.arguments)
            async with one_change if mutates else contextlib.nullcontext(), limiter:
                if problems:
                    return
                try:
                    waiting[call.call] = await self._call(call)
                except Exception as error:
                    problems.append(error)
                    # With a full disk no start can be recorded either: running calls may end, no
                    # new one begins.
                    if not isinstance(error, StorageError):
                        # The other calls only read, or wait for their turn: their results are of no
                        # use any more.
                        group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(limited, call)
        # Raised here and not in a task, so that it is the error itself and not an exception group.
        if problems:
            raise problems[0]
        return tuple(one for call in calls for one in waiting[call.call])

    async def _call(self, call: CallRecord) -> tuple[PendingCall, ...]:
        """Make a call, if it may still start.

        Returns:
            The calls of runs within it that wait for a person.
        """
        begun = await self.begin_call(call)
        if begun is None:
            return ()
        end = await self.parts.runner.run(call, begun.expected_state)
        # Whatever it returned, the call is made again once a person has decided.
        if not end.waiting:
            await self.observe(call, end, mutates=begun.mutates)
        return end.waiting

    async def begin_call(self, call: CallRecord) -> BegunCall | None:
        """Begin a call: the one place where a tool starts, whoever drives the session.

        Returns:
            None if it may not start after all, which is written down.
        """
        session, parts = self.session, self.parts
        state, expected_state = session.current.calls[call.call], None
        # Anything may have changed since a person saw the call. So the approval is compared once
        # more with the call that would run, as late as possible.
        try:
            if state.approval is not None:
                expected_state = await parts.approvals.consume_approval(call, state.approval)
            elif state.decision is not None and state.decision.rule.startswith(TEMPLATE):
                expected_state = await parts.approvals.check_template(call, state.decision.rule)
        except ApprovalOutdated:
            return None
        denied = parts.runner.find_denial(call)
        if denied is not None:
            decision = decision_record(call.call, denied)
            self.writer.append_all([decision, make_refusal(decision, state, session)])
            return None
        mutates = parts.runner.find_spec(call).mutates(call.arguments)
        # On disk before the tool starts: after a crash the call is in doubt, and never one that ran
        # and is not known.
        self.writer.append(ExecutionRecord(call=call.call, mutates=mutates))
        return BegunCall(expected_state, mutates)

    async def observe(self, call: CallRecord, end: CallEnd, *, mutates: bool) -> None:
        """Record how a call ended."""
        outputs, spent = self.parts.outputs, end.nested_turns
        if self.session.header.long_observations == "summary" and not mutates:
            # A change is recorded at once, before a model is asked anything.
            await self._summarise(call, end.result)
        record, fault = outputs.take(call, end.result)
        problem = fault or end.problem
        # Without its record the call counts as not made, and a call that only reads can be made
        # again.
        if problem is not None and not mutates:
            raise problem  # the call is made again when the run goes on
        if spent:
            record = replace(record, nested=spent, unknown_ends=end.unknown_ends)
        self.writer.append(record)
        if problem is not None:
            raise problem

    async def _summarise(self, call: CallRecord, result: ToolResult) -> None:
        """Let the model summarise an output that is too long."""
        text = self.parts.outputs.too_long(call, result)
        if text is None or self.parts.summaries is None:
            return

        def tell(fraction: float) -> None:
            self.parts.runner.report(call, Progress(_SUMMARISING, fraction))

        began = monotonic()
        record = await self.parts.summaries.summarise(call, text, tell)
        duration_ms = round((monotonic() - began) * 1000)
        self.writer.append(replace(record, duration_ms=duration_ms))
