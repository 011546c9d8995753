"""The seam to a person: who decides about calls that policy asks about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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
    effects need no further approval in this session; a suspect one still does.
    """

    approved: bool | None
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    for_session: bool = False


class Approver(Protocol):
    """Somebody, or something, that decides about calls."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """One answer a request, in order."""
        ...


class NobodyThere:
    """Decides nothing: every run that must ask pauses."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [ApprovalAnswer(None) for _ in requests]


class AlwaysApprove:
    """Approves every call but a suspect one, about which nothing is decided."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [ApprovalAnswer(None if r.suspect else True) for r in requests]
