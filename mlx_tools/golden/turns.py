"""What followed from a completion, beside what would follow from it today."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, TypeGuard

from mlx_tools.golden.difference import Room
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CorrectionRecord,
    DecisionRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    ResumedRecord,
    StoppedRecord,
)

FOLLOWING: Final = (
    *(CallRecord, RepairRecord, DecisionRecord, ObservationRecord),
    *(CorrectionRecord, AnswerRecord, StoppedRecord),
)
"""The records that can follow from a completion."""

_BY_READING: Final = frozenset(
    ("invalid_json", "truncated_output", "unknown_tool", "invalid_arguments", "echoed_call")
)
"""Codes of faults that reading finds; the others are policy's."""


def alike(one: Record, other: Record) -> bool:
    """Whether two records are of one kind, about one call."""
    return type(one) is type(other) and getattr(one, "call", None) == getattr(other, "call", None)


def following(records: Sequence[Record], start: int, now: Sequence[Record]) -> list[int]:
    """The places, from ``start`` on, of the records that followed from a completion, where ``now``
    would follow today. What a later process wrote in between is passed over."""
    places = [
        place
        for place in range(start, len(records))
        if not isinstance(records[place], ResumedRecord)
    ]
    first = places[: len(now)]
    if (
        now
        and len(first) == len(now)
        and all(alike(n, records[p]) for n, p in zip(now, first, strict=True))
    ):
        return first
    found: list[int] = []
    calls: set[str] = set()
    done: set[tuple[type[Record], str]] = set()
    for place in places:
        record = records[place]
        if not isinstance(record, FOLLOWING) or _is_limit(record):
            break
        if isinstance(record, CallRecord):
            calls.add(record.call)
        elif isinstance(record, DecisionRecord | ObservationRecord):
            if record.call not in calls or (type(record), record.call) in done:
                break
            done.add((type(record), record.call))
        found.append(place)
    return found


def _is_limit(record: Record) -> bool:
    """Whether a record follows from a limit, or the world, and not from what was read."""
    if isinstance(record, StoppedRecord):
        return record.reason != "repeated_call"
    return isinstance(record, CorrectionRecord) and record.error.code == "iteration_limit"


def paired(
    now: Sequence[Record], was: Sequence[Record]
) -> Iterator[tuple[Record | None, Record | None]]:
    """The records of now, each beside the one of then that is alike; None where there is none."""
    keys = [[(type(r).type, getattr(r, "call", None)) for r in records] for records in (now, was)]
    if keys[0] == keys[1]:
        yield from zip(now, was, strict=True)
        return
    matcher = SequenceMatcher(a=keys[0], b=keys[1], autojunk=False)
    for _, a, b, c, d in matcher.get_opcodes():
        for step in range(max(b - a, d - c)):
            one = now[a + step] if a + step < b else None
            other = was[c + step] if c + step < d else None
            yield one, other


def calls_that_differ(pairs: Sequence[tuple[Record | None, Record | None]]) -> frozenset[str]:
    """The keys of the calls that are read otherwise, or only then, or only now, and of those that
    reading refuses otherwise."""
    return frozenset(
        record.call
        for pair in pairs
        if pair[0] != pair[1]
        for record in pair
        if isinstance(record, CallRecord) or _refused_by_reading(record)
    )


def _refused_by_reading(record: Record | None) -> TypeGuard[ObservationRecord]:
    info = record.error if isinstance(record, ObservationRecord) else None
    return info is not None and info.code in _BY_READING


def room_of(now: Record | None, was: Record | None, *, words_changed: bool) -> Room:
    """The room that a difference between two records comes from.

    Where the words of observations and corrections have changed, a message that differs while its
    code does not comes from them.
    """
    of = was if was is not None else now
    error, other = (getattr(record, "error", None) for record in (now, was))
    if error is not None and other is not None and error.code == other.code and words_changed:
        return "prompt"
    match of:
        case DecisionRecord():
            return "policy"
        case StoppedRecord(reason="repeated_call"):
            return "policy"  # the same rule that refuses such a call at first
        case StoppedRecord():
            return "outcome"
        case ObservationRecord(error=info) if info is not None and info.code not in _BY_READING:
            return "policy"
    return "reading"
