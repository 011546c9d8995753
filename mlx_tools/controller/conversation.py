"""A conversation: the questions of one session, each answered by a run.

A caller's arguments are checked and recorded here; the driver does the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final, Self

from msgspec import Struct

from mlx_tools.backends import Backend, ErrorMappingBackend, TokenCounter, find_model_folder
from mlx_tools.controller.approvals import CallApprovals
from mlx_tools.controller.approver import (
    ApprovalRequest,
    Approvals,
    Approver,
    Templates,
    collect_answers,
)
from mlx_tools.controller.completer import Completer
from mlx_tools.controller.context import ContextWindow, PromptCounter
from mlx_tools.controller.driver import CallEnd, Driver, DriverParts, RunClock
from mlx_tools.controller.earlier import PriorConversation
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.session import Complete, Session
from mlx_tools.controller.state import SessionInputs
from mlx_tools.controller.summaries import Summariser
from mlx_tools.controller.tool_runner import (
    NestedRuns,
    OuterController,
    RegistryRunner,
    RunContext,
)
from mlx_tools.controller.writer import Emit, Observer, SessionWriter, observe_run
from mlx_tools.errors import (
    EXIT_STOPPED,
    BackendTimeout,
    StorageError,
    UsageError,
    require_text,
    wrong_argument,
)
from mlx_tools.messages import ToolSpec, replace, tool_named
from mlx_tools.policy import Policy, can_be_allowed
from mlx_tools.prompt import is_on_demand
from mlx_tools.store import SessionFiles
from mlx_tools.tools import Registry, ToolResult
from mlx_tools.transcript import (
    CarriedRecord,
    CompletionRecord,
    Consents,
    Header,
    Outcome,
    ResumedRecord,
    State,
    events,
    last_run,
    make_run_outcome,
)

_ANSWERING: Final = (State.COMPLETING, State.READING, State.CALLING, State.PAUSED)
_NO_PRIOR_CONVERSATION: Final = PriorConversation()
_NO_RESULTS: Final[Mapping[str, ToolResult]] = {}


class ConversationParts(Struct, frozen=True, kw_only=True):
    """The parts of a conversation that its controller has."""

    inputs: SessionInputs
    """The tools, words and checks with which its records are folded."""
    backend: Backend
    registry: Registry
    approver: Approver
    templates: Templates | None
    secret: bytes
    """The key that seals what a person said."""
    now: Callable[[], datetime]
    """The wall clock, in UTC."""
    controller: OuterController
    """Makes the controllers of nested runs."""
    context: RunContext
    """The run that this one is nested in."""
    observers: Sequence[Observer]
    """Observers of its runs."""


class _OpenSession:
    """The parts that are made for a session once its header exists."""

    def __init__(self, session: Session, files: SessionFiles, parts: ConversationParts) -> None:
        backend = ErrorMappingBackend(parts.backend)
        self.clock = clock = RunClock()
        self.session = session
        self.writer = SessionWriter(session, files.transcript, secret=parts.secret, now=parts.now)
        self.outputs = Outputs(session, files.artifacts, at_home=True)
        self.nested = NestedRuns(
            self.writer,
            self.outputs,
            parts.approver,
            clock.person_waits,
            parts.controller,
            parts.context,
        )
        self.approvals = CallApprovals(
            self.writer,
            parts.registry,
            self.outputs,
            approver=parts.approver,
            templates=parts.templates,
            consumed_approvals=files.consumed_approvals,
        )
        counter = PromptCounter(
            session, TokenCounter(lambda: find_model_folder(parts.backend, session.header.model))
        )
        summariser = Summariser(backend, session, self.outputs, counter.fits)
        self.window = ContextWindow(session, self.outputs, files.artifacts, counter, summariser)
        runner = RegistryRunner(
            self.writer,
            parts.registry,
            files,
            self.outputs,
            parts.approver,
            parts.context.reads,
            self.nested,
        )
        self.driver = Driver(
            self.writer,
            DriverParts(
                completer=Completer(backend, session),
                window=self.window,
                runner=runner,
                approvals=self.approvals,
                approver=parts.approver,
                outputs=self.outputs,
                clock=clock,
                summaries=summariser,
            ),
        )


class Conversation:
    """One open session: questions that see each other, in one transcript."""

    def __init__(
        self,
        files: SessionFiles,
        parts: ConversationParts,
        *,
        policy: Policy,
        begin: Callable[[str, str | None], Header] | None = None,
        earlier: PriorConversation = _NO_PRIOR_CONVERSATION,
    ) -> None:
        """
        Args:
            files: where the session is kept. Its records are folded.
            parts: what the controller has.
            policy: the policy in force.
            begin: makes the header of a new session, of its first question and that one's tool
                choice. None: the session has one.
            earlier: what was said before a new session.

        Raises:
            TranscriptError: the records are not those of a session.
        """
        self.files = files
        self.policy = policy
        self.begin = begin
        self.earlier = earlier
        self.registry = parts.registry
        self._parts = parts
        self._is_cancelled = False
        self._answering: tuple[asyncio.Task[Any] | None, asyncio.Event] | None = None
        """The task that answers a question now, and the event of its end."""
        self._reopened = begin is None
        self._live: _OpenSession | None = None  # None: the header is not written yet
        if files.transcript:
            session = Session.from_records(files.transcript, parts.inputs)
            self._live = _OpenSession(session, files, parts)

    @property
    def _open(self) -> _OpenSession:
        """The parts of the session. Raises `UsageError` before its first question."""
        if self._live is None:
            raise UsageError("the session has no question yet")
        return self._live

    @property
    def is_begun(self) -> bool:
        """True once something was asked in the session, or said before it."""
        return self._live is not None

    @property
    def session_state(self) -> Session:
        """The state of the session. Raises `UsageError` before its first question."""
        return self._open.session

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """The tools that exist now, by name."""
        return self._parts.inputs.specs

    @property
    def consents(self) -> Consents | None:
        """The consents for the rest of the session, also from the one that it continues."""
        if self._live is None:
            return self._parts.inputs.consents
        return self._live.session.history.allowed_effects

    @property
    def driver(self) -> Driver:
        """The driver of the session. Raises `UsageError` before its first question."""
        return self._open.driver

    @property
    def session(self) -> str:
        """The session's id."""
        return self.files.session

    @property
    def parent(self) -> str:
        """The session and the call that this one runs within, empty if it is not nested."""
        return (
            self._parts.context.parent if self._live is None else self.session_state.header.parent
        )

    @property
    def transcript(self) -> str | None:
        """The path of the transcript, None if it is in memory only."""
        return self.files.path

    def cancel(self) -> None:
        """Let the next break of the run count as a cancellation."""
        self._is_cancelled = True
        if self._live is not None:
            self._live.driver.is_cancelled = True

    # --- what a caller asks for ---

    async def run(
        self,
        question: str,
        *,
        tool_choice: str | None = None,
        untyped_suffix_chars: int = 0,
        retries: int = 0,
        emit: Emit | None = None,
    ) -> Outcome:
        """Answer the next question; see `Controller.run`.

        ``untyped_suffix_chars`` is how many characters at the end of the question are somebody
        else's text: a call that stands there is an echo. ``retries`` is how often the question was
        asked before: at temperature 0 it would get the same answer, so it is then drawn at random.
        ``emit`` is called with what happens.

        A backend that fails before it completed anything for this session raises its
        `BackendError`; one that fails later stops the run. Either is in the transcript. Whoever
        cancels finds the run stopped as ``interrupted``. Where something cannot be written down
        (`StorageError`) the run breaks off there as one that was killed, and can be resumed.

        Raises `UsageError` while another question is being answered in this conversation.
        """
        if tool_choice is not None:
            tool_choice = self._check_tool_choice(tool_choice)
        await self._finish_closed_stream()
        with self._exclusive():
            live = self._open_for(question, tool_choice, untyped_suffix_chars)
            with observe_run(self._parts.observers, live.writer, emit):
                self._append_question(live, question, tool_choice, untyped_suffix_chars, retries)
                with self._resumable():
                    await live.driver.drive()
            return self._outcome(live)

    async def take_turn(self, question: str) -> None:
        """Let the model write one turn in answer to a question; run nothing of it.

        The session is left there: its calls wait, and its records say what was written.

        Raises:
            BackendError: there was no turn to be had, or no time for one.
        """
        with self._exclusive():
            live = self._open_for(question, None, 0)
            seconds = live.session.limits.total_timeout
            with observe_run(self._parts.observers, live.writer):
                self._append_question(live, question, None, 0)
                with live.clock.limit(seconds) as scope:
                    await live.driver.take_turn()
        if scope.cancelled_caught:
            error = BackendTimeout(f"not done in {seconds:g} s")
            error.exit_code = EXIT_STOPPED  # as of a run that its own limit ended
            raise error

    def _open_for(
        self, question: str, tool_choice: str | None, untyped_suffix_chars: int
    ) -> _OpenSession:
        """Return the session in which this question can be asked now, its header written.

        Raises `UsageError` if the question cannot be asked.
        """
        if not isinstance(question, str) or not question.strip():
            raise UsageError("the question is no text, or empty")
        if not isinstance(untyped_suffix_chars, int) or untyped_suffix_chars < 0:
            raise wrong_argument(
                "untyped_suffix_chars", untyped_suffix_chars, "give a number of characters, from 0"
            )
        if why := self.undecided:
            raise UsageError(
                f"the session {self.session} cannot go on: {why}",
                hint=f"decide first: mlx-tools sessions resume {self.session}",
            )
        # There is no call in doubt here: `undecided` has refused that already.
        if self._live is not None and self.session_state.state in _ANSWERING:
            self.driver.break_off(KeyboardInterrupt())  # a crash broke the last question off
        return self._begin(question, tool_choice)

    def _append_question(
        self,
        live: _OpenSession,
        question: str,
        tool_choice: str | None,
        untyped_suffix_chars: int,
        retries: int = 0,
    ) -> None:
        """Begin a run with its question."""
        # The outputs of the last question are released now: its outcome has its own.
        live.outputs.begin()
        self._parts.context.reads.begin()
        live.window.begin()
        live.writer.append(
            live.session.question_record(
                question,
                tool_choice,
                untyped_suffix_chars=untyped_suffix_chars,
                retries=retries,
            )
        )
        # After the question, so that a session that was only opened gets no record.
        if self._reopened:
            self._append_resumed()

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
        if self._live is None:
            raise UsageError("nothing waits in the session: nothing was asked in it yet")
        live, session = self._live, self.session_state
        state, doubts = session.state, self.calls_in_doubt
        if self._has_ended and not (isinstance(approvals, Mapping) and approvals):
            why = "has its answer" if state is State.IDLE else "has stopped"
            raise UsageError(f"nothing waits in the session: it {why}", hint="ask again")
        calling = state in (State.PAUSED, State.CALLING) or bool(doubts)
        asked = session.current.calls_needing_decision() if calling else ()
        sure = [call.call for call in asked if not session.is_doubtful(call)]
        # A result for a call in doubt is refused: a person decides about it, not its maker.
        if strangers := results.keys() - set(sure):
            raise UsageError(f"{min(strangers)} is not a call that waits (any more)")
        if state is State.PAUSED and session.pause is not None:
            sure += [call.call_id for call in session.pause.nested_calls if not call.in_doubt]
        answers = collect_answers(approvals, sure)
        # Ids of nested calls have a slash; their own sessions check these answers once more.
        within = {key: answers.pop(key) for key in tuple(answers) if "/" in key}
        with self._exclusive(), observe_run(self._parts.observers, live.writer, emit):
            live.outputs.begin()
            live.approvals.check_nested_answers(within)
            live.approvals.check_answers(answers, self.policy)
            live.nested.answers = within
            with self._resumable():
                # After the checks: a wrong answer leaves no trace in the transcript.
                self._append_resumed()
                await self._write_read()
                if session.state is State.CALLING:
                    await live.approvals.decide_again()
                    await live.approvals.record_answers(answers)
                    for call in [
                        one
                        for one in session.current.calls_needing_decision()
                        if one.call in results
                    ]:
                        end = CallEnd(results[call.call])
                        await live.driver.observe(call, end, mutates=False)
                await live.driver.drive()
        return self._outcome(live)

    async def waiting(self) -> list[tuple[ApprovalRequest, bool]]:
        """Return the calls that wait while the session is paused, as they would run now.

        Each comes with True if it is still what was asked about. Nothing is recorded.
        """
        return [] if self._live is None else await self._live.approvals.waiting()

    async def waiting_within(self) -> list[ApprovalRequest]:
        """Return the calls that wait in nested runs, as they would run now.

        Nothing is recorded. Raises `MlxToolsError` if one of the runs cannot be opened.
        """
        return [] if self._live is None else await self._live.nested.requests()

    async def settle(self) -> Outcome:
        """Bring a question that broke off to rest, without running anything.

        It is paused if a person must decide about a call: nobody knows how the call ended, or it
        was approved and did not start. Else it is stopped. If it was ``cancelled`` it is stopped in
        any case, also while it is paused.
        """
        live, session = self._open, self.session_state
        await self._write_read()
        if not self._is_cancelled:
            # A stopped run has no open turn in which to ask: resuming it opens the turn again.
            if session.state is State.STOPPED and session.calls_in_doubt:
                self._append_resumed()
            if session.state is State.CALLING:
                live.approvals.ask_unstarted_again()
                if asked := session.current.calls_needing_decision():
                    await live.approvals.pause(asked)
        paused = session.state is State.PAUSED
        if session.state in _ANSWERING and (self._is_cancelled or not paused):
            live.driver.break_off(KeyboardInterrupt())
        return self._outcome(live)

    async def decide(self, emit: Emit | None = None) -> Outcome:
        """Ask a person about calls in doubt, and run those that are approved.

        No model is asked. The question of these calls is left as it is, so the next one can be
        asked. The outcome is `Paused` if nobody decided.
        """
        live, session = self._open, self.session_state

        def asks_model() -> bool:
            return session.state is State.COMPLETING and isinstance(session.next_step(), Complete)

        with self._exclusive(), observe_run(self._parts.observers, live.writer, emit):
            live.outputs.begin()
            with self._resumable():
                self._append_resumed()
                await self._write_read()
                await live.approvals.decide_again()
                await live.driver.drive(asks_model)
        return self._outcome(live)

    async def _write_read(self) -> None:
        """Record what follows from the last completion."""
        session = self.session_state
        await self.driver.take_steps(lambda: session.state is not State.READING)

    async def resume_question(self, question: str, approvals: Approvals) -> Outcome:
        """Continue a session in which this question was asked.

        If the question has come to rest, return its outcome, else continue it as `resume` does.
        Raises `UsageError` if another question was asked.
        """
        if self.session_state.question != question:
            raise UsageError("it asks something else than when it was made before")
        if self._has_ended:
            return self._outcome(self._open)
        return await self.resume(approvals)

    @property
    def _has_ended(self) -> bool:
        """True if the last question came to its end, and no decision is open."""
        state = self.session_state.state
        return state is State.IDLE or (state is State.STOPPED and not self.calls_in_doubt)

    def stream(
        self,
        question: str,
        *,
        tool_choice: str | None = None,
        untyped_suffix_chars: int = 0,
        retries: int = 0,
    ) -> AsyncGenerator[events.Event]:
        """Answer the next question and yield what happens; see `Controller.stream`."""
        run = partial(
            self.run,
            question,
            tool_choice=tool_choice,
            untyped_suffix_chars=untyped_suffix_chars,
            retries=retries,
        )
        return _streamed(lambda emit: run(emit=emit))

    def stream_decided(self) -> AsyncGenerator[events.Event]:
        """Decide about calls in doubt like `decide` and yield what happens, like `stream`."""
        return _streamed(self.decide)

    def stream_resumed(self, approvals: Approvals = None) -> AsyncGenerator[events.Event]:
        """Go on like `resume` and yield what happens, like `stream`."""
        return _streamed(partial(self.resume, approvals))

    async def compact(self) -> events.Compacted | None:
        """Let the model summarise the conversation before the last question.

        The summary then stands in place of it. If there was only one question, it is summarised
        too; the result is None if the prompt is empty.

        Raises:
            UsageError: a question is being answered.
            BackendError: there is no summary; nothing has changed.
        """
        if self.earlier.question is not None:
            self._begin(self.earlier.question)
        if self._live is None:
            return None
        if not self._has_ended:
            raise UsageError(
                "the session is in the middle of a question", hint="go on with it first"
            )
        record = await self._live.window.sum_up()
        if record is None:
            return None
        writer = self._live.writer
        writer.emit = None
        event = events.make_event(writer.append(record), ())
        assert isinstance(event, events.Compacted)
        return event

    def _outcome(self, live: _OpenSession) -> Outcome:
        """Return the outcome of the last question."""
        session, outputs = live.session, live.outputs
        outcome = make_run_outcome(
            session.header,
            last_run(self.files.transcript),
            session.history.sources,  # collected by the fold: the records need not be searched
            transcript=self.files.path,
            outputs=outputs.whole,
            artifacts=outputs.artifacts,
        )
        thoughts = [r.reasoning for r in outcome.records if isinstance(r, CompletionRecord)]
        return replace(outcome, reasoning_artifact=outputs.keep_thoughts(thoughts))

    def _begin(self, question: str, tool_choice: str | None = None) -> _OpenSession:
        """Write the header of a new session, and the conversation before it."""
        carries, live = bool(self.earlier.records), self._live
        if live is None:
            first = self.earlier.question if carries else None
            assert self.begin is not None
            header = self.begin(first or question, tool_choice)
            session = Session(header, self._parts.inputs)
            # On disk before the session exists for anybody: without a written header there is no
            # session.
            self.files.transcript.append(header)
            self._live = live = _OpenSession(session, self.files, self._parts)
            live.driver.is_cancelled = self._is_cancelled
        if self.begin is None or live.session.question or not carries:
            return live
        clean, artifacts = live.outputs.clean, self.files.artifacts
        if artifacts is not None:
            for key, text in self.earlier.stored_artifacts():
                artifacts.add(clean(text), key)
        there = sum(isinstance(record, CarriedRecord) for record in self.files.transcript)
        # Each record is folded before the next is made: the keys of calls are numbered on.
        for record in islice(self.earlier.prior_messages(live.session, clean), there, None):
            live.writer.append(record)  # earlier records were written before the disk was full
        return live

    def _append_resumed(self) -> None:
        """Record that this process continues the session, and under which policy."""
        writer = self._open.writer
        writer.append(ResumedRecord(policy=self.policy.to_json()))
        self._reopened = False

    @property
    def calls_in_doubt(self) -> tuple[str, ...]:
        """The calls that a person must decide about before anything else.

        Nobody knows how they ended, or how a call in a nested run ended.
        """
        return () if self._live is None else self._live.driver.calls_in_doubt

    @property
    def undecided(self) -> str:
        """The reason why no question is possible before a person has decided; else empty."""
        if self._live is None:
            return ""
        if doubts := self.calls_in_doubt:
            return f"nobody knows how {', '.join(doubts)} ended"
        return "it waits for an approval" if self.session_state.state is State.PAUSED else ""

    def _check_tool_choice(self, tool_choice: str) -> str:
        """Return the tool choice, by the tool's own name.

        Raises `UsageError` if it is neither a word of the interface nor a tool that may be called.
        """
        specs = self._parts.inputs.specs
        hint = "auto, none, required or a tool's name"
        tool_choice = tool_named(require_text("tool_choice", tool_choice, hint), specs)
        if tool_choice in ("auto", "none"):
            return tool_choice
        allowed = [name for name, spec in specs.items() if can_be_allowed(self.policy, spec)]
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

    async def _finish_closed_stream(self) -> None:
        """Wait for the end of a stream that its reader left with ``break``."""
        # The event loop closes it, and cancels the task that it reads within three turns.
        for _ in range(3):
            if self._answering is None:
                return
            await asyncio.sleep(0)
        task, end = self._answering or (None, None)
        if task is not None and task.cancelling() and end is not None:
            await end.wait()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the session while a question is answered.

        Raises `UsageError` if it is held already.
        """
        if self._answering is not None:  # a second question would break the first one off
            raise UsageError(
                f"the session {self.session} is answering a question",
                hint="wait for its outcome, or ask in another conversation",
            )
        end = asyncio.Event()
        self._answering = asyncio.current_task(), end
        try:
            yield
        finally:
            self._answering = None
            end.set()

    @contextlib.contextmanager
    def _resumable(self) -> Iterator[None]:
        """If nothing can be written, say that nothing is lost, and how to go on."""
        try:
            yield
        except StorageError as error:
            if error.cure:
                error.hint = f"{error.cure}, then: mlx-tools sessions resume {self.files.session}"
            raise


async def _streamed(answer: Callable[[Emit], Awaitable[Outcome]]) -> AsyncGenerator[events.Event]:
    """Yield the events while ``answer`` works; closing the generator cancels it."""
    queue: asyncio.Queue[events.Event | None] = asyncio.Queue()

    async def work() -> None:
        try:
            outcome = await answer(queue.put_nowait)
            queue.put_nowait(events.Finished(outcome=outcome))
        finally:
            # Also after an error: the reader must not wait forever; ``await task`` raises the error
            # then.
            queue.put_nowait(None)

    # A task of its own: closing the generator cancels the work wherever it waits.
    task = asyncio.create_task(work())
    try:
        while (event := await queue.get()) is not None:
            yield event
        await task
    finally:
        if task.cancel():
            with contextlib.suppress(asyncio.CancelledError):
                await task
