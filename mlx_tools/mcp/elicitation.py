"""Asks the person at a client whether a call may run: a form, which the client shows.

Two generations of the protocol do so in two ways. Up to 2025-11-25 the server asks in the middle of
a call, and the run waits. Since 2026-07-28 the call ends with what is to be asked, and is made
again with the answers: meanwhile the run is paused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import anyio
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult
from msgspec import Struct

from mlx_tools.controller import ApprovalAnswer, ApprovalRequest, ApproveAlways, PauseApprover

PATIENCE: Final = 600.0
"""Seconds that a form waits for its person; then nobody has decided."""

_REASON_CHARS: Final = 300
_NOBODY: Final = ApprovalAnswer(None)

FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Run this call?", "default": False},
        "reason": {
            "type": "string",
            "title": "Why not?",
            "description": "The model is told, where the answer is no.",
            "maxLength": _REASON_CHARS,
        },
    },
    "required": ["approve"],
}


_TYPED: Final[dict[str, Any]] = {
    "type": "string",
    "title": "Not all of the change is shown",
    "description": "Type yes to approve it all the same.",
    "maxLength": 3,
}


def form_of(request: ApprovalRequest) -> dict[str, Any]:
    """The fields of the form that asks about a call: of a change that is not shown whole, one more
    in which yes must be typed out."""
    if not request.omitted:
        return FORM
    return FORM | {"properties": FORM["properties"] | {"typed": _TYPED}}


class ApprovalText(Struct, frozen=True):
    """How things are put before a person, escaped: a call that waits for an approval, whole, and
    any text, on one line."""

    call: Callable[[ApprovalRequest], str]
    line: Callable[[str], str]


Way = Literal["now", "afterwards", "no"]
"""Whether a form can be shown in the middle of a call, at its end, or not at all."""


def way_of(context: ServerRequestContext[Any, Any]) -> Way:
    """How the client of a request can show forms."""
    can = context.session.client_capabilities
    forms = can.elicitation if can is not None else None
    if forms is None or (forms.form is None and forms.url is not None):
        return "no"
    return "now" if context.session.can_send_request else "afterwards"


@dataclass
class ClientApprover:
    """Asks the person at the client of one request. ``always``: the user has consented to all that
    a standing consent may cover. ``requests`` are the calls that are to be asked about afterwards,
    by their digests. ``response`` is what was said, in an earlier request, of the call with this
    key.
    """

    context: ServerRequestContext[Any, Any]
    wording: ApprovalText
    way: Way
    always: bool = False
    requests: dict[str, ApprovalRequest] = field(default_factory=dict)
    response: tuple[str, Any] | None = None

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """One answer a request; once nobody decides about one, nobody does about the others."""
        consent = ApproveAlways() if self.always else PauseApprover()
        answers = list(await consent.decide(requests))
        for place, request in enumerate(requests):
            if answers[place].approved is not None:
                continue
            if self.response is not None and key_of(request) == self.response[0]:
                answers[place] = answer_of(
                    self.response[1], request.digest, is_typed=bool(request.omitted)
                )
            elif self.way == "afterwards":
                self.requests[request.digest] = request
            elif self.way == "now":
                answers[place] = await self._ask(request)
                if answers[place].approved is None:
                    break
        return answers

    def form(self, request: ApprovalRequest) -> ElicitRequest:
        """The form that asks about a call."""
        message = self.wording.call(request)
        params = ElicitRequestFormParams(message=message, requested_schema=form_of(request))
        return ElicitRequest(params=params)

    async def _ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        session, number = self.context.session, self.context.request_id
        with anyio.move_on_after(PATIENCE):
            try:
                found = await session.elicit_form(
                    self.wording.call(request), form_of(request), related_request_id=number
                )
            except (MCPError, ValueError):  # it refuses, or what it says is no answer
                return _NOBODY
            return answer_of(found, request.digest, is_typed=bool(request.omitted))
        return _NOBODY


def key_of(request: ApprovalRequest) -> str:
    """What stands for all that is shown of a call without a model, and that it would act on."""
    shown = [request.name, dict(request.arguments), request.preview, request.state]
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def answer_of(response: Any, digest: str, *, is_typed: bool = False) -> ApprovalAnswer:
    """What a person has said in a form about the call of this digest. What is neither a clear yes
    nor a clear no decides nothing; ``is_typed``: a clear yes is typed out, too."""
    if not isinstance(response, ElicitResult) or response.action == "cancel":
        return _NOBODY
    said: Mapping[str, Any] = response.content or {}
    approved = False if response.action == "decline" else said.get("approve")
    if not isinstance(approved, bool):
        return _NOBODY
    if approved and is_typed and str(said.get("typed")).strip().lower() != "yes":
        return _NOBODY
    given = said.get("reason")
    reason = "".join(c if c.isprintable() else " " for c in given) if isinstance(given, str) else ""
    usual = "approved at the client" if approved else "the user said no"
    return ApprovalAnswer(approved, reason[:_REASON_CHARS].strip() or usual, digest=digest)
