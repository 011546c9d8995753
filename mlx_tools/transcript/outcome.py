"""How a run ended, and what it took: a reading of its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from mlx_tools import errors
from mlx_tools.messages import ErrorInfo, Usage, total_usage
from mlx_tools.transcript.metrics import Counters, count
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    EditRecord,
    ExecutionRecord,
    Header,
    MendRecord,
    ObservationRecord,
    PauseRecord,
    PendingCall,
    Record,
    RepairRecord,
    StoppedRecord,
    SummaryRecord,
    UserRecord,
)
from mlx_tools.transcript.sources import GivenSource, cited, given_in

CallStatus = Literal["ok", "error", "denied", "pending", "in_doubt", "dry_run"]

_DENIALS = frozenset(
    ("not_allowed", "disabled", "denied", "requires_confirmation", "echoed_call", "rate_limited")
)
PREVIEW_CHARS = 500
_REPEATED = "the same call was made again after a reminder, and the run was stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """One call of a run.

    ``output`` is the whole output, where this process still has it: it is left out of everything
    that is printed or written (``repr`` too), unless asked for. ``artifact`` is the id of the
    artifact that it was kept as. ``cached``: nothing ran, it is what the same call was answered
    before.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    status: CallStatus
    repairs: tuple[str, ...] = ()
    duration_ms: int | None = None
    output_size_chars: int | None = None
    output: str | None = field(default=None, repr=False)
    artifact: str | None = None
    error_code: str | None = None
    error_preview: str | None = None
    cached: bool = False

    def to_json(self, *, include_outputs: bool = False) -> dict[str, Any]:
        """The call as ``--json`` prints it; ``output`` only where it is asked for, ``artifact``
        and ``cached`` only where there is one, and where it is."""
        out: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "arguments": dict(self.arguments),
            "status": self.status,
            "repairs": list(self.repairs),
            "duration_ms": self.duration_ms,
            "output_size_chars": self.output_size_chars,
            "output_omitted": not include_outputs and self.output_size_chars is not None,
        }
        if include_outputs:
            out["output"] = self.output
        if self.artifact is not None:
            out["artifact"] = self.artifact
        if self.cached:
            out["cached"] = True
        return out | {"error_code": self.error_code, "error_preview": self.error_preview}


@dataclass(frozen=True, slots=True)
class Context:
    """The model's context: its ``size``, and how much of it is ``used``, in tokens."""

    size: int | None = None
    used: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What every ending has in common. Numbers the server did not report are None.

    ``counters`` say what became of the calls, tool by tool; they are no part of `to_json`.
    """

    status: ClassVar[str]
    session: str
    transcript: str | None = None
    turns: int = 0
    calls: tuple[CallReport, ...] = ()
    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    repairs: Mapping[str, int] = field(default_factory=dict)
    mends: int = 0
    context: Context = Context()  # frozen, so all may share it
    model: str | None = None
    strategy: str = "free"
    counters: Counters = field(default_factory=Counters)

    @property
    def exit_code(self) -> int:
        """The exit code of a program that ends with this outcome."""
        return errors.EXIT_OK

    def to_json(self, *, include_outputs: bool = False) -> dict[str, Any]:
        """The outcome as ``mlx-tools ask --json`` prints it: every key, always."""
        return {
            "status": self.status,
            "answer": getattr(self, "answer", None),
            "bare_text": getattr(self, "bare_text", False),
            "truncated": getattr(self, "truncated", False),
            "call_like": getattr(self, "call_like", False),
            "reason": getattr(self, "reason", None),
            "session": self.session,
            "transcript": self.transcript,
            "turns": self.turns,
            "calls": [call.to_json(include_outputs=include_outputs) for call in self.calls],
            "sources": [source.to_json() for source in getattr(self, "sources", ())],
            "pending": [call.to_json() for call in getattr(self, "pending", ())],
            "usage": {"requests": self.requests} | asdict(self.usage),
            "repairs": dict(self.repairs),
            "mends": self.mends,
            "context": asdict(self.context),
            "model": self.model,
            "strategy": self.strategy,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Outcome):
    """The model gave its final answer. ``sources`` are those that it cites, by number.

    ``bare_text``, ``truncated`` and ``call_like`` are as in the transcript's `AnswerRecord`.
    """

    status: ClassVar[str] = "answered"
    answer: str
    sources: tuple[GivenSource, ...] = ()
    bare_text: bool = False
    truncated: bool = False
    call_like: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Outcome):
    """A person must decide about the ``pending`` calls. The transcript keeps everything."""

    status: ClassVar[str] = "paused"
    pending: tuple[PendingCall, ...] = ()

    @property
    def exit_code(self) -> int:
        return errors.EXIT_PAUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Outcome):
    """The run ended without an answer: ``reason`` is a word, ``message`` says it to a person."""

    status: ClassVar[str] = "stopped"
    reason: errors.StopReason
    message: str = ""
    waiting_for: str = ""

    @property
    def exit_code(self) -> int:
        if self.reason == "interrupted":
            return errors.EXIT_INTERRUPTED
        return errors.EXIT_BACKEND if self.waiting_for == "backend" else errors.EXIT_STOPPED


def outcome_of(
    records: Sequence[Record],
    *,
    transcript: str | None = None,
    outputs: Mapping[str, str] | None = None,
    artifacts: Mapping[str, str] | None = None,
) -> Outcome:
    """The outcome of the last question in ``records``, which must have come to rest.

    ``outputs`` holds the whole outputs by call, as far as they are at hand, ``artifacts`` the ids
    of those that were kept after their observation was written.
    """
    header = next(r for r in records if isinstance(r, Header))
    start = max(i for i, r in enumerate(records) if isinstance(r, UserRecord))
    run = records[start:]
    completions = [r for r in run if isinstance(r, CompletionRecord)]
    asked = [r for r in run if isinstance(r, CompletionRecord | SummaryRecord | CompactedRecord)]
    common: dict[str, Any] = {
        "session": header.session,
        "transcript": transcript,
        "turns": len(completions),
        "calls": _calls(run, outputs or {}, artifacts or {}),
        "requests": sum(r.requests for r in asked),
        "usage": total_usage([r.usage for r in asked]),
        "mends": sum(isinstance(r, MendRecord) and r.kind != "quote" for r in run),
        "repairs": dict(Counter(r.name for r in run if isinstance(r, RepairRecord))),
        "context": Context(header.context, context_used(run)),
        "model": header.model,
        "strategy": _strategy(completions, header),
        "counters": count(run),
    }
    match at_rest(run):
        case AnswerRecord() as last:
            return Answered(
                answer=last.content,
                sources=_cited(last, records),
                bare_text=last.bare_text,
                truncated=last.truncated,
                call_like=last.call_like,
                **common,
            )
        case PauseRecord() as last:
            return Paused(pending=pending_calls(run, last), **common)
        case StoppedRecord() as last:
            return Stopped(
                reason=last.reason, message=last.message, waiting_for=last.waiting_for, **common
            )
    raise errors.TranscriptError("the run has not come to rest")


def at_rest(records: Sequence[Record]) -> Record:
    """The record that says how the last question stands: what was summed up after it says nothing
    of that."""
    return next(r for r in reversed(records) if not isinstance(r, CompactedRecord))


def context_used(run: Sequence[Record]) -> int | None:
    """The tokens in the model's context at the end of a run: of the prompt, as the server said or
    as it was counted, and of what was written then; None where nobody counted."""
    for record in reversed(run):
        match record:
            case StoppedRecord(used=int(used)):
                return used
            case CompactedRecord() if record.after is not None:
                return record.after
            case CompletionRecord():
                usage, written = record.usage, record.usage.completion_tokens
                said = usage.prompt_tokens if record.requests == 1 else None
                prompt = record.context if said is None else said
                own = record.pieces if written is None or record.requests > 1 else written
                return None if prompt is None else prompt + (own or 0)
    return None


def _cited(answer: AnswerRecord, records: Sequence[Record]) -> tuple[GivenSource, ...]:
    """The sources that the answer cites, whichever question of the session they were found for."""
    kept = (row for r in records if isinstance(r, ObservationRecord) for row in r.sources)
    return cited(answer.content, answer.sources, {one.n: one for one in given_in(kept)})


def _strategy(completions: Sequence[CompletionRecord], header: Header) -> str:
    """How the last completion was written: with ``auto``, what it came to."""
    return completions[-1].strategy if completions else header.strategy


def _calls(
    run: Sequence[Record], outputs: Mapping[str, str], artifacts: Mapping[str, str]
) -> tuple[CallReport, ...]:
    ended = {r.call: r for r in run if isinstance(r, ObservationRecord)}
    in_doubt = {r.call for r in run if isinstance(r, ExecutionRecord) and r.mutates} - set(ended)
    repairs: dict[str, list[str]] = {}
    for record in run:
        if isinstance(record, RepairRecord) and record.call is not None:
            repairs.setdefault(record.call, []).append(record.name)
    edited = {r.call: r.arguments for r in run if isinstance(r, EditRecord)}
    paused = isinstance(at_rest(run), PauseRecord)
    repeated = _stopped_by(run)
    reports = []
    for call in run:
        if not isinstance(call, CallRecord):
            continue
        end = ended.get(call.call)
        error = end.error if end is not None else None
        status: CallStatus = "in_doubt" if call.call in in_doubt else _status(end, paused)
        reports.append(
            CallReport(
                id=call.call,
                name=call.name,
                arguments=edited.get(call.call, call.arguments),
                status=status,
                repairs=tuple(repairs.get(call.call, ())),
                duration_ms=end.duration_ms if end is not None else None,
                output_size_chars=end.output_size_chars if end is not None else None,
                output=outputs.get(call.call, end.content if end is not None else None),
                artifact=(end.artifact if end is not None else None) or artifacts.get(call.call),
                error_code=error.code if error is not None else repeated.get(call.call),
                error_preview=_preview(error, call.call in repeated),
                cached=end is not None and end.cached,
            )
        )
    return tuple(reports)


def _stopped_by(run: Sequence[Record]) -> Mapping[str, str]:
    """The call that a run was stopped for, and its code: it has no observation to say so."""
    if not isinstance(last := at_rest(run), StoppedRecord) or last.reason != "repeated_call":
        return {}
    calls = [record.call for record in run if isinstance(record, CallRecord)]
    return dict.fromkeys(calls[-1:], last.reason)


def _preview(error: ErrorInfo | None, repeated: bool) -> str | None:
    """The beginning of what is wrong, for every call with an error code."""
    if error is not None:
        return error.message[:PREVIEW_CHARS]
    return _REPEATED if repeated else None


def _status(end: ObservationRecord | None, paused: bool) -> CallStatus:
    if end is None:
        return "pending" if paused else "denied"
    return _error_status(end.error)


def _error_status(error: ErrorInfo | None) -> CallStatus:
    if error is None:
        return "ok"
    if error.code == "dry_run":
        return "dry_run"
    return "denied" if error.code in _DENIALS else "error"


def pending_calls(run: Sequence[Record], pause: PauseRecord) -> tuple[PendingCall, ...]:
    """The calls that are asked about in ``pause``, as they would run."""
    calls = {r.call: r for r in run if isinstance(r, CallRecord)}
    edited = {r.call: r.arguments for r in run if isinstance(r, EditRecord)}
    ended = {r.call for r in run if isinstance(r, ObservationRecord)}
    doubtful = {r.call for r in run if isinstance(r, ExecutionRecord) and r.mutates} - ended
    return (
        tuple(
            PendingCall(
                call_id=key,
                name=calls[key].name,
                arguments=dict(edited.get(key, calls[key].arguments)),
                digest=digest,
                expires_at=pause.expires_at,
                in_doubt=key in doubtful,
            )
            for key, digest in zip(pause.calls, pause.digests, strict=False)
            if key in calls
        )
        + pause.within
    )
