"""Calls in doubt: they were started, can change things, and have no known end.

A call is in doubt whatever ended its run: Ctrl-C, a time limit, a cancellation, a crash or a lost
database. A person decides about it before the session goes on.
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


def unknown_ends_of(records: Iterable[Record]) -> tuple[StartedCall, ...]:
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
