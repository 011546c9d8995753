"""The loop: takes the steps that a session asks for, and writes down what came of them.

Every record reaches the transcript before the session goes on from it, so whatever happens between
two steps, the transcript says how far the run has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import cached_property, partial
from itertools import islice
from time import monotonic
from typing import Final, Literal, Self

import anyio

from mlx_tools.backends import Backend, ErrorMappingBackend, TokenCounter, folder_of, start_backend
from mlx_tools.controller.approvals import (
    ApprovalOutdated,
    ApprovalRequest,
    Approvals,
    Approver,
    CallApprovals,
    StepApprover,
    Templates,
    answers_of,
    confirm_action,
)
from mlx_tools.controller.completer import Completer, Emit
from mlx_tools.controller.context import ContextWindow, FittedStep
from mlx_tools.controller.earlier import PriorConversation
from mlx_tools.controller.nested import NestedRuns
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Ask, Complete, Execute, Rest, Session, Write
from mlx_tools.controller.turn import decision_record, not_started, refusal, refusal_by
from mlx_tools.errors import (
    BackendError,
    BackendTimeout,
    ErrorCode,
    StopReason,
    StorageError,
    TranscriptError,
    UsageError,
    require_text,
    wrong_argument,
)
from mlx_tools.messages import ErrorInfo, replace, tool_named
from mlx_tools.policy import TEMPLATE, Policy, permitted
from mlx_tools.process import AWAKE
from mlx_tools.prompt import is_on_demand, is_reader
from mlx_tools.protocol import Reading
from mlx_tools.store import SessionFiles
from mlx_tools.tools import Progress, ReadCallCache, Registry, ToolContext, ToolResult
from mlx_tools.transcript import (
    CallRecord,
    CarriedRecord,
    CompactedRecord,
    CompletionRecord,
    ExecutionRecord,
    ExtendedRecord,
    Header,
    ObservationRecord,
    Outcome,
    Record,
    ResumedRecord,
    StartedCall,
    State,
    StoppedRecord,
    events,
    last_run,
    outcome_of_run,
)

_ANSWERING: Final = (State.COMPLETING, State.READING, State.CALLING, State.PAUSED)
_NO_RESULTS: Final[Mapping[str, ToolResult]] = {}
_SUMMARISING: Final = "its output is long: the model summarises it"


@dataclass(repr=False, eq=False)
class Conversation:
    """One open session: questions that see each other, in one transcript.

    ``folded`` is what its records come to, ``policy`` the one in force, where that is another one
    than was recorded. ``begin`` makes the header of a new session, of its first question and that
    one's tool choice. ``outputs`` holds the whole outputs of the current run, for an outcome that
    is to include them. ``now`` is the wall clock, UTC. ``make_nested`` makes what lets tools ask
    the model. ``earlier`` is what was said before a new session.
    """

    folded: Session
    files: SessionFiles
    _: KW_ONLY
    policy: Policy
    begin: Callable[[str, str | None], Header] | None
    backend: Backend
    registry: Registry
    approver: Approver
    templates: Templates | None
    secret: bytes
    now: Callable[[], datetime]
    make_nested: Callable[[Conversation], NestedRuns]
    reads: ReadCallCache
    earlier: PriorConversation = PriorConversation()  # noqa: RUF009  # frozen, so all may share it

    def __post_init__(self) -> None:
        self.outputs = Outputs(self.folded, self.files.artifacts, at_home=True)
        self._completer = Completer(ErrorMappingBackend(self.backend), self.folded)
        self._nested: NestedRuns | None = None
        self._scope: anyio.CancelScope | None = None
        self._emit: Emit | None = None
        self._waiting_for: Literal["", "backend", "tool"] = ""
        self._reopened = self.begin is None
        self.cancelled = False
        """Whether whoever breaks the run off wants no more of it."""

    @cached_property
    def _approvals(self) -> CallApprovals:
        return CallApprovals(self)

    @cached_property
    def _window(self) -> ContextWindow:
        counter = TokenCounter(lambda: folder_of(self.backend, self.folded.header.model))
        files = self.files
        return ContextWindow(
            ErrorMappingBackend(self.backend), self.folded, self.outputs, files.artifacts, counter
        )

    @property
    def session(self) -> str:
        """The session's id."""
        return self.files.session

    @property
    def parent(self) -> str:
        """The session and the call that this one runs within, empty for one of its own."""
        return self.folded.header.parent

    @property
    def transcript(self) -> str | None:
        """The path of the transcript, None where it is in memory alone."""
        return self.files.path

    # --- what a caller asks for ---

    async def run(
        self,
        question: str,
        *,
        tool_choice: str | None = None,
        untyped_suffix_chars: int = 0,
        emit: Emit | None = None,
    ) -> Outcome:
        """Answer the next question; see `Controller.run`.

        ``untyped_suffix_chars`` is how many characters at the end of the question are somebody
        else's text: a call that stands there is an echo. ``emit`` is called with what happens.

        A backend that fails before it completed anything for this session raises its
        `BackendError`; one that fails later stops the run. Either is in the transcript. Whoever
        cancels finds the run stopped as ``interrupted``. Where something cannot be written down
        (`StorageError`) the run breaks off there as one that was killed, and can be resumed.
        """
        if not isinstance(question, str) or not question.strip():
            raise UsageError("the question is no text, or empty")
        if not isinstance(untyped_suffix_chars, int) or untyped_suffix_chars < 0:
            raise wrong_argument(
                "untyped_suffix_chars", untyped_suffix_chars, "give a number of characters, from 0"
            )
        session = self.folded
        if tool_choice is not None:
            tool_choice = self._check_tool_choice(tool_choice)
        if why := self.undecided:
            raise UsageError(
                f"the session {self.session} cannot go on: {why}",
                hint=f"decide first: mlx-tools sessions resume {self.session}",
            )
        if session.state in _ANSWERING:  # a crash broke the last question off
            self._break_off(KeyboardInterrupt())
        self._begin(question, tool_choice)
        with self._observe_run(emit) as self._emit:
            self.outputs.begin()
            self.reads.begin()
            if session.header.context is not None:
                self._window.begin()
            self.append(
                session.question_record(
                    question, tool_choice, self.timestamp(), untyped_suffix_chars
                )
            )
            if self._reopened:
                self._append_resumed()
            with self._resumable():
                await self._drive()
        return self._outcome()

    async def resume(
        self,
        approvals: Approvals = None,
        emit: Emit | None = None,
        results: Mapping[str, ToolResult] = _NO_RESULTS,
    ) -> Outcome:
        """Go on where the session was paused or broke off; see `Controller.resume`.

        ``results`` are of calls that wait and were made elsewhere. Raises `UsageError`, and runs
        nothing, where an answer or a result is of a call that does not wait, or an approval is of
        something else than what would run now.
        """
        session = self.folded
        if session.state is State.EMPTY:
            raise UsageError("nothing waits in the session: nothing was asked in it yet")
        state, doubts = session.state, self.calls_in_doubt
        ended = state is State.IDLE or (state is State.STOPPED and not doubts)
        if ended and not (isinstance(approvals, Mapping) and approvals):
            why = "has its answer" if state is State.IDLE else "has stopped"
            raise UsageError(f"nothing waits in the session: it {why}", hint="ask again")
        calling = state in (State.PAUSED, State.CALLING) or bool(doubts)
        asked = session.current.calls_needing_decision() if calling else ()
        sure = [call.call for call in asked if not session.is_doubtful(call)]
        if strangers := results.keys() - set(sure):
            raise UsageError(f"{min(strangers)} is not a call that waits (any more)")
        if state is State.PAUSED and session.pause is not None:
            sure += [call.call_id for call in session.pause.within if not call.in_doubt]
        answers = answers_of(approvals, sure)
        within = {key: answers.pop(key) for key in tuple(answers) if "/" in key}
        with self._observe_run(emit) as self._emit:
            self.outputs.begin()
            self._approvals.check_within(within)
            self._approvals.check_answers(answers, self.policy)
            self._nested_runs().answers = within
            with self._resumable():
                self._append_resumed()
                self._write_read()
                if session.state is State.CALLING:
                    await self._approvals.decide_again()
                    await self._approvals.take(answers)
                    for call in [
                        one
                        for one in session.current.calls_needing_decision()
                        if one.call in results
                    ]:
                        await self._observe(call, results[call.call], mutates=False)
                await self._drive()
        return self._outcome()

    async def waiting(self) -> list[tuple[ApprovalRequest, bool]]:
        """The calls that wait while the session is paused, as they would run now, and whether each
        is still what was asked about. Nothing is written down."""
        return await self._approvals.waiting()

    async def waiting_within(self) -> list[ApprovalRequest]:
        """The calls that wait in runs within open calls, as they would run now. Nothing is written
        down. Raises `MlxToolsError` if one of the runs cannot be looked at."""
        return await self._nested_runs().requests()

    async def settle(self) -> Outcome:
        """Bring a question that broke off to rest, and run nothing for that.

        It is paused where a person must decide about a call: nobody knows how it ended, or it was
        approved and did not start. Else it is stopped; where it was ``cancelled`` in any case, also
        while it is paused.
        """
        self._write_read()
        session = self.folded
        if not self.cancelled:
            if session.state is State.STOPPED and session.calls_in_doubt:
                self._append_resumed()
            if session.state is State.CALLING:
                self._approvals.take_back()
                if asked := session.current.calls_needing_decision():
                    await self._approvals.pause(asked)
        if session.state in _ANSWERING and (self.cancelled or session.state is not State.PAUSED):
            self._break_off(KeyboardInterrupt())
        return self._outcome()

    async def decide(self, emit: Emit | None = None) -> Outcome:
        """Have a person decide about calls in doubt, and run what is approved; ask no model.

        The question that they belong to is left as it is: the next one can be asked. The outcome is
        `Paused` where nobody decided.
        """
        with self._observe_run(emit) as self._emit:
            self.outputs.begin()
            with self._resumable():
                self._append_resumed()
                self._write_read()
                await self._approvals.decide_again()
                await self._drive(answers=False)
        return self._outcome()

    def _write_read(self) -> None:
        """Write down what follows from the last completion."""
        while self.folded.state is State.READING and isinstance(
            step := self.folded.next_step(), Write
        ):
            self._write(step.records)

    async def go_on(self, question: str, approvals: Approvals) -> Outcome:
        """Go on with a session in which ``question`` was asked: its outcome where that has come to
        rest, else like `resume`. Raises `UsageError` where another question was asked."""
        if self.folded.question != question:
            raise UsageError("it asks something else than when it was made before")
        state = self.folded.state
        at_rest = state is State.IDLE or (state is State.STOPPED and not self.calls_in_doubt)
        return self._outcome() if at_rest else await self.resume(approvals)

    def stream(
        self, question: str, *, tool_choice: str | None = None, untyped_suffix_chars: int = 0
    ) -> AsyncGenerator[events.Event]:
        """Answer the next question and yield what happens; see `Controller.stream`."""
        run = partial(
            self.run, question, tool_choice=tool_choice, untyped_suffix_chars=untyped_suffix_chars
        )
        return _streamed(lambda emit: run(emit=emit))

    def stream_decided(self) -> AsyncGenerator[events.Event]:
        """Decide about calls in doubt like `decide` and yield what happens, like `stream`."""
        return _streamed(self.decide)

    def stream_resumed(self, approvals: Approvals = None) -> AsyncGenerator[events.Event]:
        """Go on like `resume` and yield what happens, like `stream`."""
        return _streamed(partial(self.resume, approvals))

    async def compact(self) -> events.Compacted | None:
        """Have the model sum up what was said before the last question (that too where it was the
        first), which then stands in place of it; None where nothing was said.

        Raises `UsageError` in the middle of a question, and `BackendError` where there is no
        summary: nothing has changed then.
        """
        if self.earlier.question is not None:
            self._begin(self.earlier.question)
        state = self.folded.state
        if state not in (State.EMPTY, State.IDLE, State.STOPPED) or self.calls_in_doubt:
            raise UsageError(
                "the session is in the middle of a question", hint="go on with it first"
            )
        record = None if state is State.EMPTY else await self._window.sum_up()
        if record is None:
            return None
        self._emit = None
        self.append(record := replace(record, at=self.timestamp()))
        event = events.event_of(record, ())
        assert isinstance(event, events.Compacted)
        return event

    def _observe_run(self, emit: Emit | None) -> contextlib.AbstractContextManager[Emit | None]:
        """What a run's events are told to while it lasts: spans too, where the program has loaded
        OpenTelemetry, without which nobody can record any."""
        if emit is not None and not callable(emit):
            raise wrong_argument("emit", emit, "give a function that takes an event")
        api = sys.modules.get("opentelemetry.trace")
        if api is None:
            return contextlib.nullcontext(emit)
        from mlx_tools.controller.telemetry import trace_run

        return trace_run(self.files.transcript, emit, api)

    def _outcome(self) -> Outcome:
        outcome = outcome_of_run(
            self.folded.header,
            last_run(self.files.transcript),
            self.folded.history.sources,  # gathered by the fold, not by a look through all records
            transcript=self.files.path,
            outputs=self.outputs.whole,
            artifacts=self.outputs.artifacts,
        )
        thoughts = [r.reasoning for r in outcome.records if isinstance(r, CompletionRecord)]
        return replace(outcome, reasoning_artifact=self.outputs.keep_thoughts(thoughts))

    def _begin(self, question: str, tool_choice: str | None = None) -> None:
        """Write down the header of a new session, and what was said before it."""
        session, begin = self.folded, self.begin
        if begin is None or session.question:
            return
        carries = bool(self.earlier.said)
        if session.state is State.EMPTY:
            first = self.earlier.question if carries else None
            self.append(begin(first or question, tool_choice))
        if not carries:
            return
        clean, artifacts = self.outputs.clean, self.files.artifacts
        if artifacts is not None:
            for key, text in self.earlier.kept_artifacts():
                artifacts.put(clean(text), key)
        there = sum(isinstance(record, CarriedRecord) for record in self.files.transcript)
        for record in islice(self.earlier.prior_messages(session, clean), there, None):
            self.append(record)  # those that are there were written before the disk was full

    def _append_resumed(self) -> None:
        """Write down that this process goes on with the session, and under which policy."""
        self.append(ResumedRecord(policy=self.policy.to_json(), at=self.timestamp()))
        self._reopened = False

    @property
    def calls_in_doubt(self) -> tuple[str, ...]:
        """The calls that a person must decide about before anything else: nobody knows how they
        ended, or how a call in a run within them did."""
        return tuple(
            key
            for key, state in self.folded.current.open_calls.items()
            if state.in_doubt
            or (state.nested and self._nested_runs().in_doubt(state.nested.values()))
        )

    @property
    def undecided(self) -> str:
        """Why nothing can be asked before a person has decided about calls; empty where it can."""
        if doubts := self.calls_in_doubt:
            return f"nobody knows how {', '.join(doubts)} ended"
        return "it waits for an approval" if self.folded.state is State.PAUSED else ""

    def _check_tool_choice(self, tool_choice: str) -> str:
        """The choice, by the tool's own name. Raises `UsageError` for one that is neither a word
        nor a tool that may be called."""
        specs = self.folded.specs
        hint = "auto, none, required or a tool's name"
        tool_choice = tool_named(require_text("tool_choice", tool_choice, hint), specs)
        if tool_choice in ("auto", "none"):
            return tool_choice
        allowed = [name for name, spec in specs.items() if permitted(self.policy, spec)]
        some = any(not is_on_demand(specs[name]) for name in allowed)
        if tool_choice not in allowed and (tool_choice != "required" or not some):
            raise UsageError(
                f"tool_choice: {tool_choice!r} is not allowed",
                hint=f"auto, none, required or one of {', '.join(sorted(allowed)) or 'no tools'}",
            )
        return tool_choice

    def close(self) -> None:
        """Close the transcript."""
        self.files.transcript.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.close()

    # --- the loop ---

    @contextlib.contextmanager
    def _resumable(self) -> Iterator[None]:
        """Tell whoever finds that nothing can be written that nothing is lost, and how to go on."""
        try:
            yield
        except StorageError as error:
            error.hint = f"{error.cure}, then: mlx-tools sessions resume {self.files.session}"
            raise

    async def _drive(self, *, answers: bool = True) -> None:
        """Take the steps that are next, until the run rests; without ``answers`` until the model
        would be asked."""
        session, access = self.folded, self.files.access
        try:
            access.begin(session.header.session, session.policy.digest(), session.specs.values())
            await start_backend(self.backend)
            with anyio.move_on_after(session.limits.total_timeout) as scope:
                self._scope = scope
                with AWAKE:
                    await self._loop(answers=answers)
            if scope.cancelled_caught:
                self._give_up_calls("timeout")
                self._stop("total_timeout", f"not done in {session.limits.total_timeout:g} s")
        except BackendError as error:
            if session.state is State.CALLING:
                raise  # calls wait to be made: the session is gone on with once the server is there
            self._waiting_for = "backend"
            timed_out = isinstance(error, BackendTimeout)
            self._stop("completion_timeout" if timed_out else "backend_error", str(error))
            if session.turn == 0 and not self._completer.received_any:
                raise
        except StorageError:
            raise  # nothing more is written down: what stands there can be gone on with
        except BaseException as error:
            # What is wrong may be the transcript itself: the first error is the one to be told.
            with contextlib.suppress(TranscriptError):
                self._break_off(error)
            raise
        finally:
            access.end()

    async def _loop(self, *, answers: bool) -> None:
        while True:
            match self.folded.next_step():
                case Write(records):
                    if await self._extend():
                        continue
                    await self.write(records)
                case Complete() if not answers:
                    self._break_off(KeyboardInterrupt())
                    return
                case Complete() as step:
                    await self._complete(step)
                case Execute(calls):
                    self._waiting_for = "tool"
                    await (self._call(calls[0]) if len(calls) == 1 else self._call_all(calls))
                    self._waiting_for = ""
                    if self._nested is not None and (within := self._nested.waiting()):
                        await self._approvals.pause(
                            self.folded.current.calls_needing_decision(), within
                        )
                case Ask():
                    self._waiting_for = ""
                    await self._approvals.decide_again()  # a consent may cover them by now
                    waiting = await self._answer_hopeless(
                        self.folded.current.calls_needing_decision()
                    )
                    if waiting and not await self._approvals.approve_by_template(waiting):
                        with self.person_waits():
                            await self._approvals.ask(waiting)
                case Rest():
                    return

    async def _answer_hopeless(self, calls: Sequence[CallRecord]) -> list[CallRecord]:
        """End the calls that can only fail with their tool's own error; return the others.

        Such a call changes nothing, so nobody is asked about it, and the model learns at once what
        is wrong with it. A call in doubt may have done its work: it is asked about.
        """
        left = []
        for call in calls:
            in_doubt = self.folded.current.calls[call.call].in_doubt
            error = None if in_doubt else (await self._approvals.preview(call)).error
            if error is None:
                left.append(call)
                continue
            record, problem = self.outputs.take(call, ToolResult(None, error, 0, 0))
            if problem is not None:
                raise problem
            self.append(record)
        return left

    async def _extend(self) -> bool:
        """Ask whoever approves calls, at the limit of steps, whether the run may take more; return
        whether it may."""
        asker = self.approver
        if not self.folded.at_step_limit or not isinstance(asker, StepApprover):
            return False
        with self.person_waits():
            more = await asker.more_steps(self.folded.iterations)
        if more > 0:
            self.append(ExtendedRecord(iterations=more, at=self.timestamp()))
        return more > 0

    @contextlib.contextmanager
    def person_waits(self) -> Iterator[None]:
        """While a person is asked, the run's time stands still."""
        scope = self._scope or anyio.CancelScope()
        began, deadline = anyio.current_time(), scope.deadline
        scope.deadline = math.inf
        try:
            yield
        finally:
            scope.deadline = deadline + anyio.current_time() - began

    def _break_off(self, error: BaseException) -> None:
        self._emit = None  # what is wrong may be whoever is told
        asking = self.folded.state is State.PAUSED  # an error here comes while somebody is asked
        if isinstance(self.folded.next_step(), Rest) and not asking:
            return
        self._give_up_calls("tool_error")
        if isinstance(error, Exception):
            self._stop("internal_error", f"{type(error).__name__}: {error}")
        else:
            reason: StopReason = "cancelled" if self.cancelled else "interrupted"
            self._stop(reason, f"the run was {reason}")

    def _give_up_calls(self, code: ErrorCode) -> None:
        """Give the calls that are still open an error, save those that are in doubt."""
        doubts = self.calls_in_doubt
        for key, state in [*self.folded.current.open_calls.items()]:
            running = self.folded.state in (State.CALLING, State.PAUSED)
            if running and key not in doubts:
                self.append(
                    refusal(state.record, self.folded, code)
                    if state.started
                    else not_started(state.record, self.folded)
                )

    # --- records ---

    def timestamp(self) -> str:
        """The time now, as records have it."""
        return self.now().isoformat(timespec="milliseconds")

    def append(
        self, record: Record, later_records: Sequence[Record] = (), reading: Reading | None = None
    ) -> None:
        """Write a record down, go on from it, and tell of it. ``later_records`` are the records
        that follow from the same completion, ``reading`` is how one was read."""
        self.folded.check(record)
        self.files.transcript.append(record)
        self.folded.fold(record, reading)
        if self._emit is not None:
            event = events.event_of(record, self.files.transcript, later_records)
            if event is not None:
                self._emit(event)

    def _tell(self, event: events.Event) -> None:
        if self._emit is not None:
            self._emit(event)

    def _write(self, records: Sequence[Record]) -> None:
        for record in records:
            self.append(record, records)

    def _stop(self, reason: StopReason, message: str) -> None:
        self.append(
            StoppedRecord(
                reason=reason,
                message=self.outputs.clean(message),
                waiting_for=self._waiting_for,
                partial=self._completer.partial,
            )
        )

    async def write(self, records: Sequence[Record]) -> None:
        """Write records down. A call that a dry run left out ends with what it would change."""
        for record in records:
            match record:
                case ObservationRecord(error=ErrorInfo(code="dry_run")):
                    record = await self._with_change(record)
            self.append(record, records)

    async def _with_change(self, record: ObservationRecord) -> ObservationRecord:
        """The end of a call that a dry run left out, with the change; tell a person of it."""
        call = self.folded.current.call(record.call)
        preview = await self._approvals.preview(call)
        shown = await anyio.to_thread.run_sync(self.outputs.clean, preview.text)  # may be 5 MB
        self._tell(events.WouldChange(call=call.call, name=call.name, preview=shown))
        change = self.outputs.describe_change(replace(preview, text=shown))
        return replace(record, would_change=change)

    # --- completions ---

    async def _complete(self, step: Complete) -> None:
        self._waiting_for = "backend"
        size = self.folded.header.context
        fitted = FittedStep(step) if size is None else await self._window.fit(step)
        if not isinstance(fitted, FittedStep):
            self._waiting_for = ""
            if isinstance(fitted, CompactedRecord):
                fitted = replace(fitted, at=self.timestamp())
            self.append(fitted)
            return
        step = fitted.step
        if fitted.filling:
            self._tell(events.ContextFilling(size=size or 0, used=fitted.used or 0))
        if self._emit is not None:
            self._emit(events.TurnStarted(turn=step.turn, prompt_chars=len(step.prompt)))
        began = monotonic()
        written = await self._completer.complete(step, self._emit)
        duration = round((monotonic() - began) * 1000)
        record = written.record(
            step, self.folded.asked, duration_ms=duration, recorded_at=self.timestamp()
        )
        if size is not None:
            record = replace(record, context=await self._count_sent_tokens(fitted, record))
        for mend in written.mends:
            self.append(mend)
        self._waiting_for = ""
        self.append(record, reading=written.reading)

    async def _count_sent_tokens(self, step: FittedStep, record: CompletionRecord) -> int:
        """The tokens of a prompt that was sent, counted now where that was not needed before."""
        if step.used is not None:
            return step.used
        said = record.usage.prompt_tokens if record.requests == 1 else None
        return await self._window.count(step.step.prompt) if said is None else said

    # --- calls ---

    async def _call_all(self, calls: Sequence[CallRecord]) -> None:
        """Make several calls, those that only read in parallel.

        The first exception ends the others and is raised; where something cannot be written down,
        what runs meanwhile may come to its end.
        """
        limiter, one_change = anyio.CapacityLimiter(self.folded.limits.parallel), anyio.Lock()
        problems: list[Exception] = []

        async def limited(call: CallRecord) -> None:
            # Changes are made one after the other, in call order: a later one may build on an
            # earlier one, and an approval holds for what a file is when its call begins.
            mutates = self.registry.get(call.name).spec.mutates(call.arguments)
            async with one_change if mutates else contextlib.nullcontext(), limiter:
                if problems:
                    return
                try:
                    await self._call(call)
                except Exception as error:
                    problems.append(error)
                    if not isinstance(error, StorageError):
                        group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(limited, call)
        if problems:
            raise problems[0]

    async def _call(self, call: CallRecord) -> None:
        session, tool = self.folded, self.registry.get(call.name)
        state, expected = session.current.calls[call.call], None
        try:
            if state.approval is not None:
                expected = await self._approvals.consume_approval(call, state.approval)
            elif state.decision is not None and state.decision.rule.startswith(TEMPLATE):
                expected = await self._approvals.check_template(call, state.decision.rule)
        except ApprovalOutdated:
            return
        denied = self.files.access.check(tool.spec)
        if denied is not None:
            decision = decision_record(call.call, denied)
            self._write([decision, refusal_by(decision, state, session)])
            return
        mutates = tool.spec.mutates(call.arguments)
        shown_chars: int | None = self.outputs.most_chars
        if session.header.long_observations == "summary" and not is_reader(tool.spec):
            shown_chars = None  # the tool need not shorten what the model will summarise
        self.append(ExecutionRecord(call=call.call, mutates=mutates, at=self.timestamp()))
        if self._nested is not None:
            self._nested.begin(call.call)
        context = ToolContext(
            policy=session.policy,
            tools=self.registry,
            expected=expected,
            artifacts=self.files.artifacts,
            undo=self.files.undo,
            asks=lambda *asked: self._nested_runs().ask(call, *asked),
            confirms=lambda _, *asked: confirm_action(self.approver, call.call, *asked),
            shown_chars=shown_chars,
            known_file=self.folded.history.files.get,
            session=session.header.session,
            report=None if self._emit is None else partial(self._tell_progress, call),
        )
        seconds, clean = session.limits.tool_timeout, self.outputs.clean
        result = await self.reads.call(
            tool,
            call.arguments,
            context,
            of_session=is_on_demand(tool.spec),
            timeout=seconds,
            clean=clean,
        )
        await self._observe(call, result, mutates)

    async def _observe(self, call: CallRecord, result: ToolResult, mutates: bool) -> None:
        """Write down how a call ended."""
        spent, problem, unknown = 0, None, tuple[StartedCall, ...]()
        if self._nested is not None:
            unknown = self._nested.unknown_ends(call.call)
            spent, waiting, problem = self._nested.ended(call.call)
            if waiting:
                return  # whatever it returned: it is made again once a person has decided
        if self.folded.header.long_observations == "summary" and not mutates:
            await self._summarise(call, result)  # what a call has changed is written down at once
        record, fault = self.outputs.take(call, result)
        problem = fault or problem
        if problem is not None and not mutates:
            raise problem  # the call is made again where the run goes on
        self.append(replace(record, nested=spent, unknown_ends=unknown) if spent else record)
        if problem is not None:
            raise problem

    def _nested_runs(self) -> NestedRuns:
        self._nested = self._nested or self.make_nested(self)
        return self._nested

    async def _summarise(self, call: CallRecord, result: ToolResult) -> None:
        """Have the model summarise an output that is too long to be shown."""
        text = self.outputs.too_long(call, result)
        if text is None:
            return

        def tell(fraction: float) -> None:
            self._tell_progress(call, Progress(_SUMMARISING, fraction))

        began = monotonic()
        record = await self._window.summarise(call, text, tell)
        duration_ms = round((monotonic() - began) * 1000)
        self.append(replace(record, duration_ms=duration_ms, at=self.timestamp()))

    def _tell_progress(self, call: CallRecord, progress: Progress) -> None:
        message, fraction = self.outputs.clean(progress.message), progress.fraction
        self._tell(
            events.ToolProgress(call=call.call, name=call.name, message=message, fraction=fraction)
        )


async def _streamed(answer: Callable[[Emit], Awaitable[Outcome]]) -> AsyncGenerator[events.Event]:
    """The events while ``answer`` works; closing the generator cancels it."""
    queue: asyncio.Queue[events.Event | None] = asyncio.Queue()

    async def work() -> None:
        try:
            outcome = await answer(queue.put_nowait)
            queue.put_nowait(events.Finished(outcome=outcome))
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(work())
    try:
        while (event := await queue.get()) is not None:
            yield event
        await task
    finally:
        if task.cancel():
            with contextlib.suppress(asyncio.CancelledError):
                await task
