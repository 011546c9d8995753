"""The seam to a person: who decides about calls that policy asks about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mlx_tools.errors import wrong_argument

_APPROVALS: Final = 'write {"c1": True}, with True, False or an ApprovalAnswer for each call'


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that somebody must decide about, as it would run.

    ``suspect`` is true where the call was repaired, coerced, echoed or stood beside other text: no
    standing consent covers it. ``preview`` is what the call would change, as the tool tells it (a
    unified diff), empty where it tells nothing. ``expires_at`` is until when an approval can be
    given (ISO 8601, UTC). ``in_doubt``: the call was started before, and nobody knows how it ended.
    """

    call: str
    name: str
    arguments: Mapping[str, Any]
    reason: str
    suspect: bool
    digest: str
    preview: str = ""
    expires_at: str = ""
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """What was decided. ``approved`` is None where nobody decided: the run then pauses.

    ``arguments`` are those that the call is to have instead: they are validated and decided about
    anew, and exactly that call is approved. ``for_session``: calls of the same tool with no more
    effects need no further approval in this session; a suspect one still does. ``digest`` is that
    of the call as whoever answers saw it, where it is not asked in place; empty for what was shown
    last.
    """

    approved: bool | None
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    for_session: bool = False
    digest: str = ""


Approvals = Mapping[str, "bool | ApprovalAnswer"] | bool | None
"""What was decided of calls that wait, by their ids; True or False is said of all of them."""


def answers_of(approvals: Approvals, waiting: Sequence[str]) -> dict[str, ApprovalAnswer]:
    """An answer for each call that ``approvals`` speaks of; ``waiting`` are all of them. Raises
    `UsageError` for what is no approval."""
    if approvals is None:
        return {}
    if isinstance(approvals, bool):
        return {call: ApprovalAnswer(approvals) for call in waiting}
    if not isinstance(approvals, Mapping):
        raise wrong_argument("approvals", approvals, _APPROVALS)
    answers = {}
    for call, said in approvals.items():
        answer = ApprovalAnswer(said) if isinstance(said, bool) else said
        if not isinstance(call, str) or not isinstance(answer, ApprovalAnswer):
            raise wrong_argument("approvals", approvals, _APPROVALS)
        answers[call] = answer
    return answers


class Approver(Protocol):
    """Somebody, or something, that decides about calls."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """One answer a request, in order."""
        ...


class NobodyThere:
    """Decides nothing: every run that must ask pauses."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [ApprovalAnswer(None) for _ in requests]


_ALWAYS: Final = ApprovalAnswer(True, "always approved")


class AlwaysApprove:
    """Approves every call but a suspect one, about which nothing is decided."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [_ALWAYS if not r.suspect else ApprovalAnswer(None) for r in requests]
