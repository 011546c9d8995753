"""A turn: the calls of one completion, and the decisions on them, or its answer.

Pure, and the same each time it is worked out: a crash between two of these records loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mlx_tools.controller.corrections import explain_call, explain_reading
from mlx_tools.controller.state import CallState, SessionState, Turn
from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, FinalAnswer, json_bytes
from mlx_tools.policy import (
    Decision,
    Facts,
    Policy,
    RateCounts,
    collect_facts,
    decide,
    find_exceeded_rate,
)
from mlx_tools.prompt import one_line, signature
from mlx_tools.protocol import JudgedCall, Reading, judge
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    StoppedRecord,
)

_MAX_CHARS: Final = 500
"""Characters of an error's words: what all of them have (`PromptWords.error`)."""


def follow(reading: Reading, completion: CompletionRecord, session: SessionState) -> Turn:
    """Return the turn that a completion, read as ``reading``, begins."""
    turn = completion.turn
    answer = next((m for m in reading.messages if isinstance(m, FinalAnswer)), None)
    if answer is not None:
        repairs = (RepairRecord(turn=turn, name=name) for name in answer.repairs)
        record = AnswerRecord(
            turn=turn,
            content=answer.content,
            sources=answer.sources,
            bare_text=reading.bare_text,
            truncated=reading.truncated,
            repeated=reading.truncated and completion.repeated,
        )
        return Turn((*repairs, record))
    # The same text twice, in spite of a correction, is an answer that only looks like a call.
    if reading.call_like and session.corrected_call_like:
        content = reading.retained_text.strip()
        return Turn((AnswerRecord(turn=turn, content=content, bare_text=True, call_like=True),))
    calls = judge(reading, session.specs, session.calls_seen_in_outputs, session.choice)
    records = _calls(calls, completion, session)
    stopped = bool(records) and isinstance(records[-1], StoppedRecord)
    if reading.error is not None and not stopped:
        # A turn with nothing but an invented result. Beside other text that is dropped without a
        # word.
        forged = not calls and bool(reading.dropped) and not reading.retained_text.strip()
        forged = forged and session.run_history.answered
        error = explain_reading(reading, session)
        records.append(CorrectionRecord(turn=turn, error=error, forged=forged))
    return Turn(records)


def _calls(
    judged_calls: Sequence[JudgedCall], completion: CompletionRecord, session: SessionState
) -> list[Record]:
    """Return each call and its repairs, then the decision on each.

    A call that may not run has its observation, too.
    """
    calls: list[Record] = []
    verdicts: list[Record] = []
    turn = completion.turn
    run = session.run_history
    # A copy: calls of this turn count for later ones, and are folded only once recorded.
    history = run.copy()
    # The same for rate limits: the batch is decided as a whole before any call of it runs.
    made = dict(session.history.rate_counts)
    for number, call in enumerate(judged_calls, start=session.calls_made + 1):
        record = CallRecord(
            turn=turn,
            call=f"c{number}",
            name=call.call.name,
            arguments=call.call.arguments,
            id=call.call.id,
            runs=call.runs,
            echoed=call.echoed,
        )
        repairs = call.call.repairs
        calls += (record, *(RepairRecord(turn=turn, name=r, call=record.call) for r in repairs))
        spec, repeated = session.specs.get(record.name), False
        times = history.add(record.name, record.arguments, spec)
        if times > 1:
            served = history.may_serve_again(record, spec)
            # A call that only reads may be repeated once, since its result may have left the
            # prompt.
            repeated = times > 2 or not served
            told = run.repeat_count(record) > 1 if served else run.reminded
            if repeated and told:
                # The whole turn ends here: decisions on its other calls would be useless.
                return [*calls, StoppedRecord(reason="repeated_call")]
        most = session.limits.max_calls_per_turn
        over = number - session.calls_made > most
        # Before anything else: an error of a call that may not be made would only distract.
        if over:
            reason = session.words.text("turns.too_many_calls", most=most)
            verdicts.append(refusal(record, session, "rate_limited", reason))
        elif repeated:
            verdicts.append(_repetition(record, session, history.fault(record)))
        elif call.error is not None and record.name not in session.disabled:
            verdicts.append(_refusal(record, explain_call(call.call, call.error, session)))
        # After validation, which says more, and before policy, whose patterns read every byte.
        elif len(json_bytes(record.arguments)) > session.limits.max_argument_bytes:
            verdicts.append(refusal(record, session, "payload_too_large"))
        else:
            decision = decide_call(
                record, session, call_counts=made, timestamp=completion.recorded_at
            )
            verdicts.append(decision)
            if decision.decision == "deny":
                verdicts.append(make_refusal(decision, CallState(record), session))
            else:
                made[record.call] = record.name, completion.recorded_at
        if isinstance(last := verdicts[-1], ObservationRecord):
            history.end(record, last.error)
            if over:
                history.forget(record)
    return calls + verdicts


def decide_call(
    record: CallRecord,
    session: SessionState,
    policy: Policy | None = None,
    *,
    call_counts: RateCounts | None = None,
    timestamp: str | None = None,
) -> DecisionRecord:
    """Return the decision of a policy, the session's or another, on a call.

    The call was read, edited, or comes from before a pause. ``call_counts`` are the calls that were
    allowed before it, ``timestamp`` is when it was read. Without them they are all other calls of
    the session, and the time of its last completion.
    """
    policy = policy or session.policy
    history, spec = session.history, session.specs.get(record.name)
    if call_counts is None:
        # Without the call itself: an edited call must not count against its own limit.
        call_counts = {key: one for key, one in history.rate_counts.items() if key != record.call}
    facts = None
    if spec is not None:
        facts = collect_facts(
            spec,
            record.arguments,
            session.finder,
            consented=history.allowed_effects(spec, record.arguments),
            private_read=history.private_read,
            repeats_doubt=history.unknown_ends.holds(record.name, record.arguments),
            rate_denial=find_exceeded_rate(
                policy,
                spec,
                call_counts,
                history.last_completed_at if timestamp is None else timestamp,
            ),
        )
    decision = decide(
        policy,
        spec,
        record.name,
        record.arguments,
        runs=record.runs,
        echoed=record.echoed,
        disabled_reason=session.disabled.get(record.name),
        facts=facts or Facts(),
    )
    return decision_record(record.call, decision)


def decision_record(call: str, decision: Decision) -> DecisionRecord:
    """Return the record of a decision on a call."""
    return DecisionRecord(
        call=call,
        decision=decision.decision,
        rule=decision.rule,
        reason=decision.reason,
        code=decision.code,
    )


def make_refusal(
    decision: DecisionRecord, state: CallState, session: SessionState
) -> ObservationRecord:
    """Return the end of a call that a decision denied.

    The call may have done its work before.
    """
    code: ErrorCode = "in_doubt" if state.in_doubt else decision.code or "not_allowed"
    return refusal(state.record, session, code, decision.reason)


def refusal(
    call: CallRecord, session: SessionState, code: ErrorCode, reason: str = ""
) -> ObservationRecord:
    """Return the end of a call that did not run, in the words that the model reads."""
    text = session.words.error(code, name=call.name, reason=reason)
    return _refusal(call, ErrorInfo(code, text))


def _repetition(
    call: CallRecord, session: SessionState, fault: ErrorInfo | None
) -> ObservationRecord:
    """Return the end of a call that was made before.

    If the earlier call had no result, the model is told why, and what would fit.
    """
    if fault is None:
        return refusal(call, session, "repeated_call")
    words, spec = session.words, session.specs.get(call.name)
    reason = fault.message if fault.message[-1:] in (*".!?…", "") else f"{fault.message}."
    said = [words.text("turns.refused_before", reason=reason), words.correction(fault.code)]
    if fault.code == "invalid_arguments" and spec is not None:
        said.append(words.text("turns.takes", tool=signature(spec).partition(" - ")[0]))
    text = one_line(" ".join(filter(None, said)), _MAX_CHARS)
    return _refusal(call, ErrorInfo("repeated_call", text, fault.form))


def not_started(call: CallRecord, session: SessionState) -> ObservationRecord:
    """Return the end of a call that was allowed, or waited, when its run ended."""
    text = session.words.text("turns.not_started", name=call.name)
    return _refusal(call, ErrorInfo("tool_error", text))


def _refusal(call: CallRecord, error: ErrorInfo) -> ObservationRecord:
    return ObservationRecord(call=call.call, name=call.name, id=call.id, error=error)
