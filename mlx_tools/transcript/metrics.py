"""Which tools the model picked, which failed, what had to be repaired: a reading of records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mlx_tools.transcript.records import (
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    CorrectionRecord,
    ExecutionRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    SummaryRecord,
    UserRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCounters:
    """What became of the calls of one tool.

    ``picked`` counts the calls that were read. Of these ``ran`` were started: ``ok`` ended with an
    output, ``failed`` with an error, and nobody knows the end of the others. ``refused`` ended with
    an error and never ran: invalid, denied, or the like. One that was answered out of the cache is
    ``ok`` and did not run. ``repaired`` were read only after a
    repair. ``errors`` counts both kinds by code, ``repairs`` by name. ``duration_ms`` is the time
    that the calls took which ran to an end.
    """

    picked: int = 0
    ran: int = 0
    ok: int = 0
    failed: int = 0
    refused: int = 0
    repaired: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    repairs: Mapping[str, int] = field(default_factory=dict)
    duration_ms: int = 0

    def __add__(self, other: ToolCounters) -> ToolCounters:
        return ToolCounters(**_sums(self, other))

    def to_json(self) -> dict[str, Any]:
        """The counters as JSON values."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What happened in one run, or in many.

    ``questions`` were put, answered with so many ``completions``; for these, and for summaries, the
    model was asked in so many ``requests``. ``corrections`` are the lines that could not be read,
    and other hints that the model was given, by code. ``repairs`` are those of calls and answers
    alike. ``tools`` has each tool that was picked, by name; a name that no tool has is one that the
    model made up.
    """

    questions: int = 0
    completions: int = 0
    requests: int = 0
    corrections: Mapping[str, int] = field(default_factory=dict)
    repairs: Mapping[str, int] = field(default_factory=dict)
    tools: Mapping[str, ToolCounters] = field(default_factory=dict)

    def __add__(self, other: Counters) -> Counters:
        return Counters(**_sums(self, other))

    def to_json(self) -> dict[str, Any]:
        """The counters as JSON values."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def count(records: Iterable[Record]) -> Counters:
    """The counters of some records: of one run, or of a whole transcript."""
    names: dict[str, str] = {}
    ended: dict[str, ObservationRecord] = {}
    ran: set[str] = set()
    repairs: dict[str | None, Counter[str]] = {}
    numbers: Counter[str] = Counter()
    corrections: Counter[str] = Counter()
    for record in records:
        match record:
            case UserRecord():
                numbers["questions"] += 1
            case CompletionRecord():
                numbers["completions"] += 1
                numbers["requests"] += record.requests
            case SummaryRecord() | CompactedRecord():
                numbers["requests"] += record.requests
            case CorrectionRecord():
                corrections[record.error.code] += 1
            case RepairRecord():
                repairs.setdefault(record.call, Counter())[record.name] += 1
            case CallRecord():
                names[record.call] = record.name
            case ExecutionRecord():
                ran.add(record.call)
            case ObservationRecord():
                ended[record.call] = record
    tools: dict[str, ToolCounters] = {}
    for call, name in names.items():
        one = _of_call(ended.get(call), call in ran, repairs.get(call, Counter()))
        tools[name] = tools[name] + one if name in tools else one
    return Counters(
        **numbers,
        corrections=dict(corrections),
        repairs=dict(sum(repairs.values(), Counter())),
        tools=tools,
    )


def _of_call(end: ObservationRecord | None, ran: bool, repairs: Mapping[str, int]) -> ToolCounters:
    error = end.error if end is not None else None
    ran = ran and not (end is not None and end.cached)
    return ToolCounters(
        picked=1,
        ran=int(ran),
        ok=int(end is not None and error is None),
        failed=int(ran and error is not None),
        refused=int(not ran and error is not None),
        repaired=int(bool(repairs)),
        errors={error.code: 1} if error is not None else {},
        repairs=dict(repairs),
        duration_ms=(end.duration_ms or 0) if end is not None and ran else 0,
    )


def _sums(one: Any, other: Any) -> dict[str, Any]:
    """The fields of two values of one class, added up."""
    return {f.name: _sum(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)}


def _sum(one: Any, other: Any) -> Any:
    if not isinstance(one, Mapping):
        return one + other
    both = {key: one[key] + other[key] for key in one if key in other}
    return {**one, **other, **both}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.to_json() if isinstance(value, ToolCounters) else value
