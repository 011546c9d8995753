"""Asks a person about calls, and holds every approval to exactly what was shown.

What is asked is written down before it is shown, so a run that is killed while it waits is a paused
one. An approval binds, by a keyed digest, to the tool as it is, the arguments, the policy in force,
the session, an expiry and what the call would act on; right before the call starts all of that is
looked at again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast, runtime_checkable

import anyio
from msgspec import Struct, field

from mlx_tools.controller.turn import decision_on, decision_record, refusal_by
from mlx_tools.errors import (
    MlxToolsError,
    TranscriptError,
    UsageError,
    attribute_of,
    for_message,
    require_instance,
    wrong_argument,
)
from mlx_tools.messages import Effects, ToolCall, ToolSpec, json_bytes, replace
from mlx_tools.policy import (
    ApprovalTemplate,
    CallContext,
    Decision,
    Policy,
    can_be_preapproved,
    decide_by_template,
    same,
    seal,
)
from mlx_tools.protocol import Reading, judge
from mlx_tools.store import RootName, to_json
from mlx_tools.tools import Preview, ToolLike, preview_of
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    DecisionRecord,
    EditRecord,
    Header,
    PauseRecord,
    PendingCall,
    Record,
    State,
    UserRecord,
)

if TYPE_CHECKING:
    from mlx_tools.controller.driver import Conversation

APPROVAL_HOLDS: Final = timedelta(days=7)
_SLACK: Final = timedelta(minutes=5)
"""How far a clock may have been set back before it is no longer believed."""
_EDITS: Final = 3
"""How often an approver may answer with arguments that cannot be, before it is asked no more."""
CHANGED: Final = "changed"
"""The rule of a decision that asks again about a call that is no longer what was approved."""
_APPROVALS: Final = 'write {"c1": True}, with True, False or an ApprovalAnswer for each call'


# --- the seam to a person -------------------------------------------------------------------------


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A call that somebody must decide about, as it would run.

    ``suspect`` is true where the call was repaired, coerced, echoed or stood beside other text: no
    standing consent covers it. ``preview`` is what the call would change, as the tool tells it (a
    unified diff), empty where it tells nothing; ``counts`` and ``omitted`` are those of `Preview`.
    ``expires_at`` is until when an approval can be given (ISO 8601, UTC). ``in_doubt``: it, or the
    same call before it, was started, and nobody knows how that ended. ``state`` identifies what the
    call would act on, such as the present content of a file; the approval binds to it. ``effects``
    are those that it has with these arguments. ``consent_binding`` are the arguments that a consent
    for the session is bound to, none if it covers the whole tool; None: no consent covers the call.
    ``changed``: somebody approved it, and it is no
    longer what was approved. ``edited``, where there is one, gives the request as it would be with
    other arguments, whose digest an answer can carry; it raises `UsageError` where the call cannot
    have them.
    """

    call: str
    name: str
    arguments: Mapping[str, Any]
    reason: str
    suspect: bool
    digest: str
    preview: str = ""
    counts: str = ""
    omitted: str = ""
    expires_at: str = ""
    in_doubt: bool = False
    state: str = ""
    effects: Effects = frozenset()
    consent_binding: Mapping[str, Any] | None = field(default_factory=dict)
    changed: bool = False
    edited: Callable[[Mapping[str, Any]], Awaitable[ApprovalRequest]] | None = None


class ApprovalAnswer(Struct, frozen=True):
    """A decision about a call. ``approved`` is None where nobody decided: the run then pauses.

    ``arguments`` are those that the call is to have instead: they are validated and decided about
    anew, and exactly that call is approved. ``for_session``: calls of the same tool with no more
    effects, and the same value of its ``consent_argument`` if it declares one, need no further
    approval in this session; a suspect one still does. Of a suspect call, or a change that was not
    shown whole, it approves this call alone. ``digest`` is that of the call as whoever answers saw
    it, where it was not asked in place or was seen with other arguments (`ApprovalRequest.edited`);
    empty for what was shown last.
    """

    approved: bool | None
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    for_session: bool = False
    digest: str = ""

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
    for call, given in approvals.items():
        answer = ApprovalAnswer(given) if isinstance(given, bool) else given
        if not isinstance(call, str) or not isinstance(answer, ApprovalAnswer):
            raise wrong_argument("approvals", approvals, _APPROVALS)
        answers[call] = answer
    return answers


class Approver(Protocol):
    """Somebody, or something, that decides about calls."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        """One answer a request, in order."""
        ...


@runtime_checkable
class StepApprover(Protocol):
    """An approver that can also be asked whether a run may take more steps than its limit."""

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

    def covering(self, call: CallContext) -> ApprovalTemplate | None:
        """The template that covers a call."""
        ...


def by_template(
    templates: Templates,
    call: CallRecord,
    tool: ToolLike,
    preview: Preview,
    *,
    roots: Sequence[str],
    nested: bool,
    now: datetime,
) -> Decision | None:
    """The decision of a template that covers a call as it would run now. None covers one that was
    repaired, mended, copied or edited, or that can only fail."""
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
        at=now,
    )
    if (found := templates.covering(called)) is None:
        return None
    return decide_by_template(found, tool.spec, tool.spec.effects_of(call.arguments))


class PauseApprover:
    """Decides nothing: every run that must ask pauses."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [ApprovalAnswer(None) for _ in requests]


class ApproveAlways:
    """Approves every call but a suspect one, about which nothing is decided."""

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        yes, nobody = ApprovalAnswer(True, "always approved"), ApprovalAnswer(None)
        return [nobody if request.suspect else yes for request in requests]


DecideFunction = Callable[
    [ApprovalRequest],
    "bool | ApprovalAnswer | Awaitable[bool | ApprovalAnswer | None] | None",
]
"""Decides about one call: True, False, None if nobody decided, or an `ApprovalAnswer`."""


class FunctionApprover:
    """Asks a function about each call, one after the other; a plain ``def`` in a thread."""

    def __init__(self, function: DecideFunction) -> None:
        self._function = function

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        return [await self._decide(request) for request in requests]

    async def _decide(self, request: ApprovalRequest) -> ApprovalAnswer:
        if inspect.iscoroutinefunction(self._function):
            answer = await self._function(request)
        else:
            answer = await anyio.to_thread.run_sync(self._function, request, abandon_on_cancel=True)
            answer = await answer if inspect.isawaitable(answer) else answer
        return answer if isinstance(answer, ApprovalAnswer) else ApprovalAnswer(answer)


def as_approver(approver: Approver | DecideFunction | None) -> Approver:
    """Return the approver, or one that asks the function; None: nobody is there.

    Raises:
        UsageError: it is neither.
    """
    if approver is None:
        return PauseApprover()
    if not isinstance(approver, type):
        if callable(attribute_of(approver, "decide")):
            return cast("Approver", approver)
        if callable(approver):
            return FunctionApprover(approver)
    hint = "give an Approver, or a function that takes an ApprovalRequest and returns True or False"
    raise wrong_argument("approver", approver, hint)


async def ask_approver(
    approver: Approver, requests: Sequence[ApprovalRequest]
) -> Sequence[ApprovalAnswer]:
    """The approver's answers, one a request.

    Raises:
        UsageError: it failed, or did not give one `ApprovalAnswer` a request.
    """
    name = f"the approver {type(approver).__name__}"
    try:
        answers: Any = approver.decide(requests)
        if inspect.isawaitable(answers):
            answers = await answers
        elif inspect.isasyncgen(answers):
            answers = [answer async for answer in answers]
        answers = list(answers)
    except MlxToolsError:
        raise
    except Exception as error:
        said = f"{name} failed: {type(error).__name__}: {error}"
        raise UsageError(said, hint=f"its traceback is this error's cause; {_DECIDE}") from error
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
    """What a person agrees to on behalf of a call that runs (`ToolContext.confirm`)."""

    async def asked(details: Mapping[str, Any]) -> ApprovalRequest:
        text = json.dumps([action, dict(details)], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return ApprovalRequest(
            call=call,
            name=action,
            arguments=details,
            reason=reason,
            suspect=True,
            digest=digest,
            edited=asked,
        )

    (answer,) = await ask_approver(approver, [await asked(details)])
    if not answer.approved:
        return None
    return details if answer.arguments is None else answer.arguments


# --- approvals of a session's calls ---------------------------------------------------------------


Answers = Mapping[str, ApprovalAnswer]


class CallApprovals:
    """The approvals of one session's calls."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._session = conversation.folded
        self._undecided: set[str] = set()

    # --- templates ---

    async def approve_by_template(self, calls: Sequence[CallRecord]) -> bool:
        """Let those calls run that a template covers, of calls that are asked about for what they
        may do alone; return whether there are such."""
        found = False
        for call in calls:
            state = self._session.current.calls[call.call]
            asked = state.decision.rule if state.decision is not None else ""
            if not state.in_doubt and can_be_preapproved(asked):
                decision = (await self._by_template(call))[0]
                if decision is not None:
                    self._conversation.append(decision_record(call.call, decision))
                    found = True
        return found

    async def check_template(self, call: CallRecord, rule: str) -> str | None:
        """The state of what a call acts on that a template let through by this ``rule``, None for
        none. Raises `ApprovalOutdated` where that does not cover it any more, which is written
        down."""
        decision, state = await self._by_template(call)
        if decision is None or decision.rule != rule:
            raise self._ask_again(call, f"{rule} no longer covers {call.name}")
        return state or None

    async def _by_template(self, call: CallRecord) -> tuple[Decision | None, str]:
        """The decision of a template on a call as it would run now, and the state of what it would
        act on."""
        conversation, header = self._conversation, self._session.header
        if conversation.templates is None or call.name not in self._session.specs:
            return None, ""
        preview, tool = await self.preview(call), conversation.registry.get(call.name)
        decision = by_template(
            conversation.templates,
            call,
            tool,
            preview,
            roots=header.roots,
            nested=bool(header.parent),
            now=conversation.now(),
        )
        return decision, preview.state

    # --- asking in place ---

    async def ask(self, calls: Sequence[CallRecord]) -> None:
        """Ask about calls; those that nobody decides about leave the run paused."""
        seen = await self.pause(calls)
        asked = [
            replace(one, edited=partial(self._look, one))
            for one in seen
            if one.call not in self._undecided
        ]
        for _ in range(_EDITS):
            if not asked:
                return
            answers = await ask_approver(self._conversation.approver, asked)
            again = []
            for one, answer in zip(asked, answers, strict=True):
                try:
                    await self._take(one, answer, digest=answer.digest)
                except UsageError as fault:
                    again.append(replace(one, reason=f"{fault}; {one.reason}"))
            asked = again
        self._undecided.update(one.call for one in asked)

    async def pause(
        self, calls: Sequence[CallRecord], nested_calls: Sequence[PendingCall] = ()
    ) -> list[ApprovalRequest]:
        """Write down what is asked, here and in runs within calls, and return what is to be
        shown here."""
        now = self._conversation.now()
        expires = _text(now + APPROVAL_HOLDS)
        seen = [await self._build_request(call, expires) for call in calls]
        record = PauseRecord(
            calls=tuple(one.call for one in seen),
            digests=tuple(one.digest for one in seen),
            expires_at=expires,
            at=_text(now),
            within=tuple(nested_calls),
        )
        self._conversation.append(replace(record, seal=self._pause_seal(record)))
        return seen

    def _pause_seal(self, record: PauseRecord) -> str:
        return seal(self._conversation.secret, "pause", to_json(record))

    async def _take(
        self, request: ApprovalRequest, answer: ApprovalAnswer, digest: str = ""
    ) -> None:
        """Write down an answer. Raises `UsageError` for arguments that the call cannot have, or
        that make it another call than the one with this ``digest``."""
        if answer.approved is None:
            self._undecided.add(request.call)
            return
        if not self._session.current.is_pending(request.call):
            return  # an answer before this one covered it
        if answer.approved and answer.arguments is not None:
            request, call, decision = await self._with(request, answer.arguments)
            if digest and not same(digest, request.digest):
                raise UsageError(f"what {request.name} would do has changed since it was shown")
            at = self._conversation.timestamp()
            self._conversation.append(EditRecord(call=call.call, arguments=call.arguments, at=at))
            self._conversation.append(decision)
        spec = self._session.specs.get(request.name)
        record = ApprovalRecord(
            call=request.call,
            approved=answer.approved,
            digest=request.digest,
            reason=answer.reason,
            at=self._conversation.timestamp(),
            scope=_scope(answer, request),
            state=request.state,
            expires_at=request.expires_at,
            tool=spec.digest() if spec is not None else "",
            effects=tuple(sorted(request.effects)),
            bound_to=request.consent_binding or None,
        )
        self._conversation.append(replace(record, seal=seal_of(self._conversation.secret, record)))

    async def _look(
        self, request: ApprovalRequest, arguments: Mapping[str, Any]
    ) -> ApprovalRequest:
        """The request as it would be with other arguments; nothing is written down."""
        return (await self._with(request, arguments))[0]

    async def _with(
        self, request: ApprovalRequest, arguments: Mapping[str, Any]
    ) -> tuple[ApprovalRequest, CallRecord, DecisionRecord]:
        """The request, and the call, with other arguments: validated, and decided about again, so
        that somebody must approve it, whatever policy says."""
        session, name = self._session, request.name
        if session.current.calls[request.call].in_doubt:
            raise UsageError(
                f"{name} was started with other arguments and may have done its work",
                hint="approve or deny the call as it is",
            )
        message = ToolCall(name, dict(arguments))
        (judged,) = judge(Reading(messages=(message,), clean=True), session.specs)
        if judged.error is not None:
            raise UsageError(f"the arguments do not fit {name}: {judged.error.message}")
        edited = replace(
            session.current.call(request.call),
            arguments=judged.call.arguments,
            runs="freely",
            echoed=False,
        )
        if len(json_bytes(edited.arguments)) > session.limits.max_argument_bytes:
            raise UsageError(f"the arguments of {name} are too long")
        decision = decision_on(edited, session)
        if decision.decision == "deny":
            raise UsageError(f"with these arguments policy denies the call: {decision.reason}")
        if decision.decision == "allow":
            decision = replace(
                decision, decision="ask", rule="edited", code="requires_confirmation"
            )
        return await self._build_request(edited, request.expires_at, decision), edited, decision

    # --- answers to what an earlier process asked ---

    def check_answers(self, answers: Answers, policy: Policy) -> None:
        """Raises `UsageError` where an answer is about a call that nobody asks about, or approves
        one that ``policy`` denies now. Changes nothing."""
        session = self._session
        waiting = {call.call: call for call in session.current.calls_needing_decision()}
        made = {f"c{number}" for number in range(1, session.calls_made + 1)}
        for key, answer in answers.items():
            if key not in waiting:
                fault = "was already decided" if key in made else "is not a call of this session"
                raise UsageError(f"{key} {fault}", hint=f"waiting: {', '.join(waiting) or 'none'}")
            decision = decision_on(waiting[key], session, policy)
            if answer.approved and answer.arguments is None and decision.decision == "deny":
                raise UsageError(
                    f"{key} cannot be approved: {decision.reason}",
                    hint="deny it, or resume without deciding",
                )

    def check_within(self, answers: Answers) -> None:
        """Raises `UsageError` where an answer is about a call in a run within that nobody asks
        about, or what was shown of it was changed since."""
        pause = self._session.pause if self._session.state is State.PAUSED else None
        known = {waiting.call_id for waiting in pause.within} if pause is not None else set()
        if unknown := answers.keys() - known:
            raise UsageError(f"{min(unknown)} is not a call that waits (any more)")
        if answers and pause is not None and not same(self._pause_seal(pause), pause.seal):
            raise UsageError("what was shown was changed in the transcript", hint="start again")

    async def decide_again(self) -> None:
        """Hold calls that have not run yet, or may run again, to the policy in force now."""
        session = self._session
        for state in tuple(session.current.open_calls.values()):
            last, approval = state.decision, state.approval
            if approval is not None and not approval.approved:
                continue
            decision = decision_on(state.record, session)
            if decision.decision == "deny":
                await self._conversation.write([decision, refusal_by(decision, state, session)])
            elif state.in_doubt:
                continue  # a person decides about it, whatever policy allows
            elif approval is None and (last is None or last.decision != decision.decision):
                self._conversation.append(decision)

    def take_back(self) -> None:
        """Ask again about approved calls that never started: their process ended before that."""
        for state in tuple(self._session.current.open_calls.values()):
            if state.approval is not None and state.approval.approved:
                self._ask_again(state.record, f"{state.record.name} was approved, and not started")

    async def take(self, answers: Answers) -> None:
        """Write down answers to what was asked last.

        An approval holds for what was shown then. Where that has changed, or expired, it is asked
        anew and `UsageError` raised; a denial always holds.
        """
        pause = self._session.pause
        for key, answer in answers.items():
            if not self._session.current.is_pending(key):
                continue  # a consent for the session covered it
            call = self._session.current.call(key)
            one = await self._build_request(call, pause.expires_at if pause is not None else "")
            edited = ""
            if answer.arguments is not None and not same(answer.digest, self._shown_digest(key)):
                edited = answer.digest  # that of the edited call
                answer = replace(answer, digest="")
            if answer.approved and (fault := self._fault(one, answer)):
                await self.pause(self._session.current.calls_needing_decision())
                raise UsageError(f"{key} {fault}", hint="look at it again, then approve it")
            await self._take(one, answer, digest=edited)

    def _fault(self, request: ApprovalRequest, answer: ApprovalAnswer) -> str:
        """Why an approval does not hold for what would run now, empty where it does. Raises
        `UsageError` where it carries another digest than that of what was shown."""
        pause, digest = self._session.pause, self._shown_digest(request.call)
        if digest and answer.digest and not same(answer.digest, digest):
            raise UsageError(
                f"{request.call}: this is not the digest of what was shown",
                hint="look at the call again, and approve what you see",
            )
        if pause is None or not digest:
            return "was not shown to anybody yet"
        if not self._in_time(pause.at, pause.expires_at):
            return "was shown too long ago, or the clock was changed"
        if not same(request.digest, digest):
            return "has changed since it was shown: what it acts on, its tool, or the policy"
        return ""

    async def waiting(self) -> list[tuple[ApprovalRequest, bool]]:
        """The calls that wait while the session is paused, as they would run now, and whether each
        is still what was asked. Nothing is written down."""
        pause = self._session.pause
        if pause is None or self._session.state is not State.PAUSED:
            return []
        seen = [
            await self._build_request(call, pause.expires_at)
            for call in self._session.current.calls_needing_decision()
        ]
        return [
            (
                replace(one, edited=partial(self._look, one)),
                same(one.digest, self._shown_digest(one.call)),
            )
            for one in seen
        ]

    def _shown_digest(self, call: str) -> str:
        """The digest of what was shown of a call, empty where nothing was."""
        pause = self._session.pause
        return dict(zip(pause.calls, pause.digests, strict=True)).get(call, "") if pause else ""

    # --- before a call starts ---

    async def consume_approval(self, call: CallRecord, approval: ApprovalRecord) -> str | None:
        """The state that the call must find, None where its approval binds to none; use the
        approval up.

        Raises `ApprovalOutdated` where a person approved something else than what would run now: it
        is written down that somebody must decide about the call again.
        """
        one = await self._build_request(call, approval.expires_at)
        if not same(seal_of(self._conversation.secret, approval), approval.seal):
            why = "the approval in the transcript was not given here"
        elif not same(one.digest, approval.digest):
            why = f"what {call.name} would do has changed since it was approved"
        elif not self._in_time(approval.at, approval.expires_at):
            why = "the approval has expired"
        elif not self._conversation.files.used.take(approval.digest):
            why = "the approval was used before"
        else:
            return one.state or None
        raise self._ask_again(call, why)

    def _ask_again(self, call: CallRecord, reason: str) -> ApprovalOutdated:
        """Write down that somebody must decide about a call again; return what to raise."""
        asks = Decision("ask", CHANGED, reason, "requires_confirmation")
        self._conversation.append(decision_record(call.call, asks))
        return ApprovalOutdated()

    # --- what is shown ---

    async def _build_request(
        self, call: CallRecord, expires: str, decision: DecisionRecord | None = None
    ) -> ApprovalRequest:
        session, state = self._session, self._session.current.calls[call.call]
        decision = decision or state.decision
        return approval_request(
            call,
            await self.preview(call),
            tool=session.specs.get(call.name),
            policy=session.policy,
            session=session.header.session,
            secret=self._conversation.secret,
            reason=decision.reason if decision is not None else "",
            expires_at=expires,
            in_doubt=session.is_doubtful(call),
            is_changed=decision is not None and decision.rule == CHANGED,
        )

    async def preview(self, call: CallRecord) -> Preview:
        """The tool's own preview of the call."""
        if call.name not in self._session.specs:
            return Preview("", "")
        tool = self._conversation.registry.get(call.name)
        known_file = self._session.history.files.get
        return await anyio.to_thread.run_sync(
            preview_of, tool, call.arguments, self._session.policy, known_file
        )

    def _in_time(self, issued_at: str, expires_at: str) -> bool:
        """Return whether it is neither too late nor, by a clock that was set back, too early."""
        try:
            begin, end = datetime.fromisoformat(issued_at), datetime.fromisoformat(expires_at)
            return begin - _SLACK <= self._conversation.now() <= end
        except (TypeError, ValueError, OverflowError):
            return False


def approval_request(
    call: CallRecord,
    preview: Preview,
    *,
    tool: ToolSpec | None,
    policy: Policy,
    session: str,
    secret: bytes,
    reason: str,
    expires_at: str = "",
    in_doubt: bool = False,
    is_changed: bool = False,
) -> ApprovalRequest:
    """The request that is shown of a call, with the digest that an approval of it binds to."""
    shown = {
        "session": session,
        "call": call.call,
        "name": call.name,
        "arguments": dict(call.arguments),
        "tool": tool.digest() if tool is not None else "",
        "policy": policy.digest(),
        "state": preview.state,
        "expires_at": expires_at,
    }
    return ApprovalRequest(
        call=call.call,
        name=call.name,
        arguments=call.arguments,
        reason=reason,
        suspect=call.runs == "with_approval" or in_doubt,
        digest=seal(secret, "call", shown),
        preview=preview.text,
        counts=preview.counts,
        omitted=preview.omitted,
        expires_at=expires_at,
        in_doubt=in_doubt,
        state=preview.state,
        effects=tool.effects_of(call.arguments) if tool is not None else frozenset(),
        consent_binding=tool.consent_binding(call.arguments) if tool is not None else None,
        changed=is_changed,
    )


def _scope(answer: ApprovalAnswer, request: ApprovalRequest) -> Literal["call", "session"]:
    """Return what an answer covers. Consent for later calls needs a call that nobody suspects, a
    change that was shown whole, and a tool for which consent can be given."""
    shown = not (request.suspect or request.omitted)
    lasting = answer.for_session and shown and request.consent_binding is not None
    return "session" if lasting else "call"


def seal_of(secret: bytes, record: ApprovalRecord) -> str:
    """The seal that shows that a person said what the record says."""
    return seal(secret, "approval", to_json(record))


class NoQuestion(UsageError):
    """Nothing was asked in the session yet."""


def check_begun_here(records: Sequence[Record], secret: bytes) -> None:
    """Raises `NoQuestion` where nothing was asked in this session yet, `TranscriptError` where it
    was not begun with this secret: its policy might be anybody's."""
    if not any(isinstance(record, UserRecord) for record in records):
        raise NoQuestion("the session has no question yet", hint="ask one in a new session")
    check_header(records[0], secret)


def check_header(header: Record, secret: bytes) -> None:
    """Raises `TranscriptError` where this is no header that was written with this secret."""
    if not isinstance(header, Header) or not same(
        seal(secret, "header", to_json(header)), header.seal
    ):
        raise TranscriptError(
            "the transcript was not begun here, or its header was changed",
            hint="only the store that a session was begun in can go on with it",
        )


class ApprovalOutdated(Exception):
    """A call is no longer what was approved."""


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
