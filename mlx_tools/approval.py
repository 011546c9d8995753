"""The seam to a person: who decides about calls that policy asks about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that somebody must decide about, as it would run.

    ``suspect`` is true where the call was repaired, coerced, echoed or stood beside other text: no
    standing consent covers it.
    """

    call: str
    name: str
    arguments: Mapping[str, Any]
    reason: str
    suspect: bool
    digest: str


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """What was decided. ``approved`` is None where nobody decided: the run then pauses."""

    approved: bool | None
    reason: str = ""


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
