"""The interface to a person: requests about calls, and answers."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, cast, runtime_checkable

import anyio
from msgspec import Struct, field

from mlx_tools.errors import (
    MlxToolsError,
    UsageError,
    describe_error,
    for_message,
    read_attribute,
    require_instance,
    wrong_argument,
)
from mlx_tools.messages import Effects
from mlx_tools.packages import must_pass
from mlx_tools.policy import ApprovalTemplate, CallContext, Decision, decide_by_template
from mlx_tools.store import RootName
from mlx_tools.tools import Preview, ToolLike
from mlx_tools.transcript import CallRecord

_APPROVALS: Final = 'write {"c1": True}, with True, False or an ApprovalAnswer for each call'


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A call that somebody must decide about, as it would run."""

    call: str
    name: str
    arguments: Mapping[str, Any]
    reason: str
    suspect: bool
    """True if the call was repaired, coerced, echoed or next to other text; no consent covers
    it."""
    digest: str
    preview: str = ""
    """The change that the call would make, as the tool describes it (a unified diff), or empty."""
    counts: str = ""
    """As in `Preview`."""
    omitted: str = ""
    """As in `Preview`."""
    expires_at: str = ""
    """The time until which an approval can be given (ISO 8601, UTC)."""
    in_doubt: bool = False
    """True if it, or the same call before it, was started and nobody knows how it ended."""
    state: str = ""
    """The identity of what the call would act on, such as a file's content. The approval binds to
    it."""
    effects: Effects = frozenset()
    """The effects of the call with these arguments."""
    consent_binding: Mapping[str, Any] | None = field(default_factory=dict)
    """The arguments that a consent for the session binds to, empty if it covers the whole tool;
    None if no consent covers the call."""
    is_changed: bool = False
    """True if the call was approved, and has changed since."""
    preview_edit: Callable[[Mapping[str, Any]], Awaitable[ApprovalRequest]] | None = None
    """Returns the request with other arguments, with a digest that an answer can carry. It raises
    `UsageError` if the call cannot have them."""


class ApprovalAnswer(Struct, frozen=True):
    """A decision about a call.

    It covers this call alone if the call is suspect, or if its change was not shown completely.
    """

    approved: bool | None
    """The decision, None if nobody decided: the run then pauses."""
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    """Other arguments for the call. They are validated and decided about again, and exactly that
    call is approved."""
    for_session: bool = False
    """True if calls of the same tool, with no more effects and the same value of its
    ``consent_argument``, need no further approval in this session. A suspect call still does."""
    digest: str = ""
    """The digest of the call as the person saw it. It is needed if the answer comes later, or if
    the call was seen with other arguments (`ApprovalRequest.preview_edit`). Empty: the call as last
    shown."""

    def __post_init__(self) -> None:
        for name, (kind, hint) in _ANSWER_FIELDS.items():
            require_instance(name, getattr(self, name), kind, hint)


_ANSWER_FIELDS: Final[Mapping[str, tuple[Any, str]]] = {
    "approved": (bool | None, "True, False, or None if nobody decided"),
    "reason": (str, "give a text"),
    "arguments": (Mapping | None, "give the arguments of the call, or None to leave them"),
    "for_session": (bool, "True or False"),
    "digest": (str, "give the digest of the call that was shown"),
}
"""Types are checked: a text such as ``"no"`` would count as a yes."""

Approvals = Mapping[str, "bool | ApprovalAnswer"] | bool | None
"""The decisions on calls that wait, by their ids; True or False decides all of them."""


def collect_answers(approvals: Approvals, waiting: Sequence[str]) -> dict[str, ApprovalAnswer]:
    """Return an answer for each call that ``approvals`` decides.

    Args:
        approvals: the decisions.
        waiting: all calls that wait.

    Raises:
        UsageError: ``approvals`` is not valid.
    """
    if approvals is None:
        return {}
    if isinstance(approvals, bool):
        return {call: ApprovalAnswer(approvals) for call in waiting}
    if not isinstance(approvals, Mapping):
        raise wrong_argument("approvals", approvals, _APPROVALS)
    answers = {}
    for call, given in approvals.items():
        answer = ApprovalAnswer(given) if isinstance(given, bool) else given
        if not isinstance(call, str) or not isinstance(answer, ApprovalAnswer):
            raise wrong_argument("approvals", approvals, _APPROVALS)
        answers[call] = answer
    return answers


class Approver(Protocol):
    """Somebody, or something, that decides about calls."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """Return an answer for each request, in order."""
        ...


@runtime_checkable
class StepApprover(Protocol):
    """An approver that can let a run take more steps than its limit."""

    async def more_steps(self, steps_taken: int) -> int:
        """Return how many completions the question may take in addition.

        Args:
            steps_taken: completions of this question so far.

        Returns:
            0 if the model is to answer now.
        """
        ...


class Templates(Protocol):
    """A person's approval templates: `mlx_tools.store.TemplateFile`."""

    def find(self, call: CallContext) -> ApprovalTemplate | None:
        """Return the template that covers a call."""
        ...


def find_template_decision(
    templates: Templates,
    call: CallRecord,
    tool: ToolLike,
    preview: Preview,
    *,
    roots: Sequence[str],
    nested: bool,
    now: datetime,
) -> Decision | None:
    """Return the decision of a template that covers a call as it would run now.

    No template covers a call that was repaired, mended, copied or edited, or that can only fail.
    """
    # A template was written beforehand, so it covers only a call that the model wrote cleanly
    # itself.
    if call.runs != "freely" or call.echoed or preview.fails:
        return None
    pinned = getattr(tool, "pinned", None)
    called = CallContext(
        spec=tool.spec,
        pinned=pinned if isinstance(pinned, str) else None,
        arguments=call.arguments,
        paths=preview.paths,
        roots=[RootName.parse(root).path for root in roots],
        nested=nested,
        now=now,
    )
    if (found := templates.find(called)) is None:
        return None
    return decide_by_template(found, tool.spec, tool.spec.get_effects(call.arguments))


class PauseApprover:
    """Decides nothing: every run that must ask pauses."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [ApprovalAnswer(None) for _ in requests]


class ApproveAlways:
    """Approves every call except suspect ones, about which it decides nothing."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        # A suspect call may be a text from a tool's output, which nobody has seen who could say
        # yes.
        yes, nobody = ApprovalAnswer(True, "always approved"), ApprovalAnswer(None)
        return [nobody if request.suspect else yes for request in requests]


DecideFunction = Callable[
    [ApprovalRequest],
    "bool | ApprovalAnswer | Awaitable[bool | ApprovalAnswer | None] | None",
]
"""Decides about one call: True, False, None if nobody decided, or an `ApprovalAnswer`."""


class FunctionApprover:
    """Asks a function about each call, one after the other.

    A plain ``def`` runs in a thread.
    """

    def __init__(self, function: DecideFunction) -> None:
        self._function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        """The function's name, for errors."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [await self._decide(request) for request in requests]

    async def _decide(self, request: ApprovalRequest) -> ApprovalAnswer:
        if inspect.iscoroutinefunction(self._function):
            answer = await self._function(request)
        else:
            answer = await anyio.to_thread.run_sync(self._function, request, abandon_on_cancel=True)
            answer = await answer if inspect.isawaitable(answer) else answer
        if isinstance(answer, ApprovalAnswer):
            return answer
        if answer is None or isinstance(answer, bool):
            return ApprovalAnswer(answer)
        raise UsageError(
            f"the approver {self.name} answered {for_message(answer)}",
            hint="return True, False, None to pause, or an ApprovalAnswer",
        )


def as_approver(approver: Approver | DecideFunction | None) -> Approver:
    """Return the approver, or one that asks the function; None: nobody is there.

    Raises:
        UsageError: it is neither.
    """
    if approver is None:
        return PauseApprover()
    if not isinstance(approver, type):
        if callable(read_attribute(approver, "decide")):
            return cast("Approver", approver)
        if callable(approver):
            return FunctionApprover(approver)
    hint = "give an Approver, or a function that takes an ApprovalRequest and returns True or False"
    raise wrong_argument("approver", approver, hint)


async def ask_approver(
    approver: Approver, requests: Sequence[ApprovalRequest]
) -> Sequence[ApprovalAnswer]:
    """Return the approver's answers, one for each request.

    Raises:
        UsageError: it failed, or did not give one `ApprovalAnswer` a request.
    """
    function = approver if isinstance(approver, FunctionApprover) else None
    name = f"the approver {type(approver).__name__ if function is None else function.name}"
    try:
        answers: Any = approver.decide(requests)
        if inspect.isawaitable(answers):
            answers = await answers
        elif inspect.isasyncgen(answers):
            answers = [answer async for answer in answers]
        answers = list(answers)
    except MlxToolsError:
        raise
    except BaseException as error:
        if must_pass(error, awaited=True):
            raise
        said = f"{name} failed: {describe_error(error)}"
        hint = "its traceback is this error's cause"
        raise UsageError(said, hint=hint if function else f"{hint}; {_DECIDE}") from error
    right = len(answers) == len(requests)
    if not right or not all(isinstance(answer, ApprovalAnswer) for answer in answers):
        raise UsageError(f"{name} answered {for_message(answers)}", hint=_DECIDE)
    return cast("Sequence[ApprovalAnswer]", answers)


_DECIDE: Final = (
    "write async def decide(self, requests), which returns a list: one ApprovalAnswer a request"
)


async def confirm_action(
    approver: Approver, call: str, action: str, details: Mapping[str, Any], reason: str
) -> Mapping[str, Any] | None:
    """Ask a person on behalf of a call that runs (`ToolContext.confirm`)."""

    async def build_request(details: Mapping[str, Any]) -> ApprovalRequest:
        text = json.dumps([action, dict(details)], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return ApprovalRequest(
            call=call,
            name=action,
            arguments=details,
            reason=reason,
            suspect=True,
            digest=digest,
            preview_edit=build_request,
        )

    (answer,) = await ask_approver(approver, [await build_request(details)])
    if not answer.approved:
        return None
    return details if answer.arguments is None else answer.arguments


class ApprovalOutdated(Exception):
    """A call is no longer what was approved."""
