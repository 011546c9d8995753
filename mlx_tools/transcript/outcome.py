"""Outcomes of runs: readings of their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

from msgspec import Struct, field, to_builtins

from mlx_tools.errors import (
    EXIT_BACKEND,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PAUSED,
    EXIT_STOPPED,
    StopReason,
    TranscriptError,
)
from mlx_tools.messages import Usage, total_usage
from mlx_tools.transcript.call_history import CallCourse, index_calls
from mlx_tools.transcript.chat_messages import chat_messages
from mlx_tools.transcript.counters import Counters, count
from mlx_tools.transcript.records import (
    REQUESTING_RECORDS,
    AnswerRecord,
    CompactedRecord,
    CompletionRecord,
    Header,
    ObservationRecord,
    PauseRecord,
    PendingCall,
    Record,
    RepairRecord,
    StoppedRecord,
    UserRecord,
    count_mends,
    find_last_state,
)
from mlx_tools.transcript.sources import NumberedSource, find_citations, list_sources

CallStatus = Literal["ok", "error", "denied", "pending", "in_doubt", "dry_run"]

_DENIALS = frozenset(
    ("not_allowed", "disabled", "denied", "requires_confirmation", "echoed_call", "rate_limited")
)
PREVIEW_CHARS = 500
_REPEATED = "the same call was made again after the model was told so, and the run was stopped"


def _repr_without(value: Struct, hidden: str) -> str:
    """Return the ``repr`` of a value without one field."""
    names = (name for name in value.__struct_fields__ if name != hidden)
    return f"{type(value).__name__}({', '.join(f'{n}={getattr(value, n)!r}' for n in names)})"


class CallReport(Struct, frozen=True, kw_only=True):
    """One call of a run."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    status: CallStatus
    repairs: tuple[str, ...] = ()
    duration_ms: int | None = None
    output_size_chars: int | None = None
    output: str | None = None
    """The whole output, if this process still has it. It is printed or written only on request."""
    artifact: str | None = None
    """The id of the artifact that it is stored as."""
    error_code: str | None = None
    error_preview: str | None = None
    cached: bool = False
    """True if nothing ran, and the earlier result of the same call was used."""
    would_change: str = ""
    """The change that a dry run left out, as the model is told it."""

    def __repr__(self) -> str:
        return _repr_without(self, "output")

    def to_json(self, *, include_outputs: bool = False) -> dict[str, Any]:
        """Return the call as ``--json`` prints it.

        ``output`` is there only on request, ``artifact``, ``cached`` and ``would_change`` only if
        they say something.
        """
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
        if self.would_change:
            out["would_change"] = self.would_change
        return out | {"error_code": self.error_code, "error_preview": self.error_preview}


class Context(Struct, frozen=True):
    """The model's context, in tokens."""

    size: int | None = None
    """The size of the context."""
    used_tokens: int | None = field(name="used", default=None)
    """The tokens in use."""


class Outcome(Struct, frozen=True, kw_only=True):
    """The end of a run. Numbers that the server did not report are None."""

    status: ClassVar[str]
    session: str
    transcript: str | None = None
    turns: int = 0
    calls: tuple[CallReport, ...] = ()
    requests: int = 0
    usage: Usage = Usage()  # frozen, so all may share it
    repairs: Mapping[str, int] = field(default_factory=dict)
    mends: int = 0
    context: Context = Context()
    model: str | None = None
    strategy: str = "free"
    reasoning_artifact: str | None = None
    """The id of the artifact that holds the model's reasoning."""
    records: Sequence[Record] = ()
    """The records of the run."""

    def __repr__(self) -> str:
        return _repr_without(self, "records")

    @property
    def counters(self) -> Counters:
        """Counters of the run, tool by tool."""
        return count(self.records)

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of this run in OpenAI's form, the question first.

        They are those of the user, the assistant (with its ``tool_calls``) and the tools, without
        the system's. `Controller.run` takes them as ``history``. A call that is pending, or at
        which the run stopped, has no tool message. The output of a tool is as the model was shown
        it.
        """
        return chat_messages(self.records)

    @property
    def exit_code(self) -> int:
        """The exit code of a program that ends with this outcome."""
        return EXIT_OK

    def to_json(self, *, include_outputs: bool = False) -> dict[str, Any]:
        """Return the outcome as ``mlx-tools ask --json`` prints it.

        All keys are always there, except ``reasoning_artifact`` if there is none.
        """
        return {
            "status": self.status,
            "answer": getattr(self, "answer", None),
            "bare_text": getattr(self, "bare_text", False),
            "truncated": getattr(self, "truncated", False),
            "truncated_by": getattr(self, "truncated_by", None),
            "call_like": getattr(self, "call_like", False),
            "reason": getattr(self, "reason", None),
            "session": self.session,
            "transcript": self.transcript,
            "turns": self.turns,
            "calls": [call.to_json(include_outputs=include_outputs) for call in self.calls],
            "sources": [source.to_json() for source in getattr(self, "sources", ())],
            "pending": [call.to_json() for call in getattr(self, "pending", ())],
            "usage": {"requests": self.requests} | to_builtins(self.usage),
            "repairs": dict(self.repairs),
            "mends": self.mends,
            "context": to_builtins(self.context),
            "model": self.model,
            "strategy": self.strategy,
        } | ({"reasoning_artifact": self.reasoning_artifact} if self.reasoning_artifact else {})


class Answered(Outcome, frozen=True, kw_only=True):
    """The model gave its final answer.

    ``bare_text``, ``truncated`` and ``call_like`` are as in the transcript's `AnswerRecord`.
    """

    status: ClassVar[str] = "answered"
    answer: str
    sources: tuple[NumberedSource, ...] = ()
    """The sources that the answer cites, by number."""
    bare_text: bool = False
    truncated: bool = False
    call_like: bool = False
    truncated_by: Literal["length", "repetition"] | None = None
    """The reason why the answer was cut off: at the token limit, or since it repeated itself."""


class Paused(Outcome, frozen=True, kw_only=True):
    """A person must decide about the ``pending`` calls. The transcript keeps all."""

    status: ClassVar[str] = "paused"
    pending: tuple[PendingCall, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_PAUSED


class Stopped(Outcome, frozen=True, kw_only=True):
    """The run ended without an answer: ``reason`` is a code, ``message`` the words."""

    status: ClassVar[str] = "stopped"
    reason: StopReason
    message: str = ""
    waiting_for: str = ""

    @property
    def exit_code(self) -> int:
        if self.reason == "interrupted":
            return EXIT_INTERRUPTED
        failed = self.waiting_for == "backend" and self.reason != "total_timeout"
        return EXIT_BACKEND if failed else EXIT_STOPPED


class Unfinished(Outcome, frozen=True, kw_only=True):
    """A run that has not come to rest, as far as it went."""

    status: ClassVar[str] = "running"


def make_outcome(
    records: Sequence[Record],
    *,
    unfinished: bool = False,
    transcript: str | None = None,
    outputs: Mapping[str, str] | None = None,
    artifacts: Mapping[str, str] | None = None,
) -> Outcome:
    """Return the outcome of the last question, which must have come to rest.

    Args:
        records: the session's records.
        unfinished: True to return what there is of a question that has not come to rest.
        transcript: the path of the transcript.
        outputs: whole outputs by call, as far as they are at hand.
        artifacts: the ids of artifacts that were stored after their observation was written, by
            call.

    Raises:
        TranscriptError: the question has not come to rest.
    """
    header = next(r for r in records if isinstance(r, Header))
    given: dict[int, NumberedSource] = {}
    for record in records if isinstance(find_last_state(records), AnswerRecord) else ():
        given |= list_sources(record)
    return make_run_outcome(
        header,
        last_run(records),
        given,
        unfinished=unfinished,
        transcript=transcript,
        outputs=outputs,
        artifacts=artifacts,
    )


def last_run(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records of the last question, which comes first."""
    last = next(i for i in reversed(range(len(records))) if isinstance(records[i], UserRecord))
    return records[last:]


def make_run_outcome(
    header: Header,
    run: Sequence[Record],
    sources: Mapping[int, NumberedSource],
    *,
    unfinished: bool = False,
    transcript: str | None = None,
    outputs: Mapping[str, str] | None = None,
    artifacts: Mapping[str, str] | None = None,
) -> Outcome:
    """Return the outcome of one question, whose records ``run`` begins with.

    Args:
        header: the session's header.
        run: the question's records.
        sources: sources that the model was given so far, for any question of the session.
        unfinished: as in `make_outcome`.
        transcript: as in `make_outcome`.
        outputs: as in `make_outcome`.
        artifacts: as in `make_outcome`.

    Raises:
        TranscriptError: the question has not come to rest.
    """
    last = find_last_state(run)
    asked = [r for r in run if isinstance(r, REQUESTING_RECORDS)]
    completions = [r for r in asked if isinstance(r, CompletionRecord)]
    common: dict[str, Any] = {
        "session": header.session,
        "transcript": transcript,
        "turns": len(completions),
        "calls": _reports(run, last, outputs or {}, artifacts or {}),
        "requests": sum(r.requests for r in asked),
        "usage": total_usage([r.usage for r in asked]),
        "mends": count_mends(run),
        "repairs": dict(Counter(r.name for r in run if isinstance(r, RepairRecord))),
        "context": Context(header.context, context_used(run)),
        "model": header.model,
        # of the last completion: with ``auto``, what it came to
        "strategy": completions[-1].strategy if completions else header.strategy,
        "records": run,
    }
    match last:
        case AnswerRecord():
            return Answered(
                answer=last.content,
                sources=find_citations(last.content, last.sources, sources) if sources else (),
                bare_text=last.bare_text,
                truncated=last.truncated,
                call_like=last.call_like,
                truncated_by=("repetition" if last.repeated else "length")
                if last.truncated
                else None,
                **common,
            )
        case PauseRecord():
            return Paused(pending=pending_calls(run, last), **common)
        case StoppedRecord():
            return Stopped(
                reason=last.reason, message=last.message, waiting_for=last.waiting_for, **common
            )
    if unfinished:
        return Unfinished(**common)
    raise TranscriptError("the run has not come to rest")


def context_used(run: Sequence[Record]) -> int | None:
    """Return the tokens in the model's context at the end of a run.

    They are those of the prompt, as the server reported or as they were counted, and of the
    completion. None if nobody counted them.
    """
    for record in reversed(run):
        match record:
            case StoppedRecord(used_tokens=int(used)):
                return used
            case CompactedRecord() if record.tokens_after is not None:
                return record.tokens_after
            case CompletionRecord():
                usage, written = record.usage, record.usage.completion_tokens
                said = usage.prompt_tokens if record.requests == 1 else None
                prompt = record.context if said is None else said
                own = record.pieces if written is None or record.requests > 1 else written
                return None if prompt is None else prompt + (own or 0)
    return None


def is_context_estimated(run: Sequence[Record]) -> bool:
    """Return True if `context_used` has the tokens that a compaction left."""
    counted = (r for r in reversed(run) if isinstance(r, CompactedRecord | CompletionRecord))
    return isinstance(next(counted, None), CompactedRecord)


_NO_END: Final = ObservationRecord(call="", name="")
"""The stand-in for the end of a call that has not ended."""


def _reports(
    run: Sequence[Record],
    last: Record,
    outputs: Mapping[str, str],
    artifacts: Mapping[str, str],
) -> tuple[CallReport, ...]:
    """Return the calls of a run that ``last`` ended."""
    calls = index_calls(run)
    stopped = isinstance(last, StoppedRecord) and last.reason == "repeated_call"
    repeated = [*calls][-1] if stopped and calls else None
    reports = []
    for key, call in calls.items():
        end, error = call.end or _NO_END, call.error
        code = error.code if error is not None else None
        preview = error.message[:PREVIEW_CHARS] if error is not None else None
        if key == repeated and error is None:  # it has no observation to say so
            code, preview = "repeated_call", _REPEATED
        reports.append(
            CallReport(
                id=key,
                name=call.record.name,
                arguments=call.arguments,
                status=_status(call, isinstance(last, PauseRecord)),
                repairs=tuple(call.repairs),
                duration_ms=end.duration_ms,
                output_size_chars=end.output_size_chars,
                output=outputs.get(key, end.content),
                artifact=end.artifact or artifacts.get(key),
                error_code=code,
                error_preview=preview,
                cached=end.cached,
                would_change=end.would_change,
            )
        )
    return tuple(reports)


def _status(call: CallCourse, paused: bool) -> CallStatus:
    if call.in_doubt:
        return "in_doubt"
    if call.end is None:
        return "pending" if paused else "denied"
    if call.error is None:
        return "ok"
    if call.error.code == "dry_run":
        return "dry_run"
    return "denied" if call.error.code in _DENIALS else "error"


def pending_calls(run: Sequence[Record], pause: PauseRecord) -> tuple[PendingCall, ...]:
    """Return the calls that are asked about in ``pause``, as they would run."""
    calls = index_calls(run)
    own = (
        PendingCall(
            call_id=key,
            name=calls[key].record.name,
            arguments=dict(calls[key].arguments),
            digest=digest,
            expires_at=pause.expires_at,
            in_doubt=calls[key].in_doubt or calls[key].repeats_doubt,
        )
        for key, digest in zip(pause.calls, pause.digests, strict=False)
        if key in calls
    )
    return (*own, *pause.nested_calls)
