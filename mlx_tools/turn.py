"""What follows from one completion: its calls, the decisions on them, its answer or its fault.

Pure, and the same each time it is worked out: a crash between two of these records loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import (
    AnswerRecord,
    ApprovalRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    ErrorInfo,
    ExecutionRecord,
    FinalAnswer,
    ObservationRecord,
    Record,
    RepairRecord,
    StoppedRecord,
)
from mlx_tools.policy import (
    Decision,
    Facts,
    Finder,
    Limits,
    Policy,
    Tally,
    decide,
    exceeded,
    facts_of,
)
from mlx_tools.prompt import PromptWords
from mlx_tools.protocol import JudgedCall, Reading, canonical, judge
from mlx_tools.spec import Effects, ToolSpec

_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


_RAN: Final = ("tool_error", "timeout")
"""With these a call has run, and failed."""


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
    finder: Finder | None

    @property
    def choice(self) -> str: ...


class History:
    """Which calls one run has made: what tells a repeated call from a new one.

    The same call again is a repeat unless a call that can change things, itself not a repeat, came
    in between: running the tests, editing, running the tests is no repeat; A, B, A, B is one.
    """

    def __init__(self) -> None:
        self.answered = False
        self.acted = False
        self.reminded = False
        self._changes = 0
        self._seen: dict[str, int] = {}

    def copy(self) -> History:
        """A history that can be gone on with while this one stays."""
        other = History()
        other._changes, other._seen = self._changes, dict(self._seen)
        return other

    def add(self, name: str, arguments: Mapping[str, Any], spec: ToolSpec | None) -> bool:
        """Takes in a call; returns whether it was made before, and nothing has changed since."""
        key = canonical(name, arguments)
        seen = self._seen.get(key)
        repeated = seen == self._changes
        if seen is None and spec is not None and spec.mutates(arguments):
            self._changes += 1
        self._seen[key] = self._changes
        return repeated

    def observe(self, record: ObservationRecord, *, search: bool = False) -> None:
        """Takes in how a call ended. ``answered``: one has run; ``acted``: one that was more than
        a ``search`` for tools."""
        if record.error is None or record.error.code in _RAN:
            self.answered = True
            self.acted |= not search
        elif record.error.code == "repeated_call":
            self.reminded = True


class Past:
    """What has happened in a session that decides about its later calls, over all its questions.

    ``made`` are the calls that were let through, ``private_read`` is whether a private tool has
    answered, ``consents`` are the effects that a person allowed a tool for the rest of the session.
    """

    def __init__(self) -> None:
        self.made = Tally()
        self.private_read = False
        self.consents: dict[str, Effects] = {}
        self._at = ""
        self._names: dict[str, str] = {}

    def note(self, record: Record, specs: Mapping[str, ToolSpec]) -> None:
        """Takes in any record of the session."""
        match record:
            case CompletionRecord():
                self._at = record.at
            case CallRecord():
                self._names[record.call] = record.name
            case DecisionRecord(decision="allow" | "ask"):
                self.made.add(record.call, self._names.get(record.call, ""), self._at)
            case ObservationRecord() if record.error is None or record.error.code in _RAN:
                spec = specs.get(record.name)
                self.private_read |= spec is None or spec.private

    def consent(self, name: str, effects: Effects) -> None:
        """Takes in that a person allowed a tool these effects for the rest of the session."""
        self.consents[name] = self.consents.get(name, frozenset()) | effects


class Turn:
    """The records that one completion brings, and how far its calls have come."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = tuple(records)
        self._noted = 0
        self._calls: dict[str, CallRecord] = {}
        self._allowed: set[str] = set()
        self._refused: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._started: set[str] = set()
        self._in_doubt: set[str] = set()
        self.open_calls: dict[str, CallRecord] = {}

    @property
    def unwritten(self) -> tuple[Record, ...]:
        """What follows from the completion and is not in the transcript yet."""
        return self._records[self._noted :]

    def note(self, record: Record) -> None:
        """Takes in a record that came after the completion."""
        if self._noted < len(self._records):
            self._noted += 1
        match record:
            case CallRecord():
                self._calls[record.call] = self.open_calls[record.call] = record
            case DecisionRecord():
                self._reasons[record.call] = record.reason
                if record.decision == "allow":
                    self._allowed.add(record.call)
            case ApprovalRecord(approved=True):
                self._allowed.add(record.call)
                self._in_doubt.discard(record.call)
            case ApprovalRecord():
                self._refused[record.call] = record.reason
            case ExecutionRecord():
                self._started.add(record.call)
                if record.mutates:
                    self._in_doubt.add(record.call)
            case ObservationRecord():
                del self.open_calls[record.call]

    def call(self, key: str) -> CallRecord:
        """The call of this turn with the key ``key``."""
        return self._calls[key]

    def reason(self, key: str) -> str:
        """Why policy asks about this call."""
        return self._reasons.get(key, "")

    def may_run(self, call: str) -> bool:
        """Whether policy or a person let this call run, and it is not in doubt."""
        return call in self._allowed and call not in self._in_doubt

    def runnable(self) -> tuple[CallRecord, ...]:
        """Open calls that may run. One that was started, can change things and has no observation
        is in doubt: it is not among them."""
        return tuple(c for key, c in self.open_calls.items() if self.may_run(key))

    def refused(self) -> tuple[tuple[CallRecord, str], ...]:
        """Open calls that a person refused, with the reason given."""
        return tuple(
            (self._calls[key], why) for key, why in self._refused.items() if key in self.open_calls
        )

    def asked(self) -> tuple[CallRecord, ...]:
        """Open calls that a person must decide about."""
        return tuple(c for key, c in self.open_calls.items() if not self.may_run(key))

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
        turn=turn, content=answer.content, sources=answer.sources, bare_text=reading.bare_text
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
            made.add(record.call, record.name, completion.at)
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
    made: Tally,
    at: str,
) -> list[Record]:
    """The decision on a call and, where it may not run, its observation. ``made`` are the calls
    that were let through before it, ``at`` is when it was read."""
    name = record.name
    if repeated:
        return [_refusal(record, _error(now, "repeated_call", name))]
    if judged.error is not None and name not in now.disabled:
        return [_refusal(record, judged.error)]
    if _size(record.arguments) > now.limits.max_argument_bytes:
        return [_refusal(record, _error(now, "payload_too_large", name))]
    spec = now.specs.get(name)
    decision = decide(
        now.policy,
        spec,
        name,
        record.arguments,
        runs=record.runs,
        echoed=record.echoed,
        disabled_reason=now.disabled.get(name),
        facts=_facts(spec, record, now, made, at) if spec is not None else Facts(),
    )
    records: list[Record] = [_decision_record(record, decision)]
    if decision.decision == "deny":
        code = decision.code or "not_allowed"
        records.append(_refusal(record, _error(now, code, name, decision.reason)))
    return records


def _facts(spec: ToolSpec, record: CallRecord, now: Situation, made: Tally, at: str) -> Facts:
    """What is known of a call beside what was read of it."""
    return facts_of(
        spec,
        record.arguments,
        now.finder,
        consented=now.past.consents.get(record.name),
        private_read=now.past.private_read,
        exceeded=exceeded(now.policy, spec, made, at),
    )


def _decision_record(record: CallRecord, decision: Decision) -> DecisionRecord:
    return DecisionRecord(
        call=record.call,
        decision=decision.decision,
        rule=decision.rule,
        reason=decision.reason,
        code=decision.code,
    )


def _error(now: Situation, code: ErrorCode, name: str, reason: str = "") -> ErrorInfo:
    return ErrorInfo(code, now.words.error(code, name=name, reason=reason))


def _refusal(record: CallRecord, error: ErrorInfo) -> ObservationRecord:
    return ObservationRecord(call=record.call, name=record.name, id=record.id, error=error)


def _size(arguments: Mapping[str, Any]) -> int:
    """Bytes of the arguments as compact JSON."""
    text = _compact(arguments)
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
