"""What follows from one completion: its calls, the decisions on them, its answer or its fault.

Pure, and the same each time it is worked out: a crash between two of these records loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from mlx_tools.errors import ErrorCode, TranscriptError
from mlx_tools.messages import ErrorInfo, FinalAnswer, ToolSpec
from mlx_tools.policy import (
    Exceeded,
    Facts,
    Limits,
    Policy,
    RateCounts,
    SecretFinder,
    decide,
    exceeded,
    facts_of,
)
from mlx_tools.prompt import PromptWords
from mlx_tools.protocol import JudgedCall, Reading, judge
from mlx_tools.transcript.history import History, Past
from mlx_tools.transcript.records import (
    AnswerRecord,
    ApprovalRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    EditRecord,
    ExecutionRecord,
    NestedRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    StoppedRecord,
    SummaryRecord,
)

_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


_OF_A_CALL: Final = (
    *(DecisionRecord, ObservationRecord, ExecutionRecord, NestedRecord),
    *(SummaryRecord, ApprovalRecord, EditRecord),
)


class Situation(Protocol):
    """What a completion is judged by: the part of a session that `follow` reads."""

    specs: Mapping[str, ToolSpec]
    disabled: Mapping[str, str]
    policy: Policy
    limits: Limits
    words: PromptWords
    observations: list[str]
    history: History
    calls_made: int
    past: Past
    finder: SecretFinder | None
    refused: str

    @property
    def choice(self) -> str: ...


class Turn:
    """The records that one completion brings, and how far its calls have come."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = tuple(records)
        self._noted = 0
        self._calls: dict[str, CallRecord] = {}
        self._decisions: dict[str, DecisionRecord] = {}
        self._approvals: dict[str, ApprovalRecord] = {}
        self._edited: set[str] = set()
        self._nested: dict[tuple[str, int], str] = {}
        self._summaries: dict[str, SummaryRecord] = {}
        self._started: set[str] = set()
        self._in_doubt: set[str] = set()
        self.open_calls: dict[str, CallRecord] = {}

    @property
    def unwritten(self) -> tuple[Record, ...]:
        """What follows from the completion and is not in the transcript yet."""
        return tuple(r for r in self._records[self._noted :] if not self._is_past(r))

    def _is_past(self, record: Record) -> bool:
        """Whether the record is about a call that has ended: tools were others when it did."""
        if not isinstance(record, DecisionRecord | ObservationRecord):
            return False
        return record.call in self._calls and record.call not in self.open_calls

    def check(self, record: Record) -> None:
        """Raises `TranscriptError` where the record speaks of a call that is not open, starts one
        that may not run, or answers a question that nobody asks."""
        if not isinstance(record, _OF_A_CALL):
            return
        if record.call not in self.open_calls:
            raise TranscriptError(
                f"a {record.type} record speaks of the call {record.call!r}, which is not open"
            )
        if isinstance(record, ExecutionRecord) and not self.may_run(record.call):
            raise TranscriptError(f"the call {record.call!r} was not allowed to run")
        waits = any(call.call == record.call for call in self.asked())
        if isinstance(record, (ApprovalRecord, EditRecord)) and not waits:
            raise TranscriptError(f"nobody asks about the call {record.call!r} (any more)")

    def all_written(self) -> None:
        """Says that nothing more follows from the completion than what was noted."""
        self._records = self._records[: self._noted]

    def note(self, record: Record) -> None:
        """Takes in a record that came after the completion."""
        if self._noted < len(self._records):
            self._noted += 1
        match record:
            case CallRecord():
                self._calls[record.call] = self.open_calls[record.call] = record
            case DecisionRecord():
                self._decisions[record.call] = record
                self._approvals.pop(record.call, None)
            case EditRecord():
                # Whatever it was before: only the approval that comes next lets it run.
                edited = replace(
                    self._calls[record.call],
                    arguments=record.arguments,
                    runs="with_approval",
                    echoed=False,
                )
                self._calls[record.call] = self.open_calls[record.call] = edited
                self._edited.add(record.call)
                self._decisions.pop(record.call, None)
            case ApprovalRecord():
                self._approvals[record.call] = record
                if record.approved:
                    self._in_doubt.discard(record.call)
            case ExecutionRecord():
                self._started.add(record.call)
                self._approvals.pop(record.call, None)  # used up
                if record.mutates:
                    self._in_doubt.add(record.call)
            case NestedRecord():
                self._nested[record.call, record.run] = record.session
            case SummaryRecord():
                self._summaries[record.call] = record
            case ObservationRecord():
                del self.open_calls[record.call]

    def call(self, key: str) -> CallRecord:
        """The call of this turn with the key ``key``."""
        return self._calls[key]

    def reason(self, key: str) -> str:
        """Why policy asks about this call."""
        decision = self._decisions.get(key)
        return decision.reason if decision is not None else ""

    def decision(self, key: str) -> DecisionRecord | None:
        """The last decision on this call."""
        return self._decisions.get(key)

    def approval(self, key: str) -> ApprovalRecord | None:
        """What a person said of this call, where that still holds."""
        return self._approvals.get(key)

    def nested(self, key: str, run: int) -> str | None:
        """The session in which this call asked the model for the time number ``run``."""
        return self._nested.get((key, run))

    def summary(self, key: str) -> SummaryRecord | None:
        """What the model wrote of this call's output, where that is too long to be shown."""
        return self._summaries.get(key)

    def was_edited(self, key: str) -> bool:
        """Whether a person gave this call other arguments."""
        return key in self._edited

    def was_started(self, key: str) -> bool:
        """Whether this call was started, be it that nobody knows how it ended."""
        return key in self._started

    def may_run(self, call: str) -> bool:
        """Whether policy or a person let this call run, and it is not in doubt."""
        if call in self._in_doubt:
            return False
        approval, decision = self._approvals.get(call), self._decisions.get(call)
        if approval is not None:
            return approval.approved
        return decision is not None and decision.decision == "allow"

    def runnable(self) -> tuple[CallRecord, ...]:
        """Open calls that may run. One that was started, can change things and has no observation
        is in doubt: it is not among them."""
        return tuple(c for key, c in self.open_calls.items() if self.may_run(key))

    def refused(self) -> tuple[tuple[CallRecord, str], ...]:
        """Open calls that a person refused, with the reason given."""
        return tuple(
            (self._calls[key], said.reason)
            for key, said in self._approvals.items()
            if key in self.open_calls and not said.approved
        )

    def asked(self) -> tuple[CallRecord, ...]:
        """Open calls that a person must decide about."""
        return tuple(
            c
            for key, c in self.open_calls.items()
            if not self.may_run(key) and key not in self._approvals
        )

    def in_doubt(self, call: str) -> bool:
        """Whether the call was started, can change things, and nobody knows how it ended."""
        return call in self._in_doubt


def follow(reading: Reading, completion: CompletionRecord, now: Situation) -> Turn:
    """The turn that a completion, read as ``reading``, begins."""
    records: list[Record] = []
    answer = next((m for m in reading.messages if isinstance(m, FinalAnswer)), None)
    if answer is not None:
        records += (RepairRecord(turn=completion.turn, name=name) for name in answer.repairs)
        records.append(_answer(completion.turn, answer, reading))
        return Turn(records)
    if reading.call_like and completion.text == now.refused:  # it was told, and means it
        records.append(
            AnswerRecord(
                turn=completion.turn,
                content=reading.counted.strip(),
                bare_text=True,
                call_like=True,
            )
        )
        return Turn(records)
    calls = judge(reading, now.specs, now.observations, now.choice)
    records += _calls(calls, completion, now)
    stopped = bool(records) and isinstance(records[-1], StoppedRecord)
    if reading.error is not None and not stopped:
        forged = not calls and bool(reading.dropped) and not reading.counted.strip()
        records.append(
            CorrectionRecord(
                turn=completion.turn,
                error=reading.error,
                forged=forged and now.history.answered,
            )
        )
    return Turn(records)


def _answer(turn: int, answer: FinalAnswer, reading: Reading) -> AnswerRecord:
    return AnswerRecord(
        turn=turn,
        content=answer.content,
        sources=answer.sources,
        bare_text=reading.bare_text,
        truncated=reading.truncated,
    )


def _calls(
    judged: Sequence[JudgedCall], completion: CompletionRecord, now: Situation
) -> list[Record]:
    """First every call and its repairs, then what becomes of each."""
    read: list[Record] = []
    become: list[Record] = []
    history, made = now.history.copy(), now.past.made.copy()
    for number, call in enumerate(judged, start=now.calls_made + 1):
        record = _call_record(call, f"c{number}", completion.turn)
        read.append(record)
        read += (
            RepairRecord(turn=completion.turn, name=name, call=record.call)
            for name in call.call.repairs
        )
        repeated = history.add(record.name, record.arguments, now.specs.get(record.name))
        if repeated and now.history.reminded:
            return [*read, StoppedRecord(reason="repeated_call")]
        verdict = _verdict(call, record, repeated, now, made, completion.at)
        become += verdict
        if isinstance(verdict[-1], DecisionRecord):  # it was not refused: it counts
            made[record.call] = record.name, completion.at
    return read + become


def _call_record(judged: JudgedCall, key: str, turn: int) -> CallRecord:
    return CallRecord(
        turn=turn,
        call=key,
        name=judged.call.name,
        arguments=judged.call.arguments,
        id=judged.call.id,
        runs=judged.runs,
        echoed=judged.echoed,
    )


def _verdict(
    judged: JudgedCall,
    record: CallRecord,
    repeated: bool,
    now: Situation,
    made: RateCounts,
    at: str,
) -> list[Record]:
    """The decision on a call and, where it may not run, its observation. ``made`` are the calls
    that were let through before it, ``at`` is when it was read."""
    name = record.name
    if repeated:
        return [_refusal(record, _error(now, "repeated_call", name))]
    if judged.error is not None and name not in now.disabled:
        return [_refusal(record, judged.error)]
    if arguments_size(record.arguments) > now.limits.max_argument_bytes:
        return [_refusal(record, _error(now, "payload_too_large", name))]
    decision = decision_on(record, now, made=made, at=at)
    if decision.decision != "deny":
        return [decision]
    return [decision, refusal_by(decision, record, now)]


def decision_on(
    record: CallRecord,
    now: Situation,
    policy: Policy | None = None,
    *,
    made: RateCounts | None = None,
    at: str | None = None,
) -> DecisionRecord:
    """What policy, that of the session or another, says of a call that was read, edited, or comes
    from before a pause.

    ``made`` are the calls that were let through before it, ``at`` is when it was read; without
    them, all others of the session, at its last completion.
    """
    held = now.policy if policy is None else policy
    if made is None:
        made = {call: one for call, one in now.past.made.items() if call != record.call}
    at = now.past.at if at is None else at
    spec = now.specs.get(record.name)
    decision = decide(
        held,
        spec,
        record.name,
        record.arguments,
        runs=record.runs,
        echoed=record.echoed,
        disabled_reason=now.disabled.get(record.name),
        facts=_facts(spec, record, now, exceeded(held, spec, made, at)) if spec else Facts(),
    )
    return DecisionRecord(
        call=record.call,
        decision=decision.decision,
        rule=decision.rule,
        reason=decision.reason,
        code=decision.code,
    )


def _facts(spec: ToolSpec, record: CallRecord, now: Situation, over: Exceeded | None) -> Facts:
    """What is known of a call beside what was read of it."""
    return facts_of(
        spec,
        record.arguments,
        now.finder,
        consented=now.past.consented(spec),
        private_read=now.past.private_read,
        exceeded=over,
    )


def refusal_by(decision: DecisionRecord, call: CallRecord, now: Situation) -> ObservationRecord:
    """How a call comes back that a decision denied."""
    code = decision.code or "not_allowed"
    return _refusal(call, _error(now, code, call.name, decision.reason))


def _error(now: Situation, code: ErrorCode, name: str, reason: str = "") -> ErrorInfo:
    return ErrorInfo(code, now.words.error(code, name=name, reason=reason))


def _refusal(record: CallRecord, error: ErrorInfo) -> ObservationRecord:
    return ObservationRecord(call=record.call, name=record.name, id=record.id, error=error)


def arguments_size(arguments: Mapping[str, Any]) -> int:
    """Bytes of the arguments as compact JSON."""
    text = _compact(arguments)
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
