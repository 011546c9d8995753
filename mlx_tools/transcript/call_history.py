"""The calls of a session, and their part in decisions about later ones.

A call is *in doubt* if it was started, can change things, and has no known end, whatever ended its
run: Ctrl-C, a time limit, a cancellation, a crash or a lost database. A person decides about it
before the session goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from mlx_tools.messages import ALL_EFFECTS, Effects, ErrorInfo, ToolSpec, replace
from mlx_tools.policy import IN_DOUBT, RateCounts
from mlx_tools.schema import to_hashable
from mlx_tools.transcript.records import (
    ApprovalRecord,
    CallRecord,
    DecisionRecord,
    EditRecord,
    ExecutionRecord,
    FileView,
    ObservationRecord,
    Record,
    RepairRecord,
    StartedCall,
)
from mlx_tools.transcript.sources import NumberedSource, list_sources

_RAN: Final = ("tool_error", "timeout")
"""With these a call has run, and failed."""

Consents = Callable[[ToolSpec, Mapping[str, Any]], "Effects | None"]
"""The effects that a person allowed for the rest of a session, for calls of a tool with these
arguments; None where nobody did."""


# --- the calls of some records ------------------------------------------------------------------


class CallCourse(Struct):
    """The course of a call, as its records tell it."""

    record: CallRecord
    arguments: Mapping[str, Any]
    repairs: list[str] = field(default_factory=list)
    was_started: bool = False
    in_doubt: bool = False
    repeats_doubt: bool = False
    """The call is the same as one whose end is unknown."""
    end: ObservationRecord | None = None
    error: ErrorInfo | None = None


def index_calls(records: Iterable[Record]) -> dict[str, CallCourse]:
    """Return the calls by key."""
    calls: dict[str, CallCourse] = {}
    for record in records:
        if isinstance(record, CallRecord):
            calls[record.call] = CallCourse(record, record.arguments)
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


# --- calls in doubt ------------------------------------------------------------------------------


def in_doubt_after(record: Record, was_in_doubt: bool) -> bool:
    """Return True if a call is in doubt after one of its records.

    Args:
        record: the record.
        was_in_doubt: True if the call was in doubt before it.
    """
    match record:
        case ExecutionRecord():
            return was_in_doubt or record.mutates
        case ObservationRecord():
            return False
    return was_in_doubt


def calls_in_doubt(records: Iterable[Record]) -> tuple[str, ...]:
    """Return the keys of a session's calls in doubt, in the order of their starts."""
    doubts: dict[str, None] = {}
    for record in records:
        if isinstance(record, ExecutionRecord | ObservationRecord):
            if in_doubt_after(record, record.call in doubts):
                doubts[record.call] = None
            else:
                doubts.pop(record.call, None)
    return tuple(doubts)


def find_unknown_ends(records: Iterable[Record]) -> tuple[StartedCall, ...]:
    """Return the calls of a session, nested runs included, whose end is unknown."""
    ends, calls, started = UnknownEnds(), dict[str, CallRecord](), set[str]()
    for record in records:
        match record:
            case CallRecord():
                calls[record.call] = record
            case EditRecord():
                calls[record.call] = replace(calls[record.call], arguments=record.arguments)
            case ExecutionRecord() if record.mutates:
                started.add(record.call)
                ends.begin(calls[record.call])
            case ObservationRecord():
                ends.end(calls[record.call], record, was_started=record.call in started)
    return tuple(ends.calls.values())


class UnknownEnds(Struct):
    """The calls, by name and arguments, that were started and whose end is unknown.

    A call stays here after a person gave it up: a person is asked about the same call again,
    whatever the session allows. It leaves once the same call has ended.
    """

    calls: dict[tuple[str, Any], StartedCall] = field(default_factory=dict)

    def holds(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return True if such a call would repeat one whose end is unknown."""
        return (name, to_hashable(arguments)) in self.calls if self.calls else False

    def begin(self, call: CallRecord | StartedCall) -> None:
        """Add a call that was started and can change things."""
        key = call.name, to_hashable(call.arguments)
        self.calls[key] = StartedCall(call.name, call.arguments)

    def end(self, call: CallRecord, record: ObservationRecord, *, was_started: bool) -> None:
        """Record how a call ended if it was started, and add those of nested runs."""
        if was_started and record.error is not None and record.error.code == IN_DOUBT:
            self.begin(call)
        elif was_started and self.calls:
            self.calls.pop((call.name, to_hashable(call.arguments)), None)
        for inner in record.unknown_ends:
            self.begin(inner)


# --- what calls come to ---------------------------------------------------------------------------


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
        # Arguments may be long, and most runs have no fault to look up.
        return self.faults.get((call.name, to_hashable(call.arguments))) if self.faults else None

    def end(self, call: CallRecord, error: ErrorInfo | None) -> None:
        """Record how a call ended; a reminder says nothing new."""
        if error is None:
            if self.faults:
                self.faults.pop((call.name, to_hashable(call.arguments)), None)
        elif error.code != "repeated_call":
            self.faults[call.name, to_hashable(call.arguments)] = error

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
    """The knowledge of the model about files, by file."""
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
        if record.sources:
            self.sources.update(list_sources(record))
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
        binding = spec.consent_binding(arguments) if self.consents else None
        record = None if binding is None else self.consents.get((spec.name, to_hashable(binding)))
        shared = None if self.shared is None else self.shared(spec, arguments)
        if record is None or record.tool != spec.digest():
            return shared
        own = frozenset(effect for effect in ALL_EFFECTS if effect in record.effects)
        return own if shared is None else own | shared
