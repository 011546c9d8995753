"""Asks the person at a client in a form whether a call may run.

Two generations of the protocol do so in two ways. Up to 2025-11-25 the server asks in the middle of
a call, and the run waits. Since 2026-07-28 the call ends with the questions and is made again with
the answers; meanwhile the run is paused.
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

ANSWER_SECONDS: Final = 600.0
"""Seconds that a form waits for its person; after that nobody has decided.

A choice: ten minutes, so that a person who looks into a change first is not cut off.
"""

_REASON_CHARS: Final = 300
"""The most characters of a reason: the model reads it in every later prompt."""
_UNDECIDED: Final = ApprovalAnswer(None)

FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Run this call?", "default": False},
        "reason": {
            "type": "string",
            "title": "Why not?",
            "description": "The model reads it if the answer is no.",
            "maxLength": _REASON_CHARS,
        },
    },
    "required": ["approve"],
}
"""The fields of the form."""


_TYPED_FIELD: Final[dict[str, Any]] = {
    "type": "string",
    "title": "Not all of the change is shown",
    "description": "Type yes to approve it all the same.",
    "maxLength": 3,
}
"""A further field for a change that is too long to be shown whole."""


def build_form(request: ApprovalRequest) -> dict[str, Any]:
    """Return the fields of the form that asks about a call.

    If a change is not shown whole there is one more field, in which yes must be typed.
    """
    if not request.omitted:
        return FORM
    return FORM | {"properties": FORM["properties"] | {"typed": _TYPED_FIELD}}


class ApprovalText(Struct, frozen=True):
    """Functions that write texts for a person, escaped."""

    call: Callable[[ApprovalRequest], str]
    """Writes a call that waits for an approval, whole."""
    line: Callable[[str], str]
    """Writes any text on one line."""


FormTiming = Literal["now", "afterwards", "no"]
"""The moment for a form: in the middle of a call, at its end, or never."""


def find_form_timing(context: ServerRequestContext[Any, Any]) -> FormTiming:
    """Return when the client of a request can show a form."""
    capabilities = context.session.client_capabilities
    forms = capabilities.elicitation if capabilities is not None else None
    if forms is None or (forms.form is None and forms.url is not None):
        return "no"
    return "now" if context.session.can_send_request else "afterwards"


@dataclass
class ClientApprover:
    """Asks the person at the client of one request."""

    context: ServerRequestContext[Any, Any]
    wording: ApprovalText
    timing: FormTiming
    always: bool = False
    """The user has consented to all calls that such a consent may cover."""
    requests: dict[str, ApprovalRequest] = field(default_factory=dict)
    """The calls to ask about at the end, by their digests."""
    response: tuple[str, Any] | None = None
    """The key of a call, and a person's answer to it in an earlier request."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """Return one answer for each request.

        Once nobody decides about one of them, the others are not asked.
        """
        consent = ApproveAlways() if self.always else PauseApprover()
        answers = list(await consent.decide(requests))
        for place, request in enumerate(requests):
            if answers[place].approved is not None:
                continue
            if self.response is not None and call_key(request) == self.response[0]:
                answers[place] = read_answer(
                    self.response[1], request.digest, is_typed=bool(request.omitted)
                )
            elif self.timing == "afterwards":
                self.requests[request.digest] = request
            elif self.timing == "now":
                answers[place] = await self._ask(request)
                if answers[place].approved is None:
                    break
        return answers

    def form(self, request: ApprovalRequest) -> ElicitRequest:
        """Return the form that asks about a call."""
        message = self.wording.call(request)
        params = ElicitRequestFormParams(message=message, requested_schema=build_form(request))
        return ElicitRequest(params=params)

    async def _ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        session, number = self.context.session, self.context.request_id
        with anyio.move_on_after(ANSWER_SECONDS):
            try:
                response = await session.elicit_form(
                    self.wording.call(request), build_form(request), related_request_id=number
                )
            except (MCPError, ValueError):  # the client refuses, or its answer has another form
                return _UNDECIDED
            return read_answer(response, request.digest, is_typed=bool(request.omitted))
        return _UNDECIDED


def call_key(request: ApprovalRequest) -> str:
    """Return a digest of all that is shown of a call, and that it would act on."""
    shown = [request.name, dict(request.arguments), request.preview, request.state]
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def read_answer(response: Any, digest: str, *, is_typed: bool = False) -> ApprovalAnswer:
    """Return a person's answer in a form about the call with this digest.

    A response that is neither a clear yes nor a clear no decides nothing. With ``is_typed`` a clear
    yes must be typed, too.
    """
    if not isinstance(response, ElicitResult) or response.action == "cancel":
        return _UNDECIDED
    fields: Mapping[str, Any] = response.content or {}
    approved = False if response.action == "decline" else fields.get("approve")
    if not isinstance(approved, bool):
        return _UNDECIDED
    if approved and is_typed and str(fields.get("typed")).strip().lower() != "yes":
        return _UNDECIDED
    reason_field = fields.get("reason")
    reason = (
        "".join(c if c.isprintable() else " " for c in reason_field)
        if isinstance(reason_field, str)
        else ""
    )
    default = "approved at the client" if approved else "the user said no"
    return ApprovalAnswer(approved, reason[:_REASON_CHARS].strip() or default, digest=digest)
