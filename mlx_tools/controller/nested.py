"""Tools that themselves ask the model, with tools: runs within a run.

A nested run has no rights but its caller's, shares the caller's budget of completions and what a
person allowed for the rest of the session, may go down `MAX_DEPTH` levels, and asks whoever the
outer run asks. Its transcript is a session of its own that
names its parent; the parent's transcript names it before it begins. So a call that only reads can
be made again after a pause or a crash: each run within it is gone on with where it was, and nothing
in it happens twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol

import anyio

from mlx_tools.controller.approvals import NoQuestion
from mlx_tools.controller.approver import ApprovalAnswer, ApprovalRequest, Approvals, Approver
from mlx_tools.controller.session import Session
from mlx_tools.errors import BackendError, MlxToolsError, StorageError, UsageError
from mlx_tools.policy import Limits, Policy, restriction
from mlx_tools.tools import ToolContext, ToolError
from mlx_tools.transcript.history import Consents
from mlx_tools.transcript.outcome import Answered, Outcome, Paused, Stopped
from mlx_tools.transcript.records import CallRecord, NestedRecord, PendingCall, Record
from mlx_tools.transcript.sources import spelled_out

MAX_DEPTH: Final = 2
"""How many runs may stand within one another below the outermost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A run within a call: what it asks, and under what. ``consents`` are those of the session that
    makes the call; ``parent`` names session and call."""

    question: str
    policy: Policy
    limits: Limits
    approver: Approver
    consents: Consents
    parent: str


Holding = Callable[[], AbstractContextManager[None]]
"""Entered while a person is asked: the time of the outer run stands still."""


class Conversing(Protocol):
    """A session of a run within: `mlx_tools.controller.conversation.Conversation`."""

    @property
    def session(self) -> str: ...
    @property
    def parent(self) -> str: ...
    async def run(self, question: str, /) -> Outcome: ...
    async def go_on(self, question: str, approvals: Approvals, /) -> Outcome: ...
    def close(self) -> None: ...


class Runs(Protocol):
    """What runs within are made by: `mlx_tools.controller.controller.Controller`."""

    async def conversation(self) -> Conversing: ...
    def reopen(self, session: str, /) -> Conversing: ...


class NestedRuns:
    """The runs that tools of one session start. ``depth`` is that of the session itself, ``make``
    gives what a run is made by, ``append`` writes a record of the session down, ``clean`` takes
    secrets out of a text, and ``holding`` is entered while a person is asked."""

    def __init__(
        self,
        session: Session,
        approver: Approver,
        depth: int,
        *,
        make: Callable[[Within], Runs],
        append: Callable[[Record], None],
        clean: Callable[[str], str],
        holding: Holding,
    ) -> None:
        self._session = session
        self._approver = approver
        self._depth = depth
        self._make = make
        self._append = append
        self._clean = clean
        self._holding = holding
        self._one = anyio.Lock()
        self._runs: dict[str, int] = {}
        self._contexts: dict[str, ToolContext] = {}
        self._spent: dict[tuple[str, int], int] = {}
        self._paused: dict[str, tuple[PendingCall, ...]] = {}
        self._answers: dict[str, ApprovalAnswer] = {}
        self._problems: dict[str, StorageError] = {}

    def begin(self, call: str) -> None:
        """The call is made, perhaps once more."""
        self._contexts.pop(call, None)
        self._paused.pop(call, None)
        self._problems.pop(call, None)

    def decided(self, answers: Mapping[str, ApprovalAnswer]) -> None:
        """Takes what was decided of calls that wait in runs within."""
        self._answers = dict(answers)

    def spent(self, call: str) -> int:
        """How many completions the runs of this call have taken."""
        return sum(count for (key, _), count in self._spent.items() if key == call)

    def problem(self, call: str) -> StorageError | None:
        """What could not be written down of a run within this call."""
        return self._problems.get(call)

    def waits(self, call: str) -> bool:
        """Whether a run within this call waits for a person."""
        return call in self._paused

    def waiting(self) -> tuple[PendingCall, ...]:
        """The calls that wait in runs within open calls."""
        open_calls = self._session.current.open_calls
        return tuple(
            one for key, calls in self._paused.items() if key in open_calls for one in calls
        )

    async def ask(
        self,
        call: CallRecord,
        context: ToolContext,
        question: str,
        tools: Sequence[str] | None,
    ) -> str:
        """The model's answer. Raises `ToolError` where there is none, and says why."""
        question = self._clean(question)  # it may hold what the tool has read
        if self._depth >= MAX_DEPTH:
            raise ToolError(f"runs may stand within one another {MAX_DEPTH} levels deep, no more")
        if self._contexts.get(call.call) is not context:  # it is tried once more
            self._contexts[call.call], self._runs[call.call] = context, 0
        number = self._runs[call.call]
        self._runs[call.call] = number + 1
        async with self._one:  # one budget: what one run takes, the next does not have
            try:
                outcome = await self._outcome(call, number, context, question, tools)
            except MlxToolsError as error:
                if not isinstance(error, BackendError) and error.exit_code != 2:
                    raise
                if isinstance(error, StorageError):
                    self._problems[call.call] = error
                raise ToolError(f"the model could not be asked: {error}") from None
            self._spent[call.call, number] = outcome.turns
        if isinstance(outcome, Answered):
            return spelled_out(outcome.answer, outcome.sources)
        if isinstance(outcome, Paused):
            name = _prefix(call.call, number)
            self._paused[call.call] = tuple(
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
        context: ToolContext,
        question: str,
        tools: Sequence[str] | None,
    ) -> Outcome:
        session, prefix = self._session, _prefix(call.call, number)
        policy = session.policy
        if tools is not None:
            policy = policy.narrowed_by(restriction(tuple(tools)))
        after = any(part.network_after_read != "allow" for part in policy.parts)
        if after and session.past.private_read:  # what this session has read may be in the question
            policy = policy.narrowed_by(restriction(local_only=True))
        spec = session.specs.get(call.name)
        once = spec is None or spec.mutates(call.arguments)  # such a call is not made again
        run = Within(
            question=question,
            policy=policy,
            limits=session.limits,
            approver=_Surfaced(
                self._approver, prefix, call.name, (context, self._holding), once=once
            ),
            consents=session.past.consented,
            parent=f"{session.header.session}/{prefix}",
        )
        begun = session.current.nested(call.call, number)
        if begun is not None:
            said = {
                key.removeprefix(f"{prefix}/"): answer
                for key, answer in self._answers.items()
                if key.startswith(f"{prefix}/")
            }
            try:
                outcome = await self._go_on(run, begun, said)
            except UsageError:
                if not said:
                    raise
                outcome = await self._go_on(run, begun, {})  # what was said does not hold: ask anew
            if outcome is not None:
                return outcome
        open_calls = session.current.open_calls
        taken = sum(count for (key, _), count in self._spent.items() if key in open_calls)
        left = session.limits.max_iterations - session.iterations - taken
        if left < 1:
            raise ToolError("no completions are left for a run within", code="iteration_limit")
        run = replace(run, limits=replace(session.limits, max_iterations=left))
        conversation = await self._make(run).conversation()
        try:
            name = conversation.session
            self._append(NestedRecord(call=call.call, run=number, session=name))
            return await conversation.run(run.question)
        finally:
            conversation.close()

    async def _go_on(
        self, run: Within, session: str, said: Mapping[str, ApprovalAnswer]
    ) -> Outcome | None:
        """The outcome of a run that was begun before; None where nothing was asked in it yet."""
        if os.sep in session:
            raise UsageError(f"{session!r} is no session")
        try:
            conversation = self._make(run).reopen(session)
        except NoQuestion:
            return None
        try:
            if conversation.parent != run.parent:
                raise UsageError(f"the session {session} is not one of this call")
            return await conversation.go_on(run.question, said or None)
        finally:
            conversation.close()


def _prefix(call: str, number: int) -> str:
    """What stands before the ids of calls in a run within a call."""
    return f"{call}#{number}" if number else call


class _Surfaced:
    """Asks whoever the outer run asks. A call about which nobody decides waits, and the outer run
    with it; but where the outer call cannot be made again (``once``) it is refused."""

    def __init__(
        self,
        approver: Approver,
        prefix: str,
        name: str,
        clocks: tuple[ToolContext, Holding],
        *,
        once: bool,
    ) -> None:
        self._approver = approver
        self._prefix = prefix
        self._name = name
        self._context, self._holding = clocks
        self._once = once

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        shown = [
            replace(r, call=f"{self._prefix}/{r.call}", reason=f"within {self._name}: {r.reason}")
            for r in requests
        ]
        with self._context.person_waits(), self._holding():
            answers = await self._approver.decide(shown)
        nobody = ApprovalAnswer(False, "nobody was there to approve it")
        return [nobody if self._once and a.approved is None else a for a in answers]
