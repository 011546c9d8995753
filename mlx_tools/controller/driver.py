"""The loop: does what a session says is due, and writes down what came of it.

Every record reaches the transcript before the session goes on from it, so whatever happens between
two steps, the transcript says how far the run has come.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, TypeVar

import anyio

from mlx_tools.backends import Backend, TokenCounter
from mlx_tools.controller.announce import events_of, mended, tool_ended
from mlx_tools.controller.approvals import Answers, Asking, Changed
from mlx_tools.controller.approver import Approver
from mlx_tools.controller.completer import Completer, Emit
from mlx_tools.controller.nested import NestedRuns
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Session
from mlx_tools.controller.step import Ask, Complete, Execute, Rest, Write
from mlx_tools.controller.window import Fitted, Window
from mlx_tools.errors import (
    BackendError,
    BackendTimeout,
    ErrorCode,
    StopReason,
    StorageError,
    TranscriptError,
    UsageError,
)
from mlx_tools.messages import ErrorInfo
from mlx_tools.policy import Policy, seal
from mlx_tools.store.session_store import SessionFiles
from mlx_tools.store.transcript import to_json
from mlx_tools.tools import Progress, Reads, Registry, ToolResult, execute
from mlx_tools.transcript import events
from mlx_tools.transcript.records import (
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    DecisionRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    PendingCall,
    Record,
    ResumedRecord,
    State,
    StoppedRecord,
)

T = TypeVar("T")


async def at_once(work: Callable[[T], Awaitable[None]], items: Sequence[T]) -> None:
    """Does the work for all items at once. The first exception ends the others and is raised."""
    failures: list[Exception] = []

    async def guarded(item: T) -> None:
        try:
            await work(item)
        except Exception as error:
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for item in items:
            group.start_soon(guarded, item)
    if failures:
        raise failures[0]


_SUMMARISING: Final = "its output is long: the model summarises it"


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class Driver:
    """Drives one session, question after question.

    ``outputs`` holds the whole outputs of the current run, for an outcome that is to include them.
    ``spent`` is how many seconds of the first question's total time are gone already. ``nested``
    lets tools ask the model. ``counter`` counts the tokens of prompts.
    """

    def __init__(
        self,
        session: Session,
        files: SessionFiles,
        *,
        backend: Backend,
        registry: Registry,
        approver: Approver,
        secret: bytes,
        spent: float = 0.0,
        now: Callable[[], datetime] = utc_now,
        nested: Callable[..., NestedRuns] | None = None,
        reads: Reads | None = None,
        counter: TokenCounter | None = None,
    ) -> None:
        self.session = session
        self.files = files
        self.outputs = Outputs(session, files.artifacts, str(Path.home()))
        self._completer = Completer(backend, session)
        kept = files.artifacts
        self._window = Window(backend, session, self.outputs, kept, counter or TokenCounter())
        self._registry, self._reads = registry, reads or Reads()
        self._secret = secret
        ask: dict[str, Any] = {"append": self._append, "now": now, "use": files.used.take}
        self._asking = Asking(session, registry, approver=approver, secret=secret, **ask)
        self._clock = now
        own = {"append": self._append, "clean": self.outputs.clean, "holding": self._person_waits}
        self._nested = nested(**own) if nested is not None else None
        self._spent = spent
        self._scope: anyio.CancelScope | None = None
        self._emit: Emit = lambda event: None
        self._waiting_for: Literal["", "backend", "tool"] = ""

    def open(self, header: Header) -> None:
        """Begins the session. Raises `StorageError` where the header cannot be written."""
        self._append(replace(header, seal=seal(self._secret, "header", to_json(header))))

    def waiting(self) -> tuple[CallRecord, ...]:
        """The calls that a person must decide about."""
        session = self.session
        return session.current.asked() if session.state in (State.PAUSED, State.CALLING) else ()

    def waiting_within(self) -> tuple[PendingCall, ...]:
        """The calls that a person must decide about in runs within calls."""
        if self.session.state is not State.PAUSED or self.session.pause is None:
            return ()
        return self.session.pause.within

    async def run(self, question: str, tool_choice: str | None, emit: Emit, piped: int = 0) -> None:
        """Puts a question and drives the session until it rests. ``piped`` is as in its record.

        A backend that fails before it completed anything for this session raises its
        `BackendError`; one that fails later stops the run. Either is in the transcript. Whoever
        cancels finds the run stopped as ``interrupted``. Where something cannot be written down
        (`StorageError`) the run breaks off there as one that was killed, and can be resumed.
        """
        self._emit = emit
        self.outputs.begin()
        self._window.begin()
        self._reads.begin()
        self._append(self.session.asking(question, tool_choice, self._now(), piped))
        with self._resumable():
            await self._drive()

    async def resume(self, policy: Policy, answers: Answers, emit: Emit) -> None:
        """Goes on with a session that was paused or broke off, under ``policy``, with what a person
        answered to the calls that wait.

        Raises `UsageError`, and runs nothing, where an answer is about a call that does not wait,
        or an approval is of something else than what would run now.
        """
        self._emit = emit
        self.outputs.begin()
        session, pause = self.session, self.session.pause
        within = {key: answer for key, answer in answers.items() if "/" in key}
        self._asking.check_within(within, pause if session.state is State.PAUSED else None)
        answers = {key: answer for key, answer in answers.items() if key not in within}
        self._asking.check_answers(answers, policy)
        if self._nested is not None:
            self._nested.decided(within)
        with self._resumable():
            self._append(ResumedRecord(policy=policy.to_json(), at=self._now()))
            while isinstance(due := session.due(), Write) and session.state is State.READING:
                self._write(due.records)
            if session.state is State.CALLING:
                self._asking.decide_anew()
                await self._asking.take(answers, pause)
            await self._drive()

    @contextlib.contextmanager
    def _resumable(self) -> Iterator[None]:
        """Tells whoever finds the disk full that nothing is lost, and how to go on."""
        try:
            yield
        except StorageError as error:
            error.hint = f"free some space, then: mlx-tools sessions resume {self.files.session}"
            raise

    async def compact(self, emit: Emit) -> CompactedRecord | None:
        """Has the model sum up what was said, which leaves the prompt; None where nothing was.

        Raises `UsageError` in the middle of a question, `BackendError` where there is no summary.
        """
        session = self.session
        if session.state not in (State.EMPTY, State.IDLE, State.STOPPED):
            raise UsageError(
                "the session is in the middle of a question", hint="go on with it first"
            )
        record = None if session.state is State.EMPTY else await self._window.sum_up()
        if record is not None:
            self._emit = emit
            self._write([replace(record, at=self._now())])
        return record

    async def _drive(self) -> None:
        session, access = self.session, self.files.access
        try:
            access.begin(session.header.session, session.policy.digest(), session.specs.values())
            left, self._spent = self.session.limits.total_timeout - self._spent, 0.0
            with anyio.move_on_after(left) as scope:
                self._scope = scope
                await self._loop()
            if scope.cancelled_caught:
                self._give_up_calls("timeout")
                self._stop("total_timeout", f"not done in {self.session.limits.total_timeout:g} s")
        except BackendError as error:
            self._waiting_for = "backend"
            timed_out = isinstance(error, BackendTimeout)
            self._stop("completion_timeout" if timed_out else "backend_error", str(error))
            if self.session.turn == 0 and not self._completer.heard:
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

    async def _loop(self) -> None:
        while True:
            due = self.session.due()
            match due:
                case Write():
                    self._write(due.records)
                    await self._tell_dry_run(due.records)
                case Complete():
                    await self._complete(due)
                case Execute():
                    await self._execute(due.calls)
                case Ask():
                    self._waiting_for = ""
                    self._asking.decide_anew()  # a consent may cover them by now
                    if calls := self.session.current.asked():
                        with self._person_waits():
                            await self._asking.ask(calls)
                case Rest():
                    return

    @contextlib.contextmanager
    def _person_waits(self) -> Iterator[None]:
        """While a person is asked, the run's time stands still."""
        scope = self._scope or anyio.CancelScope()
        began, deadline = anyio.current_time(), scope.deadline
        scope.deadline = math.inf
        try:
            yield
        finally:
            scope.deadline = deadline + anyio.current_time() - began

    def _break_off(self, error: BaseException) -> None:
        asking = self.session.state is State.PAUSED  # an error here comes while somebody is asked
        if isinstance(self.session.due(), Rest) and not asking:
            return
        self._give_up_calls("tool_error")
        if isinstance(error, Exception):
            self._stop("internal_error", f"{type(error).__name__}: {error}")
        else:
            self._stop("interrupted", "the run was interrupted")

    def _give_up_calls(self, code: ErrorCode) -> None:
        """Gives the calls that are still open an error, save those nobody knows the end of."""
        for call in [*self.session.current.open_calls.values()]:
            running = self.session.state in (State.CALLING, State.PAUSED)
            if running and not self.session.current.in_doubt(call.call):
                self._append(self._unrun(call, code))

    def _unrun(self, call: CallRecord, code: ErrorCode, reason: str = "") -> ObservationRecord:
        """The observation of a call that was decided about and did not run."""
        error = ErrorInfo(code, self.session.words.error(code, name=call.name, reason=reason))
        return ObservationRecord(call=call.call, name=call.name, id=call.id, error=error)

    # --- records ---

    def _now(self) -> str:
        return self._clock().isoformat(timespec="milliseconds")

    def _append(self, record: Record) -> None:
        self.session.check(record)
        self.files.transcript.append(record)
        self.session.fold(record)

    def _stop(self, reason: StopReason, message: str) -> None:
        self._append(
            StoppedRecord(
                reason=reason,
                message=self.outputs.clean(message),
                waiting_for=self._waiting_for,
                partial=self._completer.partial,
            )
        )

    def _write(self, records: Sequence[Record]) -> None:
        """Appends what follows from a completion, and tells of it."""
        for record in records:
            self._append(record)
            for event in events_of(record, records, self.session):
                self._emit(event)

    async def _tell_dry_run(self, records: Sequence[Record]) -> None:
        """Tells what the calls would have changed that a dry run did not make."""
        for record in records:
            if isinstance(record, DecisionRecord) and record.code == "dry_run":
                call = self.session.current.call(record.call)
                if text := (await self._asking.preview(call)).text:
                    shown = self.outputs.clean(text)
                    told = events.WouldChange(call=call.call, name=call.name, preview=shown)
                    self._emit(told)

    # --- completions ---

    async def _complete(self, due: Complete) -> None:
        self._waiting_for = "backend"
        fitted = await self._window.fit(due)
        if not isinstance(fitted, Fitted):
            self._waiting_for = ""
            if isinstance(fitted, CompactedRecord):
                fitted = replace(fitted, at=self._now())
            self._write([fitted])
            return
        due = fitted.due
        if fitted.news:
            size = self.session.header.context or 0
            self._emit(events.ContextFilling(size=size, used=fitted.used or 0))
        self._emit(events.TurnStarted(turn=due.turn, prompt_chars=len(due.prompt)))
        began = monotonic()
        written = await self._completer.complete(due, self._emit)
        record = written.record(
            due,
            self.session.asked,
            duration_ms=round((monotonic() - began) * 1000),
            at=self._now(),
        )
        record = replace(record, context=await self._counted(fitted, record))
        for number, mend in enumerate(written.mends, 1):
            self._append(mend)
            self._emit(mended(written.mends[:number]))
        self.session.read_already(record, written.reading)
        self._append(record)
        self._waiting_for = ""
        self._emit(
            events.TurnEnded(turn=due.turn, usage=record.usage, duration_ms=record.duration_ms)
        )

    async def _counted(self, sent: Fitted, record: CompletionRecord) -> int | None:
        """The tokens of a prompt that was sent, counted afterwards where that was not needed
        before; None where the size of the context is unknown."""
        if self.session.header.context is None or sent.used is not None:
            return sent.used
        said = record.usage.prompt_tokens if record.requests == 1 else None
        return await self._window.count(sent.due.prompt) if said is None else said

    # --- calls ---

    async def _execute(self, calls: Sequence[CallRecord]) -> None:
        self._waiting_for = "tool"
        if len(calls) == 1:
            await self._call(calls[0])
        else:
            limiter = anyio.CapacityLimiter(self.session.limits.parallel)
            full: list[StorageError] = []

            async def limited(call: CallRecord) -> None:
                async with limiter:
                    if full:
                        return
                    try:
                        await self._call(call)
                    except StorageError as error:  # what runs meanwhile may come to its end
                        full.append(error)

            await at_once(limited, calls)
            if full:
                raise full[0]
        self._waiting_for = ""
        if self._nested is not None and (within := self._nested.waiting()):
            await self._asking.pause(self.session.current.asked(), within)

    async def _call(self, call: CallRecord) -> None:
        tool = self._registry.get(call.name)
        try:
            expected = await self._asking.binding(call)
        except Changed as changed:
            self._asking.ask_again(call, str(changed))
            return
        denied = self.files.access.check(self.session.header.session, tool.spec)
        if denied is not None:
            code, why = denied.code or "not_allowed", denied.reason
            decided = DecisionRecord(
                call=call.call, decision="deny", rule=denied.rule, reason=why, code=code
            )
            self._write([decided, self._unrun(call, code, why)])
            return
        mutates = tool.spec.mutates(call.arguments)
        self._append(ExecutionRecord(call=call.call, mutates=mutates, at=self._now()))
        self._emit(events.ToolStarted(call=call.call, name=call.name))
        limits = self.session.limits
        if self._nested is not None:
            self._nested.begin(call.call)
        result = await self._reads.call(
            execute,
            tool,
            call.arguments,
            timeout=limits.tool_timeout,
            policy=self.session.policy,
            expected=expected,
            artifacts=self.files.artifacts,
            undo=self.files.undo,
            ask=partial(self._nested.ask, call) if self._nested is not None else None,
            clean=self.outputs.clean,
            shown_chars=limits.max_observation_chars,
            session=self.session.header.session,
            on_progress=lambda progress: self._tell_progress(call, progress),
        )
        if self._nested is not None and self._nested.waits(call.call):
            return  # whatever it returned: it is made again once a person has decided
        if not mutates:  # what a call has changed must be written down at once
            await self._summarise(call, result)
        shown = self.outputs.take(call, result)
        record = ObservationRecord(
            call=call.call,
            name=call.name,
            id=call.id,
            content=shown.content,
            error=shown.error,
            duration_ms=result.duration_ms,
            output_size_chars=result.output_size_chars,
            artifact=shown.artifact,
            sources=shown.sources,
            nested=self._nested.spent(call.call) if self._nested is not None else 0,
            cached=result.cached,
        )
        problem = shown.problem
        if problem is None and self._nested is not None:
            problem = self._nested.problem(call.call)
        if problem is not None and not mutates:
            raise problem  # the call is made again where the run goes on
        self._append(record)
        self._emit(tool_ended(record))
        if problem is not None:
            raise problem

    async def _summarise(self, call: CallRecord, result: ToolResult) -> None:
        """Has the model summarise an output that is too long to be shown, where that is wanted."""
        if self.session.header.long_observations != "summary":
            return
        text = self.outputs.too_long(call, result)
        if text is None:
            return

        def tell(fraction: float) -> None:
            self._tell_progress(call, Progress(_SUMMARISING, fraction))

        began = monotonic()
        record = await self._window.summariser.summarise(call, text, tell)
        duration_ms = round((monotonic() - began) * 1000)
        self._append(replace(record, duration_ms=duration_ms, at=self._now()))

    def _tell_progress(self, call: CallRecord, progress: Progress) -> None:
        self._emit(
            events.ToolProgress(
                call=call.call,
                name=call.name,
                message=self.outputs.clean(progress.message),
                fraction=progress.fraction,
            )
        )
