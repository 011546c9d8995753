"""Runs the tools of a session: one call at a time, held to the access list.

A tool may itself ask the model, with tools: that is a nested run. It has no rights but its
caller's. It shares the caller's budget of completions, and the consents for the rest of the
session. It may nest `MAX_DEPTH` levels, and asks the approver of the outer run.

Its transcript is a session of its own that names its parent. The parent's transcript names it
before it begins. So a call that only reads can be made again after a pause or a crash: each nested
run continues where it was, and nothing in it happens twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Final, Protocol

import anyio
from msgspec import Struct, field

from mlx_tools.controller.approvals import NoQuestion
from mlx_tools.controller.approver import (
    ApprovalAnswer,
    ApprovalRequest,
    Approvals,
    Approver,
    ask_approver,
    confirm_action,
)
from mlx_tools.controller.driver import CallEnd
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.writer import SessionWriter
from mlx_tools.errors import BackendError, MlxToolsError, StorageError, UsageError
from mlx_tools.messages import ToolSpec, replace
from mlx_tools.policy import Decision, Limits, Policy, restriction
from mlx_tools.prompt import is_on_demand, is_reader
from mlx_tools.store import SessionFiles
from mlx_tools.tools import Progress, ReadCallCache, Registry, ToolContext, ToolError, ToolResult
from mlx_tools.transcript import (
    Answered,
    CallRecord,
    Consents,
    Header,
    NestedRecord,
    ObservationRecord,
    Outcome,
    Paused,
    PendingCall,
    Record,
    StartedCall,
    Stopped,
    UnknownEnds,
    calls_in_doubt,
    events,
    expand_citations,
    find_unknown_ends,
)

MAX_DEPTH: Final = 2
"""The most levels of nested runs: a tool that asks the model, which calls such a tool once more.
Anything deeper is a model that calls itself."""


class RegistryRunner:
    """Runs calls with the tools of a registry."""

    def __init__(
        self,
        writer: SessionWriter,
        registry: Registry,
        files: SessionFiles,
        outputs: Outputs,
        approver: Approver,
        reads: ReadCallCache,
        nested: NestedRuns | None = None,
    ) -> None:
        self._writer = writer
        self._session = writer.session
        self._registry = registry
        self._files = files
        self._outputs = outputs
        self._approver = approver
        self._reads = reads
        self._nested = nested  # None: there is no model that a tool could ask

    def begin(self) -> None:
        session = self._session
        permit = session.header.session, session.policy.digest(), session.specs.values()
        # Before any call: nothing may run unless the list is on disk.
        self._files.access.begin(*permit)

    def end(self) -> None:
        self._files.access.end()

    def find_spec(self, call: CallRecord) -> ToolSpec:
        return self._registry.get(call.name).spec

    def find_denial(self, call: CallRecord) -> Decision | None:
        # Read again for each call: deleting the list stops a run that is under way.
        return self._files.access.check(self.find_spec(call))

    async def run(self, call: CallRecord, expected_state: str | None) -> CallEnd:
        session, tool, nested = self._session, self._registry.get(call.name), self._nested
        shown_chars: int | None = self._outputs.max_chars
        if session.header.long_observations == "summary" and not is_reader(tool.spec):
            shown_chars = None  # the tool need not shorten a text that the model will summarise
        if nested is not None:
            # A call that is made again has its runs already: they continue where they were.
            nested.begin(call.call)
        context = ToolContext(
            policy=session.policy,
            tools=self._registry,
            expected=expected_state,
            artifacts=self._files.artifacts,
            undo=self._files.undo,
            asks=None if nested is None else lambda *asked: nested.ask(call, *asked),
            confirms=lambda _, *asked: confirm_action(self._approver, call.call, *asked),
            shown_chars=shown_chars,
            # An edit may rely only on the part of the file that the model was shown in this
            # session.
            known_file=session.history.files.get,
            session=session.header.session,
            report=partial(self.report, call) if self._listens else None,
        )
        result = await self._reads.call(
            tool,
            call.arguments,
            context,
            of_session=is_on_demand(tool.spec),
            timeout=session.limits.tool_timeout,
            clean=self._outputs.clean,
        )
        return CallEnd(result) if nested is None else nested.end(call.call, result)

    @property
    def _listens(self) -> bool:
        """True if somebody watches the progress of calls."""
        return self._writer.emit is not None

    def is_in_doubt(self, sessions: Iterable[str]) -> bool:
        return self._nested is not None and self._nested.in_doubt(sessions)

    def report(self, call: CallRecord, progress: Progress) -> None:
        message = self._outputs.clean(progress.message)
        self._writer.tell(
            events.ToolProgress(
                call=call.call, name=call.name, message=message, fraction=progress.fraction
            )
        )


# --- runs within calls ---------------------------------------------------------------------------


class RunContext(Struct, frozen=True, kw_only=True):
    """The call that a run is nested in, and the parts that it shares with it."""

    parent: str = ""
    """The other session and the call, as the header names them; empty for a run that is not nested.
    """
    depth: int = 0
    """The number of runs around this one."""
    consents: Consents | None = None
    """The consents of a person for the rest of the other session."""
    unknown_ends: UnknownEnds | None = None
    """The calls of the other session whose end nobody knows."""
    reads: ReadCallCache
    """The answers of its calls that only read."""


class NestedRun(Struct, frozen=True, kw_only=True):
    """A nested run: its rights, its approver, and its place."""

    policy: Policy
    limits: Limits
    approver: Approver
    context: RunContext


class NestedConversation(Protocol):
    """The conversation of a run within a call."""

    @property
    def session(self) -> str: ...
    @property
    def parent(self) -> str: ...
    async def run(self, question: str, /, *, untyped_suffix_chars: int) -> Outcome: ...
    async def resume_question(self, question: str, approvals: Approvals, /) -> Outcome: ...
    async def waiting(self) -> list[tuple[ApprovalRequest, bool]]: ...
    async def waiting_within(self) -> list[ApprovalRequest]: ...
    def close(self) -> None: ...


class NestedController(Protocol):
    """The controller of a run within a call."""

    async def conversation(self) -> NestedConversation:
        """Open a new session for the run."""
        ...

    async def reopen(self, session: str, /) -> NestedConversation:
        """Open the session of the run again.

        Raises:
            NoQuestion: nothing was asked in it.
        """
        ...


class OuterController(Protocol):
    """The controller of a session: it makes those of the runs within its calls."""

    def nested(self, run: NestedRun, /) -> NestedController:
        """Return the controller of a run."""
        ...

    def read_records(self, session: str, /) -> Sequence[Record]:
        """Return the records of a session, none if it is gone."""
        ...


class _CallRuns(Struct):
    """The nested runs of one call."""

    context: ToolContext | None = None
    """The context of the call."""
    run_count: int = 0
    """The number of runs that this context began."""
    spent: dict[int, int] = field(default_factory=dict)
    """The completions that each run took."""
    waiting: tuple[PendingCall, ...] = ()
    """The pending calls in them."""
    problem: StorageError | None = None
    """The error by which they could not be recorded."""


class NestedRuns:
    """The runs that tools of one session start."""

    def __init__(
        self,
        writer: SessionWriter,
        outputs: Outputs,
        approver: Approver,
        person_waits: Callable[[], AbstractContextManager[None]],
        controller: OuterController,
        context: RunContext,
    ) -> None:
        self.answers: Mapping[str, ApprovalAnswer] = {}
        """The decisions on calls that wait in them."""
        self._writer = writer
        self._session = writer.session
        self._outputs = outputs
        self._approver = approver
        self._person_waits = person_waits  # stops the clock of the run meanwhile
        self._controller = controller
        self._context = context
        # They share one budget of completions.
        self._one_run = anyio.Lock()
        self._calls: dict[str, _CallRuns] = {}

    def in_doubt(self, sessions: Iterable[str]) -> bool:
        """Return whether a call in one of these runs, or nested in them, is in doubt."""
        left = [*sessions]
        for session in left:
            records = self._controller.read_records(session)
            if calls_in_doubt(records):
                return True
            ended = {one.call for one in records if isinstance(one, ObservationRecord)}
            nested = (one for one in records if isinstance(one, NestedRecord))
            left += [one.session for one in nested if one.call not in ended]
        return False

    def begin(self, call: str) -> None:
        """Begin a call, perhaps again: the completions of its runs stay counted."""
        if call in self._calls:
            self._calls[call] = _CallRuns(spent=self._calls[call].spent)

    def end(self, call: str, result: ToolResult) -> CallEnd:
        """Return the end of a call, with the costs and the open calls of its runs."""
        unknown_ends: list[StartedCall] = []
        if self._session.history.unknown_ends.calls:
            for session in self._session.current.calls[call].nested.values():
                unknown_ends += find_unknown_ends(self._controller.read_records(session))
        runs = self._calls.get(call, _CallRuns())
        return CallEnd(
            result,
            nested_turns=sum(runs.spent.values()),
            unknown_ends=tuple(unknown_ends),
            waiting=runs.waiting,
            problem=runs.problem,
        )

    async def requests(self) -> list[ApprovalRequest]:
        """Return the calls that wait in nested runs, as they would run now.

        Nothing is recorded. Raises `MlxToolsError` if one of the runs cannot be opened.
        """
        requests: list[ApprovalRequest] = []
        for call, state in self._session.current.open_calls.items():
            for number, session in state.nested.items():
                name = _run_name(call, number)
                conversation = await self._reopen(session, name)
                with closing(conversation):
                    waiting = [request for request, _ in await conversation.waiting()]
                    waiting += await conversation.waiting_within()
                requests += [
                    replace(request, call=f"{name}/{request.call}", preview_edit=None)
                    for request in waiting
                ]
        return requests

    async def _reopen(self, session: str, name: str) -> NestedConversation:
        """Open a nested run to read it, under the policy that it began with."""
        header = next(
            (one for one in self._controller.read_records(session) if isinstance(one, Header)), None
        )
        if header is None:
            raise UsageError(f"the session {session} is gone")
        run = self._run(Policy.from_json(header.policy), self._approver, header.parent)
        # A transcript names its nested sessions; a forged name must not run another session from
        # here.
        if header.parent != f"{self._session.header.session}/{name}":
            raise UsageError(f"the session {session} is not one of this call")
        return await self._controller.nested(run).reopen(session)

    async def ask(
        self, call: CallRecord, context: ToolContext, question: str, tools: Sequence[str] | None
    ) -> str:
        """Return the model's answer.

        Raises:
            ToolError: there is none; the message says why.
        """
        question = self._outputs.clean(question)  # it may contain text that the tool has read
        if self._context.depth >= MAX_DEPTH:
            raise ToolError(f"runs may stand within one another {MAX_DEPTH} levels deep, no more")
        runs = self._calls.setdefault(call.call, _CallRuns())
        # Numbers begin again, so that the first run of the new attempt finds that of the old one.
        if runs.context is not context:  # it is tried once more
            runs.context, runs.run_count = context, 0
        number = runs.run_count
        runs.run_count += 1
        name = _run_name(call.call, number)
        # One at a time: two runs of a turn would both count on the remaining completions.
        async with self._one_run:
            try:
                outcome = await self._outcome(call, number, name, context, question, tools)
            except MlxToolsError as error:
                if not isinstance(error, BackendError) and error.exit_code != 2:
                    raise
                if isinstance(error, StorageError):
                    runs.problem = error
                raise ToolError(f"the model could not be asked: {error}") from None
            runs.spent[number] = outcome.turns
        if isinstance(outcome, Answered):
            return expand_citations(outcome.answer, outcome.sources)
        if isinstance(outcome, Paused):
            runs.waiting = tuple(
                replace(one, call_id=f"{name}/{one.call_id}") for one in outcome.pending
            )
            raise ToolError(
                "a call in a run within waits for a person", code="requires_confirmation"
            )
        why = outcome.reason if isinstance(outcome, Stopped) else outcome.status
        raise ToolError(f"the run within ended without an answer: {why} ({outcome.session})")

    async def _outcome(
        self,
        call: CallRecord,
        number: int,
        name: str,
        context: ToolContext,
        question: str,
        tools: Sequence[str] | None,
    ) -> Outcome:
        """Return the outcome of the run ``number`` of a call.

        The ids of its calls begin with ``name``.
        """
        session = self._session
        spec = session.specs.get(call.name)
        # A pause within it would leave a call that has begun to change things and cannot continue.
        once = spec is None or spec.mutates(call.arguments)  # such a call is not made again
        approver = _OuterApprover(
            self._approver, self._person_waits, context, name, call.name, once
        )
        run = self._run(self._policy(tools), approver, f"{session.header.session}/{name}")
        begun = session.current.calls[call.call].nested.get(number)
        if begun is not None:
            own = {
                key.removeprefix(f"{name}/"): answer
                for key, answer in self.answers.items()
                if key.startswith(f"{name}/")
            }
            try:
                outcome = await self._resume_run(run, begun, question, own)
            except UsageError:
                if not own:
                    raise
                outcome = await self._resume_run(
                    run, begun, question, {}
                )  # the answers do not hold any more: ask again
            if outcome is not None:
                return outcome
        open_calls = session.current.open_calls
        taken = sum(sum(r.spent.values()) for key, r in self._calls.items() if key in open_calls)
        # ``iterations`` counts ended calls; the completions of open ones are not in it yet.
        left = session.limits.max_iterations - session.iterations - taken
        if left < 1:
            raise ToolError("no completions are left for a run within", code="iteration_limit")
        run = replace(run, limits=replace(session.limits, max_iterations=left))
        conversation = await self._controller.nested(run).conversation()
        try:
            record = NestedRecord(call=call.call, run=number, session=conversation.session)
            # Before its first question: after a crash this record is how the run is found again.
            self._writer.append(record)
            # A tool wrote all of it: a call in it is an echo, as in the tool's output.
            return await conversation.run(question, untyped_suffix_chars=len(question))
        finally:
            conversation.close()

    def _run(self, policy: Policy, approver: Approver, parent: str) -> NestedRun:
        """Return a run within a call, with the session's limits."""
        history = self._session.history
        context = RunContext(
            parent=parent,
            depth=self._context.depth + 1,
            consents=history.allowed_effects,
            unknown_ends=history.unknown_ends,
            reads=self._context.reads,
        )
        return NestedRun(
            policy=policy, limits=self._session.limits, approver=approver, context=context
        )

    def _policy(self, tools: Sequence[str] | None) -> Policy:
        """Return the session's own policy, narrowed to ``tools``.

        If private text that the session has read must not leave this machine, the policy is
        narrowed to this machine, too: the text may be in the question.
        """
        session, policy = self._session, self._session.policy
        if tools is not None:
            policy = policy.intersect(restriction(tuple(tools)))
        after_read = any(part.network_after_read != "allow" for part in policy.parts)
        if after_read and session.history.private_read:
            # The question may contain text of a private tool, which must not leave by a nested
            # call.
            policy = policy.intersect(restriction(local_only=True))
        return policy

    async def _resume_run(
        self, run: NestedRun, session: str, question: str, answers: Mapping[str, ApprovalAnswer]
    ) -> Outcome | None:
        """Resume a run that began before; return None if nothing was asked in it."""
        # The name comes from a transcript, which may be forged: it must not lead to another file.
        if os.sep in session:
            raise UsageError(f"{session!r} is no session")
        try:
            conversation = await self._controller.nested(run).reopen(session)
        except NoQuestion:
            return None
        try:
            if conversation.parent != run.context.parent:
                raise UsageError(f"the session {session} is not one of this call")
            return await conversation.resume_question(question, answers or None)
        finally:
            conversation.close()


def _run_name(call: str, number: int) -> str:
    """Return the name of a run within a call, with which the ids of its calls begin."""
    return f"{call}#{number}" if number else call


class _OuterApprover(Struct, frozen=True):
    """An approver that asks the outer run's approver.

    A call about which nobody decides waits, and the outer run with it. But if the outer call cannot
    be made again (``must_decide``) the call is refused.
    """

    approver: Approver
    person_waits: Callable[[], AbstractContextManager[None]]
    context: ToolContext
    prefix: str
    name: str
    must_decide: bool

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        shown = [
            replace(r, call=f"{self.prefix}/{r.call}", reason=f"within {self.name}: {r.reason}")
            for r in requests
        ]
        # A person takes any time: neither the tool's time limit nor the run's clock goes on.
        with self.context.person_waits(), self.person_waits():
            answers = await ask_approver(self.approver, shown)
        nobody = ApprovalAnswer(False, "nobody was there to approve it")
        return [nobody if self.must_decide and a.approved is None else a for a in answers]
