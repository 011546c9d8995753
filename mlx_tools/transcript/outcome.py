"""Outcomes of runs, and their counters: readings of their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal, Self

from msgspec import Struct, convert, field, to_builtins

from mlx_tools.errors import (
    EXIT_BACKEND,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PAUSED,
    EXIT_STOPPED,
    StopReason,
    TranscriptError,
)
from mlx_tools.messages import (
    ALL_EFFECTS,
    Effects,
    ErrorInfo,
    ToolSpec,
    Usage,
    replace,
    total_usage,
)
from mlx_tools.policy import IN_DOUBT, RateCounts
from mlx_tools.schema import to_hashable
from mlx_tools.transcript.chat_messages import chat_messages
from mlx_tools.transcript.doubt import UnknownEnds, in_doubt_after
from mlx_tools.transcript.records import (
    AnswerRecord,
    ApprovalRecord,
    CallRecord,
    CarriedRecord,
    CompactedRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    EditRecord,
    ExecutionRecord,
    FileView,
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
from mlx_tools.transcript.sources import NumberedSource, cited_sources, read_sources

# --- the history of a run and of its session, as far as it decides about later calls --------------

_RAN: Final = ("tool_error", "timeout")
"""With these a call has run, and failed."""

Consents = Callable[[ToolSpec, Mapping[str, Any]], "Effects | None"]
"""The effects that a person allowed for the rest of a session, for calls of a tool with these
arguments; None where nobody did."""


class RunHistory(Struct):
    """The calls of one run, to tell a repeated call from a new one.

    The same call again is a repeat unless a call that can change things, itself not a repeat, came
    in between: running the tests, editing, running the tests is no repeat; A, B, A, B is one.
    """

    answered: bool = False
    """A call has run."""
    acted: bool = False
    """A call has run that was more than a search for tools."""
    reminded: bool = False
    """A call was refused since it repeats another."""
    changes: int = 0
    """The number of different calls that can change things."""
    mutations: int = 0
    """The number of all calls that can change things, except repeats."""
    last_calls: dict[tuple[str, Any], tuple[int, int]] = field(default_factory=dict)
    """For each call, the count of changes when it was last made, and its repeats since then."""
    faults: dict[tuple[str, Any], ErrorInfo] = field(default_factory=dict)
    """The errors of calls that brought no result."""

    def copy(self) -> RunHistory:
        """Return a history that can be added to while this one stays."""
        return replace(self, last_calls=dict(self.last_calls), faults=dict(self.faults))

    def fault(self, call: CallRecord) -> ErrorInfo | None:
        """Return the error of the same call before, None if it had a result."""
        return self.faults.get((call.name, to_hashable(call.arguments)))

    def end(self, call: CallRecord, error: ErrorInfo | None) -> None:
        """Record how a call ended; a reminder says nothing new."""
        key = call.name, to_hashable(call.arguments)
        if error is None:
            self.faults.pop(key, None)
        elif error.code != "repeated_call":
            self.faults[key] = error

    def add(self, name: str, arguments: Mapping[str, Any], spec: ToolSpec | None) -> int:
        """Add a call. Return how often it was made without a change in between.

        This call counts, too.
        """
        key = name, to_hashable(arguments)
        mutates = spec is not None and spec.mutates(arguments)
        at, times = self.last_calls.get(key, (-1, 0))
        times = times + 1 if at == (self.changes if mutates else self.mutations) else 1
        if mutates and times == 1:
            self.mutations += 1
            self.changes += key not in self.last_calls
        self.last_calls[key] = (self.changes if mutates else self.mutations), times
        return times

    def forget(self, call: CallRecord) -> None:
        """Remove a call that came after the last one that its turn may make.

        It can be made in the next turn.
        """
        key = call.name, to_hashable(call.arguments)
        self.faults.pop(key, None)
        at, times = self.last_calls.pop(key, (0, 0))
        if times > 1:
            self.last_calls[key] = at, times - 1

    def repeat_count(self, call: CallRecord) -> int:
        """Return how often a call was made in a row, without a change in between."""
        return self.last_calls.get((call.name, to_hashable(call.arguments)), (0, 0))[1]

    def may_serve_again(self, call: CallRecord, spec: ToolSpec | None) -> bool:
        """Return True if a call that repeats another may be answered again.

        It may if it only reads, and ran before.
        """
        fault = self.fault(call)
        ran = fault is None or fault.code in _RAN
        return ran and spec is not None and not spec.mutates(call.arguments)


class SessionHistory(Struct):
    """The history of a session that decides about its later calls.

    It covers all questions of the session.
    """

    shared: Consents | None = None
    """The consents of the session whose call this session runs within."""
    unknown_ends: UnknownEnds = field(default_factory=UnknownEnds)
    """The calls whose end is unknown, there and here."""
    rate_counts: RateCounts = field(default_factory=dict)
    """The calls that were let through, for rate limits."""
    private_read: bool = False
    """True if a private tool has answered."""
    sources: dict[int, NumberedSource] = field(default_factory=dict)
    """The sources that the model was given, by number."""
    files: dict[str, FileView] = field(default_factory=dict)
    """What the model knows of files, by file."""
    consents: dict[tuple[str, Any], ApprovalRecord] = field(default_factory=dict)
    """Consents for the rest of the session, by tool and binding (`ToolSpec.consent_binding`)."""
    last_completed_at: str = ""
    """The time of the last completion."""

    def copy(self) -> SessionHistory:
        """Return a history that can be added to while this one stays."""
        return replace(
            self,
            unknown_ends=UnknownEnds({**self.unknown_ends.calls}),
            rate_counts={**self.rate_counts},
            sources={**self.sources},
            files={**self.files},
            consents={**self.consents},
        )

    def observe(self, record: ObservationRecord, spec: ToolSpec | None, run: RunHistory) -> bool:
        """Record how a call ended, in the session and in ``run``. Return True if it ran.

        Args:
            record: the observation.
            spec: the tool, None if it is unknown.
            run: the history of the run.
        """
        self.sources.update(sources_in(record))
        self.files.update((view.file, view) for view in record.files)
        ran = record.error is None or record.error.code in _RAN
        run.answered |= ran
        run.reminded |= record.error is not None and record.error.code == "repeated_call"
        # what a run within the call has read is not known here
        shows = ran or bool(record.would_change)
        self.private_read |= shows and (spec is None or spec.private or record.nested > 0)
        return ran

    def add_consent(self, tool: str, record: ApprovalRecord) -> None:
        """Add a consent to calls of a tool for the rest of the session."""
        self.consents[tool, to_hashable(record.bound_to or {})] = record

    def allowed_effects(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Effects | None:
        """Return the effects that a person allowed for the rest of the session.

        They are those of this tool, as it is now, with these arguments, in this session or in the
        one that it runs within. None if nobody allowed any.
        """
        binding = spec.consent_binding(arguments)
        record = None if binding is None else self.consents.get((spec.name, to_hashable(binding)))
        shared = None if self.shared is None else self.shared(spec, arguments)
        if record is None or record.tool != spec.digest():
            return shared
        own = frozenset(effect for effect in ALL_EFFECTS if effect in record.effects)
        return own if shared is None else own | shared


CallStatus = Literal["ok", "error", "denied", "pending", "in_doubt", "dry_run"]

_DENIALS = frozenset(
    ("not_allowed", "disabled", "denied", "requires_confirmation", "echoed_call", "rate_limited")
)
PREVIEW_CHARS = 500
_REPEATED = "the same call was made again after the model was told so, and the run was stopped"


# --- counters -------------------------------------------------------------------------------------


class _Sums(Struct, frozen=True):
    """Numbers, and numbers by name, that can be summed."""

    def __add__(self, second: Self) -> Self:
        names = self.__struct_fields__
        sums = {name: _sum(getattr(self, name), getattr(second, name)) for name in names}
        return type(self)(**sums)

    def to_json(self) -> dict[str, Any]:
        """Return the counters as JSON values."""
        return to_builtins(self)  # type: ignore[no-any-return]


def _sum(first: Any, second: Any) -> Any:
    if not isinstance(first, Mapping):
        return first + second
    both = {key: first[key] + second[key] for key in first if key in second}
    return {**first, **second, **both}


class ToolCounters(_Sums, frozen=True, kw_only=True):
    """Counters of the calls of one tool."""

    picked: int = 0
    """The number of calls that were read."""
    ran: int = 0
    """The number that were started. Those of them without an end are the remainder."""
    ok: int = 0
    """The number that ended with an output, out of the cache too."""
    failures: int = field(name="failed", default=0)
    """The number that were started and ended with an error."""
    refusals: int = field(name="refused", default=0)
    """The number that ended with an error and never ran: invalid, denied, or the like."""
    repaired: int = 0
    """The number that were read only after a repair."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """The number of both kinds of errors, by code."""
    repairs: Mapping[str, int] = field(default_factory=dict)
    """The number of repairs, by name."""
    duration_ms: int = 0
    """The time of the calls that ran to an end."""


class Counters(_Sums, frozen=True, kw_only=True):
    """Counters of one run, or of many."""

    questions: int = 0
    """The number of questions."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """Their ends: ``answered``, ``paused``, ``unfinished`` or the reason of a stop."""
    completions: int = 0
    """The number of completions for them."""
    requests: int = 0
    """The number of requests to the model, for completions and summaries."""
    duration_ms: int = 0
    """The time that the requests took."""
    prompt_tokens: int = 0
    """The tokens that its server reported, here and below."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    corrections: Mapping[str, int] = field(default_factory=dict)
    """Corrections and other hints that the model was given, by code."""
    repairs: Mapping[str, int] = field(default_factory=dict)
    """Repairs of calls and answers, by name."""
    mends: int = 0
    """The places where a turn was mended."""
    tools: Mapping[str, ToolCounters] = field(default_factory=dict)
    """The counters of each tool, by name. A name that no tool has was made up by the model."""


class CounterSum:
    """A sum of many counters, which are added in place."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = to_builtins(Counters())

    def add(self, counters: Counters) -> None:
        """Add the counters of a session."""
        _add_to(self._sums, to_builtins(counters))

    @property
    def value(self) -> Counters:
        """The sum so far."""
        return convert(self._sums, Counters)


def _add_to(sums: dict[str, Any], numbers: Mapping[str, Any]) -> None:
    for name, number in numbers.items():
        if isinstance(number, dict):
            _add_to(sums.setdefault(name, {}), number)
        else:
            sums[name] = sums.get(name, 0) + number


def count(records: Sequence[Record]) -> Counters:
    """Return the counters of some records: of one run, or of a whole transcript."""
    tools: dict[str, ToolCounters] = {}
    for call in _calls_in(records).values():
        end, error, name = call.end, call.error, call.record.name
        ran = call.was_started and not (end is not None and end.cached)
        one = ToolCounters(
            picked=1,
            ran=int(ran),
            ok=int(end is not None and error is None),
            failures=int(ran and error is not None),
            refusals=int(not ran and error is not None),
            repaired=int(bool(call.repairs)),
            errors={error.code: 1} if error is not None else {},
            repairs=dict(Counter(call.repairs)),
            duration_ms=(end.duration_ms or 0) if end is not None and ran else 0,
        )
        tools[name] = tools[name] + one if name in tools else one
    corrections: Counter[str] = Counter(
        r.error.code for r in records if isinstance(r, CorrectionRecord)
    )
    asked = [r for r in records if isinstance(r, _REQUESTING)]
    ends = _ends(records)
    return Counters(
        questions=sum(ends.values()),
        ends=ends,
        completions=sum(isinstance(r, CompletionRecord) for r in records),
        requests=sum(r.requests for r in asked),
        duration_ms=sum(r.duration_ms or 0 for r in asked),
        prompt_tokens=sum(r.usage.prompt_tokens or 0 for r in asked),
        cached_tokens=sum(r.usage.cached_tokens or 0 for r in asked),
        completion_tokens=sum(r.usage.completion_tokens or 0 for r in asked),
        corrections=dict(corrections),
        repairs=dict(Counter(r.name for r in records if isinstance(r, RepairRecord))),
        mends=_mends(records),
        tools=tools,
    )


def _ends(records: Sequence[Record]) -> dict[str, int]:
    """Return the number of questions by their end."""
    starts = [i for i, r in enumerate(records) if isinstance(r, UserRecord)]
    ends: Counter[str] = Counter()
    for start, end in pairwise((*starts, len(records))):
        match at_rest(records[start:end]):
            case AnswerRecord():
                ends["answered"] += 1
            case PauseRecord():
                ends["paused"] += 1
            case StoppedRecord(reason=reason):
                ends[reason] += 1
            case _:
                ends["unfinished"] += 1
    return dict(ends)


def _mends(records: Iterable[Record]) -> int:
    return sum(isinstance(r, MendRecord) and r.kind != "quote" for r in records)


_REQUESTING = (CompletionRecord, SummaryRecord, CompactedRecord)


class _Call(Struct):
    """The course of a call."""

    record: CallRecord
    arguments: Mapping[str, Any]
    repairs: list[str] = field(default_factory=list)
    was_started: bool = False
    in_doubt: bool = False
    repeats_doubt: bool = False
    """The call is the same as one whose end is unknown."""
    end: ObservationRecord | None = None
    error: ErrorInfo | None = None


def _calls_in(records: Iterable[Record]) -> dict[str, _Call]:
    """Return the calls by key."""
    calls: dict[str, _Call] = {}
    for record in records:
        if isinstance(record, CallRecord):
            calls[record.call] = _Call(record, record.arguments)
            continue
        call = calls.get(getattr(record, "call", None) or "")
        if call is None:
            continue
        call.in_doubt = in_doubt_after(record, call.in_doubt)
        match record:
            case DecisionRecord() if record.rule == IN_DOUBT:
                call.repeats_doubt = True
            case RepairRecord():
                call.repairs.append(record.name)
            case EditRecord():
                call.arguments, call.repeats_doubt = record.arguments, False
            case ExecutionRecord():
                call.was_started = True
            case ObservationRecord():
                call.end, call.error = record, record.error
    return calls


# --- outcomes -------------------------------------------------------------------------------------


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
    """Why the answer was cut off: at the token limit, or since it repeated itself."""


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


def outcome_of(
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
    for record in records if isinstance(at_rest(records), AnswerRecord) else ():
        given |= sources_in(record)
    return outcome_of_run(
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


def sources_in(record: Record) -> Mapping[int, NumberedSource]:
    """Return the sources that the model was given with this record, by number."""
    observed = record.record if isinstance(record, CarriedRecord) else record
    if not isinstance(observed, ObservationRecord) or not observed.sources:
        return {}
    return {source.n: source for source in read_sources(observed.sources)}


def outcome_of_run(
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
        unfinished: as in `outcome_of`.
        transcript: as in `outcome_of`.
        outputs: as in `outcome_of`.
        artifacts: as in `outcome_of`.

    Raises:
        TranscriptError: the question has not come to rest.
    """
    last = at_rest(run)
    asked = [r for r in run if isinstance(r, _REQUESTING)]
    completions = [r for r in asked if isinstance(r, CompletionRecord)]
    common: dict[str, Any] = {
        "session": header.session,
        "transcript": transcript,
        "turns": len(completions),
        "calls": _reports(run, last, outputs or {}, artifacts or {}),
        "requests": sum(r.requests for r in asked),
        "usage": total_usage([r.usage for r in asked]),
        "mends": _mends(run),
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
                sources=cited_sources(last.content, last.sources, sources) if sources else (),
                bare_text=last.bare_text,
                truncated=last.truncated,
                call_like=last.call_like,
                truncated_by=_cut_by(last),
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


def _cut_by(answer: AnswerRecord) -> Literal["length", "repetition"] | None:
    if not answer.truncated:
        return None
    return "repetition" if answer.repeated else "length"


def at_rest(records: Sequence[Record]) -> Record:
    """Return the record that says how the last question stands.

    A compaction after it says nothing of that.
    """
    return next(r for r in reversed(records) if not isinstance(r, CompactedRecord))


def is_at_rest(records: Sequence[Record]) -> bool:
    """Return True if the last question has come to rest."""
    asked = any(isinstance(record, UserRecord) for record in records)
    return asked and isinstance(at_rest(records), AnswerRecord | PauseRecord | StoppedRecord)


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


_NO_END: Final = ObservationRecord(call="", name="")
"""What a call that has not ended tells."""


def _reports(
    run: Sequence[Record],
    last: Record,
    outputs: Mapping[str, str],
    artifacts: Mapping[str, str],
) -> tuple[CallReport, ...]:
    """Return the calls of a run that ``last`` ended."""
    calls = _calls_in(run)
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


def _status(call: _Call, paused: bool) -> CallStatus:
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
    calls = _calls_in(run)
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
