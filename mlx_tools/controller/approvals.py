"""Approvals of calls: a person is asked, and an approval binds to what was shown.

A question is recorded before it is shown, so a run that is killed while it waits counts as paused.
An approval is bound by a keyed digest. It covers the tool as it is, the arguments, the policy in
force, the session, an expiry, and the state of what the call would act on. All of these are
compared again right before the call starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

import anyio
import anyio.to_thread

from mlx_tools.controller.approver import (
    ApprovalAnswer,
    ApprovalOutdated,
    ApprovalRequest,
    Approver,
    Templates,
    ask_approver,
    find_template_decision,
)
from mlx_tools.controller.outputs import Outputs
from mlx_tools.controller.turn import decide_call, decision_record, make_refusal
from mlx_tools.controller.writer import SessionWriter
from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.messages import ErrorInfo, ToolCall, ToolSpec, json_bytes, replace
from mlx_tools.policy import Decision, Policy, can_be_preapproved, equal_digests, seal
from mlx_tools.protocol import Reading, judge
from mlx_tools.store import ConsumedApprovals, to_json
from mlx_tools.tools import Preview, Registry, make_preview
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    DecisionRecord,
    EditRecord,
    Header,
    ObservationRecord,
    PauseRecord,
    PendingCall,
    Record,
    State,
    UserRecord,
    events,
)

APPROVAL_HOLDS: Final = timedelta(days=7)
"""The time within which an approval can be given: a weekend and a short illness. After a longer
time nobody remembers what was shown."""
_MAX_CLOCK_ERROR: Final = timedelta(minutes=5)
"""The time that a clock may be set back and still be believed. Network clocks move by seconds,
those of virtual machines after a sleep by a few minutes."""
_EDITS: Final = 3
"""Answers with impossible arguments that an approver may give before it is asked no more. A person
slips once or twice; a faulty program would go on forever."""
CHANGED_RULE: Final = "changed"
"""The rule of a decision that asks again about a call that is no longer what was approved."""
Answers = Mapping[str, ApprovalAnswer]


class CallApprovals:
    """The approvals of one session's calls."""

    def __init__(
        self,
        writer: SessionWriter,
        registry: Registry,
        outputs: Outputs,
        *,
        approver: Approver,
        templates: Templates | None,
        consumed_approvals: ConsumedApprovals,
    ) -> None:
        self._writer = writer
        self._session = writer.session
        self._registry = registry
        self._outputs = outputs
        self._approver = approver
        self._templates = templates
        self._consumed_approvals = (
            consumed_approvals  # an approval that was used up allows no second run
        )
        self._undecided: set[str] = set()

    # --- templates ---

    async def approve_by_template(self, calls: Sequence[CallRecord]) -> bool:
        """Let the calls run that a template covers; return whether there are such calls.

        Only calls that are asked about because of their effects are covered.
        """
        if self._templates is None:
            return False
        found = False
        for call in calls:
            state = self._session.current.calls[call.call]
            asked = state.decision.rule if state.decision is not None else ""
            if not state.in_doubt and can_be_preapproved(asked):
                decision = (await self._decide_by_template(call))[0]
                if decision is not None:
                    self._writer.append(decision_record(call.call, decision))
                    found = True
        return found

    async def check_template(self, call: CallRecord, rule: str) -> str | None:
        """Check that a template still covers a call; return the state of what it acts on.

        None if there is no state. If the template does not cover the call any more, that is
        recorded and `ApprovalOutdated` raised.
        """
        decision, state = await self._decide_by_template(call)
        if decision is None or decision.rule != rule:
            raise self._ask_again(call, f"{rule} no longer covers {call.name}")
        return state or None

    async def _decide_by_template(self, call: CallRecord) -> tuple[Decision | None, str]:
        """Return a template's decision on a call, and the state of what it would act on."""
        header = self._session.header
        if self._templates is None or call.name not in self._session.specs:
            return None, ""
        preview, tool = await self.preview(call), self._registry.get(call.name)
        decision = find_template_decision(
            self._templates,
            call,
            tool,
            preview,
            roots=header.roots,
            nested=bool(header.parent),
            now=self._writer.now(),
        )
        return decision, preview.state

    # --- asking in place ---

    async def ask(self, calls: Sequence[CallRecord]) -> None:
        """Ask about calls; if nobody decides about some, the run pauses."""
        seen = await self.pause(calls)
        asked = [
            replace(one, preview_edit=partial(self._preview_edit, one))
            for one in seen
            if one.call not in self._undecided
        ]
        for _ in range(_EDITS):
            if not asked:
                return
            answers = await ask_approver(self._approver, asked)
            again = []
            for one, answer in zip(asked, answers, strict=True):
                try:
                    await self._record_answer(one, answer, digest=answer.digest)
                except UsageError as fault:
                    again.append(replace(one, reason=f"{fault}; {one.reason}"))
            asked = again
        self._undecided.update(one.call for one in asked)

    async def pause(
        self, calls: Sequence[CallRecord], nested_calls: Sequence[PendingCall] = ()
    ) -> list[ApprovalRequest]:
        """Record the questions, and return the requests to be shown here.

        ``nested_calls`` wait in runs within calls.
        """
        now = self._writer.now()
        expires = _text(now + APPROVAL_HOLDS)
        seen = [await self._build_request(call, expires) for call in calls]
        # Recorded before anything is shown: a run that is killed while it asks counts as paused.
        record = PauseRecord(
            calls=tuple(one.call for one in seen),
            digests=tuple(one.digest for one in seen),
            expires_at=expires,
            recorded_at=_text(now),
            nested_calls=tuple(nested_calls),
        )
        self._writer.append(replace(record, seal=self._pause_seal(record)))
        return seen

    def _pause_seal(self, record: PauseRecord) -> str:
        return seal(self._writer.secret, "pause", to_json(record))

    async def _record_answer(
        self, request: ApprovalRequest, answer: ApprovalAnswer, digest: str = ""
    ) -> None:
        """Record an answer.

        Raises `UsageError` if the call cannot have the arguments, or if they make it another call
        than the one with this ``digest``.
        """
        if answer.approved is None:
            self._undecided.add(request.call)
            return
        # Among several answers an earlier one may have brought a consent that covers this call.
        if not self._session.current.is_pending(request.call):
            return  # an earlier answer covered it
        if answer.approved and answer.arguments is not None:
            request, call, decision = await self._with_arguments(request, answer.arguments)
            if digest and not equal_digests(digest, request.digest):
                raise UsageError(f"what {request.name} would do has changed since it was shown")
            self._writer.append(EditRecord(call=call.call, arguments=call.arguments))
            self._writer.append(decision)
        spec = self._session.specs.get(request.name)
        record = ApprovalRecord(
            call=request.call,
            approved=answer.approved,
            digest=request.digest,
            reason=answer.reason,
            recorded_at=self._writer.timestamp(),
            scope=_scope(answer, request),
            state=request.state,
            expires_at=request.expires_at,
            tool=spec.digest() if spec is not None else "",
            effects=tuple(sorted(request.effects)),
            bound_to=request.consent_binding or None,
        )
        self._writer.append(replace(record, seal=compute_seal(self._writer.secret, record)))

    async def _preview_edit(
        self, request: ApprovalRequest, arguments: Mapping[str, Any]
    ) -> ApprovalRequest:
        """Return the request as it would be with other arguments; record nothing."""
        return (await self._with_arguments(request, arguments))[0]

    async def _with_arguments(
        self, request: ApprovalRequest, arguments: Mapping[str, Any]
    ) -> tuple[ApprovalRequest, CallRecord, DecisionRecord]:
        """Return the request, the call and the decision on it, with other arguments.

        The arguments are validated and decided about again. Somebody must approve the call,
        whatever the policy says.
        """
        session, name = self._session, request.name
        # With other arguments it would be another call, and the doubt about this one would be lost.
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
        decision = decide_call(edited, session)
        if decision.decision == "deny":
            raise UsageError(f"with these arguments policy denies the call: {decision.reason}")
        # A person edits the call, so a person approves it, even if the policy would not ask.
        if decision.decision == "allow":
            decision = replace(
                decision, decision="ask", rule="edited", code="requires_confirmation"
            )
        return await self._build_request(edited, request.expires_at, decision), edited, decision

    # --- answers to what an earlier process asked ---

    def check_answers(self, answers: Answers, policy: Policy) -> None:
        """Check answers before anything is recorded.

        Raises `UsageError` if an answer is about a call that nobody asks about, or approves one
        that ``policy`` now denies.
        """
        session = self._session
        waiting = {call.call: call for call in session.current.calls_needing_decision()}
        made = {f"c{number}" for number in range(1, session.calls_made + 1)}
        for key, answer in answers.items():
            if key not in waiting:
                fault = "was already decided" if key in made else "is not a call of this session"
                raise UsageError(f"{key} {fault}", hint=f"waiting: {', '.join(waiting) or 'none'}")
            decision = decide_call(waiting[key], session, policy)
            if answer.approved and answer.arguments is None and decision.decision == "deny":
                raise UsageError(
                    f"{key} cannot be approved: {decision.reason}",
                    hint="deny it, or resume without deciding",
                )

    def check_nested_answers(self, answers: Answers) -> None:
        """Check answers about calls in runs within calls.

        Raises `UsageError` if nobody asks about the call, or if it has changed since it was shown.
        """
        pause = self._session.pause if self._session.state is State.PAUSED else None
        known = {waiting.call_id for waiting in pause.nested_calls} if pause is not None else set()
        if unknown := answers.keys() - known:
            raise UsageError(f"{min(unknown)} is not a call that waits (any more)")
        if answers and pause is not None and not equal_digests(self._pause_seal(pause), pause.seal):
            raise UsageError("what was shown was changed in the transcript", hint="start again")

    async def decide_again(self) -> None:
        """Decide again about calls that have not run, by the policy in force now."""
        session = self._session
        for state in tuple(session.current.open_calls.values()):
            last, approval = state.decision, state.approval
            if approval is not None and not approval.approved:
                continue
            decision = decide_call(state.record, session)
            if decision.decision == "deny":
                await self.write([decision, make_refusal(decision, state, session)])
            elif state.in_doubt:
                continue  # a person decides about it, even if the policy allows it
            elif approval is None and (last is None or last.decision != decision.decision):
                self._writer.append(decision)

    def ask_unstarted_again(self) -> None:
        """Ask again about approved calls whose process ended before they started."""
        for state in tuple(self._session.current.open_calls.values()):
            if state.approval is not None and state.approval.approved:
                self._ask_again(state.record, f"{state.record.name} was approved, and not started")

    async def record_answers(self, answers: Answers) -> None:
        """Record answers to the last questions.

        An approval holds for what was shown. If that has changed, or expired, it is asked again and
        `UsageError` raised. A denial always holds.
        """
        pause = self._session.pause
        for key, answer in answers.items():
            if not self._session.current.is_pending(key):
                continue  # a consent for the session covers it
            call = self._session.current.call(key)
            one = await self._build_request(call, pause.expires_at if pause is not None else "")
            edited = ""
            if answer.arguments is not None and not equal_digests(
                answer.digest, self._shown_digest(key)
            ):
                edited = answer.digest  # the decision on the edited call
                answer = replace(answer, digest="")
            if answer.approved and (fault := self._fault(one, answer)):
                await self.pause(self._session.current.calls_needing_decision())
                raise UsageError(f"{key} {fault}", hint="look at it again, then approve it")
            await self._record_answer(one, answer, digest=edited)

    def _fault(self, request: ApprovalRequest, answer: ApprovalAnswer) -> str:
        """Return why an approval does not hold for the call as it would run now.

        Empty if it holds. Raises `UsageError` if its digest is not that of what was shown.
        """
        pause, digest = self._session.pause, self._shown_digest(request.call)
        if digest and answer.digest and not equal_digests(answer.digest, digest):
            raise UsageError(
                f"{request.call}: this is not the digest of what was shown",
                hint="look at the call again, and approve what you see",
            )
        if pause is None or not digest:
            return "was not shown to anybody yet"
        if not self._is_in_time(pause.recorded_at, pause.expires_at):
            return "was shown too long ago, or the clock was changed"
        if not equal_digests(request.digest, digest):
            return "has changed since it was shown: what it acts on, its tool, or the policy"
        return ""

    async def waiting(self) -> list[tuple[ApprovalRequest, bool]]:
        """Return the calls that wait while the session is paused, as they would run now.

        Each comes with True if it is still what was asked about. Nothing is recorded.
        """
        pause = self._session.pause
        if pause is None or self._session.state is not State.PAUSED:
            return []
        seen = [
            await self._build_request(call, pause.expires_at)
            for call in self._session.current.calls_needing_decision()
        ]
        return [
            (
                replace(one, preview_edit=partial(self._preview_edit, one)),
                equal_digests(one.digest, self._shown_digest(one.call)),
            )
            for one in seen
        ]

    def _shown_digest(self, call: str) -> str:
        """Return the digest of what was shown of a call, empty if nothing was."""
        pause = self._session.pause
        return dict(zip(pause.calls, pause.digests, strict=True)).get(call, "") if pause else ""

    async def write(self, records: Sequence[Record]) -> None:
        """Record these records.

        A call that a dry run left out gets the change that it would make.
        """
        for record in records:
            match record:
                case ObservationRecord(error=ErrorInfo(code="dry_run")):
                    record = await self._with_change(record)
            self._writer.append(record, records)

    async def _with_change(self, record: ObservationRecord) -> ObservationRecord:
        """Add the change to the end of a call that a dry run left out, and show it."""
        call = self._session.current.call(record.call)
        preview = await self.preview(call)
        shown = await anyio.to_thread.run_sync(self._outputs.clean, preview.text)  # may be 5 MB
        self._writer.tell(events.WouldChange(call=call.call, name=call.name, preview=shown))
        change = self._outputs.describe_change(replace(preview, text=shown))
        return replace(record, would_change=change)

    # --- before a call starts ---

    async def consume_approval(self, call: CallRecord, approval: ApprovalRecord) -> str | None:
        """Use an approval up; return the state that the call must find.

        None if it binds to none. If the call would now run otherwise than approved,
        `ApprovalOutdated` is raised, and it is recorded that somebody must decide about the call
        again.
        """
        one = await self._build_request(call, approval.expires_at)
        if not equal_digests(compute_seal(self._writer.secret, approval), approval.seal):
            why = "the approval in the transcript was not given here"
        elif not equal_digests(one.digest, approval.digest):
            why = f"what {call.name} would do has changed since it was approved"
        elif not self._is_in_time(approval.recorded_at, approval.expires_at):
            why = "the approval has expired"
        # Last: an approval that fails another check stays unused.
        elif not self._consumed_approvals.take(approval.digest):
            why = "the approval was used before"
        else:
            return one.state or None
        raise self._ask_again(call, why)

    def _ask_again(self, call: CallRecord, reason: str) -> ApprovalOutdated:
        """Record that a call must be decided again; return the exception to raise."""
        asks = Decision("ask", CHANGED_RULE, reason, "requires_confirmation")
        self._writer.append(decision_record(call.call, asks))
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
            secret=self._writer.secret,
            reason=decision.reason if decision is not None else "",
            expires_at=expires,
            in_doubt=session.is_doubtful(call),
            is_changed=decision is not None and decision.rule == CHANGED_RULE,
        )

    async def preview(self, call: CallRecord) -> Preview:
        """Return the tool's own preview of the call."""
        if call.name not in self._session.specs:
            return Preview("", "")
        tool = self._registry.get(call.name)
        known_file = self._session.history.files.get
        return await anyio.to_thread.run_sync(
            make_preview, tool, call.arguments, self._session.policy, known_file
        )

    def _is_in_time(self, issued_at: str, expires_at: str) -> bool:
        """Return whether the time is between the two: not too late, and not too early.

        It is too early if the clock was set back.
        """
        try:
            begin, end = datetime.fromisoformat(issued_at), datetime.fromisoformat(expires_at)
            # A clock that was set back far would make an expired approval valid again.
            return begin - _MAX_CLOCK_ERROR <= self._writer.now() <= end
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
    """Return the request that a person is shown, with the digest that binds approvals."""
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
        effects=tool.get_effects(call.arguments) if tool is not None else frozenset(),
        consent_binding=tool.consent_binding(call.arguments) if tool is not None else None,
        is_changed=is_changed,
    )


def _scope(answer: ApprovalAnswer, request: ApprovalRequest) -> Literal["call", "session"]:
    """Return the scope of an answer.

    Consent for later calls is only possible if the call is not suspect, its change was shown
    completely, and the tool allows consent.
    """
    shown = not (request.suspect or request.omitted)
    lasting = answer.for_session and shown and request.consent_binding is not None
    return "session" if lasting else "call"


def compute_seal(secret: bytes, record: ApprovalRecord) -> str:
    """Compute the seal that shows that a person said what the record says."""
    return seal(secret, "approval", to_json(record))


class NoQuestion(UsageError):
    """Nothing was asked in the session yet."""


def check_begun_here(records: Sequence[Record], secret: bytes) -> None:
    """Check that a session has a question and was begun with this secret.

    Raises `NoQuestion` if nothing was asked in it yet. Raises `TranscriptError` if it was begun
    with another secret: its policy might be anybody's.
    """
    if not any(isinstance(record, UserRecord) for record in records):
        raise NoQuestion("the session has no question yet", hint="ask one in a new session")
    check_header(records[0], secret)


def check_header(header: Record, secret: bytes) -> None:
    """Check that a header was written with this secret.

    Raises `TranscriptError` if it was not, or is no header.
    """
    if not isinstance(header, Header) or not equal_digests(
        seal(secret, "header", to_json(header)), header.seal
    ):
        raise TranscriptError(
            "the transcript was not begun here, or its header was changed",
            hint="only the store that a session was begun in can go on with it",
        )


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
