"""Doubt about a call: it was started, can change things, and has no known end.

Doubt belongs to the call, whatever ended its run: Ctrl-C, a time limit, a cancellation, a crash or
a lost database. A person decides about it before the session goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from mlx_tools.messages import replace
from mlx_tools.policy import IN_DOUBT
from mlx_tools.schema import to_hashable
from mlx_tools.transcript.records import (
    CallRecord,
    EditRecord,
    ExecutionRecord,
    ObservationRecord,
    Record,
    StartedCall,
)


def in_doubt_after(record: Record, was_in_doubt: bool) -> bool:
    """Return whether a call is in doubt after one of its records, and was ``was_in_doubt`` it."""
    match record:
        case ExecutionRecord():
            return was_in_doubt or record.mutates
        case ObservationRecord():
            return False
    return was_in_doubt


def calls_in_doubt(records: Iterable[Record]) -> tuple[str, ...]:
    """Return the keys of the calls of a session that are in doubt, in the order they started."""
    doubts: dict[str, None] = {}
    for record in records:
        if isinstance(record, ExecutionRecord | ObservationRecord):
            if in_doubt_after(record, record.call in doubts):
                doubts[record.call] = None
            else:
                doubts.pop(record.call, None)
    return tuple(doubts)


def unknown_ends_of(records: Iterable[Record]) -> tuple[StartedCall, ...]:
    """Return the calls of a whole session, and of runs within them, whose end nobody knows."""
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
    """The calls, by name and arguments, that were started and whose end nobody knows.

    A call stays here after a person gave it up: the same call again is asked about, whatever stands
    for the session. It leaves once the same call has ended.
    """

    calls: dict[tuple[str, Any], StartedCall] = field(default_factory=dict)

    def holds(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call with these arguments would repeat one whose end is unknown."""
        return (name, to_hashable(arguments)) in self.calls if self.calls else False

    def begin(self, call: CallRecord | StartedCall) -> None:
        """Take in that a call which can change things was started."""
        key = call.name, to_hashable(call.arguments)
        self.calls[key] = StartedCall(call.name, call.arguments)

    def end(self, call: CallRecord, record: ObservationRecord, *, was_started: bool) -> None:
        """Take in how a call ended, if it was started, and those in runs within it."""
        if was_started and record.error is not None and record.error.code == IN_DOUBT:
            self.begin(call)
        elif was_started:
            self.calls.pop((call.name, to_hashable(call.arguments)), None)
        for inner in record.unknown_ends:
            self.begin(inner)
