"""Tools that themselves ask the model, with tools: runs within a run.

A nested run has no rights but its caller's, shares the caller's budget of completions, may go down
`MAX_DEPTH` levels, and asks whoever the outer run asks. Its transcript is a session of its own that
names its parent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

import anyio

from mlx_tools.approval import ApprovalAnswer, ApprovalRequest, Approver
from mlx_tools.errors import BackendError, UsageError
from mlx_tools.messages import CallRecord
from mlx_tools.outcome import Answered, Outcome, Stopped
from mlx_tools.policy import Limits, Policy
from mlx_tools.session import Session
from mlx_tools.tools import ToolContext, ToolError

MAX_DEPTH: Final = 2
"""How many runs may stand within one another below the outermost."""

Run = Callable[[str, Policy, Limits, Approver, str], Awaitable[Outcome]]
"""Runs a question under a policy, limits and an approver; the text names the parent."""


class NestedRuns:
    """The runs that tools of one session start. ``depth`` is that of the session itself."""

    def __init__(self, session: Session, run: Run, approver: Approver, depth: int) -> None:
        self._session = session
        self._run = run
        self._approver = approver
        self._depth = depth
        self._one = anyio.Lock()
        self._spent: dict[str, int] = {}

    def spent(self, call: str) -> int:
        """How many completions the runs of this call have taken."""
        return self._spent.get(call, 0)

    async def ask(
        self, call: CallRecord, context: ToolContext, question: str, tools: Sequence[str] | None
    ) -> str:
        """The model's answer. Raises `ToolError` where there is none, says why, and what to do."""
        if self._depth >= MAX_DEPTH:
            raise ToolError(f"runs may stand within one another {MAX_DEPTH} levels deep, no more")
        async with self._one:  # one budget: what one run takes, the next does not have
            session = self._session
            open_calls = session.current.open_calls
            taken = sum(count for key, count in self._spent.items() if key in open_calls)
            left = session.limits.max_iterations - session.iterations - taken
            if left < 1:
                raise ToolError("no completions are left for a run within", code="iteration_limit")
            policy = session.policy
            if tools is not None:
                policy = policy.narrowed_by(Policy(allow=tuple(tools), redact=False))
            limits = replace(session.limits, max_iterations=left)
            surfaced = _Surfaced(self._approver, call, context)
            parent = f"{session.header.session}/{call.call}"
            try:
                outcome = await self._run(question, policy, limits, surfaced, parent)
            except (BackendError, UsageError) as error:
                raise ToolError(f"the model could not be asked: {error}") from None
            self._spent[call.call] = self.spent(call.call) + outcome.turns
        if isinstance(outcome, Answered):
            return outcome.answer
        why = outcome.reason if isinstance(outcome, Stopped) else outcome.status
        raise ToolError(f"the run within ended without an answer: {why} ({outcome.session})")


class _Surfaced:
    """Asks whoever the outer run asks. A call about which nobody decides is refused: the tool that
    waits for its run cannot be paused."""

    def __init__(self, approver: Approver, call: CallRecord, context: ToolContext) -> None:
        self._approver = approver
        self._call = call
        self._context = context

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        within = f"within {self._call.name}"
        shown = [
            replace(r, call=f"{self._call.call}/{r.call}", reason=f"{within}: {r.reason}")
            for r in requests
        ]
        with self._context.person_waits():
            answers = await self._approver.decide(shown)
        nobody = ApprovalAnswer(False, "nobody was there to approve it")
        return [nobody if answer.approved is None else answer for answer in answers]
